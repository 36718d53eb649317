package node

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"strings"
	"time"

	vknode "github.com/virtual-kubelet/virtual-kubelet/node"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	leaseSeconds   = 40
	statusInterval = 5 * time.Minute // the lease is the heartbeat, the status only changes at the start
)

// nodeObject is the Node as this program wants it: Ready, with room for many pods, without taints.
func nodeObject(name, ip, version string, logPort int) *corev1.Node {
	now := metav1.Now()
	condition := func(kind corev1.NodeConditionType, status corev1.ConditionStatus, reason string) corev1.NodeCondition {
		return corev1.NodeCondition{Type: kind, Status: status, Reason: reason, LastHeartbeatTime: now, LastTransitionTime: now}
	}
	room := corev1.ResourceList{
		corev1.ResourceCPU:              resource.MustParse("16"),
		corev1.ResourceMemory:           resource.MustParse("32Gi"),
		corev1.ResourceEphemeralStorage: resource.MustParse("100Gi"),
		corev1.ResourcePods:             resource.MustParse("200"),
	}
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
			corev1.LabelHostname:   name,
			corev1.LabelOSStable:   runtime.GOOS,
			corev1.LabelArchStable: runtime.GOARCH,
		}},
		Status: corev1.NodeStatus{
			Capacity:    room,
			Allocatable: room,
			Conditions: []corev1.NodeCondition{
				condition(corev1.NodeReady, corev1.ConditionTrue, "ProcessNodeReady"),
				condition(corev1.NodeMemoryPressure, corev1.ConditionFalse, "NotMeasured"),
				condition(corev1.NodeDiskPressure, corev1.ConditionFalse, "NotMeasured"),
				condition(corev1.NodePIDPressure, corev1.ConditionFalse, "NotMeasured"),
			},
			Addresses: []corev1.NodeAddress{
				{Type: corev1.NodeInternalIP, Address: ip},
				{Type: corev1.NodeHostName, Address: name},
			},
			DaemonEndpoints: corev1.NodeDaemonEndpoints{KubeletEndpoint: corev1.DaemonEndpoint{Port: int32(logPort)}},
			NodeInfo: corev1.NodeSystemInfo{
				Architecture: runtime.GOARCH, OperatingSystem: runtime.GOOS, KernelVersion: kernelVersion(),
				// The server's own version: there is no kubelet here whose age could matter to anyone.
				KubeletVersion:          version,
				OSImage:                 "processes of the host",
				ContainerRuntimeVersion: "process://1",
			},
		},
	}
}

// kernelVersion is only shown; a kernel that does not say is none of anybody's business here.
func kernelVersion() string {
	release, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(release))
}

// keepRegistered registers the node, closes ready, and renews the lease and the status until the context ends.
func keepRegistered(ctx context.Context, h *host, node *corev1.Node, ready chan<- struct{}) error {
	nodes := h.client.CoreV1().Nodes()
	for {
		attempt, cancel := context.WithCancel(ctx)
		// The controller gives up on its first failure to register, and cannot be started twice.
		controller, err := vknode.NewNodeController(vknode.NaiveNodeProvider{}, node.DeepCopy(), nodes,
			vknode.WithNodeEnableLeaseV1(h.client.CoordinationV1().Leases(corev1.NamespaceNodeLease), leaseSeconds),
			vknode.WithNodeStatusUpdateInterval(statusInterval),
			vknode.WithNodeStatusUpdateErrorHandler(func(ctx context.Context, err error) error {
				if !apierrors.IsNotFound(err) {
					return err
				}
				// Somebody deleted the node object; its owner is still here.
				if _, err := nodes.Create(ctx, node.DeepCopy(), metav1.CreateOptions{}); err != nil {
					return fmt.Errorf("cannot register node %s again: %w", node.Name, err)
				}
				return nil
			}))
		if err != nil {
			cancel()
			return fmt.Errorf("cannot make node controller: %w", err)
		}
		done := make(chan error, 1)
		go func() { done <- controller.Run(attempt) }()
		select {
		case <-controller.Ready():
			if ready != nil {
				close(ready)
				ready = nil
			}
			err = <-done
		case err = <-done:
		}
		cancel()
		if ctx.Err() != nil {
			return ctx.Err()
		}
		h.Log.Warn("cannot register node, trying again", "node", node.Name, "error", err)
		if !sleep(ctx, time.Second) {
			return ctx.Err()
		}
	}
}
