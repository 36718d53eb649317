package deploy

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
)

// Names in the Deployment.
const (
	shardsFlag    = "--shards"
	tmpVolume     = "tmp"
	storageVolume = "storage"
	storagePath   = "/var/lib/cascade"
	clusterDNS    = "CASCADE_CLUSTER_DNS"
	imageVariable = "CASCADE_IMAGE"
	receiverPort  = "http-webhook"
	// receiverNumber is that of Flux's notification-controller.
	receiverNumber = 9292
	pagesPort      = "https-pages"
	pagesNumber    = 8443
	pagesVolume    = "pages-certificate"
	pagesPath      = "/etc/cascade/pages"
	filesPath      = "/etc/cascade/files/"
	// filesVolume is before the names of volumes that are of the values.
	filesVolume = "files-"
)

// arguments are those of the values. What a person wrote comes last, and counts.
func (o Options) arguments() []string {
	var args []string
	if o.FirstSync == v1alpha1.FirstSyncPolicyCreate {
		args = append(args, "--first-sync=create")
	}
	if l := o.Lockdown; l != nil {
		args = append(args, "--no-cross-namespace-refs=true", "--default-service-account="+cmp.Or(l.ServiceAccount, defaultAccount))
	}
	if len(o.Controllers) > 0 {
		args = append(args, "--controllers="+strings.Join(o.Controllers, ","))
	}
	if o.EventsAddress != "" {
		args = append(args, "--events-addr="+o.EventsAddress)
	}
	if o.MetricsAuth == v1alpha1.MetricsAuthKubernetes {
		args = append(args, "--metrics-auth=kubernetes")
	}
	if o.Receiver {
		args = append(args, "--receiver-addr=$(POD_IP):"+strconv.Itoa(receiverNumber))
	}
	if o.Pages != nil {
		args = append(args, "--web-addr=$(POD_IP):"+strconv.Itoa(pagesNumber))
		if o.Pages.CertificateSecretRef != nil {
			args = append(args, "--web-cert-dir="+pagesPath)
		}
	}
	if o.claim() != nil {
		args = append(args, "--storage-path="+storagePath+"/sources", "--snapshot-path="+storagePath+"/snapshots")
	}
	args = append(args, o.Args...)
	// Twice as many shards as replicas spread those of one that dies over all others.
	if o.Replicas > 1 && !slices.ContainsFunc(o.Args, func(arg string) bool { return flagOf(arg) == shardsFlag }) {
		args = append(args, shardsFlag+"="+strconv.Itoa(2*int(o.Replicas)))
	}
	return args
}

func flagOf(arg string) string {
	name, _, _ := strings.Cut(arg, "=")
	return name
}

// configure makes the Deployment of the manifest what the values say.
func configure(deployment *unstructured.Unstructured, o Options) error {
	pod, found, err := unstructured.NestedMap(deployment.Object, "spec", "template", "spec")
	if err != nil || !found {
		return fmt.Errorf("cannot configure agent: its Deployment has no pod template")
	}
	containers, ok := pod["containers"].([]any)
	if !ok || len(containers) != 1 {
		return fmt.Errorf("cannot configure agent: its Deployment must have one container")
	}
	container := containers[0].(map[string]any)
	for _, step := range []func(pod, container map[string]any) error{o.ofContainer, o.ofScheduling, o.ofNetwork, o.ofStorage, o.ofPages, o.ofFiles} {
		if err := step(pod, container); err != nil {
			return fmt.Errorf("cannot configure agent: %w", err)
		}
	}
	if err := unstructured.SetNestedMap(deployment.Object, pod, "spec", "template", "spec"); err != nil {
		return fmt.Errorf("cannot configure agent: %w", err)
	}
	return o.ofTemplate(deployment)
}

// ofTemplate sets what is around the pod.
func (o Options) ofTemplate(deployment *unstructured.Unstructured) error {
	set := func(value string, path ...string) error {
		return unstructured.SetNestedField(deployment.Object, value, append([]string{"spec", "template", "metadata"}, path...)...)
	}
	if o.Replicas > 1 {
		if err := unstructured.SetNestedField(deployment.Object, int64(o.Replicas), "spec", "replicas"); err != nil {
			return fmt.Errorf("cannot configure agent: %w", err)
		}
	}
	if !o.onHost() && o.claim() == nil {
		// Nothing keeps two pods from running side by side. With the new one first, a commit that
		// breaks the agent leaves the one that fetches its revert.
		rolling := map[string]any{"maxSurge": int64(1), "maxUnavailable": int64(0)}
		if err := unstructured.SetNestedMap(deployment.Object, rolling, "spec", "strategy", "rollingUpdate"); err != nil {
			return fmt.Errorf("cannot configure agent: %w", err)
		}
	}
	for key, value := range o.Labels {
		if err := set(value, "labels", key); err != nil {
			return fmt.Errorf("cannot configure agent: %w", err)
		}
	}
	if o.MetricsAuth == v1alpha1.MetricsAuthKubernetes {
		return set("https", "annotations", "prometheus.io/scheme")
	}
	return nil
}

// ImageOf is the image that the Deployment of an agent was made with, empty without a container. What admission in
// its cluster made of that, such as the address of a mirror, does not count where the agent is told.
func ImageOf(agent *appsv1.Deployment) string {
	image := ""
	for _, c := range agent.Spec.Template.Spec.Containers {
		for _, e := range c.Env {
			if e.Name == imageVariable && e.Value != "" {
				return e.Value
			}
		}
		image = cmp.Or(image, c.Image)
	}
	return image
}

func (o Options) ofContainer(_, container map[string]any) error {
	container["image"] = o.Image
	if o.ImagePullPolicy != "" {
		container["imagePullPolicy"] = string(o.ImagePullPolicy)
	}
	for _, arg := range o.arguments() {
		container["args"] = append(container["args"].([]any), arg)
	}
	if o.Receiver {
		container["ports"] = append(container["ports"].([]any), map[string]any{"name": receiverPort, "containerPort": int64(receiverNumber), "protocol": "TCP"})
	}
	if o.Pages != nil {
		container["ports"] = append(container["ports"].([]any), map[string]any{"name": pagesPort, "containerPort": int64(pagesNumber), "protocol": "TCP"})
	}
	env := container["env"].([]any)
	for _, item := range env {
		if item := item.(map[string]any); item["name"] == imageVariable {
			item["value"] = o.Image
		}
	}
	if !o.onHost() {
		env = slices.DeleteFunc(env, func(item any) bool { return item.(map[string]any)["name"] == clusterDNS })
	}
	for i := range o.Env {
		item, err := plain(&o.Env[i])
		if err != nil {
			return fmt.Errorf("env: %w", err)
		}
		env = append(env, item)
	}
	container["env"] = env
	if o.Resources == nil {
		return nil
	}
	given, err := plain(o.Resources)
	if err != nil {
		return fmt.Errorf("resources: %w", err)
	}
	resources := container["resources"].(map[string]any)
	for key, value := range given {
		into, _ := resources[key].(map[string]any)
		if into == nil {
			into = map[string]any{}
		}
		maps.Copy(into, value.(map[string]any))
		resources[key] = into
	}
	return nil
}

// ofScheduling sets where the pods run.
func (o Options) ofScheduling(pod, _ map[string]any) error {
	var secrets []any
	for _, s := range o.ImagePullSecrets {
		secrets = append(secrets, map[string]any{"name": s.Name})
	}
	if len(secrets) > 0 {
		pod["imagePullSecrets"] = secrets
	}
	if len(o.NodeSelector) > 0 {
		selector := map[string]any{}
		for key, value := range o.NodeSelector {
			selector[key] = value
		}
		pod["nodeSelector"] = selector
	}
	if o.PriorityClassName != "" {
		pod["priorityClassName"] = o.PriorityClassName
	}
	tolerations := pod["tolerations"].([]any)
	if !o.onHost() {
		// A node without a network for pods is as dead to this agent as one that says nothing.
		tolerations[0] = map[string]any{"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": int64(15)}
	}
	for i := range o.Tolerations {
		item, err := plain(&o.Tolerations[i])
		if err != nil {
			return fmt.Errorf("tolerations: %w", err)
		}
		tolerations = append(tolerations, item)
	}
	pod["tolerations"] = tolerations
	if o.Replicas > 1 {
		pod["topologySpreadConstraints"] = []any{map[string]any{
			"maxSkew": int64(1), "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway",
			"labelSelector": map[string]any{"matchLabels": map[string]any{"app.kubernetes.io/name": v1alpha1.AgentName}},
		}}
	}
	return nil
}

// ofNetwork takes the pod off the host's network. The API server gives a container on the
// host's network ports of the host, which nobody applied and which would stay: zero takes them off.
func (o Options) ofNetwork(pod, container map[string]any) error {
	if o.onHost() {
		return nil
	}
	for _, port := range container["ports"].([]any) {
		port.(map[string]any)["hostPort"] = int64(0)
	}
	for _, key := range []string{"hostNetwork", "dnsPolicy", "dnsConfig"} {
		delete(pod, key)
	}
	return nil
}

func (o Options) claim() *v1alpha1.AgentClaim {
	if o.Storage == nil {
		return nil
	}
	return o.Storage.Claim
}

func claimName(c *v1alpha1.AgentClaim) string { return cmp.Or(c.Name, v1alpha1.AgentName) }

func (o Options) ofStorage(pod, container map[string]any) error {
	if o.Storage == nil {
		return nil
	}
	volumes, mounts := pod["volumes"].([]any), container["volumeMounts"].([]any)
	if limit := o.Storage.SizeLimit; limit != nil {
		for _, item := range volumes {
			if volume := item.(map[string]any); volume["name"] == tmpVolume {
				volume["emptyDir"] = map[string]any{"sizeLimit": limit.String()}
			}
		}
	}
	if c := o.Storage.Claim; c != nil {
		pod["volumes"] = append(volumes, map[string]any{
			"name": storageVolume, "persistentVolumeClaim": map[string]any{"claimName": claimName(c)},
		})
		container["volumeMounts"] = append(mounts, map[string]any{"name": storageVolume, "mountPath": storagePath})
	}
	return nil
}

// ofPages mounts the certificate of the pages. One that is not there keeps no pod from starting:
// what makes it may be what this very agent applies.
func (o Options) ofPages(pod, container map[string]any) error {
	if o.Pages == nil || o.Pages.CertificateSecretRef == nil {
		return nil
	}
	pod["volumes"] = append(pod["volumes"].([]any), map[string]any{
		"name": pagesVolume, "secret": map[string]any{"secretName": o.Pages.CertificateSecretRef.Name, "optional": true},
	})
	container["volumeMounts"] = append(container["volumeMounts"].([]any), map[string]any{"name": pagesVolume, "mountPath": pagesPath, "readOnly": true})
	return nil
}

// ofFiles mounts the Secrets that flags read. One that is not there keeps no pod from starting:
// a Credential of this very agent may be what makes it.
func (o Options) ofFiles(pod, container map[string]any) error {
	for _, f := range o.Files {
		pod["volumes"] = append(pod["volumes"].([]any), map[string]any{
			"name": filesVolume + f.Name, "secret": map[string]any{"secretName": f.SecretRef.Name, "optional": true},
		})
		container["volumeMounts"] = append(container["volumeMounts"].([]any), map[string]any{"name": filesVolume + f.Name, "mountPath": filesPath + f.Name, "readOnly": true})
	}
	return nil
}

// plain is a value as JSON has it.
func plain(value any) (map[string]any, error) {
	text, err := json.Marshal(value)
	if err != nil {
		return nil, err
	}
	u := map[string]any{}
	if err := json.Unmarshal(text, &u); err != nil {
		return nil, err
	}
	return runtime.DeepCopyJSON(whole(u).(map[string]any)), nil
}

// whole makes the numbers of JSON what objects have, which are integers here.
func whole(value any) any {
	switch v := value.(type) {
	case map[string]any:
		for key := range v {
			v[key] = whole(v[key])
		}
	case []any:
		for i := range v {
			v[i] = whole(v[i])
		}
	case float64:
		return int64(v)
	}
	return value
}
