package remote

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/remote/account"
	"github.com/cascade-gitops/cascade/remote/reason"
	"github.com/cascade-gitops/cascade/syncer/apply"
	"github.com/cascade-gitops/cascade/syncer/source"
)

func TestIsForbidden(t *testing.T) {
	team := account.Account{Namespace: "team", Name: "deployer"}
	refused := apierrors.NewForbidden(corev1.Resource("configmaps"), "a", errors.New("no"))
	invalid := apierrors.NewInvalid(corev1.SchemeGroupVersion.WithKind("ConfigMap").GroupKind(), "b", nil)
	for name, tc := range map[string]struct {
		reason string
		err    error
		as     account.Account
		want   bool
	}{
		"None":     {"nothing was refused", nil, team, false},
		"Refused":  {"the API server says that the account may not", refused, team, true},
		"Wrapped":  {"whoever reports it says of which object", fmt.Errorf("ConfigMap/a: %w", refused), team, true},
		"Among":    {"one object of several is enough to need another right", apply.Failures{invalid, fmt.Errorf("a: %w", refused)}, team, true},
		"Joined":   {"deletes are reported together", errors.Join(invalid, refused), team, true},
		"Reasoned": {"a reason that was given on the way hides nothing", reason.Because(v1alpha1.ReasonSeedFailed, refused), team, true},
		"Others":   {"what is wrong with an object is no question of rights", apply.Failures{invalid}, team, false},
		"Parent":   {"the parent's own rights are for it to mend", refused, account.Account{}, false},
		"Record":   {"the record is written by the parent", &apply.RecordError{Err: refused}, team, false},
		"Impersonates": {
			"the parent lost the right to act as the account, and can get it again",
			apierrors.NewForbidden(corev1.Resource("serviceaccounts"), "deployer", errors.New("no")), team, false,
		},
		"OtherAccount": {
			"an account that the layer declares is an object like others",
			apierrors.NewForbidden(corev1.Resource("serviceaccounts"), "robot", errors.New("no")), team, true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			if got := isForbidden(tc.err, tc.as); got != tc.want {
				t.Errorf("%s: isForbidden() = %t", tc.reason, got)
			}
		})
	}
}

// TestUsing: a new snapshot wakes the children of all namespaces whose layers name the
// source, wherever it is.
func TestUsing(t *testing.T) {
	layer := func(namespace, name string, ref, provided *v1alpha1.SourceReference) v1alpha1.Layer {
		l := v1alpha1.Layer{}
		l.Namespace, l.Name, l.Spec.SourceRef = namespace, name, ref
		if provided != nil {
			l.Spec.Providers = &v1alpha1.ProvidersSpec{SourceRef: provided}
		}
		return l
	}
	here := &v1alpha1.SourceReference{Kind: sourcev1.GitRepositoryKind, Name: "fleet"}
	there := &v1alpha1.SourceReference{Kind: sourcev1.GitRepositoryKind, Name: "fleet", Namespace: "platform"}
	layers := []v1alpha1.Layer{
		layer("platform", "base", here, nil), layer("platform", "more", here, nil),
		layer("team-a", "own", here, nil), layer("team-b", "shared", there, nil), layer("team-c", "provided", here, there), layer("team-d", "none", nil, nil),
	}
	for namespace, want := range map[string][]string{
		"platform": {"platform/base", "team-b/shared", "team-c/provided"}, "team-a": {"team-a/own"}, "team-d": nil,
	} {
		var got []string
		for _, l := range using(layers, source.Key{Kind: sourcev1.GitRepositoryKind, NamespacedName: types.NamespacedName{Namespace: namespace, Name: "fleet"}}) {
			got = append(got, l.Namespace+"/"+l.Name)
		}
		if !slices.Equal(got, want) {
			t.Errorf("the source of namespace %s is used by %v, want %v", namespace, got, want)
		}
	}
}
