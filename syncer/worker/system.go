package worker

import "fmt"

// Supported says why there are no workers on a system, by its names in Go. Workers are
// confined with limits and a filter of system calls that only Linux has, and whose numbers
// are written down for two architectures.
func Supported(system, architecture string) error {
	if system == "linux" && (architecture == "amd64" || architecture == "arm64") {
		return nil
	}
	return fmt.Errorf("workers need Linux on amd64 or arm64, this is %s on %s", system, architecture)
}
