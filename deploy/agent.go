package deploy

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
)

// Options of an agent's objects.
type Options struct {
	v1alpha1.AgentValues `json:",inline"`
	// Namespace of the agent; empty is v1alpha1.AgentNamespace, the only one that the agent
	// of a child can have.
	Namespace string `json:"namespace,omitempty"`
}

// editRole is what Kubernetes' roles edit and admin get.
const editRole = "cascade-edit"

// MostReplicas bounds Options.Replicas: an agent takes no more than twice as many shards.
const MostReplicas = 32

// onHost reports whether the agent runs in the network of its node.
func (o Options) onHost() bool { return o.HostNetwork == nil || *o.HostNetwork }

func (o Options) namespace() string { return cmp.Or(o.Namespace, v1alpha1.AgentNamespace) }

// Agent returns the objects of an agent, split where the first must exist
// before the second makes sense: namespace and rights, and the Deployment.
func Agent(o Options) (rights, workload []*unstructured.Unstructured, err error) {
	if err := o.check(); err != nil {
		return nil, nil, err
	}
	objects, err := o.read("agent/agent.yaml")
	if err != nil {
		return nil, nil, err
	}
	for _, u := range objects {
		switch u.GetKind() {
		case "ClusterRoleBinding":
			if o.Lockdown != nil {
				// Bound to nobody rather than gone: nobody deletes what belongs to an agent, and
				// so its rights can be taken away, and given back, by the values alone.
				u.Object["subjects"] = []any{}
			}
		case "ServiceAccount":
			if len(o.ServiceAccountAnnotations) > 0 {
				u.SetAnnotations(o.ServiceAccountAnnotations)
			}
		case "ClusterRole":
			if u.GetName() == editRole && o.Lockdown == nil {
				u.Object["rules"] = []any{}
			}
		case "Deployment":
			if err := configure(u, o); err != nil {
				return nil, nil, err
			}
			if c := o.claim(); c != nil && c.Size != nil {
				// Some volumes are not there before the first pod is.
				workload = append(workload, claimObject(o.namespace(), c))
			}
			workload = append(workload, u)
			continue
		case "Namespace":
			secure(u, o)
		}
		rights = append(rights, u)
	}
	more, err := o.optional()
	if err != nil {
		return nil, nil, err
	}
	rights = append(rights, more...)
	policies, err := o.read("agent/durations.yaml", "agent/wall.yaml")
	if err != nil {
		return nil, nil, err
	}
	rights = append(rights, policies...)
	for _, u := range slices.Concat(rights, workload) {
		o.label(u)
	}
	return rights, workload, nil
}

func (o Options) read(files ...string) ([]*unstructured.Unstructured, error) {
	var objects []*unstructured.Unstructured
	for _, file := range files {
		found, err := readIn(o.namespace(), file)
		if err != nil {
			return nil, err
		}
		objects = append(objects, found...)
	}
	return objects, nil
}

// optional are the objects that are there because the values say so.
func (o Options) optional() ([]*unstructured.Unstructured, error) {
	objects, err := o.rights()
	if err != nil {
		return nil, err
	}
	if !o.onHost() && (o.NetworkPolicy == nil || *o.NetworkPolicy) {
		policies, err := o.read("options/networkpolicy.yaml")
		if err != nil {
			return nil, err
		}
		for _, u := range policies {
			if err := errors.Join(o.openArtifacts(u), o.openServed(u)); err != nil {
				return nil, err
			}
		}
		objects = append(objects, policies...)
	}
	for _, s := range o.served() {
		services, err := o.read(s.file)
		if err != nil {
			return nil, err
		}
		objects = append(objects, services...)
	}
	return objects, nil
}

// artifactsFlags are the names of the flag with the address that serves artifacts.
func artifactsFlags() []string { return []string{"--artifact-addr", "--storage-addr"} }

// openArtifacts lets consumers of artifacts in, if the agent serves any.
func (o Options) openArtifacts(policy *unstructured.Unstructured) error {
	var ports []int64
	for i, arg := range o.Args {
		name, address, joined := strings.Cut(arg, "=")
		if !slices.Contains(artifactsFlags(), name) {
			continue
		}
		if !joined && i+1 < len(o.Args) {
			address = o.Args[i+1]
		}
		_, port, found := cutLast(address, ":")
		n, err := strconv.ParseUint(port, 10, 16)
		if !found || err != nil {
			return fmt.Errorf("cannot make a NetworkPolicy: args has %s %q, which ends in no port", name, address)
		}
		ports = append(ports, int64(n))
	}
	if len(ports) == 0 {
		return nil
	}
	for _, port := range ports {
		if err := open(policy, port); err != nil {
			return err
		}
	}
	return nil
}

// served is what an agent serves to others because the values say so.
type served struct {
	// port is the name of the container's port, file has the Service that leads to it.
	port, file string
}

func (o Options) served() []served {
	var all []served
	if o.Receiver {
		all = append(all, served{receiverPort, "options/receiver.yaml"})
	}
	if o.Pages != nil {
		all = append(all, served{pagesPort, "options/pages.yaml"})
	}
	return all
}

// openServed lets the senders of webhooks and the readers of pages in.
func (o Options) openServed(policy *unstructured.Unstructured) error {
	for _, s := range o.served() {
		if err := open(policy, s.port); err != nil {
			return err
		}
	}
	return nil
}

// open lets everybody in to a port, a number or the name of one.
func open(policy *unstructured.Unstructured, port any) error {
	rules, _, err := unstructured.NestedSlice(policy.Object, "spec", "ingress")
	if err != nil || len(rules) != 1 {
		return fmt.Errorf("cannot make a NetworkPolicy: its manifest must have one rule")
	}
	rule := rules[0].(map[string]any)
	rule["ports"] = append(rule["ports"].([]any), map[string]any{"port": port, "protocol": "TCP"})
	return unstructured.SetNestedSlice(policy.Object, rules, "spec", "ingress")
}

func cutLast(s, sep string) (before, after string, found bool) {
	if i := strings.LastIndex(s, sep); i >= 0 {
		return s[:i], s[i+len(sep):], true
	}
	return s, "", false
}

// secure sets what the Namespace admits.
func secure(namespace *unstructured.Unstructured, o Options) {
	if o.onHost() {
		return
	}
	labels := namespace.GetLabels()
	labels["pod-security.kubernetes.io/enforce"] = "restricted"
	namespace.SetLabels(labels)
}

// label adds the labels of the values.
func (o Options) label(u *unstructured.Unstructured) {
	if len(o.Labels) == 0 {
		return
	}
	labels := u.GetLabels()
	for key, value := range o.Labels {
		labels[key] = value
	}
	u.SetLabels(labels)
}

// claimObject is the PersistentVolumeClaim that is to be made.
func claimObject(namespace string, c *v1alpha1.AgentClaim) *unstructured.Unstructured {
	spec := map[string]any{
		"accessModes": []any{"ReadWriteOnce"},
		"resources":   map[string]any{"requests": map[string]any{"storage": c.Size.String()}},
	}
	if c.StorageClassName != nil {
		spec["storageClassName"] = *c.StorageClassName
	}
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "PersistentVolumeClaim",
		"metadata": map[string]any{
			"name": claimName(c), "namespace": namespace,
			"labels": map[string]any{"app.kubernetes.io/name": v1alpha1.AgentName, partOf: "flux"},
		},
		"spec": spec,
	}}
}
