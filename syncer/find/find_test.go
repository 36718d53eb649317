package find

import (
	"slices"
	"testing"

	"github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
)

// installed is a manager of a cluster that has some kinds.
type installed struct {
	ctrl.Manager
	mapper apimeta.RESTMapper
}

func (i installed) GetRESTMapper() apimeta.RESTMapper { return i.mapper }

// TestWatch: sources of a kind that this process fetches are watched as well, as some of them
// may be another agent's.
func TestWatch(t *testing.T) {
	mapper := apimeta.NewDefaultRESTMapper([]schema.GroupVersion{sourcev1.GroupVersion})
	mapper.Add(sourcev1.GroupVersion.WithKind(sourcev1.OCIRepositoryKind), apimeta.RESTScopeNamespace)
	f := &Finder{Fetched: map[string]bool{sourcev1.GitRepositoryKind: true, sourcev1.HelmChartKind: true}}
	objects, err := f.Watch(installed{mapper: mapper}, sourcev1.GitRepositoryKind, sourcev1.OCIRepositoryKind, sourcev1.BucketKind)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, o := range objects {
		got = append(got, KindOf(o))
	}
	if want := []string{sourcev1.GitRepositoryKind, sourcev1.OCIRepositoryKind}; !slices.Equal(got, want) {
		t.Errorf("Watch() = %v, want %v", got, want)
	}
	for kind, want := range map[string]bool{sourcev1.GitRepositoryKind: true, sourcev1.OCIRepositoryKind: true, sourcev1.BucketKind: false, sourcev1.HelmChartKind: true} {
		if got := f.Cached(kind); got != want {
			t.Errorf("Cached(%s) = %t", kind, got)
		}
	}
}

// TestNews: who uses a source that others fetch is told of its artifacts by the object.
func TestNews(t *testing.T) {
	labelled := func(o client.Object, part string) client.Object {
		o.SetLabels(map[string]string{"part": part})
		return o
	}
	mine := func(o client.Object) bool { return o.GetLabels()["part"] == "mine" }
	for name, tc := range map[string]struct {
		reason   string
		shard    func(client.Object) bool
		object   client.Object
		artifact bool
		want     bool
	}{
		"Theirs":    {"another agent of the tier fetches it", mine, labelled(&sourcev1.GitRepository{}, "theirs"), true, true},
		"Mine":      {"its snapshot tells", mine, labelled(&sourcev1.GitRepository{}, "mine"), true, false},
		"All":       {"there is no other agent", nil, labelled(&sourcev1.GitRepository{}, "theirs"), true, false},
		"OtherKind": {"a controller of Flux fetches it", nil, &sourcev1.OCIRepository{}, true, true},
		"Same":      {"it has nothing new", mine, labelled(&sourcev1.GitRepository{}, "theirs"), false, false},
	} {
		t.Run(name, func(t *testing.T) {
			f := &Finder{Fetched: map[string]bool{sourcev1.GitRepositoryKind: true}, Shard: tc.shard}
			after := tc.object.DeepCopyObject().(client.Object)
			if tc.artifact {
				switch o := after.(type) {
				case *sourcev1.GitRepository:
					o.Status.Artifact = &meta.Artifact{Revision: "2"}
				case *sourcev1.OCIRepository:
					o.Status.Artifact = &meta.Artifact{Revision: "2"}
				}
			}
			if got := f.News().Update(event.UpdateEvent{ObjectOld: tc.object, ObjectNew: after}); got != tc.want {
				t.Errorf("%s\nUpdate() = %t", tc.reason, got)
			}
		})
	}
}
