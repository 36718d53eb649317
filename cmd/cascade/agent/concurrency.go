package agent

import "github.com/spf13/pflag"

// concurrency is how many objects are worked on at the same time.
type concurrency struct{ kustomizations, sources, releases, children int }

func (c *concurrency) bind(f *pflag.FlagSet) {
	f.IntVar(&c.kustomizations, "concurrent", 4, "number of Kustomizations that are reconciled at the same time")
	f.IntVar(&c.sources, "concurrent-sources", 16,
		"number of sources that are fetched at the same time; they mostly wait for servers, some of which may not answer")
	f.IntVar(&c.releases, "concurrent-releases", 8,
		"number of HelmReleases that are reconciled at the same time; one that waits for its objects to be ready takes a place")
	f.IntVar(&c.children, "concurrent-children", 64, "number of children that are pushed to at the same time")
}

func (*concurrency) check() error { return nil }
