package apply

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"

	ssautil "github.com/fluxcd/pkg/ssa/utils"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/cascade-gitops/cascade/inventory"
	"github.com/cascade-gitops/cascade/syncer/digest"
	"github.com/cascade-gitops/cascade/syncer/observed"
)

// Sent are objects as they were applied, each with the state in which it was seen last, in
// a few bytes and in the order of their keys: there may be hundreds of thousands of them. It
// is immutable.
type Sent []sentObject

type sentObject struct {
	key sentKey
	seen
}

// sentKey identifies an object together with its body. The first byte is of the object alone,
// so that another body leaves it in the same part of an Ownership.
type sentKey [8]byte

// seen is the state of an object in the cluster; the zero value is not known.
type seen struct {
	// form is what changes when somebody changes what was applied, and version what changes
	// with each write. Both are digests.
	form, version uint64
	// owned identifies the fields that its manager applied; zero if that is not known.
	owned uint64
}

func sentKeyOf(u *unstructured.Unstructured, body []byte) (key sentKey) {
	id := []byte(inventory.Of(u).ID())
	object, sum := digest.Of(id), digest.Of(id, body)
	key[0] = object[0]
	copy(key[1:], sum[:])
	return key
}

// sentOf has objects in order.
func sentOf(objects map[sentKey]seen) Sent {
	sent := make(Sent, 0, len(objects))
	for key, at := range objects {
		sent = append(sent, sentObject{key, at})
	}
	slices.SortFunc(sent, func(a, b sentObject) int { return bytes.Compare(a.key[:], b.key[:]) })
	return sent
}

// Bytes are the objects without the state in which they were seen, for a record that a later
// process reads with ParseSent. Each takes SentSize bytes, which somebody who guesses all of an
// object can tell by them.
func (s Sent) Bytes() []byte {
	all := make([]byte, 0, SentSize*len(s))
	for _, o := range s {
		all = append(all, o.key[:]...)
	}
	return all
}

// Without leaves out objects of phases that the owner sent. Of packed objects it leaves out all or
// none.
func (s Sent) Without(owner Owner, phases []Phase, out func(inventory.Entry) bool) (Sent, error) {
	left := map[sentKey]bool{}
	for _, p := range phases {
		if p.Packed != nil && slices.ContainsFunc(p.Packed.Entries(), out) {
			keys, err := p.Packed.sentBy(owner)
			if err != nil {
				return nil, err
			}
			for _, key := range keys {
				left[key] = true
			}
		}
		var of Phase
		for n, u := range p.Objects {
			switch {
			case !out(inventory.Of(u)):
			case p.frozen != nil:
				left[p.frozen[n].sent] = true
			default:
				of.Objects = append(of.Objects, u)
			}
		}
		keys, err := SentOf(owner, []Phase{of})
		if err != nil {
			return nil, err
		}
		for _, o := range keys {
			left[o.key] = true
		}
	}
	if len(left) == 0 {
		return s, nil
	}
	return slices.DeleteFunc(slices.Clone(s), func(o sentObject) bool { return left[o.key] }), nil
}

// SentSize is what an object takes in Sent.Bytes.
const SentSize = len(sentKey{})

// ParseSent returns the objects of Sent.Bytes. In which state they are is not known.
func ParseSent(all []byte) (Sent, error) {
	if len(all)%SentSize != 0 {
		return nil, fmt.Errorf("cannot parse what was sent: %d bytes are no multiple of %d", len(all), SentSize)
	}
	sent := make(Sent, 0, len(all)/SentSize)
	for ; len(all) > 0; all = all[SentSize:] {
		o := sentObject{key: sentKey(all[:SentSize])}
		if n := len(sent); n > 0 && bytes.Compare(sent[n-1].key[:], o.key[:]) >= 0 {
			return nil, fmt.Errorf("cannot parse what was sent: object %d is out of order", n)
		}
		sent = append(sent, o)
	}
	return sent, nil
}

// of returns the state of an object, and whether it was sent.
func (s Sent) of(key sentKey) (seen, bool) {
	i, found := slices.BinarySearchFunc(s, key, func(o sentObject, key sentKey) int { return bytes.Compare(o.key[:], key[:]) })
	if !found {
		return seen{}, false
	}
	return s[i].seen, true
}

// seenOf is the state of an object of which a manager applied what was asked. A generation moves with
// every change of a spec. Kinds without one, as a ResourceQuota, or with one that stands still, as a PriorityClass, are held by who wrote what but their status, or by
// their version where that is not shown, which moves with every write.
func seenOf(manager string, asked *unstructured.Unstructured, live *metav1.PartialObjectMetadata) seen {
	keys := digest.KeysOf(asked)
	parts := []string{string(live.UID), "", "", strconv.FormatUint(keys.Values(live.Labels, live.Annotations), 16)}
	if generation, written := observed.Generation(asked.GroupVersionKind().GroupKind(), live), observed.Written(live); generation != 0 {
		parts[1] = strconv.FormatInt(generation, 10)
	} else if written != 0 {
		parts[2] = "written " + strconv.FormatUint(written, 16)
	} else {
		parts[2] = live.ResourceVersion
	}
	// Neither moves a generation. What nobody asked for is others' affair: controllers add
	// finalizers to what they find.
	for _, f := range asked.GetFinalizers() {
		parts = append(parts, strconv.FormatBool(slices.Contains(live.Finalizers, f)))
	}
	for _, asked := range asked.GetOwnerReferences() {
		owned := slices.ContainsFunc(live.OwnerReferences, func(o metav1.OwnerReference) bool { return o.UID == asked.UID })
		parts = append(parts, "of "+strconv.FormatBool(owned))
	}
	return seen{form: number(digest.Of(parts...)), version: number(digest.Of(string(live.UID), live.ResourceVersion)), owned: ownedBy(manager, live)}
}

func number(sum digest.Sum) uint64 { return binary.BigEndian.Uint64(sum[:]) }

// SentOf returns the set of the phases' objects, which the owner is known to
// have applied as they are, perhaps in an earlier process.
func SentOf(owner Owner, phases []Phase) (Sent, error) {
	sent := map[sentKey]seen{}
	for _, p := range phases {
		if p.Packed != nil {
			keys, err := p.Packed.sentBy(owner)
			if err != nil {
				return nil, err
			}
			for _, key := range keys {
				sent[key] = seen{}
			}
		}
		for _, f := range p.frozen {
			sent[f.sent] = seen{}
		}
		if p.frozen != nil {
			continue
		}
		for _, u := range p.Objects {
			owner.label(u)
			body, err := bodies(nil).of(u)
			if err != nil {
				return nil, err
			}
			sent[sentKeyOf(u, body)] = seen{}
		}
	}
	return sentOf(sent), nil
}

// bodies are request bodies of objects that were encoded before.
type bodies map[*unstructured.Unstructured][]byte

// of returns the body of an object.
func (b bodies) of(u *unstructured.Unstructured) ([]byte, error) {
	if body := b[u]; body != nil {
		return body, nil
	}
	ssautil.RemoveCABundleFromCRD(u)
	return encode(u)
}

// encode is the body of an apply request. Equal objects have equal bodies.
func encode(u *unstructured.Unstructured) ([]byte, error) {
	body, err := json.Marshal(u.Object)
	if err != nil {
		return nil, fmt.Errorf("cannot encode %s: %w", ssautil.FmtUnstructured(u), err)
	}
	return body, nil
}
