package node

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// podFacts is what a worker knows of its pod. The status follows from it, the spec and the status before, see statusOf.
type podFacts struct {
	hostIP, podIP    string
	podNetwork       bool // the API has it at OnPodNetwork(podIP)
	started          time.Time
	refusal          string // why the pod cannot run here
	prepared         bool   // directory and credentials are there
	initialized      bool   // all init containers succeeded
	initFailed       bool   // an init container failed for good
	ended            bool   // all containers ended for good
	deadlineExceeded bool
	containers       map[string]*containerFacts
}

// containerFacts is what is known of one container. It is running, or else terminated, or else waiting.
type containerFacts struct {
	running  *runningFacts
	exit     *exitFacts // of the current life, which ended and is not to be followed by another
	waiting  corev1.ContainerStateWaiting
	last     *exitFacts // of the life before
	restarts int32
	started  bool // passed its startup probe
	ready    bool
}

type runningFacts struct {
	id    string
	since time.Time
}

type exitFacts struct {
	id        string
	code      int32
	signal    int32
	reason    string
	message   string
	since, at time.Time
}

func waitingFor(reason, message string) corev1.ContainerStateWaiting {
	return corev1.ContainerStateWaiting{Reason: reason, Message: message}
}

// refuse makes all containers wait for good, for the reason given.
func (f *podFacts) refuse(reason string) {
	f.refusal = reason
	f.wait(waitingFor("Unsupported", reason))
}

// wait makes all containers that have not run yet wait with the reason.
func (f *podFacts) wait(waiting corev1.ContainerStateWaiting) {
	for _, container := range f.containers {
		container.waiting = waiting
	}
}

// statusOf is the status of the pod: that of before with what the facts say put in. It changes nothing that others own
// (the QoS class, conditions of other controllers) and no transition time of a condition that stays the same.
func statusOf(object *corev1.Pod, f podFacts, now time.Time) corev1.PodStatus {
	status := *object.Status.DeepCopy()
	status.HostIP = f.hostIP
	status.HostIPs = []corev1.HostIP{{IP: f.hostIP}}
	status.PodIP, status.PodIPs = f.podIP, nil
	if f.podNetwork {
		status.PodIP = OnPodNetwork(f.podIP)
	}
	if status.PodIP != "" {
		status.PodIPs = []corev1.PodIP{{IP: status.PodIP}}
	}
	if status.StartTime == nil {
		started := metav1.NewTime(f.started)
		status.StartTime = &started
	}
	status.InitContainerStatuses = containerStatuses(object.Spec.InitContainers, f)
	status.ContainerStatuses = containerStatuses(object.Spec.Containers, f)
	status.ObservedGeneration = object.Generation
	status.Phase, status.Reason, status.Message = phaseOf(object, f)

	terminal := status.Phase == corev1.PodSucceeded || status.Phase == corev1.PodFailed
	containersReady := f.initialized && !terminal
	for _, container := range status.ContainerStatuses {
		containersReady = containersReady && container.Ready
	}
	ready := containersReady
	for _, gate := range object.Spec.ReadinessGates {
		ready = ready && conditionTrue(status.Conditions, gate.ConditionType)
	}
	reason := func(is bool, why string) string {
		switch {
		case is:
			return ""
		case status.Phase == corev1.PodSucceeded:
			return "PodCompleted"
		case status.Phase == corev1.PodFailed:
			return "PodFailed"
		}
		return why
	}
	set := func(kind corev1.PodConditionType, is bool, why string) {
		status.Conditions = withCondition(status.Conditions, corev1.PodCondition{
			Type: kind, Status: conditionStatus(is), Reason: reason(is, why), ObservedGeneration: object.Generation}, now)
	}
	set(corev1.PodReadyToStartContainers, f.prepared && !terminal, "NotPrepared")
	set(corev1.PodInitialized, f.initialized, "ContainersNotInitialized")
	set(corev1.ContainersReady, containersReady, "ContainersNotReady")
	set(corev1.PodReady, ready, "ContainersNotReady")
	return status
}

func phaseOf(object *corev1.Pod, f podFacts) (phase corev1.PodPhase, reason, message string) {
	switch {
	case f.refusal != "":
		return corev1.PodPending, "Unsupported", f.refusal
	case f.deadlineExceeded:
		return corev1.PodFailed, "DeadlineExceeded", "the pod was active longer than its activeDeadlineSeconds"
	case f.initFailed:
		return corev1.PodFailed, "", ""
	case f.ended:
		for _, container := range object.Spec.Containers {
			if exit := f.containers[container.Name].exit; exit == nil || exit.code != 0 {
				return corev1.PodFailed, "", ""
			}
		}
		return corev1.PodSucceeded, "", ""
	case !f.initialized:
		return corev1.PodPending, "", ""
	}
	for _, container := range object.Spec.Containers {
		facts := f.containers[container.Name]
		if facts.running == nil && facts.exit == nil && facts.last == nil {
			return corev1.PodPending, "", ""
		}
	}
	return corev1.PodRunning, "", ""
}

func containerStatuses(containers []corev1.Container, f podFacts) []corev1.ContainerStatus {
	var all []corev1.ContainerStatus
	for _, container := range containers {
		facts := f.containers[container.Name]
		started := facts.started
		status := corev1.ContainerStatus{
			Name: container.Name, Image: container.Image, ImageID: "",
			RestartCount: facts.restarts, Ready: facts.ready, Started: &started,
		}
		switch {
		case facts.running != nil:
			status.ContainerID = facts.running.id
			status.State.Running = &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(facts.running.since)}
		case facts.exit != nil:
			status.ContainerID = facts.exit.id
			status.State.Terminated = facts.exit.state()
		default:
			waiting := facts.waiting
			status.State.Waiting = &waiting
		}
		if facts.last != nil {
			status.LastTerminationState.Terminated = facts.last.state()
			if status.ContainerID == "" {
				status.ContainerID = facts.last.id
			}
		}
		all = append(all, status)
	}
	return all
}

func (e *exitFacts) state() *corev1.ContainerStateTerminated {
	return &corev1.ContainerStateTerminated{
		ExitCode: e.code, Signal: e.signal, Reason: e.reason, Message: e.message,
		StartedAt: metav1.NewTime(e.since), FinishedAt: metav1.NewTime(e.at), ContainerID: e.id,
	}
}

// exitOf turns the end of a process into what a container runtime would say.
func exitOf(id string, since, at time.Time, code, signal int, message string) *exitFacts {
	exit := &exitFacts{id: id, code: int32(code), signal: int32(signal), since: since, at: at, reason: "Completed", message: message}
	if signal != 0 {
		exit.code = int32(128 + signal)
		exit.message = joinMessages(message, fmt.Sprintf("ended by signal %d", signal))
	}
	if exit.code != 0 {
		exit.reason = "Error"
	}
	return exit
}

func joinMessages(first, second string) string {
	if first == "" {
		return second
	}
	return first + "; " + second
}

func conditionStatus(is bool) corev1.ConditionStatus {
	if is {
		return corev1.ConditionTrue
	}
	return corev1.ConditionFalse
}

func conditionTrue(conditions []corev1.PodCondition, kind corev1.PodConditionType) bool {
	for _, condition := range conditions {
		if condition.Type == kind {
			return condition.Status == corev1.ConditionTrue
		}
	}
	return false
}

func withCondition(conditions []corev1.PodCondition, next corev1.PodCondition, now time.Time) []corev1.PodCondition {
	next.LastTransitionTime = metav1.NewTime(now)
	for i, condition := range conditions {
		if condition.Type != next.Type {
			continue
		}
		if condition.Status == next.Status {
			next.LastTransitionTime = condition.LastTransitionTime
		}
		next.LastProbeTime = condition.LastProbeTime
		conditions[i] = next
		return conditions
	}
	return append(conditions, next)
}
