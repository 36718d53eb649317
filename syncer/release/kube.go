package release

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	ssautil "github.com/fluxcd/pkg/ssa/utils"
	"helm.sh/helm/v4/pkg/kube"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/cli-runtime/pkg/resource"

	"github.com/cascade-gitops/cascade/inventory"
	"github.com/cascade-gitops/cascade/syncer/firstsync"
)

// kubeClient is Helm's client of Kubernetes for one action, with these
// differences. The guard deletes: nothing that it holds, and each object as it was
// judged. It waits as Flux does, and no longer than its context. Connections share
// the question whether the cluster answers. A panic becomes an error. Errors have no
// values of Secrets.
type kubeClient struct {
	*kube.Client
	ctx     context.Context
	session *session
	guard   *guard
	logs    *logs
	now     func() time.Time
	// firstSync is what is known of the Clusters of the cluster. It may be nil.
	firstSync firstsync.Keeper
	// readers judge objects that are waited for, before kstatus does.
	readers readers
	// uninstalling: an object that must stay stops the action.
	uninstalling bool
	// former is how many of the texts that Helm builds next without validation are of what is there, and
	// may have objects whose kinds are gone: -1 for all.
	former int
	// unbuilt is why the last text could not be built; nil if it was. Helm does not tell in each case.
	unbuilt error
	// unserved: nothing is built, because only the text is asked for, whose kinds need not be served.
	unserved bool
	// spared is what the action would have deleted.
	spared *verdicts
}

var (
	_ kube.Interface            = (*kubeClient)(nil)
	_ kube.InterfaceWaitOptions = (*kubeClient)(nil)
)

func newKubeClient(ctx context.Context, s *session, g *guard, l *logs, namespace string, custom readers, now func() time.Time) *kubeClient {
	c := &kube.Client{Factory: s, Namespace: namespace}
	//lint:ignore SA1019 the legacy waiter looks at nothing else
	c.WaitContext = ctx
	c.SetLogger(l)
	return &kubeClient{Client: c, ctx: ctx, session: s, guard: g, logs: l, now: now, readers: custom, spared: newVerdicts()}
}

// IsReachable implements kube.Interface.
func (k *kubeClient) IsReachable() error {
	if err := k.ctx.Err(); err != nil {
		return err
	}
	if err := k.session.cluster.Answers(k.ctx, k.now()); err != nil {
		return fmt.Errorf("kubernetes cluster unreachable: %w", err)
	}
	return nil
}

// Build implements kube.Interface. Helm compares objects by the namespace that their
// manifests have. A cluster-scoped object has none here, so that a chart may change or
// remove it without Helm taking the object for another one.
func (k *kubeClient) Build(r io.Reader, validate bool) (list kube.ResourceList, err error) {
	defer func() { k.unbuilt = err }()
	defer recovered(&err)
	if k.unserved {
		return nil, nil
	}
	text, err := io.ReadAll(r)
	if err != nil {
		return nil, err
	}
	list, err = k.Client.Build(bytes.NewReader(text), validate)
	if !validate && k.former != 0 {
		if k.former--; err != nil {
			list, err = k.buildServed(string(text), err)
		}
	}
	for _, info := range list {
		if info.Mapping.Scope.Name() == meta.RESTScopeNameRoot && info.Namespace != "" {
			info.Namespace = ""
			if err := meta.NewAccessor().SetNamespace(info.Object, ""); err != nil {
				return list, err
			}
		}
	}
	return list, err
}

// buildServed builds what is there of a text that could not be built. One object whose kind is gone, as when
// its definition was removed, would have none of the others changed or deleted, for good. One whose version is
// not served any more is built in the version that is.
func (k *kubeClient) buildServed(text string, failed error) (kube.ResourceList, error) {
	objects, err := checkedObjects(text)
	if err != nil {
		return nil, failed
	}
	versions, changed := map[schema.GroupVersionKind]string{}, false
	var served []*unstructured.Unstructured
	for _, u := range objects {
		kind := u.GroupVersionKind()
		version, known := versions[kind]
		if !known {
			if version, err = k.session.cluster.ServedVersion(k.ctx, inventory.Of(u)); err != nil {
				return nil, fmt.Errorf("%w: %w", failed, err)
			}
			versions[kind] = version
		}
		changed = changed || version != kind.Version
		if version != "" {
			u.SetGroupVersionKind(kind.GroupKind().WithVersion(version))
			served = append(served, u)
		}
	}
	if !changed {
		return nil, failed
	}
	rest, err := ssautil.ObjectsToYAML(served)
	if err != nil {
		return nil, fmt.Errorf("cannot write what is there of a manifest: %w", err)
	}
	return k.Client.Build(strings.NewReader(rest), false)
}

// Create implements kube.Interface.
func (k *kubeClient) Create(list kube.ResourceList, o ...kube.ClientCreateOption) (res *kube.Result, err error) {
	defer recovered(&err)
	if err := k.ctx.Err(); err != nil {
		return nil, err
	}
	k.hide(list)
	if err := errors.Join(k.mayCreate(list), k.mayStep(list)); err != nil {
		return nil, err
	}
	res, err = k.Client.Create(list, o...)
	return res, k.logs.redact(err)
}

// Update implements kube.Interface. When all targets are applied, it deletes the objects of
// originals that are not among them, except for those that must stay.
func (k *kubeClient) Update(originals, targets kube.ResourceList, o ...kube.ClientUpdateOption) (res *kube.Result, err error) {
	// Helm reads the result of an update that failed.
	res = &kube.Result{}
	defer recovered(&err)
	if err := k.ctx.Err(); err != nil {
		return res, err
	}
	k.hide(targets)
	if err := errors.Join(k.mayCreate(targets), k.mayStep(targets)); err != nil {
		return res, err
	}
	dropped := originals.Difference(targets)
	if len(dropped) > 0 {
		if err := k.guard.cluster.MayDelete(); err != nil {
			return res, err
		}
	}
	// Helm would delete what was dropped long after it was judged, and by its name alone.
	got, err := k.Client.Update(originals.Intersect(targets), targets, o...)
	if got != nil {
		res = got
	}
	if err = k.logs.redact(err); len(dropped) == 0 {
		return res, err
	}
	s := k.guard.sift(k.ctx, dropped, targets)
	s.putLast(k.guard.now())
	if err == nil {
		begun, errs := k.guard.deleteAll(k.ctx, s, s.deletable, metav1.DeletePropagationBackground)
		res.Deleted = among(dropped, begun)
		err = k.logs.redact(errors.Join(errs...))
	}
	k.spare(s)
	return res, err
}

// Delete implements kube.Interface.
func (k *kubeClient) Delete(list kube.ResourceList, policy metav1.DeletionPropagation) (res *kube.Result, errs []error) {
	defer func() {
		if r := recover(); r != nil {
			errs = append(errs, fmt.Errorf("helm panicked: %v", r))
		}
	}()
	if err := k.guard.cluster.MayDelete(); err != nil {
		return nil, []error{err}
	}
	s := k.guard.sift(k.ctx, list, nil)
	hooks := len(list) > 0 && isHook(list[0])
	if err := k.refuse(s, hooks); err != nil {
		k.spare(s)
		return nil, []error{err}
	}
	begun, errs := k.guard.deleteAll(k.ctx, s, s.deletable, policy)
	k.spare(s)
	if err := k.refuse(s, hooks); err != nil {
		errs = append(errs, err)
	}
	if len(errs) > 0 {
		return nil, errs
	}
	return &kube.Result{Deleted: among(list, append(begun, s.gone...))}, nil
}

// refuse returns an error if an object that must stay stops the action.
func (k *kubeClient) refuse(s *verdicts, hooks bool) error {
	switch {
	case len(s.held) > 0 && (k.uninstalling || hooks):
		return fmt.Errorf("%w: %s", errHeld, s.message())
	case len(s.awaited) > 0 && k.uninstalling:
		return fmt.Errorf("%w: %s is to be taken over by %s", errHeld, inventory.Names(s.awaited), s.candidates[0].NewOwner)
	case len(s.queued) > 0 && k.uninstalling:
		return fmt.Errorf("%w: %s goes when %s is gone", errHeld, inventory.Names(s.queued), s.inFlight)
	case len(s.withCluster) > 0 && k.uninstalling:
		return fmt.Errorf("%w: a Cluster needs %s", errHeld, inventory.Names(s.withCluster))
	}
	return nil
}

// among are those of a list that are among entries.
func among(list kube.ResourceList, entries []inventory.Entry) kube.ResourceList {
	return list.Filter(func(info *resource.Info) bool { return slices.Contains(entries, entryOf(info)) })
}

func (k *kubeClient) spare(s *verdicts) {
	k.spared.held = append(k.spared.held, s.held...)
	k.spared.withCluster = append(k.spared.withCluster, s.withCluster...)
	k.spared.awaited = append(k.spared.awaited, s.awaited...)
	k.spared.queued = append(k.spared.queued, s.queued...)
	k.spared.last = append(k.spared.last, s.last...)
	k.spared.lastFor = append(k.spared.lastFor, s.lastFor...)
	k.spared.foreign = append(k.spared.foreign, s.foreign...)
	if k.spared.unknown == "" {
		k.spared.unknown = s.unknown
	}
}

// hide keeps the values of Secrets out of logs and errors of the action.
func (k *kubeClient) hide(list kube.ResourceList) {
	var secrets []*unstructured.Unstructured
	for _, info := range list {
		if gvk := info.Mapping.GroupVersionKind; gvk.Group != "" || gvk.Kind != "Secret" {
			continue
		}
		if content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(info.Object); err == nil {
			u := &unstructured.Unstructured{Object: content}
			u.SetAPIVersion("v1")
			u.SetKind("Secret")
			secrets = append(secrets, u)
		}
	}
	if len(secrets) > 0 {
		k.logs.hide(secrets)
	}
}

// GetWaiter implements kube.Interface.
func (k *kubeClient) GetWaiter(s kube.WaitStrategy) (kube.Waiter, error) {
	return k.GetWaiterWithOptions(s)
}

// GetWaiterWithOptions implements kube.InterfaceWaitOptions.
func (k *kubeClient) GetWaiterWithOptions(s kube.WaitStrategy, o ...kube.WaitOption) (kube.Waiter, error) {
	if s == kube.LegacyStrategy {
		waiter, err := k.Client.GetWaiterWithOptions(s, o...)
		return parked{Waiter: waiter, ctx: k.ctx}, err
	}
	return &waiter{ctx: k.ctx, cluster: k.session.cluster, readers: k.readers, spared: k.spared, hooksOnly: s == kube.HookOnlyStrategy}, nil
}

// GetPodList implements kube.Interface, for the output of hooks that a chart asks for.
// Nobody reads that of an agent, so no Pod is looked for. Helm's own way would need a
// client that its IsReachable makes.
func (*kubeClient) GetPodList(string, metav1.ListOptions) (*corev1.PodList, error) {
	return &corev1.PodList{}, nil
}

// OutputContainerLogsForPodList implements kube.Interface.
func (*kubeClient) OutputContainerLogsForPodList(*corev1.PodList, string, func(namespace, pod, container string) io.Writer) error {
	return nil
}

// recovered turns a panic, which an object of a hostile chart may provoke, into
// an error. It is deferred.
func recovered(err *error) {
	if r := recover(); r != nil {
		*err = fmt.Errorf("helm panicked: %v", r)
	}
}
