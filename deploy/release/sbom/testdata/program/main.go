// Command program stands for the agent: a program that is linked from modules.
package main

import (
	"fmt"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/package-url/packageurl-go"
)

func main() {
	fmt.Println(packageurl.TypeGolang, ocispec.DescriptorEmptyJSON.Digest)
}
