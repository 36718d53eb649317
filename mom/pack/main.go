// Command pack puts programs and the manifests of providers where the build of cascade-mom
// embeds them. See package payload.
package main

import (
	"flag"
	"fmt"
	"os"
	"strings"

	"github.com/cascade-gitops/cascade/mom/payload"
)

func main() {
	to := flag.String("to", "mom/payload/embedded", "directory that the build embeds")
	contents := payload.Contents{Programs: map[string]string{}}
	flag.Func("program", "name=file of a program; may be given several times", func(text string) error {
		name, file, found := strings.Cut(text, "=")
		if !found {
			return fmt.Errorf("write name=file")
		}
		contents.Programs[name] = file
		return nil
	})
	flag.Func("provider", "directory of a provider, in the order in which they are started; may be given several times", func(dir string) error {
		contents.Providers = append(contents.Providers, dir)
		return nil
	})
	flag.Parse()
	if err := payload.Pack(*to, contents); err != nil {
		fmt.Fprintf(os.Stderr, "pack: %v\n", err)
		os.Exit(1)
	}
}
