package faults

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	fluxmeta "github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/e2e/scenario"
	"github.com/cascade-gitops/cascade/e2e/stage"
)

// place is a namespace with a repository of its name, in which one thing happens once.
// Objects are named as RESOURCE/NAME.
type place struct {
	*worker
	ns      string
	commits history
	// definitions: it may have a kind of its own.
	definitions bool
	// from is where the audit log was before the change, before what was there.
	from   int64
	before map[string]object
	// child is nil if it has none, later the one that a Rollout comes to last.
	child, later *child
}

// children of the place.
func (p *place) children() []*child {
	return slices.DeleteFunc([]*child{p.child, p.later}, func(c *child) bool { return c == nil })
}

// object as the sweep finds it.
type object struct {
	uid, version, value string
	// owned: it has the labels of an owner in this namespace.
	owned bool
	// release is the state of a release, of one of Helm's records.
	release string
}

// bystander belongs to nobody.
const bystander = "configmaps/bystander"

// place makes one. Its source is that of a template, at the commit before.
func (w *worker) place(ctx context.Context, ns, template string, commits history) (*place, error) {
	p := &place{worker: w, ns: ns, commits: commits}
	if err := w.fork(template, ns); err != nil {
		return nil, err
	}
	user, password := w.Git.Login()
	return p, w.apply(ctx, fmt.Sprintf(`apiVersion: v1
kind: Namespace
metadata: {name: %[1]s}
---
apiVersion: v1
kind: Secret
metadata: {name: git-auth, namespace: %[1]s}
stringData: {username: %[2]s, password: %[3]s}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: bystander, namespace: %[1]s}
data: {value: "mine"}
---
apiVersion: source.toolkit.fluxcd.io/v1
kind: GitRepository
metadata: {name: git, namespace: %[1]s, labels: {worker: %[4]s}}
spec: {url: %[5]s, ref: {branch: main}, secretRef: {name: git-auth}, interval: 10m}
`, ns, user, password, w.name, w.Git.HTTPURL(ns)))
}

// kustomization creates one for the directory of its name.
func (p *place) kustomization(ctx context.Context, name string) error {
	return p.apply(ctx, kustomization(name, p.ns, p.name))
}

// kustomization is the manifest of one.
func kustomization(name, ns, worker string) string {
	return fmt.Sprintf(`apiVersion: kustomize.toolkit.fluxcd.io/v1
kind: Kustomization
metadata: {name: %[1]s, namespace: "%[2]s", labels: {worker: "%[3]s"}}
spec:
  sourceRef: {kind: GitRepository, name: git}
  path: ./%[1]s
  targetNamespace: "%[2]s"
  prune: true
  interval: 10m
  retryInterval: 1s
  postBuild: {substitute: {ns: "%[2]s", worker: "%[3]s"}}
`, name, ns, worker)
}

// commit moves the branch to the commit after, and tells the source.
func (p *place) commit(ctx context.Context) error { return p.to(ctx, p.commits.after) }

func (p *place) to(ctx context.Context, commit string) error {
	if err := p.advance(p.ns, commit); err != nil {
		return err
	}
	g := &sourcev1.GitRepository{ObjectMeta: metav1.ObjectMeta{Namespace: p.ns, Name: "git"}}
	patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q}}}`, fluxmeta.ReconcileRequestAnnotation, commit)
	return p.client.Patch(ctx, g, client.RawPatch("application/merge-patch+json", patch))
}

func (p *place) load(ctx context.Context, o client.Object, name string) error {
	return p.client.Get(ctx, client.ObjectKey{Namespace: p.ns, Name: name}, o)
}

// fetched is an error until the source has a commit.
func (p *place) fetched(ctx context.Context, commit string) error {
	g := &sourcev1.GitRepository{}
	if err := p.load(ctx, g, "git"); err != nil {
		return err
	}
	if a := g.Status.Artifact; a == nil || !strings.HasSuffix(a.Revision, commit) {
		return fmt.Errorf("artifact of the source is %+v", a)
	}
	return nil
}

// applied is an error until a Kustomization has applied a commit and says so.
func (p *place) applied(ctx context.Context, name, commit string) error {
	k := &kustomizev1.Kustomization{}
	if err := p.load(ctx, k, name); err != nil {
		return err
	}
	revision := "main@sha1:" + commit
	switch {
	case !settled(k.Status.Conditions, k.Generation) || k.Status.ObservedGeneration != k.Generation:
		return fmt.Errorf("conditions of Kustomization %s are %s", name, scenario.Summary(k.Status.Conditions))
	case k.Status.LastAppliedRevision != revision || k.Status.LastAttemptedRevision != revision:
		return fmt.Errorf("revisions of Kustomization %s are %s, %s", name, k.Status.LastAppliedRevision, k.Status.LastAttemptedRevision)
	case meta.FindStatusCondition(k.Status.Conditions, "HandOverPending") != nil:
		return fmt.Errorf("conditions of Kustomization %s are %s", name, scenario.Summary(k.Status.Conditions))
	}
	return nil
}

// settled: ready, and nothing is left to do.
func settled(conditions []metav1.Condition, generation int64) bool {
	ready := meta.FindStatusCondition(conditions, fluxmeta.ReadyCondition)
	return ready != nil && ready.Status == metav1.ConditionTrue && ready.ObservedGeneration == generation &&
		meta.FindStatusCondition(conditions, fluxmeta.ReconcilingCondition) == nil && meta.FindStatusCondition(conditions, fluxmeta.StalledCondition) == nil
}

// released is an error until a HelmRelease has a version of its chart and says so.
func (p *place) released(ctx context.Context, name, chart string) error {
	o := &helmv2.HelmRelease{}
	if err := p.load(ctx, o, name); err != nil {
		return err
	}
	latest := o.Status.History.Latest()
	if !settled(o.Status.Conditions, o.Generation) || o.Status.ObservedGeneration != o.Generation || latest == nil {
		return fmt.Errorf("conditions of HelmRelease %s are %s", name, scenario.Summary(o.Status.Conditions))
	}
	if latest.ChartVersion != chart || latest.Status != "deployed" {
		return fmt.Errorf("history of HelmRelease %s is %s", name, scenario.Snapshots(o))
	}
	return nil
}

// gone is an error until an object is not there any more.
func (p *place) gone(ctx context.Context, o client.Object, name string) error {
	if err := p.load(ctx, o, name); !apierrors.IsNotFound(err) {
		return errors.Join(fmt.Errorf("%T %s is there", o, name), err)
	}
	return nil
}

// swept are the kinds that a sweep looks for, by their resource.
func (p *place) swept() map[string]*unstructured.UnstructuredList {
	kinds := map[string]*unstructured.UnstructuredList{}
	for resource, kind := range map[string][2]string{
		"configmaps": {"v1", "ConfigMap"}, "secrets": {"v1", "Secret"},
		"kustomizations":            {"kustomize.toolkit.fluxcd.io/v1", "Kustomization"},
		"helmcharts":                {"source.toolkit.fluxcd.io/v1", "HelmChart"},
		"customresourcedefinitions": {"apiextensions.k8s.io/v1", "CustomResourceDefinition"},
	} {
		kinds[resource] = listOf(kind[0], kind[1])
	}
	if p.definitions {
		kinds["things"] = listOf(p.ns+".example.com/v1", "Thing")
	}
	return kinds
}

func listOf(apiVersion, kind string) *unstructured.UnstructuredList {
	list := &unstructured.UnstructuredList{}
	list.SetAPIVersion(apiVersion)
	list.SetKind(kind + "List")
	return list
}

// sweep finds what there is in the namespace, and what has the labels of an owner in
// the namespace, wherever it is.
func (p *place) sweep(ctx context.Context) (map[string]object, error) {
	found := map[string]object{}
	for resource, list := range p.swept() {
		options := []client.ListOption{client.InNamespace(p.ns)}
		if resource == "customresourcedefinitions" {
			options = []client.ListOption{client.MatchingLabels{"kustomize.toolkit.fluxcd.io/namespace": p.ns}}
		}
		err := p.client.List(ctx, list, options...)
		if resource == "things" && (meta.IsNoMatchError(err) || apierrors.IsNotFound(err)) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("cannot list %s: %w", resource, err)
		}
		for i := range list.Items {
			u := &list.Items[i]
			value, _, _ := unstructured.NestedString(u.Object, "data", "value")
			labels := u.GetLabels()
			found[resource+"/"+u.GetName()] = object{
				uid: string(u.GetUID()), version: u.GetResourceVersion(), value: value,
				release: labels["status"],
				owned:   labels["kustomize.toolkit.fluxcd.io/namespace"] == p.ns || labels["helm.toolkit.fluxcd.io/namespace"] == p.ns,
			}
		}
	}
	return found, nil
}

// noted records what is there before the change.
func (p *place) noted(ctx context.Context) (err error) {
	if p.before, err = p.sweep(ctx); err != nil {
		return err
	}
	p.from, err = p.auditEnd()
	return err
}

// expectation of a place after the change.
type expectation struct {
	// there are the objects that must be there, with the value that they have; "" is any.
	there map[string]string
	// may are what Helm and the agent keep for themselves, by the beginning of the name.
	may []string
	// goes are the objects that may be deleted.
	goes []string
	// owners are the Kustomizations whose inventories together are what is there.
	owners []string
}

// verdict are the violations: what is lost, recreated, left behind, changed though it is
// another's, or deleted though it is declared.
func (p *place) verdict(ctx context.Context, e expectation) ([]string, error) {
	var wrong []string
	violation := func(format string, args ...any) { wrong = append(wrong, p.ns+": "+fmt.Sprintf(format, args...)) }
	now, err := p.sweep(ctx)
	if err != nil {
		return nil, err
	}
	for id, value := range e.there {
		switch is, ok := now[id]; {
		case !ok:
			violation("%s is lost", id)
		case p.before[id].uid != "" && p.before[id].uid != is.uid:
			violation("%s was recreated", id)
		case value != "" && is.value != value:
			violation("%s has value %q, not %q", id, is.value, value)
		}
	}
	if now[bystander] != p.before[bystander] {
		violation("%s was %+v and is %+v", bystander, p.before[bystander], now[bystander])
	}
	own := append([]string{bystander, "secrets/git-auth"}, e.may...)
	for id, is := range now {
		if strings.HasPrefix(is.release, "pending") || is.release == "uninstalling" {
			violation("%s is %s", id, is.release)
		}
		if _, declared := e.there[id]; declared || slices.ContainsFunc(own, func(prefix string) bool { return strings.HasPrefix(id, prefix) }) {
			continue
		}
		violation("%s is left behind", id)
	}
	if len(e.owners) > 0 {
		listed, err := p.inventories(ctx, e.owners)
		if err != nil {
			return nil, err
		}
		var want []string
		for id := range e.there {
			if now[id].owned {
				want = append(want, id[strings.Index(id, "/")+1:])
			}
		}
		slices.Sort(want)
		if !slices.Equal(listed, want) {
			violation("inventories have %v, not %v", listed, want)
		}
	}
	events, _, err := p.plane.Audit(p.from)
	if err != nil {
		return nil, err
	}
	for _, event := range events {
		of := event.ObjectRef
		id := of.Resource + "/" + of.Name
		if !event.ByAgent() || !strings.HasPrefix(event.Verb, "delete") || event.ResponseStatus.Code >= 300 || strings.Contains(event.RequestURI, "dryRun") ||
			of.Namespace != p.ns && !strings.Contains(of.Name, p.ns) {
			continue
		}
		if !slices.Contains(e.goes, id) && !slices.ContainsFunc(e.may, func(prefix string) bool { return strings.HasPrefix(id, prefix) }) {
			violation("the agent deleted %s", id)
		}
	}
	slices.Sort(wrong)
	return wrong, nil
}

// inventories are the names of what Kustomizations have in their inventories, sorted.
func (p *place) inventories(ctx context.Context, owners []string) ([]string, error) {
	var names []string
	for _, owner := range owners {
		k := &kustomizev1.Kustomization{}
		if err := p.load(ctx, k, owner); err != nil {
			return nil, err
		}
		if k.Status.Inventory == nil {
			continue
		}
		for _, entry := range k.Status.Inventory.Entries {
			names = append(names, strings.Split(entry.ID, "_")[1])
		}
	}
	slices.Sort(names)
	return names, nil
}

// forgotten is an error until a Kustomization has taken an object that it deleted off
// its inventory, which it does when it has seen that the object is gone.
func (p *place) forgotten(ctx context.Context, owner, name string) error {
	listed, err := p.inventories(ctx, []string{owner})
	if err != nil {
		return err
	}
	if slices.Contains(listed, name) {
		return fmt.Errorf("the inventory of Kustomization %s is %v", owner, listed)
	}
	return nil
}

// clear takes a place away, without the agent: what is left of it would be looked at
// at every start.
func (p *place) clear(ctx context.Context) error {
	var failures []error
	if p.child != nil {
		failures = append(failures, p.clearChildren(ctx))
	}
	for _, list := range []client.ObjectList{&kustomizev1.KustomizationList{}, &helmv2.HelmReleaseList{}, &sourcev1.HelmChartList{}, &sourcev1.HelmRepositoryList{}, &sourcev1.GitRepositoryList{}} {
		if err := p.client.List(ctx, list, client.InNamespace(p.ns)); err != nil {
			return err
		}
		objects, err := meta.ExtractList(list)
		if err != nil {
			return err
		}
		for _, o := range objects {
			failures = append(failures, p.remove(ctx, o.(client.Object)))
		}
	}
	for _, o := range []client.Object{&corev1.ConfigMap{}, &corev1.Secret{}} {
		failures = append(failures, p.client.DeleteAllOf(ctx, o, client.InNamespace(p.ns)))
	}
	crd := stage.Object("apiextensions.k8s.io/v1", "CustomResourceDefinition")
	crd.SetName("things." + p.ns + ".example.com")
	failures = append(failures, client.IgnoreNotFound(p.client.Delete(ctx, crd)), os.RemoveAll(p.bare(p.ns)))
	return errors.Join(failures...)
}

// clearChildren takes the clusters first: with them the agent lets go of all that is below.
func (p *place) clearChildren(ctx context.Context) error {
	failures := []error{p.client.DeleteAllOf(ctx, &v1alpha1.Rollout{}, client.InNamespace(p.ns)), p.client.DeleteAllOf(ctx, &v1alpha1.Layer{}, client.InNamespace(p.ns))}
	for name, c := range map[string]*child{"it": p.child, "later": p.later} {
		if c == nil {
			continue
		}
		cluster := stage.Object("cluster.x-k8s.io/v1beta2", "Cluster")
		cluster.SetNamespace(p.ns)
		cluster.SetName(name)
		if err := p.remove(ctx, cluster); err != nil {
			return err
		}
		failures = append(failures, await(ctx, patience, func(ctx context.Context) error { return p.gone(ctx, &v1alpha1.Child{}, name) }))
		p.fleet.Remove(c.cluster.Name)
		c.proxy.Close()
	}
	return errors.Join(failures...)
}

// remove deletes an object without what its finalizers stand for.
func (p *place) remove(ctx context.Context, o client.Object) error {
	if err := p.client.Patch(ctx, o, client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"finalizers":null}}`))); err != nil {
		return client.IgnoreNotFound(err)
	}
	return client.IgnoreNotFound(p.client.Delete(ctx, o))
}

// ids are the names of n ConfigMaps, RESOURCE/NAME.
func ids(prefix string, from, to int, value string) map[string]string {
	all := map[string]string{}
	for i := from; i < to; i++ {
		all[fmt.Sprintf("configmaps/%s-%02d", prefix, i)] = value
	}
	return all
}

// union of maps, of which the last wins.
func union(all ...map[string]string) map[string]string {
	u := map[string]string{}
	for _, m := range all {
		maps.Copy(u, m)
	}
	return u
}

// manifests of such ConfigMaps.
func manifests(prefix string, from, to int, value string) string {
	var all []string
	for i := from; i < to; i++ {
		all = append(all, scenario.ConfigMap(fmt.Sprintf("%s-%02d", prefix, i), value))
	}
	return strings.Join(all, "---\n")
}
