package sandbox

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"github.com/cascade-gitops/cascade/syncer/worker"
)

// TestHostileChartsEnd: a chart that doubles, or never ends, is refused by what its
// templates may do, or by the end of its worker; the next chart is rendered.
func TestHostileChartsEnd(t *testing.T) {
	pool := worker.New(worker.Options{Limits: worker.Limits{Workers: 1, Memory: 160 << 20, Time: worker.DefaultLimits().Time}})
	defer pool.Close()
	render := func(text string) (got string, err error) {
		err = Render(t.Context(), Request{Chart: chartOf(map[string]string{"x": text}), Version: "1.0.0", Workers: pool}, func(r Rendering) error {
			return asHelm(t, &got)(r)
		})
		return got, err
	}
	for name, tt := range map[string]struct{ reason, text string }{
		"Doubling": {"a string that is doubled with each line", "{{ $s := \"xx\" }}" + strings.Repeat("{{ $s = print $s $s }}", 40) + "{{ $s }}"},
		"Endless":  {"2^63 turns", "{{ range 9000000000000000000 }}{{ end }}"},
		"Itself":   {"a value that contains itself", "{{ $d := dict }}{{ $_ := set $d \"d\" $d }}{{ $d | toYaml }}"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := render(tt.text)
			var budget *Exceeded
			var limit *worker.Exceeded
			if !errors.As(err, &budget) && !errors.As(err, &limit) {
				t.Errorf("%s: %v, want a limit that is exceeded", tt.reason, err)
			}
			if got, err := render("{{ .Chart.Name }}"); err != nil || got != "web" {
				t.Errorf("a good chart after it: %q, %v", got, err)
			}
		})
	}
}

// pages are what an API server answers for a list.
type pages struct {
	dynamic.NamespaceableResourceInterface
	page  func(ctx context.Context, number int) (*unstructured.UnstructuredList, error)
	asked int
}

func (p *pages) Resource(schema.GroupVersionResource) dynamic.NamespaceableResourceInterface {
	return p
}

func (p *pages) List(ctx context.Context, _ metav1.ListOptions) (*unstructured.UnstructuredList, error) {
	p.asked++
	return p.page(ctx, p.asked)
}

// pageOf is a page with some objects of a size, that others follow or not.
func pageOf(count, size int, next string) *unstructured.UnstructuredList {
	l := &unstructured.UnstructuredList{Object: map[string]any{"apiVersion": "v1", "kind": "SecretList"}}
	l.SetContinue(next)
	for range count {
		l.Items = append(l.Items, unstructured.Unstructured{Object: map[string]any{"kind": "Secret", "text": strings.Repeat("x", size)}})
	}
	return l
}

// TestHostileLookups: nothing that an API server answers keeps a worker, whose clock stands
// still meanwhile, or fills the agent's memory.
func TestHostileLookups(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		page   func(ctx context.Context, number int) (*unstructured.UnstructuredList, error)
		most   int
		fails  string
		found  int
	}{
		"Pages": {"a list comes in pages", func(_ context.Context, n int) (*unstructured.UnstructuredList, error) {
			return pageOf(500, 1, map[bool]string{true: "more"}[n < 3]), nil
		}, 3, "", 1500},
		"Empty": {"there is always more, and never anything", func(context.Context, int) (*unstructured.UnstructuredList, error) {
			return pageOf(0, 0, "more"), nil
		}, 21, "more than 21 pages", 0},
		"Many": {"there is always more", func(context.Context, int) (*unstructured.UnstructuredList, error) {
			return pageOf(1000, 1, "more"), nil
		}, 11, "more than 10000 objects", 0},
		"Large": {"each object is as large as they get", func(context.Context, int) (*unstructured.UnstructuredList, error) {
			return pageOf(10, 1<<20, "more"), nil
		}, 4, "more than 33 MiB", 0},
		"Slow": {"the server sends a page now and then", func(ctx context.Context, _ int) (*unstructured.UnstructuredList, error) {
			select {
			case <-ctx.Done():
				return nil, ctx.Err()
			case <-time.After(20 * time.Second):
				return pageOf(1, 1, "more"), nil
			}
		}, 2, "not answered within 30s", 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server := &pages{page: tc.page}
				r := &renderer{req: Request{Cluster: Cluster{Mapper: emptyCluster().Mapper, Objects: server}}}
				got, err := r.answer(t.Context(), askLookup, []byte(`{"APIVersion": "v1", "Kind": "Secret"}`))
				if server.asked > tc.most {
					t.Errorf("%s: %d requests, want at most %d", tc.reason, server.asked, tc.most)
				}
				var exceeded *Exceeded
				if tc.fails != "" {
					// Of a server that is slow the chart is not to blame.
					if errors.As(err, &exceeded) == errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), tc.fails) {
						t.Errorf("%s: %v, want %q", tc.reason, err, tc.fails)
					}
					return
				}
				var list struct {
					Kind     string
					Metadata metav1.ListMeta
					Items    []map[string]any
				}
				if err := errors.Join(err, json.Unmarshal(got, &list)); err != nil {
					t.Fatal(err)
				}
				if list.Kind != "SecretList" || list.Metadata.Continue != "" || len(list.Items) != tc.found || list.Items[0]["kind"] != "Secret" {
					t.Errorf("%s: %d of a %s with %+v, want %d", tc.reason, len(list.Items), list.Kind, list.Metadata, tc.found)
				}
			})
		})
	}
}

// TestLookupRefused: that a lookup exceeded a bound is what is told of the chart.
func TestLookupRefused(t *testing.T) {
	server := &pages{page: func(context.Context, int) (*unstructured.UnstructuredList, error) { return pageOf(0, 0, "more"), nil }}
	var got string
	err := Render(t.Context(), Request{
		Chart: chartOf(map[string]string{"x": `{{ lookup "v1" "Secret" "" "" }}`}), Version: "1.0.0", Workers: workers,
		Cluster: Cluster{Mapper: emptyCluster().Mapper, Objects: server},
	}, asHelm(t, &got))
	var exceeded *Exceeded
	if !errors.As(err, &exceeded) {
		t.Errorf("Render() = %v, want a limit that is exceeded", err)
	}
}

// oneLookup is a worker whose chart looks up Secrets.
type oneLookup struct{}

func (oneLookup) Run(ctx context.Context, job worker.Job) ([]byte, error) {
	_, err := job.Answer(ctx, askLookup, []byte(`{"APIVersion": "v1", "Kind": "Secret"}`))
	return nil, &worker.TaskError{Text: "error calling lookup: " + err.Error()}
}

// TestLookupHangs: a lookup that is not answered at all is no fault of the chart, which costs no more than it may (read 930).
func TestLookupHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := &pages{page: func(ctx context.Context, _ int) (*unstructured.UnstructuredList, error) {
			<-ctx.Done()
			return nil, errors.New("client rate limiter Wait returned an error: context deadline exceeded")
		}}
		var got string
		err := Render(t.Context(), Request{
			Chart: chartOf(map[string]string{"x": "x"}), Version: "1.0.0", Workers: oneLookup{},
			Cluster: Cluster{Mapper: emptyCluster().Mapper, Objects: server},
		}, asHelm(t, &got))
		var lookup *LookupError
		var exceeded *Exceeded
		if !errors.As(err, &lookup) || !errors.Is(err, context.DeadlineExceeded) || errors.As(err, &exceeded) || !strings.Contains(err.Error(), "error calling lookup") {
			t.Errorf("Render() = %v", err)
		}
	})
}

// TestLookupUnread: why a lookup failed is known beside what Helm says of it, as where a webhook of the kind does not answer.
func TestLookupUnread(t *testing.T) {
	server := &pages{page: func(context.Context, int) (*unstructured.UnstructuredList, error) {
		return nil, apierrors.NewInternalError(errors.New("conversion webhook is down"))
	}}
	var got string
	err := Render(t.Context(), Request{
		Chart: chartOf(map[string]string{"x": `{{ lookup "v1" "Secret" "" "" }}`}), Version: "1.0.0", Workers: workers,
		Cluster: Cluster{Mapper: emptyCluster().Mapper, Objects: server},
	}, asHelm(t, &got))
	if !apierrors.IsInternalError(err) || !strings.Contains(err.Error(), "error calling lookup") || !strings.Contains(err.Error(), "conversion webhook is down") {
		t.Errorf("Render() = %v", err)
	}
}
