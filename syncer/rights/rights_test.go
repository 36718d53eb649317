package rights

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	authzv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/inventory"
	"github.com/cascade-gitops/cascade/syncer/digest"
	"github.com/cascade-gitops/cascade/syncer/directive"
	"github.com/cascade-gitops/cascade/syncer/memo"
	"github.com/cascade-gitops/cascade/syncer/observed"
)

// world answers as an API server, and takes down what it is asked and what owners are told.
type world struct {
	now time.Time

	mu sync.Mutex
	// denied are questions, as "user verb resource namespace/name"; a name of "" denies all.
	denied map[string]bool
	// broken is what questions fail with.
	broken error
	// incomplete: others than RBAC decide.
	incomplete  bool
	asked, told []string
	facts       map[string]Facts
}

type account struct {
	*world
	user string
}

func (a account) Create(_ context.Context, o client.Object, _ ...client.CreateOption) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch review := o.(type) {
	case *authzv1.SelfSubjectRulesReview:
		review.Status.Incomplete = a.incomplete
		return nil
	case *authzv1.SelfSubjectAccessReview:
		w := review.Spec.ResourceAttributes
		group := fmt.Sprintf("%s %s %s %s/", a.user, w.Verb, w.Resource, w.Namespace)
		a.asked = append(a.asked, group+w.Name)
		review.Status.Allowed = !a.denied[group] && !a.denied[group+w.Name]
		if w.Name == "" {
			// Rules that name objects allow nothing of all.
			for denied := range a.denied {
				review.Status.Allowed = review.Status.Allowed && !strings.HasPrefix(denied, group)
			}
		}
		return a.broken
	}
	return fmt.Errorf("cannot review %T", o)
}

func (w *world) Facts(_ context.Context, owner types.NamespacedName, _ bool) (Facts, error) {
	return w.facts[owner.Name], nil
}

func (w *world) tell(text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.told = append(w.told, text)
}

func (w *world) Lost(owner types.NamespacedName, objects []inventory.Entry) {
	for _, e := range objects {
		w.tell(fmt.Sprintf("%s lost %s %s/%s", owner.Name, e.Kind, e.Namespace, e.Name))
	}
}

func (w *world) Look(owner types.NamespacedName) { w.tell(owner.Name + " looks") }

// take returns what was asked and told since the last time, sorted.
func (w *world) take() (asked, told []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	asked, told = w.asked, w.told
	w.asked, w.told = nil, nil
	slices.Sort(asked)
	slices.Sort(told)
	return asked, told
}

func (w *world) clock() time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.now
}

// begin makes Rights of two owners in namespaces a and b, each with an account of its own,
// whose watch has begun.
func begin(t *testing.T) (*world, *Rights) {
	t.Helper()
	w := &world{now: noon, denied: map[string]bool{}, facts: map[string]Facts{
		"a": {Verb: Patch, Objects: []inventory.Entry{configMap("a", "one"), configMap("a", "two"), {Kind: "Namespace", Version: "v1", Name: "a"}}},
		"b": {Verb: Patch, Objects: []inventory.Entry{configMap("b", "one")}},
	}}
	r := New(Options{
		Agent: account{w, "agent"}, As: func(user string) (Account, error) { return account{w, user[strings.LastIndex(user, ":")+1:]}, nil },
		Mapper: mapper(), Now: w.clock, Random: func() float64 { return 0.5 },
	})
	r.Serve(w)
	r.askOthers(t.Context())
	r.accountsListed(map[types.NamespacedName]struct{}{{Namespace: "a", Name: "of-a"}: {}, {Namespace: "b", Name: "of-b"}: {}})
	r.unlisted = 1
	r.listed()
	w.keep(r, "a", false)
	w.keep(r, "b", false)
	w.pass(t, r, time.Minute)
	if asked, told := w.take(); len(asked)+len(told) > 0 {
		t.Fatalf("without news %q is asked, %q is told", asked, told)
	}
	return w, r
}

// keep has an owner reconciled now.
func (w *world) keep(r *Rights, name string, refused bool) {
	r.Keep(owner(name), Reconciled{User: "system:serviceaccount:" + name + ":of-" + name, Began: w.now, Tried: true, Refused: refused})
}

// pass lets time pass, and does what is due then.
func (w *world) pass(t *testing.T, r *Rights, after time.Duration) {
	t.Helper()
	w.now = w.now.Add(after)
	r.look(t.Context())
}

func owner(name string) types.NamespacedName {
	return types.NamespacedName{Namespace: name, Name: name}
}

func configMap(namespace, name string) inventory.Entry {
	return inventory.Entry{Namespace: namespace, Name: name, Kind: "ConfigMap", Version: "v1"}
}

func mapper() meta.RESTMapper {
	m := meta.NewDefaultRESTMapper([]schema.GroupVersion{corev1.SchemeGroupVersion})
	m.Add(corev1.SchemeGroupVersion.WithKind("ConfigMap"), meta.RESTScopeNamespace)
	m.Add(corev1.SchemeGroupVersion.WithKind("Namespace"), meta.RESTScopeRoot)
	return m
}

// want compares what was asked and told since the last time.
func (w *world) want(t *testing.T, reason string, wantAsked, wantTold []string) {
	t.Helper()
	asked, told := w.take()
	if diff := cmp.Diff(wantAsked, asked); diff != "" {
		t.Errorf("%s: asked -want, +got:\n%s", reason, diff)
	}
	if diff := cmp.Diff(wantTold, told); diff != "" {
		t.Errorf("%s: told -want, +got:\n%s", reason, diff)
	}
}

// TestLost: a change is asked about where it is, after a moment, and only what is denied
// is told.
func TestLost(t *testing.T) {
	w, r := begin(t)
	w.denied["of-a patch configmaps a/"] = true
	r.changed("a")
	w.pass(t, r, quiet/2)
	w.want(t, "it is not quiet yet", nil, nil)
	w.pass(t, r, quiet/2)
	w.want(t, "the neighbour is not asked about", []string{"of-a patch configmaps a/", "of-a patch configmaps a/one"}, []string{"a lost ConfigMap a/one"})
	w.keep(r, "a", true)
	r.changed("")
	w.pass(t, r, quiet)
	w.want(t, "it was told",
		[]string{"of-a patch configmaps a/", "of-a patch configmaps a/one", "of-a patch namespaces /", "of-b patch configmaps b/"}, nil)
	delete(w.denied, "of-a patch configmaps a/")
	r.changed("a")
	w.pass(t, r, quiet)
	w.want(t, "it is back", []string{"of-a patch configmaps a/"}, []string{"a looks"})
}

// TestNamed: rules that name objects deny what they do not name.
func TestNamed(t *testing.T) {
	w, r := begin(t)
	w.denied["of-a patch configmaps a/two"] = true
	r.changed("a")
	w.pass(t, r, quiet)
	w.want(t, "the rest is allowed", []string{"of-a patch configmaps a/", "of-a patch configmaps a/one", "of-a patch configmaps a/two"},
		[]string{"a lost ConfigMap a/two"})
}

// TestShared: the owners of an account share its answers.
func TestShared(t *testing.T) {
	w, r := begin(t)
	for i := range 100 {
		name := fmt.Sprintf("more-%d", i)
		w.facts[name] = Facts{Verb: Patch, Objects: []inventory.Entry{configMap("a", name)}}
		r.Keep(owner(name), Reconciled{User: "system:serviceaccount:a:of-a", Began: w.now, Tried: true})
	}
	r.changed("a")
	w.pass(t, r, quiet)
	w.want(t, "101 owners", []string{"of-a patch configmaps a/"}, nil)
}

// TestUnanswered: not to know is not to be denied, and an API server that is gone is not
// asked for each account.
func TestUnanswered(t *testing.T) {
	w, r := begin(t)
	w.broken = errors.New("connection refused")
	for i := range 100 {
		name := fmt.Sprintf("more-%d", i)
		w.facts[name] = Facts{Verb: Patch, Objects: []inventory.Entry{configMap(name, "one")}}
		w.keep(r, name, false)
		r.names[types.NamespacedName{Namespace: name, Name: "of-" + name}] = struct{}{}
	}
	r.changed("")
	w.pass(t, r, quiet)
	if asked, told := w.take(); len(asked) > 2*parallel || len(told) > 0 {
		t.Errorf("%d questions, %q is told", len(asked), told)
	}
	w.broken = nil
	w.denied["of-b patch configmaps b/"] = true
	w.pass(t, r, retry)
	if asked, told := w.take(); len(asked) != 104 || !slices.Equal(told, []string{"b lost ConfigMap b/one"}) {
		t.Errorf("%d questions, %q is told", len(asked), told)
	}
	w.denied["of-a patch configmaps a/"] = true
	for name, err := range map[string]error{
		"an account that may not ask":                       apierrors.NewForbidden(schema.GroupResource{Resource: "selfsubjectaccessreviews"}, "", nil),
		"a question that a webhook denies without a reason": &apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure, Code: http.StatusBadRequest}},
	} {
		w.broken = err
		r.changed("a")
		w.pass(t, r, quiet)
		w.want(t, name, []string{"of-a patch configmaps a/"}, nil)
		w.pass(t, r, retry)
		w.want(t, name+" is not asked about soon", nil, nil)
	}
}

// TestRestless: a check that takes long puts off the next, and what happens meanwhile is
// one reason for it.
func TestRestless(t *testing.T) {
	w, r := begin(t)
	slow := r.options.As
	r.options.As = func(user string) (Account, error) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.now = w.now.Add(2 * time.Second)
		return slow(user)
	}
	r.changed("")
	w.pass(t, r, quiet)
	w.take()
	for range 7 {
		r.changed("b")
		w.pass(t, r, quiet)
		w.want(t, "it rests", nil, nil)
	}
	w.pass(t, r, quiet)
	w.want(t, "it has rested", []string{"of-b patch configmaps b/"}, nil)
}

// TestSuspended: a change that comes while nothing is done for an owner is asked about
// when something is again.
func TestSuspended(t *testing.T) {
	w, r := begin(t)
	facts := w.facts["a"]
	w.facts["a"] = Facts{Suspended: true}
	w.denied["of-a patch configmaps a/"] = true
	r.changed("a")
	w.pass(t, r, quiet)
	w.pass(t, r, time.Hour)
	w.want(t, "it is suspended", nil, nil)
	w.facts["a"] = facts
	w.keep(r, "a", false)
	w.pass(t, r, quiet)
	w.want(t, "it goes on", []string{"of-a patch configmaps a/", "of-a patch configmaps a/one", "of-a patch namespaces /"}, []string{"a lost ConfigMap a/one"})
}

// TestUnderWay: a right that is lost while its objects are applied is noticed.
func TestUnderWay(t *testing.T) {
	w, r := begin(t)
	began := w.now
	w.denied["of-a patch configmaps a/"] = true
	r.changed("a")
	w.pass(t, r, quiet)
	if _, told := w.take(); len(told) != 1 {
		t.Fatalf("%q is told", told)
	}
	r.Keep(owner("a"), Reconciled{User: "system:serviceaccount:a:of-a", Began: began, Tried: true})
	w.pass(t, r, quiet)
	if _, told := w.take(); !slices.Equal(told, []string{"a lost ConfigMap a/one"}) {
		t.Errorf("what was sent before is taken for allowed: %q is told", told)
	}
}

// TestInTurns: where changes are not shown, everything is asked about within a minute.
func TestInTurns(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		change func(*testing.T, *world, *Rights)
		turns  bool
	}{
		"RBAC": {"the watch shows all", func(*testing.T, *world, *Rights) {}, false},
		"Webhook": {"an authorizer that no watch shows", func(t *testing.T, w *world, r *Rights) {
			w.incomplete = true
			w.now = w.now.Add(othersHold)
			r.askOthers(t.Context())
		}, true},
		"Blind": {"the agent may not watch", func(t *testing.T, _ *world, r *Rights) {
			r.served(t.Context(), rbacv1.SchemeGroupVersion.WithResource("roles"), apierrors.NewForbidden(schema.GroupResource{}, "", nil))
		}, true},
		"Accounts": {"accounts give no right", func(t *testing.T, _ *world, r *Rights) {
			r.served(t.Context(), accounts, apierrors.NewForbidden(schema.GroupResource{}, "", nil))
		}, false},
		"Sighted": {"the agent may watch again", func(t *testing.T, w *world, r *Rights) {
			roles := rbacv1.SchemeGroupVersion.WithResource("roles")
			r.served(t.Context(), roles, apierrors.NewForbidden(schema.GroupResource{}, "", nil))
			w.pass(t, r, 0)
			r.served(t.Context(), roles, nil)
			w.pass(t, r, period) // the last turn
			w.take()
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			w, r := begin(t)
			tc.change(t, w, r)
			w.pass(t, r, 0)
			w.denied["of-b patch configmaps b/"] = true
			took := time.Duration(0)
			for ; took < time.Minute; took += time.Second {
				w.pass(t, r, time.Second)
				if _, told := w.take(); len(told) > 0 {
					break
				}
			}
			if noticed := took < time.Minute; noticed != tc.turns {
				t.Errorf("%s: noticed %t", tc.reason, noticed)
			}
		})
	}
}

// TestAccounts: an account that goes or comes is told of, once its owner has not said so.
func TestAccounts(t *testing.T) {
	w, r := begin(t)
	name := types.NamespacedName{Namespace: "a", Name: "of-a"}
	user := "system:serviceaccount:a:of-a"
	r.accountChanged(name, true)
	r.accountChanged(types.NamespacedName{Namespace: "c", Name: "default"}, false)
	w.pass(t, r, quiet)
	w.want(t, "nothing is asked", nil, []string{"a looks"})
	if missing, known := r.Missing(user); !missing || !known {
		t.Errorf("Missing() = %t, %t", missing, known)
	}
	r.Keep(owner("a"), Reconciled{User: user, Began: w.now, Tried: true, Missing: true})
	r.accountChanged(types.NamespacedName{Namespace: "d", Name: "default"}, false)
	w.pass(t, r, quiet)
	w.want(t, "it was told", nil, nil)
	r.accountChanged(name, false)
	r.accountChanged(name, false)
	w.pass(t, r, quiet)
	w.want(t, "it is there", nil, []string{"a looks"})
	if _, known := r.Missing("a person"); known {
		t.Error("a person is taken for a service account")
	}
}

// TestStore: each kind of event is a change where it is, and a list that is made anew may
// hide any.
func TestStore(t *testing.T) {
	w, r := begin(t)
	object := func(namespace, name string) *metav1.PartialObjectMetadata {
		return &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	}
	s := &store{rights: r, resource: rbacv1.SchemeGroupVersion.WithResource("rolebindings"), synced: true}
	for name, event := range map[string]func() error{
		"Add":    func() error { return s.Add(object("b", "x")) },
		"Update": func() error { return s.Update(object("b", "x")) },
		"Delete": func() error { return s.Delete(object("b", "x")) },
	} {
		if err := event(); err != nil {
			t.Fatal(err)
		}
		w.pass(t, r, quiet)
		w.want(t, name, []string{"of-b patch configmaps b/"}, nil)
	}
	if err := s.Replace(nil, ""); err != nil {
		t.Fatal(err)
	}
	w.pass(t, r, quiet)
	w.want(t, "Replace", []string{"of-a patch configmaps a/", "of-a patch namespaces /", "of-b patch configmaps b/"}, nil)
	if err := s.Add("no object"); err == nil {
		t.Error("anything is an object")
	}
}

// TestDoubt: what is looked at by interval is doubted if it is denied, or if nobody says so.
func TestDoubt(t *testing.T) {
	forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "selfsubjectaccessreviews"}, "", nil)
	for name, tc := range map[string]struct {
		reason string
		denied string
		broken error
		clean  bool
		asked  []string
	}{
		"Allowed":   {reason: "one question", clean: true, asked: []string{"of-a patch configmaps a/"}},
		"Denied":    {reason: "it is tried", denied: "of-a patch configmaps a/", asked: []string{"of-a patch configmaps a/", "of-a patch configmaps a/one"}},
		"Silent":    {reason: "not to know is not to be clean", broken: errors.New("connection refused"), asked: []string{"of-a patch configmaps a/"}},
		"MayNotAsk": {reason: "who may not ask stays as it was", broken: forbidden, clean: true, asked: []string{"of-a patch configmaps a/"}},
	} {
		t.Run(name, func(t *testing.T) {
			w := &world{denied: map[string]bool{tc.denied: true}, broken: tc.broken}
			m := memo.NewPolled(observed.NewReader(nil), directive.Group)
			object := memo.Object{Kind: schema.GroupKind{Kind: "ConfigMap"}, Name: types.NamespacedName{Namespace: "a", Name: "one"}}
			m.Keeps(object.Kind, corev1.SchemeGroupVersion.WithResource("configmaps"))
			m.Remember(object, owner("a"), digest.Short{1}, &unstructured.Unstructured{Object: map[string]any{}}, &metav1.PartialObjectMetadata{
				ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "one", UID: "u", ResourceVersion: "1", Labels: map[string]string{m.Label(): "a"}},
			})
			if !m.Clean(owner("a"), 1) {
				t.Fatal("it is not clean before")
			}
			Doubt(t.Context(), account{w, "of-a"}, mapper(), m, owner("a"))
			if m.Clean(owner("a"), 1) != tc.clean {
				t.Errorf("%s: clean is %t", tc.reason, !tc.clean)
			}
			w.want(t, tc.reason, tc.asked, nil)
		})
	}
}

// TestNoOwner: while nobody acts as an account nothing is due.
func TestNoOwner(t *testing.T) {
	_, r := begin(t)
	r.Keep(owner("a"), Reconciled{})
	r.Forget(owner("b"))
	if len(r.standing) > 0 {
		t.Errorf("%d owners are known", len(r.standing))
	}
	if open := r.attend(t.Context(), nil); open != nil {
		t.Error("it watches")
	}
	var none *Rights
	none.Keep(owner("a"), Reconciled{User: "x"})
	none.Forget(owner("a"))
	none.Serve(nil)
	if _, known := none.Missing("x"); known {
		t.Error("nothing knows something")
	}
}
