package fleetsim

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/pruning"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	names "k8s.io/apimachinery/pkg/api/validate/content"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/validation/field"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
)

// part of an object.
type part = map[string]any

// complete gives an object the form in which the API server keeps it: without
// what its kind does not know, and with defaults.
func (k *kind) complete(version string, object part) error {
	if k.custom != nil {
		structural := k.custom.structural[version]
		pruning.Prune(object, structural, true)
		defaulting.PruneNonNullableNullsWithoutDefaults(object, structural)
		defaulting.Default(object, structural)
		return nil
	}
	typed, err := typedScheme.New(k.gvk(version))
	if err != nil {
		return fmt.Errorf("cannot decode %s: %w", k.Kind, err)
	}
	text, err := json.Marshal(object)
	if err != nil {
		return fmt.Errorf("cannot encode %s: %w", k.Kind, err)
	}
	if err := utiljson.Unmarshal(text, typed); err != nil {
		return apierrors.NewBadRequest(fmt.Sprintf("%s in version %q cannot be handled as a %s: %s", k.Kind, version, k.Kind, err))
	}
	clean, err := runtime.DefaultUnstructuredConverter.ToUnstructured(typed)
	if err != nil {
		return fmt.Errorf("cannot convert %s: %w", k.Kind, err)
	}
	clear(object)
	for key, v := range clean {
		object[key] = v
	}
	object["apiVersion"], object["kind"] = k.apiVersion(version), k.Kind
	if m := child(object, "metadata"); m != nil && m["creationTimestamp"] == nil {
		delete(m, "creationTimestamp")
	}
	if spec := child(object, "spec"); spec != nil && len(spec) == 0 {
		delete(object, "spec")
	}
	k.defaults(object)
	return nil
}

func child(of part, key string) part {
	c, _ := of[key].(part)
	return c
}

// children are the objects of a list.
func children(of part, key string) []part {
	list, _ := of[key].([]any)
	out := make([]part, 0, len(list))
	for _, item := range list {
		if c, ok := item.(part); ok {
			out = append(out, c)
		}
	}
	return out
}

func setDefault(of part, key string, v any) {
	if of == nil {
		return
	}
	if have, ok := of[key]; !ok || have == "" || have == nil {
		of[key] = v
	}
}

// defaults of the built-in kinds that fleets use most.
func (k *kind) defaults(o part) {
	spec := child(o, "spec")
	switch k.Kind {
	case "Namespace":
		m := child(o, "metadata")
		if m["labels"] == nil {
			m["labels"] = part{}
		}
		if name, _ := m["name"].(string); name != "" {
			setDefault(child(m, "labels"), "kubernetes.io/metadata.name", name)
		}
	case "Secret":
		setDefault(o, "type", "Opaque")
		given := child(o, "stringData")
		delete(o, "stringData")
		if len(given) > 0 && o["data"] == nil {
			o["data"] = part{}
		}
		for key, v := range given {
			text, _ := v.(string)
			child(o, "data")[key] = base64.StdEncoding.EncodeToString([]byte(text))
		}
	case "Deployment":
		setDefault(spec, "replicas", int64(1))
		setDefault(spec, "revisionHistoryLimit", int64(10))
		setDefault(spec, "progressDeadlineSeconds", int64(600))
		if spec != nil && spec["strategy"] == nil {
			spec["strategy"] = part{}
		}
		strategy := child(spec, "strategy")
		setDefault(strategy, "type", "RollingUpdate")
		if strategy["type"] == "RollingUpdate" {
			if strategy["rollingUpdate"] == nil {
				strategy["rollingUpdate"] = part{}
			}
			setDefault(child(strategy, "rollingUpdate"), "maxUnavailable", "25%")
			setDefault(child(strategy, "rollingUpdate"), "maxSurge", "25%")
		}
		podDefaults(child(child(spec, "template"), "spec"))
	case "DaemonSet", "StatefulSet", "ReplicaSet", "Job":
		podDefaults(child(child(spec, "template"), "spec"))
	case "Service":
		setDefault(spec, "type", "ClusterIP")
		setDefault(spec, "sessionAffinity", "None")
		setDefault(spec, "internalTrafficPolicy", "Cluster")
		for _, port := range children(spec, "ports") {
			setDefault(port, "protocol", "TCP")
			if target := port["targetPort"]; target == nil || target == int64(0) {
				port["targetPort"] = port["port"]
			}
		}
	case "RoleBinding", "ClusterRoleBinding":
		setDefault(child(o, "roleRef"), "apiGroup", rbacGroup)
		for _, s := range children(o, "subjects") {
			if s["kind"] != "ServiceAccount" {
				setDefault(s, "apiGroup", rbacGroup)
			}
		}
	case "ClusterRole", "Role":
		if len(children(o, "rules")) == 0 {
			o["rules"] = nil
		}
	case "PriorityClass":
		setDefault(o, "preemptionPolicy", "PreemptLowerPriority")
	case "ValidatingAdmissionPolicy":
		setDefault(spec, "failurePolicy", "Fail")
		matchDefaults(child(spec, "matchConstraints"))
	case "ValidatingAdmissionPolicyBinding":
		matchDefaults(child(spec, "matchResources"))
	case "CustomResourceDefinition":
		names := child(spec, "names")
		name, _ := names["kind"].(string)
		setDefault(names, "singular", strings.ToLower(name))
		setDefault(names, "listKind", name+"List")
		if spec != nil && spec["conversion"] == nil {
			spec["conversion"] = part{"strategy": "None"}
		}
	}
}

func matchDefaults(match part) {
	if match == nil {
		return
	}
	setDefault(match, "matchPolicy", "Equivalent")
	for _, key := range []string{"namespaceSelector", "objectSelector"} {
		if match[key] == nil {
			match[key] = part{}
		}
	}
	for _, key := range []string{"resourceRules", "excludeResourceRules"} {
		for _, rule := range children(match, key) {
			setDefault(rule, "scope", "*")
		}
	}
}

func podDefaults(pod part) {
	if pod == nil {
		return
	}
	setDefault(pod, "dnsPolicy", "ClusterFirst")
	setDefault(pod, "restartPolicy", "Always")
	setDefault(pod, "schedulerName", "default-scheduler")
	setDefault(pod, "terminationGracePeriodSeconds", int64(30))
	if pod["securityContext"] == nil {
		pod["securityContext"] = part{}
	}
	if account, _ := pod["serviceAccountName"].(string); account != "" {
		pod["serviceAccount"] = account
	}
	for _, v := range children(pod, "volumes") {
		for source, key := range map[string]string{"configMap": "defaultMode", "secret": "defaultMode", "projected": "defaultMode"} {
			setDefault(child(v, source), key, int64(420))
		}
	}
	for _, c := range append(children(pod, "containers"), children(pod, "initContainers")...) {
		setDefault(c, "terminationMessagePath", "/dev/termination-log")
		setDefault(c, "terminationMessagePolicy", "File")
		image, _ := c["image"].(string)
		policy := "IfNotPresent"
		if last := image[strings.LastIndexByte(image, '/')+1:]; !strings.Contains(last, "@") && (!strings.Contains(last, ":") || strings.HasSuffix(last, ":latest")) {
			policy = "Always"
		}
		setDefault(c, "imagePullPolicy", policy)
		if c["resources"] == nil {
			c["resources"] = part{}
		}
		for _, port := range children(c, "ports") {
			setDefault(port, "protocol", "TCP")
		}
		for _, env := range children(c, "env") {
			setDefault(child(child(env, "valueFrom"), "fieldRef"), "apiVersion", "v1")
		}
		for _, probe := range []string{"livenessProbe", "readinessProbe", "startupProbe"} {
			p := child(c, probe)
			for key, v := range map[string]int64{"timeoutSeconds": 1, "periodSeconds": 10, "successThreshold": 1, "failureThreshold": 3} {
				setDefault(p, key, v)
			}
			setDefault(child(p, "httpGet"), "scheme", "HTTP")
			setDefault(child(p, "httpGet"), "path", "/")
		}
	}
}

// initialStatus is what the API server itself says of a new object.
func (k *kind) initialStatus(o part) {
	switch k.Kind {
	case "Namespace":
		spec := child(o, "spec")
		if spec == nil {
			spec = part{}
			o["spec"] = spec
		}
		if list, _ := spec["finalizers"].([]any); !slices.Contains(list, any("kubernetes")) {
			spec["finalizers"] = append(list, "kubernetes")
		}
		o["status"] = part{"phase": "Active"}
	case "CustomResourceDefinition":
		stored := []any{}
		for _, v := range children(child(o, "spec"), "versions") {
			if v["storage"] == true {
				stored = append(stored, v["name"])
			}
		}
		o["status"] = part{"acceptedNames": part{"kind": "", "plural": ""}, "conditions": nil, "storedVersions": stored}
	case "Service":
		o["status"] = part{"loadBalancer": part{}}
	default:
		if k.custom == nil {
			o["status"] = part{}
		}
	}
}

// nameRule is the form of a kind's names.
func (k *kind) nameRule() apivalidation.ValidateNameFunc {
	switch {
	case k.Group == rbacGroup:
		return func(name string, prefix bool) []string { return names.IsPathSegmentName(name) }
	case k.Kind == "Namespace":
		return apivalidation.NameIsDNSLabel
	case k.Kind == "Service":
		return apivalidation.NameIsDNS1035Label
	}
	return apivalidation.NameIsDNSSubdomain
}

// validate refuses what kube-apiserver would refuse of an object.
func (w *write) validate(before, after part, exists bool) error {
	k := w.kind
	u, old := &unstructured.Unstructured{Object: after}, &unstructured.Unstructured{Object: before}
	if u.GetName() == "" && u.GetGenerateName() != "" && w.operation == opCreate {
		u = u.DeepCopy()
		u.SetName(u.GetGenerateName() + "abcde") // it gets one later
	}
	errs := apivalidation.ValidateObjectMetaAccessor(u, k.Namespaced, k.nameRule(), field.NewPath("metadata"))
	if exists {
		for _, e := range apivalidation.ValidateObjectMetaAccessorUpdate(u, old, field.NewPath("metadata")) {
			// What is kept beside an object is not in it.
			if e.Field != "metadata.resourceVersion" {
				errs = append(errs, e)
			}
		}
	}
	if k.custom != nil {
		validator := k.custom.validator[w.version]
		if exists {
			errs = append(errs, validation.ValidateCustomResourceUpdate(nil, after, before, validator)...)
		} else {
			errs = append(errs, validation.ValidateCustomResource(nil, after, validator)...)
		}
		errs = append(errs, k.custom.inRules(w.version, before, after, exists, errs)...)
	} else {
		errs = append(errs, k.rules(before, after, exists)...)
	}
	if len(errs) > 0 {
		return apierrors.NewInvalid(k.gvk(w.version).GroupKind(), u.GetName(), errs)
	}
	return nil
}

// inRules are the errors of the rules in CEL, which are not asked about an object of which
// kube-apiserver found before that it has the wrong form.
func (c *customKind) inRules(version string, before, after part, exists bool, found field.ErrorList) field.ErrorList {
	rules := c.rules[version]
	if rules == nil {
		return nil
	}
	for _, e := range found {
		switch e.Type {
		case field.ErrorTypeNotSupported, field.ErrorTypeRequired, field.ErrorTypeTooLong, field.ErrorTypeTooMany, field.ErrorTypeTypeInvalid:
			return field.ErrorList{field.Invalid(nil, nil, "some validation rules were not checked because the object was invalid; correct the existing errors to complete validation")}
		}
	}
	var old any
	if exists {
		old = map[string]any(before)
	}
	errs, _ := rules.Validate(context.Background(), nil, c.structural[version], map[string]any(after), old, celconfig.RuntimeCELCostBudget)
	return errs
}

const immutable = apivalidation.FieldImmutableErrorMsg

// rules of built-in kinds that writers run into.
func (k *kind) rules(before, after part, exists bool) field.ErrorList {
	var errs field.ErrorList
	same := func(key string) bool { return apiequality.Semantic.DeepEqual(before[key], after[key]) }
	switch k.Kind {
	case "ConfigMap", "Secret":
		if !exists {
			break
		}
		if k.Kind == "Secret" && before["type"] != after["type"] {
			errs = append(errs, field.Invalid(field.NewPath("type"), after["type"], immutable))
		}
		if before["immutable"] == true {
			if after["immutable"] != true {
				errs = append(errs, field.Forbidden(field.NewPath("immutable"), "field is immutable when `immutable` is set"))
			}
			for _, key := range []string{"data", "binaryData"} {
				if !same(key) {
					errs = append(errs, field.Forbidden(field.NewPath(key), "field is immutable when `immutable` is set"))
				}
			}
		}
	case "RoleBinding", "ClusterRoleBinding":
		if exists && !same("roleRef") {
			ref := child(after, "roleRef")
			errs = append(errs, field.Invalid(field.NewPath("roleRef"), struct{ APIGroup, Kind, Name any }{ref["apiGroup"], ref["kind"], ref["name"]}, "cannot change roleRef"))
		}
	case "Deployment":
		selector := field.NewPath("spec").Child("selector")
		if child(child(after, "spec"), "selector") == nil {
			labels := child(child(child(child(after, "spec"), "template"), "metadata"), "labels")
			errs = append(errs, field.Required(selector, ""),
				field.Invalid(field.NewPath("spec", "template", "metadata", "labels"), labels, "`selector` does not match template `labels`"))
		}
		if was := child(child(before, "spec"), "selector"); exists && !apiequality.Semantic.DeepEqual(was, child(child(after, "spec"), "selector")) {
			errs = append(errs, field.Invalid(selector, child(child(after, "spec"), "selector"), immutable))
		}
	case "CustomResourceDefinition":
		crd := &apiextensionsv1.CustomResourceDefinition{}
		_ = runtime.DefaultUnstructuredConverter.FromUnstructured(after, crd) // it was one before
		if want := crd.Spec.Names.Plural + "." + crd.Spec.Group; crd.Name != want {
			errs = append(errs, field.Invalid(field.NewPath("metadata", "name"), crd.Name, "must be spec.names.plural+\".\"+spec.group"))
		}
	}
	return errs
}
