package remote

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"math/big"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/capibridge"
	"github.com/cascade-gitops/cascade/remote/account"
	"github.com/cascade-gitops/cascade/remote/providers"
)

func certificate(t *testing.T, from, to time.Time) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: from, NotAfter: to}, &x509.Certificate{SerialNumber: big.NewInt(1)}, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	return pemOf(der)
}

func pemOf(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

func webToken(claims string) string {
	return "e30." + base64.RawURLEncoding.EncodeToString([]byte(claims)) + ".sig"
}

func TestLifeOf(t *testing.T) {
	at := func(seconds int64) time.Time { return time.Unix(seconds, 0).UTC() }
	// annotated was made long ago.
	annotated := func(manager *metav1.ManagedFieldsEntry, annotations ...string) corev1.Secret {
		o := corev1.Secret{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.Unix(10, 0), Annotations: map[string]string{}}}
		for i := 0; i < len(annotations); i += 2 {
			o.Annotations[annotations[i]] = annotations[i+1]
		}
		if manager != nil {
			o.ManagedFields = []metav1.ManagedFieldsEntry{{Time: new(metav1.Unix(5000, 0)), FieldsV1: metav1.NewFieldsV1(`{"f:metadata":{"f:labels":{}}}`)}, *manager}
		}
		return o
	}
	const tenPast, two = "1970-01-01T00:10:00Z", "1970-01-01T02:00:00Z"
	for name, tc := range map[string]struct {
		reason      string
		secret      corev1.Secret
		renew, ends time.Time
	}{
		"Nothing": {"a password says nothing", corev1.Secret{Data: map[string][]byte{"password": []byte("x")}}, time.Time{}, time.Time{}},
		"Annotation": {
			"who made the Secret may say it, and is believed before anything else",
			corev1.Secret{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.Unix(10, 0), Annotations: map[string]string{v1alpha1.ExpiresAnnotation: "1970-01-01T00:01:40Z"}}, Data: map[string][]byte{"token": []byte(webToken(`{"exp":5}`))}},
			at(70), at(100),
		},
		"RenewedInPlace": {"a Credential renews the same Secret", annotated(nil, v1alpha1.ExpiresAnnotation, two, v1alpha1.IssuedAnnotation, tenPast, v1alpha1.RenewedAnnotation, "1970-01-01T01:00:00Z"), at(6000), at(7200)},
		"Replaced":       {"or replaces what it has", annotated(nil, v1alpha1.ExpiresAnnotation, two, v1alpha1.IssuedAnnotation, "1970-01-01T01:00:00Z"), at(6000), at(7200)},
		"RenewsLate":     {"its Credential says to renew it just before its end", annotated(nil, v1alpha1.ExpiresAnnotation, two, v1alpha1.IssuedAnnotation, tenPast, v1alpha1.RenewAnnotation, "1970-01-01T01:50:00Z"), at(6600), at(7200)},
		"RenewsEarly":    {"that it does so a little earlier by chance is no reason to warn", annotated(nil, v1alpha1.ExpiresAnnotation, two, v1alpha1.IssuedAnnotation, "1970-01-01T01:00:00Z", v1alpha1.RenewAnnotation, "1970-01-01T01:35:00Z"), at(6000), at(7200)},
		"Updated": {
			"who else renews it writes another end into it", annotated(&metav1.ManagedFieldsEntry{Time: new(metav1.Unix(3600, 0)), FieldsV1: metav1.NewFieldsV1(`{"f:metadata":{"f:annotations":{"f:cascade.dev/expires-at":{}}}}`)}, v1alpha1.ExpiresAnnotation, two),
			at(6000), at(7200),
		},
		"BadAnnotation": {"what is not a time says nothing", corev1.Secret{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{v1alpha1.ExpiresAnnotation: "soon"}}}, time.Time{}, time.Time{}},
		"Token":         {"a token has it written in it", corev1.Secret{Data: map[string][]byte{"bearerToken": []byte(webToken(`{"iat":10,"exp":100}`))}}, at(70), at(100)},
		"Certificate":   {"so has a certificate", corev1.Secret{Data: map[string][]byte{"tls.crt": certificate(t, at(10), at(100))}}, at(70), at(100)},
		"Sooner":        {"of two, what lapses first counts", corev1.Secret{Data: map[string][]byte{"tls.crt": certificate(t, at(10), at(100)), "token": []byte(webToken(`{"iat":20,"exp":50}`))}}, at(40), at(50)},
		"Undated": {
			"a token need not say when it was issued: it has been here since it was written", corev1.Secret{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.Unix(3600, 0)}, Data: map[string][]byte{"token": []byte(webToken(`{"exp":7200}`))}},
			at(6000), at(7200),
		},
		"UndatedInPlace": {
			"who renews it writes another one into the Secret", corev1.Secret{
				ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.Unix(10, 0), ManagedFields: []metav1.ManagedFieldsEntry{
					{Time: new(metav1.Unix(3600, 0)), FieldsV1: metav1.NewFieldsV1(`{"f:data":{".":{},"f:token":{}}}`)},
					{Time: new(metav1.Unix(7000, 0)), FieldsV1: metav1.NewFieldsV1(`{"f:data":{"f:username":{}}}`)},
				}},
				Data: map[string][]byte{"token": []byte(webToken(`{"exp":7200}`))},
			},
			at(6000), at(7200),
		},
		"Hostile":   {"numbers that are no times say nothing", corev1.Secret{Data: map[string][]byte{"token": []byte(webToken(`{"iat":9e99,"exp":1e99}`))}}, time.Time{}, time.Time{}},
		"Backwards": {"a life that ends before it begins is none", corev1.Secret{Data: map[string][]byte{"token": []byte(webToken(`{"iat":100,"exp":50}`))}}, time.Time{}, time.Time{}},
		"Rubbish":   {"a token of three parts may be something else", corev1.Secret{Data: map[string][]byte{"token": []byte("a.b.c")}}, time.Time{}, time.Time{}},
	} {
		t.Run(name, func(t *testing.T) {
			if renew, ends := lifeOf(&tc.secret); !renew.Equal(tc.renew) || !ends.Equal(tc.ends) {
				t.Errorf("%s: lifeOf() = %s, %s, want %s, %s", tc.reason, renew, ends, tc.renew, tc.ends)
			}
		})
	}
}

// counted answers each Get with a Secret or ConfigMap, and counts.
type counted struct {
	client.Reader
	mu    sync.Mutex
	reads int
	none  bool
}

func (c *counted) Get(_ context.Context, name types.NamespacedName, into client.Object, _ ...client.GetOption) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.reads++
	if c.none {
		return apierrors.NewNotFound(corev1.Resource("secrets"), name.Name)
	}
	into.SetName(name.Name)
	into.SetUID("u")
	into.SetResourceVersion("1")
	return nil
}

func TestReferenceCache(t *testing.T) {
	now := start.Time
	from := &counted{}
	h := &referenceCache{now: func() time.Time { return now }}
	var noted []string
	note := func(ref reference, version string) { noted = append(noted, ref.kind+"/"+ref.name+"="+version) }
	get := func(name string, into client.Object) error {
		return (&referenceReader{Reader: from, cache: h, noted: note}).Get(t.Context(), types.NamespacedName{Namespace: "fleet", Name: name}, into)
	}
	for range 3 {
		secret := &corev1.Secret{}
		if err := get("a", secret); err != nil || secret.Name != "a" {
			t.Fatalf("Get() = %v, %q", err, secret.Name)
		}
	}
	if from.reads != 1 || !slices.Equal(noted, []string{"Secret/a=u 1", "Secret/a=u 1", "Secret/a=u 1"}) {
		t.Errorf("%d reads of one Secret for three children, which have %q", from.reads, noted)
	}
	if err := get("a", &corev1.ConfigMap{}); err != nil || from.reads != 2 {
		t.Errorf("a ConfigMap of the same name is another object: %v, %d reads", err, from.reads)
	}
	now = now.Add(referenceHolds)
	if err := get("a", &corev1.Secret{}); err != nil || from.reads != 3 {
		t.Errorf("a Secret that was read a while ago is read again: %v, %d reads", err, from.reads)
	}
	h.drop("fleet", reference{"ConfigMap", "a"})
	h.drop("other", reference{"Secret", "a"})
	if err := get("a", &corev1.Secret{}); err != nil || from.reads != 3 {
		t.Errorf("another object has changed: %v, %d reads", err, from.reads)
	}
	h.drop("fleet", reference{"Secret", "a"})
	if err := get("a", &corev1.Secret{}); err != nil || from.reads != 4 {
		t.Errorf("a Secret that has changed is read again: %v, %d reads", err, from.reads)
	}
	from.none = true
	for range 2 {
		if err := get("b", &corev1.Secret{}); !apierrors.IsNotFound(err) {
			t.Errorf("Get() of nothing = %v", err)
		}
	}
	if from.reads != 6 || noted[len(noted)-1] != "Secret/b=" {
		t.Errorf("what is not there may appear any moment: %d reads, the last of %s", from.reads, noted[len(noted)-1])
	}
	if len(h.read) > 2 {
		t.Errorf("%d objects are kept", len(h.read))
	}
}

// TestReferencesOfAccounts: what was read as one account a moment ago is not handed to
// another, which may not read it.
func TestReferencesOfAccounts(t *testing.T) {
	h := &referenceCache{now: func() time.Time { return start.Time }}
	may, mayNot := &counted{}, &counted{none: true}
	read := func(from client.Reader, as string) error {
		return (&referenceReader{Reader: from, as: account.Account{Namespace: "fleet", Name: as}, cache: h, noted: func(reference, string) {}}).
			Get(t.Context(), types.NamespacedName{Namespace: "fleet", Name: "a"}, &corev1.Secret{})
	}
	for range 2 {
		if err := read(may, "deployer"); err != nil {
			t.Errorf("Get() as one that may = %v", err)
		}
		if err := read(mayNot, "guest"); !apierrors.IsNotFound(err) {
			t.Errorf("Get() as one that may not = %v", err)
		}
	}
	if may.reads != 1 || mayNot.reads != 2 {
		t.Errorf("%d reads as the one, %d as the other", may.reads, mayNot.reads)
	}
}

// TestDelivered: the credentials of a provider are listed beside those of the agent.
func TestDelivered(t *testing.T) {
	lapses := corev1.Secret{Data: map[string][]byte{"token": []byte(webToken(`{"iat":0,"exp":90}`))}}
	s := &seeding{
		layer: &v1alpha1.Layer{ObjectMeta: metav1.ObjectMeta{Name: "platform"}},
		credentials: []credential{
			{name: "git-auth", secret: &corev1.Secret{}}, {name: "keys", secret: &corev1.Secret{}, meant: true}, {name: "minted", kept: &v1alpha1.Credential{}},
		},
		components: components{
			wanted: []providers.Wanted{
				{Label: "cluster-api"},
				{Label: "infrastructure-aws", Credentials: []v1alpha1.CredentialReference{{Name: "keys"}, {Name: "token"}}},
			},
			credentials: map[string][]credential{"infrastructure-aws": {{name: "keys", secret: &corev1.Secret{}}, {name: "token", secret: &lapses}}},
		},
	}
	at := func(seconds int64) *metav1.Time { return &metav1.Time{Time: time.Unix(seconds, 0).UTC()} }
	want := []v1alpha1.ChildCredential{
		{Name: "git-auth", Unlimited: true, Layer: "platform"}, {Name: "keys", Layer: "platform"}, {Name: "minted", From: v1alpha1.CredentialFromVault, Layer: "platform"},
		{Name: "infrastructure-aws/keys", Unlimited: true, Layer: "platform"}, {Name: "infrastructure-aws/token", Layer: "platform", ExpiresAt: at(90), RenewAt: at(60)},
	}
	if diff := cmp.Diff(want, s.delivered()); diff != "" {
		t.Errorf("given(): -want, +got:\n%s", diff)
	}
}

// TestHold: what the child has of a layer that gets nothing now stays on record, and no other.
func TestHold(t *testing.T) {
	secret := func(seconds int64) *corev1.Secret {
		return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{v1alpha1.ExpiresAnnotation: time.Unix(seconds, 0).UTC().Format(time.RFC3339)}}}
	}
	held := func(name, layer string, seconds int64) v1alpha1.ChildCredential {
		return v1alpha1.ChildCredential{Name: name, Layer: layer, ExpiresAt: &metav1.Time{Time: time.Unix(seconds, 0).UTC()}}
	}
	before := []v1alpha1.ChildCredential{held("git", "base", 50), held("registry", "creds", 50), held("token", "creds", 50), {Name: "old"}}
	both := []v1alpha1.ChildCredential{held("git", "base", 50), held("registry", "creds", 50), held("token", "creds", 50)}
	for name, tc := range map[string]struct {
		reason string
		change func(*push)
		// brought: layer creds gets a token that was renewed.
		brought bool
		want    []v1alpha1.ChildCredential
	}{
		"Waits":     {reason: "a layer that waits does not say what another one had", brought: true, want: []v1alpha1.ChildCredential{held("git", "base", 50), held("token", "creds", 100)}},
		"Moved":     {reason: "what a layer gets now counts before what another one had", brought: true, change: func(p *push) { p.child.Status.Credentials = []v1alpha1.ChildCredential{held("token", "base", 50)} }, want: []v1alpha1.ChildCredential{held("token", "creds", 100)}},
		"Paused":    {reason: "the Cluster is paused", change: func(p *push) { p.cluster.Paused = true }, want: both},
		"Suspended": {reason: "both are suspended", change: func(p *push) { p.layers[0].layer.Spec.Suspend, p.layers[1].layer.Spec.Suspend = true, true }, want: both},
		"Depends":   {reason: "one waits for another layer", change: func(p *push) { p.layers[1].layer.Spec.DependsOn = []v1alpha1.LayerReference{{Name: "base"}} }, want: both},
		"Gone":      {reason: "a layer that does not select the child any more", change: func(p *push) { p.layers = p.layers[:1] }, want: both[:1]},
	} {
		t.Run(name, func(t *testing.T) {
			of := newPaced(time.Minute)
			of.Accounts = &account.Accounts{}
			of.undescribed = "its Machines cannot be listed" // so that nothing is gathered
			of.child.Status.Credentials = slices.Clone(before)
			p := &push{run: of.run, session: sessionOf(t, of.run), cluster: capibridge.Cluster{InfrastructureProvisioned: true, ControlPlaneInitialized: true}}
			for _, name := range []string{"base", "creds"} {
				s := &seeding{push: p, layer: layerOn(name), notes: of.notes.of(name)}
				s.notes.looked = true
				p.layers = append(p.layers, s)
			}
			if tc.change != nil {
				tc.change(p)
			}
			p.applyLayers(t.Context())
			if tc.brought {
				creds := p.layers[1]
				creds.credentials, creds.brought = []credential{{name: "token", secret: secret(100)}}, true
				p.noteDelivered()
			}
			if diff := cmp.Diff(tc.want, of.child.Status.Credentials); diff != "" {
				t.Errorf("%s: -want, +got:\n%s", tc.reason, diff)
			}
		})
	}
}
