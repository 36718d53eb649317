package pivot

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
)

// Step of a pivot. A journal has the step that is under way, or that ended it.
type Step string

// Steps in their order. Undo and Aborted are the way back.
const (
	Freeze  Step = "freeze"
	Copy    Step = "copy"
	Verify  Step = "verify"
	Switch  Step = "switch"
	Unpause Step = "unpause"
	Release Step = "release"
	Done    Step = "done"
	Undo    Step = "undo"
	Aborted Step = "aborted"
)

// Over reports whether nothing is left to do.
func (s Step) Over() bool { return s == Done || s == Aborted }

// Revocable reports whether the source may still get the Clusters back.
func (s Step) Revocable() bool { return s == Freeze || s == Copy || s == Verify || s == Undo }

// format is the form of the journals that this program writes. It grows when an older
// program could do harm by a journal that it only half understands.
const format = 1

// ErrNewer: the journal is of a newer program.
var ErrNewer = errors.New("a newer version of cascade wrote it: use that one, or a later one")

// Journal is the record of one pivot.
type Journal struct {
	Format int `json:"format"`
	// ID names the pivot, and no other one of its tiers.
	ID string `json:"id"`
	// Program that wrote the journal last.
	Program string `json:"program,omitempty"`
	// From and To are the tiers, by the UIDs of their kube-system namespaces.
	From Tier `json:"from"`
	To   Tier `json:"to"`
	// Clusters that are moved.
	Clusters []Cluster `json:"clusters"`
	Step     Step      `json:"step"`
	// Keep has the kubeconfigs of the Clusters left in the source, for the parent's
	// connection.
	Keep bool `json:"keep,omitempty"`
	// Own: it copies nothing of other namespaces than those of the Clusters which may be somebody else's.
	Own bool `json:"own,omitempty"`
	// Tolerated are the reasons that a person looked at and waved through.
	Tolerated []string `json:"tolerated,omitempty"`
	// Began is when it was made, Stepped when the step was begun or this holder went on with it.
	Began   time.Time `json:"began"`
	Stepped time.Time `json:"stepped"`
	// Holder drives the pivot until Until, with the Epoch.
	Holder string    `json:"holder,omitempty"`
	Epoch  int64     `json:"epoch"`
	Until  time.Time `json:"until,omitzero"`
	// Why it was turned back, if nobody asked for that.
	Why []Problem `json:"why,omitempty"`
	// Objects that are moved or copied. A pivot that is over has none.
	Objects []Object `json:"objects,omitempty"`
}

// Tier is one side.
type Tier struct {
	// UID of the namespace kube-system.
	UID string `json:"uid"`
	// Name for people.
	Name string `json:"name,omitempty"`
}

// Cluster that is moved.
type Cluster struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// UID in the source.
	UID types.UID `json:"uid"`
	// Paused: it was before, and stays so.
	Paused bool `json:"paused,omitempty"`
}

// Key of the Cluster.
func (c Cluster) Key() types.NamespacedName {
	return types.NamespacedName{Namespace: c.Namespace, Name: c.Name}
}

// Object is one that is moved, or copied and left.
type Object struct {
	Group     string `json:"group,omitempty"`
	Version   string `json:"version"`
	Kind      string `json:"kind"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
	// UID in the source, Copy that in the target once it is there.
	UID  types.UID `json:"uid"`
	Copy types.UID `json:"copy,omitempty"`
	// Made: the pivot made the copy. What was there before is used as it is.
	Made bool `json:"made,omitempty"`
	// Stays: it is not taken away from the source.
	Stays bool `json:"stays,omitempty"`
	// Before is the annotation that a copy had which a former pivot left there.
	Before string `json:"before,omitempty"`
}

// Of is the record of an object.
func objectOf(u *unstructured.Unstructured) Object {
	gvk := u.GroupVersionKind()
	return Object{Group: gvk.Group, Version: gvk.Version, Kind: gvk.Kind, Namespace: u.GetNamespace(), Name: u.GetName(), UID: u.GetUID()}
}

// GroupVersionKind of the object.
func (o Object) GroupVersionKind() schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: o.Group, Version: o.Version, Kind: o.Kind}
}

// String names the object for people.
func (o Object) String() string {
	if o.Namespace == "" {
		return o.Kind + "/" + o.Name
	}
	return o.Kind + "/" + o.Namespace + "/" + o.Name
}

// key of the object, the same on both sides.
func (o Object) key() key {
	return key{schema.GroupKind{Group: o.Group, Kind: o.Kind}, types.NamespacedName{Namespace: o.Namespace, Name: o.Name}}
}

type key struct {
	kind schema.GroupKind
	name types.NamespacedName
}

func keyOf(u *unstructured.Unstructured) key {
	return key{u.GroupVersionKind().GroupKind(), types.NamespacedName{Namespace: u.GetNamespace(), Name: u.GetName()}}
}

// names of the Clusters.
func (j Journal) names() []types.NamespacedName {
	out := make([]types.NamespacedName, 0, len(j.Clusters))
	for _, c := range j.Clusters {
		out = append(out, c.Key())
	}
	return out
}

// Concerns reports whether one of some Clusters is among those of the journal.
func (j Journal) Concerns(names ...types.NamespacedName) bool {
	return slices.ContainsFunc(j.names(), func(n types.NamespacedName) bool { return slices.Contains(names, n) })
}

// copies has the UIDs in the target by those in the source, as far as they are known.
func (j Journal) copies() map[types.UID]types.UID {
	out := make(map[types.UID]types.UID, len(j.Objects))
	for _, o := range j.Objects {
		if o.Copy != "" {
			out[o.UID] = o.Copy
		}
	}
	return out
}

// Role of a journal in the tier that has it.
type Role string

// Roles, the values of v1alpha1.PivotLabel.
const (
	Source Role = "source"
	Target Role = "target"
)

// Names of journals.
const (
	journalPrefix = "cascade-pivot."
	journalKey    = "journal.json"
	// maxJournal bounds a journal: an object of Kubernetes has at most 1 MiB.
	maxJournal = 900 << 10
	// setBytes are those of a digest that identify the Clusters of a pivot.
	setBytes = 5
)

// setOf identifies the Clusters of a pivot between two tiers, so that two who begin the same
// one at the same moment write the same journal.
func setOf(from, to string, names []types.NamespacedName) string {
	names = slices.Clone(names)
	slices.SortFunc(names, func(a, b types.NamespacedName) int { return strings.Compare(a.String(), b.String()) })
	h := sha256.New()
	fmt.Fprintf(h, "%q %q %q", from, to, names)
	return hex.EncodeToString(h.Sum(nil)[:setBytes])
}

// isID reports whether a text has the form of the ID of a pivot.
func isID(text string) bool {
	set, epoch, _ := strings.Cut(text, "-")
	raw, err := hex.DecodeString(set)
	if err != nil || len(raw) != setBytes {
		return false
	}
	_, err = strconv.ParseUint(epoch, 10, 63)
	return err == nil
}

func (j Journal) set() string { return setOf(j.From.UID, j.To.UID, j.names()) }

// isOf reports whether a journal is of a pivot of the Clusters that another one names, between
// the same tiers. Whoever may write in its tier can have it say what he likes.
func (j Journal) isOf(other Journal) bool {
	return j.set() == other.set() && strings.HasPrefix(j.ID, j.set()+"-")
}

// nameOf a journal.
func (j Journal) nameOf(role Role) string { return journalPrefix + string(role) + "." + j.set() }

// fits fails if a journal has no room for some objects once all of them are copied. It is
// found out before anything is paused.
func (j Journal) fits(objects []Object) error {
	j.Objects = slices.Clone(objects)
	for i := range j.Objects {
		j.Objects[i].Copy, j.Objects[i].Made, j.Objects[i].Before = j.Objects[i].UID, true, j.ID
	}
	_, err := j.encode("", Source)
	return err
}

// encode writes a journal down. Nothing of what objects contain is in it.
func (j Journal) encode(namespace string, role Role) (*corev1.ConfigMap, error) {
	text, err := json.Marshal(j)
	if err != nil {
		return nil, fmt.Errorf("cannot encode the journal of pivot %s: %w", j.ID, err)
	}
	if len(text) > maxJournal {
		return nil, fmt.Errorf("cannot write the journal of pivot %s: %d objects do not fit into it: move fewer Clusters at a time", j.ID, len(j.Objects))
	}
	return &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: j.nameOf(role),
			Labels: map[string]string{v1alpha1.PivotLabel: string(role), "app.kubernetes.io/name": v1alpha1.AgentName},
		},
		Data: map[string]string{journalKey: string(text)},
	}, nil
}

// decode reads a journal. It fails with ErrNewer if this program does not know the format.
func decode(cm *corev1.ConfigMap) (Journal, error) {
	text := cm.Data[journalKey]
	var head struct {
		Format int `json:"format"`
	}
	if err := json.Unmarshal([]byte(text), &head); err != nil {
		return Journal{}, fmt.Errorf("cannot read the journal in ConfigMap %s/%s: %w", cm.Namespace, cm.Name, err)
	}
	if head.Format > format {
		return Journal{}, fmt.Errorf("cannot read the journal in ConfigMap %s/%s: %w", cm.Namespace, cm.Name, ErrNewer)
	}
	var j Journal
	if err := json.Unmarshal([]byte(text), &j); err != nil {
		return Journal{}, fmt.Errorf("cannot read the journal in ConfigMap %s/%s: %w", cm.Namespace, cm.Name, err)
	}
	known := []Step{Freeze, Copy, Verify, Switch, Unpause, Release, Done, Undo, Aborted}
	if j.Format < 1 || j.ID == "" || !slices.Contains(known, j.Step) {
		return Journal{}, fmt.Errorf("cannot read the journal in ConfigMap %s/%s: it is not complete", cm.Namespace, cm.Name)
	}
	return j, nil
}
