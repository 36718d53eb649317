package remote

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	"golang.org/x/crypto/ssh"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/remote/rollout"
	"github.com/cascade-gitops/cascade/syncer/source"
	"github.com/cascade-gitops/cascade/syncer/source/gitserver"
)

// followed is a repository that two environments follow, each with a login of its own; it may
// stop to answer.
type followed struct {
	*gitserver.Server
	t       *testing.T
	mirrors *source.Mirrors
	origin  source.Origin
	// keys of those whose signatures count, by the name of a Secret, and the key to sign
	// with.
	keys    map[string]source.Verification
	signing []byte
	fails   error
	// asked counts questions about the branch.
	asked int
	// spoilt are tags that say nothing.
	spoilt []source.Tag
}

func (s *followed) Tags(ctx context.Context, _ types.NamespacedName, pick func(map[string]string) []string) ([]source.Tag, error) {
	if s.fails != nil {
		return nil, s.fails
	}
	tags, err := s.mirrors.Tags(ctx, s.origin, pick)
	return append(slices.Clone(s.spoilt), tags...), err
}

func (s *followed) Contains(ctx context.Context, _ types.NamespacedName, tip, commit, tag string) (bool, error) {
	s.asked++
	if s.fails != nil {
		return false, s.fails
	}
	return s.mirrors.Contains(ctx, s.origin, tip, commit, tag)
}

func (s *followed) Push(ctx context.Context, _, _ types.NamespacedName, tag source.NewTag) (string, error) {
	if s.fails != nil {
		return "", s.fails
	}
	tag.SigningKey = s.signing
	return s.mirrors.Push(ctx, s.origin, tag)
}

func (s *followed) SigningKeys(context.Context, types.NamespacedName) (source.Verification, error) {
	return source.SigningKeys(s.signing, nil)
}

func (s *followed) Keys(_ context.Context, secret types.NamespacedName) (source.Verification, error) {
	keys, ok := s.keys[secret.Name]
	if !ok {
		return keys, errors.New("cannot read Secret " + secret.String())
	}
	return keys, nil
}

const followedName = "fleet"

func newFollowed(t *testing.T) *followed {
	t.Helper()
	server, err := gitserver.Start(t.Context(), gitserver.Options{Root: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Close() })
	if err := server.Create(t.Context(), followedName); err != nil {
		t.Fatal(err)
	}
	return &followed{Server: server, t: t, mirrors: source.NewMirrors(t.TempDir(), 64<<20), origin: source.Origin{URL: server.HTTPURL(followedName)}, keys: map[string]source.Verification{}}
}

// push makes a commit on a branch.
func (s *followed) push(branch, value string) string {
	s.t.Helper()
	commit, err := s.Commit(s.t.Context(), followedName, branch, value, func(dir string) error {
		return os.WriteFile(filepath.Join(dir, "a.yaml"), []byte(value), 0o644)
	})
	if err != nil {
		s.t.Fatal(err)
	}
	return commit
}

// key makes a private key whose signatures count for a Secret.
func (s *followed) key(secret string) []byte {
	s.t.Helper()
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		s.t.Fatal(err)
	}
	block, err := ssh.MarshalPrivateKey(private, "")
	if err != nil {
		s.t.Fatal(err)
	}
	key, err := ssh.NewPublicKey(public)
	if err != nil {
		s.t.Fatal(err)
	}
	v := s.keys[secret]
	v.AuthorizedKeys = append(v.AuthorizedKeys, string(ssh.MarshalAuthorizedKey(key)))
	s.keys[secret] = v
	return pem.EncodeToMemory(block)
}

// environment is a tier that follows the repository.
func (s *followed) environment() (*exchange, source.Key) {
	s.t.Helper()
	key := source.Key{Kind: sourcev1.GitRepositoryKind, NamespacedName: types.NamespacedName{Namespace: "fleet", Name: "fleet"}}
	r := &Rollouts{Repositories: s, Snapshots: source.NewSnapshots(), Events: record.NewFakeRecorder(100)}
	x := &exchange{Rollouts: r}
	r.exchange = x
	s.follow(x, key)
	return x, key
}

// follow fetches the branch.
func (s *followed) follow(x *exchange, key source.Key) {
	s.t.Helper()
	snapshot, err := s.mirrors.Fetch(s.t.Context(), s.origin, source.Reference{Branch: "main"}, source.Options{}, x.Snapshots.Get(key))
	if err != nil {
		s.t.Fatal(err)
	}
	x.Snapshots.Put(key, snapshot)
}

// passes is a Rollout of which a commit passed all waves after others that did.
func passes(o *v1alpha1.Rollout, commit string, at time.Time) {
	number := int64(1)
	if len(o.Status.History) > 0 {
		number = o.Status.History[0].Number + 1
	}
	revision := v1alpha1.RolloutRevision{Revision: "main@sha1:" + commit}
	o.Status.History = append([]v1alpha1.RolloutHistory{{Number: number, RolloutRevision: revision, Phase: v1alpha1.RolloutCompleted, Ended: metav1.NewTime(at)}}, o.Status.History...)
	o.Status.LastGood = &v1alpha1.RolloutGood{RolloutRevision: revision, Run: number, At: metav1.NewTime(at)}
}

func publisher(uid types.UID) *v1alpha1.Rollout {
	o := &v1alpha1.Rollout{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "base", UID: uid}}
	o.Spec.Publish = &v1alpha1.RolloutPublish{Name: "staging", SecretRef: v1alpha1.LocalReference{Name: "write"}}
	return o
}

// TestExchangeOfProofs: what one environment writes into the repository another one reads, and
// nothing that somebody else wrote.
func TestExchangeOfProofs(t *testing.T) {
	s := newFollowed(t)
	noon := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	first, second := s.push("main", "1"), s.push("main", "2")
	aside := s.push("aside", "3")
	x, from := s.environment()
	staging, production := publisher("one"), &v1alpha1.Rollout{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "base"}}
	production.Spec.Upstream = &v1alpha1.RolloutUpstream{Name: "staging", Verify: &v1alpha1.RolloutKeys{SecretRef: v1alpha1.LocalReference{Name: "staging"}}}
	s.signing = s.key("staging")
	var before *exchanged
	reads := func(reason string) *rollout.Upstream {
		t.Helper()
		is := &exchanged{}
		x.readUpstream(t.Context(), production, from, before, is)
		if before = is; is.upstream.Failure.Reason != reason {
			t.Fatalf("upstream fails for %+v, want %q", is.upstream.Failure, reason)
		}
		return is.upstream
	}
	publishes := func(o *v1alpha1.Rollout, reason string) *v1alpha1.RolloutProof {
		t.Helper()
		p, hold := x.publish(t.Context(), o, from)
		if hold.Reason != reason {
			t.Fatalf("it is not published for %+v, want %q", hold, reason)
		}
		return p
	}
	reads(v1alpha1.ReasonUpstreamMissing)
	if p := publishes(staging, ""); p != nil {
		t.Errorf("published %+v, and nothing passed yet", p)
	}
	passes(staging, first, noon)
	publishes(staging, "")
	if up := reads(""); len(up.Proofs) != 1 || up.Proofs[0].Commit != first || len(up.Refused) > 0 {
		t.Errorf("read %+v", up)
	}
	passes(staging, second, noon.Add(time.Hour))
	if p := publishes(staging, ""); p.Commit != second || p.Run != 2 {
		t.Errorf("published %+v", p)
	}
	if p := publishes(staging, ""); p.Commit != second {
		t.Errorf("published %+v", p)
	}
	up := reads("")
	if len(up.Proofs) != 2 || up.Proofs[0].Commit != second || up.Proofs[1].Commit != first || !up.Proofs[1].Proven.Equal(noon) || len(up.Refused) > 0 {
		t.Errorf("read %+v", up)
	}
	asked := s.asked
	if reads(""); s.asked != asked {
		t.Errorf("asked %d times about what is known of the same branch", s.asked-asked)
	}
	production.Status.Upstream = &v1alpha1.RolloutUpstreamStatus{Name: "staging", Taken: &v1alpha1.RolloutProof{Commit: second, Proven: metav1.NewTime(noon.Add(time.Hour))}}
	s.follow(x, from)
	if reads(""); s.asked != asked {
		t.Error("asked about what was taken already")
	}

	// Another Rollout, and another tier with one of the same name, do not replace it.
	other := publisher("two")
	other.Name = "other"
	passes(other, first, noon.Add(2*time.Hour))
	publishes(other, v1alpha1.ReasonPublishConflict)
	twin := publisher("two")
	passes(twin, first, noon)
	publishes(twin, v1alpha1.ReasonPublishConflict)
	if up := reads(""); up.Proofs[0].Commit != second {
		t.Errorf("read %+v", up)
	}

	// A commit of another branch, which was signed.
	production.Status.Upstream = nil
	passes(staging, aside, noon.Add(3*time.Hour))
	publishes(staging, "")
	if up := reads(""); up.Refused[aside].Reason != v1alpha1.ReasonUpstreamNotOnBranch || len(up.Refused) != 1 {
		t.Errorf("read %+v", up)
	}

	// Without the key of staging, and with what is no proof.
	s.signing = s.key("eve")
	passes(staging, first, noon.Add(4*time.Hour))
	publishes(staging, "")
	reads(v1alpha1.ReasonUpstreamUnverified)
	production.Spec.Upstream.Verify = nil
	reads("")
	tags, err := s.Tags(t.Context(), from.NamespacedName, func(map[string]string) []string { return []string{"refs/cascade/proven/staging"} })
	if err != nil || len(tags) != 1 {
		t.Fatalf("%v, %v", tags, err)
	}
	if _, err := s.Push(t.Context(), from.NamespacedName, from.NamespacedName, source.NewTag{
		Reference: tags[0].Reference, Before: tags[0].Object, Name: tags[0].Name, Commit: first, Tagger: "x", Address: "x", At: noon, Message: "hello",
	}); err != nil {
		t.Fatal(err)
	}
	reads(v1alpha1.ReasonUpstreamInvalid)
	passes(staging, second, noon.Add(5*time.Hour))
	publishes(staging, v1alpha1.ReasonPublishConflict)

	s.fails = errors.New("it does not answer")
	reads(v1alpha1.ReasonUpstreamUnreadable)
	publishes(staging, v1alpha1.ReasonPublishFailed)
}

// TestPublishesAgain: what is published is written again if another environment could not
// verify it, or if somebody else wrote something else of this Rollout, and not otherwise.
func TestPublishesAgain(t *testing.T) {
	s := newFollowed(t)
	noon := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	first, second := s.push("main", "1"), s.push("main", "2")
	x, from := s.environment()
	o := publisher("one")
	passes(o, first, noon)
	passes(o, second, noon.Add(time.Hour))
	staging, eve := s.key("staging"), s.key("eve")
	read := func() source.Tag {
		t.Helper()
		tags, err := s.Tags(t.Context(), from.NamespacedName, func(map[string]string) []string { return []string{rollout.ProofReference("staging")} })
		if err != nil || len(tags) != 1 {
			t.Fatalf("%v, %v", tags, err)
		}
		return tags[0]
	}
	publish := func(reason string) source.Tag {
		t.Helper()
		if p, hold := x.publish(t.Context(), o, from); hold.Reason != "" || p.Commit != second {
			t.Fatalf("%s: published is %+v, %+v", reason, p, hold)
		}
		return read()
	}
	plain := publish("the first time")
	if again := publish("it is there"); again.Object != plain.Object {
		t.Error("what is there was written again")
	}
	s.signing = staging
	signed := publish("there is a key since")
	verified := func(reason string, tag source.Tag) {
		t.Helper()
		if _, err := tag.Verify(s.keys["staging"]); err != nil || tag.Message != signed.Message {
			t.Errorf("%s: the tag says %q, %v", reason, tag.Message, err)
		}
	}
	verified("it is signed", signed)
	if again := publish("it is there, and signed"); again.Object != signed.Object {
		t.Error("what is there was written again")
	}
	for _, tc := range []struct {
		reason, was, is string
		key             []byte
	}{
		{"the same without a signature", "", "", nil},
		{"the same with another signature", "", "", eve},
		{"another time", "2026-03-01T13:00:00Z", "2026-03-01T14:00:00Z", staging},
		{"another commit before", first, strings.Repeat("e", 40), staging},
	} {
		now := read()
		if _, err := s.mirrors.Push(t.Context(), s.origin, source.NewTag{
			Reference: now.Reference, Before: now.Object, Name: now.Name, Commit: now.Commit, Tagger: "x", Address: "x", At: noon,
			Message: strings.Replace(signed.Message, tc.was, tc.is, 1), SigningKey: tc.key,
		}); err != nil {
			t.Fatal(err)
		}
		verified(tc.reason, publish(tc.reason))
	}
}

// TestExchangeKeeps: a Rollout is decided about when something else was read than before, and
// not because it was read again.
func TestExchangeKeeps(t *testing.T) {
	x, key := &exchange{}, types.NamespacedName{Namespace: "fleet", Name: "base"}
	told := 0
	x.tell = append(x.tell, func(types.NamespacedName) { told++ })
	noon := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	proofs := func(at time.Time) *exchanged {
		return &exchanged{
			upstream:  &rollout.Upstream{Proofs: []rollout.Proof{{Commit: "a", Run: 1, Proven: at}}, Revisions: map[string]v1alpha1.RolloutRevision{"a": {Revision: "main@sha1:a"}}},
			approvals: []rollout.Approval{{Wave: "all", By: "ann"}}, published: &v1alpha1.RolloutProof{Commit: "a", Proven: metav1.NewTime(at)},
		}
	}
	for _, tc := range []struct {
		reason string
		is     *exchanged
		want   int
	}{
		{"nothing was known", &exchanged{}, 1},
		{"nothing is there", &exchanged{}, 1},
		{"something was proven", proofs(noon), 2},
		{"it is read again", proofs(noon), 2},
		{"it is the same time in another place", proofs(noon.In(time.FixedZone("", 3600))), 2},
		{"it was proven again", proofs(noon.Add(time.Second)), 3},
		{"it was taken back", &exchanged{upstream: &rollout.Upstream{}}, 4},
		{"it cannot be read", &exchanged{upstream: &rollout.Upstream{Failure: rollout.Hold{Reason: "x"}}}, 5},
		{"nor can another one", &exchanged{asked: asked{upstream: &v1alpha1.RolloutUpstream{Name: "preprod"}}, upstream: &rollout.Upstream{Failure: rollout.Hold{Reason: "x"}}}, 6},
	} {
		if x.keep(key, tc.is); told != tc.want || x.of(key) != tc.is {
			t.Errorf("%s: told %d times, want %d", tc.reason, told, tc.want)
		}
	}
}

// TestExchangeOfApprovals: which tags on the commit of a run approve its waves.
func TestExchangeOfApprovals(t *testing.T) {
	s := newFollowed(t)
	first, second := s.push("main", "1"), s.push("main", "2")
	x, from := s.environment()
	ann, eve := s.key("approvers"), s.key("nobody")
	o := &v1alpha1.Rollout{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "base"}}
	o.Spec.ApprovalTags = &v1alpha1.RolloutApprovalTags{SecretRef: v1alpha1.LocalReference{Name: "approvers"}}
	run := &v1alpha1.RolloutRun{Phase: v1alpha1.RolloutProgressing, RolloutRevision: v1alpha1.RolloutRevision{Revision: "main@sha1:" + second}}
	run.Terms.Waves = []v1alpha1.RolloutWave{{Name: "canary"}, {Name: "rest", Approval: v1alpha1.ApprovalRequired}}
	o.Status.Run = run
	const prefix = "cascade/approve/fleet/base/"
	n := 0
	for _, tt := range []struct {
		reason, reference, name, commit string
		key                             []byte
		approves                        bool
		refused                         bool
	}{
		{reason: "on another commit", reference: prefix + "rest/%d", commit: first, key: ann},
		{reason: "of a wave that there is not", reference: prefix + "production/%d", commit: second, key: ann},
		{reason: "of another Rollout", reference: "cascade/approve/fleet/other/rest/%d", commit: second, key: ann},
		{reason: "not signed", reference: prefix + "rest/%d", commit: second, refused: true},
		{reason: "signed by somebody else", reference: prefix + "rest/%d", commit: second, key: eve, refused: true},
		{reason: "signed for another environment", reference: prefix + "rest/%d", name: "cascade/approve/staging/base/rest", commit: second, key: ann, refused: true},
		{reason: "as it is to be", reference: prefix + "rest/%d", commit: second, key: ann, approves: true},
		{reason: "for the wave alone", reference: prefix + "rest", commit: second, key: ann, approves: true},
	} {
		n++
		reference := tt.reference
		if strings.Contains(reference, "%d") {
			reference = fmt.Sprintf(reference, n)
		}
		name := reference
		if tt.name != "" {
			name = tt.name
		}
		s.signing = tt.key
		_, err := s.Push(t.Context(), from.NamespacedName, from.NamespacedName, source.NewTag{Reference: "refs/tags/" + reference, Name: name, Commit: tt.commit, Tagger: "Ann", Address: "ann@example.com", At: time.Unix(1000, 0), Message: "go"})
		if err != nil {
			t.Fatal(err)
		}
		approvals, refused, _ := x.readApprovals(t.Context(), o, from, nil)
		if (len(approvals) > 0) != tt.approves || (refused.Reason == v1alpha1.ReasonTagRefused) != tt.refused {
			t.Errorf("%s: approvals %+v, refused %+v", tt.reason, approvals, refused)
		}
		for _, a := range approvals {
			if a.Wave != "rest" || a.Revision != second || a.By != "Ann <ann@example.com>" || a.Tag != name || a.Key == "" || !rollout.Means(a.Revision, &o.Status) {
				t.Errorf("%s: %+v", tt.reason, a)
			}
		}
		if err := s.Delete(t.Context(), followedName, "refs/tags/"+reference); err != nil {
			t.Fatal(err)
		}
	}
	run.Approvals = []v1alpha1.RolloutApproval{{Wave: "rest"}}
	s.fails = nil
	if approvals, refused, _ := x.readApprovals(t.Context(), o, from, nil); len(approvals) > 0 || refused.Reason != "" {
		t.Errorf("of a wave that was approved: %+v, %+v", approvals, refused)
	}
	s.fails = errors.New("it does not answer")
	if _, refused, _ := x.readApprovals(t.Context(), o, from, nil); refused.Reason != v1alpha1.ReasonTagsUnreadable {
		t.Errorf("refused %+v", refused)
	}
}

// TestExchangeBesideOthers: tags that approve nothing keep no other one from approving.
func TestExchangeBesideOthers(t *testing.T) {
	s := newFollowed(t)
	commit := s.push("main", "1")
	x, from := s.environment()
	s.signing = s.key("approvers")
	o := &v1alpha1.Rollout{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "base"}}
	o.Spec.ApprovalTags = &v1alpha1.RolloutApprovalTags{SecretRef: v1alpha1.LocalReference{Name: "approvers"}}
	o.Status.Run = &v1alpha1.RolloutRun{Phase: v1alpha1.RolloutProgressing, RolloutRevision: v1alpha1.RolloutRevision{Revision: "main@sha1:" + commit}}
	o.Status.Run.Terms.Waves = []v1alpha1.RolloutWave{{Name: "canary"}, {Name: "rest", Approval: v1alpha1.ApprovalRequired}}
	const prefix = "cascade/approve/fleet/base/"
	push := func(name string, more ...string) {
		t.Helper()
		if _, err := s.Push(t.Context(), from.NamespacedName, from.NamespacedName, source.NewTag{Reference: "refs/tags/" + name, Name: name, Commit: commit, Tagger: "Ann", Address: "ann@example.com", At: time.Unix(1000, 0), Message: "go" + strings.Join(more, "")}); err != nil {
			t.Fatal(err)
		}
	}
	var before *exchanged
	looks := func() *exchanged {
		is := &exchanged{}
		is.approvals, is.refused, is.last = x.readApprovals(t.Context(), o, from, before)
		before = is
		return is
	}
	approves := func(reason string) {
		t.Helper()
		if is := looks(); len(is.approvals) != 1 || is.approvals[0].Wave != "rest" || is.refused.Reason != v1alpha1.ReasonTagRefused {
			t.Errorf("%s: approvals %+v, refused %+v", reason, is.approvals, is.refused)
		}
	}
	push(prefix + "rest/bob")
	s.spoilt = []source.Tag{{Reference: "refs/tags/" + prefix + "rest", Err: errors.New("it is not on the commit itself")}}
	approves("one that leads to the commit through another tag")
	s.spoilt, s.signing = nil, nil
	for n := range 20 {
		push(fmt.Sprintf(prefix+"canary/%02d", n))
	}
	approves("as many as are read, for a wave that nobody has to approve")
	push(prefix+"rest/alice", strings.Repeat("x", source.MaxFileBytes))
	approves("one that is too large to be read")
	if err := s.Delete(t.Context(), followedName, "refs/tags/"+prefix+"rest/alice"); err != nil {
		t.Fatal(err)
	}
	for n := range 20 {
		push(fmt.Sprintf(prefix+"_end/%02d", n))
	}
	approves("and for the end, before the run is there")
	before = nil
	approves("for the first time")
	for n := range 50 {
		push(fmt.Sprintf(prefix+"rest/%03d", n))
	}
	approves("more than are read, of the wave itself, beside one that approved before")
	before = nil
	n := 1
	for ; n < 10 && len(looks().approvals) == 0; n++ {
	}
	if n != 3 {
		t.Errorf("fifty tags that nobody signed, before the one that approves: it is read at look %d, want 3", n)
	}
	for range 3 {
		approves("once it was read")
	}
}
