package release

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"

	v2 "github.com/fluxcd/helm-controller/api/v2"
	"helm.sh/helm/v4/pkg/action"
	"helm.sh/helm/v4/pkg/chart/common/util"
	chart "helm.sh/helm/v4/pkg/chart/v2"
	"helm.sh/helm/v4/pkg/release/common"
	helmrelease "helm.sh/helm/v4/pkg/release/v1"
	"helm.sh/helm/v4/pkg/storage"
	"helm.sh/helm/v4/pkg/storage/driver"

	charts "github.com/cascade-gitops/cascade/syncer/chart"
	"github.com/cascade-gitops/cascade/syncer/source"
)

// helm runs one action of Helm's.
type helm struct {
	*run
	client *kubeClient
	logs   *logs
	cfg    *action.Configuration
	watch  *observer
	// rehearsal: an install or upgrade is rendered and not carried out. What it
	// would make is in rehearsed.
	rehearsal bool
	rehearsed *helmrelease.Release
}

// helm prepares an action. wrote sees what is really written to the storage.
func (n *run) helm(ctx context.Context, wrote func(*helmrelease.Release)) *helm {
	h := &helm{run: n, logs: newLogs(n.log, n.Now, n.req.Redact)}
	h.client = newKubeClient(ctx, n.session, n.guard, h.logs, n.namespace, n.readers, n.Now)
	h.client.firstSync = n.req.FirstSync
	h.watch = &observer{Driver: n.driver(), wrote: wrote}
	releases := storage.Init(h.watch)
	releases.SetLogger(nil)
	h.cfg = action.NewConfiguration(action.ConfigurationSetLogger(h.logs))
	h.cfg.RESTClientGetter = n.session
	h.cfg.KubeClient = h.client
	h.cfg.Releases = releases
	h.cfg.HookOutputFunc = func(_, _, _ string) io.Writer { return io.Discard }
	return h
}

// driver is Helm's storage of the release.
func (n *run) driver() *driver.Secrets {
	d := driver.NewSecrets(boundedSecrets{n.session.clientset.CoreV1().Secrets(n.storageNamespace)})
	d.SetLogger(nil)
	return d
}

// prepare loads the chart for rendering it under guard.
func (h *helm) prepare(ctx context.Context) (c *chart.Chart, values map[string]any, b *budget, err error) {
	loaded, err := h.req.Chart.Load(ctx)
	if err != nil {
		return nil, nil, nil, fmt.Errorf("cannot load chart: %w", err)
	}
	original := copyChart(loaded)
	original.Metadata.Version = h.req.Chart.Version
	if !h.skipsSchema() {
		if err := checkSchemas(original); err != nil {
			return nil, nil, nil, err
		}
		// Values that cannot be merged are reported by Helm.
		merged, err := util.CoalesceValues(copyChart(original), copyValues(h.req.Values))
		if err == nil {
			err = charts.CheckValidation(original, merged)
		}
		if source.ReasonOf(err) == source.ReasonLimitExceeded {
			return nil, nil, nil, err
		}
	}
	b = newBudget(ctx)
	c = copyChart(original)
	b.guard(c)
	h.cfg.CustomTemplateFuncs = b.functions(h.AllowDNSLookups, h.session.lookup(ctx, b))
	h.watch.rendered, h.watch.original = c, original
	return c, copyValues(h.req.Values), b, nil
}

func (h *helm) skipsSchema() bool {
	if h.obj.Status.LastAttemptedReleaseAction == v2.ReleaseActionInstall {
		return h.obj.GetInstall().DisableSchemaValidation
	}
	return h.obj.GetUpgrade().DisableSchemaValidation
}

// capable sets what the cluster can do, after definitions were applied.
func (h *helm) capable(c *chart.Chart, values map[string]any) (err error) {
	h.cfg.Capabilities, err = h.session.capabilities(c, values, h.Now())
	return err
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
	defer recovered(&err)
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
	c, values, b, err := h.prepare(ctx)
	if err != nil {
		return err
	}
	i.PostRenderer, i.PostRenderStrategy = postRenderers(h.obj, b), h.postRenderStrategy()
	if err := applyDefinitions(h.cfg, h.obj, spec.CRDs, c, values, i.ServerSideApply, i.WaitStrategy); err != nil {
		return fmt.Errorf("failed to apply CustomResourceDefinitions: %w", err)
	}
	if err := h.capable(c, values); err != nil {
		return err
	}
	if h.rehearsal {
		i.DryRunStrategy = action.DryRunServer
	}
	// Without a context of its own: it would leave the work behind in a goroutine.
	// The client ends it with ours.
	rel, err := i.Run(c, values)
	h.rehearsed, err = typed(rel, err)
	return b.explain(err)
}

func (h *helm) upgrade(ctx context.Context) (err error) {
	defer recovered(&err)
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
	c, values, b, err := h.prepare(ctx)
	if err != nil {
		return err
	}
	u.PostRenderer, u.PostRenderStrategy = postRenderers(h.obj, b), h.postRenderStrategy()
	if err := applyDefinitions(h.cfg, h.obj, spec.CRDs, c, values, serverSide, u.WaitStrategy); err != nil {
		return fmt.Errorf("failed to apply CustomResourceDefinitions: %w", err)
	}
	if err := h.capable(c, values); err != nil {
		return err
	}
	if h.rehearsal {
		u.DryRunStrategy = action.DryRunServer
	}
	rel, err := u.Run(h.name, c, values)
	h.rehearsed, err = typed(rel, err)
	return b.explain(err)
}

// serverSide resolves how objects are applied: as declared, or as the revision
// was that of returns.
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
	defer recovered(&err)
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
	// It deletes hooks whose logs nobody asked for any more; as with Flux that is
	// no part of the result.
	_ = after()
	return typed(tested, err)
}

// uninstall removes the newest revision of a release, and returns it.
func (h *helm) uninstall(name string) (rel *helmrelease.Release, err error) {
	defer recovered(&err)
	spec := h.obj.GetUninstall()
	h.client.uninstalling = true
	u := action.NewUninstall(h.cfg)
	u.Timeout = spec.GetTimeout(h.obj.GetTimeout()).Duration
	u.DisableHooks = spec.DisableHooks
	u.KeepHistory = spec.KeepHistory
	u.WaitStrategy = waitStrategy(h.obj, spec.DisableWait, h.UseHelm3Defaults)
	u.DeletionPropagation = spec.GetDeletionPropagation()
	res, err := u.Run(name)
	if res != nil {
		rel, _ = typed(res.Release, nil)
	}
	return rel, err
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
