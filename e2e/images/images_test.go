package images

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	autov1 "github.com/fluxcd/image-automation-controller/api/v1"
	imagev1 "github.com/fluxcd/image-reflector-controller/api/v1"

	"github.com/cascade-gitops/cascade/e2e/origins"
	"github.com/cascade-gitops/cascade/e2e/scenario"
)

// TestImages tries what Flux says of its kinds of image updates, row by row.
func TestImages(t *testing.T) {
	scenario.Alongside(t)
	h := &imageSpec{Tier: scenario.StartTier(t), registry: origins.StartRegistry(origins.Login{})}
	t.Cleanup(h.registry.Close)
	t.Run("Rows", func(t *testing.T) {
		parts := scenario.PartsOf(t)
		defer parts.Wait()
		for _, r := range []struct {
			name string
			run  func(*imageSpec, *testing.T)
		}{
			{"EndToEnd", (*imageSpec).endToEnd},
			{"Repository", (*imageSpec).repository},
			{"RepositoryShared", (*imageSpec).repositoryShared},
			{"RepositoryInterval", (*imageSpec).repositoryInterval},
			{"RepositoryExclusionList", (*imageSpec).repositoryExclusionList},
			{"RepositoryLogin", (*imageSpec).repositoryLogin},
			{"RepositoryCertificates", (*imageSpec).repositoryCertificates},
			{"RepositoryProxy", (*imageSpec).repositoryProxy},
			{"RepositoryProvider", (*imageSpec).repositoryProvider},
			{"RepositorySuspended", (*imageSpec).repositorySuspended},
			{"RepositoryTimeout", (*imageSpec).repositoryTimeout},
			{"RepositoryFailures", (*imageSpec).repositoryFailures},
			{"Policy", (*imageSpec).policy},
			{"PolicyPrevious", (*imageSpec).policyPrevious},
			{"PolicyDigest", (*imageSpec).policyDigest},
			{"PolicyOtherImage", (*imageSpec).policyOtherImage},
			{"PolicyAccess", (*imageSpec).policyAccess},
			{"PolicySuspended", (*imageSpec).policySuspended},
			{"PolicyFailures", (*imageSpec).policyFailures},
			{"AutomationSetters", (*imageSpec).automationSetters},
			{"AutomationPath", (*imageSpec).automationPath},
			{"AutomationSelector", (*imageSpec).automationSelector},
			{"AutomationMessage", (*imageSpec).automationMessage},
			{"AutomationSigned", (*imageSpec).automationSigned},
			{"AutomationCheckout", (*imageSpec).automationCheckout},
			{"AutomationPushBranch", (*imageSpec).automationPushBranch},
			{"AutomationRefspec", (*imageSpec).automationRefspec},
			{"AutomationOptions", (*imageSpec).automationOptions},
			{"AutomationInterval", (*imageSpec).automationInterval},
			{"AutomationSuspended", (*imageSpec).automationSuspended},
			{"AutomationSource", (*imageSpec).automationSource},
			{"AutomationFailures", (*imageSpec).automationFailures},
			{"AutomationAtRest", (*imageSpec).automationAtRest},
		} {
			parts.Run(r.name, func(t *testing.T) {
				r.run(h, t)
			})
		}
	})
	t.Run("Restart", h.restart)
}

// imageSpec is the tier that all rows share.
type imageSpec struct {
	*scenario.Tier
	registry *origins.Registry
}

// row is one row: a namespace with a Git repository and images below its name.
type row struct {
	*scenario.Row
	h *imageSpec
}

func (h *imageSpec) row(t *testing.T, files map[string]string) *row {
	t.Helper()
	if files == nil {
		files = map[string]string{"README": "Read me.\n"}
	}
	return &row{h.Row(t, files), h}
}

// image is the name of an image of the row.
func (r *row) image(name string) string {
	return r.h.registry.Address() + "/" + r.Namespace + "/" + name
}

// push pushes an image with these tags.
func (r *row) push(t *testing.T, name string, tags ...string) {
	t.Helper()
	for _, tag := range tags {
		if _, err := r.h.registry.PushFiles(r.Namespace+"/"+name, tag, map[string]string{"tag": tag}, nil); err != nil {
			t.Fatal(err)
		}
	}
}

// make creates or replaces an object. In its text, $ns is the namespace and $image the image app.
func (r *row) make(t *testing.T, kind, name, spec string, labels ...string) {
	t.Helper()
	text := fmt.Sprintf("apiVersion: image.toolkit.fluxcd.io/v1\nkind: %s\nmetadata: {name: %s, namespace: $ns, labels: {%s}}\nspec: %s\n", kind, name, strings.Join(labels, ", "), spec)
	r.Apply(t, r.Fill(strings.ReplaceAll(text, "$image", r.image("app"))))
}

// scanned makes an ImageRepository of the image app, pushed with these tags, and waits for it.
func (r *row) scanned(t *testing.T, tags ...string) {
	t.Helper()
	r.push(t, "app", tags...)
	r.make(t, "ImageRepository", "app", "{image: $image, insecure: true, interval: 10m}")
	r.Tells(t, &imagev1.ImageRepository{}, "app", "Ready", "True", "Succeeded", fmt.Sprintf("successful scan: found %d tags", len(tags)))
}

// chosen waits until a policy has chosen a tag.
func (r *row) chosen(t *testing.T, name, tag string) *imagev1.ImagePolicy {
	t.Helper()
	o := &imagev1.ImagePolicy{}
	r.Tells(t, o, name, "Ready", "True", "Succeeded", "Latest image tag for '"+r.image("app")+"' resolved to "+tag)
	if o.Status.LatestRef == nil || o.Status.LatestRef.Tag != tag || o.Status.LatestRef.Name != r.image("app") {
		t.Fatalf("policy %s has chosen %+v; want %s", name, o.Status.LatestRef, tag)
	}
	return o
}

const (
	semver = "{imageRepositoryRef: {name: app}, policy: {semver: {range: '>=1.0.0'}}}"
	// automation is one that pushes to main; more goes behind.
	automation = "{sourceRef: {kind: GitRepository, name: git}, interval: 10m, git: {commit: {author: {email: bot@example.com, name: Image Bot}}%s}%s}"
)

// automate makes an ImageUpdateAutomation.
func (r *row) automate(t *testing.T, git, more string) {
	t.Helper()
	r.make(t, "ImageUpdateAutomation", "auto", fmt.Sprintf(automation, git, more))
}

// bare is the repository at the server.
func (r *row) bare() string { return filepath.Join(filepath.Dir(r.MoM.Dir), "git", r.Namespace+".git") }

func (r *row) try(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "git", append([]string{"--git-dir=" + r.bare()}, args...)...)
	cmd.Env = append(os.Environ(), "GIT_AUTHOR_NAME=x", "GIT_AUTHOR_EMAIL=x@example.com", "GIT_COMMITTER_NAME=x", "GIT_COMMITTER_EMAIL=x@example.com")
	out, err := cmd.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("git %v: %w: %s", args, err, out)
	}
	return strings.TrimSpace(string(out)), nil
}

func (r *row) git(t *testing.T, args ...string) string {
	t.Helper()
	out, err := r.try(t.Context(), args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// has waits until a file of a branch has a text.
func (r *row) has(t *testing.T, branch, file, text string) {
	t.Helper()
	scenario.Eventually(t, scenario.Converge, fmt.Sprintf("%s of %s has %q", file, branch, text), func(ctx context.Context) error {
		got, err := r.try(ctx, "show", branch+":"+file)
		if err != nil {
			return err
		}
		if !strings.Contains(got, text) {
			return fmt.Errorf("it has %q", got)
		}
		return nil
	})
}

// pushed waits until an automation tells of a commit that a branch has.
func (r *row) pushed(t *testing.T, branch string) *autov1.ImageUpdateAutomation {
	t.Helper()
	o := &autov1.ImageUpdateAutomation{}
	scenario.Eventually(t, scenario.Converge, "the automation has pushed to "+branch, func(ctx context.Context) error {
		if err := r.Load(ctx, o, r.Namespace, "auto"); err != nil {
			return err
		}
		head, err := r.try(ctx, "rev-parse", branch)
		if err != nil {
			return fmt.Errorf("%w; conditions are %s", err, scenario.Summary(o.Status.Conditions))
		}
		if o.Status.LastPushCommit != head {
			return fmt.Errorf("it has pushed %s, and the branch has %s; conditions are %s", o.Status.LastPushCommit, head, scenario.Summary(o.Status.Conditions))
		}
		return nil
	})
	return o
}

// idle waits until an automation was asked and has nothing to do.
func (r *row) idle(t *testing.T) *autov1.ImageUpdateAutomation {
	t.Helper()
	o := &autov1.ImageUpdateAutomation{}
	r.Answered(t, o, "auto")
	r.Tells(t, o, "auto", "Ready", "True", "Succeeded", "repository up-to-date")
	return o
}

// marked is a Deployment with the image of a policy.
func marked(image string) string {
	return "# The web server.\napiVersion: apps/v1\nkind: Deployment\nmetadata:\n  name: web   # its name\nspec:\n  replicas: 0\n" +
		"  selector: {matchLabels: {app: web}}\n  template:\n    metadata: {labels: {app: web}}\n    spec:\n      containers:\n" +
		"      - name: web\n        image: " + image + " # {\"$imagepolicy\": \"$ns:app\"}\n"
}
