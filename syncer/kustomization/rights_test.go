package kustomization

import (
	"errors"
	"fmt"
	"testing"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	ssaerrors "github.com/fluxcd/pkg/ssa/errors"
	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/inventory"
	"github.com/cascade-gitops/cascade/syncer/apply"
	"github.com/cascade-gitops/cascade/syncer/mask"
	"github.com/cascade-gitops/cascade/syncer/rights"
)

func TestForbidden(t *testing.T) {
	refusal := apierrors.NewForbidden(schema.GroupResource{Resource: "configmaps"}, "a", errors.New("word"))
	conflict := apierrors.NewConflict(schema.GroupResource{}, "a", nil)
	secret := &unstructured.Unstructured{Object: map[string]any{"kind": "Secret", "apiVersion": "v1", "data": map[string]any{"k": "configmaps"}}}
	for name, tc := range map[string]struct {
		reason string
		err    error
		want   bool
	}{
		"None":     {"nothing failed", nil, false},
		"Plain":    {"the API server's own", refusal, true},
		"Other":    {"another word of it", conflict, false},
		"DryRun":   {"of an object", ssaerrors.NewDryRunErr(refusal, secret), true},
		"Among":    {"one of many, of which another is first", apply.Failures{conflict, ssaerrors.NewDryRunErr(refusal, secret)}, true},
		"Joined":   {"many, and none of them", errors.Join(conflict, errors.New("x")), false},
		"Redacted": {"its text is another", apply.Redact(apply.Failures{conflict, refusal}, []*unstructured.Unstructured{secret}), true},
		"Masked":   {"and another", mask.Error(fmt.Errorf("cannot: %w", refusal), []string{"configmaps"}), true},
		"Prune":    {"a delete", &apply.PruneError{Err: fmt.Errorf("cannot delete: %w", refusal)}, true},
	} {
		if got := forbidden(tc.err); got != tc.want {
			t.Errorf("%s: %s: forbidden(%v) = %t", name, tc.reason, tc.err, got)
		}
	}
}

// TestTellAccount: an account that is missing is told of once, and Ready stays as it is.
func TestTellAccount(t *testing.T) {
	const user = "system:serviceaccount:apps:deployer"
	for name, tc := range map[string]struct {
		reason               string
		user                 string
		told, missing, known bool
		says, news           bool
	}{
		"There":      {reason: "there is one", user: user, known: true},
		"Missing":    {reason: "it is told", user: user, missing: true, known: true, says: true, news: true},
		"Again":      {reason: "it was told", user: user, told: true, missing: true, known: true, says: true},
		"Back":       {reason: "it is there again", user: user, told: true, known: true},
		"Unknown":    {reason: "nobody knows", user: user},
		"Restart":    {reason: "what was told stays while nobody knows", user: user, told: true, says: true},
		"NoAccount":  {reason: "nobody asks", told: true},
		"NotWatched": {reason: "an account that is not looked for is not missed", missing: true, known: true},
	} {
		t.Run(name, func(t *testing.T) {
			ready := metav1.Condition{Type: "Ready", Status: metav1.ConditionTrue, Reason: "ReconciliationSucceeded"}
			obj := shop(func(k *kustomizev1.Kustomization) {
				k.Status.Conditions = []metav1.Condition{ready}
				if tc.told {
					k.Status.Conditions = append(k.Status.Conditions, metav1.Condition{
						Type: v1alpha1.AccountMissingCondition, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonAccountMissing, Message: "before",
					})
				}
			})
			says, news := tellAccount(obj, tc.user, tc.missing, tc.known)
			if says != tc.says || (news != "") != tc.news {
				t.Errorf("%s: tellAccount() = %t, %q", tc.reason, says, news)
			}
			if there := apimeta.FindStatusCondition(obj.Status.Conditions, v1alpha1.AccountMissingCondition) != nil; there != tc.says {
				t.Errorf("%s: conditions are %v", tc.reason, obj.Status.Conditions)
			}
			if diff := cmp.Diff(ready, obj.Status.Conditions[0]); diff != "" {
				t.Errorf("%s: Ready -want, +got:\n%s", tc.reason, diff)
			}
		})
	}
}

// TestRightsFacts: what is asked about is what would be done with the account.
func TestRightsFacts(t *testing.T) {
	a := inventory.Entry{Namespace: "apps", Name: "a", Kind: "ConfigMap", Version: "v1"}
	recorded := func(k *kustomizev1.Kustomization) { k.Status.Inventory = refs([]inventory.Entry{a}) }
	deleted := func(k *kustomizev1.Kustomization) {
		recorded(k)
		k.DeletionTimestamp = &metav1.Time{Time: noon}
	}
	for name, tc := range map[string]struct {
		reason  string
		obj     func(*kustomizev1.Kustomization)
		owner   string
		refused bool
		want    rights.Facts
	}{
		"Clean":   {"what the memo does not know is applied anyway", recorded, "shop", false, rights.Facts{Verb: rights.Patch}},
		"Refused": {"what was refused is in the inventory only", recorded, "shop", true, rights.Facts{Verb: rights.Patch, Objects: []inventory.Entry{a}}},
		"Suspended": {"nothing is applied", func(k *kustomizev1.Kustomization) {
			recorded(k)
			k.Spec.Suspend = true
		}, "shop", true, rights.Facts{Verb: rights.Patch, Objects: []inventory.Entry{a}, Suspended: true}},
		"Deleted": {"its objects are to go", deleted, "shop", false, rights.Facts{Verb: rights.Delete, Objects: []inventory.Entry{a}}},
		"Gone":    {"there is no such Kustomization any more", nil, "other", false, rights.Facts{Suspended: true}},
	} {
		t.Run(name, func(t *testing.T) {
			s := take(t, shop(tc.obj))
			got, err := standings{Reconciler: s.Reconciler}.Facts(t.Context(), types.NamespacedName{Namespace: "apps", Name: tc.owner}, tc.refused)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("%s: -want, +got:\n%s", tc.reason, diff)
			}
		})
	}
}
