package wake

import (
	"github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
)

// Changed passes what a reconciler reacts to: a new generation, a request to
// reconcile, or a change of one of the annotations.
func Changed(annotations ...string) predicate.Predicate {
	annotations = append(annotations, meta.ReconcileRequestAnnotation)
	return predicate.Funcs{
		UpdateFunc: func(e event.UpdateEvent) bool {
			if e.ObjectOld == nil || e.ObjectNew == nil {
				return false
			}
			if e.ObjectOld.GetGeneration() != e.ObjectNew.GetGeneration() ||
				!e.ObjectNew.GetDeletionTimestamp().Equal(e.ObjectOld.GetDeletionTimestamp()) {
				return true
			}
			for _, a := range annotations {
				if e.ObjectOld.GetAnnotations()[a] != e.ObjectNew.GetAnnotations()[a] {
					return true
				}
			}
			return false
		},
	}
}

// Shard reports whether an object is one that this process reconciles, where several agents
// share a tier by labels. A nil Shard has all.
type Shard func(client.Object) bool

// Has reports whether an object is of the shard.
func (s Shard) Has(o client.Object) bool { return s == nil || s(o) }

// Changed passes the objects of the shard that have something to react to, and those that
// came to it or left it.
func (s Shard) Changed(annotations ...string) predicate.Predicate {
	return predicate.Or(s.Moved(), predicate.And(predicate.NewPredicateFuncs(s.Has), Changed(annotations...)))
}

// Moved passes the objects of which other labels make them another agent's. Who has one now
// begins with it, and who had it drops it, as in Flux, whose cache has only what the
// selector passes.
func (s Shard) Moved() predicate.Predicate {
	return predicate.Funcs{
		CreateFunc:  func(event.CreateEvent) bool { return false },
		DeleteFunc:  func(event.DeleteEvent) bool { return false },
		GenericFunc: func(event.GenericEvent) bool { return false },
		UpdateFunc: func(e event.UpdateEvent) bool {
			return e.ObjectOld != nil && e.ObjectNew != nil && s.Has(e.ObjectOld) != s.Has(e.ObjectNew)
		},
	}
}

// NewArtifact passes sources that have another artifact.
func NewArtifact() predicate.Predicate {
	return predicate.Funcs{
		DeleteFunc: func(event.DeleteEvent) bool { return false },
		UpdateFunc: func(e event.UpdateEvent) bool {
			before, ok1 := e.ObjectOld.(sourcev1.Source)
			after, ok2 := e.ObjectNew.(sourcev1.Source)
			if !ok1 || !ok2 || after.GetArtifact() == nil {
				return false
			}
			// The digest as well: other rules of what to ignore make another
			// content of the same revision. And the URL: it may have nothing.
			return before.GetArtifact() == nil || before.GetArtifact().Revision != after.GetArtifact().Revision ||
				before.GetArtifact().Digest != after.GetArtifact().Digest || before.GetArtifact().URL != after.GetArtifact().URL
		},
	}
}
