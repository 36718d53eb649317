package cli

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"

	autov1 "github.com/fluxcd/image-automation-controller/api/v1"
	imagev1 "github.com/fluxcd/image-reflector-controller/api/v1"
	notificationv1 "github.com/fluxcd/notification-controller/api/v1"
	fluxmeta "github.com/fluxcd/pkg/apis/meta"
	generatorv1 "github.com/fluxcd/source-watcher/api/v2/v1beta1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/e2e/origins"
	"github.com/cascade-gitops/cascade/e2e/scenario"
	"github.com/cascade-gitops/cascade/e2e/stage"
)

// TestFluxKinds runs the verbs of the flux CLI about the kinds that came to Flux later, and
// compares what they print with what they print for Flux's own controllers.
func TestFluxKinds(t *testing.T) {
	scenario.Alongside(t)
	f := &fluxKinds{fluxCLI: startFlux(t), registry: origins.StartRegistry(origins.Login{})}
	t.Cleanup(f.registry.Close)
	f.RestartAgent(t, "--receiver-addr=$(POD_IP):9292", "--feature-gates=ExternalArtifact=true")
	for _, kind := range []struct {
		name string
		run  func(*fluxKinds, *testing.T)
	}{
		{"Receivers", (*fluxKinds).receivers},
		{"Alerts", (*fluxKinds).alerts},
		{"Images", (*fluxKinds).images},
		{"ArtifactGenerators", (*fluxKinds).artifactGenerators},
	} {
		t.Run(kind.name, func(t *testing.T) { kind.run(f, t) })
	}
}

type fluxKinds struct {
	*fluxCLI
	registry *origins.Registry
}

// verbs runs a command for each golden file.
func (f *fluxKinds) verbs(t *testing.T, prefix string, commands [][2]string) {
	t.Helper()
	for _, c := range commands {
		out := f.succeeds(t, strings.Fields(c[1])...)
		f.golden(t, prefix+"-"+c[0], strings.ReplaceAll(out, f.registry.Address(), "<registry>"))
	}
}

// ready waits until an object of the agent's namespace is.
func (f *fluxKinds) ready(t *testing.T, o conditioned, name string) {
	t.Helper()
	scenario.Eventually(t, scenario.Converge, name+" is ready", func(ctx context.Context) error {
		if err := scenario.Get(ctx, f.MoM, o, stage.Namespace, name); err != nil {
			return err
		}
		c := apimeta.FindStatusCondition(o.GetConditions(), fluxmeta.ReadyCondition)
		switch {
		case c == nil:
			return errors.New("it says nothing")
		case c.Status != metav1.ConditionTrue:
			return fmt.Errorf("it says %s: %s", c.Reason, c.Message)
		}
		return nil
	})
}

type conditioned interface {
	client.Object
	GetConditions() []metav1.Condition
}

func (f *fluxKinds) receivers(t *testing.T) {
	const secret = "a-token-of-the-test"
	f.Apply(t, fmt.Sprintf("apiVersion: v1\nkind: Secret\nmetadata: {name: hook, namespace: %s}\nstringData: {token: %s}\n", stage.Namespace, secret))
	metrics, err := scenario.MetricsAddress(f.MoM)
	if err != nil {
		t.Fatal(err)
	}
	host, _, err := net.SplitHostPort(metrics)
	if err != nil {
		t.Fatal(err)
	}
	f.verbs(t, "receiver", [][2]string{
		{"create", "create receiver hook --type generic --secret-ref hook --resource GitRepository/apps"},
		{"get", "get receivers"},
		{"reconcile", "reconcile receiver hook"},
		{"export", "export receiver hook"},
		{"suspend", "suspend receiver hook"},
		{"suspended", "get receivers"},
		{"resume", "resume receiver hook"},
		{"trigger", "trigger receiver hook --token " + secret + " --url http://" + net.JoinHostPort(host, "9292")},
		{"delete", "delete receiver hook --silent"},
	})
	f.gone(t, &notificationv1.Receiver{}, "hook")
}

func (f *fluxKinds) alerts(t *testing.T) {
	f.verbs(t, "alert", [][2]string{
		{"create-provider", "create alert-provider chat --type slack --channel fleet --address http://127.0.0.1:1/chat"},
		{"create", "create alert apps --provider-ref chat --event-severity error --event-source Kustomization/* --event-source GitRepository/apps"},
		{"get-provider", "get alert-providers"},
		{"get", "get alerts"},
		{"export-provider", "export alert-provider chat"},
		{"export", "export alert apps"},
		{"suspend", "suspend alert apps"},
		{"suspended", "get alerts"},
		{"resume", "resume alert apps"},
		{"delete", "delete alert apps --silent"},
		{"delete-provider", "delete alert-provider chat --silent"},
	})
	for kind, name := range map[string]string{"Alert": "apps", "Provider": "chat"} {
		f.gone(t, stage.Object("notification.toolkit.fluxcd.io/v1beta3", kind), name)
	}
}

func (f *fluxKinds) images(t *testing.T) {
	for _, tag := range []string{"1.0.0", "1.1.0"} {
		if _, err := f.registry.PushFiles("app", tag, map[string]string{"tag": tag}, nil); err != nil {
			t.Fatal(err)
		}
	}
	// The CLI has no flag for spec.insecure, without which a registry is not spoken to in the
	// clear here.
	f.verbs(t, "image", [][2]string{{"create-repository", "create image repository app --image " + f.registry.Address() + "/app --interval 10m --export"}})
	f.Apply(t, fmt.Sprintf("apiVersion: image.toolkit.fluxcd.io/v1\nkind: ImageRepository\nmetadata: {name: app, namespace: %s}\nspec: {image: %s/app, interval: 10m, insecure: true}\n",
		stage.Namespace, f.registry.Address()))
	f.verbs(t, "image", [][2]string{
		{"create-policy", "create image policy app --image-ref app --select-semver >=1.0.0"},
		{"create-update", "create image update apps --git-repo-ref apps --git-repo-path ./apps --checkout-branch main --author-name Ann --author-email ann@example.com --interval 10m"},
	})
	// The CLI makes objects that wait for each other.
	f.ready(t, &imagev1.ImageRepository{}, "app")
	f.ready(t, &imagev1.ImagePolicy{}, "app")
	f.ready(t, &autov1.ImageUpdateAutomation{}, "apps")
	f.verbs(t, "image", [][2]string{
		{"get-repository", "get image repository"},
		{"get-policy", "get image policy"},
		{"get-update", "get image update"},
		{"get-all", "get images all"},
		{"reconcile-repository", "reconcile image repository app"},
		{"reconcile-policy", "reconcile image policy app"},
		{"reconcile-update", "reconcile image update apps"},
		{"export-repository", "export image repository app"},
		{"export-policy", "export image policy app"},
		{"export-update", "export image update apps"},
		{"suspend-repository", "suspend image repository app"},
		{"suspend-policy", "suspend image policy app"},
		{"suspend-update", "suspend image update apps"},
		{"get-suspended", "get images all"},
		{"resume-repository", "resume image repository app"},
		{"resume-policy", "resume image policy app"},
		{"resume-update", "resume image update apps"},
		{"delete-update", "delete image update apps --silent"},
		{"delete-policy", "delete image policy app --silent"},
		{"delete-repository", "delete image repository app --silent"},
	})
	f.gone(t, &autov1.ImageUpdateAutomation{}, "apps")
	f.gone(t, &imagev1.ImagePolicy{}, "app")
	f.gone(t, &imagev1.ImageRepository{}, "app")
}

func (f *fluxKinds) artifactGenerators(t *testing.T) {
	f.Apply(t, fmt.Sprintf(`apiVersion: source.extensions.fluxcd.io/v1beta1
kind: ArtifactGenerator
metadata: {name: parts, namespace: %s}
spec:
  sources: [{alias: git, kind: GitRepository, name: apps}]
  artifacts:
  - {name: inner, copy: [{from: "@git/nested/**", to: "@artifact/"}]}
  - {name: outer, copy: [{from: "@git/apps/**", to: "@artifact/"}]}
`, stage.Namespace))
	f.ready(t, &generatorv1.ArtifactGenerator{}, "parts")
	f.verbs(t, "artifact", [][2]string{
		{"get", "get artifact generators"},
		{"get-external", "get sources external"},
		{"tree", "tree artifact generator parts"},
		{"export", "export artifact generator parts"},
	})
	if err := f.Client.Delete(t.Context(), &generatorv1.ArtifactGenerator{ObjectMeta: metav1.ObjectMeta{Namespace: stage.Namespace, Name: "parts"}}); err != nil {
		t.Fatal(err)
	}
	f.gone(t, &generatorv1.ArtifactGenerator{}, "parts")
}
