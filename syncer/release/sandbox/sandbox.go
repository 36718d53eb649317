package sandbox

import (
	"context"
	"text/template"

	"helm.sh/helm/v4/pkg/chart/common/util"
	chart "helm.sh/helm/v4/pkg/chart/v2"
	"helm.sh/helm/v4/pkg/postrenderer"

	charts "github.com/cascade-gitops/cascade/syncer/chart"
	"github.com/cascade-gitops/cascade/syncer/source"
	"github.com/cascade-gitops/cascade/syncer/worker"
)

// Request is one chart that is to be rendered.
type Request struct {
	// Chart may be shared: it is copied.
	Chart *chart.Chart
	// Version takes the place of the chart's own.
	Version string
	// Values of the release. They are copied.
	Values map[string]any
	// SkipSchemas: Helm does not validate the values, so that the schemas do not
	// matter.
	SkipSchemas bool
	// DNS allows templates to look up names of hosts.
	DNS bool
	// Cluster is what lookups read.
	Cluster Cluster
	// PostRenderers change the manifests, one after the other.
	PostRenderers []PostRenderer
	// Workers render, with Tasks.
	Workers worker.Runner
	// Room is an error if there is no room in memory for manifests of so many bytes, and of so many nodes once they
	// are parsed; nil has room for all.
	Room func(text, nodes int) error
}

// Rendering is what Helm is given instead of the chart as it came.
type Rendering struct {
	// Chart has templates that give what a worker renders. Original is the same
	// chart as it came, for Helm's storage. Both belong to the rendering.
	Chart, Original *chart.Chart
	Values          map[string]any
	// Functions of the templates, instead of Helm's own.
	Functions    template.FuncMap
	PostRenderer postrenderer.PostRenderer
}

// Render calls helm, which renders, and returns its error; if a bound was
// exceeded, an Exceeded that says which one instead. A chart with schemas that are
// out of bounds is refused before that.
func Render(ctx context.Context, req Request, helm func(Rendering) error) error {
	original := CopyChart(req.Chart)
	original.Metadata.Version = req.Version
	if !req.SkipSchemas {
		if err := checkValidation(original, req.Values); err != nil {
			return err
		}
	}
	r := newRenderer(ctx, req, original)
	err := helm(Rendering{
		Chart: r.chart, Original: original, Values: CopyValues(req.Values),
		Functions:    r.functions(),
		PostRenderer: &chain{steps: req.PostRenderers, room: req.Room},
	})
	if err != nil && r.failed != nil {
		return r.failed
	}
	return err
}

// checkValidation refuses a chart whose values cannot be validated within bounds.
func checkValidation(c *chart.Chart, values map[string]any) error {
	if err := checkSchemas(c); err != nil {
		return err
	}
	// Values that cannot be merged are reported by Helm.
	merged, err := util.CoalesceValues(CopyChart(c), CopyValues(values))
	if err == nil {
		err = charts.CheckValidation(c, merged)
	}
	if source.ReasonOf(err) == source.ReasonLimitExceeded {
		return err
	}
	return nil
}
