package memo

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"

	"github.com/cascade-gitops/cascade/inventory"
	"github.com/cascade-gitops/cascade/syncer/observed"
)

// show takes in what the watch says of one object.
func (r *records) show(k *kind, p *metav1.PartialObjectMetadata, gone bool) {
	r.mu.Lock()
	t := r.showLocked(k, p, gone)
	r.mu.Unlock()
	if t != nil {
		r.tell(*t)
	}
}

// showLocked returns what is to be told. The lock is held.
func (r *records) showLocked(k *kind, p *metav1.PartialObjectMetadata, gone bool) *touch {
	name := types.NamespacedName{Namespace: p.Namespace, Name: p.Name}
	o := k.objects[name]
	if o == nil {
		if gone {
			if newer(p.ResourceVersion, k.seen) {
				k.seen = p.ResourceVersion
			}
			return nil
		}
		o = &record{}
		k.objects[name] = o
	}
	live := r.reader.Of(p)
	if k.seen == "" || newer(live.Version, k.seen) {
		k.seen = live.Version
	}
	was := o.live
	o.live = live
	if gone {
		o.live = nil
	}
	if o.meanwhile = nil; o.applying && !gone {
		o.meanwhile = p
	}
	v := o.verified
	switch {
	case v == nil:
		if gone && !o.applying {
			delete(k.objects, name)
		}
		return nil
	case o.applying:
		return nil
	case !newer(live.Version, v.version):
		return nil // our own write, or one before it
	case gone, v.differs(k.group, live, p):
		// One change and what follows from it are one reason to look. That it is gone is another, or that
		// another one is there: whoever waits for that may not have looked since.
		news := !v.dirty || was != nil && (gone || was.UID != live.UID)
		r.taint(v)
		if !news {
			return nil
		}
		return &touch{v.owner, k.entry(name), true}
	}
	v.version = live.Version
	if v.skipped {
		return nil // its health is nobody's concern
	}
	return &touch{v.owner, k.entry(name), false}
}

// differs reports whether a live object is not what was verified.
func (v *verified) differs(kind schema.GroupKind, live *observed.Object, p *metav1.PartialObjectMetadata) bool {
	if v.skipped {
		return live.UID != v.uid || !v.once && !live.Skip
	}
	if live.UID != v.uid || live.Deleting || live.Foreign || live.Skip || v.keys.Values(p.Labels, p.Annotations) != v.values {
		return true
	}
	generation := observed.Generation(kind, p)
	if generation == 0 {
		return v.written == 0 || observed.Written(p) != v.written
	}
	return generation != v.generation
}

// replace takes in a complete list, after which what is not in it is gone.
func (r *records) replace(k *kind, list []*metav1.PartialObjectMetadata, version string) []touch {
	r.mu.Lock()
	defer r.mu.Unlock()
	// Versions that go back are those of a restored backup: what is remembered is
	// of another history.
	restored := older(version, k.seen)
	k.seen = version
	var told []touch
	listed := make(map[types.NamespacedName]bool, len(list))
	for _, p := range list {
		name := types.NamespacedName{Namespace: p.Namespace, Name: p.Name}
		listed[name] = true
		t := r.showLocked(k, p, false)
		if v := k.objects[name].verified; restored && v != nil {
			r.taint(v)
			t = &touch{v.owner, k.entry(name), true}
		}
		if t != nil {
			told = append(told, *t)
		}
	}
	for name, o := range k.objects {
		if listed[name] {
			continue
		}
		o.live, o.meanwhile = nil, nil
		switch {
		case o.applying:
		case o.verified == nil:
			delete(k.objects, name)
		default:
			// It may have been created after the list was made: to ask once more
			// costs one request.
			r.taint(o.verified)
			told = append(told, touch{o.verified.owner, k.entry(name), true})
		}
	}
	return told
}

func (k *kind) entry(name types.NamespacedName) inventory.Entry {
	return inventory.Entry{Namespace: name.Namespace, Name: name.Name, Group: k.group.Group, Kind: k.group.Kind, Version: k.resource.Version}
}

// taint makes what was verified dirty. The lock is held.
func (r *records) taint(v *verified) {
	if v.dirty {
		return
	}
	v.dirty = true
	if o := r.owners[v.owner]; o != nil {
		o.dirty++
	}
}

// newer compares resource versions, which are ordered within a resource (KEP-5504). What
// cannot be compared, as those of some API servers of others, counts as newer unless it is the same.
func newer(a, b string) bool {
	c, err := resourceversion.CompareResourceVersion(a, b)
	return a != b && (err != nil || c > 0)
}

// older reports whether a version is one before another: what cannot be compared is not.
func older(a, b string) bool {
	c, err := resourceversion.CompareResourceVersion(a, b)
	return err == nil && c < 0
}
