package target

import (
	"encoding/json"
	"fmt"
	"strings"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	"github.com/fluxcd/pkg/apis/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Annotation records on a Kustomization or HelmRelease which other cluster it was
// applied to, as Ref writes it. See docs/decisions/006.
const Annotation = "cascade.dev/target"

// Ref tells where and as whom a Kustomization is applied. It is
// comparable, and holds references only, no credentials.
type Ref struct {
	// Kind of the object with the way to the cluster: Secret, ConfigMap, or
	// empty for the cluster that we run in.
	Kind string `json:"kind,omitempty"`
	Name string `json:"name,omitempty"`
	Key  string `json:"key,omitempty"`
	// User is impersonated there.
	User string `json:"user,omitempty"`
	// Cluster is the UID of its kube-system namespace, once it is known.
	Cluster string `json:"cluster,omitempty"`
	// OfCluster names the Cluster whose kubeconfig the Secret is, if Cluster API made it: once both are gone,
	// the name of the Secret alone does not tell.
	OfCluster string `json:"ofCluster,omitempty"`
}

// Of reads where an object is to be applied. account is the default
// service account.
func Of(obj *kustomizev1.Kustomization, account string) Ref {
	return refTo(obj.Namespace, obj.Spec.KubeConfig, obj.Spec.ServiceAccountName, account)
}

// OfRelease is Of for a HelmRelease.
func OfRelease(obj *helmv2.HelmRelease, account string) Ref {
	return refTo(obj.Namespace, obj.Spec.KubeConfig, obj.Spec.ServiceAccountName, account)
}

func refTo(namespace string, k *meta.KubeConfigReference, serviceAccount, account string) Ref {
	var ref Ref
	if k != nil {
		switch {
		case k.ConfigMapRef != nil && k.SecretRef == nil:
			ref.Kind, ref.Name = "ConfigMap", k.ConfigMapRef.Name
		case k.SecretRef != nil:
			ref.Kind, ref.Name, ref.Key = "Secret", k.SecretRef.Name, k.SecretRef.Key
		default:
			ref.Kind = "Secret" // named nowhere: Connect tells
		}
	}
	if serviceAccount != "" {
		account = serviceAccount
	}
	if account != "" {
		ref.User = User(namespace, account)
	}
	return ref
}

// User is the user that stands for a service account.
func User(namespace, name string) string {
	return "system:serviceaccount:" + namespace + ":" + name
}

// Account is the name of the service account that is impersonated; empty if nobody is.
func (r Ref) Account() string { return r.User[strings.LastIndex(r.User, ":")+1:] }

// Local reports whether the target is the cluster that we run in.
func (r Ref) Local() bool { return r.Kind == "" }

// Encode writes the reference for Annotation.
func (r Ref) Encode() string {
	data, err := json.Marshal(r)
	if err != nil {
		panic(err) // a struct of strings
	}
	return string(data)
}

// Decode reads what Encode wrote.
func Decode(text string) (Ref, error) {
	var ref Ref
	if err := json.Unmarshal([]byte(text), &ref); err != nil {
		return ref, fmt.Errorf("cannot read annotation %s: %w", Annotation, err)
	}
	return ref, nil
}

// Recorded is the target that an object has on record, nil if it has none. wanted is where it is to
// be by now, applied what this process applied it to last, nil if it does not know. Whoever may write the
// object can write the annotation too: it must not lend more rights than the object has. So it does not tell
// that nobody was impersonated, which ActedAs does.
func Recorded(obj metav1.Object, wanted Ref, applied *Ref) (*Ref, error) {
	text := obj.GetAnnotations()[Annotation]
	if text == "" {
		return nil, nil
	}
	ref, err := Decode(text)
	switch {
	case err != nil:
		return nil, err
	case ref.User == "":
		ref = ref.ActedAs(applied, wanted)
	case !strings.HasPrefix(ref.User, User(obj.GetNamespace(), "")):
		return nil, fmt.Errorf("cannot use annotation %s: it names a user who is no service account of the namespace; remove it", Annotation)
	}
	return &ref, nil
}

// ActedAs is a reference with who was impersonated there, which may be nobody, if this process applied to it
// last. If that is not known, it is the account of where the object is to be by now.
func (r Ref) ActedAs(applied *Ref, wanted Ref) Ref {
	r.User = wanted.User
	if applied != nil && r.SameWay(*applied) {
		r.User = applied.User
	}
	return r
}

// SetRecorded has an object record a target, as Encode wrote it, or none, if that is empty. It reports
// whether there is anything to write.
func SetRecorded(obj metav1.Object, about string) bool {
	annotations := obj.GetAnnotations()
	if annotations[Annotation] == about {
		return false
	}
	if annotations == nil {
		annotations = map[string]string{}
	}
	if annotations[Annotation] = about; about == "" {
		delete(annotations, Annotation)
	}
	obj.SetAnnotations(annotations)
	return true
}

// Change is what became of a Kustomization's target since its inventory
// was written.
type Change int

const (
	// Same: the inventory is about this cluster.
	Same Change = iota
	// Moved: the inventory is about another cluster, which the recorded
	// reference leads to. Its objects are pruned there first.
	Moved
	// Replaced: the reference is the same and leads to another cluster.
	// The old one cannot be reached any more; with it the objects are gone, or
	// out of reach.
	Replaced
	// Unidentified: the reference is another one, and one of both clusters does not tell
	// which it is. Unknown is not different: nothing is pruned.
	Unidentified
)

// Compare decides by what was recorded, nil if nothing was, and what is
// wanted now. local is the identity of the cluster that we run in.
func Compare(recorded *Ref, wanted Ref, local string) Change {
	if recorded == nil {
		return Same // the inventory is taken to be about this cluster, as Flux would
	}
	of := func(r Ref) string {
		if r.Local() {
			return local
		}
		return r.Cluster
	}
	before, now := of(*recorded), of(wanted)
	renamed := !recorded.SameWay(wanted)
	known := before != "" && now != ""
	switch {
	case known && before == now, !known && !renamed:
		return Same
	case !known:
		return Unidentified
	case renamed:
		return Moved
	}
	return Replaced
}

// SameWay reports whether two references of one object are the same, wherever they lead.
func (r Ref) SameWay(other Ref) bool {
	return r.Kind == other.Kind && r.Name == other.Name && r.Key == other.Key
}

// Record is what to record of a target, after what was recorded before; nil if nothing was. A
// cluster that does not tell which it is for a while stays the one that it was: that it is
// replaced meanwhile is to be seen when it tells again.
func (r Ref) Record(before *Ref) Ref {
	if r.Cluster == "" && before != nil && r.SameWay(*before) {
		r.Cluster = before.Cluster
	}
	return r
}

// SameCluster reports whether two references lead to one cluster, as far as is known:
// this one of an object in a namespace, and another of an object in another. Where it
// is not known of both which cluster that is, they have to be the same reference. A local
// one may have the identity of the cluster that we run in, to be compared with others.
func (r Ref) SameCluster(namespace string, other Ref, otherNamespace string) bool {
	switch {
	case r.Local() && other.Local():
		return true
	case r.Cluster != "" && other.Cluster != "":
		return r.Cluster == other.Cluster
	case r.Local() || other.Local():
		return false
	}
	return namespace == otherNamespace && r.Kind == other.Kind && r.Name == other.Name && r.Key == other.Key
}
