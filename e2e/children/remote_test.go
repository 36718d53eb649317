package children

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/clusterapi"
	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/e2e/scenario"
)

// TestRemote has one agent and many clusters, to each of which something else
// happens at the same time. The parts have a namespace each.
func TestRemote(t *testing.T) {
	scenario.Alongside(t)
	h := startHub(t, "v1beta2")
	parts := scenario.PartsOf(t)
	defer parts.Wait()
	for _, part := range []struct {
		name string
		run  func(*hub, *testing.T)
	}{
		{"Life", life},
		{"Identity", identities},
		{"IdentityOfARebuiltServer", rebuiltServer},
		{"NotReadyServers", notReadyServers},
		{"LostTokens", lostTokens},
		{"Layers", layers},
		{"PushedClusters", pushedClusters},
		{"Inhabited", inhabited},
		{"Unreachable", unreachable},
		{"DeadWebhook", deadWebhook},
		{"CommitDuringPush", commitDuringPush},
		{"RevertOfHalf", revertOfHalf},
		{"SweepByLists", sweepByLists},
		{"ByHand", byHand},
		{"ByIdentity", byIdentity},
		{"AddedByHand", addedByHand},
		{"AgentDoesNotRun", agentDoesNotRun},
		{"Rotation", rotation},
		{"KubeconfigElsewhere", kubeconfigElsewhere},
		{"Recreation", recreation},
		{"Deletion", deletion},
	} {
		parts.Run(part.name, func(t *testing.T) { part.run(h, t) })
	}
}

// steps runs the steps of a story. One that fails ends it, unless it is a check.
func steps(t *testing.T, parts ...any) {
	t.Helper()
	for _, part := range parts {
		switch part := part.(type) {
		case step:
			if !t.Run(part.name, part.run) {
				return
			}
		case check:
			t.Run(part.name, part.run)
		}
	}
}

// step of a story, without which the next cannot be.
type step struct {
	name string
	run  func(*testing.T)
}

// check is of how far the story came. It changes nothing.
type check step

// life follows one cluster from its declaration on, stage by stage, as providers
// make them.
func life(h *hub, t *testing.T) {
	f := h.fleet(t, "life", map[string]string{
		"app/note.yaml":  noteNamed("note", "cluster", "${cluster_name}", "version", "1"),
		"late/note.yaml": noteNamed("late", "cluster", "${cluster_name}"),
		"cel/note.yaml":  noteNamed("cel", "cluster", "${cluster_name}"),
	})
	p := h.plane(t, "life")
	f.layer(t, "app", "life")
	credential := p.issue(t)
	steps(t,
		step{"DiscoverV1beta2", func(t *testing.T) {
			// Some providers put a URL here, or nothing that can be reached.
			cluster := f.declare(t, "life", `controlPlaneEndpoint: {host: "https://0123.example.invalid", port: 443}`, `availabilityGates: [{conditionType: cascade.dev/Seeded}]`)
			child := f.says(t, "life", v1alpha1.ConnectedCondition, v1alpha1.ReasonClusterNotReady, "infrastructure")
			if child.Spec.ClusterRef == nil || child.Spec.ClusterRef.Name != "life" || child.Labels["cluster"] != "life" {
				t.Errorf("the Child refers to %v, with labels %v", child.Spec.ClusterRef, child.Labels)
			}
			if len(child.Finalizers) > 0 {
				t.Errorf("the Child has finalizers %v", child.Finalizers)
			}
			if got := f.cluster(t, "life").GetFinalizers(); !slices.Equal(got, cluster.GetFinalizers()) {
				t.Errorf("the Cluster has finalizers %v", got)
			}
		}},
		step{"GateProvisionedWithoutServer", func(t *testing.T) {
			f.report(t, "life", map[string]any{"phase": "Provisioned", "initialization": map[string]any{"infrastructureProvisioned": true}})
			f.says(t, "life", v1alpha1.ConnectedCondition, v1alpha1.ReasonClusterNotReady, "control plane")
		}},
		step{"GateKubeconfigMissing", func(t *testing.T) {
			f.report(t, "life", initialized)
			f.says(t, "life", v1alpha1.ConnectedCondition, v1alpha1.ReasonKubeconfigMissing, clusterapi.KubeconfigSecret("life"))
		}},
		step{"DialSecretOfNobodyRefused", func(t *testing.T) {
			for name, labels := range map[string]map[string]string{"Nobody": nil, "Neighbour": {clusterapi.ClusterNameLabel: "neighbour"}} {
				f.handOver(t, "life", credential.kubeconfig, func(s *corev1.Secret) { s.Labels = labels })
				f.reconciled(t, "life")
				f.says(t, "life", v1alpha1.ConnectedCondition, v1alpha1.ReasonKubeconfigMissing, "belong")
				t.Logf("%s: refused", name)
			}
			f.handOver(t, "life", credential.kubeconfig, func(s *corev1.Secret) {
				s.Data = map[string][]byte{"relative": s.Data[clusterapi.KubeconfigKey]}
			})
			f.says(t, "life", v1alpha1.ConnectedCondition, v1alpha1.ReasonKubeconfigMissing, "key value")
		}},
		step{"DialKubeconfigRefused", func(t *testing.T) {
			for word, change := range map[string]func(*clientcmdapi.Cluster, *clientcmdapi.AuthInfo){
				"exec": func(_ *clientcmdapi.Cluster, u *clientcmdapi.AuthInfo) {
					*u = clientcmdapi.AuthInfo{Exec: &clientcmdapi.ExecConfig{APIVersion: "client.authentication.k8s.io/v1", Command: "aws-iam-authenticator", InteractiveMode: clientcmdapi.NeverExecInteractiveMode}}
				},
				"tokenFile": func(_ *clientcmdapi.Cluster, u *clientcmdapi.AuthInfo) {
					*u = clientcmdapi.AuthInfo{TokenFile: h.tier.Kubeconfig()}
				},
				"client-key": func(_ *clientcmdapi.Cluster, u *clientcmdapi.AuthInfo) { u.ClientKey = h.tier.Kubeconfig() },
				"proxy-url":  func(c *clientcmdapi.Cluster, _ *clientcmdapi.AuthInfo) { c.ProxyURL = "http://127.0.0.1:1" },
				"https": func(c *clientcmdapi.Cluster, _ *clientcmdapi.AuthInfo) {
					c.Server = strings.Replace(c.Server, "https", "http", 1)
				},
			} {
				f.handOver(t, "life", p.kubeconfig(t, change))
				f.says(t, "life", v1alpha1.ConnectedCondition, v1alpha1.ReasonKubeconfigRefused, word)
			}
			if got := p.requests(t, 0); len(got) > 0 {
				t.Errorf("the cluster was asked %d times before there was a kubeconfig, first for %s", len(got), got[0].RequestURI)
			}
		}},
		step{"DialByTheKubeconfigAlone", func(t *testing.T) {
			// The type differs by provider: this is AKS's.
			if err := f.client.Delete(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: f.name, Name: clusterapi.KubeconfigSecret("life")}}); err != nil {
				t.Fatal(err)
			}
			f.handOver(t, "life", credential.kubeconfig, func(s *corev1.Secret) { s.Type = corev1.SecretTypeOpaque })
			p.has(t, "note", "cluster", "life")
			child := f.ready(t, "life", "")
			ns := &corev1.Namespace{}
			if err := p.client.Get(t.Context(), client.ObjectKey{Name: "kube-system"}, ns); err != nil {
				t.Fatal(err)
			}
			want := v1alpha1.ChildIdentity{ClusterUID: string(f.cluster(t, "life").GetUID()), KubeSystemUID: string(ns.UID)}
			if child.Status.Identity == nil || *child.Status.Identity != want {
				t.Errorf("the recorded identity is %v, want %v", child.Status.Identity, want)
			}
		}},
		check{"IdentifyBeforeTheFirstWrite", func(t *testing.T) {
			var asked bool
			for _, e := range p.requests(t, 0) {
				asked = asked || e.Verb == "get" && e.ObjectRef.Resource == "namespaces" && e.ObjectRef.Name == "kube-system"
				if e.Writes() && !asked {
					t.Fatalf("%s %s came before the question who the cluster is", e.Verb, e.RequestURI)
				}
			}
		}},
		check{"MintUsesTheAdministratorOnce", func(t *testing.T) { p.minted(t, 0) }},
		check{"MintLeastRights", func(t *testing.T) { leastRights(t, p) }},
		check{"SeededOnTheCluster", func(t *testing.T) { f.seeded(t, "life", metav1.ConditionTrue) }},
		step{"GateAvailable", func(t *testing.T) {
			f.layer(t, "late", "life", "readyWhen: Available")
			f.says(t, "life", v1alpha1.SeededCondition, v1alpha1.ReasonClusterNotReady, "Available")
			f.seeded(t, "life", metav1.ConditionFalse)
			p.hasNot(t, "late")
			f.report(t, "life", map[string]any{"conditions": []any{map[string]any{
				"type": "Available", "status": "True", "reason": "Available", "message": "", "lastTransitionTime": time.Now().UTC().Format(time.RFC3339),
			}}})
			p.has(t, "late", "cluster", "life")
			f.ready(t, "life", "")
			f.seeded(t, "life", metav1.ConditionTrue)
		}},
		step{"GateExpression", func(t *testing.T) {
			f.layer(t, "cel", "life", `readyWhen: "'blue' in cluster.metadata.labels"`)
			f.says(t, "life", v1alpha1.SeededCondition, v1alpha1.ReasonClusterNotReady, "blue")
			p.hasNot(t, "cel")
			f.patch(t, f.cluster(t, "life"), map[string]any{"metadata": map[string]any{"labels": map[string]any{"blue": "yes"}}})
			p.has(t, "cel", "cluster", "life")
		}},
		step{"PausedIsNotPushed", func(t *testing.T) {
			f.ready(t, "life", "")
			f.patch(t, f.cluster(t, "life"), map[string]any{"spec": map[string]any{"paused": true}})
			f.says(t, "life", v1alpha1.ReadyCondition, v1alpha1.ReasonPaused)
			from := p.now(t)
			sha := f.commit(t, map[string]string{"app/note.yaml": noteNamed("note", "cluster", "${cluster_name}", "version", "2")})
			f.fetched(t, sha)
			f.reconciled(t, "life")
			p.untouched(t, from)
			if paused, _, _ := unstructured.NestedBool(f.cluster(t, "life").Object, "spec", "paused"); !paused {
				t.Error("the Cluster is not paused any more")
			}
			f.patch(t, f.cluster(t, "life"), map[string]any{"spec": map[string]any{"paused": nil}})
			p.has(t, "note", "version", "2")
			f.ready(t, "life", sha)
		}},
		step{"UnselectedOrphan", func(t *testing.T) {
			f.patch(t, layerNamed(f, "late"), map[string]any{"spec": map[string]any{"clusterSelector": map[string]any{"matchLabels": map[string]any{"cluster": "nobody"}}}})
			f.forgets(t, "life", "late")
			p.has(t, "late", "cluster", "life")
		}},
		step{"UnselectedDelete", func(t *testing.T) {
			f.patch(t, layerNamed(f, "cel"), map[string]any{"spec": map[string]any{"deletionPolicy": "Delete"}})
			scenario.Eventually(t, scenario.Converge, "the policy is recorded", func(ctx context.Context) error {
				layer := &v1alpha1.Layer{}
				if err := f.client.Get(ctx, client.ObjectKeyFromObject(layerNamed(f, "cel")), layer); err != nil {
					return err
				}
				if !slices.Contains(layer.Finalizers, v1alpha1.RemovalFinalizer) {
					return errors.New("nothing keeps the Layer until its child is rid of it")
				}
				child, err := f.child(ctx, "life")
				if err != nil {
					return err
				}
				for _, l := range child.Status.Layers {
					if l.Name == "cel" && l.DeletionPolicy == v1alpha1.DeletionDelete {
						return nil
					}
				}
				return fmt.Errorf("layers are %v", child.Status.Layers)
			})
			if err := f.client.Delete(t.Context(), layerNamed(f, "cel")); err != nil {
				t.Fatal(err)
			}
			f.forgets(t, "life", "cel")
			p.hasNot(t, "cel")
			p.has(t, "note", "version", "2")
		}},
	)
}

// fetched waits until the source has a commit.
func (f *fleet) fetched(t *testing.T, commit string) {
	t.Helper()
	scenario.Eventually(t, scenario.Converge, "the commit is fetched", func(ctx context.Context) error {
		u := object("source.toolkit.fluxcd.io/v1", "GitRepository", f.name, "fleet")
		if err := f.client.Get(ctx, client.ObjectKeyFromObject(u), u); err != nil {
			return err
		}
		revision, _, _ := unstructured.NestedString(u.Object, "status", "artifact", "revision")
		if !strings.HasSuffix(revision, commit) {
			return fmt.Errorf("the revision is %s", revision)
		}
		return nil
	})
}

// forgets waits until a Child has no record of a layer.
func (f *fleet) forgets(t *testing.T, name, layer string) {
	t.Helper()
	scenario.Eventually(t, scenario.Converge, "the record of layer "+layer+" goes", func(ctx context.Context) error {
		child, err := f.child(ctx, name)
		if err != nil {
			return err
		}
		if slices.ContainsFunc(child.Status.Layers, func(l v1alpha1.ChildLayer) bool { return l.Name == layer }) {
			return fmt.Errorf("conditions are %s", scenario.Summary(child.Status.Conditions))
		}
		return nil
	})
}

// seeded waits for the condition on the Cluster that spec.availabilityGates may
// name.
func (f *fleet) seeded(t *testing.T, name string, want metav1.ConditionStatus) {
	t.Helper()
	scenario.Eventually(t, scenario.Converge, fmt.Sprintf("cascade.dev/Seeded of Cluster %s is %s", name, want), func(context.Context) error {
		conditions, _, err := unstructured.NestedSlice(f.cluster(t, name).Object, "status", "conditions")
		if err != nil {
			return err
		}
		for _, c := range conditions {
			c := c.(map[string]any)
			if c["type"] == "cascade.dev/Seeded" && c["status"] == string(want) {
				return nil
			}
		}
		return fmt.Errorf("conditions are %v", conditions)
	})
}

func (f *fleet) child1(t *testing.T, name string) *v1alpha1.Child {
	t.Helper()
	child, err := f.child(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	return child
}

// unreachable freezes a control plane, and then kills it.
func unreachable(h *hub, t *testing.T) {
	f := h.fleet(t, "unreachable", map[string]string{"app/note.yaml": noteNamed("note", "version", "1")})
	p := h.plane(t, "unreachable")
	f.layer(t, "app", "c")
	f.declare(t, "c")
	f.report(t, "c", initialized)
	f.handOver(t, "c", p.issue(t).kubeconfig)
	known := f.ready(t, "c", "")
	lost := func(t *testing.T) {
		t.Helper()
		child := f.says(t, "c", v1alpha1.ConnectedCondition, v1alpha1.ReasonUnreachable)
		since := meta.FindStatusCondition(child.Status.Conditions, v1alpha1.ConnectedCondition).LastTransitionTime
		// What is known stays, and the age of the outage is kept.
		sha := f.commit(t, map[string]string{"app/note.yaml": noteNamed("note", "version", time.Now().String())})
		f.fetched(t, sha)
		child = f.reconciled(t, "c")
		c := meta.FindStatusCondition(child.Status.Conditions, v1alpha1.ConnectedCondition)
		if c.Status != metav1.ConditionFalse || !c.LastTransitionTime.Equal(&since) {
			t.Errorf("Connected is %s since %s, it was lost at %s", c.Status, c.LastTransitionTime, since)
		}
		if len(child.Status.Layers) != 1 || child.Status.Layers[0].Digest == "" || *child.Status.Identity != *known.Status.Identity {
			t.Errorf("the records are %v and %v", child.Status.Identity, child.Status.Layers)
		}
		scenario.Eventually(t, scenario.Converge, "the layer counts it", func(ctx context.Context) error {
			layer := layerNamed(f, "app")
			if err := f.client.Get(ctx, client.ObjectKeyFromObject(layer), layer); err != nil {
				return err
			}
			if layer.Status.Children.Unreachable != 1 || len(layer.Status.Failing) != 1 || layer.Status.Failing[0].Reason != v1alpha1.ReasonUnreachable {
				return fmt.Errorf("counts are %v, failing %v", layer.Status.Children, layer.Status.Failing)
			}
			return nil
		})
		if f.cluster(t, "c").GetDeletionTimestamp() != nil {
			t.Error("the Cluster is being deleted")
		}
	}
	steps(t,
		step{"Frozen", func(t *testing.T) {
			if err := p.Signal(syscall.SIGSTOP); err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := p.Signal(syscall.SIGCONT); err != nil {
					t.Error(err)
				}
			}()
			f.request(t, &v1alpha1.Child{ObjectMeta: metav1.ObjectMeta{Namespace: f.name, Name: "c"}})
			lost(t)
		}},
		step{"Thawed", func(t *testing.T) { f.ready(t, "c", "") }},
		step{"Killed", func(t *testing.T) {
			if err := p.Signal(syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			f.request(t, &v1alpha1.Child{ObjectMeta: metav1.ObjectMeta{Namespace: f.name, Name: "c"}})
			lost(t)
		}},
		step{"Back", func(t *testing.T) {
			if err := p.StartControlPlane(t.Context()); err != nil {
				t.Fatal(err)
			}
			f.ready(t, "c", "")
		}},
	)
}
