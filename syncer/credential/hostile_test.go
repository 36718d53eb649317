package credential

import (
	"errors"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/syncer/vault"
	"github.com/cascade-gitops/cascade/syncer/vault/vaultserver"
)

// onTarget calls f once, for the first write of the target.
func onTarget(f func(o *corev1.Secret) error) func(int64, string, client.Object) error {
	done := false
	return func(_ int64, _ string, o client.Object) error {
		s, ok := o.(*corev1.Secret)
		if !ok || s.Name != "keys" || done {
			return nil
		}
		done = true
		return f(s)
	}
}

// TestGivesBack: what was leased for a Secret that somebody else wrote meanwhile ends at once,
// and not when the readers of something else had time. What got there stays.
func TestGivesBack(t *testing.T) {
	resource := schema.GroupResource{Resource: "secrets"}
	for name, tt := range map[string]struct {
		reason  string
		write   func(g *rig, s *corev1.Secret) error
		valid   int
		journal bool
		// after the next look.
		after int
	}{
		"Conflict": {"somebody else was faster", func(*rig, *corev1.Secret) error {
			return apierrors.NewConflict(resource, "keys", errors.New("changed"))
		}, 0, false, 1},
		"Exists": {"somebody else made it", func(*rig, *corev1.Secret) error { return apierrors.NewAlreadyExists(resource, "keys") }, 0, false, 1},
		"Arrived": {"a repeated request is refused by what it wrote itself", func(g *rig, s *corev1.Secret) error {
			if err := g.client.Create(g.t.Context(), s.DeepCopy()); err != nil {
				g.t.Fatal(err)
			}
			return apierrors.NewAlreadyExists(resource, "keys")
		}, 1, true, 1},
		"Unknown": {"whether it got there is not known: it stays for the grace", func(*rig, *corev1.Secret) error { return errors.New("connection reset") }, 1, true, 2},
	} {
		t.Run(name, func(t *testing.T) {
			g := newRig(t, minute(), func(o *v1alpha1.Credential) { o.Spec.Grace.Duration = time.Hour })
			refused := false
			g.refuse = onTarget(func(s *corev1.Secret) error { refused = true; return tt.write(g, s) })
			g.r.MayWrite = func() error {
				if refused {
					return errors.New("nobody goes on")
				}
				return nil
			}
			_, _ = g.reconcile()
			if n := len(g.vault.Valid()); n != tt.valid {
				t.Errorf("%s: %d leases are valid, want %d", tt.reason, n, tt.valid)
			}
			j := &corev1.Secret{}
			if err := g.client.Get(t.Context(), client.ObjectKey{Namespace: space, Name: leasesName("keys")}, j); err != nil {
				t.Fatal(err)
			}
			if is, err := parseJournal(j.Data[journalKey]); err != nil || (len(is.Entries) > 0) != tt.journal {
				t.Errorf("%s: the journal has %d entries, %v", tt.reason, len(is.Entries), err)
			}
			g.refuse, g.r.MayWrite = nil, nil
			g.at = g.at.Add(2 * time.Second)
			g.must()
			if valid := g.vault.Valid(); len(valid) != tt.after || valid[g.password()].ID == "" {
				t.Errorf("%s: the Secret has %s, valid are %v", tt.reason, g.password(), valid)
			}
		})
	}
}

// TestOrphan: a Secret that a restore or a pivot brought, without its owner, is kept fresh by
// the Credential that comes after it. One that no Credential wrote is somebody else's.
func TestOrphan(t *testing.T) {
	orphan := func(change func(*corev1.Secret)) *corev1.Secret {
		s := &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: space, Name: "keys", Annotations: map[string]string{
				v1alpha1.CredentialAnnotation: "7", v1alpha1.ContentAnnotation: "sha256:of-before", v1alpha1.IssuedAnnotation: formatTime(epoch),
				v1alpha1.ExpiresAnnotation: formatTime(epoch.Add(time.Hour)),
			}},
			Type: corev1.SecretTypeOpaque, Data: map[string][]byte{"credentials": []byte("password=of-before")},
		}
		change(s)
		return s
	}
	yes := true
	for name, tt := range map[string]struct {
		reason string
		secret *corev1.Secret
		taken  bool
	}{
		"Restored": {"its owner was another object of the same name", orphan(func(*corev1.Secret) {}), true},
		"Owned": {"somebody else keeps it", orphan(func(s *corev1.Secret) {
			s.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: "x", UID: "x", Controller: &yes}}
		}), false},
		"Written": {"a person wrote it", orphan(func(s *corev1.Secret) { s.Annotations = nil }), false},
	} {
		t.Run(name, func(t *testing.T) {
			g := newRig(t, minute(), nil, tt.secret)
			g.must()
			if got := g.password() != "of-before"; got != tt.taken {
				t.Errorf("%s: the Secret has %s", tt.reason, g.password())
			}
			if !tt.taken {
				g.wants("Ready", "False", "NameTaken")
				return
			}
			g.wants("Ready", "True", "Succeeded")
			s := &corev1.Secret{}
			if err := g.client.Get(t.Context(), g.key, s); err != nil {
				t.Fatal(err)
			}
			if !metav1.IsControlledBy(s, g.object()) || s.Annotations[v1alpha1.CredentialAnnotation] != strconv.FormatInt(epoch.Unix(), 10) {
				t.Errorf("owners %v, number %s", s.OwnerReferences, s.Annotations[v1alpha1.CredentialAnnotation])
			}
			g.pass(5 * time.Minute)
			if g.vault.Valid()[g.password()].ID == "" {
				t.Error("it is not kept")
			}
		})
	}
}

// TestHungServer: a server that takes calls and answers none is told of within a minute,
// however many leases are to be revoked.
func TestHungServer(t *testing.T) {
	g := newRig(t, vaultserver.Role{Lease: time.Minute, Login: time.Hour, MayNotRevoke: true}, nil)
	g.pass(6 * time.Minute)
	if g.vault.SetDown(true); g.object().Status.Unrevoked < 4 {
		t.Fatalf("%d leases are left", g.object().Status.Unrevoked)
	}
	var hung atomic.Int64
	g.vault.Before = func(string) { hung.Add(int64(20 * time.Second)) }
	now := func() time.Time { return g.at.Add(time.Duration(hung.Load())) }
	g.r.Now, g.r.Vault.(*vault.Clients).Now = now, now
	for down := now(); now().Sub(down) <= 90*time.Second; {
		began := now()
		result := g.must()
		if took := now().Sub(began); took > time.Minute {
			t.Fatalf("nothing was told for %s", took)
		}
		if _, reason := g.condition(v1alpha1.SourceFailingCondition); reason == v1alpha1.ReasonVaultUnreachable {
			return
		}
		g.at = g.at.Add(result.RequeueAfter)
	}
	t.Error("it is not told that the server is unreachable")
}
