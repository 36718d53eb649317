package fleetsim

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"

	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

func (r *request) now() renewal { return r.cluster.renewal() }

func (r *request) record() *record {
	return r.cluster.objects[r.kind.key(r.action.namespace, r.action.name)]
}

func (r *request) notFound() answer {
	return answer{err: apierrors.NewNotFound(r.kind.resource(), r.action.name)}
}

// object answers with an object.
func (r *request) object(code int, o *record) answer {
	if r.partial {
		return answer{code: code, body: o.partial("PartialObjectMetadata", r.now())}
	}
	body := o.append(make([]byte, 0, len(o.content.body)+1024), form{version: r.version}, r.now())
	if o.version == 0 {
		body = bytes.Replace(body, []byte(`,"resourceVersion":"0"`), nil, 1) // a dry run
	}
	return answer{code: code, body: body}
}

// partial is the metadata of an object.
func (r *record) partial(as string, now renewal) []byte {
	var o struct {
		Metadata json.RawMessage `json:"metadata"`
	}
	_ = json.Unmarshal(r.append(nil, form{}, now), &o) // what append made
	return fmt.Appendf(nil, `{"kind":%q,"apiVersion":"meta.k8s.io/v1","metadata":%s}`, as, o.Metadata)
}

func (r *request) get() answer {
	o := r.record()
	if o == nil {
		return r.notFound()
	}
	return r.object(http.StatusOK, o)
}

// selection is what a list or watch asks for.
type selection struct {
	labels labels.Selector
	fields fields.Selector
}

func (r *request) selection() (selection, *apierrors.StatusError) {
	var s selection
	var err error
	if s.labels, err = labels.Parse(r.query.Get("labelSelector")); err != nil {
		return s, apierrors.NewBadRequest(err.Error())
	}
	if s.fields, err = fields.ParseSelector(r.query.Get("fieldSelector")); err != nil {
		return s, apierrors.NewBadRequest(err.Error())
	}
	for _, q := range s.fields.Requirements() {
		if q.Field != "metadata.name" && q.Field != "metadata.namespace" {
			return s, apierrors.NewBadRequest(fmt.Sprintf("field label not supported: %s", q.Field))
		}
	}
	return s, nil
}

func (s selection) matches(o *record) bool {
	return o.content.matches(s.labels) && (s.fields.Empty() || s.fields.Matches(fields.Set{"metadata.name": o.name, "metadata.namespace": o.namespace}))
}

func (r *request) list() answer {
	s, err := r.selection()
	if err != nil {
		return answer{err: err}
	}
	limit, _ := strconv.Atoi(r.query.Get("limit"))
	after := ""
	version := r.cluster.current()
	if token := r.query.Get("continue"); token != "" {
		text, err := base64.RawURLEncoding.DecodeString(token)
		at, key, ok := strings.Cut(string(text), " ")
		if err != nil || !ok {
			return answer{err: apierrors.NewBadRequest("continue key is not valid: " + token)}
		}
		version, _ = strconv.ParseUint(at, 10, 64)
		after = key
	}
	var found []*record
	for _, o := range r.cluster.list(r.kind, r.action.namespace) {
		if s.matches(o) && o.namespace+"/"+o.name > after {
			found = append(found, o)
		}
	}
	meta := metav1.ListMeta{ResourceVersion: strconv.FormatUint(version, 10)}
	if limit > 0 && len(found) > limit {
		last := found[limit-1]
		meta.Continue = base64.RawURLEncoding.EncodeToString(fmt.Appendf(nil, "%d %s/%s", version, last.namespace, last.name))
		if s.labels.Empty() && s.fields.Empty() {
			left := int64(len(found) - limit)
			meta.RemainingItemCount = &left
		}
		found = found[:limit]
	}
	text, _ := json.Marshal(meta) // our own type
	if r.kind.custom != nil && !r.partial && meta.Continue == "" {
		text = append([]byte(`{"continue":"",`), text[1:]...) // as they are there
	}
	now := r.now()
	kind, apiVersion, item := r.kind.List, r.kind.apiVersion(r.version), form{version: r.version, untyped: r.kind.custom == nil}
	if r.partial {
		kind, apiVersion = "PartialObjectMetadataList", "meta.k8s.io/v1"
	}
	body := fmt.Appendf(nil, `{"kind":%q,"apiVersion":%q,"metadata":%s,"items":[`, kind, apiVersion, text)
	for i, o := range found {
		if i > 0 {
			body = append(body, ',')
		}
		if r.partial {
			body = append(body, o.partial("PartialObjectMetadata", now)...)
		} else {
			body = o.append(body, item, now)
		}
	}
	return answer{code: http.StatusOK, body: append(body, ']', '}')}
}

// dry reports whether nothing is to be written.
func (r *request) dry() (bool, *apierrors.StatusError) {
	switch v := r.query["dryRun"]; {
	case len(v) == 0:
		return false, nil
	case slices.Equal(v, []string{metav1.DryRunAll}):
		return true, nil
	default:
		return false, apierrors.NewInvalid(schema.GroupKind{Group: metav1.GroupName, Kind: "PatchOptions"}, "", field.ErrorList{
			field.NotSupported(field.NewPath("dryRun"), v[0], []string{metav1.DryRunAll})})
	}
}

// manager is who writes: the one that the request names, or the program.
func (r *request) manager() string {
	if m := r.query.Get("fieldManager"); m != "" {
		return m
	}
	name, _, _ := strings.Cut(r.UserAgent(), "/")
	return name[:min(len(name), 128)]
}

func (r *request) write(op operation, body []byte) write {
	return write{
		kind: r.kind, version: r.version, subresource: r.action.sub, operation: op, namespace: r.action.namespace, name: r.action.name,
		body: sha256.Sum256(body), manager: r.manager(), force: r.query.Get("force") == "true",
	}
}

func (r *request) create() answer {
	dry, err := r.dry()
	if err != nil {
		return answer{err: err}
	}
	body, err := asJSON(r.Header.Get("Content-Type"), r.body)
	if err != nil {
		return answer{err: err}
	}
	if r.kind.Namespaced && r.action.namespace == "" {
		return answer{err: apierrors.NewBadRequest("an empty namespace may not be set during creation")}
	}
	w := r.write(opCreate, body)
	o := r.cluster.fleet.derive(w, func() ([]byte, error) { return body, nil }, nil, nil)
	if o.err != nil {
		return answer{err: o.err}
	}
	w.name = o.name
	if w.name == "" {
		// A name of its own makes it an object of its own.
		var object map[string]any
		if err := utiljson.Unmarshal(body, &object); err != nil {
			return answer{err: apierrors.NewBadRequest(err.Error())}
		}
		w.name = o.generated + rand.String(5)
		child(object, "metadata")["name"] = w.name
		body, _ = json.Marshal(object) // it came out of JSON
		w.body = sha256.Sum256(body)
		if o = r.cluster.fleet.derive(w, func() ([]byte, error) { return body, nil }, nil, nil); o.err != nil {
			return answer{err: o.err}
		}
	}
	if o.version != "" {
		return answer{err: apierrors.NewBadRequest("resourceVersion should not be set on objects to be created")}
	}
	r.action.name = w.name
	if err := r.admitNew(w); err != nil {
		return answer{err: err}
	}
	if r.cluster.objects[w.kind.key(w.namespace, w.name)] != nil {
		return answer{err: apierrors.NewAlreadyExists(w.kind.resource(), w.name)}
	}
	return r.finish(w, o, nil, dry)
}

func (r *request) admitNew(w write) *apierrors.StatusError {
	if !w.kind.Namespaced {
		return nil
	}
	return r.cluster.namespaceUsable(w.kind, w.namespace, w.name)
}

func (r *request) replace() answer {
	dry, err := r.dry()
	if err != nil {
		return answer{err: err}
	}
	body, err := asJSON(r.Header.Get("Content-Type"), r.body)
	if err != nil {
		return answer{err: err}
	}
	w := r.write(opReplace, body)
	before := r.record()
	if before == nil {
		return r.notFound()
	}
	o := r.cluster.fleet.derive(w, func() ([]byte, error) { return body, nil }, before.content, before.managed)
	return r.finish(w, o, before, dry)
}

func (r *request) patch() answer {
	dry, err := r.dry()
	if err != nil {
		return answer{err: err}
	}
	contentType, _, _ := strings.Cut(r.Header.Get("Content-Type"), ";")
	accepted := []string{string(types.JSONPatchType), string(types.MergePatchType), string(types.StrategicMergePatchType), string(types.ApplyYAMLPatchType)}
	if r.kind.custom != nil {
		accepted = slices.DeleteFunc(accepted, func(t string) bool { return t == string(types.StrategicMergePatchType) })
	}
	op := operation(contentType)
	if !slices.Contains(accepted, contentType) {
		if r.kind.custom != nil {
			return answer{err: unsupported(accepted...)}
		}
		return answer{err: &apierrors.StatusError{ErrStatus: metav1.Status{
			Status: metav1.StatusFailure, Code: http.StatusUnsupportedMediaType, Reason: metav1.StatusReasonUnsupportedMediaType,
			Message: "415: Unsupported Media Type", Details: &metav1.StatusDetails{},
		}}}
	}
	w := r.write(op, r.body)
	before := r.record()
	switch {
	case op == opApply && r.query.Get("fieldManager") == "":
		return answer{err: apierrors.NewInvalid(schema.GroupKind{Group: metav1.GroupName, Kind: "PatchOptions"}, "", field.ErrorList{
			field.Required(field.NewPath("fieldManager"), "is required for apply patch")})}
	case op != opApply && r.query.Has("force"):
		return answer{err: apierrors.NewInvalid(schema.GroupKind{Group: metav1.GroupName, Kind: "PatchOptions"}, "", field.ErrorList{
			field.Forbidden(field.NewPath("force"), "may not be specified for non-apply patch")})}
	case before == nil && (op != opApply || w.subresource != ""):
		return r.notFound()
	case before == nil:
		o := r.cluster.fleet.derive(w, func() ([]byte, error) { return r.body, nil }, nil, nil)
		if o.err != nil {
			return answer{err: o.err}
		}
		// An apply that expects an object does not create one.
		if o.uid != "" {
			return answer{err: apierrors.NewConflict(r.kind.resource(), w.name, fmt.Errorf("uid mismatch: the provided object specified uid %s, and no existing object was found", o.uid))}
		}
		if o.version != "" && o.version != "0" {
			return r.notFound()
		}
		// An apply may create what its user may create only.
		creation := r.action
		creation.verb = "create"
		if !r.cluster.allowed(r.user, creation) {
			r.action = creation
			return answer{err: r.forbidden(r.action)}
		}
		if err := r.admitNew(w); err != nil {
			return answer{err: err}
		}
		return r.finish(w, o, nil, dry)
	}
	o := r.cluster.fleet.derive(w, func() ([]byte, error) { return r.body, nil }, before.content, before.managed)
	return r.finish(w, o, before, dry)
}

// finish checks what an outcome expects of the object, and writes it.
func (r *request) finish(w write, o outcome, before *record, dry bool) answer {
	if o.err != nil {
		return answer{err: o.err}
	}
	if before != nil {
		if err := w.expect(before, o, r.now()); err != nil {
			return answer{err: err}
		}
	}
	if w.kind.Group == rbacGroup && (before == nil || before.content != o.content) {
		object, err := o.content.object()
		if err != nil {
			return answer{err: apierrors.NewInternalError(err)}
		}
		if err := r.cluster.escalates(r.user, w.kind, w.namespace, w.name, object); err != nil {
			return answer{err: err}
		}
	}
	after, err := r.cluster.commit(w, o, before, dry)
	if err != nil {
		return answer{err: err}
	}
	r.changed = after != before && !dry
	code := http.StatusOK
	if before == nil {
		code = http.StatusCreated
	}
	return r.object(code, after)
}

// expect holds an object against what a writer believes of it.
func (w *write) expect(o *record, made outcome, now renewal) *apierrors.StatusError {
	uid, version := made.uid, made.version
	conflict := func(text string) *apierrors.StatusError {
		return apierrors.NewConflict(o.kind.resource(), o.name, fmt.Errorf("%s", text))
	}
	if uid != "" && uid != o.uid.String() && w.operation == opApply {
		changed := field.Invalid(field.NewPath("metadata", "uid"), uid, immutable)
		return apierrors.NewInvalid(o.kind.gvk(w.version).GroupKind(), o.name, field.ErrorList{changed, changed}) // it says so twice
	}
	if uid != "" && uid != o.uid.String() {
		return conflict(fmt.Sprintf("Precondition failed: UID in precondition: %s, UID in object meta: %s", uid, o.uid))
	}
	if version == "" || version == "0" {
		return nil
	}
	if _, err := strconv.ParseUint(version, 10, 64); err != nil {
		return apierrors.NewInvalid(o.kind.gvk(o.kind.stored).GroupKind(), o.name, field.ErrorList{field.Invalid(field.NewPath("metadata", "resourceVersion"), version, err.Error())})
	}
	if version != strconv.FormatUint(o.at(now), 10) {
		return conflict("the object has been modified; please apply your changes to the latest version and try again")
	}
	return nil
}

func (r *request) delete() answer {
	options := metav1.DeleteOptions{}
	if len(r.body) > 0 {
		body, err := asJSON(r.Header.Get("Content-Type"), r.body)
		if err != nil {
			return answer{err: err}
		}
		if err := utiljson.Unmarshal(body, &options); err != nil {
			return answer{err: apierrors.NewBadRequest(err.Error())}
		}
	}
	if r.query.Has("dryRun") {
		options.DryRun = r.query["dryRun"]
	}
	o := r.record()
	if o == nil {
		return r.notFound()
	}
	if p := options.Preconditions; p != nil {
		recorded := schema.GroupResource{Group: r.kind.Group, Resource: r.kind.Kind}
		if p.UID != nil && string(*p.UID) != o.uid.String() {
			return answer{err: apierrors.NewConflict(recorded, o.name, fmt.Errorf("the UID in the precondition (%s) does not match the UID in record (%s). The object might have been deleted and then recreated", *p.UID, o.uid))}
		}
		if version := strconv.FormatUint(o.at(r.now()), 10); p.ResourceVersion != nil && *p.ResourceVersion != version {
			return answer{err: apierrors.NewConflict(recorded, o.name, fmt.Errorf("the ResourceVersion in the precondition (%s) does not match the ResourceVersion in record (%s). The object might have been modified", *p.ResourceVersion, version))}
		}
	}
	if len(options.DryRun) > 0 {
		return r.deleted(o)
	}
	r.changed = true
	gone, err := r.cluster.remove(o)
	if err != nil {
		return answer{err: err}
	}
	if gone != nil {
		return r.object(http.StatusOK, gone)
	}
	return r.deleted(o)
}

// deleted says that an object is gone.
func (r *request) deleted(o *record) answer {
	if o.kind.Returned {
		return r.object(http.StatusOK, o)
	}
	return statusAnswer(metav1.Status{Status: metav1.StatusSuccess, Details: &metav1.StatusDetails{
		Name: o.name, Group: o.kind.Group, Kind: o.kind.Plural, UID: types.UID(o.uid.String()),
	}})
}

func (r *request) deleteAll() answer {
	s, err := r.selection()
	if err != nil {
		return answer{err: err}
	}
	all := r.list()
	for _, o := range r.cluster.list(r.kind, r.action.namespace) {
		if s.matches(o) && !r.query.Has("dryRun") {
			r.changed = true
			if _, err := r.cluster.remove(o); err != nil {
				return answer{err: err}
			}
		}
	}
	return all
}

// token issues a token for a ServiceAccount.
func (r *request) token() answer {
	if r.Method != http.MethodPost {
		return r.notAllowed()
	}
	account := r.record()
	if account == nil {
		return r.notFound()
	}
	body, err := asJSON(r.Header.Get("Content-Type"), r.body)
	if err != nil {
		return answer{err: err}
	}
	request := &authenticationv1.TokenRequest{}
	if err := utiljson.Unmarshal(body, request); err != nil {
		return answer{err: apierrors.NewBadRequest(err.Error())}
	}
	if s := request.Spec.ExpirationSeconds; s != nil && *s < minTokenSeconds {
		return answer{err: apierrors.NewInvalid(schema.GroupKind{Group: "authentication.k8s.io", Kind: "TokenRequest"}, "", field.ErrorList{
			field.Invalid(field.NewPath("spec", "expirationSeconds"), *s, "may not specify a duration less than 10 minutes")})}
	}
	r.changed = true
	r.cluster.issue(account, request)
	request.UID = types.UID(account.uid.String())
	request.Kind, request.APIVersion = "TokenRequest", "authentication.k8s.io/v1"
	text, _ := json.Marshal(request) // a type of Kubernetes
	return answer{code: http.StatusCreated, body: text}
}
