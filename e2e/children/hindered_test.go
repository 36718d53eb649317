package children

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
)

// agentDoesNotRun: what keeps the agent of a child from running is told where its parent is,
// by a control plane with real controllers and no node.
func agentDoesNotRun(h *hub, t *testing.T) {
	f := h.fleet(t, "hindered", map[string]string{"app/note.yaml": noteNamed("hindered", "cluster", "${cluster_name}")})
	p := h.plane(t, "hindered", "--audit-reads")
	f.declare(t, "hindered")
	f.handOver(t, "hindered", p.issue(t).kubeconfig)
	f.report(t, "hindered", map[string]any{"phase": "Provisioned", "initialization": map[string]any{"infrastructureProvisioned": true, "controlPlaneInitialized": true}})
	f.layer(t, "app", "hindered", "agent: {image: registry.example/none:v1}")
	steps(t,
		step{"NoNode", func(t *testing.T) {
			f.says(t, "hindered", v1alpha1.ReadyCondition, v1alpha1.ReasonAgentNotReady, "has no node: Unschedulable")
		}},
		step{"ImagePull", func(t *testing.T) {
			// A kubelet would say so.
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.AgentNamespace, Name: "pull", Labels: map[string]string{"app.kubernetes.io/name": v1alpha1.AgentName}},
				Spec: corev1.PodSpec{HostNetwork: true, Containers: []corev1.Container{{Name: "manager", Image: "registry.example/none:v1"}}}}
			if err := p.client.Create(t.Context(), pod); err != nil {
				t.Fatal(err)
			}
			before := pod.DeepCopy()
			pod.Status.ContainerStatuses = []corev1.ContainerStatus{{
				Name: "manager", Image: "registry.example/none:v1",
				State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff", Message: "Back-off pulling image"}},
			}}
			if err := p.client.Status().Patch(t.Context(), pod, client.MergeFrom(before)); err != nil {
				t.Fatal(err)
			}
			f.says(t, "hindered", v1alpha1.ReadyCondition, v1alpha1.ReasonAgentNotReady, "pod pull: ImagePullBackOff: Back-off pulling image (image registry.example/none:v1)")
		}},
		check{"ByTheKubeconfig", func(t *testing.T) {
			for _, e := range p.requests(t, 0) {
				if e.ObjectRef.Resource == "pods" && strings.HasSuffix(e.User.Username, ":"+v1alpha1.ParentServiceAccount) {
					t.Errorf("the parent's own account asked for pods: %s %s", e.Verb, e.RequestURI)
				}
			}
		}},
	)
}
