package main

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"

	"github.com/spf13/cobra"

	"github.com/cascade-gitops/cascade/deploy/release/image"
	"github.com/cascade-gitops/cascade/deploy/release/sbom"
)

func newRootfs() *cobra.Command {
	var binary, dir string
	cmd := &cobra.Command{
		Use: "rootfs", Short: "Write the content of the image into a directory, for a Dockerfile", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			if err := os.RemoveAll(dir); err != nil {
				return fmt.Errorf("cannot remove what was there: %w", err)
			}
			return image.WriteRootfs(dir, binary)
		},
	}
	cmd.Flags().StringVar(&binary, "binary", "", "the agent's program")
	cmd.Flags().StringVar(&dir, "to", "", "the directory, which is written anew")
	required(cmd, "binary", "to")
	return cmd
}

// imageOptions are the flags of the command image.
type imageOptions struct {
	description image.Description
	binaries    map[string]string
	layout, tag string
	created     int64
}

func newImage() *cobra.Command {
	var o imageOptions
	cmd := &cobra.Command{
		Use: "image", Short: "Write the image and its documents as an OCI layout, and print its digest", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			digest, err := o.write()
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), digest)
			return err
		},
	}
	f := cmd.Flags()
	f.StringToStringVar(&o.binaries, "binary", nil, "architecture=file of the agent's program; once for each architecture")
	f.StringVar(&o.layout, "to", "", "the layout's directory, which is written anew")
	f.StringVar(&o.tag, "tag", "", "the tag that the layout names; the version if empty")
	f.StringVar(&o.description.Version, "version", "", "the version of the program")
	f.StringVar(&o.description.Revision, "revision", "", "the commit")
	f.StringVar(&o.description.Source, "source", "", "the address of the repository")
	f.Int64Var(&o.created, "created", 0, "the time of the commit, in seconds")
	required(cmd, "binary", "to", "version", "revision", "source")
	return cmd
}

// write makes the image and returns the digest of its index.
func (o imageOptions) write() (string, error) {
	d := o.description
	var err error
	if d.Created, err = dated(o.created); err != nil {
		return "", err
	}
	if o.tag == "" {
		o.tag = d.Version
	}
	var platforms []image.Platform
	for _, architecture := range slices.Sorted(maps.Keys(o.binaries)) {
		p, err := d.Build(architecture, o.binaries[architecture])
		if err != nil {
			return "", err
		}
		if p.Documents, err = documents(d, p, o.binaries[architecture]); err != nil {
			return "", err
		}
		platforms = append(platforms, p)
	}
	digest, err := image.Write(o.layout, o.tag, d.Index(platforms), platforms)
	if err != nil {
		return "", err
	}
	return digest.String(), nil
}

// documents say what the image for one architecture is made of.
func documents(d image.Description, p image.Platform, binary string) ([]image.Document, error) {
	program, err := sbom.ReadProgram(binary)
	if err != nil {
		return nil, err
	}
	digest, err := p.Image.Digest()
	if err != nil {
		return nil, fmt.Errorf("cannot read the image for %s: %w", p.Architecture, err)
	}
	roots, version := image.Roots()
	about := sbom.Image{
		Name: "cascade", Version: d.Version, Source: d.Source, Revision: d.Revision, Architecture: p.Architecture,
		Digest: digest.String(), Created: d.Created, Path: image.Program, Program: program, Data: []sbom.Module{{Path: roots, Version: version}},
	}
	spdx, err1 := about.SPDX()
	cyclonedx, err2 := about.CycloneDX()
	if err := errors.Join(err1, err2); err != nil {
		return nil, err
	}
	annotations := d.Annotations("What cascade " + d.Version + " for linux/" + p.Architecture + " is made of")
	return []image.Document{
		{Type: sbom.SPDXType, Content: spdx, Annotations: annotations},
		{Type: sbom.CycloneDXType, Content: cyclonedx, Annotations: annotations},
	}, nil
}

// required marks flags without which a command makes no sense.
func required(cmd *cobra.Command, flags ...string) {
	for _, f := range flags {
		cobra.CheckErr(cmd.MarkFlagRequired(f)) // fails for a flag that is not there
	}
}
