// Command program stands for the agent: a program that is linked from modules.
package main

import (
	"fmt"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/uuid"
	"github.com/package-url/packageurl-go"
)

func main() {
	tag, err := name.NewTag("example.org/a:b")
	fmt.Println(uuid.NewSHA1(uuid.NameSpaceURL, []byte(packageurl.TypeGolang)), tag, err)
}
