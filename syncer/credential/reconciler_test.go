package credential

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/prometheus/client_golang/prometheus"
	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/record"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/syncer/metrics"
	"github.com/cascade-gitops/cascade/syncer/vault"
	"github.com/cascade-gitops/cascade/syncer/vault/vaultserver"
)

const (
	space = "capa-system"
	jwtOf = "token-of-"
	// definition of Credential.
	definition = "credentials.cascade.dev"
)

// rig is a reconciler, the API server that it writes to, and a Vault, at one virtual clock.
type rig struct {
	t      *testing.T
	at     time.Time
	vault  *vaultserver.Server
	client client.WithWatch
	r      *Reconciler
	events *record.FakeRecorder
	// writes counts writes of the API server; refuse, if not nil, refuses some.
	writes atomic.Int64
	// apart is by how much the clock of the API server is ahead, and tokens how many it issued.
	apart  time.Duration
	tokens int
	refuse func(n int64, verb string, o client.Object) error
	key    client.ObjectKey
}

func newRig(t *testing.T, role vaultserver.Role, change func(*v1alpha1.Credential), objects ...client.Object) *rig {
	t.Helper()
	g := &rig{t: t, at: epoch, key: client.ObjectKey{Namespace: space, Name: "keys"}}
	g.vault = vaultserver.Start(func() time.Time { return g.at }, role)
	t.Cleanup(g.vault.Close)
	s := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{scheme.AddToScheme, v1alpha1.AddToScheme, apiextensionsv1.AddToScheme} {
		if err := add(s); err != nil {
			t.Fatal(err)
		}
	}
	obj := &v1alpha1.Credential{
		ObjectMeta: metav1.ObjectMeta{Namespace: space, Name: "keys", UID: "u1", Generation: 1, CreationTimestamp: metav1.Time{Time: epoch}},
		Spec: v1alpha1.CredentialSpec{
			Grace: metav1.Duration{Duration: 10 * time.Second}, Interval: metav1.Duration{Duration: 10 * time.Minute},
			Vault: &v1alpha1.VaultSource{
				Address: g.vault.URL, Request: v1alpha1.VaultRequest{Path: "aws/creds/capa", Method: "GET"},
				Auth: v1alpha1.VaultAuth{Kubernetes: &v1alpha1.VaultKubernetesAuth{Mount: "kubernetes", Role: "capa", ServiceAccountName: "cascade-vault", Audiences: []string{"vault"}}},
			},
			Target: v1alpha1.CredentialTarget{Data: values{"credentials": {Value: "password=${password}"}}},
		},
	}
	if change != nil {
		change(obj)
	}
	definition := &apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{Name: definition, Finalizers: []string{"customresourcecleanup.apiextensions.k8s.io"}}}
	objects = append(objects, obj, definition, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{
		Namespace: space, Name: "cascade-vault", Annotations: map[string]string{v1alpha1.VaultAddressAnnotation: "https://other.example.com, " + g.vault.URL + "/"},
	}})
	write := func(verb string, o client.Object, do func() error) error {
		n := g.writes.Add(1)
		if g.refuse != nil {
			if err := g.refuse(n, verb, o); err != nil {
				return err
			}
		}
		return do()
	}
	g.client = fake.NewClientBuilder().WithScheme(s).WithObjects(objects...).WithStatusSubresource(&v1alpha1.Credential{}).WithInterceptorFuncs(interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
			return write("create", o, func() error { return c.Create(ctx, o, opts...) })
		},
		Update: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.UpdateOption) error {
			return write("update", o, func() error { return c.Update(ctx, o, opts...) })
		},
		Patch: func(ctx context.Context, c client.WithWatch, o client.Object, p client.Patch, opts ...client.PatchOption) error {
			return write("patch", o, func() error { return c.Patch(ctx, o, p, opts...) })
		},
		Delete: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.DeleteOption) error {
			return write("delete", o, func() error { return c.Delete(ctx, o, opts...) })
		},
		SubResourcePatch: func(ctx context.Context, c client.Client, sub string, o client.Object, p client.Patch, opts ...client.SubResourcePatchOption) error {
			return write("status", o, func() error { return c.SubResource(sub).Patch(ctx, o, p, opts...) })
		},
		SubResourceCreate: func(_ context.Context, _ client.Client, _ string, o client.Object, with client.Object, _ ...client.SubResourceCreateOption) error {
			request := with.(*authenticationv1.TokenRequest)
			if len(request.Spec.Audiences) == 0 {
				request.Spec.Audiences = []string{"https://kubernetes.default.svc"}
			}
			request.Status = authenticationv1.TokenRequestStatus{
				Token: jwtOf + o.GetName(), ExpirationTimestamp: metav1.Time{Time: g.at.Add(g.apart + time.Duration(*request.Spec.ExpirationSeconds)*time.Second)},
			}
			g.tokens++
			return nil
		},
	}).Build()
	g.restart()
	return g
}

// restart begins another process: it knows what is written down.
func (g *rig) restart() {
	g.events = record.NewFakeRecorder(1000)
	g.r = &Reconciler{
		Client: g.client, Live: g.client, Vault: &vault.Clients{Now: func() time.Time { return g.at }}, Namespace: "cascade-system",
		Events: g.events, Metrics: metrics.New(prometheus.NewRegistry()), Now: func() time.Time { return g.at }, Random: func() float64 { return 0 },
	}
	g.r.Open()
}

func (g *rig) reconcile() (ctrl.Result, error) {
	return g.r.Reconcile(g.t.Context(), ctrl.Request{NamespacedName: g.key})
}

// must reconciles, and fails on an error.
func (g *rig) must() ctrl.Result {
	g.t.Helper()
	result, err := g.reconcile()
	if err != nil {
		g.t.Fatalf("at %s: %v", g.at.Sub(epoch), err)
	}
	return result
}

// pass lets time pass, with reconciles when they are asked for.
func (g *rig) pass(d time.Duration) {
	g.t.Helper()
	for end := g.at.Add(d); ; {
		result := g.must()
		wait := result.RequeueAfter
		if wait <= 0 {
			g.t.Fatalf("at %s: nobody looks again", g.at.Sub(epoch))
		}
		if g.at.Add(wait).After(end) {
			g.at = end
			return
		}
		g.at = g.at.Add(wait)
	}
}

func (g *rig) object() *v1alpha1.Credential {
	g.t.Helper()
	o := &v1alpha1.Credential{}
	if err := g.client.Get(g.t.Context(), g.key, o); err != nil {
		g.t.Fatal(err)
	}
	return o
}

// password is what the Secret has, empty without one.
func (g *rig) password() string {
	g.t.Helper()
	s := &corev1.Secret{}
	err := g.client.Get(g.t.Context(), g.key, s)
	if apierrors.IsNotFound(err) {
		return ""
	}
	if err != nil {
		g.t.Fatal(err)
	}
	return strings.TrimPrefix(string(s.Data["credentials"]), "password=")
}

func (g *rig) condition(kind string) (metav1.ConditionStatus, string) {
	g.t.Helper()
	c := apimeta.FindStatusCondition(g.object().Status.Conditions, kind)
	if c == nil {
		return "", ""
	}
	return c.Status, c.Reason
}

// wants compares a condition.
func (g *rig) wants(kind string, is metav1.ConditionStatus, reason string) {
	g.t.Helper()
	if s, why := g.condition(kind); s != is || why != reason {
		g.t.Errorf("at %s: %s is %q %s, want %q %s: %+v", g.at.Sub(epoch), kind, s, why, is, reason, g.object().Status.Conditions)
	}
}

// delete asks for the object's deletion, as a person does.
func (g *rig) delete() {
	g.t.Helper()
	if err := g.client.Delete(g.t.Context(), g.object()); err != nil {
		g.t.Fatal(err)
	}
}

func (g *rig) gone() bool {
	err := g.client.Get(g.t.Context(), g.key, &v1alpha1.Credential{})
	return apierrors.IsNotFound(err)
}

// change changes the spec, as a commit does.
func (g *rig) change(f func(*v1alpha1.Credential)) {
	g.t.Helper()
	o := g.object()
	f(o)
	o.Generation++
	if err := g.client.Update(g.t.Context(), o); err != nil {
		g.t.Fatal(err)
	}
}

// minute is a role whose leases live for a minute, and can be renewed for three.
func minute() vaultserver.Role {
	return vaultserver.Role{Lease: time.Minute, MaxLease: 3 * time.Minute, Login: time.Hour, Renewable: true, LoginRenewable: true}
}

// TestLife: issued, renewed, replaced near the end of what the server allows, revoked when it
// is deleted. The Secret has something valid all the time.
func TestLife(t *testing.T) {
	g := newRig(t, minute(), nil)
	g.must()
	first := g.password()
	g.wants("Ready", "True", "Succeeded")
	if o := g.object(); o.Status.ExpiresAt == nil || !o.Status.ExpiresAt.Equal(&metav1.Time{Time: at(60)}) || !o.Status.RenewAt.Equal(&metav1.Time{Time: at(40)}) {
		t.Errorf("status %+v", o.Status)
	}
	// OpenShift lets those only block the deletion of an owner who may write its finalizers: not the agent under a lockdown.
	for _, name := range []string{"keys", "cascade-leases.keys"} {
		s := &corev1.Secret{}
		err := g.client.Get(t.Context(), client.ObjectKey{Namespace: space, Name: name}, s)
		if owner := metav1.GetControllerOf(s); err != nil || owner == nil || owner.UID != "u1" || owner.BlockOwnerDeletion != nil {
			t.Errorf("Secret %s has the owner %v: %v", name, owner, err)
		}
	}
	seen := map[string]bool{}
	for range 600 {
		g.pass(time.Second)
		password := g.password()
		if seen[password] = true; g.vault.Valid()[password].ID == "" {
			t.Fatalf("at %s: %s is not valid, %v are", g.at.Sub(epoch), password, g.vault.Valid())
		}
		if n := len(g.vault.Valid()); n > 2 {
			t.Fatalf("at %s: %d leases are valid", g.at.Sub(epoch), n)
		}
	}
	if len(seen) < 3 || len(seen) > 6 || !seen[first] {
		t.Errorf("%d credentials in ten minutes, want one in about two and a half", len(seen))
	}
	if g.vault.Leased() != len(seen) {
		t.Errorf("%d were leased, and %d used", g.vault.Leased(), len(seen))
	}
	g.delete()
	g.must()
	if n := len(g.vault.Valid()); n > 0 || !g.gone() {
		t.Errorf("after the deletion %d leases are valid, gone: %t", n, g.gone())
	}
	if err := g.client.Get(t.Context(), client.ObjectKey{Namespace: space, Name: "cascade-leases.keys"}, &corev1.Secret{}); !apierrors.IsNotFound(err) {
		t.Errorf("the journal is left: %v", err)
	}
}

// TestLeave: a Secret that somebody else applies by now stays when the Credential goes, and
// says nothing of it. Any other goes with it.
func TestLeave(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		labels map[string]string
		stays  bool
	}{
		"Layer":         {"a Layer hands over a copy instead", map[string]string{v1alpha1.LayerLabelGroup + "/name": "agents", v1alpha1.LayerLabelGroup + "/namespace": "fleet"}, true},
		"Kustomization": {"a Kustomization declares the Secret itself", map[string]string{"kustomize.toolkit.fluxcd.io/name": "flux-system"}, true},
		"HelmRelease":   {"a chart has it", map[string]string{"helm.toolkit.fluxcd.io/name": "capa"}, true},
		"Nobody":        {"it is the Credential's alone", map[string]string{"team": "a"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			g := newRig(t, minute(), nil)
			g.must()
			secret := &corev1.Secret{}
			if err := g.client.Get(t.Context(), g.key, secret); err != nil {
				t.Fatal(err)
			}
			secret.Labels, secret.Data = tc.labels, map[string][]byte{"credentials": []byte("password=mine")}
			secret.Annotations["theirs"] = "yes"
			if err := g.client.Update(t.Context(), secret); err != nil {
				t.Fatal(err)
			}
			g.delete()
			conflicts := 0
			g.refuse = func(_ int64, verb string, o client.Object) error {
				if _, is := o.(*corev1.Secret); is && verb == "patch" && conflicts == 0 {
					conflicts++ // they write at the same time
					return apierrors.NewConflict(corev1.Resource("secrets"), o.GetName(), errors.New("changed"))
				}
				return nil
			}
			for range 2 {
				if g.must(); g.gone() {
					break
				}
			}
			if err := g.client.Get(t.Context(), g.key, secret); err != nil || !g.gone() || g.password() != "mine" {
				t.Fatalf("%s: the Secret has %q, the Credential is gone: %t; %v", tc.reason, g.password(), g.gone(), err)
			}
			if stays := len(secret.OwnerReferences) == 0; stays != tc.stays || (len(secret.Annotations) == 1) != tc.stays {
				t.Errorf("%s: its owners are %v, annotations %v", tc.reason, secret.OwnerReferences, secret.Annotations)
			}
		})
	}
}

// TestDefinitionGoes: who deletes the kind means no credential. What readers have stays valid, the
// Secret stays, and a Credential of later has it again (read 232).
func TestDefinitionGoes(t *testing.T) {
	g := newRig(t, minute(), nil)
	g.must()
	had, valid := g.password(), len(g.vault.Valid())
	crd := &apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{Name: definition}}
	if err := g.client.Delete(t.Context(), crd); err != nil {
		t.Fatal(err)
	}
	object := g.object()
	g.delete()
	g.vault.SetDown(true) // it is not asked
	g.must()
	g.vault.SetDown(false)
	secret := &corev1.Secret{}
	if err := g.client.Get(t.Context(), g.key, secret); err != nil || !g.gone() {
		t.Fatalf("the Credential is gone: %t; %v", g.gone(), err)
	}
	if len(secret.OwnerReferences) > 0 || g.password() != had || len(g.vault.Valid()) != valid || valid == 0 {
		t.Errorf("its owners are %v, it has %q instead of %q, and %d leases are valid", secret.OwnerReferences, g.password(), had, len(g.vault.Valid()))
	}
	told := ""
	for len(g.events.Events) > 0 {
		told += <-g.events.Events
	}
	if !strings.Contains(told, "Warning "+v1alpha1.ReasonKindRemoved) {
		t.Errorf("events: %s", told)
	}
	object.ResourceVersion, object.UID, object.Finalizers, object.DeletionTimestamp = "", "u2", nil, nil
	if err := g.client.Create(t.Context(), object); err != nil {
		t.Fatal(err)
	}
	g.must()
	if g.wants("Ready", "True", "Succeeded"); g.password() == had {
		t.Error("the Secret has what nobody renews")
	}
}

// TestDefinitionUnread: unknown is not gone, and nothing is revoked before it is known.
func TestDefinitionUnread(t *testing.T) {
	g := newRig(t, minute(), nil)
	g.must()
	valid := len(g.vault.Valid())
	g.delete()
	g.r.Live = interceptor.NewClient(g.client, interceptor.Funcs{Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
		if key.Name == definition {
			return apierrors.NewServiceUnavailable("etcd")
		}
		return c.Get(ctx, key, o, opts...)
	}})
	if _, err := g.reconcile(); err == nil || g.gone() || len(g.vault.Valid()) != valid {
		t.Errorf("%v; gone: %t, %d leases are valid of %d", err, g.gone(), len(g.vault.Valid()), valid)
	}
}

// TestNoSecretsElsewhere: what is secret is in Secrets, and in no condition, event or other
// object.
func TestNoSecretsElsewhere(t *testing.T) {
	g := newRig(t, minute(), nil)
	g.pass(5 * time.Minute)
	g.vault.SetDown(true)
	g.pass(5 * time.Minute)
	text := fmt.Sprintf("%+v", g.object())
	close(g.events.Events)
	for e := range g.events.Events {
		text += e
	}
	for _, secret := range []string{"password0", "hvs.", jwtOf, "aws/creds/capa/0"} {
		if strings.Contains(text, secret) {
			t.Errorf("%s is in the object or its events:\n%s", secret, text)
		}
	}
}

// TestOutage: a server that is down is told within a minute; nothing is broken before the end,
// and what comes after it is used as soon as it can be.
func TestOutage(t *testing.T) {
	g := newRig(t, vaultserver.Role{Lease: time.Hour, Login: 10 * time.Hour}, nil)
	g.must()
	first := g.password()
	g.pass(5 * time.Minute)
	g.vault.SetDown(true)
	g.pass(time.Minute)
	g.wants("Ready", "True", "Succeeded")
	g.wants("SourceFailing", "True", "VaultUnreachable")
	g.pass(45 * time.Minute) // to 51 of 60
	g.wants("Ready", "False", "CredentialLapsing")
	if g.password() != first || g.vault.Valid()[first].ID == "" {
		t.Errorf("the Secret has %s, want %s as long as it is valid", g.password(), first)
	}
	g.pass(10 * time.Minute)
	g.wants("Ready", "False", "CredentialLapsed")
	calls := len(g.vault.Calls())
	g.pass(10 * time.Minute)
	if n := len(g.vault.Calls()) - calls; n < 9 || n > 25 {
		t.Errorf("%d calls in ten minutes to a server that is down, want about one in a minute", n)
	}
	g.vault.SetDown(false)
	g.pass(61 * time.Second)
	g.wants("Ready", "True", "Succeeded")
	g.wants("SourceFailing", "", "")
	if password := g.password(); password == first || g.vault.Valid()[password].ID == "" {
		t.Errorf("the Secret has %s after the outage", password)
	}
}

// TestKilled: a process that dies at any write of any step leaves nothing that its successor
// does not mend, with at most one lease more, and the Secret never has what was revoked.
func TestKilled(t *testing.T) {
	for kill := int64(1); ; kill++ {
		reached := false
		for _, after := range []bool{false, true} {
			t.Run(fmt.Sprintf("%d/%t", kill, after), func(t *testing.T) {
				g := newRig(t, minute(), nil)
				dead := errors.New("the process is dead")
				died := false
				g.refuse = func(n int64, _ string, _ client.Object) error {
					if died || n < kill {
						if died {
							return dead
						}
						return nil
					}
					reached = true
					if died = true; after {
						return nil // this one arrives, and the next does not
					}
					return dead
				}
				for range 200 {
					if died {
						break
					}
					result, err := g.reconcile()
					if err == nil && !died {
						g.at = g.at.Add(min(max(result.RequeueAfter, time.Second), 20*time.Second))
					}
				}
				if !died {
					return
				}
				g.refuse = nil
				leased := g.vault.Leased()
				g.restart()
				g.at = g.at.Add(time.Second)
				if s := g.password(); s != "" && g.at.Sub(epoch) < 30*time.Second && g.vault.Valid()[s].ID == "" {
					t.Errorf("what the Secret has was revoked by who died")
				}
				g.must()
				if s := g.password(); g.vault.Valid()[s].ID == "" {
					t.Errorf("the Secret has %q after the restart, valid are %v", s, slices.Collect(maps.Keys(g.vault.Valid())))
				}
				if more := g.vault.Leased() - leased; more > 1 {
					t.Errorf("the successor leased %d more", more)
				}
				g.pass(30 * time.Second)
				if n := len(g.vault.Valid()); n != 1 {
					t.Errorf("%d leases are valid after the grace: %v", n, g.vault.Valid())
				}
				g.delete()
				g.must()
				if n := len(g.vault.Valid()); n > 0 || !g.gone() {
					t.Errorf("after the deletion %d are valid, gone: %t", n, g.gone())
				}
			})
		}
		if !reached || kill > 26 { // a renewal and a replacement are among these
			break
		}
	}
}

// TestTwoLeaders: a process that was paused in the middle of a request, while another took
// over, gives back what it got.
func TestTwoLeaders(t *testing.T) {
	g := newRig(t, minute(), nil)
	old := g.r
	done := false
	g.vault.Before = func(call string) {
		if done || call != "GET aws/creds/capa" {
			return
		}
		done = true // the old one waits for its answer here, and the new one does all
		g.restart()
		if _, err := g.reconcile(); err != nil {
			t.Errorf("the new leader: %v", err)
		}
		g.r = old
	}
	if _, err := old.Reconcile(t.Context(), ctrl.Request{NamespacedName: g.key}); err != nil {
		t.Fatal(err)
	}
	g.restart()
	g.pass(30 * time.Second)
	valid := g.vault.Valid()
	if len(valid) != 1 || valid[g.password()].ID == "" || g.vault.Leased() > 2 {
		t.Errorf("the Secret has %s, valid are %v, %d were leased", g.password(), valid, g.vault.Leased())
	}
}

// TestFence: who may not write leases and writes nothing.
func TestFence(t *testing.T) {
	g := newRig(t, minute(), nil)
	g.r.MayWrite = func() error { return errors.New("the Lease is lost") }
	if _, err := g.reconcile(); err == nil || len(g.vault.Calls()) > 0 || g.password() != "" {
		t.Errorf("%v, calls %v", err, g.vault.Calls())
	}
}

// TestRevokedByOthers: a lease that an operator revoked is replaced when it is to be renewed.
func TestRevokedByOthers(t *testing.T) {
	g := newRig(t, minute(), nil)
	g.pass(5 * time.Second)
	g.vault.RevokeAll()
	g.pass(40 * time.Second)
	if g.vault.Valid()[g.password()].ID == "" {
		t.Errorf("the Secret has %s, valid are %v", g.password(), g.vault.Valid())
	}
}

// TestClockWasAhead: what was leased while the agent's clock was ahead is not taken to be valid for as much longer (read 697).
func TestClockWasAhead(t *testing.T) {
	g := newRig(t, vaultserver.Role{Lease: time.Hour, Login: 10 * time.Hour}, nil)
	g.must()
	ahead := 6 * time.Hour
	g.r.Now = func() time.Time { return g.at.Add(ahead) }
	g.r.Vault = &vault.Clients{Now: g.r.Now}
	g.must()
	ahead = 0
	for range 120 {
		g.pass(time.Minute)
		if g.vault.Valid()[g.password()].ID == "" {
			t.Fatalf("at %s: what the Secret has is not valid: %+v", g.at.Sub(epoch), g.object().Status)
		}
	}
	if n := g.vault.Leased(); n > 6 {
		t.Errorf("%d were leased in two hours", n)
	}
}

// TestTampered: a Secret that somebody changed or deleted has a valid credential again after
// the next look.
func TestTampered(t *testing.T) {
	for name, tamper := range map[string]func(*rig, *corev1.Secret) error{
		"Data": func(g *rig, s *corev1.Secret) error {
			s.Data["credentials"] = []byte("mine")
			return g.client.Update(g.t.Context(), s)
		},
		"Annotation": func(g *rig, s *corev1.Secret) error {
			s.Annotations[v1alpha1.CredentialAnnotation] = "x"
			return g.client.Update(g.t.Context(), s)
		},
		"Deleted": func(g *rig, s *corev1.Secret) error { return g.client.Delete(g.t.Context(), s) },
	} {
		t.Run(name, func(t *testing.T) {
			g := newRig(t, minute(), nil)
			g.must()
			s := &corev1.Secret{}
			if err := g.client.Get(t.Context(), g.key, s); err != nil {
				t.Fatal(err)
			}
			if err := tamper(g, s); err != nil {
				t.Fatal(err)
			}
			g.must()
			if g.vault.Valid()[g.password()].ID == "" {
				t.Errorf("the Secret has %q", g.password())
			}
			g.pass(20 * time.Second)
			if n := len(g.vault.Valid()); n != 1 {
				t.Errorf("%d leases are valid", n)
			}
		})
	}
}

// TestTypeRefused: a Secret of another type that the API server refuses takes nothing from those who read the one that is there.
func TestTypeRefused(t *testing.T) {
	g := newRig(t, minute(), nil)
	g.must()
	before := g.password()
	invalid := func(verb string, s *corev1.Secret) error {
		if verb == "create" && s.Type == corev1.SecretTypeTLS {
			return apierrors.NewInvalid(schema.GroupKind{Kind: "Secret"}, s.Name, nil)
		}
		return nil
	}
	g.refuse = func(_ int64, verb string, o client.Object) error {
		if s, ok := o.(*corev1.Secret); ok {
			return invalid(verb, s)
		}
		return nil
	}
	g.change(func(o *v1alpha1.Credential) { o.Spec.Target.Type = corev1.SecretTypeTLS })
	g.pass(30 * time.Second)
	if valid := g.vault.Valid(); len(valid) != 1 || g.password() != before || valid[before].ID == "" {
		t.Errorf("the Secret has %q, before %q; valid are %v", g.password(), before, valid)
	}
	g.wants("Ready", "False", "InvalidSpec")
	// It is not there at all: what was read before stays valid until there is another one.
	s := &corev1.Secret{}
	if err := g.client.Get(t.Context(), g.key, s); err != nil {
		t.Fatal(err)
	}
	if err := g.client.Delete(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	g.pass(10 * time.Second)
	if valid := g.vault.Valid(); len(valid) != 1 || valid[before].ID == "" {
		t.Errorf("of the lease that is read, %q, valid are %v", before, valid)
	}
	g.change(func(o *v1alpha1.Credential) { o.Spec.Target.Type = "" })
	g.pass(30 * time.Second)
	if valid := g.vault.Valid(); len(valid) != 1 || g.password() == before || valid[g.password()].ID == "" {
		t.Errorf("the Secret has %q, valid are %v", g.password(), valid)
	}
	g.wants("Ready", "True", "Succeeded")
}

// TestTypeTried: what the API server says of the other Secret while the one before it is there. Nothing is deleted for one that it
// refuses, also where a quota is used up: a delete makes room in that only when it is counted anew, and others may take the room.
func TestTypeTried(t *testing.T) {
	full := corev1.ResourceList{"count/secrets": resource.MustParse("20")}
	quota := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: space, Name: "some"}, Status: corev1.ResourceQuotaStatus{Hard: full, Used: full}}
	forbidden := func(why string) error {
		return apierrors.NewForbidden(corev1.Resource("secrets"), "keys", errors.New(why))
	}
	for name, tt := range map[string]struct {
		reason   string
		answer   error
		replaced bool
		says     string
	}{
		"Exists":  {"its name is taken, and all else is right", apierrors.NewAlreadyExists(corev1.Resource("secrets"), "keys"), true, ""},
		"Quota":   {"there is no room for one more", forbidden("exceeded quota: some, requested: count/secrets=1, used: count/secrets=20, limited: count/secrets=20"), false, "raise it by one, or delete the Secret"},
		"Policy":  {"it would be refused once the one before it is gone", forbidden("[no-tls] denied"), false, "[no-tls] denied"},
		"Unknown": {"nothing was said of it", apierrors.NewTimeoutError("slow", 1), false, "slow"},
	} {
		t.Run(name, func(t *testing.T) {
			g := newRig(t, minute(), nil, quota.DeepCopy())
			g.must()
			before := g.password()
			g.refuse = func(_ int64, verb string, o client.Object) error {
				if s, ok := o.(*corev1.Secret); !ok || verb != "create" || s.Type != corev1.SecretTypeTLS {
					return nil
				}
				if err := g.client.Get(t.Context(), g.key, &corev1.Secret{}); err != nil {
					return client.IgnoreNotFound(err) // the trial is over
				}
				if o.GetName() != g.key.Name {
					t.Errorf("%s: tried is another name, %q, which policies may refuse", tt.reason, o.GetName())
				}
				return tt.answer
			}
			g.change(func(o *v1alpha1.Credential) { o.Spec.Target.Type = corev1.SecretTypeTLS })
			if _, err := g.reconcile(); (err == nil) != tt.replaced || err != nil && !strings.Contains(err.Error(), tt.says) {
				t.Errorf("%s: %v", tt.reason, err)
			}
			s := &corev1.Secret{}
			if err := g.client.Get(t.Context(), g.key, s); err != nil || (s.Type == corev1.SecretTypeTLS) != tt.replaced || (g.password() != before) != tt.replaced {
				t.Errorf("%s: the Secret is of type %s and has %q, before %q: %v", tt.reason, s.Type, g.password(), before, err)
			}
		})
	}
}

// TestNotOurs: a Secret of somebody else is left alone, and nothing is leased for it.
func TestNotOurs(t *testing.T) {
	g := newRig(t, minute(), nil, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: space, Name: "keys"}, Data: map[string][]byte{"credentials": []byte("password=theirs")}})
	g.must()
	g.wants("Ready", "False", "NameTaken")
	if g.password() != "theirs" || g.vault.Leased() > 0 || len(g.vault.Logins()) > 0 {
		t.Errorf("the Secret has %s, %d leases", g.password(), g.vault.Leased())
	}
	g.delete()
	g.must()
	if !g.gone() || g.password() != "theirs" {
		t.Errorf("gone: %t, the Secret has %s", g.gone(), g.password())
	}
}

// TestConsent: a login goes where its owner or the operator says, and nowhere else.
func TestConsent(t *testing.T) {
	secret := func(data map[string]string) *corev1.Secret {
		return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: space, Name: "login"}, StringData: data, Data: func() map[string][]byte {
			d := map[string][]byte{}
			for k, v := range data {
				d[k] = []byte(v)
			}
			return d
		}()}
	}
	appRole := v1alpha1.VaultAuth{AppRole: &v1alpha1.VaultAppRoleAuth{Mount: "approle", RoleID: "r", SecretRef: v1alpha1.LocalReference{Name: "login"}}}
	jwt := v1alpha1.VaultAuth{JWT: &v1alpha1.VaultJWTAuth{Mount: "jwt", Role: "r", SecretRef: &v1alpha1.LocalReference{Name: "login"}}}
	account := func(annotation string) v1alpha1.VaultAuth {
		return v1alpha1.VaultAuth{JWT: &v1alpha1.VaultJWTAuth{Mount: "jwt", Role: "r", ServiceAccountName: annotation, Audiences: []string{"vault"}}}
	}
	for name, tc := range map[string]struct {
		reason    string
		auth      v1alpha1.VaultAuth
		data      map[string]string
		operator  bool
		audiences []string
		want      string
	}{
		"Account":        {"the account names the address", account("cascade-vault"), nil, false, nil, "Succeeded"},
		"OtherAccount":   {"one that does not is not used", account("default"), nil, false, nil, "CredentialRefused"},
		"Operator":       {"unless the operator names it", account("default"), nil, true, nil, "Succeeded"},
		"MissingAccount": {"one that is not there", account("nobody"), nil, false, nil, "CredentialMissing"},
		"ServerToken":    {"what the API server takes goes to nobody's server", account("cascade-vault"), nil, false, []string{"vault", "https://kubernetes.default.svc"}, "CredentialRefused"},
		"ServerTokenOK":  {"but to the operator's", account("cascade-vault"), nil, true, []string{"https://kubernetes.default.svc"}, "Succeeded"},
		"Secret":         {"the Secret names the address", appRole, map[string]string{"secret-id": "s", "vault-address": "ADDRESS"}, false, nil, "Succeeded"},
		"SilentSecret":   {"one that does not is not sent", appRole, map[string]string{"secret-id": "s"}, false, nil, "CredentialRefused"},
		"OtherSecret":    {"nor one for another server", appRole, map[string]string{"secret-id": "s", "vault-address": "https://other.example.com"}, false, nil, "CredentialRefused"},
		"SecretOfAll":    {"unless the operator names it", appRole, map[string]string{"secret-id": "s"}, true, nil, "Succeeded"},
		"KeyMissing":     {"a Secret without the key", appRole, map[string]string{"vault-address": "ADDRESS"}, false, nil, "CredentialMissing"},
		"SecretMissing":  {"no Secret", appRole, nil, false, nil, "CredentialMissing"},
		"Token":          {"a token of a Secret", jwt, map[string]string{"token": "t", "vault-address": "ADDRESS"}, false, nil, "Succeeded"},
		"SilentToken":    {"the same of a token", jwt, map[string]string{"token": "t"}, false, nil, "CredentialRefused"},
		"NoKeyOfTheirs":  {"a certificate that is none", v1alpha1.VaultAuth{Cert: &v1alpha1.VaultCertAuth{Mount: "cert", SecretRef: v1alpha1.LocalReference{Name: "login"}}}, map[string]string{"tls.crt": "x", "tls.key": "y", "vault-address": "ADDRESS"}, false, nil, "CredentialMissing"},
		"NoMethod":       {"no method", v1alpha1.VaultAuth{}, nil, true, nil, "InvalidSpec"},
	} {
		t.Run(name, func(t *testing.T) {
			objects := []client.Object{&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: space, Name: "default"}}}
			g := newRig(t, minute(), func(o *v1alpha1.Credential) {
				o.Spec.Vault.Auth = tc.auth
				if tc.audiences != nil {
					auth := *tc.auth.JWT
					auth.Audiences = tc.audiences
					o.Spec.Vault.Auth.JWT = &auth
				}
			}, objects...)
			if tc.data != nil {
				data := maps.Clone(tc.data)
				for k, v := range data {
					data[k] = strings.ReplaceAll(v, "ADDRESS", g.vault.URL)
				}
				if err := g.client.Create(t.Context(), secret(data)); err != nil {
					t.Fatal(err)
				}
			}
			if tc.operator {
				g.r.VaultAddresses = []string{g.vault.URL + "/"}
			}
			g.must()
			if _, reason := g.condition("Ready"); reason != tc.want {
				t.Errorf("%s: %s, want %s: %+v", tc.reason, reason, tc.want, g.object().Status.Conditions)
			}
			if sent := len(g.vault.Logins()) > 0; sent != (tc.want == "Succeeded") {
				t.Errorf("%s: logins %v", tc.reason, g.vault.Logins())
			}
		})
	}
}

// TestRefused: a server that will not is told by its reason, and asked again.
func TestRefused(t *testing.T) {
	role := minute()
	role.Denied = true
	g := newRig(t, role, nil)
	g.must()
	g.wants("Ready", "False", "VaultRefused")
	g.vault.Role.Denied = false
	g.pass(5 * time.Second)
	g.wants("Ready", "True", "Succeeded")
}

// TestField: an answer without what the Secret is to have leaves nothing leased.
func TestField(t *testing.T) {
	g := newRig(t, minute(), func(o *v1alpha1.Credential) { o.Spec.Target.Data = values{"a": {From: "nothing"}} })
	g.must()
	g.wants("Ready", "False", "AnswerInvalid")
	if n := len(g.vault.Valid()); n > 0 {
		t.Errorf("%d leases are left", n)
	}
}

// TestLoginEnds: a lease that would outlive the login it was got with is told to end with it.
func TestLoginEnds(t *testing.T) {
	g := newRig(t, vaultserver.Role{Lease: time.Hour, Login: 30 * time.Second, Renewable: true}, nil)
	for range 120 {
		g.pass(time.Second)
		if g.vault.Valid()[g.password()].ID == "" {
			t.Fatalf("at %s: the Secret has nothing valid", g.at.Sub(epoch))
		}
	}
	if e := g.object().Status.ExpiresAt; e == nil || e.Sub(g.at) > 30*time.Second {
		t.Errorf("it is told to end at %v", e)
	}
}

// TestBatchLogin: logins that cannot be revoked leave leases that are.
func TestBatchLogin(t *testing.T) {
	g := newRig(t, vaultserver.Role{Lease: time.Minute, Login: time.Hour, Batch: true}, nil)
	g.pass(2 * time.Minute)
	g.delete()
	g.must()
	if n := len(g.vault.Valid()); n > 0 || !g.gone() {
		t.Errorf("%d leases are valid, gone: %t", n, g.gone())
	}
}

// TestMayNotRevoke: without the right, the deletion waits until all has lapsed, and says so;
// whoever does not want to wait says that.
func TestMayNotRevoke(t *testing.T) {
	role := vaultserver.Role{Lease: time.Minute, Login: 2 * time.Minute, MayNotRevoke: true}
	g := newRig(t, role, nil)
	g.must()
	g.delete()
	g.must()
	g.wants("Ready", "False", "RevocationPending")
	g.at = g.at.Add(2 * time.Minute)
	g.must()
	if !g.gone() {
		t.Error("it waits for what has lapsed")
	}
	g = newRig(t, role, nil)
	g.must()
	g.delete()
	g.must()
	g.change(func(o *v1alpha1.Credential) { no := false; o.Spec.RevokeOnDelete = &no })
	g.must()
	if !g.gone() {
		t.Error("it waits for what is not to be revoked")
	}
}

// TestDeletedWhileDown: the deletion waits for the server, and revokes.
func TestDeletedWhileDown(t *testing.T) {
	g := newRig(t, minute(), nil)
	g.must()
	g.vault.SetDown(true)
	g.delete()
	g.must()
	if g.wants("Ready", "False", "RevocationPending"); g.gone() {
		t.Fatal("gone with a lease")
	}
	g.vault.SetDown(false)
	g.at = g.at.Add(5 * time.Second)
	g.must()
	if n := len(g.vault.Valid()); n > 0 || !g.gone() {
		t.Errorf("%d leases are valid, gone: %t", n, g.gone())
	}
}

// TestSuspend: what is there stays, and lapses.
func TestSuspend(t *testing.T) {
	g := newRig(t, minute(), nil)
	g.must()
	first := g.password()
	g.change(func(o *v1alpha1.Credential) { o.Spec.Suspend = true })
	g.pass(45 * time.Second)
	g.wants("Ready", "True", "Suspended")
	g.pass(30 * time.Second)
	g.pass(time.Minute)
	if g.wants("Ready", "False", "CredentialLapsed"); g.password() != first {
		t.Errorf("the Secret has %s", g.password())
	}
	g.change(func(o *v1alpha1.Credential) { o.Spec.Suspend = false })
	g.must()
	g.wants("Ready", "True", "Succeeded")
}

// TestRequest: a reconcile that is asked for makes the next attempt at once.
func TestRequest(t *testing.T) {
	g := newRig(t, minute(), nil)
	g.vault.SetDown(true)
	g.pass(3 * time.Minute)
	g.vault.SetDown(false)
	o := g.object()
	o.Annotations = map[string]string{meta.ReconcileRequestAnnotation: "now"}
	if err := g.client.Update(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	g.must()
	if g.wants("Ready", "True", "Succeeded"); g.object().Status.LastHandledReconcileAt != "now" {
		t.Error("the request is not told to be handled")
	}
}

// TestStaticContent: what has no end is read again, without a lease, a login that stays, or a
// restart of its readers as long as it is the same.
func TestStaticContent(t *testing.T) {
	d := deployment("controller")
	g := newRig(t, vaultserver.Role{Login: time.Hour, Data: map[string]any{"password": "same"}}, func(o *v1alpha1.Credential) {
		o.Spec.Restart = []v1alpha1.CredentialReader{{Kind: "Deployment", Name: "controller"}}
	}, d)
	g.must()
	number := g.read("controller")
	g.pass(40 * time.Minute)
	if g.password() != "same" || g.read("controller") != number {
		t.Errorf("the Secret has %s, the reader %s and %s before", g.password(), g.read("controller"), number)
	}
	if calls := g.vault.Calls(); count(calls, "GET aws/creds/capa") < 4 || count(calls, "PUT auth/token/revoke-self") < 4 {
		t.Errorf("calls %v", calls)
	}
	if o := g.object(); o.Status.ExpiresAt != nil || o.Status.Unrevoked != 0 {
		t.Errorf("status %+v", o.Status)
	}
	g.vault.Role.Data = map[string]any{"password": "other"}
	g.pass(11 * time.Minute)
	if g.password() != "other" || g.read("controller") == number {
		t.Errorf("the Secret has %s, the reader %s as before", g.password(), g.read("controller"))
	}
}

func count(calls []string, one string) int {
	n := 0
	for _, c := range calls {
		if c == one {
			n++
		}
	}
	return n
}

func deployment(name string) *appsv1.Deployment {
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: space, Name: name, CreationTimestamp: metav1.Time{Time: epoch.Add(-time.Hour)}},
		Status:     appsv1.DeploymentStatus{Replicas: 1, UpdatedReplicas: 1, AvailableReplicas: 1},
	}
}

// read is the credential that a Deployment was restarted with.
func (g *rig) read(name string) string {
	g.t.Helper()
	d := &appsv1.Deployment{}
	if err := g.client.Get(g.t.Context(), client.ObjectKey{Namespace: space, Name: name}, d); err != nil {
		g.t.Fatal(err)
	}
	return d.Spec.Template.Annotations["credential.cascade.dev/keys"]
}

// TestReaders: what reads at its start is restarted with each new credential and with no
// renewal, and the old one stays until no pod of before is left.
func TestReaders(t *testing.T) {
	role := vaultserver.Role{Lease: time.Minute, Login: time.Hour}
	g := newRig(t, role, func(o *v1alpha1.Credential) {
		o.Spec.Grace.Duration = 0
		o.Spec.Restart = []v1alpha1.CredentialReader{{Kind: "Deployment", Name: "controller"}, {Kind: "Deployment", Name: "nothing"}}
	}, deployment("controller"))
	g.must()
	first := g.read("controller")
	if first == "" {
		t.Fatal("it was not restarted")
	}
	d := &appsv1.Deployment{}
	if err := g.client.Get(t.Context(), client.ObjectKey{Namespace: space, Name: "controller"}, d); err != nil {
		t.Fatal(err)
	}
	d.Status.UpdatedReplicas, d.Status.Replicas = 1, 2 // a pod of before is left
	if err := g.client.Status().Update(t.Context(), d); err != nil {
		t.Fatal(err)
	}
	g.pass(45 * time.Second)
	if second := g.read("controller"); second == first {
		t.Error("it was not restarted with the second one")
	}
	if n := len(g.vault.Valid()); n != 2 {
		t.Errorf("%d are valid while a pod has the old one", n)
	}
	if err := g.client.Get(t.Context(), client.ObjectKey{Namespace: space, Name: "controller"}, d); err != nil {
		t.Fatal(err)
	}
	d.Status.Replicas = 1
	if err := g.client.Status().Update(t.Context(), d); err != nil {
		t.Fatal(err)
	}
	g.pass(6 * time.Second)
	if n := len(g.vault.Valid()); n != 1 {
		t.Errorf("%d are valid after the restart", n)
	}
}

// TestReadersOfTheNext: a Credential that is made again leases something else. Who was restarted with
// what the one before it had, which was revoked, is restarted.
func TestReadersOfTheNext(t *testing.T) {
	g := newRig(t, vaultserver.Role{Lease: time.Minute, Login: time.Hour}, func(o *v1alpha1.Credential) {
		o.Spec.Restart = []v1alpha1.CredentialReader{{Kind: "Deployment", Name: "controller"}}
	}, deployment("controller"))
	g.must()
	first, again := g.read("controller"), g.object()
	again.ObjectMeta = metav1.ObjectMeta{Namespace: space, Name: again.Name, UID: "u2", Generation: 1}
	again.Status = v1alpha1.CredentialStatus{}
	g.delete()
	if g.must(); !g.gone() {
		t.Fatal("the first one is there")
	}
	g.at = g.at.Add(20 * time.Second)
	for _, name := range []string{g.key.Name, leasesName(g.key.Name)} { // the garbage collector's part
		s := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: space, Name: name}}
		if err := client.IgnoreNotFound(g.client.Delete(t.Context(), s)); err != nil {
			t.Fatal(err)
		}
	}
	if err := g.client.Create(t.Context(), again); err != nil {
		t.Fatal(err)
	}
	g.must()
	if second := g.read("controller"); second == first {
		t.Errorf("it was not restarted, and has what was revoked: %s", second)
	}
	if g.vault.Valid()[g.password()].ID == "" {
		t.Error("what the Secret has is not valid")
	}
}

// TestServiceAccountToken: a token of an account that allows it.
func TestServiceAccountToken(t *testing.T) {
	g := newRig(t, minute(), func(o *v1alpha1.Credential) {
		o.Spec.Vault = nil
		o.Spec.Target.Data = values{"credentials": {Value: "password=${token}"}}
		o.Spec.ServiceAccountToken = &v1alpha1.ServiceAccountTokenSource{ServiceAccountName: "worker", Audiences: []string{"sts.amazonaws.com"}, Lifetime: metav1.Duration{Duration: time.Hour}}
	}, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: space, Name: "worker"}})
	g.must()
	g.wants("Ready", "False", "CredentialRefused")
	account := &corev1.ServiceAccount{}
	if err := g.client.Get(t.Context(), client.ObjectKey{Namespace: space, Name: "worker"}, account); err != nil {
		t.Fatal(err)
	}
	account.Annotations = map[string]string{v1alpha1.CredentialsAnnotation: "others, keys"}
	if err := g.client.Update(t.Context(), account); err != nil {
		t.Fatal(err)
	}
	g.pass(5 * time.Second)
	if g.wants("Ready", "True", "Succeeded"); g.password() != jwtOf+"worker" {
		t.Errorf("the Secret has %s", g.password())
	}
	if o := g.object(); o.Status.ExpiresAt == nil || o.Status.RenewAt == nil {
		t.Errorf("status %+v", o.Status)
	}
}

// TestTokenClocks: the life of a token is counted by one clock, whatever that of the API server is (read 698).
func TestTokenClocks(t *testing.T) {
	for name, apart := range map[string]time.Duration{"Behind": -2 * time.Hour, "Ahead": 40 * time.Minute} {
		t.Run(name, func(t *testing.T) {
			g := newRig(t, minute(), func(o *v1alpha1.Credential) {
				o.Spec.Vault = nil
				o.Spec.Target.Data = values{"credentials": {Value: "password=${token}"}}
				o.Spec.ServiceAccountToken = &v1alpha1.ServiceAccountTokenSource{ServiceAccountName: "worker", Audiences: []string{"sts.amazonaws.com"}, Lifetime: metav1.Duration{Duration: time.Hour}}
			}, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: space, Name: "worker", Annotations: map[string]string{v1alpha1.CredentialsAnnotation: "keys"}}})
			g.apart = apart
			g.must()
			if g.wants("Ready", "True", "Succeeded"); g.tokens != 1 {
				t.Errorf("%d tokens were issued, want one", g.tokens)
			}
			if s := g.object().Status; s.ExpiresAt == nil || !s.ExpiresAt.Equal(&metav1.Time{Time: at(3600)}) || !s.RenewAt.Equal(&metav1.Time{Time: at(2400)}) {
				t.Errorf("status %+v", s)
			}
		})
	}
}

// TestLifeOf: a token says itself for how long it is good where that is less.
func TestLifeOf(t *testing.T) {
	seconds := int64(3600)
	issued := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &seconds}}
	for name, tc := range map[string]struct {
		claims map[string]any
		want   time.Duration
	}{
		"Less":   {map[string]any{"iat": at(0).Unix(), "exp": at(900).Unix()}, 15 * time.Minute},
		"More":   {map[string]any{"iat": at(0).Unix(), "exp": at(1 << 25).Unix()}, time.Hour}, // the API server extends some
		"NoEnd":  {map[string]any{"iat": at(0).Unix()}, time.Hour},
		"Absurd": {map[string]any{"iat": at(900).Unix(), "exp": at(0).Unix()}, time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			text, err := json.Marshal(tc.claims)
			if err != nil {
				t.Fatal(err)
			}
			part := base64.RawURLEncoding.EncodeToString
			issued.Status.Token = part([]byte(`{"alg":"RS256"}`)) + "." + part(text) + "." + part([]byte("signed"))
			if got := lifeOf(issued); got != tc.want {
				t.Errorf("lifeOf() = %s, want %s", got, tc.want)
			}
		})
	}
}

// TestFile: a file below the directory, for the agent's own namespace, and no other.
func TestFile(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "token"), []byte(token(at(3600))), 0o600); err != nil {
		t.Fatal(err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	for name, tc := range map[string]struct {
		reason, path, own string
		root              *os.Root
		want              string
	}{
		"Read":      {"a file", "token", space, root, "Succeeded"},
		"Elsewhere": {"of another namespace", "token", "cascade-system", root, "CredentialRefused"},
		"NoFlag":    {"without the flag", "token", space, nil, "CredentialRefused"},
		"Outside":   {"outside of the directory", "../etc/passwd", space, root, "FileUnreadable"},
		"Missing":   {"one that is not there", "nothing", space, root, "FileUnreadable"},
		"Directory": {"a directory", ".", space, root, "FileUnreadable"},
	} {
		t.Run(name, func(t *testing.T) {
			g := newRig(t, minute(), func(o *v1alpha1.Credential) {
				o.Spec.Vault, o.Spec.File = nil, &v1alpha1.FileSource{Path: tc.path}
				o.Spec.Target.Data = values{"credentials": {Value: "password=${token}"}}
			})
			g.r.Namespace, g.r.Files = tc.own, tc.root
			g.must()
			if _, reason := g.condition("Ready"); reason != tc.want {
				t.Errorf("%s: %s, want %s: %+v", tc.reason, reason, tc.want, g.object().Status.Conditions)
			}
			if c := apimeta.FindStatusCondition(g.object().Status.Conditions, "Ready"); strings.Contains(c.Message, dir) {
				t.Errorf("the message tells a path of the machine: %s", c.Message)
			}
		})
	}
}

// TestJournalBroken: what cannot be read is not written over, and keeps nobody who says so from deleting the Credential.
func TestJournalBroken(t *testing.T) {
	foreign := metav1.OwnerReference{APIVersion: "v1", Kind: "ConfigMap", Name: "other", UID: "other", Controller: new(true)}
	for name, tt := range map[string]struct {
		reason string
		change func(*corev1.Secret)
		want   string
		stays  bool
	}{
		"Cut":     {"a part of it is there", func(s *corev1.Secret) { s.Data["leases.json"] = []byte("{") }, "RecordInvalid", false},
		"Foreign": {"somebody else has it", func(s *corev1.Secret) { s.OwnerReferences = []metav1.OwnerReference{foreign} }, "NameTaken", true},
	} {
		t.Run(name, func(t *testing.T) {
			g := newRig(t, minute(), nil)
			g.must()
			key := client.ObjectKey{Namespace: space, Name: "cascade-leases.keys"}
			s := &corev1.Secret{}
			if err := g.client.Get(t.Context(), key, s); err != nil {
				t.Fatal(err)
			}
			tt.change(s)
			if err := g.client.Update(t.Context(), s); err != nil {
				t.Fatal(err)
			}
			broken := func(kind, reason string) {
				t.Helper()
				if _, err := g.reconcile(); err == nil {
					t.Errorf("%s: no error", tt.reason)
				}
				g.wants(kind, map[string]metav1.ConditionStatus{"Ready": "False", "SourceFailing": "True"}[kind], reason)
			}
			broken("SourceFailing", tt.want)
			// What the Secret has is valid, as long as it is.
			if g.wants("Ready", "True", "Succeeded"); g.vault.Leased() != 1 {
				t.Errorf("%d were leased", g.vault.Leased())
			}
			g.delete()
			broken("Ready", tt.want)
			g.change(func(o *v1alpha1.Credential) { o.Spec.RevokeOnDelete = new(false) })
			if g.must(); !g.gone() {
				t.Errorf("%s: the Credential does not go: %+v", tt.reason, g.object().Status.Conditions)
			}
			if err := g.client.Get(t.Context(), key, s); tt.stays && err != nil {
				t.Errorf("the Secret of somebody else: %v", err)
			}
		})
	}
}

// TestConflict: a Secret of the API server that refuses a write of an older version is
// written in the next look.
func TestConflict(t *testing.T) {
	g := newRig(t, minute(), nil)
	once := false
	g.refuse = func(_ int64, _ string, o client.Object) error {
		if s, ok := o.(*corev1.Secret); ok && s.Name == "keys" && !once {
			once = true
			return apierrors.NewConflict(schema.GroupResource{Resource: "secrets"}, "keys", errors.New("changed"))
		}
		return nil
	}
	if result := g.must(); result.RequeueAfter != time.Second {
		t.Errorf("looked at again after %s", result.RequeueAfter)
	}
	g.must()
	// What the Secret never had was given back.
	g.pass(70 * time.Second)
	valid := g.vault.Valid()
	if len(valid) != 1 || valid[g.password()].ID == "" {
		t.Errorf("the Secret has %s, valid are %v", g.password(), valid)
	}
}

// TestLeft: a Credential that other labels make another agent's is renewed by that one alone.
func TestLeft(t *testing.T) {
	g := newRig(t, vaultserver.Role{Lease: time.Hour, Login: 10 * time.Hour}, nil)
	if g.must().RequeueAfter <= 0 {
		t.Fatal("nobody looks again")
	}
	g.r.Shard = func(client.Object) bool { return false }
	before := g.writes.Load()
	if result := g.must(); result.RequeueAfter != 0 || g.writes.Load() != before || len(g.r.attempts) != 0 {
		t.Errorf("again after %s, %d writes, known is %v", result.RequeueAfter, g.writes.Load()-before, g.r.attempts)
	}
}
