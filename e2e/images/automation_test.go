package images

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	autov1 "github.com/fluxcd/image-automation-controller/api/v1"
	imagev1 "github.com/fluxcd/image-reflector-controller/api/v1"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	"golang.org/x/crypto/ssh"
	appsv1 "k8s.io/api/apps/v1"

	"github.com/cascade-gitops/cascade/e2e/scenario"
)

// endToEnd: a tag in a registry is a commit, which the Kustomization of the repository applies.
func (h *imageSpec) endToEnd(t *testing.T) {
	r := h.row(t, map[string]string{"app/web.yaml": marked("old:1.0.0")})
	r.scanned(t, "1.0.0")
	r.make(t, "ImagePolicy", "app", semver)
	r.chosen(t, "app", "1.0.0")
	r.Kustomization(t, "app", "")
	r.automate(t, "", "")
	runs := func(image string) {
		t.Helper()
		scenario.Eventually(t, scenario.Converge, "the Deployment has "+image, func(ctx context.Context) error {
			d := &appsv1.Deployment{}
			if err := r.Load(ctx, d, r.Namespace, "web"); err != nil {
				return err
			}
			if got := d.Spec.Template.Spec.Containers[0].Image; got != image {
				return fmt.Errorf("it has %s", got)
			}
			return nil
		})
	}
	runs(r.image("app") + ":1.0.0")
	r.push(t, "app", "1.1.0")
	r.Ask(t, &imagev1.ImageRepository{}, "app")
	runs(r.image("app") + ":1.1.0")
	o := r.pushed(t, "main")
	if got, want := r.git(t, "show", "main:app/web.yaml"), strings.TrimSpace(r.Fill(marked(r.image("app")+":1.1.0"))); got != want {
		t.Errorf("the file is\n%s\nwant\n%s", got, want)
	}
	if o.Status.LastPushTime == nil || o.Status.LastAutomationRunTime == nil || o.Status.ObservedSourceRevision != "main@sha1:"+o.Status.LastPushCommit ||
		o.Status.ObservedPolicies["app"] != (autov1.ImageRef{Name: r.image("app"), Tag: "1.1.0"}) || !slices.Contains(o.Finalizers, "finalizers.fluxcd.io") {
		t.Errorf("the status is %+v, the finalizers %v", o.Status, o.Finalizers)
	}
	r.Event(t, "ImageUpdateAutomation", "auto", "Succeeded", fmt.Sprintf("pushed commit '%.7s' to branch 'main'\nUpdate from image update automation", o.Status.LastPushCommit))
	r.Event(t, "ImagePolicy", "app", "Succeeded", "resolved to 1.1.0 (previously "+r.image("app")+":1.0.0)")
	r.Delete(t, &autov1.ImageUpdateAutomation{}, "auto")
	r.Delete(t, &imagev1.ImagePolicy{}, "app")
	r.Delete(t, &imagev1.ImageRepository{}, "app")
	r.Gone(t, &imagev1.ImageRepository{}, "app")
}

// settled is a row with a policy app at 1.0.0 and files.
func (h *imageSpec) settled(t *testing.T, files map[string]string) *row {
	t.Helper()
	r := h.row(t, files)
	r.scanned(t, "1.0.0")
	r.make(t, "ImagePolicy", "app", semver, "team: web")
	r.chosen(t, "app", "1.0.0")
	return r
}

// newTag pushes a tag and has it chosen.
func (r *row) newTag(t *testing.T, tag string) {
	t.Helper()
	r.push(t, "app", tag)
	r.Ask(t, &imagev1.ImageRepository{}, "app")
	r.chosen(t, "app", tag)
}

// automationSetters: each form of a marker, in several files and documents; update.strategy is Setters.
func (h *imageSpec) automationSetters(t *testing.T) {
	const mark = ` # {"$imagepolicy": "$ns:app`
	r := h.row(t, map[string]string{
		"a.yaml":      "image: x:1" + mark + "\"}\nname: 'x'" + mark + ":name\"}\ntag: \"1\"" + mark + ":tag\"}\ndigest: sha256:0" + mark + ":digest\"}\n---\r\nimage: x" + mark + "\"}\r\n",
		"deep/b.yml":  "images:\n- newTag: 0.1.0" + mark + ":tag\"}\n  name: web # c\n",
		"c.txt":       "image: x:1" + mark + "\"}\n",
		"other.yaml":  "image: x:1 # {\"$imagepolicy\": \"elsewhere:app\"}\n",
		"plain.yaml":  "image:   x:1   # not marked\n",
		"broken.yaml": "{{ a template }}: [\n",
	})
	r.scanned(t, "1.0.0")
	r.make(t, "ImagePolicy", "app", "{imageRepositoryRef: {name: app}, policy: {semver: {range: '*'}}, digestReflectionPolicy: IfNotPresent}")
	digest := r.chosen(t, "app", "1.0.0").Status.LatestRef.Digest
	r.automate(t, "", ", update: {strategy: Setters}")
	r.pushed(t, "main")
	image := r.image("app")
	want := r.Fill("image: " + image + ":1.0.0@" + digest + mark + "\"}\nname: '" + image + "'" + mark + ":name\"}\ntag: \"1.0.0\"" + mark + ":tag\"}\ndigest: " + digest + mark + ":digest\"}\n---\r\nimage: " + image + ":1.0.0@" + digest + mark + "\"}")
	if got := r.git(t, "show", "main:a.yaml"); got != want {
		t.Errorf("the file is\n%q\nwant\n%q", got, want)
	}
	if got := r.git(t, "diff-tree", "-r", "--name-only", "main^", "main"); got != "a.yaml\ndeep/b.yml" {
		t.Errorf("the commit changes %q", got)
	}
	head := r.git(t, "rev-parse", "main")
	r.idle(t)
	if got := r.git(t, "rev-parse", "main"); got != head {
		t.Errorf("another commit was made without a change")
	}
	// A value in another place of a broken file is an error that names it, and nothing is pushed.
	r.Commit(t, map[string]string{"broken.yaml": "image: {{ .Values.image }}" + mark + "\"}\n  x"})
	r.Ask(t, &autov1.ImageUpdateAutomation{}, "auto")
	r.Tells(t, &autov1.ImageUpdateAutomation{}, "auto", "Ready", "False", "UpdateFailed", "cannot update broken.yaml: ")
}

// automationPath: update.path bounds what is changed.
func (h *imageSpec) automationPath(t *testing.T) {
	r := h.settled(t, map[string]string{"apps/a.yaml": marked("x:1"), "infra/b.yaml": marked("x:1")})
	r.automate(t, "", ", update: {path: ./apps, strategy: Setters}")
	r.pushed(t, "main")
	if got := r.git(t, "diff-tree", "-r", "--name-only", "main^", "main"); got != "apps/a.yaml" {
		t.Errorf("the commit changes %q", got)
	}
	r.automate(t, "", ", update: {path: ./gone}")
	r.Tells(t, &autov1.ImageUpdateAutomation{}, "auto", "Ready", "False", "InvalidSourceConfiguration", "...cannot find the directory")
}

// automationSelector: policySelector names the policies by their labels.
func (h *imageSpec) automationSelector(t *testing.T) {
	r := h.settled(t, map[string]string{"a.yaml": "a: x # {\"$imagepolicy\": \"$ns:app\"}\nb: x # {\"$imagepolicy\": \"$ns:other\"}\n"})
	r.make(t, "ImagePolicy", "other", semver, "team: db")
	r.chosen(t, "other", "1.0.0")
	r.automate(t, "", ", policySelector: {matchLabels: {team: db}}")
	o := r.pushed(t, "main")
	if got, want := r.git(t, "show", "main:a.yaml"), r.Fill("a: x # {\"$imagepolicy\": \"$ns:app\"}\nb: "+r.image("app")+":1.0.0 # {\"$imagepolicy\": \"$ns:other\"}"); got != want || len(o.Status.ObservedPolicies) != 1 {
		t.Errorf("the file is\n%s\nwant\n%s\nand the policies are %v", got, want, o.Status.ObservedPolicies)
	}
	r.automate(t, "", ", policySelector: {matchExpressions: [{key: team, operator: In, values: [web, db]}]}")
	r.has(t, "main", "a.yaml", "a: "+r.image("app")+":1.0.0")
	r.automate(t, "", ", policySelector: {matchExpressions: [{key: team, operator: Perhaps}]}")
	r.Tells(t, &autov1.ImageUpdateAutomation{}, "auto", "Stalled", "True", "InvalidPolicySelector", "")
}

// automationMessage: author, messageTemplate with Flux's data, and messageTemplateValues.
func (h *imageSpec) automationMessage(t *testing.T) {
	r := h.settled(t, map[string]string{"app/web.yaml": marked("x:1")})
	git := `, commit: {author: {email: bot@example.com, name: Image Bot}, messageTemplateValues: {cluster: prod}, messageTemplate: "%s"}`
	auto := func(template string) {
		r.make(t, "ImageUpdateAutomation", "auto", "{sourceRef: {name: git}, interval: 10m, git: {"+strings.TrimPrefix(fmt.Sprintf(git, template), ", ")+"}}")
	}
	auto(`{{ .AutomationObject }} for {{ .Values.cluster }}\n\n{{ range $file, $_ := .Changed.FileChanges }}{{ $file }}{{ end }}{{ range $r, $c := .Changed.Objects }} {{ $r.Kind | lower }}/{{ $r.Name }}{{ range $_, $x := $c }} {{ $x.OldValue }} -> {{ $x.NewValue }}{{ end }}{{ end }}`)
	r.pushed(t, "main")
	want := r.Fill("Image Bot <bot@example.com>|$ns/auto for prod\n\napp/web.yaml deployment/web x:1 -> " + r.image("app") + ":1.0.0")
	if got := r.git(t, "show", "--no-patch", "--format=%an <%ae>|%B", "main"); got != want {
		t.Errorf("the commit is\n%s\nwant\n%s", got, want)
	}
	auto("{{ range until 100000000 }}{{ range until 100000000 }}x{{ end }}{{ end }}")
	r.Commit(t, map[string]string{"app/web.yaml": marked("x:2")})
	head := r.git(t, "rev-parse", "main")
	r.Ask(t, &autov1.ImageUpdateAutomation{}, "auto")
	r.Tells(t, &autov1.ImageUpdateAutomation{}, "auto", "Stalled", "True", "UpdateFailed", "...messageTemplate")
	auto("{{ range .Updated.Images }}{{ end }}")
	r.Tells(t, &autov1.ImageUpdateAutomation{}, "auto", "Stalled", "True", "RemovedTemplateField", "")
	if got := r.git(t, "rev-parse", "main"); got != head {
		t.Errorf("a commit was pushed with a template that fails")
	}
}

// automationSigned: commit.signingKey of both types; the GitRepository verifies what is pushed.
func (h *imageSpec) automationSigned(t *testing.T) {
	r := h.settled(t, map[string]string{"app/web.yaml": marked("x:1")})
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	block, err := ssh.MarshalPrivateKeyWithPassphrase(private, "", []byte("pass"))
	if err != nil {
		t.Fatal(err)
	}
	key, err := ssh.NewPublicKey(public)
	if err != nil {
		t.Fatal(err)
	}
	r.Apply(t, r.Fill(fmt.Sprintf("apiVersion: v1\nkind: Secret\nmetadata: {name: signing, namespace: $ns}\nstringData: {identity: %q, password: pass}\n"+
		"---\napiVersion: v1\nkind: Secret\nmetadata: {name: keys, namespace: $ns}\nstringData: {bot.sshpub: %q}\n", pem.EncodeToMemory(block), ssh.MarshalAuthorizedKey(key))))
	sign := func(kind, secret string) {
		r.make(t, "ImageUpdateAutomation", "auto", "{sourceRef: {name: git}, interval: 10m, git: {commit: {author: {email: bot@example.com}, signingKey: {type: "+kind+", secretRef: {name: "+secret+"}}}}}")
	}
	sign("ssh", "gone")
	r.Tells(t, &autov1.ImageUpdateAutomation{}, "auto", "Ready", "False", "SourceManagerFailed", "cannot read Secret")
	sign("gpg", "signing")
	r.Tells(t, &autov1.ImageUpdateAutomation{}, "auto", "Ready", "False", "SourceManagerFailed", "...git.asc")
	sign("ssh", "signing")
	o := r.pushed(t, "main")
	r.Patch(t, &sourcev1.GitRepository{}, "git", `{"spec":{"verify":{"mode":"HEAD","secretRef":{"name":"keys"}}}}`)
	g := &sourcev1.GitRepository{}
	r.Tells(t, g, "git", "SourceVerified", "True", "Succeeded", "")
	if !strings.HasSuffix(g.Status.Artifact.Revision, o.Status.LastPushCommit) {
		t.Errorf("the verified revision is %s; want %s", g.Status.Artifact.Revision, o.Status.LastPushCommit)
	}
}

// automationCheckout: git.checkout is read instead of what the GitRepository follows, and is where the commit goes.
func (h *imageSpec) automationCheckout(t *testing.T) {
	r := h.settled(t, map[string]string{"app/web.yaml": marked("x:1")})
	r.git(t, "update-ref", "refs/heads/stage", "main")
	head := r.git(t, "rev-parse", "main")
	r.automate(t, ", checkout: {ref: {branch: stage}}", "")
	o := r.pushed(t, "stage")
	if r.git(t, "rev-parse", "main") != head || o.Status.ObservedSourceRevision != "stage@sha1:"+o.Status.LastPushCommit {
		t.Errorf("the status is %+v", o.Status)
	}
	r.automate(t, ", checkout: {ref: {branch: gone}}", "")
	r.Tells(t, &autov1.ImageUpdateAutomation{}, "auto", "Ready", "False", "GitOperationFailed", "...refs/heads/gone")
	r.automate(t, ", checkout: {ref: {commit: "+head+"}}, push: {branch: from-commit}", "")
	r.pushed(t, "from-commit")
	if got := r.git(t, "rev-parse", "from-commit^"); got != head {
		t.Errorf("the parent is %s; want %s", got, head)
	}
}

// automationPushBranch: push.branch is made of the checkout, follows it without force, and keeps what people push there.
func (h *imageSpec) automationPushBranch(t *testing.T) {
	r := h.settled(t, map[string]string{"app/web.yaml": marked("x:1"), "note": "1"})
	head := r.git(t, "rev-parse", "main")
	r.automate(t, ", push: {branch: auto}", "")
	first := r.pushed(t, "auto").Status.LastPushCommit
	if r.git(t, "rev-parse", "auto^") != head || r.git(t, "rev-parse", "main") != head {
		t.Fatalf("the branch was not made of main")
	}
	r.newTag(t, "1.1.0")
	r.has(t, "auto", "app/web.yaml", ":1.1.0")
	r.pushed(t, "auto")
	r.git(t, "merge-base", "--is-ancestor", first, "auto")
	r.Commit(t, map[string]string{"note": "2"})
	r.Ask(t, &autov1.ImageUpdateAutomation{}, "auto")
	r.has(t, "auto", "note", "2")
	r.pushed(t, "auto")
	person, err := r.Git.Commit(t.Context(), r.Namespace, "auto", "By hand", func(dir string) error {
		return os.WriteFile(filepath.Join(dir, "note"), []byte("mine"), 0o644)
	})
	if err != nil {
		t.Fatal(err)
	}
	r.newTag(t, "1.2.0")
	r.has(t, "auto", "app/web.yaml", ":1.2.0")
	r.git(t, "merge-base", "--is-ancestor", person, "auto")
	r.has(t, "auto", "note", "mine")
	r.git(t, "merge-base", "--is-ancestor", first, "auto")
	r.pushed(t, "auto")
	// The branch ends with a commit of the automation again, and what a person pushed is below it.
	r.newTag(t, "1.3.0")
	r.has(t, "auto", "app/web.yaml", ":1.3.0")
	r.has(t, "auto", "note", "mine")
	r.Tells(t, &autov1.ImageUpdateAutomation{}, "auto", "FollowsCheckout", "False", "MadeOfBranch", "")
}

// automationRefspec: push.refspec is pushed beside the branch; what would have to be forced is refused.
func (h *imageSpec) automationRefspec(t *testing.T) {
	r := h.settled(t, map[string]string{"app/web.yaml": marked("x:1")})
	r.automate(t, ", push: {branch: auto, refspec: 'refs/heads/auto:refs/for/main'}", "")
	o := r.pushed(t, "auto")
	if got := r.git(t, "rev-parse", "refs/for/main"); got != o.Status.LastPushCommit {
		t.Errorf("the second reference is at %s; want %s", got, o.Status.LastPushCommit)
	}
	r.Event(t, "ImageUpdateAutomation", "auto", "Succeeded", "and with refspec 'refs/heads/auto:refs/for/main'")
	stray := r.git(t, "commit-tree", "-p", "main", "-m", "stray", "main^{tree}")
	r.git(t, "update-ref", "refs/for/main", stray)
	r.newTag(t, "1.1.0")
	r.Tells(t, &autov1.ImageUpdateAutomation{}, "auto", "Ready", "False", "RefspecPushFailed", "...nothing is forced")
	r.pushed(t, "auto")
	r.git(t, "update-ref", "refs/for/main", o.Status.LastPushCommit)
	r.Ask(t, &autov1.ImageUpdateAutomation{}, "auto")
	r.Tells(t, &autov1.ImageUpdateAutomation{}, "auto", "Ready", "True", "Succeeded", "")
	if got, want := r.git(t, "rev-parse", "refs/for/main"), r.git(t, "rev-parse", "auto"); got != want {
		t.Errorf("the second reference is at %s; want %s", got, want)
	}
	r.automate(t, ", push: {branch: auto, refspec: 'refs/heads/other:refs/for/main'}", "")
	r.Tells(t, &autov1.ImageUpdateAutomation{}, "auto", "Ready", "False", "InvalidSourceConfiguration", "")
}

// automationOptions: push.options reach the server.
func (h *imageSpec) automationOptions(t *testing.T) {
	r := h.settled(t, map[string]string{"app/web.yaml": marked("x:1")})
	r.automate(t, ", push: {branch: main, options: {topic: images}}", "")
	r.Tells(t, &autov1.ImageUpdateAutomation{}, "auto", "Ready", "False", "GitOperationFailed", "...push options")
	r.git(t, "config", "receive.advertisePushOptions", "true")
	hook := "#!/bin/sh\necho \"$GIT_PUSH_OPTION_0\" > \"$GIT_DIR/option\"\ncat >/dev/null\n"
	if err := os.WriteFile(filepath.Join(r.bare(), "hooks", "pre-receive"), []byte(hook), 0o755); err != nil {
		t.Fatal(err)
	}
	r.Ask(t, &autov1.ImageUpdateAutomation{}, "auto")
	r.pushed(t, "main")
	if got, err := os.ReadFile(filepath.Join(r.bare(), "option")); err != nil || string(got) != "topic=images\n" {
		t.Errorf("the server got %q, %v", got, err)
	}
}

// automationInterval: what people commit is looked at again at the interval.
func (h *imageSpec) automationInterval(t *testing.T) {
	r := h.settled(t, map[string]string{"app/web.yaml": marked("x:1")})
	r.make(t, "ImageUpdateAutomation", "auto", "{sourceRef: {name: git}, interval: 2s, git: {commit: {author: {email: bot@example.com}}}}")
	r.pushed(t, "main")
	r.Commit(t, map[string]string{"app/web.yaml": marked("x:2")})
	r.has(t, "main", "app/web.yaml", r.image("app")+":1.0.0")
}

// automationSuspended: nothing is pushed until it goes on.
func (h *imageSpec) automationSuspended(t *testing.T) {
	r := h.settled(t, map[string]string{"app/web.yaml": marked("x:1")})
	r.automate(t, "", ", suspend: true")
	head := r.git(t, "rev-parse", "main")
	r.newTag(t, "1.1.0")
	r.Ask(t, &autov1.ImageUpdateAutomation{}, "auto")
	r.make(t, "ImageUpdateAutomation", "auto2", fmt.Sprintf(automation, ", push: {branch: other}", ""))
	r.Tells(t, &autov1.ImageUpdateAutomation{}, "auto2", "Ready", "True", "Succeeded", "")
	if got := r.git(t, "rev-parse", "main"); got != head {
		t.Fatalf("a suspended automation pushed %s", got)
	}
	r.automate(t, "", ", suspend: false")
	r.pushed(t, "main")
}

// automationSource: the GitRepository may be in another namespace, whose policies do not count; its credential is what writes.
func (h *imageSpec) automationSource(t *testing.T) {
	r := h.settled(t, map[string]string{"app/web.yaml": marked("x:1")})
	r.Apply(t, r.Fill("apiVersion: v1\nkind: Namespace\nmetadata: {name: $ns-other}\n---\napiVersion: image.toolkit.fluxcd.io/v1\nkind: ImageUpdateAutomation\nmetadata: {name: auto, namespace: $ns-other}\n"+
		"spec: {sourceRef: {kind: GitRepository, name: git, namespace: $ns}, interval: 10m, git: {commit: {author: {email: bot@example.com}}}}\n"))
	other := &row{&scenario.Row{Tier: r.Tier, Namespace: r.Namespace + "-other"}, h}
	other.Tells(t, &autov1.ImageUpdateAutomation{}, "auto", "Ready", "True", "Succeeded", "repository up-to-date")
	if got := r.git(t, "rev-parse", "main"); got != r.Head {
		t.Errorf("policies of another namespace were applied")
	}
	r.make(t, "ImageUpdateAutomation", "auto", "{sourceRef: {name: gone}, interval: 10m, git: {commit: {author: {email: bot@example.com}}}}")
	r.Tells(t, &autov1.ImageUpdateAutomation{}, "auto", "Ready", "False", "SourceManagerFailed", "referenced GitRepository")
	r.automate(t, "", "")
	r.pushed(t, "main")
}

// automationFailures: what cannot work says so.
func (h *imageSpec) automationFailures(t *testing.T) {
	r := h.settled(t, map[string]string{"app/web.yaml": marked("x:1")})
	r.make(t, "ImageUpdateAutomation", "auto", "{sourceRef: {name: git}, interval: 10m}")
	r.Tells(t, &autov1.ImageUpdateAutomation{}, "auto", "Stalled", "True", "InvalidSourceConfiguration", "")
	r.automate(t, ", checkout: {ref: {tag: v1}}", "")
	r.git(t, "update-ref", "refs/tags/v1", "main")
	r.Ask(t, &autov1.ImageUpdateAutomation{}, "auto")
	// A tag names no branch; the one of the GitRepository is taken, as in Flux.
	r.has(t, "main", "app/web.yaml", r.image("app")+":1.0.0")
	hook := "#!/bin/sh\necho no >&2\nexit 1\n"
	if err := os.WriteFile(filepath.Join(r.bare(), "hooks", "pre-receive"), []byte(hook), 0o755); err != nil {
		t.Fatal(err)
	}
	r.automate(t, "", "")
	r.newTag(t, "1.1.0")
	r.Tells(t, &autov1.ImageUpdateAutomation{}, "auto", "Ready", "False", "GitOperationFailed", "...must be allowed to write")
	if err := os.Remove(filepath.Join(r.bare(), "hooks", "pre-receive")); err != nil {
		t.Fatal(err)
	}
	r.Ask(t, &autov1.ImageUpdateAutomation{}, "auto")
	r.has(t, "main", "app/web.yaml", r.image("app")+":1.1.0")
}

// automationAtRest: an automation without news writes no status and fetches nothing.
func (h *imageSpec) automationAtRest(t *testing.T) {
	r := h.settled(t, map[string]string{"app/web.yaml": marked("x:1")})
	r.make(t, "ImageUpdateAutomation", "auto", "{sourceRef: {name: git}, interval: 1s, git: {commit: {author: {email: bot@example.com}}}}")
	r.pushed(t, "main")
	o := r.idle(t)
	before := r.Git.Requests(r.Namespace)
	scenario.Eventually(t, scenario.Converge, "the repository is asked five times", func(context.Context) error {
		if now := r.Git.Requests(r.Namespace); now.Discoveries < before.Discoveries+5 {
			return fmt.Errorf("it was asked %d times", now.Discoveries-before.Discoveries)
		}
		return nil
	})
	after := r.Git.Requests(r.Namespace)
	if after.Fetches != before.Fetches || after.Pushes != before.Pushes {
		t.Errorf("%d fetches and %d pushes without news", after.Fetches-before.Fetches, after.Pushes-before.Pushes)
	}
	version := o.ResourceVersion
	if err := r.Load(t.Context(), o, r.Namespace, "auto"); err != nil || o.ResourceVersion != version {
		t.Errorf("the status was written without news: %s, before %s, %v", o.ResourceVersion, version, err)
	}
}
