package apply

import (
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/cascade-gitops/cascade/api/clusterapi"
	"github.com/cascade-gitops/cascade/api/v1alpha1"
)

// TestRecreate: an object is deleted for an immutable field alone. An API server says that in the same
// words as that a value is not valid, or that a policy refuses it; then it would be gone, and
// could not be created.
func TestRecreate(t *testing.T) {
	invalid := func(causes ...metav1.StatusCause) *apierrors.StatusError {
		err := apierrors.NewInvalid(schema.GroupKind{Group: "apps", Kind: "Deployment"}, "a", nil)
		err.ErrStatus.Details.Causes = causes
		return err
	}
	immutable := metav1.StatusCause{Type: metav1.CauseTypeFieldValueInvalid, Field: "spec.selector", Message: "field is immutable"}
	negative := metav1.StatusCause{Type: metav1.CauseTypeFieldValueInvalid, Field: "spec.replicas", Message: "must be greater than or equal to 0"}
	taken := metav1.StatusCause{Type: metav1.CauseTypeFieldValueInvalid, Field: "spec.ports[0].nodePort", Message: "provided port is already allocated"}
	for name, tc := range map[string]struct {
		reason       string
		refusal, new *apierrors.StatusError
		recreated    bool
	}{
		"Immutable":    {"nothing else is wrong with it", invalid(immutable), nil, true},
		"Invalid":      {"it would not be valid as a new one either", invalid(negative), invalid(negative), false},
		"Both":         {"it would not be valid as a new one either", invalid(immutable, negative), invalid(negative), false},
		"Taken":        {"it has itself what it asks for", invalid(immutable), invalid(taken), true},
		"Policy":       {"who refuses names no cause, and refuses a new one as well", invalid(), invalid(), false},
		"PolicyOfOld":  {"who refuses names no cause, and admits a new one", invalid(), nil, true},
		"Quota":        {"it uses up itself what a new one would need", invalid(immutable), apierrors.NewForbidden(schema.GroupResource{}, "a", errors.New("exceeded quota")), true},
		"NoDryRun":     {"a webhook does not say what it would do", invalid(immutable), apierrors.NewBadRequest("admission webhook does not support dry run"), true},
		"Unknown":      {"nobody says whether it can be created", invalid(immutable), apierrors.NewInternalError(errors.New("etcd")), false},
		"Conflict":     {"somebody wrote meanwhile: no question is needed", apierrors.NewConflict(schema.GroupResource{}, "a", errors.New("changed")), apierrors.NewInternalError(errors.New("etcd")), true},
		"NotThatLarge": {"it was not refused for what it is", apierrors.NewTooManyRequests("wait", 1), nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := newServer()
			object := anObject("Deployment", "a", nil)
			s.put(anObject("Deployment", "a", &apps), nil)
			s.refuses["PATCH a"] = tc.refusal
			if tc.new != nil {
				s.refuses["PATCH "+nameAnew("a")] = tc.new
			}
			_, err := s.applier(t).Sync(t.Context(), []Phase{{Objects: []*unstructured.Unstructured{object}}}, Options{Force: true, Record: noRecord})
			if err == nil {
				t.Errorf("%s: no error", tc.reason)
			}
			s.mu.Lock()
			defer s.mu.Unlock()
			if got := slices.Contains(s.requests, http.MethodDelete+" a"); got != tc.recreated {
				t.Errorf("%s: it is deleted: %t, of %v with %v", tc.reason, got, s.requests, err)
			}
		})
	}
}

// TestRecreateProtected: what a prune would hold is never deleted and created again. Without the
// rights of the agent, those of a lockdown among them, nobody could create them again (read 231, read 332).
func TestRecreateProtected(t *testing.T) {
	label := func(u *unstructured.Unstructured) { u.SetLabels(map[string]string{v1alpha1.ProtectedLabel: "true"}) }
	confirmed := func(u *unstructured.Unstructured) {
		u.SetAnnotations(map[string]string{v1alpha1.DeletionAnnotation: v1alpha1.DeletionConfirmed})
	}
	inAgent := func(u *unstructured.Unstructured) { u.SetNamespace(v1alpha1.AgentNamespace) }
	ofAgent := func(u *unstructured.Unstructured) {
		u.SetNamespace("gitops")
		u.SetLabels(labels.Merge(u.GetLabels(), map[string]string{"app.kubernetes.io/name": v1alpha1.AgentName, "app.kubernetes.io/part-of": "flux"}))
	}
	for name, tc := range map[string]struct {
		reason     string
		kind, name string
		// both changes what is declared and what is there, live the latter alone.
		both, live func(*unstructured.Unstructured)
		refuse     string
		// says is a part of what the error says.
		says      string
		recreated bool
	}{
		"Rights":         {"without them nothing more can be written", "ClusterRoleBinding", v1alpha1.AgentName, nil, nil, "", "belongs to the agent", false},
		"OtherRights":    {"they are somebody else's", "ClusterRoleBinding", "other", nil, nil, "", "", true},
		"Agent":          {"a kill in between leaves no agent", "Deployment", v1alpha1.AgentName, inAgent, nil, "", "belongs to the agent", false},
		"Label":          {"a person protects the live object", "Deployment", "a", nil, label, "", "it is protected; annotate it with cascade.dev/deletion: confirmed", false},
		"Confirmed":      {"whom it is protected from says so", "Deployment", "a", nil, func(u *unstructured.Unstructured) { label(u); confirmed(u) }, "", "", true},
		"ConfirmedAgent": {"without it nothing is created again", "Deployment", v1alpha1.AgentName, inAgent, confirmed, "", "belongs to the agent", false},
		"KeysOfCluster": {"they are used", "Secret", "keys", nil, func(u *unstructured.Unstructured) {
			u.SetLabels(map[string]string{clusterapi.ClusterNameLabel: "c"})
			confirmed(u)
		}, "", "a Cluster needs it", false},
		"KeysOfPKI":    {"a Secret is what the live one is, whatever is declared", "Secret", "a", nil, func(u *unstructured.Unstructured) { u.Object["type"] = clusterapi.SecretType }, "", "it is protected", false},
		"Secret":       {"an ordinary one", "Secret", "a", nil, nil, "", "", true},
		"Unread":       {"unknown is not unprotected", "Deployment", "a", nil, nil, "GET a", "cannot find out", false},
		"Accounts":     {"with a lockdown they are what it writes by", "ClusterRoleBinding", "cascade-accounts", nil, nil, "", "belongs to the agent", false},
		"SyncAccount":  {"and who it writes as", "ClusterRoleBinding", v1alpha1.SyncAccount, nil, nil, "", "belongs to the agent", false},
		"Images":       {"a commit brings them back", "ClusterRoleBinding", "cascade-images", nil, nil, "", "", true},
		"NoLockdown":   {"it has all rights without them", "ClusterRoleBinding", "cascade-accounts", nil, nil, "", "", true},
		"UnreadRights": {"nobody knows which rights it has", "ClusterRoleBinding", "cascade-accounts", nil, nil, "GET cascade", "cannot find out", false},
		"Elsewhere":    {"it may be in another namespace", "Deployment", v1alpha1.AgentName, ofAgent, nil, "", "belongs to the agent", false},
		"NotAgent":     {"another program of the name", "Deployment", v1alpha1.AgentName, nil, nil, "", "", true},
	} {
		t.Run(name, func(t *testing.T) {
			s := newServer()
			object := anObject(tc.kind, tc.name, nil)
			live := anObject(tc.kind, tc.name, &apps)
			if tc.both != nil {
				tc.both(object)
				tc.both(live)
			}
			s.put(live, tc.live)
			if name == "NoLockdown" {
				s.put(anObject("ClusterRoleBinding", v1alpha1.AgentName, nil), func(u *unstructured.Unstructured) {
					u.Object["subjects"] = []any{map[string]any{"kind": "ServiceAccount", "name": v1alpha1.AgentName, "namespace": v1alpha1.AgentNamespace}}
				})
			}
			s.put(anObject("Cluster", "c", nil), nil)
			immutable := apierrors.NewInvalid(schema.GroupKind{Kind: tc.kind}, tc.name, nil)
			immutable.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: metav1.CauseTypeFieldValueInvalid, Field: "roleRef", Message: "field is immutable"}}
			s.refuses["PATCH "+tc.name] = immutable
			r := s.applier(t).begin([]Phase{{Objects: []*unstructured.Unstructured{object}}}, Options{Force: true})
			it, err := r.locate(object, nil)
			if err == nil {
				err = r.observe(t.Context(), it)
			}
			if err != nil {
				t.Fatal(err)
			}
			if tc.refuse != "" {
				s.refuses[tc.refuse] = apierrors.NewInternalError(errors.New("etcd"))
			}
			if out := r.send(t.Context(), it); out.err == nil || !strings.Contains(out.err.Error(), tc.says) {
				t.Errorf("%s: it says %v, want %q in it", tc.reason, out.err, tc.says)
			}
			s.mu.Lock()
			defer s.mu.Unlock()
			if got := slices.Contains(s.requests, http.MethodDelete+" "+tc.name); got != tc.recreated {
				t.Errorf("%s: it is deleted: %t, of %v", tc.reason, got, s.requests)
			}
		})
	}
}
