package fleetsim

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"mime"
	"net/http"
	"strings"
	"sync"

	"gopkg.in/evanphx/json-patch.v4"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"sigs.k8s.io/yaml"
)

// write is what a request, or a controller, does to one object. Its outcome
// depends on nothing but it and the object's content and managers.
type write struct {
	kind            *kind
	version         string
	subresource     string
	operation       operation
	namespace, name string
	body            digest
	manager         string
	force           bool
}

type operation string

const (
	opCreate    operation = "create"
	opReplace   operation = "replace"
	opApply     operation = operation(types.ApplyPatchType)
	opMerge     operation = operation(types.MergePatchType)
	opJSON      operation = operation(types.JSONPatchType)
	opStrategic operation = operation(types.StrategicMergePatchType)
	// opControl is what a controller does.
	opControl operation = "control"
)

// outcome of a write.
type outcome struct {
	content *content
	managed *managedSet
	// What the body says of the object as it must be.
	uid, version string
	// name that the body gives to a new object; generated is its beginning.
	name, generated string
	err             *apierrors.StatusError
}

// outcomes remembers outcomes of writes that many clusters see.
type outcomes struct {
	mu    sync.Mutex
	known map[outcomeKey]outcome
}

type outcomeKey struct {
	write   write
	content *content
	managed *managedSet
}

// maxOutcomes bounds what is remembered. Most of it is of objects that no two
// clusters have alike.
const maxOutcomes = 4096

// derive computes what a write makes of an object, nil if there is none.
// body is asked for only if nobody did the same before.
func (f *Fleet) derive(w write, body func() ([]byte, error), live *content, managed *managedSet) outcome {
	key := outcomeKey{write: w, content: live, managed: managed}
	f.outcomes.mu.Lock()
	known, ok := f.outcomes.known[key]
	f.outcomes.mu.Unlock()
	if ok {
		return known
	}
	text, err := body()
	if err != nil {
		return failed(err)
	}
	made := f.compute(w, text, live, managed)
	f.outcomes.mu.Lock()
	defer f.outcomes.mu.Unlock()
	if len(f.outcomes.known) >= maxOutcomes {
		drop := maxOutcomes / 4
		for k := range f.outcomes.known {
			if drop--; drop < 0 {
				break
			}
			delete(f.outcomes.known, k)
		}
	}
	f.outcomes.known[key] = made
	return made
}

func failed(err error) outcome {
	var status *apierrors.StatusError
	if errors.As(err, &status) {
		return outcome{err: status}
	}
	// As kube-apiserver answers with an error that it does not know.
	return outcome{err: &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusInternalServerError, Message: err.Error(),
	}}}
}

func (f *Fleet) compute(w write, body []byte, live *content, managed *managedSet) outcome {
	k := w.kind
	gvk := k.gvk(w.version)
	before := &unstructured.Unstructured{Object: map[string]any{}}
	if live != nil {
		object, err := live.object()
		if err != nil {
			return failed(err)
		}
		before.Object = object
		before.SetManagedFields(managed.with(make([]int64, len(managed.entries))))
	}
	before.SetGroupVersionKind(gvk)
	manager, err := k.manager(w.version, w.subresource)
	if err != nil {
		return failed(err)
	}
	out := outcome{}
	var after *unstructured.Unstructured
	switch w.operation {
	case opApply:
		patch := &unstructured.Unstructured{}
		if err := yaml.Unmarshal(body, &patch.Object); err != nil {
			return failed(apierrors.NewBadRequest(fmt.Sprintf("error decoding YAML: %v", err)))
		}
		if err := w.check(patch, body); err != nil {
			return failed(err)
		}
		out.uid, out.version = string(patch.GetUID()), patch.GetResourceVersion()
		unstructured.RemoveNestedField(patch.Object, "metadata", "uid")
		unstructured.RemoveNestedField(patch.Object, "metadata", "resourceVersion")
		unstructured.RemoveNestedField(patch.Object, "metadata", "creationTimestamp")
		merged, err := manager.Apply(before.DeepCopy(), patch, w.manager, w.force)
		if err != nil {
			return failed(err)
		}
		after = merged.(*unstructured.Unstructured)
		if err := k.complete(w.version, after.Object); err != nil {
			return failed(err)
		}
	default:
		object, err := w.changed(before, body)
		if err != nil {
			return failed(err)
		}
		after = &unstructured.Unstructured{Object: object}
		if w.operation == opControl {
			after.SetGroupVersionKind(gvk)
		}
		if w.operation == opCreate || w.operation == opReplace {
			if err := w.check(after, body); err != nil {
				return failed(err)
			}
		}
		out.uid, out.version = string(after.GetUID()), after.GetResourceVersion()
		after.SetUID("")
		after.SetResourceVersion("")
		unstructured.RemoveNestedField(after.Object, "metadata", "creationTimestamp")
		unstructured.RemoveNestedField(after.Object, "metadata", "generation")
		out.name, out.generated = after.GetName(), after.GetGenerateName()
		if live == nil {
			after.SetManagedFields(nil)
		}
		if err := k.complete(w.version, after.Object); err != nil {
			return failed(err)
		}
		after = manager.UpdateNoErrors(before.DeepCopy(), after, w.manager).(*unstructured.Unstructured)
	}
	if (live == nil || after.GetNamespace() == "") && w.namespace != "" {
		after.SetNamespace(w.namespace)
	}
	if after.GetName() == "" {
		after.SetName(w.name)
	}
	entries := after.GetManagedFields()
	after.SetManagedFields(nil)
	before.SetManagedFields(nil)
	w.prepare(before.Object, after.Object, live != nil)
	if k.custom == nil {
		// Once more, so that what was prepared looks as what comes in.
		if err := k.complete(w.version, after.Object); err != nil {
			return failed(err)
		}
	}
	if err := w.validate(before.Object, after.Object, live != nil); err != nil {
		return failed(err)
	}
	content, err := f.store.content(k, after.Object)
	if err != nil {
		return failed(err)
	}
	out.content, out.managed = content, f.store.managedSet(entries)
	return out
}

// check holds an object of a request against its address.
func (w *write) check(u *unstructured.Unstructured, body []byte) error {
	gvk := w.kind.gvk(w.version)
	got := u.GroupVersionKind()
	switch {
	case u.GetKind() == "" && u.GetAPIVersion() == "" && w.kind.custom == nil && w.operation != opApply:
		u.SetGroupVersionKind(gvk) // the address says it
	case u.GetKind() == "":
		return w.unrecognized("Kind", body)
	case u.GetAPIVersion() == "":
		return w.unrecognized("apiVersion", body)
	case got != gvk && w.operation == opApply:
		return apierrors.NewBadRequest("invalid object type: " + got.String())
	case got.GroupVersion() != gvk.GroupVersion() && w.kind.custom == nil && !typedScheme.Recognizes(got):
		return apierrors.NewBadRequest(fmt.Sprintf("%s in version %q cannot be handled as a %s: no kind %q is registered for version %q in scheme \"pkg/runtime/scheme.go:111\"",
			gvk.Kind, gvk.Version, gvk.Kind, got.Kind, got.GroupVersion()))
	case got.GroupVersion() != gvk.GroupVersion():
		return apierrors.NewBadRequest(fmt.Sprintf("the API version in the data (%s) does not match the expected API version (%s)", got.GroupVersion(), gvk.GroupVersion()))
	case got.Kind != gvk.Kind:
		return apierrors.NewBadRequest(fmt.Sprintf("%s in version %q cannot be handled as a %s", got.Kind, got.Version, gvk.Kind))
	}
	if w.kind.Namespaced {
		if ns := u.GetNamespace(); ns != "" && ns != w.namespace {
			return apierrors.NewBadRequest("the namespace of the provided object does not match the namespace sent on the request")
		}
	}
	if w.operation == opCreate {
		return nil
	}
	switch name := u.GetName(); {
	case name == "" && w.operation == opApply:
		u.SetName(w.name)
	case name != w.name && w.operation == opApply:
		return apierrors.NewBadRequest(fmt.Sprintf("the name of the object (%s) does not match the name on the URL (%s)", name, w.name))
	case name != w.name:
		return apierrors.NewBadRequest(fmt.Sprintf("the name of the object (%s) does not match the name on the URL (%s)", name, w.name))
	}
	return nil
}

// unrecognized is how kube-apiserver refuses a body that does not say what it is.
func (w *write) unrecognized(missing string, body []byte) error {
	const most = 30
	summary := string(body)
	if len(summary) > most {
		summary = summary[:most] + " ..."
	}
	return apierrors.NewBadRequest(fmt.Sprintf("the object provided is unrecognized (must be of type %s): Object '%s' is missing in '%s' (%s)", w.kind.Kind, missing, body, summary))
}

// changed is the object that a write other than an apply asks for.
func (w *write) changed(before *unstructured.Unstructured, body []byte) (map[string]any, error) {
	switch w.operation {
	case opCreate, opReplace, opControl:
		var object map[string]any
		if err := utiljson.Unmarshal(body, &object); err != nil {
			return nil, apierrors.NewBadRequest(err.Error())
		}
		return object, nil
	}
	live, err := json.Marshal(before.Object)
	if err != nil {
		return nil, fmt.Errorf("cannot encode object: %w", err)
	}
	var text []byte
	switch w.operation {
	case opMerge:
		text, err = jsonpatch.MergePatch(live, body)
	case opJSON:
		var patch jsonpatch.Patch
		if patch, err = jsonpatch.DecodePatch(body); err != nil {
			return nil, apierrors.NewBadRequest(err.Error())
		}
		if text, err = patch.Apply(live); err != nil {
			return nil, apierrors.NewGenericServerResponse(http.StatusUnprocessableEntity, "", schema.GroupResource{}, "", err.Error(), 0, false)
		}
	case opStrategic:
		typed, nerr := typedScheme.New(w.kind.gvk(w.version))
		if nerr != nil {
			return nil, fmt.Errorf("cannot patch %s: %w", w.kind.Kind, nerr)
		}
		text, err = strategicpatch.StrategicMergePatch(live, body, typed)
	}
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	var object map[string]any
	if err := utiljson.Unmarshal(text, &object); err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	return object, nil
}

// prepare takes back what the writer may not change.
func (w *write) prepare(before, after map[string]any, exists bool) {
	if w.subresource == "status" {
		status := after["status"]
		clear(after)
		maps.Copy(after, runtime.DeepCopyJSON(before))
		delete(after, "status")
		if status != nil {
			after["status"] = status
		}
		return
	}
	if exists {
		// What the API server itself keeps.
		from, to := before["metadata"].(map[string]any), after["metadata"].(map[string]any)
		for _, key := range []string{"deletionTimestamp", "deletionGracePeriodSeconds"} {
			delete(to, key)
			if v, ok := from[key]; ok {
				to[key] = v
			}
		}
	}
	if !w.kind.statusOf(w.version) || w.operation == opControl {
		return
	}
	delete(after, "status")
	if status, ok := before["status"]; ok && exists {
		after["status"] = runtime.DeepCopyJSONValue(status)
	} else if !exists {
		w.kind.initialStatus(after)
	}
}

// universal reads what typed clients write, also as protobuf.
var universal = serializer.NewCodecFactory(typedScheme).UniversalDeserializer()

// asJSON turns the body of a request into JSON.
func asJSON(contentType string, body []byte) ([]byte, *apierrors.StatusError) {
	media, _, err := mime.ParseMediaType(contentType)
	if err != nil && contentType != "" {
		media = contentType
	}
	switch media {
	case "", jsonType:
		return body, nil
	case "application/yaml":
		text, err := yaml.YAMLToJSON(body)
		if err != nil {
			return nil, apierrors.NewBadRequest(err.Error())
		}
		return text, nil
	case runtime.ContentTypeProtobuf:
		if len(body) == 0 {
			return body, nil
		}
		object, _, err := universal.Decode(body, nil, nil)
		if err != nil {
			return nil, apierrors.NewBadRequest(err.Error())
		}
		text, err := json.Marshal(object)
		if err != nil {
			return nil, apierrors.NewBadRequest(err.Error())
		}
		return text, nil
	}
	return nil, unsupported(jsonType, "application/yaml", runtime.ContentTypeProtobuf)
}

func unsupported(accepted ...string) *apierrors.StatusError {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusUnsupportedMediaType, Reason: metav1.StatusReasonUnsupportedMediaType,
		Message: "the body of the request was in an unknown format - accepted media types include: " + strings.Join(accepted, ", "),
	}}
}

// commit makes the outcome of a write the cluster's state, or only says what it
// would be. The cluster is locked.
func (c *Cluster) commit(w write, o outcome, before *record, dry bool) (*record, *apierrors.StatusError) {
	now := c.now().Unix()
	after := &record{kind: w.kind, namespace: w.namespace, name: w.name, content: o.content, managed: o.managed, generation: 1, created: now}
	if before == nil {
		after.times = o.managed.inherit(nil, nil, now)
		after.uid = c.newUID(w.kind.Kind, w.namespace, w.name)
	} else {
		if before.content == o.content && before.managed == o.managed {
			return before, nil
		}
		after.times = o.managed.inherit(before.managed, before.times, now)
		after.uid, after.created, after.generation, after.version = before.uid, before.created, before.generation, before.version
		after.renewing = before.renewing
		if before.content.intent != o.content.intent {
			after.generation++
		}
	}
	if dry {
		if before == nil {
			after.version = 0
		}
		return after, nil
	}
	after.version = c.next()
	if after.content.leaving && !after.content.finalized {
		c.drop(before)
		return after, nil
	}
	c.put(before, after)
	c.react(before, after)
	return after, nil
}

// control is a write of a controller; it changes what it gets. The cluster is
// locked.
func (c *Cluster) control(r *record, manager, subresource, what string, change func(object map[string]any)) *record {
	w := write{kind: r.kind, version: r.kind.stored, subresource: subresource, operation: opControl, namespace: r.namespace, name: r.name, manager: manager, body: sha256.Sum256([]byte(what))}
	o := c.fleet.derive(w, func() ([]byte, error) {
		object, err := r.content.object()
		if err != nil {
			return nil, err
		}
		change(object)
		return json.Marshal(object)
	}, r.content, r.managed)
	if o.err != nil {
		c.fleet.complain(fmt.Errorf("controller %s cannot write %s %s/%s of %s: %w", manager, r.kind.Kind, r.namespace, r.name, c.Name, o.err))
		return r
	}
	after, _ := c.commit(w, o, r, false)
	return after
}
