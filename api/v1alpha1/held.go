package v1alpha1

import (
	"encoding/json"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Held is what an owner of objects does not do yet: until a person decides, until
// another owner took over, or until a Cluster is gone. The status
// of our own kinds has it as a field. Kustomizations and HelmReleases, whose status
// is Flux's, have it in HeldAnnotation. Messages of conditions say the same to
// people; nothing reads them. See docs/decisions/017.
type Held struct {
	// Prune is the plan of deletes that waits. It is there as long as the condition
	// PruneBlocked; of a layer, until it is decided, whatever its reason is meanwhile.
	// +optional
	Prune *HeldPrune `json:"prune,omitempty"`
	// Create are the Clusters that wait, or that another tier manages. It is there as long
	// as the condition CreateHeld or ManagedElsewhere.
	// +optional
	Create *HeldCreate `json:"create,omitempty"`
	// HandOver are the objects that are kept for another owner. It is there as long as
	// the condition HandOverPending.
	// +optional
	HandOver *HandOver `json:"handOver,omitempty"`
	// Kept are objects that nobody has to decide about, and that are deleted later all the
	// same. Kustomizations and HelmReleases have it.
	// +optional
	Kept *HeldKept `json:"kept,omitempty"`
	// Last are objects whose removal is decided and that go after a Kustomization or HelmRelease, or could
	// not be deleted yet: sixteen digits for each, of what identifies it and of its UID. Only agents read it.
	// +optional
	Last string `json:"last,omitempty"`
	// Removal is the removal of a layer from many children that waits. It is there as long
	// as the reason RemovalHeld.
	// +optional
	Removal *HeldRemoval `json:"removal,omitempty"`
}

// HeldRemoval is the removal of a layer from children that are not to have it any more.
type HeldRemoval struct {
	// Hash names the children, as the Layer's status.removal does.
	Hash string `json:"hash"`
}

// HandOver are objects that their owner no longer declares, and that another owner
// declares and has not taken over yet.
type HandOver struct {
	// Hash identifies the set of objects.
	Hash string `json:"hash"`
	// Since is when the last of them began to wait.
	Since metav1.Time `json:"since"`
	// Earlier has by how many seconds others began before that: a number, a colon and eight digits for
	// each object that began then, separated by commas. Only agents read it.
	// +optional
	Earlier string `json:"earlier,omitempty"`
}

// HeldPrune is a plan of deletes of which not everything may be carried out.
type HeldPrune struct {
	// Hash names the list of deletes that an approval releases. It is empty if there
	// is nothing to approve: what waits is protected, and has to be confirmed in Git.
	// +optional
	Hash string `json:"hash,omitempty"`
	// Deletes is how many objects an approval would delete.
	// +optional
	Deletes int32 `json:"deletes,omitempty"`
	// Protected is how many objects wait for their confirmation in Git.
	// +optional
	Protected int32 `json:"protected,omitempty"`
	// Holding is how many Layers are being deleted and wait for an approval of their own.
	// +optional
	Holding int32 `json:"holding,omitempty"`
}

// HeldKept are objects that are not declared any more and go with a Cluster that exists, or when a
// Kustomization or HelmRelease is gone that may need them, or Clusters that go when another one is gone.
type HeldKept struct {
	// Objects as Kind/namespace/name, in the order of the alphabet. When these are gone, the
	// next are named.
	// +kubebuilder:validation:MaxItems=20
	// +listType=atomic
	// +optional
	Objects []string `json:"objects,omitempty"`
}

// HeldCreate are Clusters that are not created, lest they be built twice.
type HeldCreate struct {
	// Clusters that a person has to decide about, as namespace/name. When these are
	// decided about, the next are named.
	// +kubebuilder:validation:MaxItems=200
	// +listType=atomic
	// +optional
	Clusters []string `json:"clusters,omitempty"`
	// Elsewhere: they are Clusters of the tier that is applied to, and it is decided
	// there.
	// +optional
	Elsewhere bool `json:"elsewhere,omitempty"`
	// ManagedElsewhere are Clusters that are declared here and that another tier manages, as
	// namespace/name: a pivot moved them there. Nobody has to decide about these.
	// +kubebuilder:validation:MaxItems=200
	// +listType=atomic
	// +optional
	ManagedElsewhere []string `json:"managedElsewhere,omitempty"`
}

// heldAnnotation is the form of Held in HeldAnnotation.
type heldAnnotation struct {
	// APIVersion is the version of this API in which the rest is written.
	APIVersion string `json:"apiVersion"`
	Held       `json:",inline"`
}

// HeldOf reads HeldAnnotation. known is false if there is none, or none that this
// version understands: what the object holds has to be taken for unknown then, not
// for nothing.
func HeldOf(o metav1.Object) (held Held, known bool) {
	text := o.GetAnnotations()[HeldAnnotation]
	if text == "" {
		return Held{}, false
	}
	var written heldAnnotation
	if err := json.Unmarshal([]byte(text), &written); err != nil || written.APIVersion != GroupVersion.String() {
		return Held{}, false
	}
	return written.Held, true
}

// SetHeld writes HeldAnnotation, or removes it if nothing is held. It reports
// whether the object changed.
func SetHeld(o metav1.Object, held Held) (changed bool) {
	annotations := o.GetAnnotations()
	if held == (Held{}) {
		_, changed = annotations[HeldAnnotation]
		delete(annotations, HeldAnnotation)
		o.SetAnnotations(annotations)
		return changed
	}
	text, err := json.Marshal(heldAnnotation{APIVersion: GroupVersion.String(), Held: held})
	if err != nil {
		panic(fmt.Sprintf("cannot write %s: %v", HeldAnnotation, err)) // a struct of texts and numbers
	}
	if annotations[HeldAnnotation] == string(text) {
		return false
	}
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[HeldAnnotation] = string(text)
	o.SetAnnotations(annotations)
	return true
}
