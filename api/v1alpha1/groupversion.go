package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion is the group and version of the kinds in this package.
var GroupVersion = schema.GroupVersion{Group: Group, Version: "v1alpha1"}

// AddToScheme adds the kinds of this package to a scheme.
func AddToScheme(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(GroupVersion, &Layer{}, &LayerList{}, &Child{}, &ChildList{}, &Rollout{}, &RolloutList{}, &StateBackup{}, &StateBackupList{})
	metav1.AddToGroupVersion(scheme, GroupVersion)
	return nil
}
