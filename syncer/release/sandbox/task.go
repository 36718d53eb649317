package sandbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/engine"
	utiljson "k8s.io/apimachinery/pkg/util/json"

	"github.com/cascade-gitops/cascade/syncer/worker"
)

// renderTask renders the templates of a chart.
const renderTask = "chart/render"

// Questions of a rendering.
const (
	askLookup = "lookup"
	askHost   = "host"
)

// Tasks are what a worker has to be able to do for this package.
func Tasks() worker.Tasks { return worker.Tasks{renderTask: renderChart} }

// lookupQuestion is what a template looks up.
type lookupQuestion struct{ APIVersion, Kind, Namespace, Name string }

// renderChart runs in a worker. Of what is exceeded it tells apart what the budget
// of templates found, because it says more than the end of a worker does.
func renderChart(request []byte, ask worker.Ask) ([]byte, error) {
	m, err := decodeMap(request)
	if err != nil {
		return nil, err
	}
	c, err := chartFromWire(m["chart"])
	if err != nil {
		return nil, err
	}
	values, _ := m["values"].(map[string]any)
	dns, _ := m["dns"].(bool)
	b := newBudget(context.Background())
	b.guard(c)
	functions := b.functions(dns, b.asksLookup(ask))
	if dns {
		functions["getHostByName"] = b.paid("getHostByName", func(name string) (string, error) {
			host, err := ask(askHost, []byte(name))
			return string(host), err
		})
	}
	files, err := engine.Engine{EnableDNS: dns, CustomTemplateFuncs: functions}.Render(c, common.Values{
		"Release": m["release"], "Values": common.Values(values), "Capabilities": capabilitiesFromWire(m["capabilities"]),
	})
	if err == nil {
		size := 0
		for _, text := range files {
			size += len(text)
		}
		err = b.output(size)
	}
	if err = b.explain(err); err != nil {
		var exceeded *Exceeded
		if errors.As(err, &exceeded) {
			return encode(nil, map[string]any{"exceeded": exceeded.what})
		}
		return nil, err
	}
	out := make(map[string]any, len(files))
	for name, text := range files {
		out[name] = text
	}
	return encode(nil, map[string]any{"files": out})
}

// asksLookup is the function lookup of templates.
func (b *budget) asksLookup(ask worker.Ask) func(apiVersion, kind, namespace, name string) (map[string]any, error) {
	return func(apiVersion, kind, namespace, name string) (map[string]any, error) {
		if err := b.spend(1, 0); err != nil {
			return map[string]any{}, err
		}
		question, err := json.Marshal(lookupQuestion{apiVersion, kind, namespace, name})
		if err != nil {
			return map[string]any{}, err
		}
		answer, err := ask(askLookup, question)
		if err != nil {
			return map[string]any{}, err
		}
		content := map[string]any{}
		if err := utiljson.Unmarshal(answer, &content); err != nil {
			return map[string]any{}, fmt.Errorf("cannot read what was looked up: %w", err)
		}
		return content, b.pay(content)
	}
}
