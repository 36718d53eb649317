package release

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"

	v2 "github.com/fluxcd/helm-controller/api/v2"
	"helm.sh/helm/v4/pkg/action"
	"helm.sh/helm/v4/pkg/release/common"
	helmrelease "helm.sh/helm/v4/pkg/release/v1"
	"helm.sh/helm/v4/pkg/storage"
	"helm.sh/helm/v4/pkg/storage/driver"

	"github.com/cascade-gitops/cascade/syncer/release/sandbox"
)

// helm runs one action of Helm's in a cluster. It is an actor.
type helm struct {
	*run
	session *session
	client  *kubeClient
	logs    *logs
	cfg     *action.Configuration
	watch   *observer
	// rehearsal: an install or upgrade is rendered and not carried out. What it
	// would make is in rehearsed.
	rehearsal bool
	rehearsed *helmrelease.Release
}

var _ actor = (*helm)(nil)

// newHelm prepares an action. wrote sees what is really written to the storage.
func newHelm(ctx context.Context, n *run, s *session, custom readers, wrote func(*helmrelease.Release)) *helm {
	h := &helm{run: n, session: s, logs: newLogs(n.log, n.Now, n.req.Redact)}
	h.client = newKubeClient(ctx, s, n.guard, h.logs, n.namespace, custom, n.Now)
	h.client.firstSync, h.client.unserved = n.req.FirstSync, n.aside && n.req.Unserved
	// An action that was cancelled records its end.
	h.watch = &observer{Driver: helmStore{s, n.memory}.driver(context.WithoutCancel(ctx), n.storageNamespace), wrote: wrote}
	releases := storage.Init(h.watch)
	releases.SetLogger(nil)
	h.cfg = action.NewConfiguration(action.ConfigurationSetLogger(h.logs))
	h.cfg.RESTClientGetter = s
	h.cfg.KubeClient = h.client
	h.cfg.Releases = releases
	h.cfg.HookOutputFunc = func(_, _, _ string) io.Writer { return io.Discard }
	return h
}

func (h *helm) spared() *verdicts { return h.client.spared }

func (h *helm) withLogs(message string) string { return h.logs.after(message) }

// end turns a panic of Helm into an error, and takes the values of Secrets out
// of an error. Actions defer it.
func (h *helm) end(err *error) {
	if r := recover(); r != nil {
		*err = fmt.Errorf("helm panicked: %v", r)
	}
	*err = h.logs.redact(*err)
}

// rehearse renders what an install or upgrade would make. It writes nothing but
// the definitions of the chart: without them the API server may not know the
// kinds of the rest.
func (h *helm) rehearse(ctx context.Context, next Action) (*helmrelease.Release, error) {
	h.rehearsal = true
	run := h.upgrade
	if next == Install {
		run = h.install
	}
	if err := run(ctx); err != nil {
		return nil, err
	}
	if h.rehearsed == nil {
		return nil, errors.New("the rendering is empty")
	}
	return h.rehearsed, nil
}

// render loads the chart and calls f with what Helm is to render instead of it.
func (h *helm) render(ctx context.Context, crds definitions, f func(sandbox.Rendering) error) error {
	loaded, err := h.req.Chart.Load(ctx)
	if err != nil {
		return fmt.Errorf("cannot load chart: %w", err)
	}
	return sandbox.Render(ctx, sandbox.Request{
		Chart: loaded, Version: h.req.Chart.Version, Values: h.req.Values, SkipSchemas: h.skipsSchema(), DNS: h.AllowDNSLookups,
		Cluster:       sandbox.Cluster{Mapper: h.session.cluster.RESTMapper(), Objects: h.session.dynamic},
		PostRenderers: postRenderers(ctx, h.obj, h.workers(h.obj)), Workers: h.workers(h.obj), Room: h.room,
	}, func(r sandbox.Rendering) error {
		h.cfg.CustomTemplateFuncs = r.Functions
		h.watch.rendered, h.watch.original = r.Chart, r.Original
		if !h.aside {
			if err := crds.apply(h.cfg, h.obj, r.Chart, r.Values); err != nil {
				return fmt.Errorf("failed to apply CustomResourceDefinitions: %w", err)
			}
		}
		// What the cluster can do is asked after definitions were applied.
		var err error
		if h.cfg.Capabilities, err = h.session.capabilities(ctx, r.Original, r.Values, h.Now()); err != nil {
			return err
		}
		return f(r)
	})
}

func (h *helm) skipsSchema() bool {
	if h.obj.Status.LastAttemptedReleaseAction == v2.ReleaseActionInstall {
		return h.obj.GetInstall().DisableSchemaValidation
	}
	return h.obj.GetUpgrade().DisableSchemaValidation
}

// postRenderStrategy says what is sent to post renderers.
func (h *helm) postRenderStrategy() action.PostRenderStrategy {
	switch s := h.obj.GetPostRenderStrategy(); {
	case s != "":
		return action.PostRenderStrategy(s)
	case h.UseHelm3Defaults:
		return action.PostRenderStrategyNoHooks
	}
	return action.PostRenderStrategyCombined
}

func (h *helm) install(ctx context.Context) (err error) {
	defer h.end(&err)
	spec := h.obj.GetInstall()
	i := action.NewInstall(h.cfg)
	i.ServerSideApply = !h.UseHelm3Defaults
	if spec.ServerSideApply != nil {
		i.ServerSideApply = *spec.ServerSideApply
	}
	i.ForceConflicts = i.ServerSideApply
	i.ReleaseName, i.Namespace = h.name, h.namespace
	i.Timeout = spec.GetTimeout(h.obj.GetTimeout()).Duration
	i.TakeOwnership = !spec.DisableTakeOwnership
	i.WaitStrategy = waitStrategy(h.obj, spec.DisableWait, h.UseHelm3Defaults)
	i.WaitForJobs = !spec.DisableWaitForJobs
	i.DisableHooks = spec.DisableHooks
	i.DisableOpenAPIValidation = spec.DisableOpenAPIValidation
	i.SkipSchemaValidation = spec.DisableSchemaValidation
	i.Replace = spec.Replace
	i.Devel, i.SkipCRDs = true, true
	i.CreateNamespace = spec.CreateNamespace && h.obj.Spec.TargetNamespace != ""
	i.EnableDNS = h.AllowDNSLookups
	if h.rehearsal {
		i.DryRunStrategy = action.DryRunServer
	}
	crds := definitions{policy: spec.CRDs, serverSide: i.ServerSideApply, wait: i.WaitStrategy}
	return h.render(ctx, crds, func(r sandbox.Rendering) error {
		i.PostRenderer, i.PostRenderStrategy = r.PostRenderer, h.postRenderStrategy()
		// Run gets no context: with one, Helm would leave the work behind in a
		// goroutine when it ends. The Kubernetes client ends the work with ours.
		rel, err := i.Run(r.Chart, r.Values)
		h.rehearsed, err = typed(rel, err)
		return err
	})
}

func (h *helm) upgrade(ctx context.Context) (err error) {
	defer h.end(&err)
	spec := h.obj.GetUpgrade()
	u := action.NewUpgrade(h.cfg)
	serverSide, err := h.serverSide(spec.ServerSideApply, func() (*helmrelease.Release, error) {
		last, err := typed(h.cfg.Releases.Last(h.name))
		if errors.Is(err, driver.ErrReleaseNotFound) {
			return nil, driver.NewErrNoDeployedReleases(h.name)
		}
		return last, err
	})
	if err != nil {
		return err
	}
	u.ServerSideApply = strconv.FormatBool(serverSide)
	u.ForceConflicts = serverSide
	u.ForceReplace = spec.Force && !serverSide
	u.Namespace = h.namespace
	u.ResetValues, u.ReuseValues = !spec.PreserveValues, spec.PreserveValues
	u.MaxHistory = h.obj.GetMaxHistory()
	u.Timeout = spec.GetTimeout(h.obj.GetTimeout()).Duration
	u.TakeOwnership = !spec.DisableTakeOwnership
	u.WaitStrategy = waitStrategy(h.obj, spec.DisableWait, h.UseHelm3Defaults)
	u.WaitForJobs = !spec.DisableWaitForJobs
	u.DisableHooks = spec.DisableHooks
	u.DisableOpenAPIValidation = spec.DisableOpenAPIValidation
	u.SkipSchemaValidation = spec.DisableSchemaValidation
	u.CleanupOnFail = spec.CleanupOnFail
	u.Devel = true
	u.EnableDNS = h.AllowDNSLookups
	if h.rehearsal {
		u.DryRunStrategy = action.DryRunServer
	}
	if !spec.DisableOpenAPIValidation { // what is new is built with it, and has to be of kinds that are there
		h.client.former = -1
	}
	crds := definitions{policy: spec.CRDs, serverSide: serverSide, wait: u.WaitStrategy, preserve: spec.PreserveValues}
	return h.render(ctx, crds, func(r sandbox.Rendering) error {
		u.PostRenderer, u.PostRenderStrategy = r.PostRenderer, h.postRenderStrategy()
		if spec.DisableOpenAPIValidation {
			// Helm builds what is new, what is there, and what is new again: the last of these fails for a kind that is not there.
			h.client.former = 2
		}
		rel, err := u.Run(h.name, r.Chart, r.Values)
		h.rehearsed, err = typed(rel, err)
		return err
	})
}

// serverSide resolves how objects are applied: as declared or, for auto, as the
// revision was applied that of returns.
func (h *helm) serverSide(mode v2.ServerSideApplyMode, of func() (*helmrelease.Release, error)) (bool, error) {
	switch mode {
	case v2.ServerSideApplyEnabled:
		return true, nil
	case v2.ServerSideApplyDisabled:
		return false, nil
	case v2.ServerSideApplyAuto, "":
		rel, err := of()
		if err != nil {
			return false, err
		}
		return rel.ApplyMethod == string(helmrelease.ApplyMethodServerSideApply), nil
	}
	return false, fmt.Errorf("invalid serverSideApply mode %q", mode)
}

func (h *helm) rollback(to *v2.Snapshot) (err error) {
	defer h.end(&err)
	spec := h.obj.GetRollback()
	serverSide, err := h.serverSide(spec.ServerSideApply, func() (*helmrelease.Release, error) {
		return typed(h.cfg.Releases.Get(to.Name, to.Version))
	})
	if err != nil {
		return err
	}
	r := action.NewRollback(h.cfg)
	r.ServerSideApply = strconv.FormatBool(serverSide)
	r.ForceConflicts = serverSide
	r.ForceReplace = spec.Force && !serverSide
	r.Version = to.Version
	r.Timeout = spec.GetTimeout(h.obj.GetTimeout()).Duration
	r.WaitStrategy = waitStrategy(h.obj, spec.DisableWait, h.UseHelm3Defaults)
	r.WaitForJobs = !spec.DisableWaitForJobs
	r.DisableHooks = spec.DisableHooks
	r.CleanupOnFail = spec.CleanupOnFail
	r.MaxHistory = h.obj.GetMaxHistory()
	h.client.former = 1 // what it goes back to is built after what is there
	return r.Run(to.Name)
}

// test runs the tests of the newest revision, which is returned.
func (h *helm) test() (rel *helmrelease.Release, err error) {
	defer recovered(&err)
	spec := h.obj.GetTest()
	t := action.NewReleaseTesting(h.cfg)
	t.Namespace = h.namespace
	t.Timeout = spec.GetTimeout(h.obj.GetTimeout()).Duration
	for _, f := range spec.GetFilters() {
		by := action.IncludeNameFilter
		if f.Exclude {
			by = action.ExcludeNameFilter
		}
		t.Filters[by] = append(t.Filters[by], f.Name)
	}
	tested, after, err := t.Run(h.name)
	// after deletes hooks whose logs are not needed any more. As in Flux, its error
	// is not part of the result.
	_ = after()
	return typed(tested, err)
}

// uninstall removes the newest revision of a release, and returns it.
func (h *helm) uninstall(name string) (rel *helmrelease.Release, err error) {
	defer h.end(&err)
	spec := h.obj.GetUninstall()
	h.client.uninstalling, h.client.former = true, -1
	u := action.NewUninstall(h.cfg)
	u.Timeout = spec.GetTimeout(h.obj.GetTimeout()).Duration
	u.DisableHooks = spec.DisableHooks
	u.KeepHistory = spec.KeepHistory
	u.WaitStrategy = waitStrategy(h.obj, spec.DisableWait, h.UseHelm3Defaults)
	u.DeletionPropagation = spec.GetDeletionPropagation()
	res, err := u.Run(name)
	if err != nil && h.client.unbuilt != nil {
		err = fmt.Errorf("%w: %w", err, h.client.unbuilt)
	}
	if res != nil {
		rel, _ = typed(res.Release, nil)
	}
	return rel, err
}

// begun marks a revision as one whose uninstall began, as Helm's own uninstall does.
func (h *helm) begun(rel *helmrelease.Release) error {
	rel.SetStatus(common.StatusUninstalling, "Deletion in progress (or silently failed)")
	return h.cfg.Releases.Update(rel)
}

// unlock marks a release as failed whose action never ended.
func (h *helm) unlock() (was common.Status, rel *helmrelease.Release, err error) {
	rel, err = typed(h.cfg.Releases.Last(h.name))
	if err != nil {
		return "", nil, err
	}
	if was = rel.Info.Status; !was.IsPending() {
		return "", rel, nil
	}
	rel.SetStatus(common.StatusFailed, fmt.Sprintf("Release unlocked from stale '%s' state", was))
	return was, rel, h.cfg.Releases.Update(rel)
}
