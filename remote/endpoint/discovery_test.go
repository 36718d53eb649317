package endpoint

import (
	"context"
	"encoding/json"
	"errors"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/remote/shard"
	"github.com/cascade-gitops/cascade/remote/tenure"
)

func child(name string, change ...func(*v1alpha1.Child)) v1alpha1.Child {
	c := v1alpha1.Child{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: name}}
	c.Status.Identity = &v1alpha1.ChildIdentity{KubeSystemUID: name}
	for _, f := range change {
		f(&c)
	}
	return c
}

// TestDiscovery: targets have labels that stay as long as the cluster does, as its version does not: what an alert is
// about goes on through an upgrade.
func TestDiscovery(t *testing.T) {
	all, err := Parse([]string{"agent", "ksm=monitoring/kube-state-metrics:http/metrics"})
	if err != nil {
		t.Fatal(err)
	}
	long := strings.Repeat("v", 1000)
	children := []v1alpha1.Child{
		child("b", func(c *v1alpha1.Child) {
			c.Labels = map[string]string{"environment": "production", v1alpha1.OwnerLabel: "payments", "secret": "x"}
			c.Status.Report = &v1alpha1.Report{}
			c.Status.Provider, c.Status.Region, c.Status.Version = "aws", "eu-west-1", "v1.36.3"
		}),
		child("a", func(c *v1alpha1.Child) { c.Status.Region = long + "\xff" }),
		child("own", func(c *v1alpha1.Child) { c.Spec.InCluster = true }),
		child("unmet", func(c *v1alpha1.Child) { c.Status.Identity = nil }),
		child("unseeded", func(c *v1alpha1.Child) {
			c.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConnectedCondition, Status: metav1.ConditionUnknown, Reason: v1alpha1.ReasonNoLayer}}
		}),
		child("leaving", func(c *v1alpha1.Child) { c.DeletionTimestamp = &metav1.Time{} }),
	}
	children[5].DeletionTimestamp = new(metav1.Now())
	d := &Discovery{
		Endpoints: all, TLS: true, Log: logr.Discard(),
		List: func(context.Context) ([]v1alpha1.Child, error) { return children, nil },
		Drivers: func(context.Context, string) (func(types.NamespacedName) (string, bool), error) {
			return func(c types.NamespacedName) (string, bool) { return "10.0.0.1:8080", c.Name != "nobodys" }, nil
		},
	}
	get := func() *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		d.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), "GET", DiscoveryPath, nil))
		return w
	}
	var got []Group
	if err := json.Unmarshal(get().Body.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	agent := map[string]string{
		"__scheme__": "https", "__metrics_path__": "/children/fleet/b/agent", "child_namespace": "fleet", "child": "b", "endpoint": "agent", "instance": "fleet/b",
		"environment": "production", "owner": "payments", "provider": "aws", "region": "eu-west-1",
	}
	want := []Group{
		{Targets: []string{"10.0.0.1:8080"}, Labels: map[string]string{
			"__scheme__": "https", "__metrics_path__": "/children/fleet/a/ksm", "child_namespace": "fleet", "child": "a", "endpoint": "ksm", "instance": "fleet/a", "region": long[:longest],
		}},
		{Targets: []string{"10.0.0.1:8080"}, Labels: agent},
		{Targets: []string{"10.0.0.1:8080"}, Labels: map[string]string{
			"__scheme__": "https", "__metrics_path__": "/children/fleet/b/ksm", "child_namespace": "fleet", "child": "b", "endpoint": "ksm", "instance": "fleet/b",
			"environment": "production", "owner": "payments", "provider": "aws", "region": "eu-west-1",
		}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want, +got:\n%s", diff)
	}
	children = nil
	if w := get(); w.Code != 200 || strings.TrimSpace(w.Body.String()) != "[]" {
		t.Errorf("no children: %d %s", w.Code, w.Body)
	}
	children = []v1alpha1.Child{child("a"), child("nobodys")}
	if w := get(); w.Code != 503 {
		t.Errorf("a list with a hole in it is served: %d %s", w.Code, w.Body)
	}
	d.List = func(context.Context) ([]v1alpha1.Child, error) { return nil, errors.New("no cache") }
	if w := get(); w.Code != 503 {
		t.Errorf("what cannot be listed is served as nothing: %d %s", w.Code, w.Body)
	}
}

func TestAdvertised(t *testing.T) {
	for _, tc := range []struct{ reason, listen, host, want string }{
		{"an address that it listens on", "10.0.0.7:8080", "agent.example:443", "10.0.0.7:8080"},
		{"everywhere: as it was reached", ":8080", "agent.example:443", "agent.example:8080"},
		{"without a port", "0.0.0.0:8080", "agent.example", "agent.example:8080"},
		{"IPv6", "[::]:8080", "[fd00::1]:443", "[fd00::1]:8080"},
		{"IPv6 without a port", ":8080", "[fd00::1]", "[fd00::1]:8080"},
	} {
		if got, err := Advertised(tc.listen, tc.host); err != nil || got != tc.want {
			t.Errorf("%s: %s, %v, want %s", tc.reason, got, err, tc.want)
		}
	}
}

func lease(name, holder string) client.Object {
	l := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "cascade-system", Name: name}}
	if holder != "" {
		l.Spec.HolderIdentity = &holder
	}
	return l
}

func podAt(name, ip string) client.Object {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "cascade-system", Name: name}, Status: corev1.PodStatus{PodIP: ip}}
}

// TestDrivers: whichever replica is asked, each child is scraped at the one that drives it.
func TestDrivers(t *testing.T) {
	of := func(shards int, objects ...client.Object) *Drivers {
		return &Drivers{
			Client: fake.NewClientBuilder().WithObjects(objects...).Build(), Namespace: "cascade-system", Identity: "me",
			Leader: "cascade", Shards: shards, Listen: "10.0.0.1:8080", Now: time.Now,
		}
	}
	at := func(d *Drivers, child types.NamespacedName) string {
		where, err := d.Of(t.Context(), "asked.example:1")
		if err != nil {
			return err.Error()
		}
		address, ok := where(child)
		if !ok {
			return "nobody"
		}
		return address
	}
	a := types.NamespacedName{Namespace: "fleet", Name: "a"}
	for name, tc := range map[string]struct {
		reason string
		of     *Drivers
		want   string
	}{
		"Leads":    {"the leader drives all", of(1, lease("cascade", "me")), "10.0.0.1:8080"},
		"Stands":   {"another replica leads", of(1, lease("cascade", "other"), podAt("other", "10.0.0.2")), "10.0.0.2:8080"},
		"Between":  {"nobody leads at the moment", of(1, lease("cascade", "")), "nobody"},
		"NoIP":     {"its pod has no address yet", of(1, lease("cascade", "other"), podAt("other", "")), "nobody"},
		"NoPod":    {"its pod is gone", of(1, lease("cascade", "other")), "cannot read pod other"},
		"NoLease":  {"no Lease yet", of(1), "cannot read Lease cascade"},
		"IPv6":     {"an address with colons", of(1, lease("cascade", "other"), podAt("other", "fd00::2")), "[fd00::2]:8080"},
		"Elsewhat": {"a shard of this one", of(2, lease(tenure.LeaseName(shard.Of(a, 2)), "me"), lease(tenure.LeaseName(1-shard.Of(a, 2)), "other"), podAt("other", "10.0.0.2")), "10.0.0.1:8080"},
		"Shard":    {"a shard of another one", of(2, lease(tenure.LeaseName(shard.Of(a, 2)), "other"), lease(tenure.LeaseName(1-shard.Of(a, 2)), "me"), podAt("other", "10.0.0.2")), "10.0.0.2:8080"},
		"Alone":    {"one process without a Lease", &Drivers{Listen: ":8080"}, "asked.example:8080"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := at(tc.of, a); !strings.HasPrefix(got, tc.want) {
				t.Errorf("%s: %s, want %s", tc.reason, got, tc.want)
			}
		})
	}
}
