package e2e

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	fluxmeta "github.com/fluxcd/pkg/apis/meta"
	ssautil "github.com/fluxcd/pkg/ssa/utils"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/capibridge"
	"github.com/cascade-gitops/cascade/deploy"
	"github.com/cascade-gitops/cascade/e2e/stage"
)

// hub is a management tier with the API of Cluster API but none of its
// controllers: a test does what they and a provider would do, and when. The agent
// runs as a process of the machine. The children are real control planes.
type hub struct {
	*stage.Stage
	tier   *stage.Tier
	client client.WithWatch
	agent  *stage.Agent
	flags  []string
}

// planeFlags are those of control planes without controllers and nodes: nothing is
// written that the test or the agent does not write. A revoked token is refused at
// once.
var planeFlags = []string{"--api-only", "--audit-reads", "--token-cache=0s"}

// startHub starts a hub that serves one version of Cluster, v1beta1 or v1beta2,
// and whose agent has these flags.
func startHub(t *testing.T, version string, flags ...string) *hub {
	t.Helper()
	bin, err := filepath.Abs(filepath.Join("..", "bin"))
	if err != nil {
		t.Fatal(err)
	}
	// Sockets below it must not have long names, as those of t.TempDir are.
	run, err := os.MkdirTemp("", "cascade-e2e-")
	if err != nil {
		t.Fatal(err)
	}
	h := &hub{flags: flags}
	if h.Stage, err = stage.Open(t.Context(), stage.Options{Run: run, Bin: []string{filepath.Join(bin, "race"), bin}, Log: t.Logf}); err != nil {
		t.Fatalf("cannot start the stage: %v", err)
	}
	t.Cleanup(func() {
		noRaces(t, h.Stage)
		if t.Failed() && h.agent != nil {
			h.tell(t)
		}
		if err := h.Close(); err != nil {
			t.Errorf("cannot clean up: %v", err)
		}
	})
	if h.tier, err = h.Cluster(t.Context(), "hub", "--api-only"); err != nil {
		t.Fatal(err)
	}
	if h.client, err = h.tier.Watcher(); err != nil {
		t.Fatal(err)
	}
	h.install(t, filepath.Join(bin, "capi", "crd", "bases", "cluster.x-k8s.io_clusters.yaml"), version)
	h.startAgent(t)
	return h
}

// install applies the CRDs of cascade and that of Clusters.
func (h *hub) install(t *testing.T, clusters, version string) {
	t.Helper()
	crds, err := deploy.CRDs()
	if err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(clusters)
	if err != nil {
		t.Fatal(err)
	}
	crd, err := ssautil.ReadObject(strings.NewReader(string(data)))
	if err != nil {
		t.Fatal(err)
	}
	versions, _, err := unstructured.NestedSlice(crd.Object, "spec", "versions")
	if err != nil {
		t.Fatal(err)
	}
	versions = slices.DeleteFunc(versions, func(v any) bool { return v.(map[string]any)["name"] != version })
	if len(versions) != 1 {
		t.Fatalf("Cluster has %d versions named %s", len(versions), version)
	}
	versions[0].(map[string]any)["storage"] = true
	if err := unstructured.SetNestedSlice(crd.Object, versions, "spec", "versions"); err != nil {
		t.Fatal(err)
	}
	unstructured.RemoveNestedField(crd.Object, "status")
	for _, u := range append(crds, crd) {
		h.apply(t, u)
	}
	h.apply(t, object("v1", "Namespace", "", v1alpha1.AgentNamespace))
	eventually(t, converge, "the kinds are served", func(ctx context.Context) error {
		for _, u := range []*unstructured.Unstructured{
			stage.Object("cluster.x-k8s.io/"+version, "Cluster"), stage.Object("cascade.dev/v1alpha1", "Layer"), stage.Object("cascade.dev/v1alpha1", "Child"),
			stage.Object("source.toolkit.fluxcd.io/v1", "GitRepository"), stage.Object("kustomize.toolkit.fluxcd.io/v1", "Kustomization"),
		} {
			list := &unstructured.UnstructuredList{}
			list.SetAPIVersion(u.GetAPIVersion())
			list.SetKind(u.GetKind() + "List")
			if err := h.client.List(ctx, list); err != nil {
				return err
			}
		}
		return nil
	})
}

func (h *hub) startAgent(t *testing.T) {
	t.Helper()
	var err error
	if h.agent, err = h.tier.StartAgent(t.Context(), h.flags...); err != nil {
		t.Fatal(err)
	}
}

// tell shows what a person would look at first.
func (h *hub) tell(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	out, err := h.Run(ctx, "cascade", "get", "all", "-A", "--kubeconfig", h.tier.Kubeconfig())
	t.Logf("cascade get all: %v\n%s", err, out)
	data, err := os.ReadFile(h.agent.Log)
	var errors []string
	for line := range strings.Lines(string(data)) {
		if !strings.Contains(line, `"level":"info"`) {
			errors = append(errors, line)
		}
	}
	t.Logf("errors in the agent's log: %v\n%s", err, strings.Join(errors[max(0, len(errors)-20):], ""))
}

func (h *hub) apply(t *testing.T, u *unstructured.Unstructured) {
	t.Helper()
	if err := h.client.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(u), client.ForceOwnership, client.FieldOwner("test")); err != nil {
		t.Fatalf("cannot apply %s %s: %v", u.GetKind(), u.GetName(), err)
	}
}

func object(apiVersion, kind, namespace, name string) *unstructured.Unstructured {
	u := stage.Object(apiVersion, kind)
	u.SetNamespace(namespace)
	u.SetName(name)
	return u
}

// yard is a namespace of a hub with a repository of its own, so that tests do not
// wake each other's children.
type yard struct {
	*hub
	namespace string
	// version of Clusters.
	version string
}

// yard makes a namespace, whose source fleet has these files.
func (h *hub) yard(t *testing.T, name string, files map[string]string) *yard {
	t.Helper()
	y := &yard{hub: h, namespace: name, version: "v1beta2"}
	if err := h.Git.Create(t.Context(), name); err != nil {
		t.Fatal(err)
	}
	h.apply(t, object("v1", "Namespace", "", name))
	username, password := h.Git.Login()
	secret := object("v1", "Secret", name, "git-auth")
	secret.Object["stringData"] = map[string]any{"username": username, "password": password}
	h.apply(t, secret)
	y.push(t, files)
	y.define(t, `{apiVersion: source.toolkit.fluxcd.io/v1, kind: GitRepository, metadata: {name: fleet}, spec: {url: "`+h.Git.HTTPURL(name)+
		`", ref: {branch: main}, secretRef: {name: git-auth}, interval: 1h}}`)
	return y
}

// push makes the repository have these files and returns the commit. Without
// content a file goes.
func (y *yard) push(t *testing.T, files map[string]string) string {
	t.Helper()
	sha, err := y.Git.Commit(t.Context(), y.namespace, "main", "Change "+strings.Join(slices.Sorted(maps.Keys(files)), ", "), func(dir string) error {
		for name, content := range files {
			name = filepath.Join(dir, name)
			if content == "" {
				if err := os.Remove(name); err != nil {
					return err
				}
				continue
			}
			if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
				return err
			}
			if err := os.WriteFile(name, []byte(content), 0o644); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatalf("cannot commit: %v", err)
	}
	return sha
}

// commit pushes and has the source fetched.
func (y *yard) commit(t *testing.T, files map[string]string) string {
	t.Helper()
	sha := y.push(t, files)
	y.request(t, &sourcev1.GitRepository{ObjectMeta: metav1.ObjectMeta{Namespace: y.namespace, Name: "fleet"}})
	return sha
}

// request asks for an object to be reconciled now and returns the token.
func (y *yard) request(t *testing.T, o client.Object) string {
	t.Helper()
	token := time.Now().Format(time.RFC3339Nano)
	y.annotate(t, o, fluxmeta.ReconcileRequestAnnotation, token)
	return token
}

func (y *yard) annotate(t *testing.T, o client.Object, key, value string) {
	t.Helper()
	y.patch(t, o, map[string]any{"metadata": map[string]any{"annotations": map[string]any{key: value}}})
}

func (y *yard) patch(t *testing.T, o client.Object, patch map[string]any) {
	t.Helper()
	text, err := json.Marshal(patch)
	if err != nil {
		t.Fatal(err)
	}
	if err := y.client.Patch(t.Context(), o, client.RawPatch(types.MergePatchType, text)); err != nil {
		t.Fatalf("cannot patch %s: %v", o.GetName(), err)
	}
}

// define applies objects of the namespace.
func (y *yard) define(t *testing.T, text string) {
	t.Helper()
	objects, err := ssautil.ReadObjects(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	for _, u := range objects {
		u.SetNamespace(y.namespace)
		y.apply(t, u)
	}
}

// layer defines a Layer that selects the clusters of a name, by a label that
// declare gives them, with these lines in its spec.
func (y *yard) layer(t *testing.T, name, cluster string, spec ...string) {
	t.Helper()
	y.define(t, "apiVersion: cascade.dev/v1alpha1\nkind: Layer\nmetadata:\n  name: "+name+"\nspec:\n  clusterSelector: {matchLabels: {cluster: "+cluster+"}}\n  "+
		"sourceRef: {kind: GitRepository, name: fleet}\n  path: ./"+name+"\n  "+strings.Join(spec, "\n  ")+"\n")
}

// clusterFinalizer is the one that Cluster API's controllers have on Clusters.
const clusterFinalizer = "cluster.cluster.x-k8s.io"

// declare creates a Cluster as a person does, with these lines in its spec.
func (y *yard) declare(t *testing.T, name string, spec ...string) *unstructured.Unstructured {
	t.Helper()
	ref := `apiGroup: %s.cluster.x-k8s.io`
	if y.version == "v1beta1" {
		ref = `apiVersion: %s.cluster.x-k8s.io/v1beta1`
	}
	text := fmt.Sprintf("apiVersion: cluster.x-k8s.io/%s\nkind: Cluster\nmetadata:\n  name: %s\n  labels: {cluster: %s}\n  finalizers: [%s]\nspec:\n"+
		"  infrastructureRef: {"+ref+", kind: LocalCluster, name: %s}\n  controlPlaneRef: {"+ref+", kind: LocalControlPlane, name: %s}\n",
		y.version, name, name, clusterFinalizer, "infrastructure", name, "controlplane", name)
	for _, line := range spec {
		text += "  " + line + "\n"
	}
	y.define(t, text)
	return y.cluster(t, name)
}

// cluster reads a Cluster.
func (y *yard) cluster(t *testing.T, name string) *unstructured.Unstructured {
	t.Helper()
	u := object("cluster.x-k8s.io/"+y.version, "Cluster", y.namespace, name)
	if err := y.client.Get(t.Context(), client.ObjectKeyFromObject(u), u); err != nil {
		t.Fatal(err)
	}
	return u
}

// report merges into the status of a Cluster what its controllers would.
func (y *yard) report(t *testing.T, name string, status map[string]any) {
	t.Helper()
	text, err := json.Marshal(map[string]any{"status": status})
	if err != nil {
		t.Fatal(err)
	}
	u := object("cluster.x-k8s.io/"+y.version, "Cluster", y.namespace, name)
	if err := y.client.Status().Patch(t.Context(), u, client.RawPatch(types.MergePatchType, text)); err != nil {
		t.Fatalf("cannot write status of Cluster %s: %v", name, err)
	}
}

// initialization of a control plane that answers.
var initialized = map[string]any{
	"phase": "Provisioned", "initialization": map[string]any{"infrastructureProvisioned": true, "controlPlaneInitialized": true},
}

// handOver writes the kubeconfig Secret of a Cluster as a provider does; change may
// alter it before.
func (y *yard) handOver(t *testing.T, name string, kubeconfig []byte, change ...func(*corev1.Secret)) {
	t.Helper()
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: y.namespace, Name: capibridge.KubeconfigSecret(name), Labels: map[string]string{capibridge.ClusterNameLabel: name}},
		Type:       "cluster.x-k8s.io/secret",
		Data:       map[string][]byte{capibridge.KubeconfigKey: kubeconfig},
	}
	for _, f := range change {
		f(secret)
	}
	err := y.client.Create(t.Context(), secret)
	if apierrors.IsAlreadyExists(err) {
		err = y.client.Update(t.Context(), secret)
	}
	if err != nil {
		t.Fatalf("cannot write kubeconfig of %s: %v", name, err)
	}
}

// child reads a Child.
func (y *yard) child(ctx context.Context, name string) (*v1alpha1.Child, error) {
	child := &v1alpha1.Child{}
	return child, y.client.Get(ctx, client.ObjectKey{Namespace: y.namespace, Name: name}, child)
}

// says waits until a condition of a Child has a reason, and a message that has
// the words. Reasons of success have status True, all others have not.
func (y *yard) says(t *testing.T, name, condition, reason string, words ...string) *v1alpha1.Child {
	t.Helper()
	var child *v1alpha1.Child
	eventually(t, converge, fmt.Sprintf("%s of %s is %s", condition, name, reason), func(ctx context.Context) (err error) {
		if child, err = y.child(ctx, name); err != nil {
			return err
		}
		c := meta.FindStatusCondition(child.Status.Conditions, condition)
		if c == nil || c.Reason != reason || (c.Status == metav1.ConditionTrue) != (reason == v1alpha1.ReasonSucceeded) {
			return fmt.Errorf("conditions are %s", summary(child.Status.Conditions))
		}
		for _, w := range words {
			if !strings.Contains(c.Message, w) {
				return fmt.Errorf("the message does not have %q: %s", w, c.Message)
			}
		}
		return nil
	})
	return child
}

// ready waits until a Child has all its layers, of the newest commit if one is
// named.
func (y *yard) ready(t *testing.T, name, commit string) *v1alpha1.Child {
	t.Helper()
	var child *v1alpha1.Child
	eventually(t, converge, "child "+name+" is ready", func(ctx context.Context) (err error) {
		if child, err = y.child(ctx, name); err != nil {
			return err
		}
		if !meta.IsStatusConditionTrue(child.Status.Conditions, v1alpha1.ReadyCondition) {
			return fmt.Errorf("conditions are %s", summary(child.Status.Conditions))
		}
		for _, l := range child.Status.Layers {
			if !l.Ready || !strings.HasSuffix(l.Revision, commit) {
				return fmt.Errorf("layer %s is ready %t at %s", l.Name, l.Ready, l.Revision)
			}
		}
		return nil
	})
	return child
}

// visit has a Child visited and waits until that has happened.
func (y *yard) visit(t *testing.T, name string) *v1alpha1.Child {
	t.Helper()
	token := y.request(t, &v1alpha1.Child{ObjectMeta: metav1.ObjectMeta{Namespace: y.namespace, Name: name}})
	var child *v1alpha1.Child
	eventually(t, converge, "child "+name+" is visited", func(ctx context.Context) (err error) {
		if child, err = y.child(ctx, name); err != nil {
			return err
		}
		if child.Status.LastHandledReconcileAt != token {
			return fmt.Errorf("handled %q, conditions are %s", child.Status.LastHandledReconcileAt, summary(child.Status.Conditions))
		}
		return nil
	})
	return child
}

// plane is a control plane that a provider made.
type plane struct {
	*stage.Tier
	client client.Client
	// issued counts the tokens.
	issued int
}

// plane starts an empty control plane that ends with the test.
func (h *hub) plane(t *testing.T, name string, flags ...string) *plane {
	t.Helper()
	if flags == nil {
		flags = planeFlags
	}
	tier, err := h.Cluster(t.Context(), name, flags...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if !t.Failed() {
			if err := tier.Remove(ctx); err != nil {
				t.Error(err)
			}
		}
	})
	p := &plane{Tier: tier}
	p.connect(t)
	return p
}

// connect to the control plane, and make the account of the provider.
func (p *plane) connect(t *testing.T) {
	t.Helper()
	var err error
	if p.client, err = p.Client(); err != nil {
		t.Fatal(err)
	}
	for _, o := range []client.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: provider}},
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: provider, Name: provider}},
		&rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: provider},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
			Subjects:   []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: provider, Name: provider}},
		},
	} {
		// The namespaces of the system come a moment after the API server.
		eventually(t, converge, "the account of the provider exists", func(ctx context.Context) error {
			if err := p.client.Create(ctx, o); !apierrors.IsAlreadyExists(err) {
				return err
			}
			return nil
		})
	}
}

// provider is the account of the provider in each child, and its namespace.
const provider = "provider"

// parentUser is how the audit log names the parent's account.
var parentUser = "system:serviceaccount:" + v1alpha1.AgentNamespace + ":" + v1alpha1.ParentServiceAccount

// login is a credential that a provider handed out.
type login struct {
	kubeconfig []byte
	// id is the token's, as the audit log has it.
	id     string
	secret *corev1.Secret
}

// issue makes a kubeconfig with a new token of the provider's account, which is
// valid until it is revoked.
func (p *plane) issue(t *testing.T) login {
	t.Helper()
	p.issued++
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: provider, Name: fmt.Sprintf("token-%d", p.issued)}}
	if err := p.client.Create(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		BoundObjectRef: &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Secret", Name: secret.Name, UID: secret.UID},
	}}
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: provider, Name: provider}}
	if err := p.client.SubResource("token").Create(t.Context(), account, request); err != nil {
		t.Fatal(err)
	}
	return login{
		kubeconfig: p.kubeconfig(t, func(_ *clientcmdapi.Cluster, u *clientcmdapi.AuthInfo) {
			*u = clientcmdapi.AuthInfo{Token: request.Status.Token}
		}),
		id: tokenID(t, request.Status.Token), secret: secret,
	}
}

// revoke has a token refused from now on.
func (p *plane) revoke(t *testing.T, old login) {
	t.Helper()
	if err := p.client.Delete(t.Context(), old.secret); err != nil {
		t.Fatal(err)
	}
}

// kubeconfig is the administrator's, changed.
func (p *plane) kubeconfig(t *testing.T, change func(*clientcmdapi.Cluster, *clientcmdapi.AuthInfo)) []byte {
	t.Helper()
	data, err := os.ReadFile(p.Kubeconfig())
	if err != nil {
		t.Fatal(err)
	}
	return changed(t, data, change)
}

// changed is a kubeconfig with other content of its context.
func changed(t *testing.T, kubeconfig []byte, change func(*clientcmdapi.Cluster, *clientcmdapi.AuthInfo)) []byte {
	t.Helper()
	config, err := clientcmd.Load(kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	current := config.Contexts[config.CurrentContext]
	change(config.Clusters[current.Cluster], config.AuthInfos[current.AuthInfo])
	data, err := clientcmd.Write(*config)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// tokenID reads the id out of a token.
func tokenID(t *testing.T, text string) string {
	t.Helper()
	parts := strings.Split(text, ".")
	if len(parts) != 3 {
		t.Fatal("the API server's token is no JWT")
	}
	payload, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		t.Fatal(err)
	}
	var claims struct {
		ID string `json:"jti"`
	}
	if err := json.Unmarshal(payload, &claims); err != nil || claims.ID == "" {
		t.Fatalf("the API server's token has no id: %v", err)
	}
	return claims.ID
}

// now is the end of the audit log.
func (p *plane) now(t *testing.T) int64 {
	t.Helper()
	_, end, err := p.Audit(0)
	if err != nil {
		t.Fatal(err)
	}
	return end
}

// requests are what agents asked of the control plane since an offset of its audit
// log, reads as well.
func (p *plane) requests(t *testing.T, from int64) []stage.AuditEvent {
	t.Helper()
	events, _, err := p.Audit(from)
	if err != nil {
		t.Fatal(err)
	}
	return slices.DeleteFunc(events, func(e stage.AuditEvent) bool { return !e.ByAgent() })
}

// writes are those of the requests that could change something.
func (p *plane) writes(t *testing.T, from int64) []stage.AuditEvent {
	t.Helper()
	return slices.DeleteFunc(p.requests(t, from), func(e stage.AuditEvent) bool { return !e.Writes() })
}

// refused are the requests of agents whose credential was not accepted.
func (p *plane) refused(t *testing.T, from int64) []stage.AuditEvent {
	t.Helper()
	return slices.DeleteFunc(p.requests(t, from), func(e stage.AuditEvent) bool { return e.ResponseStatus.Code != http.StatusUnauthorized })
}

// untouched fails the test if an agent wrote since an offset of the audit log.
func (p *plane) untouched(t *testing.T, from int64) {
	t.Helper()
	for _, e := range p.writes(t, from) {
		t.Errorf("%s was written to: %s %s by %s at %s", p.Name, e.Verb, e.RequestURI, e.User.Username, e.Received.Format(time.TimeOnly))
	}
}

// has waits until a ConfigMap of namespace default has a value.
func (p *plane) has(t *testing.T, name, key, want string) {
	t.Helper()
	eventually(t, converge, fmt.Sprintf("%s has ConfigMap %s", p.Name, name), func(ctx context.Context) error {
		got, err := p.value(ctx, name, key)
		if err == nil && got != want {
			return fmt.Errorf("%s is %q, want %q", key, got, want)
		}
		return err
	})
}

func (p *plane) value(ctx context.Context, name, key string) (string, error) {
	cm := &corev1.ConfigMap{}
	err := p.client.Get(ctx, client.ObjectKey{Namespace: metav1.NamespaceDefault, Name: name}, cm)
	return cm.Data[key], err
}

// hasNot fails the test if a ConfigMap of namespace default exists.
func (p *plane) hasNot(t *testing.T, name string) {
	t.Helper()
	if _, err := p.value(t.Context(), name, ""); !apierrors.IsNotFound(err) {
		t.Errorf("%s has ConfigMap %s, or it cannot be read: %v", p.Name, name, err)
	}
}

// noteNamed is a ConfigMap of namespace default, for repositories.
func noteNamed(name string, data ...string) string {
	text := "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: " + name + "\n  namespace: default\ndata:\n"
	for i := 0; i < len(data); i += 2 {
		text += "  " + data[i] + ": \"" + data[i+1] + "\"\n"
	}
	return text
}

// times is how often the long form of a test does something, by an environment
// variable; without it the short form does it as often as given.
func times(t *testing.T, variable string, short int) int {
	t.Helper()
	text := os.Getenv(variable)
	if text == "" {
		return short
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		t.Fatalf("%s must be a number above 0, it is %q", variable, text)
	}
	return n
}

// history is everything that a yard's Children, Layers and events said while it
// was kept.
type history struct {
	mu       sync.Mutex
	children []v1alpha1.Child
	layers   []v1alpha1.Layer
	warnings []corev1.Event
}

// keep begins a history, of layers that are in place. It ends with the test.
func (y *yard) keep(t *testing.T) *history {
	t.Helper()
	eventually(t, converge, "layers say that they are in place", func(ctx context.Context) error {
		list := &v1alpha1.LayerList{}
		if err := y.client.List(ctx, list, client.InNamespace(y.namespace)); err != nil {
			return err
		}
		for _, layer := range list.Items {
			if !meta.IsStatusConditionTrue(layer.Status.Conditions, v1alpha1.ReadyCondition) {
				return fmt.Errorf("conditions of layer %s are %s", layer.Name, summary(layer.Status.Conditions))
			}
		}
		return nil
	})
	h := &history{}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var ended sync.WaitGroup
	t.Cleanup(func() { cancel(); ended.Wait() })
	for _, list := range []client.ObjectList{&v1alpha1.ChildList{}, &v1alpha1.LayerList{}, &corev1.EventList{}} {
		w, err := y.client.Watch(ctx, list, client.InNamespace(y.namespace))
		if err != nil {
			t.Fatal(err)
		}
		ended.Go(func() {
			defer w.Stop()
			for event := range w.ResultChan() {
				h.add(event)
			}
		})
	}
	return h
}

func (h *history) add(event watch.Event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch o := event.Object.(type) {
	case *v1alpha1.Child:
		h.children = append(h.children, *o)
	case *v1alpha1.Layer:
		h.layers = append(h.layers, *o)
	case *corev1.Event:
		if o.Type == corev1.EventTypeWarning {
			h.warnings = append(h.warnings, *o)
		}
	}
}

// complaints are what a person would take for a failure. That a commit is on its
// way is none.
func (h *history) complaints() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	var found []string
	for _, child := range h.children {
		for _, c := range child.Status.Conditions {
			if c.Status != metav1.ConditionTrue && c.Reason != v1alpha1.ReasonProgressing {
				found = append(found, fmt.Sprintf("Child %s: %s=%s: %s: %s", child.Name, c.Type, c.Status, c.Reason, c.Message))
			}
		}
		for _, l := range child.Status.Layers {
			if !l.Ready && l.Reason != v1alpha1.ReasonProgressing && l.Reason != v1alpha1.ReasonSucceeded {
				found = append(found, fmt.Sprintf("Child %s: layer %s: %s: %s", child.Name, l.Name, l.Reason, l.Message))
			}
		}
	}
	for _, layer := range h.layers {
		for _, f := range layer.Status.Failing {
			if f.Reason != v1alpha1.ReasonProgressing && f.Reason != v1alpha1.ReasonSucceeded {
				found = append(found, fmt.Sprintf("Layer %s: %s: %s: %s", layer.Name, f.Name, f.Reason, f.Message))
			}
		}
	}
	for _, e := range h.warnings {
		found = append(found, fmt.Sprintf("event of %s %s: %s: %s", e.InvolvedObject.Kind, e.InvolvedObject.Name, e.Reason, e.Message))
	}
	slices.Sort(found)
	return slices.Compact(found)
}
