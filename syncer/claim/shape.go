package claim

import (
	"encoding/json"
	"fmt"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// shapeOf identifies the part of a spec that decides what is declared and where. How
// often and in which way it is applied is not in it, nor are the defaults of the API
// server, which a manifest does not have.
func shapeOf(o client.Object) string {
	var spec any
	switch o := o.(type) {
	case *kustomizev1.Kustomization:
		s := o.Spec.DeepCopy()
		if s.SourceRef.Namespace == "" {
			s.SourceRef.Namespace = o.Namespace
		}
		s.SourceRef.APIVersion = ""
		s.Interval, s.RetryInterval, s.Timeout = metav1.Duration{}, nil, nil
		s.Prune, s.Force, s.Wait, s.Suspend, s.DeletionPolicy = false, false, false, false, ""
		s.DependsOn, s.HealthChecks, s.HealthCheckExprs, s.Ignore = nil, nil, nil, nil
		spec = s
	case *helmv2.HelmRelease:
		s := o.Spec.DeepCopy()
		s.Interval, s.Timeout, s.MaxHistory, s.Suspend = metav1.Duration{}, nil, nil, false
		s.DependsOn, s.Test, s.Rollback, s.Uninstall, s.DriftDetection, s.HealthCheckExprs = nil, nil, nil, nil, nil, nil
		if c := s.Chart; c != nil {
			if c.Spec.Version == "" {
				c.Spec.Version = "*"
			}
			c.Spec.Interval, c.Spec.ReconcileStrategy = nil, ""
		}
		spec = s
	}
	text, err := json.Marshal(spec)
	if err != nil {
		return fmt.Sprintf("%p", o) // like no other
	}
	return string(text)
}
