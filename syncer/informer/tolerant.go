package informer

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	kubejson "k8s.io/apimachinery/pkg/runtime/serializer/json"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
)

// tolerant reads the objects of one kind, each by itself.
type tolerant struct {
	of  *Informers
	gvk schema.GroupVersionKind

	mu      sync.Mutex
	client  rest.Interface
	mapping *meta.RESTMapping
}

// open makes the client when it is first needed: the kind may not be served before.
func (t *tolerant) open() (rest.Interface, string, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.client != nil {
		return t.client, t.mapping.Resource.Resource, nil
	}
	transport, mapping, err := t.of.transport(t.gvk.GroupKind(), t.gvk.Version)
	if err != nil {
		return nil, "", err
	}
	config := rest.CopyConfig(t.of.config)
	gv := t.gvk.GroupVersion()
	config.GroupVersion, config.APIPath = &gv, "/apis"
	config.ContentType, config.AcceptContentTypes = runtime.ContentTypeJSON, runtime.ContentTypeJSON
	config.NegotiatedSerializer = unread{serializer.NewCodecFactory(t.of.scheme)}
	client, err := rest.RESTClientForConfigAndClient(config, transport)
	if err != nil {
		return nil, "", fmt.Errorf("cannot make client for %s: %w", t.gvk.Kind, err)
	}
	t.client, t.mapping = client, mapping
	return client, mapping.Resource.Resource, nil
}

// list is a list whose items nobody has read.
type list struct {
	metav1.ListMeta `json:"metadata"`
	Items           []json.RawMessage `json:"items"`
}

// ListWithContext implements cache.ListerWatcherWithContext.
func (t *tolerant) ListWithContext(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
	client, resource, err := t.open()
	if err != nil {
		return nil, err
	}
	body, err := client.Get().Resource(resource).VersionedParams(&o, metav1.ParameterCodec).Do(ctx).Raw()
	if err != nil {
		return nil, err
	}
	var read list
	if err := json.Unmarshal(body, &read); err != nil {
		return nil, fmt.Errorf("cannot read list of %s: %w", t.gvk.Kind, err)
	}
	objects := make([]runtime.Object, 0, len(read.Items))
	for _, raw := range read.Items {
		o, err := t.decode(raw)
		if err != nil {
			return nil, err
		}
		objects = append(objects, o)
	}
	result, err := t.of.scheme.New(t.gvk.GroupVersion().WithKind(t.gvk.Kind + "List"))
	if err != nil {
		return nil, err
	}
	if err := meta.SetList(result, objects); err != nil {
		return nil, fmt.Errorf("cannot make list of %s: %w", t.gvk.Kind, err)
	}
	about, err := meta.ListAccessor(result)
	if err != nil {
		return nil, err
	}
	about.SetResourceVersion(read.ResourceVersion)
	about.SetContinue(read.Continue)
	about.SetRemainingItemCount(read.RemainingItemCount)
	return result, nil
}

// WatchWithContext implements cache.ListerWatcherWithContext.
func (t *tolerant) WatchWithContext(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	client, resource, err := t.open()
	if err != nil {
		return nil, err
	}
	o.Watch = true
	w, err := client.Get().Resource(resource).VersionedParams(&o, metav1.ParameterCodec).Watch(ctx)
	if err != nil {
		return nil, err
	}
	return watch.Filter(w, func(e watch.Event) (watch.Event, bool) {
		raw, ok := e.Object.(*runtime.Unknown)
		if !ok {
			return e, true
		}
		object, err := t.decode(raw.Raw)
		if err != nil {
			// Not even its name can be read: the reflector lists anew.
			return watch.Event{Type: watch.Error, Object: &metav1.Status{Status: metav1.StatusFailure, Message: err.Error()}}, true
		}
		e.Object = object
		return e, true
	}), nil
}

// decode reads one object, and tells of one that cannot be read as it is.
func (t *tolerant) decode(raw []byte) (runtime.Object, error) {
	o, without, err := decode(t.of.scheme, t.gvk, raw)
	if err != nil {
		return nil, fmt.Errorf("cannot read an object of kind %s: %w", t.gvk.Kind, err)
	}
	if without != "" {
		about, _ := meta.Accessor(o)
		t.of.log.Info("cannot read object as it is", "kind", t.gvk.Kind, "namespace", about.GetNamespace(), "name", about.GetName(), "without", without, "why", about.GetAnnotations()[v1alpha1.UnreadAnnotation])
	}
	return o, nil
}

// decode reads an object of a kind. without names the parts that were left out because they
// cannot be read; empty if there are none.
func decode(scheme *runtime.Scheme, gvk schema.GroupVersionKind, raw []byte) (o runtime.Object, without string, err error) {
	read := func(raw []byte) (runtime.Object, error) {
		into, err := scheme.New(gvk)
		if err != nil {
			return nil, err
		}
		o, _, err := kubejson.NewSerializerWithOptions(kubejson.DefaultMetaFactory, scheme, scheme, kubejson.SerializerOptions{}).Decode(raw, &gvk, into)
		return o, err
	}
	if o, err = read(raw); err == nil {
		return o, "", nil
	}
	var content map[string]any
	if jerr := json.Unmarshal(raw, &content); jerr != nil {
		return nil, "", jerr
	}
	whole, _ := content["status"].(map[string]any)
	for _, spec := range []string{"", "spec"} {
		if spec != "" {
			hold(content, read)
		}
		// The status stays as far as it can be read, whatever is wrong with the spec.
		status := maps.Clone(whole)
		if status != nil {
			content["status"] = status
		}
		for _, part := range []string{"", "status.history", "status.conditions", "status"} {
			if part == "status" {
				delete(content, "status")
			} else {
				delete(status, strings.TrimPrefix(part, "status."))
			}
			rest, jerr := json.Marshal(content)
			if jerr != nil {
				return nil, "", jerr
			}
			if o, err = read(rest); err == nil {
				return o, strings.Trim(spec+", "+part, ", "), nil
			}
		}
	}
	return nil, "", err
}

// hold suspends an object whose spec cannot be read, and has it say why. The fields of the spec that can be
// read stay: what the object answers for stays its own, as what a Rollout moves, or the clusters of a Layer.
func hold(content map[string]any, read func([]byte) (runtime.Object, error)) {
	spec, _ := content["spec"].(map[string]any)
	kept, why := map[string]any{}, "spec cannot be read"
	for _, field := range slices.Sorted(maps.Keys(spec)) {
		one, err := json.Marshal(map[string]any{"apiVersion": content["apiVersion"], "kind": content["kind"], "spec": map[string]any{field: spec[field]}})
		if err == nil {
			_, err = read(one)
		}
		if err != nil {
			why = fmt.Sprintf("cannot read spec.%s: %v", field, err)
			continue
		}
		kept[field] = spec[field]
	}
	kept["suspend"] = true
	content["spec"] = kept
	if about, ok := content["metadata"].(map[string]any); ok {
		annotations, _ := about["annotations"].(map[string]any)
		if annotations == nil {
			annotations = map[string]any{}
		}
		annotations[v1alpha1.UnreadAnnotation] = why
		about["annotations"] = annotations
	}
}

// unread is a serializer whose decoder leaves objects as they came, but for a Status.
type unread struct{ serializer.CodecFactory }

// SupportedMediaTypes implements runtime.NegotiatedSerializer.
func (u unread) SupportedMediaTypes() []runtime.SerializerInfo {
	for _, info := range u.CodecFactory.SupportedMediaTypes() {
		if info.MediaType == runtime.ContentTypeJSON {
			return []runtime.SerializerInfo{info}
		}
	}
	return nil
}

// DecoderToVersion implements runtime.NegotiatedSerializer.
func (u unread) DecoderToVersion(runtime.Decoder, runtime.GroupVersioner) runtime.Decoder {
	return unreadDecoder{u.UniversalDeserializer()}
}

// unreadDecoder decodes a Status, and nothing else.
type unreadDecoder struct{ runtime.Decoder }

// Decode implements runtime.Decoder.
func (d unreadDecoder) Decode(data []byte, defaults *schema.GroupVersionKind, into runtime.Object) (runtime.Object, *schema.GroupVersionKind, error) {
	// Most are not, and are read once only.
	if bytes.Contains(data, []byte(`"Status"`)) {
		var kind metav1.TypeMeta
		if err := json.Unmarshal(data, &kind); err == nil && kind.Kind == "Status" && kind.APIVersion == "v1" {
			return d.Decoder.Decode(data, defaults, into)
		}
	}
	return &runtime.Unknown{Raw: bytes.Clone(data), ContentType: runtime.ContentTypeJSON}, &schema.GroupVersionKind{}, nil
}
