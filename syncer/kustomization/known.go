package kustomization

import (
	"sync"

	"k8s.io/apimachinery/pkg/types"
)

// known is what this process knows of Kustomizations. It is safe for concurrent use; the
// zero value knows nothing.
type known struct {
	mu       sync.Mutex
	progress map[types.NamespacedName]*progress
	// declarations of those that have not applied what they declare.
	declarations map[types.NamespacedName]declaration
	// onComposed is told of Compositions that changed.
	onComposed []func(types.NamespacedName)
}

// of returns what is known of a Kustomization, from now on at least.
func (k *known) of(name types.NamespacedName) *progress {
	k.mu.Lock()
	defer k.mu.Unlock()
	p := k.progress[name]
	if p == nil {
		p = &progress{}
		if k.progress == nil {
			k.progress = map[types.NamespacedName]*progress{}
		}
		k.progress[name] = p
	}
	return p
}

// sofar returns what is known of a Kustomization; nil if that is nothing.
func (k *known) sofar(name types.NamespacedName) *progress {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.progress[name]
}

// declaration returns what a Kustomization declared when it was asked last.
func (k *known) declaration(name types.NamespacedName) (declaration, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	d, ok := k.declarations[name]
	return d, ok
}

// declared takes in what a Kustomization declares.
func (k *known) declared(name types.NamespacedName, d declaration) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.declarations == nil || len(k.declarations) >= mostDeclarations {
		k.declarations = map[types.NamespacedName]declaration{}
	}
	k.declarations[name] = d
}

func (k *known) forget(name types.NamespacedName) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.progress, name)
	delete(k.declarations, name)
}
