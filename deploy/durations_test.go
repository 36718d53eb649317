package deploy

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/cel-go/cel"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// TestDurations: each field of a spec that its definition takes for a duration is refused where Go cannot hold
// it, as whoever reads the kind could not read the object. One that is there already may change elsewhere.
func TestDurations(t *testing.T) {
	objects, err := Options{}.read("agent/durations.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var policies []*admissionv1.ValidatingAdmissionPolicy
	for _, u := range objects {
		p := &admissionv1.ValidatingAdmissionPolicy{}
		if u.GetKind() != "ValidatingAdmissionPolicy" {
			continue
		}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(u.Object, p, true); err != nil {
			t.Fatalf("%s is no policy: %v", u.GetName(), err)
		}
		policies = append(policies, p)
	}
	crds, err := CRDs()
	if err != nil {
		t.Fatal(err)
	}
	fields := 0
	for _, u := range crds {
		crd := &apiextensionsv1.CustomResourceDefinition{}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, crd); err != nil {
			t.Fatal(err)
		}
		for _, v := range crd.Spec.Versions {
			durationsOf("spec", v.Schema.OpenAPIV3Schema.Properties["spec"], func(spec any) any { return spec }, func(path string, at func(any) any) {
				fields++
				of := func(duration string) map[string]any {
					return map[string]any{"apiVersion": crd.Spec.Group + "/" + v.Name, "kind": crd.Spec.Names.Kind, "spec": at(duration)}
				}
				const endless = "99999999999m"
				for _, tt := range []struct {
					reason      string
					object, old any
					admitted    bool
				}{
					{"it is a duration", of("10m"), nil, true},
					{"no program can read it", of(endless), nil, false},
					{"nor this", of(endless), of("10m"), false},
					{"nothing of it changes", of(endless), of(endless), true},
				} {
					admitted := true
					for _, p := range policies {
						admitted = admitted && admits(t, p, crd.Spec.Group, crd.Spec.Names.Plural, tt.object, tt.old)
					}
					if admitted != tt.admitted {
						t.Errorf("%s of %s.%s: %s, and it is admitted: %t", path, crd.Spec.Names.Kind, crd.Spec.Group, tt.reason, admitted)
					}
				}
			})
		}
	}
	if fields < 40 {
		t.Errorf("there are %d durations, by the way in which they are looked for", fields)
	}
}

// durationsOf calls found with each field of a schema that has the pattern of a duration, and with how a
// spec comes to have a value there.
func durationsOf(path string, s apiextensionsv1.JSONSchemaProps, at func(value any) any, found func(path string, at func(value any) any)) {
	if strings.Contains(s.Pattern, "(ms|s|m") {
		found(path, at)
	}
	for name, field := range s.Properties {
		durationsOf(path+"."+name, field, func(value any) any { return at(map[string]any{name: value}) }, found)
	}
	if s.Items != nil && s.Items.Schema != nil {
		durationsOf(path+"[]", *s.Items.Schema, func(value any) any { return at([]any{value}) }, found)
	}
}

// admits is what an API server makes of a policy.
func admits(t *testing.T, p *admissionv1.ValidatingAdmissionPolicy, group, resource string, object, old any) bool {
	t.Helper()
	if !slices.ContainsFunc(p.Spec.MatchConstraints.ResourceRules, func(r admissionv1.NamedRuleWithOperations) bool {
		return slices.Contains(r.APIGroups, group) && (slices.Contains(r.Resources, "*") || slices.Contains(r.Resources, resource))
	}) {
		return true
	}
	variables := map[string]any{}
	env, err := cel.NewEnv(cel.Variable("object", cel.DynType), cel.Variable("oldObject", cel.DynType), cel.Variable("variables", cel.DynType))
	if err != nil {
		t.Fatal(err)
	}
	// What cannot be evaluated is refused, as failurePolicy says.
	holds := func(expression string) (value, failed bool) {
		ast, issues := env.Compile(expression)
		if issues.Err() != nil {
			t.Fatalf("policy %s: %v", p.Name, issues.Err())
		}
		program, err := env.Program(ast)
		if err != nil {
			t.Fatalf("policy %s: %v", p.Name, err)
		}
		out, _, err := program.Eval(map[string]any{"object": object, "oldObject": old, "variables": variables})
		if err != nil {
			return false, true
		}
		return out.Value() == true, false
	}
	for _, c := range p.Spec.MatchConditions {
		switch is, failed := holds(c.Expression); {
		case failed:
			return false
		case !is:
			return true
		}
	}
	for _, v := range p.Spec.Variables {
		variables[v.Name], _ = holds(v.Expression)
	}
	return !slices.ContainsFunc(p.Spec.Validations, func(v admissionv1.Validation) bool {
		is, _ := holds(v.Expression)
		return !is
	})
}
