package migration

import (
	"errors"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// controllerWith is a controller with the arguments that Flux's manifests have, and more.
func controllerWith(name string, more ...string) appsv1.Deployment {
	args := []string{"--events-addr=http://notification-controller.$(RUNTIME_NAMESPACE).svc.cluster.local./", "--watch-all-namespaces=true", "--log-level=info", "--log-encoding=json", "--enable-leader-election"}
	if name == "source-controller" {
		args = append(args, "--storage-path=/data", "--storage-adv-addr=source-controller.$(RUNTIME_NAMESPACE).svc.cluster.local.")
	}
	d := appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "flux-system", Name: name}}
	d.Spec.Template.Spec = corev1.PodSpec{ServiceAccountName: name, Containers: []corev1.Container{{Name: "sidecar", Args: []string{"--none"}}, {
		Name: "manager", Args: append(args, more...), Env: []corev1.EnvVar{{Name: "RUNTIME_NAMESPACE"}},
	}}, Volumes: []corev1.Volume{{Name: "temp", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}}
	return d
}

// TestCarry: what Flux's controllers are told the agent is told, or nobody is.
func TestCarry(t *testing.T) {
	const lockdown, account = "--no-cross-namespace-refs=true", "--default-service-account=default"
	type args = []string
	for name, tc := range map[string]struct {
		reason                  string
		source, kustomize, helm args
		change                  func(*Deployed, *Agent)
		want                    args
		warns, refused          []string
	}{
		"Plain":    {"as Flux's manifests have it", nil, nil, nil, nil, nil, nil, nil},
		"Lockdown": {"as Flux's page about tenants has it", nil, args{lockdown, "--no-remote-bases=true", account}, args{lockdown, account}, nil, args{account, lockdown, "--no-remote-bases=true"}, nil, nil},
		"Half": {"tenants of the other controller had more", nil, args{account}, nil, nil, nil, nil,
			args{"one --default-service-account is for all kinds, and kustomize-controller has " + account + ", helm-controller has none", "--arg=--NAME=VALUE"}},
		"Values":  {"two accounts", nil, args{account}, args{"--default-service-account", "tenant"}, nil, nil, nil, args{"helm-controller has --default-service-account=tenant"}},
		"Said":    {"a person decides", nil, args{account}, nil, func(_ *Deployed, a *Agent) { a.Said = args{"default-service-account"} }, nil, args{"kustomize-controller has " + account + ", and the agent what you say"}, nil},
		"Alone":   {"there is no other one", nil, args{account}, nil, func(d *Deployed, _ *Agent) { d.Deployments = d.Deployments[:2] }, args{account}, nil, nil},
		"Off":     {"it says what no flag says", nil, args{"--no-cross-namespace-refs=false"}, nil, nil, nil, nil, nil},
		"Relaxed": {"a patch can only add, and the last one counts", nil, args{lockdown, account, "--no-cross-namespace-refs=false", "--default-service-account="}, args{lockdown, "--no-cross-namespace-refs=false", account, "--default-service-account="}, nil, nil, nil, nil},
		"Locked":  {"the other way round", nil, args{"--no-cross-namespace-refs=false", lockdown}, args{lockdown}, nil, args{lockdown}, nil, nil},
		"Again":   {"one was told twice", nil, args{"--requeue-dependency=5s", "--requeue-dependency=10s"}, args{"--requeue-dependency=10s"}, nil, args{"--requeue-dependency=10s"}, nil, nil},
		"List":    {"each value of it counts", nil, args{"--override-manager=a", "--override-manager=b"}, nil, nil, args{"--override-manager=a", "--override-manager=b"}, nil, nil},
		"Regated": {"the last one counts", nil, args{"--feature-gates=A=true,B=true", "--feature-gates=A=false"}, args{"--feature-gates=A=false"}, nil, args{"--feature-gates=A=false,B=true"}, nil, nil},
		"Back":    {"events go where they go anyway", args{"--events-addr=http://other", "--events-addr=http://notification-controller.$(RUNTIME_NAMESPACE).svc.cluster.local./"}, nil, nil, nil, nil, nil, nil},
		"Work":    {"the agent has a flag for each", args{"--concurrent=5"}, args{"--concurrent=20", "--concurrent-ssa=8"}, args{"--concurrent=10"}, nil, args{"--concurrent=20", "--concurrent-releases=10", "--concurrent-sources=5", "--concurrent-ssa=8"}, nil, nil},
		"Tuned":   {"nobody may more by it", nil, nil, args{"--requeue-dependency=5s"}, nil, args{"--requeue-dependency=5s"}, nil, nil},
		"Apart":   {"one is wrong for the other", nil, args{"--requeue-dependency=9s"}, args{"--requeue-dependency=5s"}, nil, nil, nil, args{"--requeue-dependency=9s", "--requeue-dependency=5s"}},
		"Gates":   {"each controller has its own", nil, args{"--feature-gates=ExternalArtifact=true,B=true"}, args{"--feature-gates=ExternalArtifact=true", "--feature-gates=A=false"}, nil, args{"--feature-gates=A=false,B=true,ExternalArtifact=true"}, nil, nil},
		"Gate":    {"a gate that is on and off", nil, args{"--feature-gates=A=true"}, args{"--feature-gates=A=false"}, nil, nil, nil, args{"kustomize-controller has --feature-gates=A=true, helm-controller has --feature-gates=A=false"}},
		"Refused": {"the agent would not start", nil, nil, args{"--insecure-kubeconfig-exec"}, nil, nil, nil, args{"helm-controller has --insecure-kubeconfig-exec=true, which the agent refuses: it is not safe"}},
		"Either":  {"one of both is refused", nil, args{"--insecure=false"}, args{"--insecure"}, nil, nil, nil, args{"helm-controller has --insecure=true, which the agent refuses"}},
		"Domain": {"the cluster has another domain", args{"--events-addr=http://notification-controller.$(RUNTIME_NAMESPACE).svc.example.org./"}, nil, nil, nil,
			args{"--events-addr=http://notification-controller.flux-system.svc.example.org./"}, nil, nil},
		"Without": {"the agent has no need of it", args{"--kube-api-qps=500"}, args{"--kube-api-qps=900"}, nil, nil, nil, nil, nil},
		"Watcher": {"it works on one kind, and has what the others need not", nil, args{lockdown}, args{lockdown}, func(d *Deployed, _ *Agent) {
			d.Deployments = append(d.Deployments, controllerWith("source-watcher", "--concurrent=5", "--storage-addr=:9090"))
		}, args{lockdown}, nil, nil},
		"Secret": {"a name alone is one beside the controller", nil, args{"--sops-age-secret=keys"}, nil, nil, args{"--sops-age-secret=flux-system/keys"}, nil, nil},
		"Events": {"they go elsewhere", nil, args{"--events-addr=http://other"}, nil, nil, args{"--events-addr=http://other"}, nil, nil},
		"Shards": {"the agent has their part as well", args{"--watch-label-selector=!sharding.fluxcd.io/key"}, args{"--watch-label-selector=!sharding.fluxcd.io/key"}, args{"--watch-label-selector=!sharding.fluxcd.io/key"},
			func(d *Deployed, _ *Agent) {
				d.Deployments = append(d.Deployments, controllerWith("kustomize-controller-shard1", "--watch-label-selector=sharding.fluxcd.io/key=1"))
			}, nil, args{"it does the work of all shards"}, nil},
		"Unsharded": {"the idle Deployments were deleted, and the patch stayed", args{"--watch-label-selector=!sharding.fluxcd.io/key"}, args{"--watch-label-selector=sharding.fluxcd.io/key notin (a,b)"}, nil, nil, nil,
			args{"it does the work of all shards"}, nil},
		"Mixed": {"others are left alone as well", args{"--watch-label-selector=!sharding.fluxcd.io/key,team=a"}, args{"--watch-label-selector=!sharding.fluxcd.io/key,team=a"}, args{"--watch-label-selector=!sharding.fluxcd.io/key,team=a"}, nil, nil, nil,
			args{"an agent does the work of all shards: say the rest of the selector"}},
		"Selector": {"others are left alone", args{"--watch-label-selector=team=a"}, args{"--watch-label-selector=team=a"}, args{"--watch-label-selector=team=a"}, nil, args{"--watch-label-selector=team=a"}, nil, nil},
		"Objects":  {"sources of others were served", nil, args{"--watch-label-selector=team=a"}, args{"--watch-label-selector=team=a"}, nil, nil, nil, args{"source-controller has none"}},
		"Namespace": {"the agent is in another one", args{"--watch-all-namespaces=false"}, args{"--watch-all-namespaces=false"}, args{"--watch-all-namespaces=false"}, nil, nil, nil,
			args{"an agent in namespace cascade-system would reconcile nothing of namespace flux-system"}},
		"Besides": {"no flag says it", nil, nil, nil, func(d *Deployed, a *Agent) {
			pod := &d.Deployments[0].Spec.Template.Spec
			pod.Containers[1].Env = append(pod.Containers[1].Env, corev1.EnvVar{Name: "HTTPS_PROXY"}, corev1.EnvVar{Name: "NO_PROXY"})
			pod.Volumes = append(pod.Volumes, corev1.Volume{Name: "ca", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{}}})
			a.Env, a.Annotations = args{"NO_PROXY"}, map[string]string{"eks.amazonaws.com/role-arn": "arn:agent"}
			d.Accounts = []corev1.ServiceAccount{
				{ObjectMeta: metav1.ObjectMeta{Name: "source-controller", Annotations: map[string]string{"eks.amazonaws.com/role-arn": "arn", "iam.gke.io/gcp-service-account": "a@b"}}},
				{ObjectMeta: metav1.ObjectMeta{Name: "other", Annotations: map[string]string{"a": "b"}}},
			}
		}, nil, args{"source-controller has the variable HTTPS_PROXY", "source-controller has the volume ca", "ServiceAccount source-controller has the annotation iam.gke.io/gcp-service-account"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			d := Deployed{Deployments: []appsv1.Deployment{controllerWith("source-controller", tc.source...), controllerWith("kustomize-controller", tc.kustomize...), controllerWith("helm-controller", tc.helm...)}}
			agent := Agent{Namespace: "cascade-system", Follows: func(arg string) (bool, error) {
				if arg == "--insecure=false" {
					return false, nil
				}
				if strings.HasPrefix(arg, "--insecure") {
					return false, errors.New("it is not safe")
				}
				return !strings.HasPrefix(arg, "--kube-api"), nil
			}}
			if tc.change != nil {
				tc.change(&d, &agent)
			}
			got := Carry(d, agent)
			if !slices.Equal(got.Args, tc.want) && got.Refused == "" {
				t.Errorf("%s: the agent gets %q, want %q", tc.reason, got.Args, tc.want)
			}
			if len(got.Warns) != len(tc.warns) || (got.Refused == "") != (tc.refused == nil) {
				t.Errorf("%s: it warns of %q, and refuses %q", tc.reason, got.Warns, got.Refused)
			}
			for i, want := range tc.warns {
				if i < len(got.Warns) && !strings.Contains(got.Warns[i], want) {
					t.Errorf("%s: it warns of %q, want %q", tc.reason, got.Warns[i], want)
				}
			}
			for _, want := range tc.refused {
				if !strings.Contains(got.Refused, want) {
					t.Errorf("%s: it refuses %q, want %q", tc.reason, got.Refused, want)
				}
			}
		})
	}
}
