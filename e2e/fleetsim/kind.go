package fleetsim

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	batchv1 "k8s.io/api/batch/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	crdapply "k8s.io/apiextensions-apiserver/pkg/client/applyconfiguration"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	apiversion "k8s.io/apimachinery/pkg/version"
	applyconfigurations "k8s.io/client-go/applyconfigurations"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/kube-openapi/pkg/validation/spec"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	utilversion "k8s.io/apimachinery/pkg/util/version"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
)

// kind is a kind of objects that clusters serve. It is immutable and shared
// between all clusters that have the same definition of it.
type kind struct {
	Group, Kind, List         string
	Plural, Singular          string
	Short, Categories         []string
	Namespaced                bool
	Status, Scale, Generation bool
	// Returned: a delete answers with the object.
	Returned bool
	// versions that are served, the preferred first; stored is one of them.
	versions []string
	stored   string
	// subresources besides, with their kinds, for discovery.
	subresources []subresource
	// Review: objects are questions, which are answered and not kept.
	Review bool

	// custom is nil for built-in kinds.
	custom *customKind

	mu       sync.Mutex
	managers map[managerKey]*managedfields.FieldManager
}

type subresource struct {
	name, group, version, kind string
	verbs                      []string
}

type managerKey struct{ version, subresource string }

// customKind is what the definition of a kind says, by version.
type customKind struct {
	converter  managedfields.TypeConverter
	structural map[string]*structuralschema.Structural
	validator  map[string]validation.SchemaValidator
	// rules are those in CEL, nil for a version without any.
	rules     map[string]*cel.Validator
	hasStatus map[string]bool
}

func (k *kind) apiVersion(version string) string {
	if version == "" {
		version = k.stored
	}
	if k.Group == "" {
		return version
	}
	return k.Group + "/" + version
}

func (k *kind) resource() schema.GroupResource {
	return schema.GroupResource{Group: k.Group, Resource: k.Plural}
}

func (k *kind) gvk(version string) schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: k.Group, Version: version, Kind: k.Kind}
}

// typedScheme knows the built-in kinds and definitions.
var typedScheme = func() *runtime.Scheme {
	s := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, apiextensionsv1.AddToScheme} {
		if err := add(s); err != nil {
			panic(err) // the packages are broken
		}
	}
	return s
}()

var (
	builtinConverter    = applyconfigurations.NewTypeConverter(typedScheme)
	definitionConverter = crdapply.NewTypeConverter(typedScheme)
)

// manager returns the field manager of a version of a kind.
func (k *kind) manager(version, subresource string) (*managedfields.FieldManager, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	key := managerKey{version, subresource}
	if m := k.managers[key]; m != nil {
		return m, nil
	}
	reset := map[fieldpath.APIVersion]fieldpath.Filter{}
	var fields *fieldpath.Set
	switch {
	case subresource == "status" && k.custom != nil:
		fields = fieldpath.NewSet(fieldpath.MakePathOrDie("metadata"), fieldpath.MakePathOrDie("spec"))
	case subresource == "status":
		fields = fieldpath.NewSet(fieldpath.MakePathOrDie("spec"))
	case k.Status:
		fields = fieldpath.NewSet(fieldpath.MakePathOrDie("status"))
	}
	gvk := k.gvk(version)
	if fields != nil {
		reset[fieldpath.APIVersion(gvk.GroupVersion().String())] = fieldpath.NewExcludeSetFilter(fields)
	}
	var m *managedfields.FieldManager
	var err error
	if k.custom != nil {
		m, err = managedfields.NewDefaultCRDFieldManager(k.custom.converter, objectVersion{}, objectVersion{}, objectVersion{}, gvk, gvk.GroupVersion(), subresource, reset)
	} else {
		converter := builtinConverter
		if k.Group == apiextensionsv1.GroupName {
			converter = definitionConverter
		}
		m, err = managedfields.NewDefaultFieldManager(converter, objectVersion{}, objectVersion{}, objectVersion{}, gvk, gvk.GroupVersion(), subresource, reset)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot make field manager of %s: %w", gvk, err)
	}
	if k.managers == nil {
		k.managers = map[managerKey]*managedfields.FieldManager{}
	}
	k.managers[key] = m
	return m, nil
}

// objectVersion converts between versions of a kind, which all have the same
// fields, as definitions without a conversion webhook say. It defaults nothing:
// that is done by the writes.
type objectVersion struct{}

func (objectVersion) Convert(_, _, _ any) error { return fmt.Errorf("cannot convert into an object") }

func (objectVersion) ConvertToVersion(in runtime.Object, target runtime.GroupVersioner) (runtime.Object, error) {
	u, ok := in.(*unstructured.Unstructured)
	if !ok {
		return in, nil
	}
	gvk := u.GroupVersionKind()
	to, ok := target.KindForGroupVersionKinds([]schema.GroupVersionKind{gvk})
	if !ok || to == gvk {
		return u, nil
	}
	out := &unstructured.Unstructured{Object: maps.Clone(u.Object)} // what comes in stays as it is
	out.SetGroupVersionKind(to)
	return out, nil
}

func (objectVersion) ConvertFieldLabel(_ schema.GroupVersionKind, label, value string) (string, string, error) {
	return label, value, nil
}

func (objectVersion) Default(runtime.Object) {}

func (objectVersion) New(gvk schema.GroupVersionKind) (runtime.Object, error) {
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(gvk)
	return u, nil
}

// builtinKinds are those of kube-apiserver that fleets use.
var builtinKinds = func() []*kind {
	core, apps, rbac, admission := corev1.SchemeGroupVersion, appsv1.SchemeGroupVersion, rbacv1.SchemeGroupVersion, admissionregistrationv1.SchemeGroupVersion
	add := func(gv schema.GroupVersion, name, plural string, k *kind) *kind {
		k.Group, k.Kind, k.List, k.Plural = gv.Group, name, name+"List", plural
		k.Singular = strings.ToLower(name)
		k.versions, k.stored = []string{gv.Version}, gv.Version
		return k
	}
	return []*kind{
		add(core, "ConfigMap", "configmaps", &kind{Namespaced: true, Short: []string{"cm"}}),
		add(core, "Endpoints", "endpoints", &kind{Namespaced: true, Short: []string{"ep"}}),
		add(core, "Event", "events", &kind{Namespaced: true, Short: []string{"ev"}}),
		add(core, "LimitRange", "limitranges", &kind{Namespaced: true, Short: []string{"limits"}}),
		add(core, "Namespace", "namespaces", &kind{Status: true, Short: []string{"ns"}, Returned: true}),
		add(core, "Node", "nodes", &kind{Status: true, Short: []string{"no"}, Returned: true}),
		add(core, "PersistentVolumeClaim", "persistentvolumeclaims", &kind{Namespaced: true, Status: true, Short: []string{"pvc"}, Returned: true}),
		add(core, "PersistentVolume", "persistentvolumes", &kind{Status: true, Short: []string{"pv"}, Returned: true}),
		add(core, "Pod", "pods", &kind{Namespaced: true, Status: true, Generation: true, Short: []string{"po"}, Categories: []string{"all"}, Returned: true}),
		add(core, "ResourceQuota", "resourcequotas", &kind{Namespaced: true, Status: true, Short: []string{"quota"}, Returned: true}),
		add(core, "Secret", "secrets", &kind{Namespaced: true}),
		add(core, "ServiceAccount", "serviceaccounts", &kind{Namespaced: true, Short: []string{"sa"}, Returned: true, subresources: []subresource{
			{"token", "authentication.k8s.io", "v1", "TokenRequest", []string{"create"}}}}),
		add(core, "Service", "services", &kind{Namespaced: true, Status: true, Short: []string{"svc"}, Categories: []string{"all"}, Returned: true}),
		add(admission, "MutatingWebhookConfiguration", "mutatingwebhookconfigurations", &kind{Generation: true, Categories: []string{"api-extensions"}}),
		add(admission, "ValidatingAdmissionPolicy", "validatingadmissionpolicies", &kind{Status: true, Generation: true, Categories: []string{"api-extensions"}}),
		add(admission, "ValidatingAdmissionPolicyBinding", "validatingadmissionpolicybindings", &kind{Generation: true, Categories: []string{"api-extensions"}}),
		add(admission, "ValidatingWebhookConfiguration", "validatingwebhookconfigurations", &kind{Generation: true, Categories: []string{"api-extensions"}}),
		add(apiextensionsv1.SchemeGroupVersion, "CustomResourceDefinition", "customresourcedefinitions", &kind{Status: true, Generation: true, Short: []string{"crd", "crds"}, Categories: []string{"api-extensions"}}),
		add(apps, "DaemonSet", "daemonsets", &kind{Namespaced: true, Status: true, Generation: true, Short: []string{"ds"}, Categories: []string{"all"}}),
		add(apps, "Deployment", "deployments", &kind{Namespaced: true, Status: true, Generation: true, Short: []string{"deploy"}, Categories: []string{"all"}}),
		add(apps, "ReplicaSet", "replicasets", &kind{Namespaced: true, Status: true, Generation: true, Short: []string{"rs"}, Categories: []string{"all"}}),
		add(apps, "StatefulSet", "statefulsets", &kind{Namespaced: true, Status: true, Generation: true, Short: []string{"sts"}, Categories: []string{"all"}}),
		add(schema.GroupVersion{Group: "apiregistration.k8s.io", Version: "v1"}, "APIService", "apiservices", &kind{Status: true, Generation: true, Categories: []string{"api-extensions"}}),
		add(authenticationv1.SchemeGroupVersion, "SelfSubjectReview", "selfsubjectreviews", &kind{Review: true}),
		add(authorizationv1.SchemeGroupVersion, "SelfSubjectAccessReview", "selfsubjectaccessreviews", &kind{Review: true}),
		add(authorizationv1.SchemeGroupVersion, "SelfSubjectRulesReview", "selfsubjectrulesreviews", &kind{Review: true}),
		add(batchv1.SchemeGroupVersion, "CronJob", "cronjobs", &kind{Namespaced: true, Status: true, Generation: true, Short: []string{"cj"}, Categories: []string{"all"}}),
		add(batchv1.SchemeGroupVersion, "Job", "jobs", &kind{Namespaced: true, Status: true, Generation: true, Categories: []string{"all"}}),
		add(coordinationv1.SchemeGroupVersion, "Lease", "leases", &kind{Namespaced: true}),
		add(networkingv1.SchemeGroupVersion, "IngressClass", "ingressclasses", &kind{Generation: true}),
		add(networkingv1.SchemeGroupVersion, "Ingress", "ingresses", &kind{Namespaced: true, Status: true, Generation: true, Short: []string{"ing"}}),
		add(networkingv1.SchemeGroupVersion, "NetworkPolicy", "networkpolicies", &kind{Namespaced: true, Generation: true, Short: []string{"netpol"}}),
		add(policyv1.SchemeGroupVersion, "PodDisruptionBudget", "poddisruptionbudgets", &kind{Namespaced: true, Status: true, Generation: true, Short: []string{"pdb"}}),
		add(rbac, "ClusterRoleBinding", "clusterrolebindings", &kind{}),
		add(rbac, "ClusterRole", "clusterroles", &kind{}),
		add(rbac, "RoleBinding", "rolebindings", &kind{Namespaced: true}),
		add(rbac, "Role", "roles", &kind{Namespaced: true}),
		add(schedulingv1.SchemeGroupVersion, "PriorityClass", "priorityclasses", &kind{Generation: true, Short: []string{"pc"}}),
		add(storagev1.SchemeGroupVersion, "StorageClass", "storageclasses", &kind{Short: []string{"sc"}}),
	}
}()

func builtin(name string) *kind {
	i := slices.IndexFunc(builtinKinds, func(k *kind) bool { return k.Kind == name })
	return builtinKinds[i]
}

// define makes the kind that a CustomResourceDefinition describes. Definitions
// that say the same make the same kind.
func (s *store) define(object map[string]any) (*kind, error) {
	text, err := json.Marshal(object["spec"])
	if err != nil {
		return nil, fmt.Errorf("cannot encode definition: %w", err)
	}
	made := s.kinds.get(sha256.Sum256(text), func() *kind {
		var k *kind
		if k, err = newCustomKind(text); err != nil {
			k = &kind{}
		}
		return k
	})
	if err == nil && made.custom == nil {
		_, err = newCustomKind(text) // it failed for another cluster
	}
	return made, err
}

func newCustomKind(text []byte) (*kind, error) {
	crd := &apiextensionsv1.CustomResourceDefinition{}
	if err := json.Unmarshal(text, &crd.Spec); err != nil {
		return nil, fmt.Errorf("cannot decode definition: %w", err)
	}
	names := crd.Spec.Names
	k := &kind{
		Group: crd.Spec.Group, Kind: names.Kind, List: names.ListKind, Plural: names.Plural, Singular: names.Singular,
		Short: names.ShortNames, Categories: names.Categories, Namespaced: crd.Spec.Scope == apiextensionsv1.NamespaceScoped, Generation: true,
		custom: &customKind{structural: map[string]*structuralschema.Structural{}, validator: map[string]validation.SchemaValidator{}, rules: map[string]*cel.Validator{}, hasStatus: map[string]bool{}},
	}
	models := map[string]*spec.Schema{metadataModel: metadataSchema()}
	for _, v := range crd.Spec.Versions {
		if v.Storage {
			k.stored = v.Name
		}
		if !v.Served {
			continue
		}
		k.versions = append(k.versions, v.Name)
		if v.Subresources != nil && v.Subresources.Status != nil {
			k.custom.hasStatus[v.Name] = true
			k.Status = true
		}
		if v.Subresources != nil && v.Subresources.Scale != nil {
			k.Scale = true
		}
		if v.Schema == nil || v.Schema.OpenAPIV3Schema == nil {
			return nil, fmt.Errorf("cannot define %s: version %s has no schema", k.Kind, v.Name)
		}
		internal := &apiextensions.JSONSchemaProps{}
		if err := apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(v.Schema.OpenAPIV3Schema, internal, nil); err != nil {
			return nil, fmt.Errorf("cannot convert schema of %s: %w", k.Kind, err)
		}
		structural, err := structuralschema.NewStructural(internal)
		if err != nil {
			return nil, fmt.Errorf("cannot use schema of %s: %w", k.Kind, err)
		}
		k.custom.structural[v.Name] = structural
		k.custom.rules[v.Name] = cel.NewValidator(structural, true, celconfig.PerCallLimit)
		if k.custom.validator[v.Name], _, err = validation.NewSchemaValidatorForVersion(internal, utilversion.MajorMinor(1, 36)); err != nil {
			return nil, fmt.Errorf("cannot use schema of %s for validation: %w", k.Kind, err)
		}
		model := structural.ToKubeOpenAPI()
		if model.Properties == nil {
			model.Properties = map[string]spec.Schema{}
		}
		model.Properties["metadata"] = *spec.RefSchema("#/definitions/" + metadataModel)
		model.Properties["apiVersion"] = *spec.StringProperty()
		model.Properties["kind"] = *spec.StringProperty()
		model.AddExtension("x-kubernetes-group-version-kind", []any{map[string]any{"group": k.Group, "version": v.Name, "kind": k.Kind}})
		models[k.Group+"."+v.Name+"."+k.Kind] = model
	}
	slices.SortFunc(k.versions, func(a, b string) int { return apiversion.CompareKubeAwareVersionStrings(b, a) })
	var err error
	if k.custom.converter, err = managedfields.NewTypeConverter(models, crd.Spec.PreserveUnknownFields); err != nil {
		return nil, fmt.Errorf("cannot use schema of %s for server-side apply: %w", k.Kind, err)
	}
	return k, nil
}

const metadataModel = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"

// metadataSchema is what matters of ObjectMeta when objects are merged.
func metadataSchema() *spec.Schema {
	text := func() spec.Schema { return *spec.StringProperty() }
	texts := spec.MapProperty(spec.StringProperty())
	finalizers := spec.ArrayProperty(spec.StringProperty())
	finalizers.AddExtension("x-kubernetes-list-type", "set")
	owner := &spec.Schema{SchemaProps: spec.SchemaProps{Type: []string{"object"}, Properties: map[string]spec.Schema{
		"apiVersion": text(), "kind": text(), "name": text(), "uid": text(), "controller": *spec.BooleanProperty(), "blockOwnerDeletion": *spec.BooleanProperty(),
	}}}
	owner.AddExtension("x-kubernetes-map-type", "atomic")
	owners := spec.ArrayProperty(owner)
	owners.AddExtension("x-kubernetes-list-type", "map")
	owners.AddExtension("x-kubernetes-list-map-keys", []any{"uid"})
	return &spec.Schema{SchemaProps: spec.SchemaProps{Type: []string{"object"}, Properties: map[string]spec.Schema{
		"name": text(), "namespace": text(), "generateName": text(), "uid": text(), "resourceVersion": text(), "selfLink": text(),
		"generation": *spec.Int64Property(), "creationTimestamp": text(), "deletionTimestamp": text(), "deletionGracePeriodSeconds": *spec.Int64Property(),
		"labels": *texts, "annotations": *texts, "finalizers": *finalizers, "ownerReferences": *owners,
		"managedFields": *spec.ArrayProperty(&spec.Schema{SchemaProps: spec.SchemaProps{Type: []string{"object"}}}),
	}}}
}

// catalog is the set of kinds that a cluster serves, shared between all clusters
// that serve the same.
type catalog struct {
	kinds []*kind
	// by group, version and plural.
	served map[schema.GroupVersionResource]*kind

	docs sync.Mutex
	made map[string]*document
}

// catalog of the built-in kinds and custom ones.
func (s *store) catalog(custom []*kind) *catalog {
	custom = slices.Clone(custom)
	slices.SortFunc(custom, func(a, b *kind) int { return strings.Compare(a.Group+"/"+a.Plural, b.Group+"/"+b.Plural) })
	h := sha256.New()
	for _, k := range custom {
		fmt.Fprintf(h, "%p ", k)
	}
	return s.catalogs.get(digest(h.Sum(nil)), func() *catalog {
		c := &catalog{kinds: append(slices.Clone(builtinKinds), custom...), served: map[schema.GroupVersionResource]*kind{}, made: map[string]*document{}}
		for _, k := range c.kinds {
			for _, v := range k.versions {
				c.served[schema.GroupVersionResource{Group: k.Group, Version: v, Resource: k.Plural}] = k
			}
		}
		return c
	})
}

// hasVersion reports whether any kind of a group and version is served.
func (c *catalog) hasVersion(group, version string) bool {
	return slices.ContainsFunc(c.kinds, func(k *kind) bool { return k.Group == group && slices.Contains(k.versions, version) })
}
