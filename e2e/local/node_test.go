package main

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/cascade-gitops/cascade/e2e/local/node"
)

// testDeployment is one pod of this test program, and what a real agent's Deployment uses of the API.
func testDeployment(name string) *appsv1.Deployment {
	labels := map[string]string{"app.kubernetes.io/name": name}
	field := func(name, path string) corev1.EnvVar {
		return corev1.EnvVar{Name: name, ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: path}}}
	}
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"},
		Spec: appsv1.DeploymentSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec: corev1.PodSpec{
					InitContainers: []corev1.Container{{Name: "first", Image: "none", Command: []string{"sh", "-c", "echo initialised"}}},
					Containers: []corev1.Container{{
						Name: "main", Image: "none", Command: []string{"testpod", "at", "$(POD_IP)"}, Args: []string{"$(GREETING)", "$$(KEPT)", "$(UNKNOWN)"},
						EnvFrom: []corev1.EnvFromSource{{Prefix: "ALL_", ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "settings"}}}},
						Env: []corev1.EnvVar{
							{Name: podMode, Value: "1"},
							field("POD_NAME", "metadata.name"), field("POD_NAMESPACE", "metadata.namespace"), field("POD_UID", "metadata.uid"),
							field("POD_IP", "status.podIP"), field("HOST_IP", "status.hostIP"), field("NODE", "spec.nodeName"),
							field("ACCOUNT", "spec.serviceAccountName"), field("APP", "metadata.labels['app.kubernetes.io/name']"),
							{Name: "GREETING", Value: "hello from $(POD_NAME)"},
							{Name: "SETTING", ValueFrom: &corev1.EnvVarSource{ConfigMapKeyRef: &corev1.ConfigMapKeySelector{
								LocalObjectReference: corev1.LocalObjectReference{Name: "settings"}, Key: "KEY"}}},
							{Name: "PASSWORD", ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{
								LocalObjectReference: corev1.LocalObjectReference{Name: "secrets"}, Key: "password"}}},
							{Name: "CPUS", ValueFrom: &corev1.EnvVarSource{ResourceFieldRef: &corev1.ResourceFieldSelector{Resource: "limits.cpu"}}},
						},
						ReadinessProbe: &corev1.Probe{PeriodSeconds: 1, ProbeHandler: corev1.ProbeHandler{
							HTTPGet: &corev1.HTTPGetAction{Path: "/readyz", Port: intstr.FromInt32(8080)}}},
						VolumeMounts: []corev1.VolumeMount{{Name: "tmp", MountPath: "/tmp"}},
					}},
					Volumes: []corev1.Volume{{Name: "tmp", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}},
				},
			},
		},
	}
}

func TestNode(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	if _, err := w.client.AppsV1().Deployments("default").Create(ctx, testDeployment("pod"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	w.awaitPod("default", "pod", 10*time.Second, "waiting for its configuration", func(pod *corev1.Pod) bool {
		return pod.Status.Phase == corev1.PodPending && len(pod.Status.ContainerStatuses) > 0 &&
			pod.Status.ContainerStatuses[0].State.Waiting != nil &&
			pod.Status.ContainerStatuses[0].State.Waiting.Reason == "CreateContainerConfigError"
	})
	must := func(_ any, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(w.client.CoreV1().ConfigMaps("default").Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "settings"}, Data: map[string]string{"KEY": "value"}}, metav1.CreateOptions{}))
	must(w.client.CoreV1().Secrets("default").Create(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "secrets"}, StringData: map[string]string{"password": "hunter2"}}, metav1.CreateOptions{}))

	pod := w.awaitPod("default", "pod", 10*time.Second, "running and not ready", func(pod *corev1.Pod) bool {
		return pod.Status.Phase == corev1.PodRunning && pod.Status.ContainerStatuses[0].State.Running != nil && !podReady(pod)
	})
	base := "http://" + pod.Status.PodIP + ":8080"
	w.eventually(5*time.Second, "serving", func() error { return getJSON(base+"/env", nil) })

	t.Run("environment", func(t *testing.T) {
		w := w.on(t)
		var environment map[string]string
		if err := getJSON(base+"/env", &environment); err != nil {
			t.Fatal(err)
		}
		want := map[string]string{
			"POD_NAME": pod.Name, "POD_NAMESPACE": "default", "POD_UID": string(pod.UID), "POD_IP": pod.Status.PodIP,
			"HOST_IP": pod.Status.HostIP, "NODE": "mom-node", "ACCOUNT": "default", "APP": "pod",
			"GREETING": "hello from " + pod.Name, "SETTING": "value", "ALL_KEY": "value", "PASSWORD": "hunter2", "CPUS": "16",
			envBin: w.bin, envRun: w.run, envOwner: os.Getenv(envOwner), "HOSTNAME": pod.Name, "KUBERNETES_SERVICE_HOST": "127.0.0.1",
		}
		for name, value := range want {
			if environment[name] != value {
				t.Errorf("%s is %q, want %q", name, environment[name], value)
			}
		}
		if _, leaked := environment["GORACE"]; leaked {
			t.Error("the pod got a variable of the node")
		}
		for _, name := range []string{"HOME", "TMPDIR", "KUBECONFIG"} {
			if !strings.Contains(environment[name], string(pod.UID)) {
				t.Errorf("%s is %q, which is not the pod's own", name, environment[name])
			}
		}
		var args []string
		if err := getJSON(base+"/args", &args); err != nil {
			t.Fatal(err)
		}
		if want := []string{"at", pod.Status.PodIP, "hello from " + pod.Name, "$(KEPT)", "$(UNKNOWN)"}; !reflect.DeepEqual(args, want) {
			t.Errorf("arguments %q, want %q", args, want)
		}
	})

	t.Run("token", func(t *testing.T) {
		var user authenticationv1.UserInfo
		if err := getJSON(base+"/whoami", &user); err != nil {
			t.Fatal(err)
		}
		if user.Username != "system:serviceaccount:default:default" {
			t.Errorf("it is %s", user.Username)
		}
		if got := user.Extra["authentication.kubernetes.io/pod-uid"]; len(got) != 1 || got[0] != string(pod.UID) {
			t.Errorf("the token is bound to pod %v, want %s", got, pod.UID)
		}
		var environment map[string]string
		if err := getJSON(base+"/env", &environment); err != nil {
			t.Fatal(err)
		}
		token, err := os.ReadFile(filepath.Join(filepath.Dir(environment["KUBECONFIG"]), "serviceaccount", "token"))
		if err != nil {
			t.Fatal(err)
		}
		payload, err := base64.RawURLEncoding.DecodeString(strings.Split(string(token), ".")[1])
		if err != nil {
			t.Fatal(err)
		}
		var claims struct{ Exp, Iat int64 }
		if err := json.Unmarshal(payload, &claims); err != nil {
			t.Fatal(err)
		}
		if life := claims.Exp - claims.Iat; life != 3600 {
			t.Errorf("the token lives for %d s, want 3600", life)
		}
	})

	t.Run("readiness", func(t *testing.T) {
		w := w.on(t)
		if err := getJSON(base+"/become-ready", nil); err != nil {
			t.Fatal(err)
		}
		w.awaitPod("default", "pod", 3*time.Second, "ready", podReady)
	})

	t.Run("logs", func(t *testing.T) {
		w := w.on(t)
		raw, err := w.client.CoreV1().Pods("default").GetLogs(pod.Name, &corev1.PodLogOptions{Container: "main"}).DoRaw(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(raw), "serving on "+pod.Status.PodIP) {
			t.Errorf("log: %s", raw)
		}
	})

	t.Run("crash", func(t *testing.T) {
		w := w.on(t)
		pid := processOf(t, w.awaitPod("default", "pod", time.Second, "running", podReady))
		began := time.Now()
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		took := w.eventually(5*time.Second, "another process serves", func() error { return getJSON(base+"/env", nil) })
		t.Logf("killed process serves again after %v", took)
		again := w.awaitPod("default", "pod", 3*time.Second, "restarted", func(pod *corev1.Pod) bool {
			status := pod.Status.ContainerStatuses[0]
			return status.RestartCount == 1 && status.State.Running != nil && status.LastTerminationState.Terminated != nil
		})
		if last := again.Status.ContainerStatuses[0].LastTerminationState.Terminated; last.ExitCode != 137 || last.Signal != 9 {
			t.Errorf("the last end is %+v, want signal 9", last)
		}
		if again.UID != pod.UID || time.Since(began) > 5*time.Second {
			t.Errorf("pod %s restarted after %v", again.UID, time.Since(began))
		}
	})

	t.Run("status is put right", func(t *testing.T) {
		w := w.on(t)
		// The node lifecycle controller does this to the pods of a node that it missed for a while.
		if err := getJSON(base+"/become-ready", nil); err != nil {
			t.Fatal(err)
		}
		current := w.awaitPod("default", "pod", 3*time.Second, "ready", podReady)
		for i := range current.Status.Conditions {
			if current.Status.Conditions[i].Type == corev1.PodReady {
				current.Status.Conditions[i].Status = corev1.ConditionFalse
			}
		}
		if _, err := w.client.CoreV1().Pods("default").UpdateStatus(ctx, current, metav1.UpdateOptions{}); err != nil && !apierrors.IsConflict(err) {
			t.Fatal(err)
		}
		w.awaitPod("default", "pod", 2*time.Second, "ready", podReady)
	})

	t.Run("refusal", func(t *testing.T) {
		w := w.on(t)
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "imageonly"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "nginx"}}}}
		if _, err := w.client.CoreV1().Pods("default").Create(ctx, pod, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		w.eventually(5*time.Second, "refused", func() error {
			found, err := w.client.CoreV1().Pods("default").Get(ctx, "imageonly", metav1.GetOptions{})
			if err == nil && (found.Status.Reason != "Unsupported" || !strings.Contains(found.Status.Message, "no command")) {
				err = errors.New("not refused: " + found.Status.Message)
			}
			return err
		})
		if err := w.client.CoreV1().Pods("default").Delete(ctx, "imageonly", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		w.eventually(3*time.Second, "gone", func() error {
			return gone(w.client.CoreV1().Pods("default").Get(ctx, "imageonly", metav1.GetOptions{}))
		})
	})

	t.Run("job", func(t *testing.T) {
		w := w.on(t)
		limit := int32(3)
		job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: "job"}, Spec: batchv1.JobSpec{BackoffLimit: &limit, Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{
			RestartPolicy: corev1.RestartPolicyOnFailure,
			// Fails once: the second start finds what the first left in the shared /tmp.
			Containers: []corev1.Container{{Name: "c", Image: "none", Command: []string{"sh", "-c", "mkdir $TMPDIR/once && exit 3; exit 0"},
				VolumeMounts: []corev1.VolumeMount{{Name: "tmp", MountPath: "/tmp"}}}},
			Volumes: []corev1.Volume{{Name: "tmp", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}},
		}}}}
		if _, err := w.client.BatchV1().Jobs("default").Create(ctx, job, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		w.eventually(15*time.Second, "complete", func() error {
			found, err := w.client.BatchV1().Jobs("default").Get(ctx, "job", metav1.GetOptions{})
			if err == nil && found.Status.Succeeded != 1 {
				err = errors.New("not complete")
			}
			return err
		})
	})

	t.Run("node restart", func(t *testing.T) {
		w := w.on(t)
		before := w.awaitPod("default", "pod", 5*time.Second, "running", func(pod *corev1.Pod) bool { return pod.Status.ContainerStatuses[0].State.Running != nil })
		pid := processOf(t, before)
		id, err := node.Running(filepath.Join(w.mom, "node"))
		if err != nil {
			t.Fatal(err)
		}
		if err := id.Kill(syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		w.eventually(2*time.Second, "the pod dies with the node", func() error { return processGone(pid) })
		w.startNode()
		after := w.awaitPod("default", "pod", 10*time.Second, "running again", func(pod *corev1.Pod) bool {
			status := pod.Status.ContainerStatuses[0]
			return status.State.Running != nil && status.ContainerID != before.Status.ContainerStatuses[0].ContainerID
		})
		if got, want := after.Status.ContainerStatuses[0].RestartCount, before.Status.ContainerStatuses[0].RestartCount+1; got != want || after.UID != before.UID {
			t.Errorf("pod %s has %d restarts, want %s with %d", after.UID, got, before.UID, want)
		}
	})

	t.Run("delete", func(t *testing.T) {
		w := w.on(t)
		last := w.awaitPod("default", "pod", 5*time.Second, "running", func(pod *corev1.Pod) bool { return pod.Status.ContainerStatuses[0].State.Running != nil })
		pid := processOf(t, last)
		if err := w.client.AppsV1().Deployments("default").Delete(ctx, "pod", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		took := w.eventually(10*time.Second, "gone", func() error { return gone(w.client.CoreV1().Pods("default").Get(ctx, last.Name, metav1.GetOptions{})) })
		t.Logf("pod is gone after %v", took)
		if err := processGone(pid); err != nil {
			t.Error("the object went before the process")
		}
	})

	t.Run("force delete", func(t *testing.T) {
		w := w.on(t)
		stubborn := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "stubborn", Labels: map[string]string{"app.kubernetes.io/name": "stubborn"}},
			Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "none", Command: []string{"sh", "-c", "trap '' TERM; while :; do sleep 1; done"}}}}}
		if _, err := w.client.CoreV1().Pods("default").Create(ctx, stubborn, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		pid := processOf(t, w.awaitPod("default", "stubborn", 5*time.Second, "running", podReady))
		grace := int64(0)
		if err := w.client.CoreV1().Pods("default").Delete(ctx, "stubborn", metav1.DeleteOptions{GracePeriodSeconds: &grace}); err != nil {
			t.Fatal(err)
		}
		w.eventually(5*time.Second, "killed", func() error { return processGone(pid) })
	})
}

func gone(_ any, err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err == nil {
		err = errors.New("it exists")
	}
	return err
}

// TestOwner checks that nothing of a node outlives the process that it was told to belong to.
func TestOwner(t *testing.T) {
	w := newWorld(t)
	owner := exec.Command("sleep", "600")
	if err := owner.Start(); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(w.mom, "owned")
	w.local("node", "start", "--kubeconfig", w.kubeconfig, "--name", "owned", "--dir", dir, "--owner-pid", strconv.Itoa(owner.Process.Pid), "--ip", node.Address(65535, 1))
	t.Cleanup(func() { w.local("node", "stop", "--dir", dir) })
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "owned", Labels: map[string]string{"app.kubernetes.io/name": "owned"}},
		Spec: corev1.PodSpec{NodeName: "owned", Containers: []corev1.Container{{Name: "c", Image: "none", Command: []string{"sleep", "600"}}}}}
	if _, err := w.client.CoreV1().Pods("default").Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	pid := processOf(t, w.awaitPod("default", "owned", 5*time.Second, "running", podReady))
	id, err := node.Running(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := owner.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := owner.Wait(); err == nil {
		t.Fatal("the owner was not killed")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	if err := id.WaitGone(ctx, 20*time.Millisecond); err != nil {
		t.Fatal(err)
	}
	w.eventually(time.Second, "the pod ends", func() error { return processGone(pid) })
}
