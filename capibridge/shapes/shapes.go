// Package shapes has the objects of Cluster API and of its providers as their
// controllers leave them at each stage of a cluster's life, for the tests of what
// reads them. They are written from the status structs and the controllers of
// Cluster API v1.13, of its provider for AWS v2.13 and of its provider for Azure
// v1.23; each file says which controller sets what.
//
// A life begins with objects as a person and Cluster API's core create them. Each
// stage changes them and leaves the others as they were.
package shapes

import (
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"
)

//go:embed *.yaml *.golden
var files embed.FS

// Life of a cluster, as one provider brings it up and takes it down.
type Life struct {
	Name   string
	Stages []Stage
}

// Stage has all objects as they are in it. Those that are being deleted have a
// deletionTimestamp and the finalizer that keeps them.
type Stage struct {
	Name    string
	Objects []*unstructured.Unstructured
	// Want is what capibridge says of it, as Answers writes it down.
	Want string
}

// Cluster of the stage.
func (s Stage) Cluster() *unstructured.Unstructured {
	i := slices.IndexFunc(s.Objects, func(u *unstructured.Unstructured) bool { return u.GetKind() == "Cluster" })
	if i < 0 {
		return nil
	}
	return s.Objects[i]
}

// file is how a life is written down.
type file struct {
	Objects []map[string]any `json:"objects"`
	Stages  []struct {
		Name string `json:"name"`
		// Add are objects that are created in this stage.
		Add []map[string]any `json:"add,omitempty"`
		// Set is merged into the object of that kind: maps are merged, conditions by
		// their type, null removes, all else replaces.
		Set map[string]map[string]any `json:"set,omitempty"`
		// Delete names the kinds that are deleted, and go on living for their
		// finalizers.
		Delete []string `json:"delete,omitempty"`
	} `json:"stages"`
}

// Lives reads all of them.
func Lives() ([]Life, error) {
	entries, err := files.ReadDir(".")
	if err != nil {
		return nil, err
	}
	var lives []Life
	for _, e := range entries {
		name, ok := strings.CutSuffix(e.Name(), ".yaml")
		if !ok {
			continue
		}
		data, err := files.ReadFile(e.Name())
		if err != nil {
			return nil, err
		}
		life, err := read(data)
		if err != nil {
			return nil, fmt.Errorf("cannot read shapes %s: %w", e.Name(), err)
		}
		life.Name = name
		golden, err := files.ReadFile(name + ".golden")
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		want := wanted(golden)
		for i := range life.Stages {
			life.Stages[i].Want = want[life.Stages[i].Name]
		}
		lives = append(lives, life)
	}
	return lives, nil
}

// when is the time of all that happens.
const when = "2026-01-01T00:00:00Z"

func read(data []byte) (Life, error) {
	var f file
	if err := yaml.UnmarshalStrict(data, &f); err != nil {
		return Life{}, err
	}
	var life Life
	now := f.Objects
	for _, s := range f.Stages {
		now = append(now, s.Add...)
		for _, kind := range s.Delete {
			u, err := find(now, kind)
			if err != nil {
				return Life{}, fmt.Errorf("stage %s: %w", s.Name, err)
			}
			merge(u, map[string]any{"metadata": map[string]any{"deletionTimestamp": when, "finalizers": []any{"cluster.x-k8s.io/shapes"}}})
		}
		for kind, change := range s.Set {
			u, err := find(now, kind)
			if err != nil {
				return Life{}, fmt.Errorf("stage %s: %w", s.Name, err)
			}
			merge(u, change)
		}
		stage := Stage{Name: s.Name}
		for _, o := range now {
			o = runtime.DeepCopyJSON(numbers(o).(map[string]any))
			if status, ok := o["status"].(map[string]any); ok {
				date(status, false)
			}
			stage.Objects = append(stage.Objects, &unstructured.Unstructured{Object: o})
		}
		life.Stages = append(life.Stages, stage)
	}
	return life, nil
}

func find(objects []map[string]any, kind string) (map[string]any, error) {
	for _, o := range objects {
		if o["kind"] == kind {
			return o, nil
		}
	}
	return nil, fmt.Errorf("there is no %s", kind)
}

func merge(into, change map[string]any) {
	for key, value := range change {
		switch v := value.(type) {
		case nil:
			delete(into, key)
		case map[string]any:
			below, ok := into[key].(map[string]any)
			if !ok {
				below = map[string]any{}
				into[key] = below
			}
			merge(below, v)
		case []any:
			if key == "conditions" {
				old, _ := into[key].([]any)
				v = mergeConditions(old, v)
			}
			into[key] = v
		default:
			into[key] = v
		}
	}
}

func mergeConditions(old, changed []any) []any {
	out := slices.Clone(old)
	for _, c := range changed {
		kind := c.(map[string]any)["type"]
		i := slices.IndexFunc(out, func(o any) bool { return o.(map[string]any)["type"] == kind })
		if i < 0 {
			out = append(out, c)
		} else {
			out[i] = c
		}
	}
	return out
}

// date completes conditions with what is the same in all of them. Those of
// contract v1beta2 have a message, if only an empty one; those of v1beta1 must not
// have an empty one.
func date(at map[string]any, deprecated bool) {
	for key, value := range at {
		if below, ok := value.(map[string]any); ok {
			date(below, deprecated || key == "deprecated")
		}
		list, _ := value.([]any)
		if key != "conditions" {
			continue
		}
		for _, item := range list {
			c := item.(map[string]any)
			c["lastTransitionTime"] = when
			if _, ok := c["message"]; !ok && !deprecated && c["severity"] == nil && c["reason"] != nil {
				c["message"] = ""
			}
		}
	}
}

// numbers are whole in objects, as an API server sends them.
func numbers(v any) any {
	switch v := v.(type) {
	case map[string]any:
		out := make(map[string]any, len(v))
		for key, value := range v {
			out[key] = numbers(value)
		}
		return out
	case []any:
		out := make([]any, len(v))
		for i, value := range v {
			out[i] = numbers(value)
		}
		return out
	case float64:
		if v == float64(int64(v)) {
			return int64(v)
		}
	}
	return v
}
