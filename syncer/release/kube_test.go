package release

import (
	"io"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestHookOutput: a chart asks for the output of its hooks. Helm asks the client for their
// Pods in a goroutine of its own, where nothing catches a panic.
func TestHookOutput(t *testing.T) {
	k := newKubeClient(t.Context(), &session{}, nil, newLogs(logr.Discard(), time.Now, nil), "apps", nil, time.Now)
	pods, err := k.GetPodList("apps", metav1.ListOptions{LabelSelector: "job-name=migrate"})
	if err != nil || len(pods.Items) > 0 {
		t.Errorf("GetPodList() = %v, %v; want none: nobody reads the output", pods, err)
	}
	written := func(_, _, _ string) io.Writer { t.Error("somebody reads the output"); return io.Discard }
	if err := k.OutputContainerLogsForPodList(&corev1.PodList{Items: make([]corev1.Pod, 1)}, "apps", written); err != nil {
		t.Error(err)
	}
}
