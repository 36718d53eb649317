package deploy

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
)

// check refuses values that cannot be. What the API server checks of a Layer holds for a
// file and for flags as well.
func (o Options) check() error {
	for _, check := range []func() error{o.checkPlace, o.checkRuntime, o.checkFlags} {
		if err := check(); err != nil {
			return err
		}
	}
	return nil
}

func (o Options) checkPlace() error {
	if problems := validation.IsDNS1123Label(o.namespace()); len(problems) > 0 {
		return fmt.Errorf("cannot use namespace %q: %s", o.Namespace, strings.Join(problems, ", "))
	}
	for key, value := range o.Labels {
		if owned(key) {
			return fmt.Errorf("cannot use labels: %s is the agent's own", key)
		}
		if problems := slices.Concat(validation.IsQualifiedName(key), validation.IsValidLabelValue(value)); len(problems) > 0 {
			return fmt.Errorf("cannot use label %q: %s", key+": "+value, strings.Join(problems, ", "))
		}
	}
	return nil
}

// owned reports whether a label belongs to the manifests, to who applies them, or to the
// API server.
func owned(key string) bool {
	prefix, _, _ := strings.Cut(key, "/")
	return strings.HasPrefix(key, "app.kubernetes.io/") || strings.HasPrefix(key, "pod-security.kubernetes.io/") ||
		prefix == v1alpha1.InstallLabelGroup || prefix == v1alpha1.LayerLabelGroup || prefix == v1alpha1.Group
}

func (o Options) checkRuntime() error {
	if o.Replicas < 0 || o.Replicas > MostReplicas {
		return fmt.Errorf("cannot run %d replicas of an agent: it must be from 1 to %d", o.Replicas, MostReplicas)
	}
	if o.claim() != nil && o.Replicas > 1 {
		return fmt.Errorf("cannot run %d replicas with storage.claim: a volume is for one; leave the claim or the replicas out", o.Replicas)
	}
	if c := o.claim(); c != nil && c.Size == nil && c.StorageClassName != nil {
		return fmt.Errorf("cannot use storage.claim.storageClassName without size: a claim that is there has a class")
	}
	seen := map[string]bool{}
	for _, f := range o.Files {
		if problems := validation.IsDNS1123Label(filesVolume + f.Name); len(problems) > 0 || seen[f.Name] || f.SecretRef.Name == "" {
			return fmt.Errorf("cannot use files %q: the name is that of a directory, once, and the Secret has a name", f.Name)
		}
		seen[f.Name] = true
	}
	for key := range o.ServiceAccountAnnotations {
		if problems := validation.IsQualifiedName(strings.ToLower(key)); len(problems) > 0 {
			return fmt.Errorf("cannot use serviceAccountAnnotations %q: %s", key, strings.Join(problems, ", "))
		}
	}
	objects, err := o.read("agent/agent.yaml")
	if err != nil {
		return err
	}
	for _, e := range o.Env {
		if e.Name == "" || setBy(objects, e.Name) {
			return fmt.Errorf("cannot use env %q: the manifest sets it, or it has no name", e.Name)
		}
	}
	return nil
}

// setBy reports whether the manifest of the agent sets a variable.
func setBy(objects []*unstructured.Unstructured, variable string) bool {
	for _, u := range objects {
		containers, _, _ := unstructured.NestedSlice(u.Object, "spec", "template", "spec", "containers")
		for _, c := range containers {
			env, _ := c.(map[string]any)["env"].([]any)
			if slices.ContainsFunc(env, func(item any) bool { return item.(map[string]any)["name"] == variable }) {
				return true
			}
		}
	}
	return false
}

func (o Options) checkFlags() error {
	for _, kind := range o.Controllers {
		if !slices.Contains(kinds(), kind) {
			return fmt.Errorf("cannot use controllers: there is no %q, the kinds are %s", kind, strings.Join(kinds(), ", "))
		}
	}
	if len(o.Controllers) > 0 {
		if err := CheckControllers(o.Controllers); err != nil {
			return err
		}
	}
	if a := o.EventsAddress; a != "" && !strings.HasPrefix(a, "http://") && !strings.HasPrefix(a, "https://") {
		return fmt.Errorf("cannot use eventsAddress %q: it must begin with http:// or https://", a)
	}
	if !slices.Contains([]v1alpha1.MetricsAuth{"", v1alpha1.MetricsAuthNone, v1alpha1.MetricsAuthKubernetes}, o.MetricsAuth) {
		return fmt.Errorf("cannot use metricsAuth %q: use none or kubernetes", o.MetricsAuth)
	}
	if !slices.Contains([]v1alpha1.FirstSyncPolicy{"", v1alpha1.FirstSyncPolicyAdopt, v1alpha1.FirstSyncPolicyCreate}, o.FirstSync) {
		return fmt.Errorf("cannot use firstSync %q: use Adopt or Create", o.FirstSync)
	}
	return nil
}

// CheckControllers refuses kinds that are not reconciled without each other. The agent asks
// it, too: one that was told such kinds would end at each start.
func CheckControllers(kinds []string) error {
	has := func(kind string) bool { return slices.Contains(kinds, kind) }
	switch {
	case has("Layer") && !has("GitRepository"):
		return errors.New("cannot reconcile Layer without GitRepository: layers are rendered from repositories that this process fetches; change controllers")
	case has("HelmChart") != has("HelmRepository"):
		return errors.New("cannot reconcile only one of HelmChart and HelmRepository: charts are found in indexes that this process reads; change controllers")
	case has("Alert") != has("Provider"):
		return errors.New("cannot reconcile only one of Alert and Provider: who is told what an Alert selects, a Provider says; change controllers")
	case has("ImageRepository") != has("ImagePolicy"):
		return errors.New("cannot reconcile only one of ImageRepository and ImagePolicy: a policy chooses among tags that this process listed; change controllers")
	}
	return nil
}

// kinds that an agent may be told to reconcile.
func kinds() []string {
	return []string{
		"GitRepository", "OCIRepository", "Bucket", "HelmRepository", "HelmChart", "Kustomization", "HelmRelease", "Layer",
		"Receiver", "Alert", "Provider", "ImageRepository", "ImagePolicy", "ImageUpdateAutomation", "ArtifactGenerator",
		"Credential", "StateBackup",
	}
}
