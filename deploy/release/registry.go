package main

import (
	"cmp"
	"fmt"
	"os"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/spf13/cobra"

	"github.com/cascade-gitops/cascade/deploy/release/image"
	"github.com/cascade-gitops/cascade/deploy/release/signature"
)

// place is a layout on disk, and where it belongs.
type place struct{ layout, repository string }

func (p *place) bind(cmd *cobra.Command) {
	cmd.Flags().StringVar(&p.layout, "layout", "", "the layout's directory")
	cmd.Flags().StringVar(&p.repository, "repository", "", "the repository: host/path, without a tag")
	required(cmd, "layout", "repository")
}

func (p *place) open() (image.Layout, name.Repository, error) {
	repository, err := name.NewRepository(p.repository, name.StrictValidation)
	if err != nil {
		return image.Layout{}, repository, fmt.Errorf("cannot use repository %q: %w; it must be host/path", p.repository, err)
	}
	l, err := image.Read(p.layout)
	return l, repository, err
}

func newPush() *cobra.Command {
	var p place
	var tag string
	cmd := &cobra.Command{
		Use: "push", Short: "Push a layout, with what refers to its images, and print the reference by digest", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			l, repository, err := p.open()
			if err != nil {
				return err
			}
			reference, err := image.Push(cmd.Context(), l, repository, cmp.Or(tag, l.Tag))
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), reference)
			return err
		},
	}
	p.bind(cmd)
	cmd.Flags().StringVar(&tag, "tag", "", "the tag of the index; that of the layout if empty")
	return cmd
}

func newSign() *cobra.Command {
	var p place
	var key string
	cmd := &cobra.Command{
		Use: "sign", Short: "Sign what was pushed of a layout: index, images and documents", Args: cobra.NoArgs,
		Long: "Sign what was pushed of a layout: index, images and documents. The key is one of cosign\n" +
			"generate-key-pair; its password is in COSIGN_PASSWORD. What this key has signed is left as it is.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			l, repository, err := p.open()
			if err != nil {
				return err
			}
			k, err := signature.ReadKey(key, []byte(os.Getenv("COSIGN_PASSWORD")))
			if err != nil {
				return err
			}
			if err := image.Pushed(cmd.Context(), l, repository); err != nil {
				return err
			}
			digests, err := l.Digests()
			if err != nil {
				return err
			}
			for _, d := range digests {
				at := repository.Digest(d.String())
				signed, err := k.Image(cmd.Context(), at)
				if err != nil {
					return err
				}
				word := "was signed before"
				if signed {
					word = "signed"
				}
				fmt.Fprintln(cmd.OutOrStdout(), at, word)
			}
			return nil
		},
	}
	p.bind(cmd)
	cmd.Flags().StringVar(&key, "key", "", "file of the private key")
	required(cmd, "key")
	return cmd
}
