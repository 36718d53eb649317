package children

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/e2e/scenario"
	"github.com/cascade-gitops/cascade/syncer/source"
)

// promotion is two tiers that share nothing but a repository: staging proves commits, and
// production takes what staging ran.
type promotion struct {
	staging, production *waves
	// ann may approve in production, and eve may not.
	ann, eve person
	mirrors  *source.Mirrors
}

// person has a key to sign with.
type person struct{ name, private, public string }

func newPerson(t *testing.T, name string) person {
	t.Helper()
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	block, err := ssh.MarshalPrivateKey(private, "")
	if err != nil {
		t.Fatal(err)
	}
	key, err := ssh.NewPublicKey(public)
	if err != nil {
		t.Fatal(err)
	}
	return person{name, string(pem.EncodeToMemory(block)), string(ssh.MarshalAuthorizedKey(key))}
}

// another starts another hub on the same stage.
func (h *hub) another(t *testing.T, name string) *hub {
	t.Helper()
	o := &hub{Stage: h.Stage, flags: h.flags}
	var err error
	if o.tier, err = h.Cluster(t.Context(), name, "--api-only"); err != nil {
		t.Fatal(err)
	}
	if o.client, err = o.tier.Watcher(); err != nil {
		t.Fatal(err)
	}
	o.installAll(t, "v1beta2")
	o.startAgent(t)
	t.Cleanup(func() {
		if t.Failed() {
			o.tell(t)
		}
	})
	return o
}

const promotedLayer = "apiVersion: cascade.dev/v1alpha1\nkind: Layer\nmetadata: {name: app}\nspec:\n  clusterSelector: {matchExpressions: [{key: cluster, operator: Exists}]}\n" +
	"  sourceRef: {kind: GitRepository, name: fleet}\n  path: ./app\n  interval: 24h\n  wait: true\n"

// TestPromotion: production takes only commits that staging proved, by Git alone, and waits
// for a tag that a person signed. A commit that staging halts on never comes.
func TestPromotion(t *testing.T) {
	scenario.Alongside(t)
	h := startHub(t, "v1beta2", "--observe-interval", observeInterval.String())
	files := map[string]string{"app/note.yaml": noteNamed("note", "at", "one")}
	x := &promotion{ann: newPerson(t, "Ann"), eve: newPerson(t, "Eve"), mirrors: source.NewMirrors(t.TempDir(), 64<<20)}
	x.staging = &waves{&pins{fleet: h.fleet(t, "promotion", files), planes: map[string]*plane{}}}
	other := h.another(t, "production")
	x.production = &waves{&pins{fleet: &fleet{hub: other, name: "promotion", version: "v1beta2"}, planes: map[string]*plane{}}}
	x.reads(t)
	for name, w := range map[string]*waves{"s1": x.staging, "p1": x.production} {
		w.commits = append(w.commits, w.head(t))
		w.planes[name] = w.plane(t, "promotion-"+name)
		w.served(t)
		w.define(t, promotedLayer)
		w.declare(t, name)
		w.report(t, name, initialized)
		w.handOver(t, name, w.planes[name].issue(t).kubeconfig)
		w.ready(t, name, "")
	}
	for _, part := range []struct {
		name string
		run  func(*testing.T)
	}{
		{"NothingProvenMovesNothing", x.nothingProven},
		{"TakesWhatStagingRuns", x.takes},
		{"NotWhatStagingHaltedOn", x.halted},
		{"ApprovedBySignedTag", x.approvedByTag},
		{"NoCredentialOfTheOther", x.noCredential},
		{"ForgedProofMovesNothing", x.forged},
	} {
		if !t.Run(part.name, part.run) {
			return
		}
	}
}

// reads has production follow staging's repository with a key that only reads.
func (x *promotion) reads(t *testing.T) {
	p, git := x.production, x.staging.Git
	key, err := git.ReadKey(x.staging.name)
	if err != nil {
		t.Fatal(err)
	}
	p.apply(t, object("v1", "Namespace", "", p.name))
	for name, data := range map[string]map[string]any{
		"git-auth": {"identity": string(key), "known_hosts": git.KnownHosts()}, "staging": {"staging.sshpub": x.ann.public}, "approvers": {"ann.sshpub": x.ann.public},
	} {
		secret := object("v1", "Secret", p.name, name)
		secret.Object["stringData"] = data
		p.apply(t, secret)
	}
	p.define(t, `{apiVersion: source.toolkit.fluxcd.io/v1, kind: GitRepository, metadata: {name: fleet}, spec: {url: "`+git.SSHURL(x.staging.name)+
		`", ref: {branch: main}, secretRef: {name: git-auth}, interval: 2s}}`)
}

// upstream waits until production says of its upstream what it should.
func (x *promotion) upstream(t *testing.T, reason string) *v1alpha1.Rollout {
	t.Helper()
	return x.production.status(t, "held for "+reason+" by its upstream", func(o *v1alpha1.Rollout) bool {
		c := meta.FindStatusCondition(o.Status.Conditions, v1alpha1.UpstreamCondition)
		return c != nil && c.Reason == reason
	})
}

func (x *promotion) nothingProven(t *testing.T) {
	p := x.production
	since := p.marks(t)
	p.define(t, `apiVersion: cascade.dev/v1alpha1
kind: Rollout
metadata: {name: app}
spec:
  moves: {layerRef: {name: app}}
  deadline: 20s
  upstream: {name: staging, minAge: 3s, verify: {secretRef: {name: staging}}}
  approvalTags: {secretRef: {name: approvers}, prefix: cascade/approve/production}
  waves:
  - {name: all, approval: Required}
`)
	x.upstream(t, v1alpha1.ReasonUpstreamMissing)
	if o := p.status(t, "without a run", func(o *v1alpha1.Rollout) bool { return readyFor(o) == v1alpha1.ReasonUpstreamMissing }); o.Status.Run != nil || o.Status.Candidate != nil {
		t.Errorf("run %+v of candidate %+v", o.Status.Run, o.Status.Candidate)
	}
	p.alone(t, since)
}

// takes: what staging proved is the candidate in production, which has it already.
func (x *promotion) takes(t *testing.T) {
	s := x.staging
	username, password := s.Git.Login()
	secret := object("v1", "Secret", s.name, "git-write")
	// Ann's key stands for that of staging, so that production needs no other one here.
	secret.Object["stringData"] = map[string]any{"username": username, "password": password, "signingKey": x.ann.private}
	s.apply(t, secret)
	s.define(t, `apiVersion: cascade.dev/v1alpha1
kind: Rollout
metadata: {name: app}
spec:
  moves: {layerRef: {name: app}}
  deadline: 20s
  publish: {name: staging, secretRef: {name: git-write}}
  waves:
  - {name: all}
`)
	s.completed(t, s.commits[0])
	s.status(t, "published", func(o *v1alpha1.Rollout) bool {
		return o.Status.Published != nil && strings.HasSuffix(s.commits[0], o.Status.Published.Commit) && meta.IsStatusConditionTrue(o.Status.Conditions, v1alpha1.PublishedCondition)
	})
	since := x.production.marks(t)
	x.production.completed(t, s.commits[0])
	x.production.alone(t, since)
}

// halted: production's source has the commit, and no cluster of production gets it.
func (x *promotion) halted(t *testing.T) {
	s, p := x.staging, x.production
	since := p.marks(t)
	s.next(t, "two", "app/broken.yaml", broken)
	s.held(t, s.commits[1], v1alpha1.ReasonRolloutHalted)
	scenario.Eventually(t, scenario.Converge, "production has seen the commit", func(ctx context.Context) error {
		if head := p.head(t); head != s.commits[1] {
			return fmt.Errorf("it has %s", head)
		}
		return nil
	})
	if o := x.upstream(t, v1alpha1.ReasonSucceeded); o.Status.Run.Revision != s.commits[0] || !strings.HasSuffix(s.commits[0], o.Status.Upstream.Newest.Commit) {
		t.Errorf("run %+v, upstream %+v", o.Status.Run, o.Status.Upstream)
	}
	p.alone(t, since)
}

// tag writes a tag that a person signed.
func (x *promotion) tag(t *testing.T, reference, name, revision string, by person, message string) {
	t.Helper()
	username, password := x.staging.Git.Login()
	_, err := x.mirrors.Push(t.Context(), source.Origin{URL: x.staging.Git.HTTPURL(x.staging.name), Secret: map[string][]byte{"username": []byte(username), "password": []byte(password)}},
		source.NewTag{Reference: reference, Name: name, Commit: revision[strings.LastIndex(revision, ":")+1:], Tagger: by.name, Address: strings.ToLower(by.name) + "@example.com",
			At: time.Now(), Message: message, SigningKey: []byte(by.private)})
	if err != nil {
		t.Fatal(err)
	}
}

func (x *promotion) approvedByTag(t *testing.T) {
	s, p := x.staging, x.production
	since := p.marks(t)
	s.next(t, "three", "app/broken.yaml", "")
	s.completed(t, s.commits[2])
	p.held(t, s.commits[2], v1alpha1.ReasonAwaitingApproval)
	const prefix = "cascade/approve/production/all"
	refused := func(what string) {
		t.Helper()
		p.status(t, "not approved by "+what, func(o *v1alpha1.Rollout) bool {
			c := meta.FindStatusCondition(o.Status.Conditions, v1alpha1.ApprovalTagsCondition)
			return c != nil && c.Reason == v1alpha1.ReasonTagRefused && strings.Contains(c.Message, what)
		})
	}
	x.tag(t, "refs/tags/"+prefix+"/0", prefix+"/0", s.commits[1], x.ann, "another commit")
	x.tag(t, "refs/tags/"+prefix+"/1", prefix+"/1", s.commits[2], x.eve, "go")
	refused("/all/1")
	x.tag(t, "refs/tags/"+prefix+"/2", "cascade/approve/staging/all", s.commits[2], x.ann, "go, in staging")
	refused("/all/2")
	p.alone(t, since)
	x.tag(t, "refs/tags/"+prefix+"/3", prefix+"/3", s.commits[2], x.ann, "go")
	p.completed(t, s.commits[2])
	p.values(t, map[string]string{"p1": "three"})
	o := p.status(t, "approved", func(o *v1alpha1.Rollout) bool { return len(o.Status.Run.Approvals) == 1 })
	if a := o.Status.Run.Approvals[0]; a.By != "Ann <ann@example.com>" || a.Tag != prefix+"/3" || a.Key == "" || a.At.IsZero() {
		t.Errorf("on record is %+v", a)
	}
	scenario.Eventually(t, scenario.Converge, "an event says who approved", func(ctx context.Context) error {
		list := &corev1.EventList{}
		if err := p.client.List(ctx, list, client.InNamespace(p.name)); err != nil {
			return err
		}
		for _, e := range list.Items {
			if e.Reason == "WaveApproved" && strings.Contains(e.Message, "Ann <ann@example.com>, by tag "+prefix+"/3") {
				return nil
			}
		}
		return errors.New("none does")
	})
}

// noCredential: what production has reads, and writes nothing.
func (x *promotion) noCredential(t *testing.T) {
	p := x.production
	secrets := &corev1.SecretList{}
	if err := p.client.List(t.Context(), secrets); err != nil {
		t.Fatal(err)
	}
	_, password := x.staging.Git.Login()
	for _, s := range secrets.Items {
		for key, value := range s.Data {
			if password != "" && strings.Contains(string(value), password) || strings.Contains(string(value), x.ann.private) {
				t.Errorf("Secret %s/%s has staging's %s", s.Namespace, s.Name, key)
			}
		}
	}
	auth := &corev1.Secret{}
	if err := p.client.Get(t.Context(), client.ObjectKey{Namespace: p.name, Name: "git-auth"}, auth); err != nil {
		t.Fatal(err)
	}
	commit := x.staging.commits[2]
	_, err := x.mirrors.Push(t.Context(), source.Origin{URL: x.staging.Git.SSHURL(x.staging.name), Secret: auth.Data}, source.NewTag{
		Reference: "refs/cascade/proven/production", Name: "cascade/proven/production", Commit: commit[strings.LastIndex(commit, ":")+1:], Tagger: "x", Address: "x", At: time.Now(), Message: "x"})
	if err == nil {
		t.Error("production's credential wrote a reference")
	}
}

// forged: somebody who may write references, and has no key, proves a commit that staging
// never ran.
func (x *promotion) forged(t *testing.T) {
	s, p := x.staging, x.production
	since := p.marks(t)
	// Staging does not publish meanwhile: it would write its own proof in place of the forged one.
	s.patch(t, object("cascade.dev/v1alpha1", "Rollout", s.name, "app"), map[string]any{"spec": map[string]any{"suspend": true, "publish": nil}})
	s.next(t, "four")
	commit := s.commits[3][strings.LastIndex(s.commits[3], ":")+1:]
	username, password := s.Git.Login()
	origin := source.Origin{URL: s.Git.HTTPURL(s.name), Secret: map[string][]byte{"username": []byte(username), "password": []byte(password)}}
	const reference = "refs/cascade/proven/staging"
	tags, err := x.mirrors.Tags(t.Context(), origin, func(map[string]string) []string { return []string{reference} })
	if err != nil || len(tags) != 1 {
		t.Fatalf("read %v, %v", tags, err)
	}
	at := time.Now().Add(-time.Hour).UTC().Format(time.RFC3339)
	_, err = x.mirrors.Push(t.Context(), origin, source.NewTag{Reference: reference, Before: tags[0].Object, Name: "cascade/proven/staging", Commit: commit, Tagger: "cascade", Address: "x", At: time.Now(),
		Message: fmt.Sprintf("x\n\n{\"name\": \"staging\", \"rollout\": \"promotion/app\", \"uid\": \"x\", \"proofs\": [{\"commit\": %q, \"run\": 9, \"proven\": %q}]}\n", commit, at), SigningKey: []byte(x.eve.private)})
	if err != nil {
		t.Fatal(err)
	}
	o := x.upstream(t, v1alpha1.ReasonUpstreamUnverified)
	if o.Status.Run.Revision != s.commits[2] {
		t.Errorf("the run is %+v", o.Status.Run)
	}
	p.alone(t, since)
}
