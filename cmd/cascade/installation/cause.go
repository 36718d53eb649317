package installation

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
)

// Causes reads why the pods of an agent do not run.
func Causes(ctx context.Context, c client.Client, namespace string) ([]string, error) {
	of := []client.ListOption{client.InNamespace(namespace), client.MatchingLabels{nameLabel: v1alpha1.AgentName}}
	deployments, sets, pods := &appsv1.DeploymentList{}, &appsv1.ReplicaSetList{}, &corev1.PodList{}
	for _, list := range []client.ObjectList{deployments, sets, pods} {
		if err := c.List(ctx, list, of...); err != nil {
			return nil, fmt.Errorf("cannot look why the agent does not run: %w", err)
		}
	}
	return causes(deployments.Items, sets.Items, pods.Items), nil
}

// mostCause bounds what is said of one cause: images and scripts have long messages.
// beginCause is how much of that is their beginning; the reason is at the end, where what
// was wrapped is.
const (
	mostCause  = 300
	beginCause = 80
)

// shortened is a text without its middle, if it is long.
func shortened(text string) string {
	runes := []rune(text)
	if len(runes) <= mostCause {
		return text
	}
	const gap = " ... "
	return string(runes[:beginCause]) + gap + string(runes[len(runes)-(mostCause-beginCause-len(gap)):])
}

// causes says why pods are not there or do not run, each reason once. What is only on its
// way is no cause.
func causes(deployments []appsv1.Deployment, sets []appsv1.ReplicaSet, pods []corev1.Pod) []string {
	var found []string
	add := func(format string, args ...any) {
		text := shortened(strings.Join(strings.Fields(fmt.Sprintf(format, args...)), " "))
		if !slices.Contains(found, text) {
			found = append(found, text)
		}
	}
	for i := range pods {
		ofPod(&pods[i], add)
	}
	for i := range sets {
		for _, c := range sets[i].Status.Conditions {
			if c.Type == appsv1.ReplicaSetReplicaFailure && c.Status == corev1.ConditionTrue {
				add("no pod is admitted: %s", c.Message)
			}
		}
	}
	for i := range deployments {
		for _, c := range deployments[i].Status.Conditions {
			if c.Type == appsv1.DeploymentReplicaFailure && c.Status == corev1.ConditionTrue && len(sets) == 0 {
				add("no pod is made: %s", c.Message)
			}
		}
	}
	return found
}

// hindrances are reasons for which a container waits that do not pass by themselves.
func hindrances() []string {
	return []string{
		"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError", "RegistryUnavailable",
		"SignatureValidationFailed", "CreateContainerConfigError", "CreateContainerError", "RunContainerError", "CrashLoopBackOff",
	}
}

func ofPod(pod *corev1.Pod, add func(string, ...any)) {
	if pod.DeletionTimestamp != nil {
		return
	}
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
			add("pod %s has no node: %s: %s", pod.Name, c.Reason, c.Message)
		}
	}
	if pod.Status.Phase == corev1.PodFailed {
		add("pod %s failed: %s: %s", pod.Name, pod.Status.Reason, pod.Status.Message)
	}
	for _, s := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		w := s.State.Waiting
		if w == nil || !slices.Contains(hindrances(), w.Reason) {
			continue
		}
		if last := s.LastTerminationState.Terminated; w.Reason == "CrashLoopBackOff" && last != nil {
			add("pod %s: %s: it ended with %d, %d times: %s; see kubectl logs -n %s %s --previous", pod.Name, w.Reason, last.ExitCode, s.RestartCount,
				cmp.Or(last.Message, last.Reason), pod.Namespace, pod.Name)
			continue
		}
		if strings.Contains(w.Message, s.Image) {
			add("pod %s: %s: %s", pod.Name, w.Reason, w.Message)
			continue
		}
		add("pod %s: %s: %s (image %s)", pod.Name, w.Reason, cmp.Or(w.Message, "no more is known"), s.Image)
	}
}
