package receive

import (
	"context"
	"errors"
	"fmt"
	"sync"

	notificationv1 "github.com/fluxcd/notification-controller/api/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/syncer/expression"
	"github.com/cascade-gitops/cascade/syncer/request"
	"github.com/cascade-gitops/cascade/syncer/worker"
)

const (
	// all stands for the objects of a kind that have the labels.
	all = "*"
	// mostObjects bounds those that one request asks for, and pageSize what is listed at
	// once.
	mostObjects = 5000
	pageSize    = 500
	// mostWrites run at the same time for one request.
	mostWrites = 16
)

// kinds that a Receiver may name, in the version that Flux 2.9 serves.
func kinds() map[string]schema.GroupVersion {
	source := schema.GroupVersion{Group: "source.toolkit.fluxcd.io", Version: "v1"}
	image := schema.GroupVersion{Group: "image.toolkit.fluxcd.io", Version: "v1"}
	return map[string]schema.GroupVersion{
		"Bucket": source, "GitRepository": source, "HelmChart": source, "HelmRepository": source, "OCIRepository": source, "ExternalArtifact": source,
		"Kustomization":   {Group: "kustomize.toolkit.fluxcd.io", Version: "v1"},
		"HelmRelease":     {Group: "helm.toolkit.fluxcd.io", Version: "v2"},
		"ImageRepository": image, "ImagePolicy": image, "ImageUpdateAutomation": image,
		"ArtifactGenerator": {Group: "source.extensions.fluxcd.io", Version: "v1beta1"},
	}
}

// kindOf is the kind that a reference names. Its version does not matter: the API server
// has every object in each.
func kindOf(ref *notificationv1.CrossNamespaceObjectReference) (schema.GroupVersionKind, error) {
	gv, ok := kinds()[ref.Kind]
	if !ok {
		return schema.GroupVersionKind{}, fmt.Errorf("cannot notify %s %s: the kind is none of Flux's", ref.Kind, ref.Name)
	}
	if ref.APIVersion != "" {
		named, err := schema.ParseGroupVersion(ref.APIVersion)
		if err != nil || named.Group != gv.Group {
			return schema.GroupVersionKind{}, fmt.Errorf("cannot notify %s %s: apiVersion is %s, but the kind is of %s", ref.Kind, ref.Name, ref.APIVersion, gv.Group)
		}
	}
	switch {
	case ref.Name == all && len(ref.MatchLabels) == 0:
		return schema.GroupVersionKind{}, fmt.Errorf("cannot notify %s %s: name * needs matchLabels", ref.Kind, ref.Name)
	case ref.Name != all && len(ref.MatchLabels) > 0:
		return schema.GroupVersionKind{}, fmt.Errorf("cannot notify %s %s: matchLabels need the name *", ref.Kind, ref.Name)
	}
	return gv.WithKind(ref.Kind), nil
}

// filterNames are the variables of filters, sorted, but for the object's own.
func filterNames(of string) []string {
	if of == notificationv1.GenericOIDCReceiver {
		return []string{"claims", "req", "res"}
	}
	return []string{"req", "res"}
}

// Push is a repository of which a request told that it has something new.
type Push struct {
	// URL is spec.url of the source that a Receiver named.
	URL string
	// Revision is the commit that the request told of, empty if it did not.
	Revision string
}

// Objects requests reconciles of what Receivers name. It is safe for concurrent use.
type Objects struct {
	// Reader reads from the API server.
	Reader   client.Reader
	Requests *request.Requests
	Workers  worker.Runner
	// NoCrossNamespaceRefs leaves objects of other namespaces alone.
	NoCrossNamespaceRefs bool
	// Tell is called with the repositories of the sources that were requested; nil if nobody
	// wants to know.
	Tell func(context.Context, []Push)
}

// errFilter is of a filter that cannot be evaluated over what a request says.
var errFilter = errors.New("cannot evaluate the filters of the Receiver over this request")

// request asks for the reconciles that a Receiver wants after a request, all of them even if
// some fail, and returns how many were asked for.
func (o *Objects) request(ctx context.Context, receiver *notificationv1.Receiver, v *verified) (int, error) {
	var errs []error
	wanted := map[request.Object]bool{}
	for i := range receiver.Spec.Resources {
		ref := &receiver.Spec.Resources[i]
		objects, err := o.named(ctx, receiver, ref, v)
		if err != nil {
			errs = append(errs, err)
		}
		for _, object := range objects {
			wanted[object] = true
		}
	}
	var mu sync.Mutex // guards errs and written
	var written []request.Object
	var writes sync.WaitGroup
	places := make(chan struct{}, mostWrites)
	for object := range wanted {
		// Others wait for the place of this request, so that a slow API server ends it.
		if !taken(ctx, places) {
			mu.Lock()
			errs = append(errs, fmt.Errorf("cannot notify all of %d objects: %w", len(wanted), context.Cause(ctx)))
			mu.Unlock()
			break
		}
		writes.Go(func() {
			defer func() { <-places }()
			err := o.Requests.Make(ctx, object)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				errs = append(errs, err)
				return
			}
			written = append(written, object)
		})
	}
	writes.Wait()
	if o.Tell != nil {
		if pushes := o.pushes(ctx, written, revisionOf(receiver.Spec.Type, v.payload)); len(pushes) > 0 {
			o.Tell(ctx, pushes)
		}
	}
	return len(written), errors.Join(errs...)
}

// named are the objects of one reference that its filters let pass.
func (o *Objects) named(ctx context.Context, receiver *notificationv1.Receiver, ref *notificationv1.ReceiverResource, v *verified) ([]request.Object, error) {
	gvk, err := kindOf(&ref.CrossNamespaceObjectReference)
	if err != nil {
		return nil, err
	}
	namespace := ref.Namespace
	if namespace == "" {
		namespace = receiver.Namespace
	}
	if namespace != receiver.Namespace && o.NoCrossNamespaceRefs {
		return nil, fmt.Errorf("cannot notify %s %s/%s: objects of other namespaces are refused", ref.Kind, namespace, ref.Name)
	}
	var filters []string
	for _, f := range []string{receiver.Spec.ResourceFilter, ref.Filter} {
		if f != "" {
			filters = append(filters, f)
		}
	}
	if ref.Name != all && len(filters) == 0 {
		return []request.Object{{GroupVersionKind: gvk, NamespacedName: types.NamespacedName{Namespace: namespace, Name: ref.Name}}}, nil
	}
	found, err := o.read(ctx, gvk, namespace, &ref.CrossNamespaceObjectReference)
	if err != nil || len(found) == 0 {
		return nil, err
	}
	passed, err := o.filter(ctx, receiver, filters, found, v)
	if err != nil {
		return nil, err
	}
	var objects []request.Object
	for i := range found {
		if passed == nil || passed[i] {
			objects = append(objects, request.Object{GroupVersionKind: gvk, NamespacedName: client.ObjectKeyFromObject(&found[i])})
		}
	}
	return objects, nil
}

// read reads the metadata of the objects that a reference is about.
func (o *Objects) read(ctx context.Context, gvk schema.GroupVersionKind, namespace string, ref *notificationv1.CrossNamespaceObjectReference) ([]metav1.PartialObjectMetadata, error) {
	if ref.Name != all {
		one := metav1.PartialObjectMetadata{}
		one.SetGroupVersionKind(gvk)
		if err := o.Reader.Get(ctx, types.NamespacedName{Namespace: namespace, Name: ref.Name}, &one); err != nil {
			return nil, fmt.Errorf("cannot read %s %s/%s: %w", ref.Kind, namespace, ref.Name, err)
		}
		one.SetGroupVersionKind(gvk)
		return []metav1.PartialObjectMetadata{one}, nil
	}
	var found []metav1.PartialObjectMetadata
	list := &metav1.PartialObjectMetadataList{}
	for {
		list.SetGroupVersionKind(gvk.GroupVersion().WithKind(gvk.Kind + "List"))
		if err := o.Reader.List(ctx, list, client.InNamespace(namespace), client.MatchingLabels(ref.MatchLabels),
			client.Limit(pageSize), client.Continue(list.Continue)); err != nil {
			return nil, fmt.Errorf("cannot list objects of kind %s in %s: %w", ref.Kind, namespace, err)
		}
		for i := range list.Items {
			list.Items[i].SetGroupVersionKind(gvk)
		}
		if found = append(found, list.Items...); len(found) > mostObjects {
			return nil, fmt.Errorf("cannot notify objects of kind %s in %s: more than %d have the labels", ref.Kind, namespace, mostObjects)
		}
		if list.Continue == "" {
			return found, nil
		}
	}
}

// filter reports which objects pass; nil for all of them.
func (o *Objects) filter(ctx context.Context, receiver *notificationv1.Receiver, filters []string, found []metav1.PartialObjectMetadata, v *verified) ([]bool, error) {
	if len(filters) == 0 {
		return nil, nil
	}
	if v.payload == nil {
		return nil, fmt.Errorf("%w: its body is no JSON object", errFilter)
	}
	f := expression.Filter{Texts: filters, Each: "res", Shared: map[string]map[string]any{"req": v.payload}}
	if receiver.Spec.Type == notificationv1.GenericOIDCReceiver {
		f.Shared["claims"] = v.claims
	}
	objects := make([]map[string]any, len(found))
	for i := range found {
		found[i].ManagedFields = nil
		object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&found[i])
		if err != nil {
			return nil, fmt.Errorf("cannot evaluate filters: %w", err)
		}
		objects[i] = object
	}
	passed, err := f.Select(ctx, workersFor(o.Workers, receiver), objects)
	if isTask(err) || worker.Lasting(err) || errors.Is(err, expression.ErrLate) {
		return nil, fmt.Errorf("%w: %w", errFilter, err)
	}
	return passed, err
}

// pushes are the repositories of those objects that are sources with a URL. One that cannot
// be read is left out: nobody relies on being told.
func (o *Objects) pushes(ctx context.Context, objects []request.Object, revision string) []Push {
	var pushes []Push
	for _, object := range objects {
		switch object.Kind {
		case "GitRepository", "OCIRepository", "HelmRepository":
		default:
			continue
		}
		u := &unstructured.Unstructured{}
		u.SetGroupVersionKind(object.GroupVersionKind)
		if err := o.Reader.Get(ctx, object.NamespacedName, u); err != nil {
			continue
		}
		if url, _, err := unstructured.NestedString(u.Object, "spec", "url"); err == nil && url != "" {
			pushes = append(pushes, Push{URL: url, Revision: revision})
		}
	}
	return pushes
}

// revisionOf is the commit that a Git server tells of, empty if it does not.
func revisionOf(of string, payload map[string]any) string {
	switch of {
	case notificationv1.GitHubReceiver, notificationv1.GitLabReceiver:
	default:
		return ""
	}
	after, _ := payload["after"].(string)
	if len(after) != 40 && len(after) != 64 {
		return ""
	}
	for _, c := range after {
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return ""
		}
	}
	return after
}

// onlyMissing reports whether all that failed is that objects are not there.
func onlyMissing(err error) bool {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		for _, e := range joined.Unwrap() {
			if !onlyMissing(e) {
				return false
			}
		}
		return true
	}
	return apierrors.IsNotFound(err)
}
