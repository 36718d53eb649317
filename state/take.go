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
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/clusterapi"
	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/capibridge/graph"
	"github.com/cascade-gitops/cascade/remote/epoch"
	"github.com/cascade-gitops/cascade/state/archive"
)

const (
	// readings of a tier, when what one of them has refers to what it does not have.
	readings = 5
	// pause between two of them.
	pauseBetween = 2 * time.Second
	// page bounds each answer.
	page = 500
)

// ErrRestoring: a restore into the tier is not over.
var ErrRestoring = errors.New("a restore into the tier is not over: where it was ended, call the same cascade restore again; " + letGo)

// letGo is what a person does about a Cluster of a restore that cannot be ended any more.
const letGo = "if the version is gone, see that the Cluster has all its objects, and take spec.paused and annotation " + v1alpha1.RestoringAnnotation + " off it"

// TakeOptions of Take.
type TakeOptions struct {
	// Program is the version of this program.
	Program string
	// Namespace of the agent, whose records are there; empty is v1alpha1.AgentNamespace.
	Namespace string
	// Now is the clock; nil is that of the system.
	Now func() time.Time
	// Warn is told of what is not as it should be, and saved all the same; nil is not told.
	Warn func(text string)
	// Wait waits between two readings; nil waits by the clock of the system.
	Wait func(ctx context.Context, d time.Duration) error

	// vague are the references of the last reading that nobody can follow.
	vague []string
}

func (o *TakeOptions) defaults() {
	if o.Namespace == "" {
		o.Namespace = v1alpha1.AgentNamespace
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Warn == nil {
		o.Warn = func(string) {}
	}
	if o.Wait == nil {
		o.Wait = func(ctx context.Context, d time.Duration) error {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(d):
				return nil
			}
		}
	}
}

// Take reads the state of a tier. c reads from the API server, not from a cache. It fails with
// ErrRestoring while a Cluster is being restored: the state has not all of what is restored.
func Take(ctx context.Context, c client.Reader, o TakeOptions) (*archive.Snapshot, error) {
	o.defaults()
	tier, err := identity(ctx, c)
	if err != nil {
		return nil, err
	}
	var lacking []string
	for reading := 1; ; reading++ {
		s, missing, err := o.read(ctx, c)
		switch {
		case apierrors.IsResourceExpired(err) || apierrors.IsGone(err):
			// It took longer than the server keeps a version.
			err = fmt.Errorf("cannot read the state of the tier at one version: %w", err)
		case err != nil:
			return nil, err
		case len(missing) == 0 || reading == readings || slices.Equal(missing, lacking) && reading > 2:
			if err := whole(s); err != nil {
				return nil, err
			}
			for _, m := range slices.Concat(missing, o.vague) {
				o.Warn(m)
			}
			s.Tier, s.Program, s.Taken = tier, o.Program, o.Now().UTC().Truncate(time.Second)
			return s, nil
		}
		if reading == readings {
			return nil, err
		}
		lacking = missing
		if err := o.Wait(ctx, pauseBetween); err != nil {
			return nil, fmt.Errorf("cannot read the state of the tier: %w", err)
		}
	}
}

// whole fails for a state of which a Cluster is still being restored.
func whole(s *archive.Snapshot) error {
	for i := range s.Objects {
		if u := &s.Objects[i]; isCluster(u) && restoringFrom(u) != "" {
			return restoring(nameOf(u))
		}
	}
	return nil
}

// restoringFrom is the state that a Cluster is being restored from, empty if it is not. It is paused until it
// is whole: a person who resumed it ended that, and left the annotation.
func restoringFrom(u *unstructured.Unstructured) string {
	if !clusterapi.IsPausedBySpec(u) {
		return ""
	}
	return u.GetAnnotations()[v1alpha1.RestoringAnnotation]
}

func restoring(cluster types.NamespacedName) error {
	return fmt.Errorf("cannot take the state of the tier: Cluster %s is being restored: %w", cluster, ErrRestoring)
}

// identity of a cluster.
func identity(ctx context.Context, c client.Reader) (string, error) {
	ns := &corev1.Namespace{}
	if err := c.Get(ctx, types.NamespacedName{Name: metav1.NamespaceSystem}, ns); err != nil {
		return "", fmt.Errorf("cannot read the identity of the tier: %w", err)
	}
	return string(ns.UID), nil
}

// read the tier once. missing names what objects refer to and is not there.
func (o *TakeOptions) read(ctx context.Context, c client.Reader) (s *archive.Snapshot, missing []string, err error) {
	at, err := freeze(ctx, c)
	if err != nil {
		return nil, nil, err
	}
	kinds, err := graph.Served(ctx, at)
	if err != nil {
		return nil, nil, err
	}
	g, err := graph.Read(ctx, at, kinds, 0)
	if err != nil {
		return nil, nil, err
	}
	s = &archive.Snapshot{}
	seen := map[key]bool{}
	add := func(u *unstructured.Unstructured) {
		if k := keyOf(u); !seen[k] {
			seen[k] = true
			s.Objects = append(s.Objects, *u)
		}
	}
	for _, group := range g.InOrder() {
		for _, n := range group {
			add(saved(n.Object, n.Portable()))
			missing = append(missing, lacks(g, n, kinds)...)
		}
	}
	records, marks, err := o.records(ctx, at)
	if err != nil {
		return nil, nil, err
	}
	for _, u := range records {
		add(u)
	}
	if len(marks) > 0 {
		s.Epoch = marks[0].Epoch
	}
	spaces, err := namespaces(ctx, at, s.Objects)
	if err != nil {
		return nil, nil, err
	}
	for _, u := range spaces {
		add(u)
	}
	missing = append(missing, refersToNothing(g)...)
	slices.Sort(missing)
	return s, slices.Compact(missing), nil
}

// saved is an object as it is kept: what is portable of it, its UID, by which others name it
// as their owner, and that it was being deleted.
func saved(u, portable *unstructured.Unstructured) *unstructured.Unstructured {
	portable.SetUID(u.GetUID())
	if at := u.GetDeletionTimestamp(); at != nil {
		portable.SetDeletionTimestamp(at)
	}
	return portable
}

// lacks names the owners of an object that are of a kind which is saved and are not there.
func lacks(g *graph.Graph, n *graph.Node, kinds graph.Kinds) []string {
	var out []string
	for _, ref := range n.Foreign {
		if g.Node(ref.UID) != nil {
			continue // they own each other
		}
		group, _, _ := strings.Cut(ref.APIVersion, "/")
		if slices.ContainsFunc(kinds, func(k graph.Kind) bool { return k.Group == group && k.Kind == ref.Kind }) {
			out = append(out, fmt.Sprintf("%s is owned by %s %s, which is not there", n.Name(), ref.Kind, ref.Name))
		}
	}
	return out
}

// refersToNothing names what Clusters and machines are made of and is not there.
func refersToNothing(g *graph.Graph) []string {
	there := map[[3]string]bool{}
	groups := g.InOrder()
	for _, group := range groups {
		for _, n := range group {
			there[[3]string{n.Object.GetKind(), n.Object.GetNamespace(), n.Object.GetName()}] = true
		}
	}
	var out []string
	for _, group := range groups {
		for _, n := range group {
			for _, path := range [][]string{{"infrastructureRef"}, {"controlPlaneRef"}, {"bootstrap", "configRef"}} {
				at := func(field string) string {
					text, _, _ := unstructured.NestedString(n.Object.Object, append(append([]string{"spec"}, path...), field)...)
					return text
				}
				kind, name := at("kind"), at("name")
				if kind != "" && name != "" && !there[[3]string{kind, n.Object.GetNamespace(), name}] {
					out = append(out, fmt.Sprintf("%s refers to %s %s, which is not there", n.Name(), kind, name))
				}
			}
		}
	}
	return out
}

// frozen is a reader whose lists are of one version of the server's storage.
type frozen struct {
	client.Reader
	version string
}

// freeze learns the present version. Servers have one for all kinds; where a kind is stored
// elsewhere, the server says that it does not know the version, and lists of it are of a
// later moment.
func freeze(ctx context.Context, c client.Reader) (client.Reader, error) {
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(schema.GroupVersionKind{Version: "v1", Kind: "NamespaceList"})
	if err := c.List(ctx, list, client.Limit(1)); err != nil {
		return nil, fmt.Errorf("cannot learn the version of the tier: %w", err)
	}
	if list.ResourceVersion == "" {
		return c, nil
	}
	return &frozen{Reader: c, version: list.ResourceVersion}, nil
}

// List lists at the version. The pages that follow have it in their token.
func (f *frozen) List(ctx context.Context, list client.ObjectList, options ...client.ListOption) error {
	o := &client.ListOptions{}
	o.ApplyOptions(options)
	if o.Continue != "" {
		return f.Reader.List(ctx, list, o)
	}
	exact := *o
	exact.Raw = &metav1.ListOptions{ResourceVersion: f.version, ResourceVersionMatch: metav1.ResourceVersionMatchExact}
	err := f.Reader.List(ctx, list, &exact)
	var status apierrors.APIStatus
	if err != nil && (apierrors.HasStatusCause(err, metav1.CauseTypeResourceVersionTooLarge) ||
		errors.As(err, &status) && status.Status().Code == 400) {
		return f.Reader.List(ctx, list, o)
	}
	return err
}

// each calls f with each object of a kind, page by page. A kind that is not served has none.
func each(ctx context.Context, c client.Reader, gvk schema.GroupVersionKind, f func(*unstructured.Unstructured), options ...client.ListOption) error {
	next := ""
	for {
		list := &unstructured.UnstructuredList{}
		list.SetGroupVersionKind(gvk.GroupVersion().WithKind(gvk.Kind + "List"))
		err := c.List(ctx, list, append(slices.Clone(options), client.Limit(page), client.Continue(next))...)
		if meta.IsNoMatchError(err) || apierrors.IsNotFound(err) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("cannot list objects of kind %s: %w", gvk.Kind, err)
		}
		for i := range list.Items {
			f(&list.Items[i])
		}
		if next = list.GetContinue(); next == "" {
			return nil
		}
	}
}

// key names an object, in whatever version.
type key struct {
	schema.GroupKind
	types.NamespacedName
}

func keyOf(u *unstructured.Unstructured) key {
	return key{u.GroupVersionKind().GroupKind(), types.NamespacedName{Namespace: u.GetNamespace(), Name: u.GetName()}}
}

// String is <kind>/<namespace>/<name>, for people.
func (k key) String() string {
	if k.Namespace == "" {
		return k.Kind + "/" + k.Name
	}
	return k.Kind + "/" + k.Namespace + "/" + k.Name
}

// lineage reads that of a tier from its ConfigMap.
func lineage(u *unstructured.Unstructured) ([]epoch.Mark, error) {
	cm, err := configMap(u)
	if err != nil {
		return nil, err
	}
	return epoch.MarksOf(cm)
}
