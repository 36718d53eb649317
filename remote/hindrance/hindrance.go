// Package hindrance finds out what keeps the pods of an agent from running: an image that cannot
// be pulled, no node with room, an admission that refuses them, a container that ends at once.
//
// It reads Deployments, ReplicaSets and pods of one namespace, by three lists, and writes nothing. What is on
// its way is no hindrance. Texts of others are bounded, and have neither the values of variables
// nor logs in them.
package hindrance

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

// nameLabel is on all objects of an agent.
const nameLabel = "app.kubernetes.io/name"

// mostListed bounds each list: an agent has a few pods, and the namespace of a cluster that lies
// may have any number.
const mostListed = 50

// Of says what keeps the agent in the namespace from running, each thing once; nothing where
// all is well or on its way. The caller bounds its time.
func Of(ctx context.Context, c client.Reader, namespace string) ([]string, error) {
	of := []client.ListOption{client.InNamespace(namespace), client.MatchingLabels{nameLabel: v1alpha1.AgentName}, client.Limit(mostListed)}
	deployments, sets, pods := &appsv1.DeploymentList{}, &appsv1.ReplicaSetList{}, &corev1.PodList{}
	for _, list := range []client.ObjectList{deployments, sets, pods} {
		if err := c.List(ctx, list, of...); err != nil {
			return nil, fmt.Errorf("cannot look why the agent does not run: %w", err)
		}
	}
	return found(deployments.Items, sets.Items, pods.Items), nil
}

// mostText bounds what is said of one hindrance: images and scripts have long messages.
// beginText is how much of that is their beginning; the reason is at the end, where what
// was wrapped is.
const (
	mostText  = 300
	beginText = 80
)

// shortened is a text without its middle, if it is long.
func shortened(text string) string {
	runes := []rune(text)
	if len(runes) <= mostText {
		return text
	}
	const gap = " ... "
	return string(runes[:beginText]) + gap + string(runes[len(runes)-(mostText-beginText-len(gap)):])
}

// found says why pods are not there or do not run, each reason once. What is only on its
// way is no hindrance.
func found(deployments []appsv1.Deployment, sets []appsv1.ReplicaSet, pods []corev1.Pod) []string {
	var all []string
	add := func(format string, args ...any) {
		text := shortened(strings.Join(strings.Fields(fmt.Sprintf(format, args...)), " "))
		if !slices.Contains(all, text) {
			all = append(all, text)
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
	return all
}

// lasting are reasons for which a container waits that do not pass by themselves.
func lasting() []string {
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
		if w == nil || !slices.Contains(lasting(), w.Reason) {
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
