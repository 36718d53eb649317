package remote

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/record"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/remote/account"
	"github.com/cascade-gitops/cascade/remote/epoch"
	"github.com/cascade-gitops/cascade/remote/link"
	records "github.com/cascade-gitops/cascade/remote/record"
	"github.com/cascade-gitops/cascade/syncer/clusters"
	"github.com/cascade-gitops/cascade/syncer/source"
)

// far is the API server of a child as far as the first contact needs one: it has the record of a
// layer, which another management cluster may have written.
type far struct {
	mu sync.Mutex
	// record is the ConfigMap; nil while it may not be listed.
	record *corev1.ConfigMap
	// epoch says who led the tier in the child, in whichever namespace its agent is, if there is one.
	epoch *corev1.ConfigMap
	// writes are methods and paths.
	writes []string
}

func (f *far) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	const configMaps = "/api/v1/namespaces/" + v1alpha1.AgentNamespace + "/configmaps"
	answer := func(o any) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(o)
	}
	refuse := func(code int32, reason metav1.StatusReason) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(int(code))
		_ = json.NewEncoder(w).Encode(metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: "Failure", Code: code, Reason: reason})
	}
	if r.Method != http.MethodGet {
		f.writes = append(f.writes, r.Method+" "+r.URL.Path)
	}
	switch path := r.URL.Path; {
	case path == "/readyz":
		_, _ = io.WriteString(w, "ok")
	case path == "/version":
		answer(map[string]string{"gitVersion": "v1.36.3"})
	case path == "/api/v1/namespaces/kube-system":
		answer(corev1.Namespace{TypeMeta: metav1.TypeMeta{Kind: "Namespace", APIVersion: "v1"}, ObjectMeta: metav1.ObjectMeta{Name: "kube-system", UID: "far"}})
	case path == "/api":
		answer(metav1.APIVersions{TypeMeta: metav1.TypeMeta{Kind: "APIVersions"}, Versions: []string{"v1"}})
	case path == "/apis":
		answer(metav1.APIGroupList{TypeMeta: metav1.TypeMeta{Kind: "APIGroupList", APIVersion: "v1"}})
	case path == "/api/v1":
		answer(metav1.APIResourceList{TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: "v1", APIResources: []metav1.APIResource{
			{Name: "configmaps", Kind: "ConfigMap", Namespaced: true, Verbs: metav1.Verbs{"list", "get", "update", "delete"}},
		}})
	case f.epoch != nil && path == "/api/v1/configmaps" && r.URL.Query().Get("fieldSelector") == "metadata.name="+v1alpha1.EpochConfigMap:
		answer(corev1.ConfigMapList{TypeMeta: metav1.TypeMeta{Kind: "ConfigMapList", APIVersion: "v1"}, Items: []corev1.ConfigMap{*f.epoch}})
	case path == configMaps && f.record == nil:
		refuse(http.StatusForbidden, metav1.StatusReasonForbidden)
	case path == configMaps, path == "/api/v1/configmaps" && f.record != nil:
		answer(corev1.ConfigMapList{TypeMeta: metav1.TypeMeta{Kind: "ConfigMapList", APIVersion: "v1"}, Items: []corev1.ConfigMap{*f.record}})
	case f.record != nil && path == "/api/v1/namespaces/"+f.record.Namespace+"/configmaps/"+f.record.Name && r.Method == http.MethodGet:
		answer(f.record)
	case f.record != nil && path == configMaps+"/"+f.record.Name && r.Method == http.MethodPut:
		body, err := io.ReadAll(r.Body)
		if err == nil {
			_, _, err = clientgoscheme.Codecs.UniversalDeserializer().Decode(body, nil, f.record)
		}
		if err != nil {
			refuse(http.StatusBadRequest, metav1.StatusReasonBadRequest)
			return
		}
		f.record.ResourceVersion += "1"
		answer(f.record)
	default:
		refuse(http.StatusNotFound, metav1.StatusReasonNotFound)
	}
}

// met is a tier and a child that it meets.
type met struct {
	*far
	children *Children
	client   client.Client
	key      types.NamespacedName
	woken    chan struct{}
}

func newMet(t *testing.T) *met {
	t.Helper()
	m := &met{far: &far{}, woken: make(chan struct{}, 10)}
	server := httptest.NewServer(m.far)
	t.Cleanup(server.Close)
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{v1alpha1.AddToScheme, clientgoscheme.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	child := childNamed("alpha", nil)
	child.Labels = map[string]string{"site": "here"}
	child.Spec.InCluster = true
	layer := &v1alpha1.Layer{ObjectMeta: metav1.ObjectMeta{Namespace: child.Namespace, Name: "app", UID: "layer"}}
	layer.Spec.ClusterSelector.MatchLabels = child.Labels
	layer.Spec.Interval.Duration, layer.Spec.Timeout.Duration = time.Minute, time.Minute
	m.client = fake.NewClientBuilder().WithScheme(scheme).WithObjects(&child, layer).WithStatusSubresource(&child).
		WithIndex(&v1alpha1.Child{}, identityIndex, func(o client.Object) []string {
			if id := o.(*v1alpha1.Child).Status.Identity; id != nil {
				return []string{id.KubeSystemUID}
			}
			return nil
		}).Build()
	m.key = client.ObjectKeyFromObject(&child)
	random := func() float64 { return 0 }
	pool := link.NewPool(t.Context(), scheme, time.Now, random)
	pool.OnProbe(func(types.NamespacedName, link.Turn) { m.woken <- struct{}{} })
	m.children = &Children{
		Client: m.client, Clusters: &clusters.Watch{}, Events: record.NewFakeRecorder(100), Snapshots: source.NewSnapshots(), Connections: pool,
		Metrics: NewMetrics(prometheus.NewRegistry()), ObserveInterval: time.Minute, Now: time.Now, Rand: random, own: "near",
		Tier: epoch.NewTier(m.client, v1alpha1.AgentNamespace, "here"), Accounts: &account.Accounts{},
		InCluster: func() (*rest.Config, error) { return &rest.Config{Host: server.URL}, nil },
	}
	return m
}

// contact has the child probed, and reconciles it with what was found.
func (m *met) contact(t *testing.T) *v1alpha1.Child {
	t.Helper()
	reconcile := func() {
		_, err := m.children.Reconcile(t.Context(), ctrl.Request{NamespacedName: m.key})
		t.Logf("reconciled: %v", err)
	}
	reconcile()
	select {
	case <-m.woken:
	case <-time.After(time.Minute):
		t.Fatal("the probe does not end")
	}
	reconcile()
	child := &v1alpha1.Child{}
	if err := m.client.Get(t.Context(), m.key, child); err != nil {
		t.Fatal(err)
	}
	return child
}

// keeps puts the record of a layer into the child, as who has that mark wrote it.
func (m *met) keeps(t *testing.T, layer string, mark epoch.Mark) {
	t.Helper()
	theirs := &records.Record{Layer: types.NamespacedName{Namespace: m.key.Namespace, Name: layer}, Parent: mark}
	there := fake.NewClientBuilder().WithScheme(clientgoscheme.Scheme).Build()
	if err := theirs.Put(t.Context(), there); err != nil {
		t.Fatal(err)
	}
	cm := &corev1.ConfigMap{}
	if err := there.Get(t.Context(), types.NamespacedName{Namespace: v1alpha1.AgentNamespace, Name: records.Name(theirs.Layer)}, cm); err != nil {
		t.Fatal(err)
	}
	cm.TypeMeta = metav1.TypeMeta{Kind: "ConfigMap", APIVersion: "v1"}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.far.record != nil {
		cm.ResourceVersion = m.far.record.ResourceVersion + "1"
	}
	m.far.record, m.writes = cm, nil
}

// TestFirstContactFails: a cluster that answers, and does not show what it has, is told of by the
// Child, and is not kept from another Child whose cluster it is.
func TestFirstContactFails(t *testing.T) {
	m := newMet(t)
	child := m.contact(t)
	connected := meta.FindStatusCondition(child.Status.Conditions, v1alpha1.ConnectedCondition)
	if connected == nil || connected.Status != metav1.ConditionFalse || !strings.Contains(connected.Message, "cannot tell which cluster it is") {
		t.Errorf("Connected is %+v", connected)
	}
	if by, ok := m.children.reserve("far", types.NamespacedName{Namespace: "fleet", Name: "beta"}); !ok {
		t.Errorf("the cluster stays with %s", by)
	}
}

// TestTakeOverWaits: the records of another management cluster are not marked while the child is
// not to be written to. It may be on its way here, and turn back.
func TestTakeOverWaits(t *testing.T) {
	m := newMet(t)
	theirs := &records.Record{Layer: types.NamespacedName{Namespace: "fleet", Name: "app"}, Parent: epoch.Mark{Epoch: 7, Holder: "there"}}
	there := fake.NewClientBuilder().WithScheme(clientgoscheme.Scheme).Build()
	if err := theirs.Put(t.Context(), there); err != nil {
		t.Fatal(err)
	}
	m.far.record = &corev1.ConfigMap{}
	if err := there.Get(t.Context(), types.NamespacedName{Namespace: v1alpha1.AgentNamespace, Name: records.Name(theirs.Layer)}, m.far.record); err != nil {
		t.Fatal(err)
	}
	child := &v1alpha1.Child{}
	suspend := func(suspended bool) {
		t.Helper()
		if err := m.client.Get(t.Context(), m.key, child); err != nil {
			t.Fatal(err)
		}
		child.Spec.Suspend = suspended
		if err := m.client.Update(t.Context(), child); err != nil {
			t.Fatal(err)
		}
	}
	suspend(true)
	child = m.contact(t)
	if id := child.Status.Identity; id == nil || !id.TakingOver {
		t.Fatalf("the identity is %+v", id)
	}
	if len(m.writes) > 0 || !strings.Contains(m.far.record.Data["record.json"], `"there"`) {
		t.Errorf("written: %v", m.writes)
	}
	suspend(false)
	child = m.contact(t)
	if child.Status.Identity.TakingOver || len(m.writes) == 0 {
		t.Errorf("nothing is taken over once it may be: %+v", child.Status)
	}
}

// TestTakeOverBelow: a management cluster that meets a child, in which a tier runs that applies layers to its own cluster,
// takes over what another one above recorded there, and not the records of that tier (read 641).
func TestTakeOverBelow(t *testing.T) {
	for name, tc := range map[string]struct {
		reason        string
		agent         string
		layer, holder string
		taken         bool
	}{
		"Below":          {"it is the child's own layer", v1alpha1.AgentNamespace, "own", "below", false},
		"ElsewhereBelow": {"it is, and the agent is in another namespace (read 736)", "ops", "own", "below", false},
		"Above":          {"the one before this tier recorded it", v1alpha1.AgentNamespace, "own", "there", true},
		"ElsewhereAbove": {"it did, and the agent is in another namespace", "ops", "own", "there", true},
		"Same":           {"the layer has the name of one here, which goes to the child", v1alpha1.AgentNamespace, "app", "below", true},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMet(t)
			m.keeps(t, tc.layer, epoch.Mark{Epoch: 7, Holder: tc.holder})
			m.far.epoch = &corev1.ConfigMap{TypeMeta: m.far.record.TypeMeta, ObjectMeta: metav1.ObjectMeta{Namespace: tc.agent, Name: v1alpha1.EpochConfigMap}}
			if err := epoch.Write(m.far.epoch, []epoch.Mark{{Epoch: 8, Holder: "later"}, {Epoch: 7, Holder: "below"}}); err != nil {
				t.Fatal(err)
			}
			child := m.contact(t)
			if child.Status.Identity == nil || child.Status.Identity.TakingOver || child.Status.SupersededBy != nil {
				t.Fatalf("%s: it is not met: %+v", tc.reason, child.Status)
			}
			if says := m.far.record.Data["record.json"]; strings.Contains(says, `"`+tc.holder+`"`) == tc.taken {
				t.Errorf("%s: the record is %s, want it to be taken over: %t", tc.reason, says, tc.taken)
			}
		})
	}
}

// TestSupersededNewLayer: a child that another management cluster took over gets no layer either of which
// it has no record. By its record that one would find itself superseded.
func TestSupersededNewLayer(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		// holder of the record of the layer that this tier pushed before.
		holder string
		// told: the Child says who has it. unpushed: it does not have the other layer of this tier.
		told, unpushed bool
		own            string
		superseded     bool
	}{
		"Told":       {"it is known that another one has the child", "there", true, false, "near", true},
		"Untold":     {"nobody has looked at the other record since", "there", false, false, "near", true},
		"Ours":       {"the child is this tier's", "here", false, false, "near", false},
		"Returned":   {"the child is this tier's again", "here", true, false, "near", false},
		"Below":      {"the child is a management cluster, and has a layer of its own", "there", false, true, "near", false},
		"OwnCluster": {"the tier above has a layer of that name in this tier's own cluster", "there", false, false, "far", false},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMet(t)
			m.children.own = tc.own
			m.keeps(t, "other", epoch.Mark{Epoch: 7, Holder: tc.holder})
			child := &v1alpha1.Child{}
			if err := m.client.Get(t.Context(), m.key, child); err != nil {
				t.Fatal(err)
			}
			other := layerOn("other")
			other.Namespace, other.Spec.ClusterSelector.MatchLabels = m.key.Namespace, child.Labels
			other.Spec.Suspend = true // so that nobody looks at its record
			if err := m.client.Create(t.Context(), other); err != nil {
				t.Fatal(err)
			}
			child.Status.Identity = &v1alpha1.ChildIdentity{KubeSystemUID: "far"}
			if !tc.unpushed {
				child.Status.Layers = []v1alpha1.ChildLayer{{Name: "other", Ready: true, Reason: v1alpha1.ReasonSucceeded, Digest: "sha256:a", LastAttemptedDigest: "sha256:a", Objects: 1}}
			}
			if tc.told {
				child.Status.SupersededBy = &v1alpha1.Epoch{Number: 7, Holder: "there"}
			}
			if err := m.client.Status().Update(t.Context(), child); err != nil {
				t.Fatal(err)
			}
			child = m.contact(t)
			entry, by := entryOf(child, "app"), child.Status.SupersededBy
			if entry == nil || (entry.Reason == v1alpha1.ReasonSuperseded) != tc.superseded {
				t.Fatalf("%s: the layer is %+v", tc.reason, entry)
			}
			// A request for a token creates nothing that is kept.
			m.writes = slices.DeleteFunc(m.writes, func(write string) bool { return strings.HasSuffix(write, "/token") })
			if tc.superseded && (len(m.writes) > 0 || by == nil || by.Number != 7 || by.Holder != "there") {
				t.Errorf("%s: written %v, superseded by %v", tc.reason, m.writes, by)
			}
		})
	}
}

// TestApprovalIsUsedUp: a child that was taken over by a person's word is not taken over once more
// from the process that took it back since.
func TestApprovalIsUsedUp(t *testing.T) {
	for name, approval := range map[string]string{"Number": "7/there", "HolderAlone": "there"} {
		t.Run(name, func(t *testing.T) {
			m := newMet(t)
			m.keeps(t, "app", epoch.Mark{Epoch: 7, Holder: "there"})
			child := &v1alpha1.Child{}
			if err := m.client.Get(t.Context(), m.key, child); err != nil {
				t.Fatal(err)
			}
			child.Annotations = map[string]string{v1alpha1.ApproveTakeOverAnnotation: approval}
			if err := m.client.Update(t.Context(), child); err != nil {
				t.Fatal(err)
			}
			child.Status.Identity = &v1alpha1.ChildIdentity{KubeSystemUID: "far"}
			child.Status.SupersededBy = &v1alpha1.Epoch{Number: 7, Holder: "there"}
			if err := m.client.Status().Update(t.Context(), child); err != nil {
				t.Fatal(err)
			}
			if child = m.contact(t); child.Status.SupersededBy != nil || len(m.writes) == 0 {
				t.Fatalf("it is not taken over: written %v, superseded by %v", m.writes, child.Status.SupersededBy)
			}
			m.keeps(t, "app", epoch.Mark{Epoch: 9, Holder: "there"})
			child.Status.SupersededBy = &v1alpha1.Epoch{Number: 9, Holder: "there"} // as the next comparison finds
			if err := m.client.Status().Update(t.Context(), child); err != nil {
				t.Fatal(err)
			}
			m.children.forget(m.key)
			child = m.contact(t)
			taken := slices.ContainsFunc(m.writes, func(write string) bool { return strings.HasPrefix(write, "PUT ") })
			if by := child.Status.SupersededBy; taken || by == nil || by.Number != 9 {
				t.Errorf("it was taken over once more: written %v, superseded by %v", m.writes, by)
			}
			p := &push{run: &run{child: child}}
			if p.takesOver(epoch.Mark{Epoch: 9, Holder: "there"}) {
				t.Error("the record of a layer may be taken over once more")
			}
		})
	}
}

// TestLastingApproval: an approval without a number, which counts for whatever its process leaves, is taken off by the
// take-over that it allows, whether the Child said before who has it, and also if that fails at first.
func TestLastingApproval(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		told   bool
		// fails: the first patch that takes it off is refused.
		fails bool
		// written: the first contact marks records.
		written bool
	}{
		"LeftBehind": {"an earlier version left it there, and the record is what tells", false, false, false},
		"Conflict":   {"somebody changed the Child meanwhile", true, true, true},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMet(t)
			m.keeps(t, "app", epoch.Mark{Epoch: 9, Holder: "there"})
			child := &v1alpha1.Child{}
			if err := m.client.Get(t.Context(), m.key, child); err != nil {
				t.Fatal(err)
			}
			child.Annotations = map[string]string{v1alpha1.ApproveTakeOverAnnotation: "there"}
			if err := m.client.Update(t.Context(), child); err != nil {
				t.Fatal(err)
			}
			child.Status.Identity = &v1alpha1.ChildIdentity{KubeSystemUID: "far"}
			if tc.told {
				child.Status.SupersededBy = &v1alpha1.Epoch{Number: 9, Holder: "there"}
			}
			if err := m.client.Status().Update(t.Context(), child); err != nil {
				t.Fatal(err)
			}
			fails := tc.fails
			m.children.Client = interceptor.NewClient(m.client.(client.WithWatch), interceptor.Funcs{
				Patch: func(ctx context.Context, c client.WithWatch, o client.Object, patch client.Patch, opts ...client.PatchOption) error {
					if fails && o.GetAnnotations()[v1alpha1.ApproveTakeOverAnnotation] == "" {
						fails = false
						return apierrors.NewConflict(schema.GroupResource{Resource: "children"}, o.GetName(), errors.New("it was changed"))
					}
					return c.Patch(ctx, o, patch, opts...)
				},
			})
			marks := func() bool {
				return slices.ContainsFunc(m.writes, func(write string) bool { return strings.HasPrefix(write, "PUT ") })
			}
			child = m.contact(t)
			if by := child.Status.SupersededBy; marks() != tc.written || by == nil || by.Number != 9 {
				t.Fatalf("%s: at first, written %v, superseded by %v", tc.reason, m.writes, by)
			}
			m.children.forget(m.key)
			child = m.contact(t)
			if approval := child.Annotations[v1alpha1.ApproveTakeOverAnnotation]; !marks() || approval != "" || child.Status.SupersededBy != nil {
				t.Fatalf("%s: it is not taken over: written %v, approved %q, superseded by %v", tc.reason, m.writes, approval, child.Status.SupersededBy)
			}
			m.keeps(t, "app", epoch.Mark{Epoch: 11, Holder: "there"})
			m.children.forget(m.key)
			child = m.contact(t)
			if by := child.Status.SupersededBy; marks() || by == nil || by.Number != 11 {
				t.Errorf("%s: it was taken over once more: written %v, superseded by %v", tc.reason, m.writes, by)
			}
		})
	}
}

// TestMeetOwnCluster: in a tier's own cluster, the records of another tier are those of the tier above,
// which has its layers there by right. They stay, and are no proof that the cluster is another's.
func TestMeetOwnCluster(t *testing.T) {
	above := records.Cluster{Namespace: "fleet", Name: "master-1", UID: "there"}
	for name, tc := range map[string]struct {
		reason   string
		layer    string
		cluster  records.Cluster
		seededAs string
		// says is what the layer of this tier says.
		says string
	}{
		"Layers": {"the tier above has another name for it, and other layers", "base", above, "", ""},
		"Moved":  {"it was moved here under the name that it had", "base", records.Cluster{Namespace: "fleet", Name: "alpha", UID: "there"}, "there", ""},
		"Same":   {"both have a layer of one name, which is the tier's above", "app", above, "", "rename"},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMet(t)
			m.children.own = "far"
			theirs := &records.Record{Layer: types.NamespacedName{Namespace: "fleet", Name: tc.layer}, Parent: epoch.Mark{Epoch: 7, Holder: "above"}, Cluster: tc.cluster}
			there := fake.NewClientBuilder().WithScheme(clientgoscheme.Scheme).Build()
			if err := theirs.Put(t.Context(), there); err != nil {
				t.Fatal(err)
			}
			m.far.record = &corev1.ConfigMap{}
			if err := there.Get(t.Context(), types.NamespacedName{Namespace: v1alpha1.AgentNamespace, Name: records.Name(theirs.Layer)}, m.far.record); err != nil {
				t.Fatal(err)
			}
			m.far.record.TypeMeta = metav1.TypeMeta{Kind: "ConfigMap", APIVersion: "v1"}
			child := m.contact(t)
			if c := meta.FindStatusCondition(child.Status.Conditions, v1alpha1.ConnectedCondition); c == nil || c.Status != metav1.ConditionTrue {
				t.Errorf("%s: Connected is %+v", tc.reason, c)
			}
			if id := child.Status.Identity; id == nil || id.TakingOver || id.SeededAs != tc.seededAs {
				t.Errorf("%s: the identity is %+v", tc.reason, id)
			}
			if !strings.Contains(m.far.record.Data["record.json"], `"above"`) {
				t.Errorf("%s: the record is %s", tc.reason, m.far.record.Data["record.json"])
			}
			entry := entryOf(child, "app")
			if superseded := entry != nil && entry.Reason == v1alpha1.ReasonSuperseded; superseded != (tc.says != "") || superseded && !strings.Contains(entry.Message, tc.says) {
				t.Errorf("%s: the layer is %+v", tc.reason, entry)
			}
		})
	}
}
