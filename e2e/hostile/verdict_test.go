package hostile

import (
	"context"
	"io"
	"log"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// quiet drops what servers say about clients that go away.
var quiet = log.New(io.Discard, "", 0)

// versions of the kinds whose objects tell.
var versions = map[string]string{
	"GitRepository": "source.toolkit.fluxcd.io/v1", "OCIRepository": "source.toolkit.fluxcd.io/v1", "HelmRepository": "source.toolkit.fluxcd.io/v1",
	"HelmChart": "source.toolkit.fluxcd.io/v1", "Bucket": "source.toolkit.fluxcd.io/v1", "Kustomization": "kustomize.toolkit.fluxcd.io/v1",
	"HelmRelease": "helm.toolkit.fluxcd.io/v2", "ExternalArtifact": "source.toolkit.fluxcd.io/v1", "Layer": "cascade.dev/v1alpha1",
	"ArtifactGenerator": "source.extensions.fluxcd.io/v1beta1", "Child": "cascade.dev/v1alpha1",
	"ImageRepository": "image.toolkit.fluxcd.io/v1", "ImagePolicy": "image.toolkit.fluxcd.io/v1", "ImageUpdateAutomation": "image.toolkit.fluxcd.io/v1",
	"Receiver": "notification.toolkit.fluxcd.io/v1",
}

// verdict is what the object of a fixture tells.
type verdict struct {
	reason, message string
	// ready is whether it says that all is well.
	ready bool
	// at is when it told one of the reasons of the fixture first; zero if it did not.
	at time.Time
}

// verdicts follows what all fixtures tell.
type verdicts struct {
	mu   sync.Mutex
	of   map[string]verdict
	want map[string]fixture
	// leaks are messages with a text that is nobody's business.
	leaks  []string
	leaked map[string]bool
	// changed is closed, and made anew, when one tells something else.
	changed chan struct{}
}

func follow(ctx context.Context, c client.WithWatch) *verdicts {
	v := &verdicts{of: map[string]verdict{}, want: map[string]fixture{}, leaked: map[string]bool{}, changed: make(chan struct{})}
	for kind, version := range versions {
		go v.watch(ctx, c, schema.FromAPIVersionAndKind(version, kind))
	}
	return v
}

// expect has a fixture judged from now on.
func (v *verdicts) expect(f fixture) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.want[f.namespace()] = f
}

func (v *verdicts) get(f fixture) (verdict, chan struct{}) {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.of[f.namespace()], v.changed
}

// watch follows one kind until the context ends.
func (v *verdicts) watch(ctx context.Context, c client.WithWatch, kind schema.GroupVersionKind) {
	for ctx.Err() == nil {
		list := &unstructured.UnstructuredList{}
		list.SetGroupVersionKind(kind.GroupVersion().WithKind(kind.Kind + "List"))
		w, err := c.Watch(ctx, list)
		if err != nil {
			continue // the API server refuses none for long
		}
		for e := range w.ResultChan() {
			if u, ok := e.Object.(*unstructured.Unstructured); ok && u.GetName() == object && u.GetKind() == kind.Kind {
				v.judge(u)
			}
		}
	}
}

// passing are what objects say before what they depend on was looked at.
var passing = []string{"has not been reconciled", "does not have an artifact", "HelmChart.source.toolkit.fluxcd.io", "Source artifact not found", "no artifact available", "not been fetched", `"charts" not found`, `"external" not found`, `"source" not found`, `"git" not found`, "/git' not found", "has no artifact"}

// secrets are texts that no message may have.
var secrets = []string{canary, password, "root:x:", "goroutine "}

func (v *verdicts) judge(u *unstructured.Unstructured) {
	v.mu.Lock()
	defer v.mu.Unlock()
	f, ok := v.want[u.GetNamespace()]
	if !ok || f.kind != u.GetKind() {
		return
	}
	handled, _, _ := unstructured.NestedString(u.Object, "status", "lastHandledReconcileAt")
	if f.status != "" && handled == "" {
		return // what it says is what somebody wrote
	}
	old := v.of[u.GetNamespace()]
	now := old
	conditions, _, _ := unstructured.NestedSlice(u.Object, "status", "conditions")
	for _, c := range conditions {
		c, _ := c.(map[string]any)
		kind, _ := c["type"].(string)
		status, _ := c["status"].(string)
		reason, _ := c["reason"].(string)
		message, _ := c["message"].(string)
		for _, s := range secrets {
			if what := u.GetNamespace() + " tells " + s; strings.Contains(message, s) && !v.leaked[what] {
				v.leaked[what] = true
				v.leaks = append(v.leaks, u.GetNamespace()+": "+message[:min(len(message), 500)])
			}
		}
		told := kind == "Ready" && status == "False" || kind == "Stalled" && status == "True"
		if kind == "Ready" && old.at.IsZero() {
			now.ready, now.reason, now.message = status == "True", reason, message
		}
		passes := slices.ContainsFunc(passing, func(s string) bool { return strings.Contains(message, s) })
		if told && !passes && slices.Contains(f.tells, reason) && message != "" && now.at.IsZero() {
			now.at = time.Now()
			now.reason, now.message = reason, message
		}
	}
	v.of[u.GetNamespace()] = now
	close(v.changed)
	v.changed = make(chan struct{})
}
