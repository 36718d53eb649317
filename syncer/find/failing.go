package find

import (
	"github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Failing is the condition by which a source, or what makes sources, tells that it cannot be
// fetched; nil if it tells no such thing.
func Failing(o any) *metav1.Condition {
	source, ok := o.(meta.ObjectWithConditions)
	if !ok {
		return nil
	}
	ready := apimeta.FindStatusCondition(source.GetConditions(), meta.ReadyCondition)
	if ready == nil || ready.Status != metav1.ConditionFalse {
		return NotRestored(o)
	}
	return ready
}

// NotRestored is the condition by which a suspended source tells that what it had before this
// process began cannot be fetched again; nil if it tells no such thing. Such a source stays
// ready, because nobody asks it for anything new.
func NotRestored(o any) *metav1.Condition {
	source, ok := o.(meta.ObjectWithConditions)
	if !ok || !apimeta.IsStatusConditionTrue(source.GetConditions(), meta.ReadyCondition) {
		return nil
	}
	if c := apimeta.FindStatusCondition(source.GetConditions(), sourcev1.FetchFailedCondition); c != nil && c.Status == metav1.ConditionTrue {
		return c
	}
	return nil
}
