package node

import (
	"io"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestAddress(t *testing.T) {
	for port, want := range map[int]string{6443: "127.25.43.1", 443: "127.1.187.1", 65535: "127.255.255.1"} {
		if got := Address(port, 1); got != want {
			t.Errorf("port %d has %s, want %s", port, got, want)
		}
	}
}

func TestAddresses(t *testing.T) {
	a := newAddresses(netip.MustParseAddr("127.1.2.1"))
	first, _ := a.take()
	second, _ := a.take()
	a.give(first)
	again, _ := a.take()
	if got, want := []string{first, second, again}, []string{"127.1.2.2", "127.1.2.3", "127.1.2.2"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	for range 251 {
		if ip, ok := a.take(); !ok {
			t.Fatalf("no address left after %s", ip)
		}
	}
	if ip, ok := a.take(); ok {
		t.Errorf("got %s beyond the last address", ip)
	}
}

func TestExpand(t *testing.T) {
	variables := map[string]string{"A": "1", "B": "$(A)"}
	for text, want := range map[string]string{
		"": "", "plain": "plain", "$(A)": "1", "x$(A)y$(A)": "x1y1", "$(B)": "$(A)", "$(C)": "$(C)",
		"$$(A)": "$(A)", "$$$(A)": "$1", "$": "$", "$A": "$A", "$(A": "$(A", "a)$(A)": "a)1", "$()": "$()",
	} {
		if got := expand(text, variables); got != want {
			t.Errorf("%q is %q, want %q", text, got, want)
		}
	}
}

func TestBackoff(t *testing.T) {
	var b backoff
	var got []time.Duration
	for _, ran := range []time.Duration{0, 0, 0, 0, 0, 0, 0, 0, calmRun, 0} {
		got = append(got, b.after(ran))
	}
	ms := time.Millisecond
	want := []time.Duration{500 * ms, 1000 * ms, 2000 * ms, 4000 * ms, 8000 * ms, 16000 * ms, 30000 * ms, 30000 * ms, 500 * ms, 1000 * ms}
	if !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestRestarts(t *testing.T) {
	for _, c := range []struct {
		policy  corev1.RestartPolicy
		initial bool
		code    int32
		want    bool
		reason  string
	}{
		{corev1.RestartPolicyAlways, false, 0, true, "a server that ends is restarted"},
		{corev1.RestartPolicyAlways, true, 0, false, "an init container that succeeded is done"},
		{corev1.RestartPolicyAlways, true, 1, true, "an init container that failed is tried again"},
		{corev1.RestartPolicyOnFailure, false, 0, false, "a job that succeeded is done"},
		{corev1.RestartPolicyOnFailure, false, 137, true, "a job that was killed is tried again"},
		{corev1.RestartPolicyNever, true, 1, false, "never is never"},
		{corev1.RestartPolicyNever, false, 1, false, "never is never"},
	} {
		if got := restarts(c.policy, c.initial, c.code); got != c.want {
			t.Errorf("%s: got %v", c.reason, got)
		}
	}
}

func TestUnsupported(t *testing.T) {
	emptyDir := corev1.Volume{Name: "v", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}
	secret := corev1.Volume{Name: "v", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{}}}
	always := corev1.ContainerRestartPolicyAlways
	with := func(change func(*corev1.PodSpec, *corev1.Container)) corev1.PodSpec {
		spec := corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Command: []string{"x"}}}}
		change(&spec, &spec.Containers[0])
		return spec
	}
	mount := func(volume corev1.Volume, path string) corev1.PodSpec {
		return with(func(s *corev1.PodSpec, c *corev1.Container) {
			s.Volumes = []corev1.Volume{volume}
			c.VolumeMounts = []corev1.VolumeMount{{Name: "v", MountPath: path}}
		})
	}
	for _, c := range []struct {
		reason string
		spec   corev1.PodSpec
		want   string // part of the answer; empty: supported
	}{
		{"a command alone", with(func(*corev1.PodSpec, *corev1.Container) {}), ""},
		{"no command", with(func(_ *corev1.PodSpec, c *corev1.Container) { c.Command = nil }), "no command"},
		{"service account", mount(secret, accountMount), ""},
		{"temporary directory", mount(emptyDir, "/tmp"), ""},
		{"a secret at /tmp", mount(secret, "/tmp"), "mounts volume v at /tmp"},
		{"other mounts", mount(emptyDir, "/data"), "mounts volume v at /data"},
		{"volume that nobody mounts", with(func(s *corev1.PodSpec, _ *corev1.Container) { s.Volumes = []corev1.Volume{secret} }), ""},
		{"hooks", with(func(_ *corev1.PodSpec, c *corev1.Container) { c.Lifecycle = &corev1.Lifecycle{} }), "lifecycle"},
		{"sidecar", with(func(s *corev1.PodSpec, _ *corev1.Container) {
			s.InitContainers = []corev1.Container{{Name: "i", Command: []string{"x"}, RestartPolicy: &always}}
		}), "sidecars"},
		{"gRPC", with(func(_ *corev1.PodSpec, c *corev1.Container) {
			c.ReadinessProbe = &corev1.Probe{ProbeHandler: corev1.ProbeHandler{GRPC: &corev1.GRPCAction{}}}
		}), "gRPC"},
	} {
		if got := unsupported(&c.spec); (got == "") != (c.want == "") || !strings.Contains(got, c.want) {
			t.Errorf("%s: %q, want %q", c.reason, got, c.want)
		}
	}
}

func TestResourceField(t *testing.T) {
	container := &corev1.Container{Resources: corev1.ResourceRequirements{
		Limits:   corev1.ResourceList{"cpu": resource.MustParse("1500m"), "memory": resource.MustParse("64Mi")},
		Requests: corev1.ResourceList{"cpu": resource.MustParse("100m")}}}
	for _, c := range []struct{ resource, divisor, want string }{
		{"limits.cpu", "", "2"}, {"limits.cpu", "1m", "1500"}, {"limits.memory", "", "67108864"}, {"limits.memory", "1Mi", "64"},
		{"requests.cpu", "1m", "100"}, {"requests.memory", "", "0"}, {"limits.pods", "", "200"},
	} {
		selector := &corev1.ResourceFieldSelector{Resource: c.resource}
		if c.divisor != "" {
			selector.Divisor = resource.MustParse(c.divisor)
		}
		if got, err := resourceField(container, selector); err != nil || got != c.want {
			t.Errorf("%s by %s is %s (%v), want %s", c.resource, c.divisor, got, err, c.want)
		}
	}
	if _, err := resourceField(container, &corev1.ResourceFieldSelector{Resource: "limits.gpus"}); err == nil {
		t.Error("an unknown resource has a value")
	}
}

func TestSeekTail(t *testing.T) {
	long := strings.Repeat("line\n", 5000)
	for _, c := range []struct {
		text  string
		lines int
		want  string
	}{
		{"", 3, ""}, {"a\nb\nc\n", 2, "b\nc\n"}, {"a\nb\nc", 2, "b\nc"}, {"a\n", 5, "a\n"}, {"a\nb\n", 0, ""}, {long, 4000, long[:4000*5]},
	} {
		reader := strings.NewReader(c.text)
		err := seekTail(reader, c.lines)
		rest, readErr := io.ReadAll(reader)
		if err != nil || readErr != nil || string(rest) != c.want {
			t.Errorf("last %d lines of %.20q are %.20q (%v)", c.lines, c.text, rest, err)
		}
	}
}

func TestStatus(t *testing.T) {
	now := time.Date(2030, 1, 2, 3, 4, 5, 6, time.UTC)
	before := metav1.NewTime(now.Add(-time.Hour))
	object := &corev1.Pod{
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "a"}, {Name: "b"}}},
		Status: corev1.PodStatus{QOSClass: corev1.PodQOSBurstable, Conditions: []corev1.PodCondition{
			{Type: corev1.PodScheduled, Status: corev1.ConditionTrue, LastTransitionTime: before},
			{Type: corev1.PodReady, Status: corev1.ConditionFalse, LastTransitionTime: before},
		}},
	}
	running := func(ready bool) *containerFacts {
		return &containerFacts{running: &runningFacts{id: "x", since: now}, started: true, ready: ready}
	}
	ended := func(code int) *containerFacts { return &containerFacts{exit: exitOf("x", now, now, code, 0, "")} }
	crashed := &containerFacts{last: exitOf("x", now, now, 0, 9, ""), waiting: waitingFor("CrashLoopBackOff", "")}
	for _, c := range []struct {
		reason string
		facts  podFacts
		phase  corev1.PodPhase
		ready  bool
	}{
		{"not started", podFacts{containers: map[string]*containerFacts{"a": {}, "b": {}}}, corev1.PodPending, false},
		{"refused", podFacts{refusal: "no", containers: map[string]*containerFacts{"a": {}, "b": {}}}, corev1.PodPending, false},
		{"one starting", podFacts{initialized: true, containers: map[string]*containerFacts{"a": running(true), "b": {}}}, corev1.PodPending, false},
		{"one not ready", podFacts{initialized: true, containers: map[string]*containerFacts{"a": running(true), "b": running(false)}}, corev1.PodRunning, false},
		{"all ready", podFacts{initialized: true, containers: map[string]*containerFacts{"a": running(true), "b": running(true)}}, corev1.PodRunning, true},
		{"one crash-looping", podFacts{initialized: true, containers: map[string]*containerFacts{"a": running(true), "b": crashed}}, corev1.PodRunning, false},
		{"all succeeded", podFacts{initialized: true, ended: true, containers: map[string]*containerFacts{"a": ended(0), "b": ended(0)}}, corev1.PodSucceeded, false},
		{"one failed", podFacts{initialized: true, ended: true, containers: map[string]*containerFacts{"a": ended(0), "b": ended(2)}}, corev1.PodFailed, false},
		{"deleted before it started", podFacts{ended: true, containers: map[string]*containerFacts{"a": {}, "b": {}}}, corev1.PodFailed, false},
		{"init failed", podFacts{initFailed: true, containers: map[string]*containerFacts{"a": {}, "b": {}}}, corev1.PodFailed, false},
	} {
		status := statusOf(object, c.facts, now)
		if status.Phase != c.phase || conditionTrue(status.Conditions, corev1.PodReady) != c.ready {
			t.Errorf("%s: phase %s, conditions %v", c.reason, status.Phase, status.Conditions)
		}
		if status.QOSClass != corev1.PodQOSBurstable || !conditionTrue(status.Conditions, corev1.PodScheduled) {
			t.Errorf("%s: what others own was lost", c.reason)
		}
		for _, condition := range status.Conditions {
			if condition.Type == corev1.PodReady && condition.LastTransitionTime.Equal(&before) == c.ready {
				t.Errorf("%s: transition time %v", c.reason, condition.LastTransitionTime)
			}
		}
		for _, ip := range status.PodIPs {
			t.Errorf("%s: address %s without one", c.reason, ip.IP)
		}
		// Writing what was written is no write, though the API server cut the times to seconds.
		written := object.DeepCopy()
		written.Status = *status.DeepCopy()
		if patch, err := statusPatch(written, statusOf(written, c.facts, now.Add(time.Minute))); err != nil || patch != nil {
			t.Errorf("%s: a second write of %s (%v)", c.reason, patch, err)
		}
	}
}

func TestStatusAddress(t *testing.T) {
	for _, c := range []struct {
		reason string
		facts  podFacts
		want   string
	}{
		{"the address at which it listens", podFacts{podIP: "127.9.8.7"}, "127.9.8.7"},
		{"that of a pod network, to which API servers proxy", podFacts{podIP: "127.9.8.7", podNetwork: true}, "240.9.8.7"},
		{"none yet", podFacts{podNetwork: true}, ""},
	} {
		status := statusOf(&corev1.Pod{}, c.facts, time.Now())
		if status.PodIP != c.want || c.want != "" && (len(status.PodIPs) != 1 || status.PodIPs[0].IP != c.want) || c.want == "" && len(status.PodIPs) != 0 {
			t.Errorf("%s: %s, %v", c.reason, status.PodIP, status.PodIPs)
		}
	}
}
