package backup

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"filippo.io/age"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/record"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/cascade-gitops/cascade/api/clusterapi"
	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/state/archive"
	"github.com/cascade-gitops/cascade/state/store"
	"github.com/cascade-gitops/cascade/syncer/firstsync"
)

// bench is a reconciler whose destination is a directory, whatever its object says.
type bench struct {
	*Reconciler
	t   *testing.T
	now time.Time
	id  *age.X25519Identity
	dir string
	// broken is why the destination cannot be opened.
	broken error
	events *record.FakeRecorder
}

func newBench(t *testing.T, change func(*v1alpha1.StateBackup)) *bench {
	t.Helper()
	id, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	b := &bench{t: t, now: noon, id: id, dir: t.TempDir(), events: record.NewFakeRecorder(100)}
	o := &v1alpha1.StateBackup{
		ObjectMeta: metav1.ObjectMeta{Namespace: "cascade-system", Name: "tier", Generation: 1, CreationTimestamp: metav1.NewTime(noon)},
		Spec: v1alpha1.StateBackupSpec{
			Interval: &metav1.Duration{Duration: time.Hour}, Destination: v1alpha1.StateDestination{URL: "s3://bucket/tier"},
			Encryption: v1alpha1.StateEncryption{Recipients: []string{id.Recipient().String()}}, KeepLast: 2,
		},
	}
	if change != nil {
		change(o)
	}
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, apiextensionsv1.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	c := fake.NewClientBuilder().WithScheme(scheme).WithStatusSubresource(o).WithObjects(
		o, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "kube-system", UID: "tier"}},
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "cascade-system", Name: v1alpha1.FirstSyncConfigMap, UID: "record"}, Data: map[string]string{"state": "settled"}},
	).Build()
	b.Reconciler = &Reconciler{
		Client: c, Reader: c, Namespace: "cascade-system", Holder: "agent", Events: b.events, Metrics: NewMetrics(prometheus.NewRegistry()),
		Now: func() time.Time { return b.now },
		Open: func(ctx context.Context, _ string, o store.Options) (store.Store, error) {
			if b.broken != nil {
				return nil, b.broken
			}
			return store.Open(ctx, b.dir, o)
		},
	}
	return b
}

func (b *bench) reconcile() (*v1alpha1.StateBackup, ctrl.Result, error) {
	b.t.Helper()
	list := &v1alpha1.StateBackupList{}
	if err := b.Client.List(b.t.Context(), list); err != nil || len(list.Items) != 1 {
		b.t.Fatal(err)
	}
	o := &list.Items[0]
	result, err := b.Reconcile(b.t.Context(), ctrl.Request{NamespacedName: client.ObjectKeyFromObject(o)})
	if err := b.Client.Get(b.t.Context(), client.ObjectKeyFromObject(o), o); err != nil {
		b.t.Fatal(err)
	}
	return o, result, err
}

func ready(o *v1alpha1.StateBackup) metav1.Condition {
	if is := apimeta.FindStatusCondition(o.Status.Conditions, v1alpha1.ReadyCondition); is != nil {
		return *is
	}
	return metav1.Condition{}
}

func (b *bench) change(value string) {
	b.t.Helper()
	cm := &corev1.ConfigMap{}
	if err := b.Client.Get(b.t.Context(), client.ObjectKey{Namespace: "cascade-system", Name: v1alpha1.FirstSyncConfigMap}, cm); err != nil {
		b.t.Fatal(err)
	}
	cm.Data["why"] = value
	if err := b.Client.Update(b.t.Context(), cm); err != nil {
		b.t.Fatal(err)
	}
}

func TestReconcile(t *testing.T) {
	b := newBench(t, nil)
	o, result, err := b.reconcile()
	if err != nil || ready(o).Reason != v1alpha1.ReasonSucceeded || o.Status.LastVersion != "1-1" || o.Status.Versions != 1 || o.Status.Objects == 0 || result.RequeueAfter != time.Hour {
		t.Fatalf("%+v, %+v, %v", o.Status, result, err)
	}
	// Woken early, it waits on.
	b.now = noon.Add(20 * time.Minute)
	if _, result, err = b.reconcile(); err != nil || result.RequeueAfter != 40*time.Minute {
		t.Errorf("%+v, %v", result, err)
	}
	b.now = noon.Add(time.Hour)
	if o, _, err = b.reconcile(); err != nil || o.Status.LastVersion != "1-1" || !o.Status.LastSuccess.Time.Equal(b.now) {
		t.Errorf("the same state: %+v, %v", o.Status, err)
	}
	for i, want := range []string{"2-1", "3-1"} {
		b.change(want)
		b.now = b.now.Add(time.Hour)
		if o, _, err = b.reconcile(); err != nil || o.Status.LastVersion != want || o.Status.Versions != 2 {
			t.Errorf("change %d: %+v, %v", i, o.Status, err)
		}
	}
	at, err := store.Open(t.Context(), b.dir, store.Options{})
	if err != nil {
		t.Fatal(err)
	}
	versions, err := at.Versions(t.Context())
	if err != nil || len(versions) != 2 || versions[1].String() != "3-1" {
		t.Fatalf("%v, %v", versions, err)
	}
	sealed, err := at.Load(t.Context(), versions[1])
	if err != nil {
		t.Fatal(err)
	}
	if s, err := archive.Open(sealed, b.id); err != nil || s.Tier != "tier" {
		t.Errorf("%+v, %v", s, err)
	}
	// Somebody deletes all of them: the next look saves, and is no error.
	files, err := filepath.Glob(filepath.Join(b.dir, "*.age"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if err := os.Remove(file); err != nil {
			t.Fatal(err)
		}
	}
	b.now = b.now.Add(time.Hour)
	if o, _, err = b.reconcile(); err != nil || o.Status.LastVersion != "4-1" || o.Status.Versions != 1 {
		t.Errorf("after all were deleted: %+v, %v", o.Status, err)
	}
	if n := testutil.ToFloat64(b.Metrics.success.WithLabelValues("cascade-system", "tier")); n != float64(b.now.Unix()) {
		t.Errorf("the metric of the last success is %f", n)
	}
}

// TestMovedAway: what a pivot gave away is saved at once. Restored from what was saved before, two management clusters
// would act on it.
func TestMovedAway(t *testing.T) {
	b := newBench(t, func(o *v1alpha1.StateBackup) { o.Spec.Interval, o.Spec.Schedule = nil, "0 3 * * *" })
	moves := func(change func(cm *corev1.ConfigMap)) {
		cm := &corev1.ConfigMap{}
		if err := b.Client.Get(t.Context(), client.ObjectKey{Namespace: "cascade-system", Name: v1alpha1.FirstSyncConfigMap}, cm); err != nil {
			t.Fatal(err)
		}
		change(cm)
		if err := b.Client.Update(t.Context(), cm); err != nil {
			t.Fatal(err)
		}
	}
	name := types.NamespacedName{Namespace: "fleet", Name: "master"}
	for i, step := range []struct {
		what string
		do   func()
		want string
	}{
		{"there is no version yet", func() {}, "1-1"},
		{"another change waits for its time", func() { b.change("x") }, "1-1"},
		{"a Cluster is given away", func() { moves(func(cm *corev1.ConfigMap) { firstsync.ManageElsewhere(cm, "p-1", name) }) }, "2-1"},
		{"nothing is another", func() { b.change("y") }, "2-1"},
		{"it comes back", func() { moves(func(cm *corev1.ConfigMap) { firstsync.ManageHere(cm, name) }) }, "3-1"},
	} {
		step.do()
		b.now = noon.Add(time.Duration(i) * time.Minute)
		if o, _, err := b.reconcile(); err != nil || o.Status.LastVersion != step.want {
			t.Errorf("%s: version %s, %v, want %s", step.what, o.Status.LastVersion, err, step.want)
		}
	}
}

func TestRefusals(t *testing.T) {
	for name, tt := range map[string]struct {
		reason string
		change func(*v1alpha1.StateBackup)
		want   string
	}{
		"Namespace":  {"who may write there could take the Secrets of all", func(o *v1alpha1.StateBackup) { o.Namespace = "tenant" }, v1alpha1.ReasonBackupRefused},
		"Recipients": {"state is never kept unencrypted", func(o *v1alpha1.StateBackup) { o.Spec.Encryption.Recipients = nil }, v1alpha1.ReasonInvalidSpec},
		"Recipient":  {"it is none", func(o *v1alpha1.StateBackup) { o.Spec.Encryption.Recipients = []string{"me"} }, v1alpha1.ReasonInvalidSpec},
		"Directory":  {"it goes with the pod", func(o *v1alpha1.StateBackup) { o.Spec.Destination.URL = "file:///state" }, v1alpha1.ReasonInvalidSpec},
		"StaleAfter": {"everything is too old", func(o *v1alpha1.StateBackup) { o.Spec.StaleAfter = &metav1.Duration{} }, v1alpha1.ReasonInvalidSpec},
		"Unread": {"nobody suspended what cannot be read", func(o *v1alpha1.StateBackup) {
			o.Spec.Suspend, o.Annotations = true, map[string]string{v1alpha1.UnreadAnnotation: "cannot read spec.staleAfter: 9999999h"}
		}, v1alpha1.ReasonInvalidSpec},
		"Schedule": {"it is none", func(o *v1alpha1.StateBackup) { o.Spec.Interval, o.Spec.Schedule = nil, "sometimes" }, v1alpha1.ReasonInvalidSpec},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, tt.change)
			o, result, err := b.reconcile()
			if err != nil || ready(o).Reason != tt.want || result.RequeueAfter != 0 || apimeta.FindStatusCondition(o.Status.Conditions, "Stalled") == nil {
				t.Errorf("%s: %+v, %+v, %v", tt.reason, ready(o), result, err)
			}
			at, err := store.Open(t.Context(), b.dir, store.Options{})
			if err != nil {
				t.Fatal(err)
			}
			if versions, err := at.Versions(t.Context()); err != nil || len(versions) != 0 {
				t.Errorf("%v is saved, %v", versions, err)
			}
			// Who waits for a backup of this tier is told how old the last one is, also by a new process.
			told := 0
			if o.Namespace == b.Namespace {
				told = 1
			}
			for _, g := range []*prometheus.GaugeVec{b.Metrics.success, b.Metrics.stale} {
				if n := testutil.CollectAndCount(g); n != told {
					t.Errorf("%s: there are %d series, want %d", tt.reason, n, told)
				}
			}
		})
	}
}

func TestFailures(t *testing.T) {
	b := newBench(t, nil)
	b.broken = errors.New("the server answered 503")
	o, _, err := b.reconcile()
	if err == nil || ready(o).Reason != v1alpha1.ReasonDestinationFailed {
		t.Errorf("%+v, %v", ready(o), err)
	}
	b.now = noon.Add(4 * time.Hour)
	if o, _, err = b.reconcile(); err == nil || ready(o).Reason != v1alpha1.ReasonBackupStale || !strings.Contains(ready(o).Message, v1alpha1.ReasonDestinationFailed) {
		t.Errorf("%+v, %v", ready(o), err)
	}
	b.broken = nil
	at, err := store.Open(t.Context(), b.dir, store.Options{Now: b.Reconciler.Now})
	if err != nil {
		t.Fatal(err)
	}
	l, err := at.Lock(t.Context(), "a mom", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	b.now = b.now.Add(time.Second)
	if o, _, err = b.reconcile(); err == nil || !strings.Contains(ready(o).Message, `"a mom" holds it until`) || !strings.Contains(ready(o).Message, v1alpha1.ReasonStateLocked) {
		t.Errorf("%+v, %v", ready(o), err)
	}
	if err := at.Unlock(t.Context(), l); err != nil {
		t.Fatal(err)
	}
	if o, _, err = b.reconcile(); err != nil || ready(o).Reason != v1alpha1.ReasonSucceeded || o.Status.LastVersion != "2-1" {
		t.Errorf("%+v, %v", o.Status, err)
	}
}

// TestTimeIsOver: a backup that runs into its time, or into the deadline of its reconcile, says so. The spec alone says
// how long it may take.
func TestTimeIsOver(t *testing.T) {
	for name, tt := range map[string]struct {
		timeout, deadline time.Duration
	}{"Timeout": {50 * time.Millisecond, time.Hour}, "Deadline": {time.Hour, 50 * time.Millisecond}} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, func(o *v1alpha1.StateBackup) { o.Spec.Timeout = &metav1.Duration{Duration: tt.timeout} })
			if options := b.options(); options.ReconciliationTimeout >= 0 {
				t.Errorf("a reconcile has %s, whatever its spec says", options.ReconciliationTimeout)
			}
			b.Client = interceptor.NewClient(b.Client.(client.WithWatch), interceptor.Funcs{
				SubResourcePatch: func(ctx context.Context, c client.Client, sub string, obj client.Object, patch client.Patch, opts ...client.SubResourcePatchOption) error {
					if err := ctx.Err(); err != nil {
						return err // as a server would not be asked
					}
					return c.SubResource(sub).Patch(ctx, obj, patch, opts...)
				},
			})
			b.Open = func(ctx context.Context, _ string, _ store.Options) (store.Store, error) {
				<-ctx.Done()
				return nil, ctx.Err()
			}
			within, cancel := context.WithTimeout(t.Context(), tt.deadline)
			defer cancel()
			name := types.NamespacedName{Namespace: "cascade-system", Name: "tier"}
			if _, err := b.Reconcile(within, ctrl.Request{NamespacedName: name}); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("it ends with %v", err)
			}
			o := &v1alpha1.StateBackup{}
			if err := b.Client.Get(t.Context(), name, o); err != nil {
				t.Fatal(err)
			}
			if is := ready(o); is.Status != metav1.ConditionFalse || is.Reason != v1alpha1.ReasonDestinationFailed || o.Status.LastAttempt == nil {
				t.Errorf("nobody is told: %+v", o.Status)
			}
		})
	}
}

// TestRestorePending: a tier that is made anew has its StateBackup from Git, before anybody restores
// what the former one saved at the same address.
func TestRestorePending(t *testing.T) {
	none := []string(nil)
	for name, tt := range map[string]struct {
		reason, state string
		former        bool
		// destination is where this StateBackup saved a version 1-1 before, if it did.
		destination string
		// later: others are saved there than it has on record, a version 2-1.
		later bool
		// before: so did the version of Cascade before, which noted no destination.
		before bool
		// clusters of the tier, each with the state that is being restored, if one is, or paused, or resumed by a person after that.
		clusters []string
		// want is a part of the condition; empty: a version is saved.
		want string
	}{
		"Open":      {"nothing is restored yet: an empty tier would be the newest version", "open", true, "", false, false, none, "cascade restore"},
		"Adopt":     {"nor is it here", "adopt", true, "", false, false, none, "cascade approve first-sync"},
		"None":      {"the agent has no record yet", "", true, "", false, false, none, "a destination of its own"},
		"Settled":   {"the tier is whole: only the StateBackup is new", "settled", true, "", false, false, none, ""},
		"First":     {"nothing was saved there before", "open", false, "", false, false, none, ""},
		"Restored":  {"Clusters run: a restored tier is open for as long as anything that Git declares is not ready", "open", true, "", false, false, []string{"", ""}, ""},
		"Approved":  {"a person approved one of many: the others are in the version of the former tier, and nowhere else", "open", true, "", false, false, []string{""}, ""},
		"Moving":    {"clusterctl brought a part of them", "open", true, "", false, false, []string{"paused", "paused"}, "cascade restore"},
		"Paused":    {"a person paused one of them", "open", true, "", false, false, []string{"paused", ""}, ""},
		"Held":      {"a hold of a person does not end by itself", "adopt", true, "", false, false, []string{""}, ""},
		"Restoring": {"a part of them is made", "open", true, "", false, false, []string{"", "id"}, "Cluster fleet/b is being restored"},
		"Again":     {"a part of them is made, and the tier lives on: half of it would be the newest version", "settled", true, "s3://bucket/tier", false, false, []string{"id"}, "the same cascade restore"},
		"Resumed":   {"the restore was ended long ago, and a person let the Cluster go on", "settled", true, "s3://bucket/tier", false, false, []string{"resumed"}, ""},
		"Elsewhere": {"they are restored from elsewhere", "open", false, "", false, false, []string{"id"}, "the same cascade restore"},
		"Own":       {"it saved there before", "open", true, "s3://bucket/tier", false, false, none, ""},
		"Moved":     {"it saved elsewhere, and a version has the same name anywhere", "open", true, "s3://bucket/wrong", false, false, none, "version 1-1"},
		"Before":    {"the version of Cascade before saved it, here", "open", true, "", false, true, none, ""},
		"Later":     {"the status of its last version was not written", "open", true, "s3://bucket/tier", true, false, none, ""},
		"LaterHeld": {"or a person called cascade save, in a tier that is held for months, as after an upgrade", "adopt", true, "s3://bucket/tier", true, false, []string{""}, ""},
		"OwnHeld":   {"a person holds the Clusters, for whatever reason", "adopt", true, "s3://bucket/tier", false, false, none, ""},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, func(o *v1alpha1.StateBackup) {
				if tt.before {
					o.Generation, o.Status.ObservedGeneration, o.Status.LastVersion, o.Status.LastDigest = 1, 1, "1-1", "of then"
				}
				if o.Spec.KeepLast = 1; tt.destination != "" {
					o.Generation, o.Status.ObservedGeneration, o.Status.Destination, o.Status.LastVersion = 2, 1, tt.destination, "1-1"
				}
			})
			cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "cascade-system", Name: v1alpha1.FirstSyncConfigMap, UID: "record"}, Data: map[string]string{"state": tt.state}}
			var err error
			if tt.state == "" {
				err = b.Client.Delete(t.Context(), cm)
			} else {
				err = b.Client.Update(t.Context(), cm)
			}
			if err != nil {
				t.Fatal(err)
			}
			for i, restoring := range tt.clusters {
				b.cluster(string(rune('a'+i)), restoring)
			}
			at, err := store.Open(t.Context(), b.dir, store.Options{Now: b.Reconciler.Now})
			if err != nil {
				t.Fatal(err)
			}
			want := []string{"1-1"}
			if !tt.former && tt.want != "" {
				want = nil
			}
			if tt.former {
				l, err := at.Lock(t.Context(), "former", time.Minute)
				if err == nil {
					_, err = at.Save(t.Context(), l, []byte("former"))
				}
				if err := errors.Join(err, at.Unlock(t.Context(), l)); err != nil {
					t.Fatal(err)
				}
				newest := "2-1"
				if tt.later {
					if l, err = at.Lock(t.Context(), "later", time.Minute); err == nil {
						_, err = at.Save(t.Context(), l, []byte("later"))
					}
					if err := errors.Join(err, at.Unlock(t.Context(), l)); err != nil {
						t.Fatal(err)
					}
					want, newest = append(want, "2-1"), "3-1"
				}
				switch {
				case tt.want != "":
				case tt.before || tt.destination != "": // its own
					want = []string{newest}
				default:
					want = append(want, newest)
				}
			}
			reader := b.Reader
			if tt.want != "" {
				b.Reader = interceptor.NewClient(b.Client.(client.WithWatch), interceptor.Funcs{
					List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
						if _, ok := list.(*metav1.PartialObjectMetadataList); ok {
							t.Errorf("%s: the whole state is taken, at each retry, for nothing", tt.reason)
						}
						return c.List(ctx, list, opts...)
					},
				})
			}
			o, _, err := b.reconcile()
			if tt.want == "" && err != nil || tt.want != "" && (ready(o).Reason != v1alpha1.ReasonRestorePending || !strings.Contains(ready(o).Message, tt.want) || strings.Contains(tt.want, "approve") && !strings.Contains(ready(o).Message, "version 1-1")) {
				t.Errorf("%s: %+v, %v", tt.reason, ready(o), err)
			}
			b.Reader = reader
			if again, _, err := b.reconcile(); tt.want != "" && (err == nil || ready(again) != ready(o)) {
				t.Errorf("%s: tried again: %+v, %v", tt.reason, ready(again), err)
			}
			if names := b.versions(); !slices.Equal(names, want) {
				t.Errorf("%s: the versions are %q, want %q", tt.reason, names, want)
			}
		})
	}
}

// TestOthersVersions: what others saved stays, however much is saved above it, and also where the status of
// the first version is not written. A tier whose first sync is over at once may be one that is made anew.
func TestOthersVersions(t *testing.T) {
	b := newBench(t, nil)
	at, err := store.Open(t.Context(), b.dir, store.Options{Now: b.Reconciler.Now})
	if err != nil {
		t.Fatal(err)
	}
	l, err := at.Lock(t.Context(), "former", time.Minute)
	for range 3 {
		if err == nil {
			_, err = at.Save(t.Context(), l, []byte("former"))
		}
	}
	if err := errors.Join(err, at.Unlock(t.Context(), l)); err != nil {
		t.Fatal(err)
	}
	whole := b.Client
	b.Client = interceptor.NewClient(whole.(client.WithWatch), interceptor.Funcs{
		SubResourcePatch: func(ctx context.Context, c client.Client, sub string, o client.Object, patch client.Patch, opts ...client.SubResourcePatchOption) error {
			if o.(*v1alpha1.StateBackup).Status.LastVersion != "" {
				return errors.New("the process is killed")
			}
			return c.SubResource(sub).Patch(ctx, o, patch, opts...)
		},
	})
	for i := range 5 {
		b.now = b.now.Add(time.Hour)
		b.change(string(rune('a' + i)))
		if _, _, err := b.reconcile(); (err != nil) != (i == 0) {
			t.Fatal(err)
		}
		b.Client = whole
	}
	if names, want := b.versions(), []string{"1-1", "1-2", "1-3", "5-1", "6-1"}; !slices.Equal(names, want) {
		t.Errorf("the versions are %q, want %q", names, want)
	}
	// Another volume is mounted for a moment: an empty place does not tell that the versions are gone.
	dirs := []string{t.TempDir(), b.dir, b.dir, b.dir}
	for i, dir := range dirs {
		b.dir, b.now = dir, b.now.Add(time.Hour)
		b.change(string(rune('m' + i)))
		if _, _, err := b.reconcile(); err != nil {
			t.Fatal(err)
		}
	}
	if names := b.versions(); len(names) != 5 || !slices.Equal(names[:3], []string{"1-1", "1-2", "1-3"}) {
		t.Errorf("after another volume was there the versions are %q", names)
	}
	// So it is where that is the moment in which the URL is written otherwise.
	stays := b.dir
	o := &v1alpha1.StateBackup{}
	if err := b.Client.Get(t.Context(), client.ObjectKey{Namespace: "cascade-system", Name: "tier"}, o); err != nil {
		t.Fatal(err)
	}
	o.Spec.Destination.URL, o.Generation = "s3://bucket/tier?region=eu-central-1", 2
	if err := b.Client.Update(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	save := func(dir string, times int) []string {
		t.Helper()
		b.dir = dir
		for range times {
			b.now = b.now.Add(time.Hour)
			b.change(b.now.String())
			if _, _, err := b.reconcile(); err != nil {
				t.Fatal(err)
			}
		}
		return b.versions()
	}
	anew := t.TempDir()
	save(anew, 1)
	if names := save(stays, 3); len(names) != 5 || !slices.Equal(names[:3], []string{"1-1", "1-2", "1-3"}) {
		t.Errorf("after the URL was written otherwise the versions are %q", names)
	}
	// A place that is made anew has nothing of others, and old versions are deleted there as everywhere. The former one may be back.
	if names := save(anew, 5); !slices.Equal(names, []string{"5-1", "6-1"}) {
		t.Errorf("in a place that was made anew the versions are %q", names)
	}
	if names := save(stays, 3); len(names) != 5 || !slices.Equal(names[:3], []string{"1-1", "1-2", "1-3"}) {
		t.Errorf("back in the former place the versions are %q", names)
	}
}

// TestMadeAnew: in a place that was made anew old versions are deleted, also where the agent was killed after the first
// of them, and after more than there are times on record (read 536).
func TestMadeAnew(t *testing.T) {
	b := newBench(t, nil)
	saves := func(holder string, n int) {
		t.Helper()
		at, err := store.Open(t.Context(), b.dir, store.Options{Now: b.Reconciler.Now})
		if err != nil {
			t.Fatal(err)
		}
		l, err := at.Lock(t.Context(), holder, time.Minute)
		for range n {
			if err == nil {
				_, err = at.Save(t.Context(), l, []byte(holder))
			}
		}
		if err := errors.Join(err, at.Unlock(t.Context(), l)); err != nil {
			t.Fatal(err)
		}
	}
	reconcile := func(fails bool) {
		t.Helper()
		b.now = b.now.Add(time.Hour)
		b.change(b.now.String())
		if _, _, err := b.reconcile(); (err != nil) != fails {
			t.Fatal(err)
		}
	}
	saves("former", 3)
	reconcile(false)
	b.dir = t.TempDir()
	whole := b.Client
	b.Client = interceptor.NewClient(whole.(client.WithWatch), interceptor.Funcs{
		SubResourcePatch: func(ctx context.Context, c client.Client, sub string, o client.Object, patch client.Patch, opts ...client.SubResourcePatchOption) error {
			if o.(*v1alpha1.StateBackup).Status.LastVersion == "1-1" {
				return errors.New("the process is killed")
			}
			return c.SubResource(sub).Patch(ctx, o, patch, opts...)
		},
	})
	reconcile(true)
	b.Client = whole
	b.now = b.now.Add(time.Hour)
	saves("person", 300)
	reconcile(false)
	if names := b.versions(); !slices.Equal(names, []string{"2-300", "3-1"}) {
		t.Errorf("the versions are %q", names)
	}
}

// TestSamePlace: versions are a StateBackup's own also where its URL is written otherwise.
func TestSamePlace(t *testing.T) {
	b := newBench(t, nil)
	for i, url := range []string{"s3://bucket/tier", "s3://bucket/tier?region=eu-central-1", "s3://bucket/tier/?region=eu-central-1"} {
		b.now = b.now.Add(time.Hour)
		o := &v1alpha1.StateBackup{}
		if err := b.Client.Get(t.Context(), client.ObjectKey{Namespace: "cascade-system", Name: "tier"}, o); err != nil {
			t.Fatal(err)
		}
		o.Spec.Destination.URL, o.Generation = url, int64(i+1)
		if err := b.Client.Update(t.Context(), o); err != nil {
			t.Fatal(err)
		}
		if o, _, err := b.reconcile(); err != nil || o.Status.SavedAbove != "" || o.Status.Destination != url {
			t.Errorf("%s: %+v, %v", url, o.Status, err)
		}
	}
	if names, want := b.versions(), []string{"2-1", "3-1"}; !slices.Equal(names, want) {
		t.Errorf("the versions are %q, want %q", names, want)
	}
}

// TestOwnVersion: the first version of a StateBackup is saved, and what became of it is not written.
// It saves on.
func TestOwnVersion(t *testing.T) {
	b := newBench(t, nil)
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "cascade-system", Name: v1alpha1.FirstSyncConfigMap, UID: "record"}, Data: map[string]string{"state": "open"}}
	if err := b.Client.Update(t.Context(), cm); err != nil {
		t.Fatal(err)
	}
	whole := b.Client
	b.Client = interceptor.NewClient(whole.(client.WithWatch), interceptor.Funcs{
		SubResourcePatch: func(ctx context.Context, c client.Client, sub string, o client.Object, patch client.Patch, opts ...client.SubResourcePatchOption) error {
			if o.(*v1alpha1.StateBackup).Status.LastVersion != "" {
				return errors.New("the process is killed")
			}
			return c.SubResource(sub).Patch(ctx, o, patch, opts...)
		},
	})
	if o, _, err := b.reconcile(); err == nil || o.Status.LastVersion != "" || !slices.Equal(b.versions(), []string{"1-1"}) {
		t.Fatalf("%+v, %v, %q", o.Status, err, b.versions())
	}
	b.Client = whole
	if o, _, err := b.reconcile(); err != nil || ready(o).Reason != v1alpha1.ReasonSucceeded || o.Status.LastVersion != "2-1" {
		t.Errorf("%+v, %v", o.Status, err)
	}
}

// cluster is made in the tier; a restore has not resumed it if restoring is not empty.
func (b *bench) cluster(name, restoring string) {
	b.t.Helper()
	crd := &apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{Name: clusterapi.ClusterCRD, Labels: map[string]string{"clusterctl.cluster.x-k8s.io": ""}}}
	crd.Spec.Group, crd.Spec.Names.Kind = clusterapi.ClusterKind.Group, clusterapi.ClusterKind.Kind
	crd.Spec.Versions = []apiextensionsv1.CustomResourceDefinitionVersion{{Name: "v1beta2", Served: true, Storage: true}}
	if err := client.IgnoreAlreadyExists(b.Client.Create(b.t.Context(), crd)); err != nil {
		b.t.Fatal(err)
	}
	u := &unstructured.Unstructured{}
	u.SetAPIVersion("cluster.x-k8s.io/v1beta2")
	u.SetKind("Cluster")
	u.SetNamespace("fleet")
	u.SetName(name)
	u.SetUID(types.UID(name))
	switch restoring {
	case "":
	case "paused":
		_ = unstructured.SetNestedField(u.Object, true, "spec", "paused")
	case "resumed":
		u.SetAnnotations(map[string]string{v1alpha1.RestoringAnnotation: "id"})
	default:
		u.SetAnnotations(map[string]string{v1alpha1.RestoringAnnotation: restoring})
		_ = unstructured.SetNestedField(u.Object, true, "spec", "paused")
	}
	if err := b.Client.Create(b.t.Context(), u); err != nil {
		b.t.Fatal(err)
	}
}

// versions are the names of those at the destination.
func (b *bench) versions() []string {
	b.t.Helper()
	at, err := store.Open(b.t.Context(), b.dir, store.Options{})
	if err != nil {
		b.t.Fatal(err)
	}
	versions, err := at.Versions(b.t.Context())
	if err != nil {
		b.t.Fatal(err)
	}
	var names []string
	for _, v := range versions {
		names = append(names, v.String())
	}
	return names
}

// TestCircle: whoever may write ConfigMaps in some namespace makes two that own each other. The
// state is saved, with both.
func TestCircle(t *testing.T) {
	b := newBench(t, nil)
	for name, owner := range map[string]string{"one": "two", "two": "one"} {
		if err := b.Client.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
			Namespace: "tenant", Name: name, UID: types.UID(name), Labels: map[string]string{"clusterctl.cluster.x-k8s.io/move": ""},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: owner, UID: types.UID(owner)}},
		}}); err != nil {
			t.Fatal(err)
		}
	}
	if o, _, err := b.reconcile(); err != nil || ready(o).Reason != v1alpha1.ReasonSucceeded || o.Status.Objects != 3 {
		t.Errorf("%+v, %v", o.Status, err)
	}
}

// TestRecipientsChanged: the key of before is gone, and the first try with the new one fails, for
// whatever reason. The version after that can be opened.
func TestRecipientsChanged(t *testing.T) {
	for name, tt := range map[string]struct {
		reason string
		fail   func(b *bench, o *v1alpha1.StateBackup)
		mend   func(b *bench, o *v1alpha1.StateBackup)
	}{
		"Unreadable": {
			"the API server does not answer",
			func(b *bench, _ *v1alpha1.StateBackup) {
				b.Reader = interceptor.NewClient(b.Client.(client.WithWatch), interceptor.Funcs{
					Get: func(context.Context, client.WithWatch, client.ObjectKey, client.Object, ...client.GetOption) error {
						return errors.New("no answer")
					},
				})
			},
			func(b *bench, _ *v1alpha1.StateBackup) { b.Reader = b.Client },
		},
		"Invalid": {
			"the spec was not right at once",
			func(_ *bench, o *v1alpha1.StateBackup) { o.Spec.Schedule = "sometimes" },
			func(_ *bench, o *v1alpha1.StateBackup) { o.Spec.Schedule = "" },
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, nil)
			o, _, err := b.reconcile()
			if err != nil {
				t.Fatal(err)
			}
			id, err := age.GenerateX25519Identity()
			if err != nil {
				t.Fatal(err)
			}
			change := func(f func(*bench, *v1alpha1.StateBackup)) {
				f(b, o)
				o.Generation++
				if err := b.Client.Update(t.Context(), o); err != nil {
					t.Fatal(err)
				}
			}
			o.Spec.Encryption.Recipients = []string{id.Recipient().String()}
			b.now = noon.Add(time.Minute)
			change(tt.fail)
			if o, _, _ = b.reconcile(); ready(o).Status == metav1.ConditionTrue {
				t.Fatalf("%s: %+v", tt.reason, ready(o))
			}
			tt.mend(b, o)
			if name == "Invalid" {
				change(tt.mend)
			}
			if o, _, err = b.reconcile(); err != nil || o.Status.LastVersion != "2-1" {
				t.Errorf("%s: %+v, %v", tt.reason, o.Status, err)
			}
		})
	}
}

func TestALostLeaseSavesNothing(t *testing.T) {
	b := newBench(t, nil)
	b.MayWrite = func() error { return errors.New("the lease is lost") }
	if o, _, err := b.reconcile(); err == nil || o.Status.LastVersion != "" {
		t.Errorf("%+v, %v", o.Status, err)
	}
}

func TestSuspended(t *testing.T) {
	b := newBench(t, func(o *v1alpha1.StateBackup) { o.Spec.Suspend = true })
	if o, result, err := b.reconcile(); err != nil || o.Status.LastVersion != "" || result.RequeueAfter != 0 {
		t.Errorf("%+v, %+v, %v", o.Status, result, err)
	}
}

// TestLeft: a StateBackup that other labels make another agent's is saved by that one alone.
func TestLeft(t *testing.T) {
	b := newBench(t, nil)
	if _, result, err := b.reconcile(); err != nil || result.RequeueAfter == 0 {
		t.Fatalf("%+v, %v", result, err)
	}
	b.Shard = func(client.Object) bool { return false }
	b.now = noon.Add(2 * time.Hour)
	if o, result, err := b.reconcile(); err != nil || result.RequeueAfter != 0 || !o.Status.LastAttempt.Time.Equal(noon) {
		t.Errorf("%+v, %+v, %v", o.Status, result, err)
	}
}
