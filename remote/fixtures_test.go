package remote

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
)

var start = metav1.NewTime(time.Date(2026, 9, 1, 12, 0, 0, 0, time.UTC))

func later(d time.Duration) metav1.Time { return metav1.NewTime(start.Add(d)) }

func childNamed(name string, conditions []metav1.Condition) v1alpha1.Child {
	o := v1alpha1.Child{}
	o.Namespace, o.Name = "fleet", name
	o.CreationTimestamp = start
	o.Status.Conditions = conditions
	return o
}
