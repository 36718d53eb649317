package remote

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/syncer/clusters"
)

// TestNamespaceAfterCluster: a Namespace is looked at in whichever order it and its Clusters are seen.
func TestNamespaceAfterCluster(t *testing.T) {
	cluster := &unstructured.Unstructured{}
	cluster.SetAPIVersion("cluster.x-k8s.io/v1beta2")
	cluster.SetKind("Cluster")
	cluster.SetNamespace("team")
	cluster.SetName("alpha")
	n := namespaces{&Children{Clusters: clusters.Fixed(cluster)}}
	namespace := func(name string, uid types.UID, protected string) *metav1.PartialObjectMetadata {
		o := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: name, UID: uid}}
		o.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Namespace"))
		if protected != "" {
			o.Labels = map[string]string{v1alpha1.ProtectedLabel: protected}
		}
		return o
	}
	for name, tc := range map[string]struct {
		reason string
		// before is nil if the Namespace is new to the cache.
		before, now *metav1.PartialObjectMetadata
		want        bool
	}{
		"Cluster":  {"its first Cluster was seen before it", nil, namespace("team", "1", ""), true},
		"Labelled": {"its last Cluster may have gone while nobody looked", nil, namespace("former", "1", "true"), true},
		"Neither":  {"it has no Cluster", nil, namespace("other", "1", ""), false},
		"Lost":     {"somebody took the label off", namespace("team", "1", "true"), namespace("team", "1", ""), true},
		"Same":     {"another label changed", namespace("team", "1", "true"), namespace("team", "1", "true"), false},
		"Anew":     {"it was deleted and made again while the watch was cut", namespace("team", "1", ""), namespace("team", "2", ""), true},
	} {
		t.Run(name, func(t *testing.T) {
			got := false
			if tc.before == nil {
				got = n.events().Create(event.CreateEvent{Object: tc.now})
			} else {
				got = n.events().Update(event.UpdateEvent{ObjectOld: tc.before, ObjectNew: tc.now})
			}
			if got != tc.want {
				t.Errorf("%s: it is looked at: %t", tc.reason, got)
			}
		})
	}
}
