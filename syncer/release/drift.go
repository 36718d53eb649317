package release

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sort"
	"strings"

	"github.com/fluxcd/cli-utils/pkg/object"
	v2 "github.com/fluxcd/helm-controller/api/v2"
	"github.com/fluxcd/pkg/ssa"
	"github.com/fluxcd/pkg/ssa/jsondiff"
	"github.com/fluxcd/pkg/ssa/normalize"
	rawdiff "github.com/wI2L/jsondiff"
	helmrelease "helm.sh/helm/v4/pkg/release/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/inventory"
	"github.com/cascade-gitops/cascade/syncer/apply"
	"github.com/cascade-gitops/cascade/syncer/memo"
)

// clusterDrifts compares with a cluster.
type clusterDrifts struct {
	cluster *apply.Cluster
	obj     *v2.HelmRelease
	// overridden are managers whose fields are taken over before.
	overridden []string
	// memo knows which objects are as declared; nil knows none.
	memo *memo.Memo
}

var _ drifts = clusterDrifts{}

// compare compares the objects of a release with the cluster, by a dry run of each that
// the memo does not know. Where both a set and an error come back, the set is what could
// be told.
func (d clusterDrifts) compare(ctx context.Context, rel *helmrelease.Release) (comparison, error) {
	c := d.cluster
	objects, warnings, err := objectsOf(rel, c.RESTMapper())
	if err != nil {
		return comparison{}, err
	}
	if err := normalize.UnstructuredListWithScheme(objects, c.Scheme()); err != nil {
		return comparison{}, fmt.Errorf("failed to normalize release objects: %w", err)
	}
	var problems []error
	for _, w := range warnings {
		problems = append(problems, errors.New(w))
	}
	for _, u := range objects {
		markForHelm(u, rel)
	}
	d.memo.Retain(d.owner(), inventory.OfAll(objects))
	ignored := ignoreRules(d.obj.GetDriftDetection().Ignore)
	unknown, err := d.unknown(ctx, objects, ignored)
	if err != nil {
		return comparison{}, err
	}
	live := observing{Client: client.NewDryRunClient(c), seen: seen{}}
	set, err := d.differences(ctx, unknown, ignored, live)
	complete := d.note(unknown, set, live.seen)
	if err != nil {
		problems = append(problems, apply.Redact(err, objects))
	}
	return comparison{set: set, known: len(objects), complete: complete && len(problems) == 0}, errors.Join(problems...)
}

// differences are those of objects and the cluster, told by dry runs.
func (d clusterDrifts) differences(ctx context.Context, unknown []compared, ignored jsondiff.IgnoreRules, c client.Client) (jsondiff.DiffSet, error) {
	objects := make([]*unstructured.Unstructured, 0, len(unknown))
	for _, u := range unknown {
		if err := takeOver(ctx, d.cluster, u.object, d.overridden); err != nil {
			return nil, fmt.Errorf("failed to clean-up disallowed field managers: %w", err)
		}
		objects = append(objects, u.object)
	}
	options := []jsondiff.ListOption{
		jsondiff.FieldOwner(fieldManager),
		jsondiff.ExclusionSelector{v2.DriftDetectionMetadataKey: v2.DriftDetectionDisabledValue},
		jsondiff.Rationalize(true),
		jsondiff.Graceful(true),
	}
	if len(ignored) > 0 {
		options = append(options, ignored)
	}
	return jsondiff.UnstructuredList(ctx, c, objects, options...)
}

func ignoreRules(declared []v2.IgnoreRule) jsondiff.IgnoreRules {
	var rules jsondiff.IgnoreRules
	for _, d := range declared {
		r := jsondiff.IgnoreRule{Paths: d.Paths}
		if t := d.Target; t != nil {
			r.Selector = &jsondiff.Selector{
				Group: t.Group, Version: t.Version, Kind: t.Kind, Name: t.Name, Namespace: t.Namespace,
				AnnotationSelector: t.AnnotationSelector, LabelSelector: t.LabelSelector,
			}
		}
		rules = append(rules, r)
	}
	return rules
}

// markForHelm sets what Helm sets on each object that it applies.
func markForHelm(u *unstructured.Unstructured, rel *helmrelease.Release) {
	labels, annotations := u.GetLabels(), u.GetAnnotations()
	if labels == nil {
		labels = map[string]string{}
	}
	if annotations == nil {
		annotations = map[string]string{}
	}
	labels["app.kubernetes.io/managed-by"] = "Helm"
	annotations[releaseName], annotations[releaseNamespace] = rel.Name, rel.Namespace
	u.SetLabels(labels)
	u.SetAnnotations(annotations)
}

// takeOver moves the fields of the managers in --override-manager to ours
// before objects are compared.
func takeOver(ctx context.Context, c *apply.Cluster, u *unstructured.Unstructured, managers []string) error {
	if len(managers) == 0 {
		return nil
	}
	live := &unstructured.Unstructured{}
	live.SetGroupVersionKind(u.GroupVersionKind())
	if err := c.Get(ctx, client.ObjectKeyFromObject(u), live); err != nil {
		return client.IgnoreNotFound(err)
	}
	var taken []ssa.FieldManager
	for _, m := range managers {
		for _, op := range []metav1.ManagedFieldsOperationType{metav1.ManagedFieldsOperationApply, metav1.ManagedFieldsOperationUpdate} {
			taken = append(taken, ssa.FieldManager{Name: m, OperationType: op})
		}
	}
	patches, err := ssa.PatchReplaceFieldsManagers(live, taken, fieldManager)
	if err != nil || len(patches) == 0 {
		return err
	}
	data, err := json.Marshal(patches)
	if err != nil {
		return err
	}
	return c.Patch(ctx, live, client.RawPatch(types.JSONPatchType, data), client.FieldOwner(fieldManager))
}

// correct brings drifted objects back, in the order in which kinds are applied.
func (d clusterDrifts) correct(ctx context.Context, set jsondiff.DiffSet) (*ssa.ChangeSet, error) {
	c := d.cluster
	changes := ssa.NewChangeSet()
	var problems []error
	for _, kind := range []jsondiff.DiffType{jsondiff.DiffTypeCreate, jsondiff.DiffTypeUpdate} {
		var diffs []*jsondiff.Diff
		for _, d := range set {
			if d.Type == kind {
				diffs = append(diffs, d)
			}
		}
		sort.SliceStable(diffs, func(i, j int) bool { return before(diffs[i], diffs[j]) })
		for _, d := range diffs {
			action, err := correctOne(ctx, c, d)
			if err != nil {
				problems = append(problems, err)
				continue
			}
			changes.Add(changeOf(d.DesiredObject, action))
		}
	}
	return changes, errors.Join(problems...)
}

func correctOne(ctx context.Context, c *apply.Cluster, d *jsondiff.Diff) (ssa.Action, error) {
	u := d.DesiredObject.DeepCopyObject().(client.Object)
	if d.Type == jsondiff.DiffTypeCreate {
		if err := c.Create(ctx, u, client.FieldOwner(fieldManager)); err != nil {
			return ssa.UnknownAction, fmt.Errorf("%s creation failure: %w", subject(u), clean(u, err))
		}
		return ssa.CreatedAction, nil
	}
	data, err := json.Marshal(d.Patch)
	if err == nil {
		err = c.Patch(ctx, u, client.RawPatch(types.JSONPatchType, data), client.FieldOwner(fieldManager))
	}
	if err != nil {
		return ssa.UnknownAction, fmt.Errorf("%s patch failure: %w", subject(u), clean(u, err))
	}
	return ssa.ConfiguredAction, nil
}

// clean takes the values of a Secret out of an error about it. Of a message of
// the API server about an invalid object, only the last part is kept: the rest
// may quote the object.
func clean(u client.Object, err error) error {
	if u.GetObjectKind().GroupVersionKind().Kind != "Secret" {
		return err
	}
	if i := strings.LastIndex(err.Error(), ":"); apierrors.IsInvalid(err) && i >= 0 {
		err = errors.New(strings.TrimSpace(err.Error()[i+1:]))
	}
	if content, ok := u.(*unstructured.Unstructured); ok {
		err = apply.Redact(err, []*unstructured.Unstructured{content})
	}
	return err
}

func before(a, b *jsondiff.Diff) bool {
	gkA, gkB := a.GroupVersionKind().GroupKind(), b.GroupVersionKind().GroupKind()
	switch {
	case !ssa.Equals(gkA, gkB):
		return ssa.IsLessThan(gkA, gkB)
	case a.GetNamespace() != b.GetNamespace():
		return a.GetNamespace() < b.GetNamespace()
	}
	return a.GetName() < b.GetName()
}

func changeOf(u client.Object, action ssa.Action) ssa.ChangeSetEntry {
	gvk := u.GetObjectKind().GroupVersionKind()
	return ssa.ChangeSetEntry{
		ObjMetadata:  object.ObjMetadata{GroupKind: gvk.GroupKind(), Name: u.GetName(), Namespace: u.GetNamespace()},
		GroupVersion: gvk.Version,
		Subject:      subject(u),
		Action:       action,
	}
}

// subject is Kind/namespace/name.
func subject(u client.Object) string {
	kind := u.GetObjectKind().GroupVersionKind().Kind
	if u.GetNamespace() == "" {
		return kind + "/" + u.GetName()
	}
	return kind + "/" + u.GetNamespace() + "/" + u.GetName()
}

// summary lists what differs, a line for each object. It has no values.
func summary(set jsondiff.DiffSet) string {
	var lines []string
	for _, d := range set {
		if d == nil {
			continue
		}
		switch d.Type {
		case jsondiff.DiffTypeCreate:
			lines = append(lines, subject(d.DesiredObject)+" removed")
		case jsondiff.DiffTypeExclude:
			lines = append(lines, subject(d.DesiredObject)+" excluded")
		case jsondiff.DiffTypeUpdate:
			count := map[string]int{}
			for _, op := range d.Patch {
				count[op.Type]++
			}
			lines = append(lines, fmt.Sprintf("%s changed (%d additions, %d changes, %d removals)", subject(d.DesiredObject),
				count[rawdiff.OperationAdd], count[rawdiff.OperationReplace], count[rawdiff.OperationRemove]))
		}
	}
	return strings.Join(lines, "\n")
}
