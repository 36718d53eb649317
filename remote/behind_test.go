package remote

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	fluxmeta "github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/inventory"
	"github.com/cascade-gitops/cascade/remote/plan"
	"github.com/cascade-gitops/cascade/remote/reason"
	"github.com/cascade-gitops/cascade/remote/record"
	"github.com/cascade-gitops/cascade/remote/tenure"
	"github.com/cascade-gitops/cascade/syncer/apply"
	"github.com/cascade-gitops/cascade/syncer/source"
)

// TestBehind: a replica that takes a child over sends nothing older than the one before it did.
func TestBehind(t *testing.T) {
	const older, newer = "main@sha1:4", "main@sha1:5"
	for name, tc := range map[string]struct {
		reason string
		// sent is what the record says, has what this replica fetched, says what the source has on
		// record; empty: there is no source.
		sent, has, says string
		// components is what the source of the manifests of providers has on record, if there are any: the child has others
		// than this replica would send, which has those of an older revision.
		components string
		change     func(*seeding)
		waits      bool
		// pause before the child is looked at again, where nothing else wakes it.
		pause time.Duration
	}{
		"Same":       {reason: "it has what was sent: nobody is asked", sent: newer, has: newer},
		"First":      {reason: "nothing was sent yet", has: newer},
		"Commit":     {reason: "there is a commit since", sent: older, has: newer, says: newer},
		"Reverted":   {reason: "the branch went back, and the leader recorded that", sent: newer, has: older, says: older},
		"Late":       {reason: "it has not fetched what the one before it sent", sent: newer, has: older, says: newer, waits: true, pause: progressPause},
		"Unrecorded": {reason: "it fetched what is not on record yet", sent: older, has: newer, says: older, waits: true, pause: progressPause},
		"Gone":       {reason: "nobody can tell", sent: newer, has: older, waits: true, pause: progressPause},
		"Long": {reason: "it is not asked each second for long", sent: newer, has: older, says: newer, waits: true, pause: waitPause,
			change: func(s *seeding) { s.run.notes.began = start.Add(-time.Minute) }},
		"Pinned": {reason: "a Rollout says which revision the child has", sent: newer, has: older, says: newer,
			change: func(s *seeding) { s.pin = &v1alpha1.RolloutRevision{Revision: older} }},
		"Alone": {reason: "a process without shards fetches by itself", sent: newer, has: older, says: newer, change: func(s *seeding) { s.tenure = nil }},
		"Components": {reason: "it has not fetched which providers the one before it sent, in a repository of their own", sent: newer, has: newer, components: newer,
			waits: true, pause: progressPause},
		"OtherComponents": {reason: "it has what is on record: something else of the layer changed", sent: newer, has: newer, components: older},
	} {
		t.Run(name, func(t *testing.T) {
			scheme := runtime.NewScheme()
			if err := sourcev1.AddToScheme(scheme); err != nil {
				t.Fatal(err)
			}
			var objects []client.Object
			if tc.says != "" {
				objects = append(objects, recordedAs("fleet", tc.says, ""))
			}
			digest := "sha256:of-" + tc.sent
			f := newFleet(t, map[string]string{"a.yaml": noteOf("1")})
			if tc.components != "" {
				digest = "sha256:of-others"
				f.layer.Spec.Providers = componentsOf("components")
				objects = append(objects, recordedAs("components", tc.components, ""))
			}
			f.children.Now, f.children.Rand = func() time.Time { return start.Time }, func() float64 { return 1 }
			f.children.Cluster = &apply.Cluster{Client: fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).Build()}
			f.layer.Spec.SourceRef = &v1alpha1.SourceReference{Kind: "GitRepository", Name: "fleet", Namespace: "fleet"}
			s := f.on(0)
			s.notes, s.tenure, s.snapshot = &layerNotes{}, &tenure.Tenure{}, &source.Snapshot{Revision: tc.has}
			if tc.components != "" {
				s.components.snapshot = &source.Snapshot{Revision: older}
			}
			s.run.notes = &notes{began: start.Time}
			if tc.change != nil {
				tc.change(s)
			}
			s.rendered = &rendered{digest: "sha256:of-" + tc.has}
			entry := &v1alpha1.ChildLayer{Name: "base", Ready: true, Digest: digest}
			if tc.sent == "" {
				digest = "" // nothing was sent
			}
			err := s.look(t.Context(), &record.Record{Attempted: record.State{Revision: tc.sent, Digest: digest}}, entry)
			if isWaitingError(err) != tc.waits || err != nil && (!tc.waits || reason.Of(err) != v1alpha1.ReasonSourceNotReady) {
				t.Errorf("%s: %v, want it to wait: %t", tc.reason, err, tc.waits)
			}
			if s.notes.looked == tc.waits || tc.waits && !entry.Ready {
				t.Errorf("%s: the layer says %+v, and nothing is sent: %t", tc.reason, entry, !s.notes.looked)
			}
			if pause := s.notes.due.Sub(start.Time); tc.waits && pause != tc.pause || !tc.waits && !s.notes.due.IsZero() {
				t.Errorf("%s: looked at again after %s, want %s", tc.reason, pause, tc.pause)
			}
		})
	}
}

// componentsOf has a layer install providers of which a repository has the manifests.
func componentsOf(name string) *v1alpha1.ProvidersSpec {
	return &v1alpha1.ProvidersSpec{SourceRef: &v1alpha1.SourceReference{Kind: "GitRepository", Name: name, Namespace: "fleet"}}
}

// recordedAs is a repository that has an artifact on record.
func recordedAs(name, revision, digest string) *sourcev1.GitRepository {
	o := &sourcev1.GitRepository{}
	o.Namespace, o.Name = "fleet", name
	o.Status.Artifact = &fluxmeta.Artifact{Revision: revision, Digest: digest}
	return o
}

// TestDeclaredUnfetched: a replica does not know what a layer declares before it has fetched what the leader recorded, by which
// another layer is to leave the child.
func TestDeclaredUnfetched(t *testing.T) {
	const older, newer = "main@sha1:4", "main@sha1:5"
	moved := inventory.Entry{Namespace: "x", Name: "moved", Kind: "Service", Version: "v1"}
	for name, tc := range map[string]struct {
		reason string
		// says is what the source has on record now, and said what it had a moment ago; empty: there is no source.
		says, said string
		// digest on record, if it is another one than this replica was handed.
		digest string
		// components is what the source of the manifests of providers has on record, if there are any.
		components string
		change     func(*seeding)
		stays      bool
	}{
		"Current": {reason: "it has what is on record", says: older},
		"Behind":  {reason: "the leader has fetched a commit that it has not", says: newer, stays: true},
		"Just":    {reason: "the leader recorded it since another child asked", says: newer, said: older, stays: true},
		"Gone":    {reason: "nobody can tell", stays: true},
		"Pinned":  {reason: "a Rollout holds the layer, which may have it later", says: newer, stays: true, change: func(s *seeding) { s.pin = &v1alpha1.RolloutRevision{Revision: older} }},
		"Alone":   {reason: "a process without shards fetches by itself", says: newer, change: func(s *seeding) { s.tenure = nil }},
		// read 642
		"Included":       {reason: "it is one revision, with what the repository included before", says: older, digest: "sha256:2", stays: true},
		"Components":     {reason: "its providers are of a repository of their own, which the leader has fetched", says: older, components: newer, stays: true},
		"SameComponents": {reason: "it has these as well", says: older, components: older},
		"OnlyComponents": {reason: "the layer has no other source", says: older, components: newer, stays: true, change: func(s *seeding) { s.layer.Spec.SourceRef, s.snapshot = nil, nil }},
	} {
		t.Run(name, func(t *testing.T) {
			scheme := removalScheme(t)
			if err := sourcev1.AddToScheme(scheme); err != nil {
				t.Fatal(err)
			}
			s := bringing(t, newPaced(time.Minute))
			objects := []client.Object{s.child.DeepCopy()}
			if tc.says != "" {
				objects = append(objects, recordedAs("fleet", tc.says, cmp.Or(tc.digest, "sha256:1")))
			}
			if tc.components != "" {
				objects = append(objects, recordedAs("components", tc.components, ""))
			}
			reads := map[string]int{}
			s.Cluster = &apply.Cluster{Client: interceptor.NewClient(fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).Build(), interceptor.Funcs{
				Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
					if o.GetObjectKind().GroupVersionKind().Kind == "GitRepository" {
						reads[key.Name]++
					}
					return c.Get(ctx, key, o, opts...)
				},
			})}
			s.layer.Spec.SourceRef = &v1alpha1.SourceReference{Kind: "GitRepository", Name: "fleet", Namespace: "fleet"}
			s.Snapshots, s.tenure, s.snapshot = source.NewSnapshots(), &tenure.Tenure{}, &source.Snapshot{Revision: older}
			s.Snapshots.PutAs(layerSource(s.layer), s.snapshot, "sha256:1")
			if tc.components != "" {
				s.layer.Spec.Providers = componentsOf("components")
				s.Snapshots.Put(sourceOf(s.layer, s.layer.Spec.Providers.SourceRef), &source.Snapshot{Revision: older})
			}
			if tc.said != "" {
				s.revisions.read = map[source.Key]*recorded{layerSource(s.layer): {turn: make(chan struct{}, 1), last: reading{revision: tc.said, at: s.Now()}}}
			}
			if s.layers = slices.Repeat([]*seeding{s}, 10); tc.change != nil {
				tc.change(s)
			}
			declared, err := s.declared(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			for of, n := range reads {
				if n > 1 {
					t.Errorf("%s: source %s of ten layers is read %d times", tc.reason, of, n)
				}
			}
			for layer, stays := range map[string]bool{"fleet/released": tc.stays, s.key().String(): false} {
				got, err := plan.Claims(declared, layer)(t.Context(), moved, inventory.Entry{})
				if err != nil || (got.Owner != "") != stays || stays && got.Kind != apply.Declared {
					t.Errorf("%s: what layer %s had is claimed: %+v (%v), want %t", tc.reason, layer, got, err, stays)
				}
			}
		})
	}
}

// slowHub takes 20 ms for each call, and does not answer for a source that hangs.
type slowHub struct {
	client.Reader
	reads atomic.Int32
}

func (h *slowHub) Get(ctx context.Context, key client.ObjectKey, o client.Object, _ ...client.GetOption) error {
	h.reads.Add(1)
	if key.Name == "hangs" {
		<-ctx.Done()
		return ctx.Err()
	}
	time.Sleep(20 * time.Millisecond)
	return unstructured.SetNestedField(o.(*unstructured.Unstructured).Object, "main@sha1:5", "status", "artifact", "revision")
}

// TestReadTogether: children that ask for what a source has on record share a reading that began after they asked, and
// nobody waits for another source.
func TestReadTogether(t *testing.T) {
	named := func(name string) source.Key {
		return source.Key{Kind: "GitRepository", NamespacedName: types.NamespacedName{Namespace: "fleet", Name: name}}
	}
	synctest.Test(t, func(t *testing.T) {
		var r revisions
		h := &slowHub{}
		asks := func(key source.Key) (string, error) {
			asked := r.asked()
			says := r.of(t.Context(), h, key, time.Now(), func(last reading) bool { return last.number > asked })
			return says.revision, says.err
		}
		var hanging, all sync.WaitGroup
		hanging.Go(func() {
			if _, err := asks(named("hangs")); err == nil {
				t.Error("a source that could not be read has something on record")
			}
		})
		synctest.Wait()
		begun := time.Now()
		for range 64 {
			all.Go(func() {
				if revision, err := asks(named("fleet")); revision != "main@sha1:5" || err != nil {
					t.Errorf("on record is %q, %v", revision, err)
				}
			})
		}
		all.Wait()
		if took := time.Since(begun); h.reads.Load() > 3 || took > 40*time.Millisecond {
			t.Errorf("64 children took %s and %d readings of one source", took, h.reads.Load()-1)
		}
		if _, err := asks(named("fleet")); err != nil || h.reads.Load() < 3 {
			t.Errorf("what was read before somebody asked is his answer: %d readings, %v", h.reads.Load()-1, err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		if says := r.of(ctx, h, named("hangs"), time.Now(), func(reading) bool { return false }); ctx.Err() == nil || says.err == nil {
			t.Errorf("a child waits longer than its push may take: %v", says.err)
		}
		hanging.Wait()
	})
}
