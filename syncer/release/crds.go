package release

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	v2 "github.com/fluxcd/helm-controller/api/v2"
	"helm.sh/helm/v4/pkg/action"
	"helm.sh/helm/v4/pkg/chart/common/util"
	chart "helm.sh/helm/v4/pkg/chart/v2"
	chartutil "helm.sh/helm/v4/pkg/chart/v2/util"
	"helm.sh/helm/v4/pkg/kube"
	"helm.sh/helm/v4/pkg/release/common"
	"helm.sh/helm/v4/pkg/storage/driver"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/cli-runtime/pkg/resource"

	"github.com/cascade-gitops/cascade/syncer/release/sandbox"
	"github.com/cascade-gitops/cascade/syncer/render"
)

// definitionWait is how long new definitions may take to be served.
const definitionWait = 60 * time.Second

// definitions says how the CRDs of the crds directories of a chart are applied.
// They are no part of the release: Helm deletes none of them, ever.
type definitions struct {
	policy     v2.CRDsPolicy
	serverSide bool
	wait       kube.WaitStrategy
	// preserve: the values are over those of the release before.
	preserve bool
}

// apply applies the definitions of a chart by their policy. It changes neither the chart nor the values.
func (d definitions) apply(cfg *action.Configuration, obj *v2.HelmRelease, c *chart.Chart, values map[string]any) error {
	policy := d.policy
	if policy == "" {
		policy = v2.Create
	}
	switch {
	case policy != v2.Skip && policy != v2.Create && policy != v2.CreateReplace:
		return fmt.Errorf("invalid CRD upgrade policy '%s', valid values are '%s', '%s' or '%s'", policy, v2.Skip, v2.Create, v2.CreateReplace)
	case len(c.CRDObjects()) == 0 || policy == v2.Skip:
		return nil
	}
	// Which subcharts count is known after this only. Helm finds that out again, for the chart that it renders.
	c, values = sandbox.CopyChart(c), sandbox.CopyValues(values)
	if d.preserve {
		var err error
		if values, err = preserveValues(cfg, obj, c, values); err != nil {
			return err
		}
	}
	if err := chartutil.ProcessDependencies(c, values); err != nil {
		return fmt.Errorf("failed to process chart dependencies: %w", err)
	}
	list, err := buildDefinitions(cfg, obj, c)
	if err != nil || len(list) == 0 {
		return err
	}
	cfg.Logger().Info(fmt.Sprintf("applying CustomResourceDefinition(s) with policy %s", policy))
	var applied kube.ResourceList
	if policy == v2.Create {
		applied, err = createDefinitions(cfg, obj, list, d.serverSide)
	} else {
		applied, err = replaceDefinitions(cfg, list, d.serverSide)
	}
	if err != nil {
		return err
	}
	waiter, err := cfg.KubeClient.GetWaiter(d.wait)
	if err != nil {
		return fmt.Errorf("failed to create CustomResourceDefinition waiter: %w", err)
	}
	// One that is there already may have been created a moment ago, by another release.
	if err := waiter.Wait(list, definitionWait); err != nil {
		return fmt.Errorf("failed to wait for CustomResourceDefinition(s): %w", err)
	}
	cfg.Logger().Info(fmt.Sprintf("successfully applied %d CustomResourceDefinition(s)", len(applied)))
	return nil
}

// preserveValues gives a chart the values that Helm will give it when it preserves those of the release before, and
// returns what it will render it with.
func preserveValues(cfg *action.Configuration, obj *v2.HelmRelease, c *chart.Chart, values map[string]any) (map[string]any, error) {
	name := ShortName(obj.GetReleaseName())
	before, err := typed(cfg.Releases.Last(name))
	if err == nil && before.Info.Status != common.StatusDeployed {
		if deployed, none := typed(cfg.Releases.Deployed(name)); !errors.Is(none, driver.ErrNoDeployedReleases) {
			before, err = deployed, none
		}
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read release %s, whose values are preserved: %w", name, err)
	}
	if c.Values, err = util.CoalesceValues(before.Chart, before.Config); err != nil {
		return nil, fmt.Errorf("failed to rebuild old values: %w", err)
	}
	return util.CoalesceTables(values, before.Config), nil
}

// mostDefinitionNodes bounds the YAML of all definitions of a chart: it is parsed in this process, where a node takes a
// hundred times its text. Definitions have some 40 000 in a MiB.
const mostDefinitionNodes = 600_000

// definitionNodes counts the nodes of the definitions of one chart.
type definitionNodes int

// check counts a file of definitions and checks it before it is parsed.
func (n *definitionNodes) check(data []byte) error {
	if *n += definitionNodes(render.Nodes(data)); *n > mostDefinitionNodes {
		return fmt.Errorf("%w: with it the definitions of the chart may have more than %d nodes", render.ErrHostile, mostDefinitionNodes)
	}
	return render.Check(data)
}

// buildDefinitions reads the CRDs and marks them as this HelmRelease's. Other
// objects in the directories are left out: Helm would apply them once and
// forget them.
func buildDefinitions(cfg *action.Configuration, obj *v2.HelmRelease, c *chart.Chart) (kube.ResourceList, error) {
	var found kube.ResourceList
	var others []string
	var nodes definitionNodes
	for _, file := range c.CRDObjects() {
		if err := nodes.check(file.File.Data); err != nil {
			return nil, fmt.Errorf("failed to parse CustomResourceDefinitions from %s: %w", file.Name, err)
		}
		built, err := cfg.KubeClient.Build(bytes.NewReader(file.File.Data), false)
		if err != nil {
			return nil, fmt.Errorf("failed to parse CustomResourceDefinitions from %s: %w", file.Name, err)
		}
		for _, info := range built {
			if gvk := info.Mapping.GroupVersionKind; gvk.Group != "apiextensions.k8s.io" || gvk.Kind != "CustomResourceDefinition" {
				others = append(others, entryOf(info).String())
				continue
			}
			found = append(found, info)
		}
	}
	if len(others) > 0 {
		cfg.Logger().Warn("ignoring what is no CustomResourceDefinition in the crds directory of the chart; it belongs into templates", "objects", strings.Join(others, ", "))
	}
	accessor := meta.NewAccessor()
	return found, found.Visit(func(info *resource.Info, err error) error {
		if err != nil {
			return err
		}
		labels, err := accessor.Labels(info.Object)
		if err != nil {
			return err
		}
		merged := originLabels(obj)
		for k, v := range labels {
			if _, ours := merged[k]; !ours {
				merged[k] = v
			}
		}
		return accessor.SetLabels(info.Object, merged)
	})
}

// createDefinitions creates those that are not there yet. Each is looked for first: what is applied by the
// server is replaced if it is there, and an older definition takes fields away from all objects of its kind.
func createDefinitions(cfg *action.Configuration, obj *v2.HelmRelease, list kube.ResourceList, serverSide bool) (kube.ResourceList, error) {
	var created kube.ResourceList
	for i, info := range list {
		there, err := liveDefinition(info)
		if err != nil {
			return nil, err
		}
		var res *kube.Result
		if there != nil {
			if err := answerFor(cfg, obj, there); err != nil {
				return nil, err
			}
		} else {
			res, err = cfg.KubeClient.Create(list[i:i+1], kube.ClientCreateOptionServerSideApply(serverSide, serverSide))
		}
		switch {
		case there != nil, apierrors.IsAlreadyExists(err):
			cfg.Logger().Info(fmt.Sprintf("CustomResourceDefinition %s is already present. Skipping.", info.Name))
		case err != nil:
			return nil, fmt.Errorf("failed to create CustomResourceDefinition %s: %w", info.Name, err)
		}
		if res != nil {
			created = append(created, res.Created...)
		}
	}
	return created, nil
}

// answerFor puts the labels of the HelmRelease on a definition that is there and no release's. Who else has it may drop
// it, and leaves it to another owner by the labels of that one alone. Nothing else of it changes. It is not applied: the
// server takes off what a manager applied before and does not name now.
func answerFor(cfg *action.Configuration, obj *v2.HelmRelease, there *resource.Info) error {
	live, err := meta.Accessor(there.Object)
	if err != nil {
		return fmt.Errorf("failed to read CustomResourceDefinition %s: %w", there.Name, err)
	}
	// What has Helm's mark is of the templates of a release, also of one that a person installed.
	if live.GetDeletionTimestamp() != nil || live.GetLabels()[ownerName] != "" || live.GetAnnotations()[releaseName] != "" {
		return nil
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"labels": originLabels(obj)}})
	if err != nil {
		return fmt.Errorf("failed to label CustomResourceDefinition %s: %w", there.Name, err)
	}
	_, err = resource.NewHelper(there.Client, there.Mapping).WithFieldManager(fieldManager).Patch(there.Namespace, there.Name, types.MergePatchType, patch, nil)
	switch {
	case apierrors.IsForbidden(err), apierrors.IsInvalid(err):
		// An account may create definitions and change none, or a policy says so. The release works without the labels.
		cfg.Logger().Warn(fmt.Sprintf("CustomResourceDefinition %s does not get the labels of this HelmRelease; its owner of now keeps it", there.Name), "error", err)
	case err != nil:
		return fmt.Errorf("failed to label CustomResourceDefinition %s: %w", there.Name, err)
	}
	return nil
}

// liveDefinition is a definition as it is in the cluster; nil if it is not there.
func liveDefinition(info *resource.Info) (*resource.Info, error) {
	live := *info
	switch err := live.Get(); {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("failed to get CustomResourceDefinition %s: %w", info.Name, err)
	}
	return &live, nil
}

// replaceDefinitions creates those that are not there and replaces the others.
func replaceDefinitions(cfg *action.Configuration, list kube.ResourceList, serverSide bool) (kube.ResourceList, error) {
	var there kube.ResourceList
	for _, info := range list {
		live, err := liveDefinition(info)
		if err != nil {
			return nil, err
		}
		if live != nil {
			there = append(there, live)
		}
	}
	options := []kube.ClientUpdateOption{kube.ClientUpdateOptionServerSideApply(serverSide, serverSide)}
	if !serverSide {
		options = append(options, kube.ClientUpdateOptionForceReplace(true))
	}
	res, err := cfg.KubeClient.Update(there, list, options...)
	if err != nil {
		return nil, fmt.Errorf("failed to update CustomResourceDefinition(s): %w", err)
	}
	if res == nil {
		return nil, errors.New("failed to update CustomResourceDefinition(s): Helm reports nothing")
	}
	return append(res.Created, res.Updated...), nil
}
