package state

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	kube "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/clusterapi"
	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/capibridge/graph"
	"github.com/cascade-gitops/cascade/remote/epoch"
	"github.com/cascade-gitops/cascade/state/archive"
	"github.com/cascade-gitops/cascade/syncer/clusters"
)

// ErrNotEmpty: a control plane to verify a state in has something.
var ErrNotEmpty = errors.New("the control plane is not empty")

var definitions = schema.GroupVersionKind{Group: "apiextensions.k8s.io", Version: "v1", Kind: "CustomResourceDefinition"}

// established is waited for so long.
const established = 2 * time.Minute

// Verify restores a state into an empty control plane, reads it from there, and names what
// differs: nothing, if each object came back byte for byte. tier is where the state was
// taken; its definitions are copied, without webhooks. Nothing is deleted afterwards: the
// control plane is made for this, and ends with it.
func Verify(ctx context.Context, tier kube.Reader, empty kube.Client, s *archive.Snapshot, o Options) ([]string, error) {
	uid, err := identity(ctx, empty)
	if err != nil {
		return nil, err
	}
	if uid == s.Tier {
		return nil, fmt.Errorf("cannot verify the state: %w: it is the tier itself", ErrNotEmpty)
	}
	if err := admitEmpty(ctx, empty); err != nil {
		return nil, err
	}
	if err := define(ctx, tier, empty, s); err != nil {
		return nil, err
	}
	report, err := Restore(ctx, empty, s, o)
	if err != nil {
		return nil, err
	}
	for _, step := range report.Steps {
		if isData(step.key.GroupKind) || step.key.Kind == spaces.Kind {
			continue
		}
		if step.Action != Create {
			return nil, fmt.Errorf("cannot verify the state: %w: it has %s", ErrNotEmpty, step.Object)
		}
	}
	return Differences(ctx, empty, s)
}

// admitEmpty refuses a cluster in which something runs, or could. Clusters that are restored go
// on, so nothing of them may get where anybody works on them.
func admitEmpty(ctx context.Context, c kube.Reader) error {
	for _, kind := range []string{"Node", "Pod"} {
		l := &unstructured.UnstructuredList{}
		l.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind(kind + "List"))
		if err := c.List(ctx, l, kube.Limit(1)); err != nil {
			return fmt.Errorf("cannot list objects of kind %s: %w", kind, err)
		}
		if len(l.Items) > 0 {
			return fmt.Errorf("cannot verify the state: %w: it has %s %s", ErrNotEmpty, kind, l.Items[0].GetName())
		}
	}
	return nil
}

// Differences names the objects of a state that a tier does not have, or has otherwise, as
// Compare does.
func Differences(ctx context.Context, c kube.Client, s *archive.Snapshot) ([]string, error) {
	f, err := learn(ctx, c, s, Options{Namespace: v1alpha1.AgentNamespace})
	if err != nil {
		return nil, err
	}
	there := &archive.Snapshot{}
	for _, u := range f.there {
		there.Objects = append(there.Objects, *u)
	}
	return Compare(s, there)
}

func isData(kind schema.GroupKind) bool {
	return kind == secrets.GroupKind() || kind == configMaps.GroupKind()
}

// define copies the definitions of the kinds of a state, each of which stores the version that
// it stores in the tier. No controller is there that could convert.
func define(ctx context.Context, tier kube.Reader, empty kube.Client, s *archive.Snapshot) error {
	wanted := map[schema.GroupKind]bool{}
	for i := range s.Objects {
		wanted[s.Objects[i].GroupVersionKind().GroupKind()] = true
	}
	var copies []*unstructured.Unstructured
	err := each(ctx, tier, definitions, func(u *unstructured.Unstructured) {
		group, _, _ := unstructured.NestedString(u.Object, "spec", "group")
		kind, _, _ := unstructured.NestedString(u.Object, "spec", "names", "kind")
		if wanted[schema.GroupKind{Group: group, Kind: kind}] {
			definition := graph.Portable(u)
			unstructured.RemoveNestedField(definition.Object, "spec", "conversion")
			definition.SetOwnerReferences(nil)
			copies = append(copies, definition)
		}
	})
	if err != nil {
		return err
	}
	for _, u := range copies {
		there := &unstructured.Unstructured{}
		there.SetGroupVersionKind(definitions)
		switch err := empty.Get(ctx, types.NamespacedName{Name: u.GetName()}, there); {
		case err == nil:
			return fmt.Errorf("cannot verify the state: %w: it has the definition %s", ErrNotEmpty, u.GetName())
		case !apierrors.IsNotFound(err):
			return fmt.Errorf("cannot read definition %s: %w", u.GetName(), err)
		}
	}
	for _, u := range copies {
		if err := empty.Create(ctx, u, kube.FieldOwner(manager)); apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("cannot verify the state: %w: somebody made the definition %s meanwhile", ErrNotEmpty, u.GetName())
		} else if err != nil {
			return fmt.Errorf("cannot define %s: %w", u.GetName(), err)
		}
	}
	for _, u := range copies {
		if err := awaitDefinition(ctx, empty, u.GetName()); err != nil {
			return err
		}
	}
	return nil
}

func awaitDefinition(ctx context.Context, c kube.Reader, name string) error {
	err := wait.PollUntilContextTimeout(ctx, 200*time.Millisecond, established, true, func(ctx context.Context) (bool, error) {
		u := &unstructured.Unstructured{}
		u.SetGroupVersionKind(definitions)
		if err := c.Get(ctx, types.NamespacedName{Name: name}, u); err != nil {
			return false, err
		}
		conditions, _, _ := unstructured.NestedSlice(u.Object, "status", "conditions")
		return slices.ContainsFunc(conditions, func(v any) bool {
			m, _ := v.(map[string]any)
			return m["type"] == "Established" && m["status"] == "True"
		}), nil
	})
	if err != nil {
		return fmt.Errorf("cannot define %s: %w", name, err)
	}
	return nil
}

// Clusters that a state has, sorted.
func Clusters(s *archive.Snapshot) []types.NamespacedName {
	var out []types.NamespacedName
	for i := range s.Objects {
		if u := &s.Objects[i]; clusterapi.IsCluster(u.GroupVersionKind().GroupKind()) {
			out = append(out, nameOf(u))
		}
	}
	slices.SortFunc(out, func(a, b types.NamespacedName) int { return strings.Compare(a.String(), b.String()) })
	return out
}

// CountRunning reports how many Clusters of a tier are not paused. It fails as Take does while one of
// its Clusters is being restored, and costs less.
func CountRunning(ctx context.Context, c kube.Reader) (n int, err error) {
	gvk, err := clusters.Served(ctx, c)
	if err != nil || gvk.Empty() {
		return 0, err
	}
	var unfinished error
	_, err = list(ctx, c, gvk, "", func(u *unstructured.Unstructured) {
		if !clusterapi.IsPausedBySpec(u) {
			n++
		}
		if restoringFrom(u) != "" {
			unfinished = restoring(nameOf(u))
		}
	})
	return n, errors.Join(err, unfinished)
}

// Follows reports whether a newer state is of the tier of another one as it went on. known: it is, as it
// knows who led the tier then; where nobody is on record, it is of the same cluster, or has all its Clusters.
// Only such a one stands for the other. A cluster whose etcd was rolled back does not know who led it since.
// may: it could be, as it is of the same cluster, so that a Cluster which it does not have may have been
// removed since. One that an agent saved which began anew at the same address, before anything was restored,
// is neither.
func Follows(newer, s *archive.Snapshot) (known, may bool, err error) {
	then, err := lineageOf(s)
	if err != nil {
		return false, false, err
	}
	since, err := lineageOf(newer)
	if err != nil {
		return false, false, err
	}
	same := newer.Tier == s.Tier
	if len(then) > 0 {
		known = slices.ContainsFunc(since, func(m epoch.Mark) bool { return m.Holder == then[0].Holder })
		return known, known || same, nil
	}
	has := Clusters(newer)
	lacks := slices.ContainsFunc(Clusters(s), func(name types.NamespacedName) bool { return !slices.Contains(has, name) })
	return same || !lacks, same || !lacks || len(has) > 0, nil
}
