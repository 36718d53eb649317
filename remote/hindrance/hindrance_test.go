package hindrance

import (
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestFound(t *testing.T) {
	waiting := func(reason, message string) corev1.PodStatus {
		return corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{
			Image: "registry.example/cascade:v1", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}},
		}}}
	}
	pod := func(status corev1.PodStatus) corev1.Pod {
		return corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "p"}, Status: status}
	}
	crash := waiting("CrashLoopBackOff", "back-off 10s")
	crash.ContainerStatuses[0].RestartCount = 3
	crash.ContainerStatuses[0].LastTerminationState.Terminated = &corev1.ContainerStateTerminated{ExitCode: 1, Reason: "Error"}
	going := pod(waiting("ErrImagePull", "x"))
	going.DeletionTimestamp = new(metav1.Now())
	for name, tc := range map[string]struct {
		reason string
		sets   []appsv1.ReplicaSet
		pods   []corev1.Pod
		want   []string
	}{
		"Fine":     {"what is on its way is no cause", nil, []corev1.Pod{pod(waiting("ContainerCreating", ""))}, nil},
		"Going":    {"the pod of another version is of no interest", nil, []corev1.Pod{going}, nil},
		"Pull":     {"a wrong tag", nil, []corev1.Pod{pod(waiting("ErrImagePull", "not found")), pod(waiting("ErrImagePull", "not found"))}, []string{"pod p: ErrImagePull: not found (image registry.example/cascade:v1)"}},
		"Crash":    {"it ends at once", nil, []corev1.Pod{pod(crash)}, []string{"pod p: CrashLoopBackOff: it ended with 1, 3 times: Error; see kubectl logs -n n p --previous"}},
		"Schedule": {"no node has room", nil, []corev1.Pod{pod(corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: "Unschedulable", Message: "0/1 nodes\n are available"}}})}, []string{"pod p has no node: Unschedulable: 0/1 nodes are available"}},
		"Evicted":  {"it used more than it may", nil, []corev1.Pod{pod(corev1.PodStatus{Phase: corev1.PodFailed, Reason: "Evicted", Message: "low on disk"})}, []string{"pod p failed: Evicted: low on disk"}},
		"Refused": {"admission refuses its pods", []appsv1.ReplicaSet{{Status: appsv1.ReplicaSetStatus{Conditions: []appsv1.ReplicaSetCondition{
			{Type: appsv1.ReplicaSetReplicaFailure, Status: corev1.ConditionTrue, Reason: "FailedCreate", Message: "violates PodSecurity"},
		}}}}, nil, []string{"no pod is admitted: violates PodSecurity"}},
		"Long": {
			"of a long message the middle is cut: the reason is at its end", nil,
			[]corev1.Pod{pod(waiting("ErrImagePull", "cannot pull registry.example/cascade:v1: "+strings.Repeat("x", 1000)+": 401 Unauthorized"))},
			[]string{"pod p: ErrImagePull: cannot pull registry.example/cascade:v1: " + strings.Repeat("x", beginText-62) + " ... " + strings.Repeat("x", mostText-beginText-5-18) + ": 401 Unauthorized"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			if got := found(nil, tc.sets, tc.pods); !slices.Equal(got, tc.want) {
				t.Errorf("%s:\n%q, want\n%q", tc.reason, got, tc.want)
			}
		})
	}
}
