package fleet

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"mime"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/deploy"
	"github.com/cascade-gitops/cascade/e2e/fleetsim"
	"github.com/cascade-gitops/cascade/e2e/scenario"
)

// TestFleetsimIsFaithful sends the same requests to a simulated cluster and to a
// real API server, one after the other, and compares the answers. What the
// benchmark of the fleet says rests on this.
func TestFleetsimIsFaithful(t *testing.T) {
	scenario.Alongside(t)
	real, simulated := realServer(t), simulatedServer(t)
	steps := conformance(t)
	if len(steps) < 60 {
		t.Fatalf("only %d requests are compared", len(steps))
	}
	for _, s := range steps {
		t.Run(s.name, func(t *testing.T) {
			want := real.ask(t, s)
			got := simulated.ask(t, s)
			if want.code != got.code {
				t.Errorf("code: want %d, got %d; because %s", want.code, got.code, s.reason)
			}
			if want.contentType != got.contentType {
				t.Errorf("content type: want %q, got %q", want.contentType, got.contentType)
			}
			if diff := cmp.Diff(want.body, got.body); diff != "" {
				t.Errorf("-real, +simulated:\n%s", diff)
			}
		})
	}
}

// exchange is one request.
type exchange struct {
	name   string
	reason string
	method string
	path   string
	// as is who asks: empty is the administrator, "nobody" sends no credential,
	// anything else is a remembered token.
	as          string
	contentType string
	accept      string
	body        string
	// keep remembers the UID, version or token of the answer under a name, for
	// $name-uid, $name-version and $name-token of later requests.
	keep string
	// only these fields of the answer are compared, by a path of keys.
	only []string
	// without these fields, by a path of keys, of every item of a list.
	without []string
	// until are words that the answer must contain before it counts: the real server
	// does some things a moment later.
	until string
}

type asked struct {
	code        int
	contentType string
	body        any
}

// server is one of the two.
type server struct {
	base      string
	admin     *http.Client
	anonymous *http.Client
	kept      map[string]string
}

func newServer(t *testing.T, config *rest.Config) *server {
	t.Helper()
	admin, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	anonymous, err := rest.HTTPClientFor(rest.AnonymousClientConfig(config))
	if err != nil {
		t.Fatal(err)
	}
	return &server{base: config.Host, admin: admin, anonymous: anonymous, kept: map[string]string{}}
}

func realServer(t *testing.T) *server {
	t.Helper()
	return newServer(t, scenario.StartAPIServer(t).Config)
}

func simulatedServer(t *testing.T) *server {
	t.Helper()
	f, err := fleetsim.Start(fleetsim.Options{Complain: func(err error) { t.Errorf("inside of the simulation: %v", err) }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Close(); err != nil {
			t.Errorf("cannot close the fleet: %v", err)
		}
	})
	c, err := f.Add("one")
	if err != nil {
		t.Fatal(err)
	}
	text, err := c.Kubeconfig(fleetsim.Certificate, 0)
	if err != nil {
		t.Fatal(err)
	}
	config, err := clientcmd.RESTConfigFromKubeConfig(text)
	if err != nil {
		t.Fatal(err)
	}
	return newServer(t, config)
}

// ask sends a request until the answer counts.
func (s *server) ask(t *testing.T, q exchange) asked {
	t.Helper()
	var code int
	var contentType string
	var body []byte
	scenario.Eventually(t, scenario.Converge, q.name, func(ctx context.Context) error {
		var err error
		if code, contentType, body, err = s.send(ctx, q); err != nil {
			return err
		}
		if slices.ContainsFunc(strings.Fields(q.until), func(word string) bool { return !strings.Contains(string(body), word) }) {
			return fmt.Errorf("%s: %s", q.path, body)
		}
		return nil
	})
	media, parameters, _ := mime.ParseMediaType(contentType)
	a := asked{code: code, contentType: mime.FormatMediaType(media, parameters)}
	var decoded any
	if media != "application/json" || json.Unmarshal(body, &decoded) != nil {
		var events []any
		for line := range bytes.Lines(body) {
			var event any
			if json.Unmarshal(line, &event) == nil {
				events = append(events, event)
			}
		}
		if media != "application/json" || len(events) < 2 {
			a.body = hide(string(body))
			return a
		}
		decoded = events
	}
	s.remember(q.keep, decoded)
	if len(q.only) > 0 {
		picked := map[string]any{}
		for _, path := range q.only {
			picked[path] = at(decoded, strings.Split(path, "."))
		}
		decoded = picked
	}
	for _, path := range q.without {
		drop(decoded, strings.Split(path, "."))
	}
	a.body = normal("", decoded)
	return a
}

func (s *server) send(ctx context.Context, q exchange) (int, string, []byte, error) {
	c := s.admin
	if q.as != "" {
		c = s.anonymous
	}
	req, err := http.NewRequestWithContext(ctx, q.method, s.base+s.expand(q.path), strings.NewReader(s.expand(q.body)))
	if err != nil {
		return 0, "", nil, err
	}
	req.Header.Set("User-Agent", "conformance/v1")
	if q.body == "" {
		req.Body = nil
	} else if q.contentType == "" {
		req.Header.Set("Content-Type", "application/json")
	} else {
		req.Header.Set("Content-Type", q.contentType)
	}
	if q.accept != "" {
		req.Header.Set("Accept", q.accept)
	}
	if q.as != "" && q.as != "nobody" {
		req.Header.Set("Authorization", "Bearer "+s.expand(q.as))
	}
	resp, err := c.Do(req)
	if err != nil {
		return 0, "", nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return resp.StatusCode, resp.Header.Get("Content-Type"), body, err
}

func (s *server) expand(text string) string {
	for key, v := range s.kept {
		text = strings.ReplaceAll(text, "$"+key, v)
	}
	return text
}

func (s *server) remember(name string, answer any) {
	if name == "" {
		return
	}
	for key, path := range map[string][]string{
		"uid": {"metadata", "uid"}, "version": {"metadata", "resourceVersion"}, "continue": {"metadata", "continue"}, "token": {"status", "token"},
	} {
		if v, ok := at(answer, path).(string); ok {
			s.kept[name+"-"+key] = v
		}
	}
}

// at is a field of an answer; list items are numbers.
func at(v any, path []string) any {
	for _, key := range path {
		switch o := v.(type) {
		case map[string]any:
			v = o[key]
		case []any:
			i, err := strconv.Atoi(key)
			if err != nil || i >= len(o) {
				return nil
			}
			v = o[i]
		default:
			return nil
		}
	}
	return v
}

// drop takes a field out of an answer.
func drop(v any, path []string) {
	switch o := v.(type) {
	case map[string]any:
		if len(path) == 1 {
			delete(o, path[0])
			return
		}
		drop(o[path[0]], path[1:])
	case []any:
		for _, c := range o {
			drop(c, path)
		}
	}
}

var (
	anyUID     = regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`)
	anyVersion = regexp.MustCompile(`(ResourceVersion in (precondition|object meta|the precondition|record):? \(?)[0-9]+`)
	storageKey = regexp.MustCompile(`StorageError: invalid object, Code: 4, Key: [^,]*, ResourceVersion: 0, AdditionalErrorMsg: `)
)

// hide makes texts comparable that name what differs.
func hide(text string) string {
	text = anyUID.ReplaceAllString(text, "UID")
	text = anyVersion.ReplaceAllString(text, "${1}VERSION")
	return storageKey.ReplaceAllString(text, "")
}

// normal replaces what differs between two servers that behave the same.
func normal(key string, v any) any {
	switch o := v.(type) {
	case map[string]any:
		for k, c := range o {
			o[k] = normal(k, c)
		}
		return o
	case []any:
		for i, c := range o {
			o[i] = normal("", c)
		}
		// The order of managers that wrote within one second is by chance, and so is
		// that in which the kinds of a group come to be served.
		if key == "managedFields" || key == "resources" {
			slices.SortStableFunc(o, func(a, b any) int { return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) })
		}
		return o
	case string:
		switch key {
		case "uid":
			return "UID"
		case "resourceVersion":
			return "VERSION"
		case "creationTimestamp", "deletionTimestamp", "time", "lastTransitionTime", "expirationTimestamp":
			return "TIME"
		case "token", "continue":
			if o != "" {
				return strings.ToUpper(key)
			}
		case "manager":
			if o == "controlplane" {
				return "kube-apiserver" // the program has another name here
			}
		}
		return hide(o)
	}
	return v
}

const (
	applyType = string(types.ApplyYAMLPatchType)
	mergeType = string(types.MergePatchType)
)

// conformance is the table of requests, in order.
func conformance(t *testing.T) []exchange {
	t.Helper()
	const cms = "/api/v1/namespaces/conform/configmaps"
	get := func(name, path, reason string) exchange {
		return exchange{name: name, method: "GET", path: path, reason: reason}
	}
	post := func(name, path, body, reason string) exchange {
		return exchange{name: name, method: "POST", path: path, body: body, reason: reason}
	}
	patch := func(name, path, contentType, body, reason string) exchange {
		return exchange{name: name, method: "PATCH", path: path, contentType: contentType, body: body, reason: reason}
	}
	ssa := func(name, path, body, reason string) exchange { return patch(name, path, applyType, body, reason) }
	keep := func(s exchange, as string) exchange { s.keep = as; return s }
	with := func(s exchange, f func(*exchange)) exchange { f(&s); return s }
	cm := func(name, rest string) string {
		return fmt.Sprintf(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":%q},%s}`, name, rest)
	}
	steps := []exchange{
		with(get("Version", "/version", "the version of Kubernetes"), func(s *exchange) { s.only = []string{"major", "minor", "gitVersion"} }),
		get("Readyz", "/readyz", "a server that is ready"),
		get("UnknownPath", "/nope", "no such path"),
		get("UnknownCoreKind", "/api/v1/nopes", "no such kind"),
		get("UnknownGroup", "/apis/nope.example.com/v1/nopes", "no such group"),
		get("UnknownVersion", "/apis/apps/v9/deployments", "no such version"),
		with(get("Anonymous", cms, "somebody without a credential"), func(s *exchange) { s.as = "nobody" }),
		with(get("WrongToken", cms, "a credential that is none"), func(s *exchange) { s.as = "wrong" }),
		with(get("AnonymousVersion", "/version", "everybody may know the version"), func(s *exchange) { s.as, s.only = "nobody", []string{"gitVersion"} }),
		get("Group", "/apis/coordination.k8s.io", "discovery of a group with one kind and version"),
		with(get("CoreVersions", "/api", "discovery of the core"), func(s *exchange) { s.without = []string{"serverAddressByClientCIDRs.serverAddress"} }),

		get("AbsentNamespace", "/api/v1/namespaces/conform", "not created yet"),
		post("CreateInAbsentNamespace", cms, cm("a", `"data":{"k":"v"}`), "the namespace is missing"),
		get("GetInAbsentNamespace", cms+"/a", "the object is what is missing"),
		get("ListInAbsentNamespace", cms, "a list of nothing"),
		post("CreateNamespace", "/api/v1/namespaces", `{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"conform"}}`, "defaults of a Namespace"),
		ssa("ApplyNamespace", "/api/v1/namespaces/conform?fieldManager=seed&force=true", `{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"conform","labels":{"a":"b"}}}`, "a second manager"),
		post("BadNamespaceName", "/api/v1/namespaces", `{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"a.b"}}`, "a name that is no label"),
		get("KubeSystem", "/api/v1/namespaces/kube-system", "what every cluster has"),

		keep(post("Create", cms, cm("a", `"data":{"k":"v"}`), "managed fields of a create"), "a"),
		post("CreateAgain", cms, cm("a", `"data":{"k":"v"}`), "it exists"),
		post("CreateWithoutName", cms, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{}}`, "no name"),
		post("CreateWithBadName", cms, cm("A_b", `"data":{}`), "an invalid name"),
		post("CreateOtherVersion", cms, `{"apiVersion":"apps/v1","kind":"ConfigMap","metadata":{"name":"b"}}`, "another API version than the address has"),
		post("CreateInOtherNamespace", cms, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"b","namespace":"default"}}`, "another namespace than the address has"),
		post("CreateWithVersion", cms, cm("b", `"data":{}`), "an empty map is none"),
		with(post("CreateOfUnknownType", cms, "x", "a body of no known type"), func(s *exchange) { s.contentType = "text/plain" }),
		with(post("CreateYAML", cms, "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: yaml}\ndata: {k: v}\n", "YAML"), func(s *exchange) { s.contentType = "application/yaml" }),
		post("CreateDryRun", cms+"?dryRun=All", cm("dry", `"data":{"k":"v"}`), "nothing is written"),
		get("GetDryRun", cms+"/dry", "nothing was written"),
		get("Get", cms+"/a", "what was created"),
		with(get("GetMetadata", cms+"/a", "metadata only"), func(s *exchange) { s.accept = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1" }),
		with(get("GetUnacceptable", cms+"/a", "no form that the server has"), func(s *exchange) { s.accept = "text/html" }),

		ssa("ApplyNew", cms+"/s?fieldManager=one", cm("s", `"data":{"k":"v","l":"w"}`), "an apply creates"),
		ssa("ApplySame", cms+"/s?fieldManager=one", cm("s", `"data":{"k":"v","l":"w"}`), "an apply that changes nothing"),
		ssa("ApplyConflict", cms+"/s?fieldManager=two", cm("s", `"data":{"k":"other"}`), "a field of another manager"),
		ssa("ApplyShared", cms+"/s?fieldManager=two", cm("s", `"data":{"k":"v","m":"x"}`), "the same value is shared"),
		ssa("ApplyForced", cms+"/s?fieldManager=two&force=true", cm("s", `"data":{"k":"other"}`), "force takes the field; what is no longer applied goes"),
		ssa("ApplyLess", cms+"/s?fieldManager=one", cm("s", `"metadata":{"name":"s","labels":{"x":"y"}}`), "what a manager leaves out goes"),
		ssa("ApplyDryRun", cms+"/s?fieldManager=one&dryRun=All", cm("s", `"data":{"z":"z"}`), "what would be"),
		ssa("ApplyWithoutManager", cms+"/s", cm("s", `"data":{}`), "a manager is required"),
		ssa("ApplyOtherName", cms+"/s?fieldManager=one", cm("t", `"data":{}`), "another name than the address has"),
		ssa("ApplyManagedFields", cms+"/s?fieldManager=one", `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"s","managedFields":[{"manager":"x"}]}}`, "managed fields are not applied"),
		ssa("ApplyUIDOfNothing", cms+"/none?fieldManager=one", `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"none","uid":"0b1a7a2c-0000-4000-8000-000000000000"}}`, "no object has the UID"),
		ssa("ApplyWrongUID", cms+"/s?fieldManager=one", `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"s","uid":"0b1a7a2c-0000-4000-8000-000000000000"}}`, "the object has another UID"),
		ssa("ApplyStale", cms+"/s?fieldManager=one", `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"s","resourceVersion":"1"},"data":{"q":"q"}}`, "an old version"),
		ssa("ApplyOtherAPIVersion", cms+"/s?fieldManager=one", `{"apiVersion":"v2","kind":"ConfigMap","metadata":{"name":"s"}}`, "another API version than the address has"),
		ssa("ApplyUnknownField", cms+"/s?fieldManager=one", cm("s", `"spec":{"a":"b"}`), "a field that the kind does not have"),
		ssa("ApplyWrongType", cms+"/s?fieldManager=one", cm("s", `"data":["a"]`), "a list where a map belongs"),
		ssa("ApplyYAML", cms+"/s?fieldManager=one", "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: s\ndata:\n  k2: v2\n", "YAML"),
		ssa("ApplyInAbsentNamespace", "/api/v1/namespaces/absent/configmaps/s?fieldManager=one", cm("s", `"data":{"k":"v"}`), "the namespace is missing"),

		{name: "Replace", method: "PUT", path: cms + "/a", body: cm("a", `"data":{"k":"w"}`), reason: "without a version", keep: "a2"},
		{name: "ReplaceStale", method: "PUT", path: cms + "/a", body: `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a","resourceVersion":"$a-version"},"data":{"k":"x"}}`, reason: "an old version"},
		{name: "ReplaceWrongUID", method: "PUT", path: cms + "/a", body: `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a","uid":"0b1a7a2c-0000-4000-8000-000000000000"}}`, reason: "another UID"},
		{name: "ReplaceAbsent", method: "PUT", path: cms + "/none", body: cm("none", `"data":{}`), reason: "nothing to replace"},
		{name: "ReplaceOtherName", method: "PUT", path: cms + "/a", body: cm("b", `"data":{}`), reason: "another name than the address has"},
		patch("Merge", cms+"/a", mergeType, `{"metadata":{"labels":{"l":"1"}},"data":{"n":"m"}}`, "a merge"),
		patch("MergeRemoves", cms+"/a", mergeType, `{"data":{"n":null}}`, "null removes"),
		patch("MergeAbsent", cms+"/none", mergeType, `{}`, "nothing to patch"),
		patch("MergeStale", cms+"/a", mergeType, `{"metadata":{"resourceVersion":"$a-version"},"data":{"n":"m"}}`, "an old version"),
		patch("JSONPatch", cms+"/a", "application/json-patch+json", `[{"op":"add","path":"/data/j","value":"p"}]`, "a JSON patch"),
		patch("StrategicMerge", cms+"/a", "application/strategic-merge-patch+json", `{"metadata":{"labels":{"m":"2"}}}`, "a strategic merge"),
		patch("UnknownPatch", cms+"/a", "application/x-patch", `{}`, "no such patch"),

		post("CreateLabelled", cms, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"l","labels":{"app":"x"}}}`, "for the selectors"),
		get("List", cms, "all of a namespace"),
		get("ListLabelled", cms+"?labelSelector=app%3Dx", "by label"),
		get("ListUnlabelled", cms+"?labelSelector=!app,!kubernetes.io/none", "by the absence of a label"),
		get("ListBadSelector", cms+"?labelSelector=a%3D%3D%3Db", "a selector that is none"),
		get("ListByName", cms+"?fieldSelector=metadata.name%3Da", "by name"),
		keep(get("ListPage", cms+"?limit=2", "the first page"), "page"),
		get("ListNextPage", cms+"?limit=2&continue=$page-continue", "the next page"),
		with(get("ListMetadata", cms, "metadata only"), func(s *exchange) {
			s.accept = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
		}),
		{name: "PostToObject", method: "POST", path: cms + "/a", body: cm("a", `"data":{}`), reason: "not a collection"},
		{name: "PutToCollection", method: "PUT", path: cms, body: cm("a", `"data":{}`), reason: "not an object"},
		get("UnknownSubresource", cms+"/a/nope", "no such subresource"),

		keep(post("CreateFinalized", cms, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"f","finalizers":["example.com/hold"]}}`, "a finalizer"), "f"),
		{name: "DeleteWrongUID", method: "DELETE", path: cms + "/l", body: `{"preconditions":{"uid":"0b1a7a2c-0000-4000-8000-000000000000"}}`, reason: "another UID"},
		{name: "DeleteStale", method: "DELETE", path: cms + "/l", body: `{"preconditions":{"resourceVersion":"1"}}`, reason: "an old version"},
		{name: "DeleteDryRun", method: "DELETE", path: cms + "/l?dryRun=All", reason: "nothing goes"},
		{name: "Delete", method: "DELETE", path: cms + "/l", reason: "it goes"},
		{name: "DeleteAgain", method: "DELETE", path: cms + "/l", reason: "it is gone"},
		{name: "DeleteFinalized", method: "DELETE", path: cms + "/f", reason: "it waits for its finalizer"},
		{name: "DeleteFinalizedAgain", method: "DELETE", path: cms + "/f", reason: "it waits already"},
		patch("Finalize", cms+"/f", mergeType, `{"metadata":{"finalizers":null}}`, "the last finalizer goes, and the object"),
		get("GetFinalized", cms+"/f", "it is gone"),

		post("CreateImmutable", cms, cm("i", `"immutable":true,"data":{"k":"v"}`), "it cannot be changed"),
		patch("ChangeImmutable", cms+"/i", mergeType, `{"data":{"k":"w"}}`, "it cannot be changed"),
		post("CreateSecret", "/api/v1/namespaces/conform/secrets", `{"apiVersion":"v1","kind":"Secret","metadata":{"name":"s"},"stringData":{"k":"v"}}`, "text becomes data"),
		ssa("ApplySecret", "/api/v1/namespaces/conform/secrets/t?fieldManager=one", `{"apiVersion":"v1","kind":"Secret","metadata":{"name":"t"},"data":{"k":"dg=="}}`, "the type is a default"),
		patch("ChangeSecretType", "/api/v1/namespaces/conform/secrets/s", mergeType, `{"type":"example.com/x"}`, "the type stays"),
	}
	steps = append(steps, rightsConformance(get, post, patch, keep, with)...)
	return append(steps, kindConformance(t, get, post, patch, ssa, keep, with)...)
}

type (
	stepOf  = func(name, path, reason string) exchange
	stepTo  = func(name, path, body, reason string) exchange
	patchTo = func(name, path, contentType, body, reason string) exchange
)

// rightsConformance is about ServiceAccounts, their tokens and what they may do.
func rightsConformance(get stepOf, post stepTo, patch patchTo, keep func(exchange, string) exchange, with func(exchange, func(*exchange)) exchange) []exchange {
	const accounts = "/api/v1/namespaces/conform/serviceaccounts"
	const rbac = "/apis/rbac.authorization.k8s.io/v1"
	as := func(s exchange) exchange { return with(s, func(s *exchange) { s.as = "$account-token" }) }
	return []exchange{
		post("CreateAccount", accounts, `{"apiVersion":"v1","kind":"ServiceAccount","metadata":{"name":"parent"}}`, "an account"),
		with(keep(post("RequestToken", accounts+"/parent/token", `{"apiVersion":"authentication.k8s.io/v1","kind":"TokenRequest","spec":{"expirationSeconds":3600}}`, "a token"), "account"), func(s *exchange) { s.without = []string{"metadata.managedFields"} }),
		post("RequestShortToken", accounts+"/parent/token", `{"apiVersion":"authentication.k8s.io/v1","kind":"TokenRequest","spec":{"expirationSeconds":60}}`, "ten minutes at least"),
		post("RequestTokenOfNobody", accounts+"/none/token", `{"apiVersion":"authentication.k8s.io/v1","kind":"TokenRequest","spec":{}}`, "no such account"),
		as(get("ForbiddenGet", "/api/v1/namespaces/conform/configmaps/a", "no right yet")),
		as(get("ForbiddenClusterGet", "/api/v1/namespaces/kube-system", "no right yet")),
		as(get("DiscoverAsAccount", "/apis/coordination.k8s.io", "everybody who is known may discover")),
		as(get("ForbiddenPath", "/metrics", "no right to the path")),
		post("CreateClusterRole", rbac+"/clusterroles", `{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"ClusterRole","metadata":{"name":"parent"},"rules":[`+
			`{"apiGroups":[""],"resources":["configmaps"],"verbs":["get","list","patch"]},{"apiGroups":[""],"resources":["namespaces"],"resourceNames":["kube-system"],"verbs":["get","list"]},`+
			`{"apiGroups":["rbac.authorization.k8s.io"],"resources":["clusterroles","clusterrolebindings"],"verbs":["create","patch","get"]}]}`, "rights"),
		post("CreateClusterRoleBinding", rbac+"/clusterrolebindings", `{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"ClusterRoleBinding","metadata":{"name":"parent"},`+
			`"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"parent"},"subjects":[{"kind":"ServiceAccount","name":"parent","namespace":"conform"}]}`, "defaults of a binding"),
		with(as(get("AllowedGet", "/api/v1/namespaces/conform/configmaps/a", "a right")), func(s *exchange) { s.until = `"resourceVersion"` }),
		as(get("AllowedByName", "/api/v1/namespaces/kube-system", "a right to one name")),
		with(as(post("AskForAccess", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", `{"apiVersion":"authorization.k8s.io/v1","kind":"SelfSubjectAccessReview","spec":{"resourceAttributes":{"verb":"get","resource":"namespaces","name":"default"}}}`, "a right that one does not have")), func(s *exchange) { s.without = []string{"metadata"} }),
		with(as(post("AskForAllowedAccess", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", `{"apiVersion":"authorization.k8s.io/v1","kind":"SelfSubjectAccessReview","spec":{"resourceAttributes":{"verb":"get","resource":"namespaces","name":"kube-system"}}}`, "a right that one has")), func(s *exchange) {
			s.without = []string{"metadata", "status.reason"} // the names of roles and bindings
		}),
		with(as(post("AskWhoOneIs", "/apis/authentication.k8s.io/v1/selfsubjectreviews", `{"apiVersion":"authentication.k8s.io/v1","kind":"SelfSubjectReview"}`, "who the token is")), func(s *exchange) {
			s.without = []string{"metadata", "status.userInfo.extra"}
		}),
		as(get("ForbiddenByName", "/api/v1/namespaces/default", "no right to another name")),
		with(as(get("AllowedListByName", "/api/v1/namespaces?fieldSelector=metadata.name%3Dkube-system", "a right to one name is one to list it by its name")), func(s *exchange) {
			s.without = []string{"metadata", "items.metadata"}
		}),
		as(get("ForbiddenListByName", "/api/v1/namespaces?fieldSelector=metadata.name%3Ddefault", "no right to another name")),
		as(get("ForbiddenList", "/api/v1/namespaces", "a right to one name is none to list all")),
		as(get("ForbiddenSubresource", "/api/v1/namespaces/kube-system/status", "no right to the subresource")),
		as(patch("ForbiddenCreateByApply", "/api/v1/namespaces/conform/configmaps/new?fieldManager=one", applyType, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"new"}}`, "to apply what is not there is to create it")),
		as(patch("AllowedApply", "/api/v1/namespaces/conform/configmaps/a?fieldManager=one&force=true", applyType, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a"},"data":{"by":"account"}}`, "to apply what is there is to patch it")),
		as(post("EscalateByRole", rbac+"/clusterroles", `{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"ClusterRole","metadata":{"name":"more"},"rules":[`+
			`{"apiGroups":[""],"resources":["secrets"],"verbs":["get","list"]}]}`, "nobody gives what he has not")),
		as(post("EscalateByBinding", rbac+"/clusterrolebindings", `{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"ClusterRoleBinding","metadata":{"name":"more"},`+
			`"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"cluster-admin"},"subjects":[{"kind":"ServiceAccount","name":"parent","namespace":"conform"}]}`, "nobody binds what he has not")),
		as(post("GiveWhatOneHas", rbac+"/clusterroles", `{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"ClusterRole","metadata":{"name":"same"},"rules":[`+
			`{"apiGroups":[""],"resources":["configmaps"],"verbs":["get"]}]}`, "what one has may be given")),
		patch("ChangeRoleRef", rbac+"/clusterrolebindings/parent", mergeType, `{"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"view"}}`, "it cannot be changed"),
		{name: "DeleteAccount", method: "DELETE", path: accounts + "/parent", reason: "the answer is the account"},
		with(as(get("GetAsDeleted", "/api/v1/namespaces/conform/configmaps/a", "the token lapsed with its account")), func(s *exchange) { s.until = "Unauthorized" }),
	}
}

// kindConformance is about definitions, custom resources and what agents are made
// of.
func kindConformance(t *testing.T, get stepOf, post stepTo, patch patchTo, ssa stepTo, keep func(exchange, string) exchange, with func(exchange, func(*exchange)) exchange) []exchange {
	t.Helper()
	const definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
	const layers = "/apis/cascade.dev/v1alpha1/namespaces/conform/layers"
	encode := func(v any) string {
		text, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	crds, err := deploy.CRDs()
	if err != nil {
		t.Fatal(err)
	}
	rights, workload, err := deploy.Agent(deploy.Options{AgentValues: v1alpha1.AgentValues{Image: "registry.example.com/cascade:v1", Args: []string{"--log-level=debug"}}})
	if err != nil {
		t.Fatal(err)
	}
	steps := []exchange{get("UndefinedKind", layers, "not defined yet")}
	for _, crd := range crds {
		name := crd.GetName()
		steps = append(steps,
			ssa("Define/"+name, definitions+"/"+name+"?fieldManager=seed&force=true", encode(crd.Object), "a definition"),
			with(get("Established/"+name, definitions+"/"+name, "it is established a moment later"), func(s *exchange) { s.until = `"InitialNamesAccepted"` }),
		)
	}
	layer := func(name, spec string) string {
		return fmt.Sprintf(`{"apiVersion":"cascade.dev/v1alpha1","kind":"Layer","metadata":{"name":%q},"spec":%s}`, name, spec)
	}
	const spec = `{"clusterSelector":{"matchLabels":{"a":"b"}}`
	steps = append(steps,
		with(get("DefinedGroup", "/apis/cascade.dev", "discovery of a custom group"), func(s *exchange) { s.until = `"v1alpha1"` }),
		with(get("DefinedVersion", "/apis/cascade.dev/v1alpha1", "discovery of a custom version"), func(s *exchange) {
			s.until, s.without = `"layers/status" "children/status"`, []string{"resources.storageVersionHash"}
		}),
		with(get("DefinedVersions", "/apis/source.toolkit.fluxcd.io", "a group with several kinds"), func(s *exchange) { s.until = `"v1"` }),
		with(get("CustomList", layers, "a list of nothing"), func(s *exchange) { s.until = "LayerList" }),
		get("CustomAbsent", layers+"/a", "no such object"),
		get("CustomUnknownVersion", "/apis/cascade.dev/v1/namespaces/conform/layers", "no such version"),
		post("CustomInvalid", layers, layer("a", `{"clusterSelector":{},"deletionPolicy":"Maybe"}`), "the schema does not allow it"),
		post("CustomMalformed", layers, layer("a", `{"clusterSelector":{},"interval":"soon"}`), "the schema does not match it"),
		post("CustomIncomplete", layers, layer("a", `{"wait":true}`), "the schema requires more"),
		post("CustomRule", layers, layer("a", spec+`,"serviceAccountName":"x","agent":{}}`), "a rule in CEL does not allow it"),
		post("CustomWithoutKind", layers, `{"metadata":{"name":"a"}}`, "a custom resource must say what it is"),
		keep(post("CustomCreate", layers, layer("a", spec+`,"unknown":1}`), "defaults, and without what is unknown"), "layer"),
		ssa("CustomApply", layers+"/b?fieldManager=seed", layer("b", spec+`,"credentials":[{"name":"x","secretRef":{"name":"y"}}],"dependsOn":[{"name":"c"}]}`), "lists with keys"),
		ssa("CustomApplySame", layers+"/b?fieldManager=seed", layer("b", spec+`,"credentials":[{"name":"x","secretRef":{"name":"y"}}],"dependsOn":[{"name":"c"}]}`), "nothing changes"),
		ssa("CustomApplyMore", layers+"/b?fieldManager=more", layer("b", `{"credentials":[{"name":"z","secretRef":{"name":"y"}}]}`), "two managers of one list"),
		ssa("CustomApplyConflict", layers+"/b?fieldManager=more", layer("b", `{"clusterSelector":{"matchLabels":{"a":"c"}}}`), "a field of another manager"),
		ssa("CustomApplyUnknown", layers+"/b?fieldManager=seed", layer("b", spec+`,"unknown":1}`), "a field that the schema does not have"),
		ssa("CustomApplyInvalid", layers+"/b?fieldManager=seed", layer("b", spec+`,"deletionPolicy":"Maybe"}`), "the schema does not allow it"),
		patch("CustomLabel", layers+"/b", mergeType, `{"metadata":{"labels":{"x":"y"}}}`, "the generation stays"),
		patch("CustomChange", layers+"/b", mergeType, `{"spec":{"wait":true}}`, "the generation counts"),
		patch("CustomStatusByMain", layers+"/b", mergeType, `{"status":{"observedGeneration":7}}`, "the status is not written here"),
		patch("CustomStatus", layers+"/b/status", mergeType, `{"metadata":{"labels":{"no":"no"}},"spec":{"wait":false},"status":{"observedGeneration":7,"conditions":[{"type":"Ready","status":"True","reason":"Succeeded","message":"","lastTransitionTime":"2026-01-01T00:00:00Z"}]}}`, "only the status is written"),
		ssa("CustomStatusApply", layers+"/b/status?fieldManager=status&force=true", `{"apiVersion":"cascade.dev/v1alpha1","kind":"Layer","metadata":{"name":"b"},"status":{"revision":"main@sha1:1"}}`, "the status is applied"),
		patch("CustomStatusOfNothing", layers+"/none/status", mergeType, `{"status":{}}`, "no such object"),
		patch("CustomStrategic", layers+"/b", "application/strategic-merge-patch+json", `{}`, "not for custom resources"),
		get("CustomItems", layers, "custom items have their type"),
		with(get("CustomMetadata", layers, "metadata only"), func(s *exchange) {
			s.accept = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json"
		}),
		get("Watch", layers+"?watch=true&resourceVersion=$layer-version&timeoutSeconds=1", "everything since a version"),
		exchange{name: "CustomDelete", method: "DELETE", path: layers + "/a", reason: "it goes"},
		exchange{name: "CustomDeleteAll", method: "DELETE", path: layers + "?labelSelector=x%3Dy", reason: "what is selected goes"},
		get("CustomGone", layers+"/b", "it is gone"),
	)
	plural := map[string]string{
		"Namespace": "/api/v1/namespaces/%s", "ServiceAccount": "/api/v1/namespaces/cascade-system/serviceaccounts/%s",
		"ResourceQuota":                    "/api/v1/namespaces/cascade-system/resourcequotas/%s",
		"ClusterRole":                      "/apis/rbac.authorization.k8s.io/v1/clusterroles/%s",
		"ClusterRoleBinding":               "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/%s",
		"ValidatingAdmissionPolicy":        "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies/%s",
		"ValidatingAdmissionPolicyBinding": "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings/%s",
		"Deployment":                       "/apis/apps/v1/namespaces/cascade-system/deployments/%s",
	}
	for _, u := range append(rights, workload...) {
		path, ok := plural[u.GetKind()]
		if !ok {
			t.Fatalf("no address for kind %s", u.GetKind())
		}
		path = fmt.Sprintf(path, u.GetName())
		steps = append(steps,
			ssa("Agent/"+u.GetKind()+"/"+u.GetName(), path+"?fieldManager=seed&force=true", encode(u.Object), "what an agent is made of"),
			with(ssa("AgentAgain/"+u.GetKind()+"/"+u.GetName(), path+"?fieldManager=seed&force=true", encode(u.Object), "nothing changes"), func(s *exchange) {
				if u.GetKind() != "Deployment" { // which controllers of the simulation answered for
					return
				}
				s.without = []string{"status", "metadata.managedFields"}
			}))
	}
	return append(steps,
		post("DeploymentWithoutSelector", "/apis/apps/v1/namespaces/conform/deployments", `{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"d"},"spec":{"template":{"metadata":{"labels":{"a":"b"}},"spec":{"containers":[{"name":"c","image":"i"}]}}}}`, "a selector is required"),
	)
}
