package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/cmd/cascade/cause"
)

// whyFacts are a Kustomization that fails and one that does not, and a fleet of three tiers.
func whyFacts(t *testing.T) *cause.Facts {
	t.Helper()
	f := &cause.Facts{}
	for _, k := range []struct{ namespace, name, reason string }{{"cascade-system", "apps", "BuildFailed"}, {"cascade-system", "base", ""}, {"team", "mine", ""}} {
		o := kustomizev1.Kustomization{ObjectMeta: metav1.ObjectMeta{Namespace: k.namespace, Name: k.name}}
		o.Status.Conditions = conditions("Ready", metav1.ConditionTrue, "ReconciliationSucceeded", "", time.Hour)
		if k.reason != "" {
			o.Status.Conditions = conditions("Ready", metav1.ConditionFalse, k.reason, "cannot parse", time.Hour)
		}
		f.Kustomizations = append(f.Kustomizations, o)
	}
	for _, o := range fleet(t) {
		if c, ok := o.(*v1alpha1.Child); ok {
			f.Children = append(f.Children, *c)
		}
	}
	return f
}

func TestWhy(t *testing.T) {
	for name, tc := range map[string]struct {
		reason    string
		args      []string
		namespace string
		want      error
		// says is in the answer, or in the error.
		says string
	}{
		"All":       {"all that is not as it should be", nil, "", errSomething, "Kustomization/cascade-system/apps: BuildFailed"},
		"Kind":      {"one object, by the short name of get", []string{"ks/apps"}, "", errSomething, "✗ Kustomization/cascade-system/apps"},
		"Well":      {"nothing is wrong with it", []string{"kustomization/base"}, "", nil, "✔ Kustomization/cascade-system/base is as it should be"},
		"Namespace": {"in the namespace that is asked for", []string{"Kustomization/mine"}, "team", nil, "✔ Kustomization/team/mine"},
		"Inline":    {"or named with it", []string{"ks/team/mine"}, "", nil, "✔ Kustomization/team/mine"},
		"Elsewhere": {"where it is, is said", []string{"ks/mine"}, "", errors.New(""), "there is one in namespace team"},
		"NoObject":  {"there is none", []string{"hr/mine"}, "", errors.New(""), "cannot find HelmRelease/mine"},
		"Path":      {"a cluster two tiers below", []string{"masters/aws>tenants/shop"}, "", errSomething, "Child/tenants/shop in masters/aws: KustomizationFailing"},
		"Name":      {"its name is enough", []string{"shop"}, "", errSomething, "Child/tenants/shop in masters/aws: KustomizationFailing"},
		"Below":     {"a cluster that is well, with what is not below it", []string{"child/aws"}, "masters", errSomething, "in it and below it"},
		"NoPath":    {"no such cluster", []string{"nowhere"}, "", errors.New(""), "cascade tree"},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			flags := genericclioptions.NewConfigFlags(true)
			flags.Namespace = &tc.namespace
			c := &cli{streams: genericiooptions.IOStreams{Out: &out}, flags: flags, now: func() time.Time { return noon }}
			err := c.why(whyFacts(t), tc.args, "text")
			said := out.String()
			if err != nil {
				said += err.Error()
			}
			known := tc.want == nil || errors.Is(tc.want, errSomething)
			if known && !errors.Is(err, tc.want) || !known && (err == nil || errors.Is(err, errSomething)) || !strings.Contains(said, tc.says) {
				t.Errorf("%s\nerror %v, want %v; %q is not in:\n%s", tc.reason, err, tc.want, tc.says, said)
			}
		})
	}
}

func TestWhyJSON(t *testing.T) {
	var out bytes.Buffer
	c := &cli{streams: genericiooptions.IOStreams{Out: &out}, flags: genericclioptions.NewConfigFlags(true), now: func() time.Time { return noon }}
	if err := c.why(whyFacts(t), nil, "json"); !errors.Is(err, errSomething) {
		t.Errorf("error %v", err)
	}
	var answer cause.Answer
	if err := json.Unmarshal(out.Bytes(), &answer); err != nil || answer.APIVersion != cause.Version || answer.Ready {
		t.Errorf("answer %+v: %v", answer, err)
	}
}

// TestWhyUnread: what was not read is not taken for well.
func TestWhyUnread(t *testing.T) {
	var out bytes.Buffer
	c := &cli{streams: genericiooptions.IOStreams{Out: &out}, flags: genericclioptions.NewConfigFlags(true), now: func() time.Time { return noon }}
	f := &cause.Facts{Unread: map[string]string{"Layer": "forbidden"}}
	if err := c.why(f, nil, "text"); !errors.Is(err, errNotReady) || !strings.Contains(out.String(), "cannot list Layer") {
		t.Errorf("error %v, said %q", err, out.String())
	}
}

// TestWhySilentAgent: an agent is asked for where it is, and one that died has nothing well.
func TestWhySilentAgent(t *testing.T) {
	agent := func(namespace string) client.Object {
		return &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: v1alpha1.AgentName, Labels: map[string]string{"app.kubernetes.io/name": v1alpha1.AgentName}}}
	}
	for name, tc := range map[string]struct {
		reason  string
		objects []client.Object
		said    string
		want    string
	}{
		"Elsewhere": {"it was installed with -n", []client.Object{agent("gitops")}, "", "gitops"},
		"None":      {"it is gone", nil, "", v1alpha1.AgentNamespace},
		"Two":       {"nobody knows which", []client.Object{agent("gitops"), agent("other")}, "", v1alpha1.AgentNamespace},
		"Said":      {"but a person does", []client.Object{agent("gitops"), agent("other")}, "other", "other"},
		"Mom":       {"it is no Deployment", []client.Object{beat("other", 0)}, "other", "other"},
		"Objects":   {"that is where the Children are", []client.Object{agent("gitops"), beat("gitops", 0)}, "fleet", "gitops"},
	} {
		if got := agentNamespace(t.Context(), fake.NewClientBuilder().WithScheme(newScheme()).WithObjects(tc.objects...).Build(), tc.said); got != tc.want {
			t.Errorf("%s: %s: %s, want %s", name, tc.reason, got, tc.want)
		}
	}
	var out bytes.Buffer
	c := &cli{streams: genericiooptions.IOStreams{Out: &out}, flags: genericclioptions.NewConfigFlags(true), now: func() time.Time { return noon }}
	f := &cause.Facts{Heartbeat: &cause.Heartbeat{Namespace: "gitops", Name: v1alpha1.HeartbeatLease, Renewed: noon.Add(-48 * time.Hour), Holds: 45 * time.Second}}
	if err := c.why(f, nil, "text"); !errors.Is(err, errSomething) || !strings.Contains(out.String(), "AgentSilent") {
		t.Errorf("error %v, said %q", err, out.String())
	}
}
