package management

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
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

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/pivot"
	"github.com/cascade-gitops/cascade/syncer/clusters"
)

// TestBeforeAnythingBegins: what keeps a pivot from going through is told before a journal is
// written, and not as a Cluster that is left half way.
func TestBeforeAnythingBegins(t *testing.T) {
	refuses := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusUnauthorized)
		_, _ = w.Write([]byte(`{"apiVersion": "v1", "kind": "Status", "status": "Failure", "message": "Unauthorized", "reason": "Unauthorized", "code": 401}`))
	}))
	t.Cleanup(refuses.Close)
	for name, tt := range map[string]struct {
		reason string
		// allows answers whether the agent may.
		allows  func(*authorizationv1.ResourceAttributes) (bool, error)
		objects []client.Object
		says    string
		words   string
		// unrecorded: the tier has no record of its Clusters.
		unrecorded bool
	}{
		"Lockdown": {"an agent with its own rights only", func(*authorizationv1.ResourceAttributes) (bool, error) { return false, nil }, nil, v1alpha1.ReasonPivotBlocked, "use cascade pivot", false},
		"Half": {"one that may write Secrets, as Credentials need it, and no Clusters", func(a *authorizationv1.ResourceAttributes) (bool, error) {
			return a.Resource == "secrets", nil
		}, nil, v1alpha1.ReasonPivotBlocked, "may not create clusters in namespace fleet", false},
		"Unknown": {"it is not taken for a yes", func(*authorizationv1.ResourceAttributes) (bool, error) { return false, errors.New("no answer") }, nil, v1alpha1.ReasonPivotFailed, "no answer", false},
		"Newer": {"a later version's journal may be about the Cluster", func(*authorizationv1.ResourceAttributes) (bool, error) { return true, nil }, []client.Object{
			&corev1.ConfigMap{
				ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.AgentNamespace, Name: "cascade-pivot.source.x", Labels: map[string]string{v1alpha1.PivotLabel: "source"}},
				Data:       map[string]string{"journal.json": `{"format":99}`},
			},
		}, v1alpha1.ReasonPivotFailed, "newer version", false},
		"Lapsed": {"nobody renews a kubeconfig while its Cluster is paused", func(*authorizationv1.ResourceAttributes) (bool, error) { return true, nil }, []client.Object{
			kubeconfigOf(refuses, "master"),
		}, v1alpha1.ReasonPivotFailed, "Secret fleet/master-kubeconfig, or use cascade pivot", false},
		"Allowed": {"the kubeconfig is what is missing then", func(*authorizationv1.ResourceAttributes) (bool, error) { return true, nil }, nil, v1alpha1.ReasonPivotFailed, "cannot read the kubeconfig", false},
		"Unrecorded": {"its Child would go with the Cluster, as nothing says where that is", func(*authorizationv1.ResourceAttributes) (bool, error) { return true, nil }, []client.Object{
			kubeconfigOf(refuses, "master"),
		}, v1alpha1.ReasonPivotBlocked, "no record of its Clusters", true},
	} {
		t.Run(name, func(t *testing.T) {
			s := runtime.NewScheme()
			for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1alpha1.AddToScheme} {
				if err := add(s); err != nil {
					t.Fatal(err)
				}
			}
			child := &v1alpha1.Child{
				ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "master", Labels: map[string]string{"tier": "master"}},
				Spec:       v1alpha1.ChildSpec{ClusterRef: &v1alpha1.LocalReference{Name: "master"}},
				Status: v1alpha1.ChildStatus{
					Identity:   &v1alpha1.ChildIdentity{KubeSystemUID: "there"},
					Conditions: []metav1.Condition{{Type: v1alpha1.ConnectedCondition, Status: metav1.ConditionTrue}, {Type: v1alpha1.SeededCondition, Status: metav1.ConditionTrue}},
				},
			}
			layer := &v1alpha1.Layer{
				ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "masters"},
				Spec:       v1alpha1.LayerSpec{ClusterSelector: metav1.LabelSelector{MatchLabels: child.Labels}, Management: v1alpha1.ManagementSelf},
			}
			if !tt.unrecorded {
				tt.objects = append(tt.objects, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.AgentNamespace, Name: v1alpha1.FirstSyncConfigMap}})
			}
			var wrote []string
			c := fake.NewClientBuilder().WithScheme(s).WithObjects(append(tt.objects, child, layer)...).WithStatusSubresource(child).WithInterceptorFuncs(interceptor.Funcs{
				Create: func(_ context.Context, _ client.WithWatch, o client.Object, _ ...client.CreateOption) error {
					review, ok := o.(*authorizationv1.SelfSubjectAccessReview)
					if !ok {
						wrote = append(wrote, o.GetName())
						return nil
					}
					var err error
					review.Status.Allowed, err = tt.allows(review.Spec.ResourceAttributes)
					return err
				},
				Update: func(_ context.Context, _ client.WithWatch, o client.Object, _ ...client.UpdateOption) error {
					wrote = append(wrote, o.GetName())
					return nil
				},
			}).Build()
			r := &Reconciler{
				Client: c, Side: pivot.Side{Name: "this tier", Client: c, Namespace: v1alpha1.AgentNamespace}, Events: record.NewFakeRecorder(10), Now: time.Now,
				Elsewhere: func(context.Context, types.NamespacedName) (bool, error) { return false, nil },
			}
			result, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKeyFromObject(child)})
			if err != nil || result.RequeueAfter == 0 || result.RequeueAfter > time.Minute {
				t.Errorf("%s: looked at again after %s, %v", tt.reason, result.RequeueAfter, err)
			}
			is := &v1alpha1.Child{}
			if err := c.Get(t.Context(), client.ObjectKeyFromObject(child), is); err != nil {
				t.Fatal(err)
			}
			condition := meta.FindStatusCondition(is.Status.Conditions, v1alpha1.ManagementCondition)
			if condition == nil || condition.Status != metav1.ConditionFalse || condition.Reason != tt.says || !strings.Contains(condition.Message, tt.words) {
				t.Errorf("%s: it says %+v", tt.reason, condition)
			}
			if len(wrote) > 0 {
				t.Errorf("%s: written were %v", tt.reason, wrote)
			}
		})
	}
}

// TestMovingTo: only a pivot that this tier began to bring the Cluster back is brought to its end
// where it is not declared. What the condition still says of the way there is no reason to ask the
// child for a journal, which it may have made up.
func TestMovingTo(t *testing.T) {
	const self, parent = v1alpha1.ManagementSelf, v1alpha1.ManagementParent
	for name, tt := range map[string]struct {
		reason   string
		is, want v1alpha1.Management
		says     string
	}{
		"There":   {"it came there, and the status was not written", self, "", v1alpha1.ReasonManagedElsewhere},
		"Earlier": {"an earlier version, which did not say where to, began to bring it back", "", parent, v1alpha1.ReasonPivotFailed},
		"Back":    {"it was on its way back", parent, parent, v1alpha1.ReasonPivotFailed},
	} {
		t.Run(name, func(t *testing.T) {
			s := runtime.NewScheme()
			for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1alpha1.AddToScheme} {
				if err := add(s); err != nil {
					t.Fatal(err)
				}
			}
			child := &v1alpha1.Child{
				ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "master", Labels: map[string]string{"tier": "master"}},
				Spec:       v1alpha1.ChildSpec{ClusterRef: &v1alpha1.LocalReference{Name: "master"}},
				Status: v1alpha1.ChildStatus{
					Identity: &v1alpha1.ChildIdentity{KubeSystemUID: "there"}, MovingTo: tt.is,
					Conditions: []metav1.Condition{{Type: v1alpha1.ManagementCondition, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonPivotRunning}},
				},
			}
			layer := &v1alpha1.Layer{
				ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "masters"},
				Spec:       v1alpha1.LayerSpec{ClusterSelector: metav1.LabelSelector{MatchLabels: child.Labels}, Management: self},
			}
			c := fake.NewClientBuilder().WithScheme(s).WithObjects(child, layer).WithStatusSubresource(child).WithInterceptorFuncs(interceptor.Funcs{
				Create: func(_ context.Context, _ client.WithWatch, o client.Object, _ ...client.CreateOption) error {
					if review, ok := o.(*authorizationv1.SelfSubjectAccessReview); ok {
						review.Status.Allowed = true
					}
					return nil
				},
			}).Build()
			r := &Reconciler{
				Client: c, Side: pivot.Side{Name: "this tier", Client: c, Namespace: v1alpha1.AgentNamespace}, Events: record.NewFakeRecorder(10), Now: time.Now,
				Elsewhere: func(context.Context, types.NamespacedName) (bool, error) { return true, nil },
			}
			if _, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKeyFromObject(child)}); err != nil {
				t.Fatal(err)
			}
			is := &v1alpha1.Child{}
			if err := c.Get(t.Context(), client.ObjectKeyFromObject(child), is); err != nil {
				t.Fatal(err)
			}
			condition := meta.FindStatusCondition(is.Status.Conditions, v1alpha1.ManagementCondition)
			if condition == nil || condition.Reason != tt.says || is.Status.MovingTo != tt.want {
				t.Errorf("%s: it says %+v, moving to %q", tt.reason, condition, is.Status.MovingTo)
			}
		})
	}
}

// TestSuspendedChild: a Cluster is paused while it is on its way, and a Child that is suspended does not keep it so. It keeps
// one from being moved that is not.
func TestSuspendedChild(t *testing.T) {
	for name, tt := range map[string]struct {
		reason string
		// step of the journal, none if it is empty. is, and says then, the condition of a Cluster that is on its way to, or is not.
		step     string
		to, want v1alpha1.Management
		is, says string
		again    time.Duration
		asked    bool
	}{
		"Copy":    {"it goes on, for which it needs a kubeconfig", "copy", v1alpha1.ManagementSelf, v1alpha1.ManagementSelf, v1alpha1.ReasonPivotRunning, v1alpha1.ReasonPivotFailed, retryPause, true},
		"Ended":   {"it is not on its way any more", "aborted", v1alpha1.ManagementSelf, "", v1alpha1.ReasonPivotRunning, "", 0, true},
		"Waits":   {"nothing was begun, and nothing is", "", "", "", v1alpha1.ReasonPivotWaiting, v1alpha1.ReasonPivotWaiting, 0, true},
		"Nothing": {"nothing was ever said of it", "", "", "", "", "", 0, false},
		"Unread":  {"the journals cannot be read for a moment", "", "", "", v1alpha1.ReasonManagedHere, v1alpha1.ReasonManagedHere, 0, true},
	} {
		t.Run(name, func(t *testing.T) {
			s := runtime.NewScheme()
			for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1alpha1.AddToScheme} {
				if err := add(s); err != nil {
					t.Fatal(err)
				}
			}
			child := &v1alpha1.Child{
				ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "master", Labels: map[string]string{"tier": "master"}},
				Spec:       v1alpha1.ChildSpec{ClusterRef: &v1alpha1.LocalReference{Name: "master"}, Suspend: true},
				Status: v1alpha1.ChildStatus{
					Identity: &v1alpha1.ChildIdentity{KubeSystemUID: "there"}, MovingTo: tt.to,
					Conditions: []metav1.Condition{{Type: v1alpha1.ConnectedCondition, Status: metav1.ConditionTrue}, {Type: v1alpha1.SeededCondition, Status: metav1.ConditionTrue}},
				},
			}
			if tt.is != "" {
				child.Status.Conditions = append(child.Status.Conditions, metav1.Condition{Type: v1alpha1.ManagementCondition, Status: metav1.ConditionFalse, Reason: tt.is})
				if tt.is == v1alpha1.ReasonManagedHere {
					meta.FindStatusCondition(child.Status.Conditions, v1alpha1.ManagementCondition).Status = metav1.ConditionTrue
				}
			}
			layer := &v1alpha1.Layer{
				ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "masters"},
				Spec:       v1alpha1.LayerSpec{ClusterSelector: metav1.LabelSelector{MatchLabels: child.Labels}, Management: v1alpha1.ManagementSelf},
			}
			objects := []client.Object{child, layer}
			if tt.step != "" {
				objects = append(objects, &corev1.ConfigMap{
					ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.AgentNamespace, Name: "cascade-pivot.source.x", Labels: map[string]string{v1alpha1.PivotLabel: "source"}},
					Data:       map[string]string{"journal.json": fmt.Sprintf(`{"format":1,"id":"x-1","step":%q,"to":{"uid":"there"},"clusters":[{"namespace":"fleet","name":"master"}]}`, tt.step)},
				})
			}
			unread := name == "Unread"
			c := fake.NewClientBuilder().WithScheme(s).WithObjects(objects...).WithStatusSubresource(child).WithInterceptorFuncs(interceptor.Funcs{
				List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
					if _, ok := list.(*corev1.ConfigMapList); ok && unread {
						return errors.New("it is not answered")
					}
					return c.List(ctx, list, opts...)
				},
			}).Build()
			asked := false
			r := &Reconciler{
				Client: c, Side: pivot.Side{Name: "this tier", Client: c, Namespace: v1alpha1.AgentNamespace}, Events: record.NewFakeRecorder(10), Now: time.Now,
				Elsewhere: func(context.Context, types.NamespacedName) (bool, error) { asked = true; return false, nil },
			}
			if unread {
				if result, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKeyFromObject(child)}); err != nil || result.RequeueAfter != retryPause {
					t.Errorf("%s: looked at again after %s, %v", tt.reason, result.RequeueAfter, err)
				}
				unread = false
			}
			result, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKeyFromObject(child)})
			if err != nil || result.RequeueAfter != tt.again || asked != tt.asked {
				t.Errorf("%s: looked at again after %s, asked: %t, %v", tt.reason, result.RequeueAfter, asked, err)
			}
			is, says := &v1alpha1.Child{}, ""
			if err := c.Get(t.Context(), client.ObjectKeyFromObject(child), is); err != nil {
				t.Fatal(err)
			}
			if condition := meta.FindStatusCondition(is.Status.Conditions, v1alpha1.ManagementCondition); condition != nil {
				says = condition.Reason
			}
			if says != tt.says || is.Status.MovingTo != tt.want {
				t.Errorf("%s: it says %q, want %q; moving to %q", tt.reason, says, tt.says, is.Status.MovingTo)
			}
		})
	}
}

// TestTurnedBack: a person takes the declaration back, and turns back what is under way. What this
// process remembers of it begins no other pivot.
func TestTurnedBack(t *testing.T) {
	s := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(s); err != nil {
			t.Fatal(err)
		}
	}
	child := &v1alpha1.Child{
		ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "master"}, Spec: v1alpha1.ChildSpec{ClusterRef: &v1alpha1.LocalReference{Name: "master"}},
		Status: v1alpha1.ChildStatus{
			Identity: &v1alpha1.ChildIdentity{KubeSystemUID: "there"}, MovingTo: v1alpha1.ManagementSelf,
			Conditions: []metav1.Condition{{Type: v1alpha1.ManagementCondition, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonPivotFailed}},
		},
	}
	journal := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.AgentNamespace, Name: "cascade-pivot.source.x", Labels: map[string]string{v1alpha1.PivotLabel: "source"}},
		Data:       map[string]string{"journal.json": `{"format":1,"id":"x-1","step":"aborted","to":{"uid":"there"},"clusters":[{"namespace":"fleet","name":"master"}]}`},
	}
	c := fake.NewClientBuilder().WithScheme(s).WithObjects(child, journal).WithStatusSubresource(child).Build()
	key := client.ObjectKeyFromObject(child)
	r := &Reconciler{
		Client: c, Side: pivot.Side{Name: "this tier", Client: c, Namespace: v1alpha1.AgentNamespace}, Events: record.NewFakeRecorder(10), Now: time.Now,
		Elsewhere: func(context.Context, types.NamespacedName) (bool, error) { return false, nil },
		running:   map[types.NamespacedName]*running{key: {to: v1alpha1.ManagementSelf}},
	}
	if _, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: key}); err != nil {
		t.Fatal(err)
	}
	is := &v1alpha1.Child{}
	if err := c.Get(t.Context(), key, is); err != nil {
		t.Fatal(err)
	}
	if said := meta.FindStatusCondition(is.Status.Conditions, v1alpha1.ManagementCondition); said != nil || is.Status.MovingTo != "" || len(r.running) > 0 {
		t.Errorf("it goes on: %+v, moving to %q, %v", said, is.Status.MovingTo, r.running)
	}
}

// TestForgotten: a Cluster that is on its way back is brought to its end, though nothing is declared any more, and
// the condition, or what it was known by, was lost when its copy came.
func TestForgotten(t *testing.T) {
	const parent = v1alpha1.ManagementParent
	for name, tt := range map[string]struct {
		reason  string
		moving  v1alpha1.Management
		running map[types.NamespacedName]*running
		unmet   bool
		step    string
		// want is what is under way, stays what the Child says of it then, and again when it is looked at.
		want, stays v1alpha1.Management
		again       time.Duration
	}{
		"Drives":  {"this process drives it", "", map[types.NamespacedName]*running{{Namespace: "fleet", Name: "master"}: {to: parent}}, false, "", parent, parent, retryPause},
		"Journal": {"the journal is here, and the Child says where to", parent, nil, false, "copy", parent, parent, retryPause},
		"Unmet":   {"nobody knows yet whose cluster it is: it is not forgotten for that", parent, nil, true, "copy", "", parent, retryPause},
		"Over":    {"nothing is under way any more", parent, nil, false, "", "", "", 0},
		"Nothing": {"nothing was", "", nil, false, "", "", "", 0},
	} {
		t.Run(name, func(t *testing.T) {
			s := runtime.NewScheme()
			for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1alpha1.AddToScheme} {
				if err := add(s); err != nil {
					t.Fatal(err)
				}
			}
			child := &v1alpha1.Child{
				ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "master"}, Spec: v1alpha1.ChildSpec{ClusterRef: &v1alpha1.LocalReference{Name: "master"}},
				Status: v1alpha1.ChildStatus{MovingTo: tt.moving},
			}
			if !tt.unmet {
				child.Status.Identity = &v1alpha1.ChildIdentity{KubeSystemUID: "there"}
			}
			objects := []client.Object{child}
			if tt.step != "" {
				objects = append(objects, &corev1.ConfigMap{
					ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.AgentNamespace, Name: "cascade-pivot.target.x", Labels: map[string]string{v1alpha1.PivotLabel: "target"}},
					Data:       map[string]string{"journal.json": fmt.Sprintf(`{"format":1,"id":"x-1","step":%q,"from":{"uid":"there"},"clusters":[{"namespace":"fleet","name":"master"}]}`, tt.step)},
				})
			}
			c := fake.NewClientBuilder().WithScheme(s).WithObjects(objects...).WithStatusSubresource(child).Build()
			key := client.ObjectKeyFromObject(child)
			r := &Reconciler{
				Client: c, Side: pivot.Side{Name: "this tier", Client: c, Namespace: v1alpha1.AgentNamespace}, Events: record.NewFakeRecorder(10), Now: time.Now,
				Elsewhere: func(context.Context, types.NamespacedName) (bool, error) { return false, nil }, running: tt.running,
			}
			f, err := r.facts(t.Context(), child)
			if err != nil || f.Running != tt.want {
				t.Errorf("%s: under way is %q, want %q, %v", tt.reason, f.Running, tt.want, err)
			}
			result, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: key})
			if err != nil || result.RequeueAfter != tt.again {
				t.Errorf("%s: looked at again after %s, %v", tt.reason, result.RequeueAfter, err)
			}
			is := &v1alpha1.Child{}
			if err := c.Get(t.Context(), key, is); err != nil {
				t.Fatal(err)
			}
			if is.Status.MovingTo != tt.stays {
				t.Errorf("%s: moving to %q, want %q", tt.reason, is.Status.MovingTo, tt.stays)
			}
		})
	}
}

// kubeconfigOf is the Secret with which this tier reaches a child of a name.
func kubeconfigOf(api *httptest.Server, name string) *corev1.Secret {
	ca := base64.StdEncoding.EncodeToString(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: api.Certificate().Raw}))
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: name + "-kubeconfig"}, Data: map[string][]byte{"value": fmt.Appendf(nil, `{"apiVersion": "v1", "kind": "Config",
"clusters": [{"name": "x", "cluster": {"server": %q, "certificate-authority-data": %q}}], "users": [{"name": "x", "user": {"token": "t"}}],
"contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}], "current-context": "x"}`, api.URL, ca)}}
}

// lost is the API server of a child that has no journal.
func lost(w http.ResponseWriter, req *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	answers := map[string]string{
		"/api":                               `{"kind": "APIVersions", "versions": ["v1"]}`,
		"/apis":                              `{"kind": "APIGroupList", "apiVersion": "v1", "groups": []}`,
		"/api/v1":                            `{"kind": "APIResourceList", "groupVersion": "v1", "resources": [{"name": "namespaces", "kind": "Namespace"}, {"name": "configmaps", "kind": "ConfigMap", "namespaced": true}]}`,
		"/apis/apps/v1":                      `{"kind": "APIResourceList", "groupVersion": "apps/v1", "resources": [{"name": "deployments", "kind": "Deployment", "namespaced": true}]}`,
		"/apis/apps/v1/deployments":          `{"kind": "DeploymentList", "apiVersion": "apps/v1", "items": []}`,
		"/apis/rbac.authorization.k8s.io/v1": `{"kind": "APIResourceList", "groupVersion": "rbac.authorization.k8s.io/v1", "resources": [{"name": "clusterrolebindings", "kind": "ClusterRoleBinding"}]}`,
		"/apis/rbac.authorization.k8s.io/v1/clusterrolebindings": `{"kind": "ClusterRoleBindingList", "apiVersion": "rbac.authorization.k8s.io/v1", "items": []}`,
		"/api/v1/namespaces/kube-system":                         `{"kind": "Namespace", "apiVersion": "v1", "metadata": {"name": "kube-system", "uid": "there"}}`,
	}
	answer, ok := answers[req.URL.Path]
	if !ok {
		w.WriteHeader(http.StatusNotFound)
		answer = `{"apiVersion": "v1", "kind": "Status", "status": "Failure", "reason": "NotFound", "code": 404}`
	}
	_, _ = w.Write([]byte(answer))
}

// TestAgentElsewhere: journal and record of the child are where its agent is, and not where anybody may have put something
// of that name.
func TestAgentElsewhere(t *testing.T) {
	const self, parent, usual = v1alpha1.ManagementSelf, v1alpha1.ManagementParent, v1alpha1.AgentNamespace
	journal := func(role pivot.Role, namespace, step string) corev1.ConfigMap {
		return corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "cascade-pivot." + string(role) + ".x", Labels: map[string]string{v1alpha1.PivotLabel: string(role)}},
			Data:       map[string]string{"journal.json": fmt.Sprintf(`{"format":1,"id":"x-1","step":%q,"clusters":[{"namespace":"fleet","name":"master"}]}`, step)},
		}
	}
	for name, tt := range map[string]struct {
		reason string
		to     v1alpha1.Management
		// agents are the namespaces with a Deployment, roles those whose account has a role in the whole cluster.
		agents, roles []string
		journals      []corev1.ConfigMap
		want, says    string
	}{
		"Self":            {"a person installed it", self, []string{"ops"}, []string{"ops"}, nil, "ops", ""},
		"Parent":          {"the way back", parent, []string{"ops"}, []string{"ops"}, nil, "ops", ""},
		"Usual":           {"a layer installed it", self, []string{usual}, nil, nil, usual, ""},
		"Beside":          {"a tenant has an agent of his own", self, []string{usual, "ops"}, []string{usual, "ops"}, nil, usual, ""},
		"None":            {"it is no Deployment", self, nil, nil, nil, usual, ""},
		"Anybody":         {"a tenant has a Deployment of that name", parent, []string{"ops"}, []string{"other"}, nil, usual, ""},
		"AnybodyBeside":   {"nor does that keep the other one from it", parent, []string{"ops", "tenant"}, []string{"ops"}, nil, "ops", ""},
		"Several":         {"which one is meant nobody knows", self, []string{"flux", "ops"}, []string{"flux", "ops"}, nil, "", "namespace flux and ops; say which to cascade pivot, with --to-agent-namespace"},
		"SeveralUnderWay": {"another one came since it began", self, []string{"flux", "ops"}, []string{"flux", "ops"}, []corev1.ConfigMap{journal(pivot.Target, "ops", "copy")}, "ops", ""},
		"Before":          {"an earlier version began it, and who ends it is the agent", self, []string{"ops"}, []string{"ops"}, []corev1.ConfigMap{journal(pivot.Target, usual, "switch")}, "ops", ""},
		"BackBefore":      {"what an earlier version holds the Cluster by is there", parent, []string{"ops"}, []string{"ops"}, []corev1.ConfigMap{journal(pivot.Source, usual, "copy")}, usual, ""},
		"BackOver":        {"that came to its end", parent, []string{"ops"}, []string{"ops"}, []corev1.ConfigMap{journal(pivot.Source, usual, "done")}, "ops", ""},
	} {
		t.Run(name, func(t *testing.T) {
			deployments := appsv1.DeploymentList{TypeMeta: metav1.TypeMeta{APIVersion: "apps/v1", Kind: "DeploymentList"}}
			for _, namespace := range tt.agents {
				d := appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: v1alpha1.AgentName}}
				d.Spec.Template.Spec.ServiceAccountName = "account"
				deployments.Items = append(deployments.Items, d)
			}
			bindings := rbacv1.ClusterRoleBindingList{TypeMeta: metav1.TypeMeta{APIVersion: "rbac.authorization.k8s.io/v1", Kind: "ClusterRoleBindingList"}}
			for _, namespace := range tt.roles {
				bindings.Items = append(bindings.Items, rbacv1.ClusterRoleBinding{
					Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: "account"}},
				})
			}
			api := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
				var list any
				switch path := req.URL.Path; {
				case path == "/apis/apps/v1/deployments":
					list = deployments
				case path == "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings":
					list = bindings
				case strings.HasSuffix(path, "/configmaps"):
					found := corev1.ConfigMapList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMapList"}}
					for _, cm := range tt.journals {
						if path == "/api/v1/namespaces/"+cm.Namespace+"/configmaps" {
							found.Items = append(found.Items, cm)
						}
					}
					list = found
				default:
					lost(w, req)
					return
				}
				w.Header().Set("Content-Type", "application/json")
				_ = json.NewEncoder(w).Encode(list)
			}))
			t.Cleanup(api.Close)
			s := runtime.NewScheme()
			for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1alpha1.AddToScheme} {
				if err := add(s); err != nil {
					t.Fatal(err)
				}
			}
			c := fake.NewClientBuilder().WithScheme(s).WithObjects(kubeconfigOf(api, "master")).Build()
			r := &Reconciler{Client: c, Side: pivot.Side{Name: "this tier", Client: c, Namespace: "own"}, Now: time.Now}
			is, err := r.pivotOf(t.Context(), &v1alpha1.Child{
				ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "master"}, Spec: v1alpha1.ChildSpec{ClusterRef: &v1alpha1.LocalReference{Name: "master"}},
				Status: v1alpha1.ChildStatus{Identity: &v1alpha1.ChildIdentity{KubeSystemUID: "there"}},
			}, tt.to)
			if tt.says != "" {
				if err == nil || !strings.Contains(err.Error(), tt.says) {
					t.Errorf("%s: got %v", tt.reason, err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			there, here := is.pivot.Target, is.pivot.Source
			if tt.to == parent {
				there, here = here, there
			}
			if there.Namespace != tt.want || here.Namespace != "own" {
				t.Errorf("%s: the agent of the child is in %s, want %s; that of this tier in %s", tt.reason, there.Namespace, tt.want, here.Namespace)
			}
		})
	}
}

// TestJournalLost: the child lost its journal of a pivot back that nobody declares any more, as with
// its agent's namespace. Nobody can go on with it, and a person has to know.
func TestJournalLost(t *testing.T) {
	api := httptest.NewTLSServer(http.HandlerFunc(lost))
	t.Cleanup(api.Close)
	for name, tt := range map[string]struct {
		reason, step, says string
	}{
		"Copy":   {"nothing was switched, and the copies stay", "copy", v1alpha1.ReasonPivotBlocked},
		"Switch": {"this tier's agent ends it", "switch", v1alpha1.ReasonPivotRunning},
	} {
		t.Run(name, func(t *testing.T) {
			s := runtime.NewScheme()
			for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1alpha1.AddToScheme} {
				if err := add(s); err != nil {
					t.Fatal(err)
				}
			}
			child := &v1alpha1.Child{
				ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "master"}, Spec: v1alpha1.ChildSpec{ClusterRef: &v1alpha1.LocalReference{Name: "master"}},
				Status: v1alpha1.ChildStatus{
					Identity: &v1alpha1.ChildIdentity{KubeSystemUID: "there"}, MovingTo: v1alpha1.ManagementParent,
					Conditions: []metav1.Condition{{Type: v1alpha1.ManagementCondition, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonPivotRunning}},
				},
			}
			journal := &corev1.ConfigMap{
				ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.AgentNamespace, Name: "cascade-pivot.target.x", Labels: map[string]string{v1alpha1.PivotLabel: "target"}},
				Data:       map[string]string{"journal.json": fmt.Sprintf(`{"format":1,"id":"x-1","step":%q,"from":{"uid":"there"},"clusters":[{"namespace":"fleet","name":"master"}]}`, tt.step)},
			}
			here := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "kube-system", UID: "here"}}
			c := fake.NewClientBuilder().WithScheme(s).WithObjects(child, journal, here, kubeconfigOf(api, "master")).WithStatusSubresource(child).Build()
			key := client.ObjectKeyFromObject(child)
			r := &Reconciler{
				Client: c, Side: pivot.Side{Name: "this tier", Client: c, Namespace: v1alpha1.AgentNamespace}, Events: record.NewFakeRecorder(10), Now: time.Now,
				Elsewhere: func(context.Context, types.NamespacedName) (bool, error) { return true, nil },
			}
			for range 2 {
				result, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: key})
				if err != nil || result.RequeueAfter != retryPause {
					t.Errorf("%s: looked at again after %s, %v", tt.reason, result.RequeueAfter, err)
				}
				is := &v1alpha1.Child{}
				if err := c.Get(t.Context(), key, is); err != nil {
					t.Fatal(err)
				}
				said := meta.FindStatusCondition(is.Status.Conditions, v1alpha1.ManagementCondition)
				if said == nil || said.Status != metav1.ConditionFalse || said.Reason != tt.says || !strings.Contains(said.Message, "x-1") {
					t.Errorf("%s: it says %+v", tt.reason, said)
				}
			}
		})
	}
}

// TestOneReturns: of the Clusters on their way back, one at a time has what its child has in memory. A
// child that does not answer keeps no other one waiting, and who waits for one that does says so.
func TestOneReturns(t *testing.T) {
	for name, tt := range map[string]struct {
		reason string
		// hangs is what the other child does not answer.
		hangs       string
		says, words string
	}{
		"Dead": {"a dead cluster costs the others nothing", "/api/v1/namespaces/kube-system", v1alpha1.ReasonPivotBlocked, "x-1"},
		"Slow": {"it is not as declared, which the condition said before", "/api/v1/namespaces/cascade-system/configmaps/", v1alpha1.ReasonPivotRunning, "waits for its turn"},
	} {
		t.Run(name, func(t *testing.T) {
			hung, answers := make(chan struct{}, 10), make(chan struct{})
			slow := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
				if strings.HasPrefix(req.URL.Path, tt.hangs) {
					hung <- struct{}{}
					<-answers
				}
				lost(w, req)
			}))
			t.Cleanup(slow.Close)
			quick := httptest.NewTLSServer(http.HandlerFunc(lost))
			t.Cleanup(quick.Close)
			s := runtime.NewScheme()
			for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1alpha1.AddToScheme} {
				if err := add(s); err != nil {
					t.Fatal(err)
				}
			}
			objects := []client.Object{&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "kube-system", UID: "here"}}, kubeconfigOf(slow, "slow"), kubeconfigOf(quick, "quick")}
			for _, name := range []string{"slow", "quick"} {
				objects = append(objects, &v1alpha1.Child{
					ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: name}, Spec: v1alpha1.ChildSpec{ClusterRef: &v1alpha1.LocalReference{Name: name}},
					Status: v1alpha1.ChildStatus{
						Identity:   &v1alpha1.ChildIdentity{KubeSystemUID: "there"},
						Conditions: []metav1.Condition{{Type: v1alpha1.ManagementCondition, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonManagedElsewhere}},
					},
				}, &corev1.ConfigMap{
					ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.AgentNamespace, Name: "cascade-pivot.target." + name, Labels: map[string]string{v1alpha1.PivotLabel: "target"}},
					Data:       map[string]string{"journal.json": fmt.Sprintf(`{"format":1,"id":"x-1","step":"copy","from":{"uid":"there"},"clusters":[{"namespace":"fleet","name":%q}]}`, name)},
				})
			}
			c := fake.NewClientBuilder().WithScheme(s).WithObjects(objects...).WithStatusSubresource(&v1alpha1.Child{}).Build()
			r := &Reconciler{
				Client: c, Side: pivot.Side{Name: "this tier", Client: c, Namespace: v1alpha1.AgentNamespace}, Events: record.NewFakeRecorder(10), Now: time.Now,
				Elsewhere: func(context.Context, types.NamespacedName) (bool, error) { return true, nil },
			}
			ended := make(chan error)
			go func() {
				_, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: types.NamespacedName{Namespace: "fleet", Name: "slow"}})
				ended <- err
			}()
			<-hung
			key := types.NamespacedName{Namespace: "fleet", Name: "quick"}
			_, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: key})
			close(answers)
			if err := errors.Join(err, <-ended); err != nil {
				t.Fatal(err)
			}
			is := &v1alpha1.Child{}
			if err := c.Get(t.Context(), key, is); err != nil {
				t.Fatal(err)
			}
			said := meta.FindStatusCondition(is.Status.Conditions, v1alpha1.ManagementCondition)
			if said == nil || said.Status != metav1.ConditionFalse || said.Reason != tt.says || !strings.Contains(said.Message, tt.words) {
				t.Errorf("%s: it says %+v", tt.reason, said)
			}
		})
	}
}

// TestElsewhereAsked: a call is made for Children whose Clusters somebody moves or moved, not for
// each of thousands.
func TestElsewhereAsked(t *testing.T) {
	for name, tt := range map[string]struct {
		reason    string
		condition string
		want      bool
	}{
		"Here":  {"nobody asks for a move", v1alpha1.ConnectedCondition, false},
		"Moved": {"a person moved it", v1alpha1.ManagedElsewhereCondition, true},
		"Told":  {"it was declared before", v1alpha1.ManagementCondition, true},
	} {
		t.Run(name, func(t *testing.T) {
			s := runtime.NewScheme()
			for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1alpha1.AddToScheme} {
				if err := add(s); err != nil {
					t.Fatal(err)
				}
			}
			child := &v1alpha1.Child{
				ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "master"}, Spec: v1alpha1.ChildSpec{ClusterRef: &v1alpha1.LocalReference{Name: "master"}},
				Status: v1alpha1.ChildStatus{Conditions: []metav1.Condition{{Type: tt.condition, Status: metav1.ConditionTrue, Reason: "x"}}},
			}
			c := fake.NewClientBuilder().WithScheme(s).WithObjects(child).WithStatusSubresource(child).Build()
			asked := false
			r := &Reconciler{
				Client: c, Side: pivot.Side{Name: "this tier", Client: c, Namespace: v1alpha1.AgentNamespace}, Events: record.NewFakeRecorder(10), Now: time.Now,
				Elsewhere: func(context.Context, types.NamespacedName) (bool, error) { asked = true; return true, nil },
			}
			if _, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKeyFromObject(child)}); err != nil || asked != tt.want {
				t.Errorf("%s: asked %t, %v", tt.reason, asked, err)
			}
		})
	}
}

// TestDeclaredByOwner: a Layer that selects by who applied the Clusters says whose they are to be by their labels, as it
// is pushed by them. Those of a Child say who declares that.
func TestDeclaredByOwner(t *testing.T) {
	const owner = "kustomize.toolkit.fluxcd.io/name"
	cluster := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster"}}
	cluster.SetNamespace("fleet")
	cluster.SetName("master")
	cluster.SetLabels(map[string]string{owner: "masters"})
	for name, tt := range map[string]struct {
		reason   string
		of       map[string]string
		cluster  string
		clusters *clusters.Watch
		want     []v1alpha1.Management
		err      error
	}{
		"Made":      {"the tier made the Child, which has the label of no owner", map[string]string{"tier": "master"}, "master", clusters.Fixed(cluster), []v1alpha1.Management{v1alpha1.ManagementSelf}, nil},
		"Declared":  {"who declares the Child has a Layer of its own, by which its Cluster is not selected", map[string]string{owner: "others"}, "master", clusters.Fixed(cluster), []v1alpha1.Management{v1alpha1.ManagementSelf}, nil},
		"Elsewhere": {"its Cluster is not here, and what the Child has stands", map[string]string{owner: "masters"}, "gone", clusters.Fixed(cluster), []v1alpha1.Management{v1alpha1.ManagementSelf}, nil},
		"Unknown":   {"nobody knows yet who applied the Cluster", map[string]string{owner: "masters"}, "master", &clusters.Watch{}, nil, errNotListed},
	} {
		t.Run(name, func(t *testing.T) {
			s := runtime.NewScheme()
			for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1alpha1.AddToScheme} {
				if err := add(s); err != nil {
					t.Fatal(err)
				}
			}
			child := &v1alpha1.Child{
				ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "master", Labels: tt.of},
				Spec:       v1alpha1.ChildSpec{ClusterRef: &v1alpha1.LocalReference{Name: tt.cluster}},
			}
			layer := func(name string, to v1alpha1.Management) *v1alpha1.Layer {
				return &v1alpha1.Layer{
					ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: name},
					Spec:       v1alpha1.LayerSpec{ClusterSelector: metav1.LabelSelector{MatchLabels: map[string]string{owner: name}}, Management: to},
				}
			}
			c := fake.NewClientBuilder().WithScheme(s).WithObjects(child, layer("masters", v1alpha1.ManagementSelf), layer("others", v1alpha1.ManagementParent)).Build()
			r := &Reconciler{
				Client: c, Clusters: tt.clusters, Side: pivot.Side{Client: c, Namespace: v1alpha1.AgentNamespace},
				Elsewhere: func(context.Context, types.NamespacedName) (bool, error) { return false, nil },
			}
			f, err := r.facts(t.Context(), child)
			if !errors.Is(err, tt.err) || !slices.Equal(f.Declared, tt.want) {
				t.Errorf("%s: declared is %v (%v), want %v (%v)", tt.reason, f.Declared, err, tt.want, tt.err)
			}
			if tt.err == nil {
				return
			}
			if result, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKeyFromObject(child)}); err != nil || result.RequeueAfter == 0 {
				t.Errorf("%s: %v, %v", tt.reason, result, err)
			}
		})
	}
}

// TestInvalidSelector: while nobody can tell whom a layer selects, what it says of the management of a
// child that has it moves no Cluster, and does not let another layer have its way.
func TestInvalidSelector(t *testing.T) {
	for name, tt := range map[string]struct {
		reason string
		has    []v1alpha1.ChildLayer
		says   string
		words  string
	}{
		"Has":   {"it selected the child until then", []v1alpha1.ChildLayer{{Name: "masters"}}, v1alpha1.ReasonPivotBlocked, "clusterSelector of Layer masters"},
		"Never": {"it is a layer of others", nil, v1alpha1.ReasonManagedHere, ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := runtime.NewScheme()
			for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1alpha1.AddToScheme} {
				if err := add(s); err != nil {
					t.Fatal(err)
				}
			}
			child := &v1alpha1.Child{
				ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "master", Labels: map[string]string{"tier": "master"}},
				Spec:       v1alpha1.ChildSpec{ClusterRef: &v1alpha1.LocalReference{Name: "master"}},
				Status:     v1alpha1.ChildStatus{Identity: &v1alpha1.ChildIdentity{KubeSystemUID: "there"}, Layers: tt.has},
			}
			layer := func(name string, says v1alpha1.Management) *v1alpha1.Layer {
				return &v1alpha1.Layer{
					ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: name},
					Spec:       v1alpha1.LayerSpec{ClusterSelector: metav1.LabelSelector{MatchLabels: child.Labels}, Management: says},
				}
			}
			invalid := layer("masters", v1alpha1.ManagementSelf)
			invalid.Spec.ClusterSelector = metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "tier", Operator: "in", Values: []string{"master"}}}}
			c := fake.NewClientBuilder().WithScheme(s).WithObjects(child, invalid, layer("other", v1alpha1.ManagementParent)).WithStatusSubresource(child).Build()
			r := &Reconciler{
				Client: c, Side: pivot.Side{Name: "this tier", Client: c, Namespace: v1alpha1.AgentNamespace}, Events: record.NewFakeRecorder(10), Now: time.Now,
				Elsewhere: func(context.Context, types.NamespacedName) (bool, error) { return false, nil },
			}
			if _, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKeyFromObject(child)}); err != nil {
				t.Fatal(err)
			}
			is := &v1alpha1.Child{}
			if err := c.Get(t.Context(), client.ObjectKeyFromObject(child), is); err != nil {
				t.Fatal(err)
			}
			if condition := meta.FindStatusCondition(is.Status.Conditions, v1alpha1.ManagementCondition); condition == nil || condition.Reason != tt.says || !strings.Contains(condition.Message, tt.words) {
				t.Errorf("%s: it says %+v", tt.reason, condition)
			}
		})
	}
}
