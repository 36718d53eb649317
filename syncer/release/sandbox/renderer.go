package sandbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"path"
	"strings"
	"text/template"

	"helm.sh/helm/v4/pkg/chart/common"
	chart "helm.sh/helm/v4/pkg/chart/v2"

	"github.com/cascade-gitops/cascade/syncer/render"
	"github.com/cascade-gitops/cascade/syncer/worker"
)

// Functions of the templates that Helm renders in this process.
const (
	renderFunc = "cascadeRender"
	fileFunc   = "cascadeFile"
)

// notes is what Helm shows to people, and no manifest.
const notes = "NOTES.txt"

// errNoWorkers is a mistake of ours.
var errNoWorkers = errors.New("there is no worker to render charts")

// renderer lets a worker render a chart in the moment in which Helm does. Helm gets
// a chart whose first template calls the worker, with the values that Helm made for
// it, and whose others are what came back.
type renderer struct {
	ctx context.Context
	req Request
	// chart is the one that Helm has. Helm changes which of its subcharts are
	// there, and by which names.
	chart *chart.Chart
	// originals are the texts of its templates.
	originals map[*common.File][]byte
	entry     *common.File
	files     map[string]any
	// failed is why there are no files. Helm would tell in which template it was told.
	failed error
	// exceeded is what a lookup did, and unread why one of objects failed otherwise. The worker knows only their texts.
	exceeded *Exceeded
	unread   error
}

// LookupError is a rendering that failed for a lookup of objects, as Helm says it.
type LookupError struct {
	Text string
	Err  error
}

func (e *LookupError) Error() string { return e.Text }
func (e *LookupError) Unwrap() error { return e.Err }

func newRenderer(ctx context.Context, req Request, original *chart.Chart) *renderer {
	r := &renderer{ctx: ctx, req: req, chart: CopyChart(original), originals: map[*common.File][]byte{}}
	deepest := r.replace(r.chart, 0)
	// Helm renders templates by the depth of their paths, the deepest first.
	r.entry = &common.File{Name: "templates/" + strings.Repeat("cascade/", deepest+1) + "entry", Data: []byte("{{" + renderFunc + " .}}")}
	r.chart.Templates = append(r.chart.Templates, r.entry)
	return r
}

// replace replaces the templates of a chart and its subcharts by ones that give back
// what was rendered. It returns how many slashes a path has at most.
func (r *renderer) replace(c *chart.Chart, above int) int {
	deepest := above
	var stubs []*common.File
	for _, t := range c.Templates {
		stub := &common.File{Name: t.Name, ModTime: t.ModTime}
		if !strings.HasPrefix(path.Base(t.Name), "_") {
			stub.Data = []byte("{{" + fileFunc + " .Template.Name}}")
		}
		r.originals[stub] = t.Data
		stubs = append(stubs, stub)
		deepest = max(deepest, above+1+strings.Count(t.Name, "/"))
	}
	c.Templates = stubs
	for _, d := range c.Dependencies() {
		deepest = max(deepest, r.replace(d, above+2))
	}
	return deepest
}

func (r *renderer) functions() template.FuncMap {
	return template.FuncMap{renderFunc: r.render, fileFunc: r.file}
}

// file is a rendered template by its path.
func (r *renderer) file(name string) (string, error) {
	text, ok := r.files[name].(string)
	if !ok {
		return "", fmt.Errorf("cannot find template %s in the rendering", name)
	}
	return text, nil
}

// render is called with what Helm gives to the templates of the chart itself.
func (r *renderer) render(dot map[string]any) (string, error) {
	files, err := r.renderChart(dot)
	if err != nil {
		r.failed = err
		return "", err
	}
	r.files = files
	return "", nil
}

func (r *renderer) renderChart(dot map[string]any) (map[string]any, error) {
	if r.req.Workers == nil {
		return nil, errNoWorkers
	}
	request, err := r.request(dot)
	if err != nil {
		return nil, fmt.Errorf("cannot render chart: %w", err)
	}
	out, err := r.req.Workers.Run(r.ctx, worker.Job{Task: renderTask, Request: request, Answer: r.answer})
	var failed *worker.TaskError
	switch {
	case errors.As(err, &failed) && r.exceeded != nil:
		return nil, fmt.Errorf("cannot render chart: %w", r.exceeded)
	case errors.As(err, &failed) && r.unread != nil:
		return nil, &LookupError{failed.Text, r.unread}
	case errors.As(err, &failed):
		return nil, errors.New(failed.Text) // as Helm says it
	}
	if err != nil {
		return nil, fmt.Errorf("cannot render chart: %w", err)
	}
	answer, err := decodeMap(out)
	if err != nil {
		return nil, err
	}
	if what, ok := answer["exceeded"].(string); ok {
		return nil, fmt.Errorf("cannot render chart: %w", &Exceeded{what})
	}
	files, _ := answer["files"].(map[string]any)
	text, nodes, err := checkFiles(files)
	if err == nil && r.req.Room != nil {
		err = r.req.Room(text, nodes)
	}
	return files, err
}

// request is what the worker needs. Helm's values are about the chart as it is now.
func (r *renderer) request(dot map[string]any) ([]byte, error) {
	original := func(t *common.File) []byte {
		if t == r.entry {
			return nil
		}
		if text, ok := r.originals[t]; ok {
			return append([]byte{}, text...)
		}
		return t.Data
	}
	c, err := wireChart(r.chart, original)
	if err != nil {
		return nil, err
	}
	capabilities, _ := dot["Capabilities"].(*common.Capabilities)
	if capabilities == nil {
		capabilities = common.DefaultCapabilities
	}
	return encode(nil, map[string]any{
		"chart": c, "release": dot["Release"], "values": dot["Values"], "capabilities": wireCapabilities(capabilities), "dns": r.req.DNS,
	})
}

// checkFiles makes sure that Helm, which parses the manifests in this process, survives
// them. It returns how large they are, and how many nodes they may have.
func checkFiles(files map[string]any) (size, nodes int, err error) {
	for name, v := range files {
		text, _ := v.(string)
		if size += len(text); size > mostOutput {
			return 0, 0, fmt.Errorf("cannot render chart: %w", exceeds("its manifests are larger than %d MiB", mostOutput>>20))
		}
		if strings.HasSuffix(name, notes) {
			continue
		}
		most, err := render.CheckManifests([]byte(text))
		if err != nil {
			return 0, 0, fmt.Errorf("cannot read rendered manifests of %s: %w", name, err)
		}
		if nodes += most; nodes > render.MaxTotalNodes {
			return 0, 0, fmt.Errorf("cannot render chart: %w", exceeds("its manifests may have more than %d nodes", render.MaxTotalNodes))
		}
	}
	return size, nodes, nil
}

// answer answers what templates ask. The worker's clock stands still meanwhile: an answer
// has its own bound, and the templates count all of them.
func (r *renderer) answer(ctx context.Context, question string, body []byte) ([]byte, error) {
	bounded, cancel := context.WithTimeout(ctx, renderTime)
	defer cancel()
	answer, err := r.answerWithin(bounded, question, body)
	if err != nil && bounded.Err() != nil && ctx.Err() == nil {
		// Who is asked is to blame and not the chart, as where the webhook that converts objects hangs.
		err = fmt.Errorf("a lookup is not answered within %s: %w", renderTime, context.DeadlineExceeded)
	}
	if err != nil && !errors.As(err, &r.exceeded) && question == askLookup {
		r.unread = err
	}
	return answer, err
}

func (r *renderer) answerWithin(ctx context.Context, question string, body []byte) ([]byte, error) {
	switch question {
	case askLookup:
		var q lookupQuestion
		if err := json.Unmarshal(body, &q); err != nil {
			return nil, err
		}
		return r.req.Cluster.lookup(ctx, q)
	case askHost:
		if !r.req.DNS {
			return nil, errors.New("lookups of hosts are not allowed")
		}
		addresses, err := net.DefaultResolver.LookupHost(ctx, string(body))
		if err != nil {
			return nil, err
		}
		return []byte(addresses[0]), nil
	}
	return nil, fmt.Errorf("unknown question %q", question)
}
