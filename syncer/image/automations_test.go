package image

import (
	"encoding/json"
	"testing"
	"time"

	autov1 "github.com/fluxcd/image-automation-controller/api/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cascade-gitops/cascade/syncer/source"
)

// TestBasisOnRecord: what the last commit was made of is read back from the status, and only if it is about that commit.
func TestBasisOnRecord(t *testing.T) {
	at := time.Date(2026, 1, 1, 0, 0, 0, 123456789, time.UTC)
	pushed := func(obj *autov1.ImageUpdateAutomation, at time.Time, basis source.Basis) {
		now := metav1.NewTime(at)
		obj.Status.LastPushTime = &now
		setBasis(obj, "auto", basis)
	}
	for name, tt := range map[string]struct {
		reason string
		set    func(obj *autov1.ImageUpdateAutomation)
		want   source.Basis
	}{
		"Nothing":  {"nothing was pushed", func(*autov1.ImageUpdateAutomation) {}, ""},
		"Before":   {"it was pushed before there was a record", func(obj *autov1.ImageUpdateAutomation) { obj.Status.LastPushTime = &metav1.Time{Time: at} }, ""},
		"Checkout": {"it is made of the checkout", func(obj *autov1.ImageUpdateAutomation) { pushed(obj, at, source.BasisCheckout) }, source.BasisCheckout},
		"Branch":   {"it is on top of others", func(obj *autov1.ImageUpdateAutomation) { pushed(obj, at, source.BasisBranch) }, source.BasisBranch},
		"Again": {"the same is pushed again", func(obj *autov1.ImageUpdateAutomation) {
			pushed(obj, at, source.BasisCheckout)
			pushed(obj, at.Add(time.Hour), source.BasisCheckout)
		}, source.BasisCheckout},
		"Direct": {"the branch is the checkout by now", func(obj *autov1.ImageUpdateAutomation) {
			pushed(obj, at, source.BasisCheckout)
			pushed(obj, at.Add(time.Hour), "")
		}, ""},
		"Other": {"Flux's controller pushed later, and leaves the condition as it is", func(obj *autov1.ImageUpdateAutomation) {
			pushed(obj, at, source.BasisCheckout)
			obj.Status.LastPushTime = &metav1.Time{Time: at.Add(time.Hour)}
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			obj := &autov1.ImageUpdateAutomation{}
			tt.set(obj)
			if got := basisOf(obj); got != tt.want {
				t.Errorf("%s: %q; want %q", tt.reason, got, tt.want)
			}
			read := &autov1.ImageUpdateAutomation{}
			stored, err := json.Marshal(obj)
			if err == nil {
				err = json.Unmarshal(stored, read)
			}
			if got := basisOf(read); err != nil || got != tt.want {
				t.Errorf("%s: after a restart: %q, %v; want %q", tt.reason, got, err, tt.want)
			}
		})
	}
}
