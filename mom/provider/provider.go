package provider

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/fluxcd/pkg/ssa/utils"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

// descriptionFile is the file of a provider's directory that says how it is run. All others
// are manifests.
const descriptionFile = "provider.yaml"

// Conversion says which definitions are converted by the provider's webhook.
type Conversion string

// Conversions.
const (
	// ConversionAll: each definition is.
	ConversionAll Conversion = "All"
	// ConversionDeclared: those that say so in the manifests are.
	ConversionDeclared Conversion = "Declared"
	// ConversionNone: none is.
	ConversionNone Conversion = "None"
)

// Labels by which Cluster API's tools know what was installed, and what belongs to it.
const (
	providerLabel = "cluster.x-k8s.io/provider"
	moveLabel     = "clusterctl.cluster.x-k8s.io"
)

// Description is how a provider is run.
type Description struct {
	// Program is the name of its manager.
	Program string `json:"program"`
	// Namespace in which it looks for what is its own, and which is made for it.
	Namespace string `json:"namespace"`
	// Provider is what clusterctl calls it.
	Provider string `json:"provider"`
	// Labels of its definitions, the contracts with Cluster API among them.
	Labels map[string]string `json:"labels,omitempty"`
	// LabelsOf are labels of some definitions, by their names.
	LabelsOf map[string]map[string]string `json:"labelsOf,omitempty"`
	// Conversion of its definitions.
	Conversion Conversion `json:"conversion"`
	// Args and Env of the manager, with the placeholders of Place.
	Args []string          `json:"args"`
	Env  map[string]string `json:"env,omitempty"`
}

// Provider is a provider that can be installed and run.
type Provider struct {
	Name string
	Description

	objects []*unstructured.Unstructured
}

// Read reads the directory of a provider.
func Read(files fs.FS, name string) (*Provider, error) {
	entries, err := fs.ReadDir(files, name)
	if err != nil {
		return nil, fmt.Errorf("cannot read provider %s: %w", name, err)
	}
	p := &Provider{Name: name}
	described := false
	for _, entry := range entries {
		text, err := fs.ReadFile(files, path.Join(name, entry.Name()))
		if err != nil {
			return nil, fmt.Errorf("cannot read provider %s: %w", name, err)
		}
		if entry.Name() == descriptionFile {
			described = true
			if err := yaml.UnmarshalStrict(text, &p.Description); err != nil {
				return nil, fmt.Errorf("cannot parse description of provider %s: %w", name, err)
			}
			continue
		}
		objects, err := utils.ReadObjects(strings.NewReader(string(text)))
		if err != nil {
			return nil, fmt.Errorf("cannot parse %s of provider %s: %w", entry.Name(), name, err)
		}
		p.objects = append(p.objects, objects...)
	}
	if !described {
		return nil, fmt.Errorf("cannot use provider %s: it has no %s", name, descriptionFile)
	}
	return p, p.check()
}

func (p *Provider) check() error {
	for _, field := range []struct{ name, value string }{{"program", p.Program}, {"namespace", p.Namespace}, {"provider", p.Provider}} {
		if field.value == "" {
			return fmt.Errorf("cannot use provider %s: it has no %s", p.Name, field.name)
		}
	}
	if !slices.Contains([]Conversion{ConversionAll, ConversionDeclared, ConversionNone}, p.Conversion) {
		return fmt.Errorf("cannot use provider %s: conversion %q is none of %s, %s, %s", p.Name, p.Conversion, ConversionAll, ConversionDeclared, ConversionNone)
	}
	for _, u := range p.objects {
		switch u.GetKind() {
		case definitionKind, mutatingKind, validatingKind:
		default:
			return fmt.Errorf("cannot use provider %s: %s %s is neither a definition nor a webhook configuration", p.Name, u.GetKind(), u.GetName())
		}
	}
	// A placeholder that nobody fills would be an argument that a manager takes as it is.
	if _, err := p.expand(slices.Concat(p.Args, slices.Collect(maps.Values(p.Env))), Place{}.values()); err != nil {
		return err
	}
	return nil
}

// Place is where a manager runs, by which placeholders in arguments and environment are
// replaced: ${kubeconfig}, ${webhookPort}, ${certificates}, ${health}, ${programs}, ${run}.
type Place struct {
	// Kubeconfig of the management cluster.
	Kubeconfig string
	// WebhookPort is where its webhooks are.
	WebhookPort int
	// Certificates is the directory with tls.crt and tls.key for them.
	Certificates string
	// Health is the address of /readyz.
	Health string
	// Programs is the directory of all programs.
	Programs string
	// Run is a directory for what outlives the manager.
	Run string
}

func (p Place) values() map[string]string {
	return map[string]string{
		"kubeconfig": p.Kubeconfig, "webhookPort": strconv.Itoa(p.WebhookPort), "certificates": p.Certificates,
		"health": p.Health, "programs": p.Programs, "run": p.Run,
	}
}

// Command is the command line of the manager, and its environment besides that of the user.
func (p *Provider) Command(place Place) (args, env []string, err error) {
	if args, err = p.expand(p.Args, place.values()); err != nil {
		return nil, nil, err
	}
	env = []string{"KUBECONFIG=" + place.Kubeconfig, "POD_NAMESPACE=" + p.Namespace, "POD_NAME=" + p.Program}
	for _, name := range slices.Sorted(maps.Keys(p.Env)) {
		value, err := p.expand([]string{p.Env[name]}, place.values())
		if err != nil {
			return nil, nil, err
		}
		env = append(env, name+"="+value[0])
	}
	return args, env, nil
}

func (p *Provider) expand(texts []string, values map[string]string) ([]string, error) {
	var expanded []string
	for _, text := range texts {
		var out strings.Builder
		for {
			before, rest, found := strings.Cut(text, "${")
			out.WriteString(before)
			if !found {
				break
			}
			name, after, closed := strings.Cut(rest, "}")
			value, known := values[name]
			if !closed || !known {
				return nil, fmt.Errorf("cannot use provider %s: ${%s} is no placeholder", p.Name, name)
			}
			out.WriteString(value)
			text = after
		}
		expanded = append(expanded, out.String())
	}
	return expanded, nil
}

// Webhooks reports whether the API server asks the manager anything.
func (p *Provider) Webhooks() bool {
	return slices.ContainsFunc(p.objects, func(u *unstructured.Unstructured) bool {
		return u.GetKind() != definitionKind || p.converts(u)
	})
}

// Kinds of what is installed.
const (
	definitionKind = "CustomResourceDefinition"
	mutatingKind   = "MutatingWebhookConfiguration"
	validatingKind = "ValidatingWebhookConfiguration"
)

// converts reports whether a definition is converted by the webhook.
func (p *Provider) converts(definition *unstructured.Unstructured) bool {
	if p.Conversion == ConversionDeclared {
		strategy, _, _ := unstructured.NestedString(definition.Object, "spec", "conversion", "strategy")
		return strategy == "Webhook"
	}
	return p.Conversion == ConversionAll
}

// Address is how the API server reaches the manager's webhooks.
type Address struct {
	Host string
	Port int
	// Authority that signed their certificate, in PEM.
	Authority []byte
}

func (a Address) url(path string) string {
	return "https://" + net.JoinHostPort(a.Host, strconv.Itoa(a.Port)) + path
}

// Definitions are the provider's definitions, as its module's overlays would make them.
func (p *Provider) Definitions(at Address) ([]*unstructured.Unstructured, error) {
	var definitions []*unstructured.Unstructured
	for _, u := range p.objects {
		if u.GetKind() != definitionKind {
			continue
		}
		u = u.DeepCopy()
		p.label(u, p.Labels)
		p.label(u, p.LabelsOf[u.GetName()])
		if !p.converts(u) {
			definitions = append(definitions, u)
			continue
		}
		conversion := map[string]any{
			"strategy": "Webhook",
			"webhook": map[string]any{
				"conversionReviewVersions": []any{"v1"},
				"clientConfig":             at.clientConfig("/convert"),
			},
		}
		if err := unstructured.SetNestedMap(u.Object, conversion, "spec", "conversion"); err != nil {
			return nil, fmt.Errorf("cannot set conversion of %s: %w", u.GetName(), err)
		}
		definitions = append(definitions, u)
	}
	return definitions, nil
}

// Admission are the provider's webhook configurations.
func (p *Provider) Admission(at Address) ([]*unstructured.Unstructured, error) {
	var configurations []*unstructured.Unstructured
	for _, u := range p.objects {
		if u.GetKind() == definitionKind {
			continue
		}
		u = u.DeepCopy()
		u.SetName(p.Name + "-" + u.GetName())
		p.label(u, nil)
		if err := at.redirect(u); err != nil {
			return nil, err
		}
		configurations = append(configurations, u)
	}
	return configurations, nil
}

// label marks what is installed as clusterctl does.
func (p *Provider) label(u *unstructured.Unstructured, more map[string]string) {
	labels := u.GetLabels()
	if labels == nil {
		labels = map[string]string{}
	}
	labels[providerLabel], labels[moveLabel] = p.Provider, ""
	maps.Copy(labels, more)
	u.SetLabels(labels)
	// It names a Certificate that nobody issues here.
	annotations := u.GetAnnotations()
	delete(annotations, "cert-manager.io/inject-ca-from")
	u.SetAnnotations(annotations)
}

// clientConfig is kept as text by the API server, and as base64 in JSON.
func (a Address) clientConfig(path string) map[string]any {
	return map[string]any{"url": a.url(path), "caBundle": encoded(a.Authority)}
}

// redirect replaces the Service of each webhook.
func (a Address) redirect(u *unstructured.Unstructured) error {
	hooks, _, err := unstructured.NestedSlice(u.Object, "webhooks")
	if err != nil {
		return fmt.Errorf("cannot read webhooks of %s: %w", u.GetName(), err)
	}
	for _, item := range hooks {
		hook, ok := item.(map[string]any)
		if !ok {
			return fmt.Errorf("cannot read webhooks of %s: %w", u.GetName(), errNoObject)
		}
		path, _, err := unstructured.NestedString(hook, "clientConfig", "service", "path")
		if err != nil || path == "" {
			return fmt.Errorf("cannot find the path of webhook %v of %s", hook["name"], u.GetName())
		}
		hook["clientConfig"] = a.clientConfig(path)
	}
	if err := unstructured.SetNestedSlice(u.Object, hooks, "webhooks"); err != nil {
		return fmt.Errorf("cannot set webhooks of %s: %w", u.GetName(), err)
	}
	return nil
}

var errNoObject = errors.New("one is no object")
