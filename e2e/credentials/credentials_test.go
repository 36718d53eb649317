package credentials

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/e2e/scenario"
	"github.com/cascade-gitops/cascade/e2e/stage"
)

// duration is one of a variable, or what the short form takes.
func duration(t *testing.T, variable string, short time.Duration) time.Duration {
	t.Helper()
	text := os.Getenv(variable)
	if text == "" {
		return short
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		t.Fatalf("cannot read %s: %v", variable, err)
	}
	return d
}

// TestCredentials: three tiers have credentials that a real Vault leases, certificates and
// accounts of a cloud. They are renewed and replaced while the first tier is there and when it
// is gone, and when Vault was down. No credential that a Secret tells to be valid is refused,
// and in the end Vault has nothing leased. make credentials is the long form.
func TestCredentials(t *testing.T) {
	scenario.Alongside(t)
	lease := duration(t, "CASCADE_CREDENTIAL_LEASE", 20*time.Second)
	length := duration(t, "CASCADE_CREDENTIALS_FOR", 2*time.Minute)
	outage := duration(t, "CASCADE_CREDENTIALS_DOWN", 30*time.Second)

	cloud, vault := startIAM(t), startVault(t)
	vault.setUp(t, lease, cloud.url)
	mom := scenario.StartTier(t)
	master, environment := startPlane(t, mom, "master"), startPlane(t, mom, "environment")
	tiers := map[string]*tier{"mom": {mom.MoM, mom.Client}, "master": master, "environment": environment}
	for name, at := range tiers {
		vault.trust(t, at.Tier, "jwt-"+name, "system:serviceaccount:"+stage.Namespace+":cascade-vault")
	}

	// The first tier has them by itself, the others by the Layer of the tier above.
	apply(t, tiers["mom"].client, fmt.Sprintf(`apiVersion: v1
kind: ServiceAccount
metadata: {name: cascade-vault, namespace: cascade-system, annotations: {cascade.dev/vault-address: %q}}
---
apiVersion: cascade.dev/v1alpha1
kind: Credential
metadata: {name: certificate, namespace: cascade-system}
spec:
  grace: 2s
  vault: %s
  target: {type: kubernetes.io/tls, data: {tls.crt: {from: certificate}, tls.key: {from: private_key}}}
---
apiVersion: cascade.dev/v1alpha1
kind: Credential
metadata: {name: cloud, namespace: cascade-system}
spec:
  grace: 2s
  vault: %s
`, vault.url, source(vault, "jwt-mom", "certificate"), source(vault, "jwt-mom", "cloud")))
	layer(t, tiers["mom"].client, vault, "master", master.Tier)
	layer(t, master.client, vault, "environment", environment.Tier)

	w := &watch{vault: vault, cloud: cloud, tiers: tiers, lease: lease}
	for name := range tiers {
		for _, secret := range []string{"certificate", "cloud"} {
			w.fresh(t, name, secret)
		}
	}
	stop := w.begin(t)

	// The first tier goes after a sixth of the time, Vault in the middle of it.
	wait(t, length/6)
	w.leave("mom")
	momRevocations(t, tiers["mom"].client)
	if err := mom.MoM.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	wait(t, length/3)

	w.outage(true)
	vault.stop(t)
	for _, name := range []string{"master", "environment"} {
		scenario.Eventually(t, time.Minute, "tier "+name+" says that Vault does not answer", func(ctx context.Context) error {
			o := &v1alpha1.Credential{}
			if err := tiers[name].client.Get(ctx, client.ObjectKey{Namespace: stage.Namespace, Name: "cloud"}, o); err != nil {
				return err
			}
			if !meta.IsStatusConditionTrue(o.Status.Conditions, v1alpha1.SourceFailingCondition) {
				return fmt.Errorf("conditions are %s", scenario.Summary(o.Status.Conditions))
			}
			return nil
		})
	}
	wait(t, outage)
	vault.goOn(t)
	for _, name := range []string{"master", "environment"} {
		for _, secret := range []string{"certificate", "cloud"} {
			w.fresh(t, name, secret)
		}
	}
	w.outage(false)
	wait(t, length/3)

	stop()
	t.Logf("%d uses of %d credentials, of which %d when Vault was down", w.uses.Load(), w.seen(), w.usesDown.Load())
	if w.uses.Load() < 100 {
		t.Errorf("only %d uses", w.uses.Load())
	}
	for _, name := range []string{"master", "environment"} {
		if n := w.seenIn(name); n < 5 {
			t.Errorf("tier %s had %d credentials", name, n)
		}
	}

	// All goes, and nothing is left leased. The Layer that declares them is not to make them
	// again.
	if err := master.client.Delete(t.Context(), &v1alpha1.Layer{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "credentials"}}); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"master", "environment"} {
		for _, o := range []string{"certificate", "cloud"} {
			if err := tiers[name].client.Delete(t.Context(), &v1alpha1.Credential{ObjectMeta: metav1.ObjectMeta{Namespace: stage.Namespace, Name: o}}); err != nil {
				t.Fatal(err)
			}
		}
		for _, o := range []string{"certificate", "cloud"} {
			scenario.Eventually(t, scenario.Converge, "Credential "+o+" of tier "+name+" is gone", func(ctx context.Context) error {
				return gone(tiers[name].client.Get(ctx, client.ObjectKey{Namespace: stage.Namespace, Name: o}, &v1alpha1.Credential{}))
			})
		}
	}
	scenario.Eventually(t, scenario.Converge, "Vault has nothing leased", func(ctx context.Context) error {
		for _, path := range []string{"pki/issue/agents/", "aws/creds/capa/"} {
			left, err := vault.leases(ctx, path)
			if err != nil || len(left) > 0 {
				return fmt.Errorf("%s: %d leases are left: %v", path, len(left), err)
			}
		}
		if now, ever := cloud.count(); now > 0 || ever < 3 {
			return fmt.Errorf("the cloud has %d accounts, of %d", now, ever)
		}
		return nil
	})
}

func gone(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return errors.Join(err, errors.New("it is there"))
}

// tier is one with a client.
type tier struct {
	*stage.Tier
	client client.Client
}

// startPlane starts a control plane with an agent, that ends with the test.
func startPlane(t *testing.T, s *scenario.Tier, name string) *tier {
	t.Helper()
	plane, err := s.Cluster(t.Context(), name, "--api-only")
	if err != nil {
		t.Fatal(err)
	}
	c, err := plane.Client()
	if err != nil {
		t.Fatal(err)
	}
	scenario.InstallKinds(t, c, s.Stage)
	scenario.StartAgent(t, s.Stage, plane, name)
	return &tier{plane, c}
}

func apply(t *testing.T, c client.Client, text string) {
	t.Helper()
	if err := stage.Apply(t.Context(), c, text); err != nil {
		t.Fatal(err)
	}
}

// source is spec.vault in JSON.
func source(v *server, mount, of string) string {
	request := `{path: aws/creds/capa}`
	if of == "certificate" {
		request = `{path: pki/issue/agents, method: PUT, parameters: {common_name: agent}}`
	}
	return fmt.Sprintf(`{address: %q, auth: {jwt: {mount: %s, role: cascade, serviceAccountName: cascade-vault}}, request: %s}`, v.url, mount, request)
}

// layer makes a child of a tier, with a Layer that has its agent keep credentials.
func layer(t *testing.T, parent client.Client, v *server, name string, child *stage.Tier) {
	t.Helper()
	kubeconfig, err := os.ReadFile(child.Kubeconfig())
	if err != nil {
		t.Fatal(err)
	}
	apply(t, parent, "apiVersion: v1\nkind: Namespace\nmetadata: {name: fleet}\n")
	if err := parent.Create(t.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: name}, Data: map[string][]byte{"value": kubeconfig},
	}); err != nil {
		t.Fatal(err)
	}
	apply(t, parent, fmt.Sprintf(`apiVersion: cascade.dev/v1alpha1
kind: Child
metadata: {name: %[1]s, namespace: fleet, labels: {name: %[1]s}}
spec: {kubeConfig: {secretRef: {name: %[1]s}}}
---
apiVersion: cascade.dev/v1alpha1
kind: Layer
metadata: {name: credentials, namespace: fleet}
spec:
  clusterSelector: {matchLabels: {name: %[1]s}}
  credentials:
    - name: certificate
      type: kubernetes.io/tls
      data: {tls.crt: {from: certificate}, tls.key: {from: private_key}}
      vault: %[2]s
    - name: cloud
      vault: %[3]s
`, name, source(v, "jwt-"+name, "certificate"), source(v, "jwt-"+name, "cloud")))
}

// momRevocations deletes what the first tier has by itself, and waits until it is revoked.
func momRevocations(t *testing.T, c client.Client) {
	t.Helper()
	for _, name := range []string{"certificate", "cloud"} {
		if err := c.Delete(t.Context(), &v1alpha1.Credential{ObjectMeta: metav1.ObjectMeta{Namespace: stage.Namespace, Name: name}}); err != nil {
			t.Fatal(err)
		}
		scenario.Eventually(t, scenario.Converge, "Credential "+name+" of the first tier is gone", func(ctx context.Context) error {
			return gone(c.Get(ctx, client.ObjectKey{Namespace: stage.Namespace, Name: name}, &v1alpha1.Credential{}))
		})
	}
	// Its Layer goes as well: the credentials of the tier below stay, and their agent keeps them.
	if err := c.Delete(t.Context(), &v1alpha1.Layer{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "credentials"}}); err != nil {
		t.Fatal(err)
	}
}

// watch uses the credentials of all tiers, all the time.
type watch struct {
	vault *server
	cloud *iam
	tiers map[string]*tier
	lease time.Duration

	uses, usesDown atomic.Int64
	down           atomic.Bool

	mu   sync.Mutex
	left map[string]bool
	used map[string]bool
}

func (w *watch) outage(down bool) { w.down.Store(down) }

func (w *watch) leave(tier string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.left == nil {
		w.left = map[string]bool{}
	}
	w.left[tier] = true
}

func (w *watch) hasLeft(tier string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.left[tier]
}

func (w *watch) see(what string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.used == nil {
		w.used = map[string]bool{}
	}
	w.used[what] = true
}

func (w *watch) seen() int { return w.seenIn("") }

func (w *watch) seenIn(tier string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := 0
	for what := range w.used {
		if strings.HasPrefix(what, tier) {
			n++
		}
	}
	return n
}

// begin uses the credentials until the function that it returns is called.
func (w *watch) begin(t *testing.T) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	for name := range w.tiers {
		for _, secret := range []string{"certificate", "cloud"} {
			all.Add(1)
			go func() {
				defer all.Done()
				tick := time.NewTicker(w.lease / 20)
				defer tick.Stop()
				for {
					select {
					case <-ctx.Done():
						return
					case <-tick.C:
					}
					if w.hasLeft(name) {
						return
					}
					if err := w.use(ctx, name, secret); err != nil && ctx.Err() == nil && !w.hasLeft(name) {
						t.Errorf("at %s: tier %s, %s: %v", time.Now().Format(time.TimeOnly), name, secret, err)
					}
				}
			}()
		}
	}
	return func() { cancel(); all.Wait() }
}

// use reads a Secret as who needs it does, and uses what it has.
func (w *watch) use(ctx context.Context, name, secret string) error {
	s := &corev1.Secret{}
	if err := w.tiers[name].client.Get(ctx, client.ObjectKey{Namespace: stage.Namespace, Name: secret}, s); err != nil {
		return err
	}
	ends, err := time.Parse(time.RFC3339Nano, s.Annotations[v1alpha1.ExpiresAnnotation])
	if err != nil {
		return err
	}
	down := w.down.Load()
	if !time.Now().Before(ends) {
		if down || w.down.Load() {
			return nil // that it lapses then, is told
		}
		return fmt.Errorf("what it has lapsed at %s", ends.Format(time.TimeOnly))
	}
	w.uses.Add(1)
	if down {
		w.usesDown.Add(1)
	}
	if secret == "cloud" {
		key := string(s.Data["access_key"])
		w.see(name + "/" + key)
		if !w.cloud.valid(key) && time.Now().Before(ends) {
			return fmt.Errorf("the cloud refuses %s, which is told to be valid until %s", key, ends.Format(time.TimeOnly))
		}
		return nil
	}
	block, _ := pem.Decode(s.Data[corev1.TLSCertKey])
	if block == nil {
		return errors.New("no certificate")
	}
	c, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return err
	}
	w.see(name + "/" + c.SerialNumber.String())
	if now := time.Now(); now.After(c.NotAfter) && now.Before(ends) {
		return fmt.Errorf("the certificate ended at %s, and is told to be valid until %s", c.NotAfter, ends)
	}
	if down {
		return nil // who could say
	}
	revoked, err := w.vault.revoked(ctx, c.SerialNumber)
	if err != nil {
		if w.down.Load() || down {
			return nil
		}
		return err
	}
	if revoked && time.Now().Before(ends) {
		// Whoever reads the Secret now has another one; it was read before that.
		again := &corev1.Secret{}
		if err := w.tiers[name].client.Get(ctx, client.ObjectKey{Namespace: stage.Namespace, Name: secret}, again); err != nil {
			return err
		}
		if string(again.Data[corev1.TLSCertKey]) == string(s.Data[corev1.TLSCertKey]) {
			return fmt.Errorf("certificate %s is revoked, and told to be valid until %s", c.SerialNumber, ends.Format(time.TimeOnly))
		}
	}
	return nil
}

// fresh waits until a Secret has what is valid.
func (w *watch) fresh(t *testing.T, name, secret string) {
	t.Helper()
	scenario.Eventually(t, scenario.Converge, fmt.Sprintf("tier %s has a valid %s", name, secret), func(ctx context.Context) error {
		s := &corev1.Secret{}
		if err := w.tiers[name].client.Get(ctx, client.ObjectKey{Namespace: stage.Namespace, Name: secret}, s); err != nil {
			o := &v1alpha1.Credential{}
			if cerr := w.tiers[name].client.Get(ctx, client.ObjectKey{Namespace: stage.Namespace, Name: secret}, o); cerr != nil {
				return errors.Join(err, cerr)
			}
			return fmt.Errorf("%w: %s", err, scenario.Summary(o.Status.Conditions))
		}
		ends, err := time.Parse(time.RFC3339Nano, s.Annotations[v1alpha1.ExpiresAnnotation])
		if err != nil || time.Until(ends) < w.lease/4 {
			return fmt.Errorf("it ends at %s: %v", ends, err)
		}
		return nil
	})
}

// wait lets time pass: what is tried is what happens in it.
func wait(t *testing.T, d time.Duration) {
	t.Helper()
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-t.Context().Done():
		t.Fatal(t.Context().Err())
	}
}
