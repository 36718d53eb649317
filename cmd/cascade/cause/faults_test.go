package cause

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	autov1 "github.com/fluxcd/image-automation-controller/api/v1"
	imagev1 "github.com/fluxcd/image-reflector-controller/api/v1"
	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	notificationv1 "github.com/fluxcd/notification-controller/api/v1"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	generatorv1 "github.com/fluxcd/source-watcher/api/v2/v1beta1"
	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/yaml"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/capibridge"
)

var update = flag.Bool("update", false, "write the golden files anew")

// fakeTier is an API server with some objects.
type fakeTier struct {
	client.Client
	mapper meta.RESTMapper
}

func (f fakeTier) RESTMapper() meta.RESTMapper { return f.mapper }

func (f fakeTier) InServed(gk schema.GroupKind, read func(*meta.RESTMapping) error) error {
	mapping, err := f.mapper.RESTMapping(gk)
	if err != nil {
		return err
	}
	return read(mapping)
}

// tierOf is a tier with the objects of a YAML text.
func tierOf(t *testing.T, text string) fakeTier {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		clientgoscheme.AddToScheme, sourcev1.AddToScheme, kustomizev1.AddToScheme, helmv2.AddToScheme, v1alpha1.AddToScheme,
		imagev1.AddToScheme, autov1.AddToScheme, notificationv1.AddToScheme, generatorv1.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	var versions []schema.GroupVersion
	for _, gv := range []string{"cluster.x-k8s.io/v1beta1", "infrastructure.cluster.x-k8s.io/v1beta1"} {
		if !strings.Contains(text, gv) {
			gv = strings.Replace(gv, "v1beta1", "v1beta2", 1)
		}
		version, err := schema.ParseGroupVersion(gv)
		if err != nil {
			t.Fatal(err)
		}
		versions = append(versions, version)
	}
	mapper := meta.NewDefaultRESTMapper(versions)
	var objects []client.Object
	for _, doc := range strings.Split(text, "---\n") {
		u := &unstructured.Unstructured{}
		if err := yaml.Unmarshal([]byte(doc), &u.Object); err != nil {
			t.Fatalf("%v:\n%s", err, doc)
		}
		if u.Object == nil {
			continue
		}
		gvk := u.GroupVersionKind()
		if !strings.HasSuffix(gvk.Group, "cluster.x-k8s.io") {
			typed, err := scheme.New(gvk)
			if err != nil {
				t.Fatal(err)
			}
			data, err := json.Marshal(u.Object)
			if err != nil {
				t.Fatal(err)
			}
			if err := json.Unmarshal(data, typed); err != nil {
				t.Fatalf("%v:\n%s", err, doc)
			}
			objects = append(objects, typed.(client.Object))
			continue
		}
		mapper.Add(gvk, meta.RESTScopeNamespace)
		if !scheme.Recognizes(gvk) {
			scheme.AddKnownTypeWithName(gvk, &unstructured.Unstructured{})
			scheme.AddKnownTypeWithName(gvk.GroupVersion().WithKind(gvk.Kind+"List"), &unstructured.UnstructuredList{})
		}
		objects = append(objects, u)
	}
	return fakeTier{fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).Build(), mapper}
}

func factsOf(t *testing.T, text string) *Facts {
	t.Helper()
	r := Reader{Tier: tierOf(t, text), Namespace: v1alpha1.AgentNamespace, Providers: &capibridge.Providers{}}
	f, err := r.Read(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	delete(f.Unread, "Lease") // of an agent that they are not about
	if len(f.Unread) > 0 {
		t.Fatalf("unread: %v", f.Unread)
	}
	return f
}

// TestFaults: of each planted fault the root is named first, in the words of the page. A
// file has the objects as the API server has them, with the root that a person would name,
// and a file beside it what is printed.
func TestFaults(t *testing.T) {
	files, err := filepath.Glob("testdata/faults/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if len(files) < 40 {
		t.Errorf("there are %d planted faults, want at least 40", len(files))
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".yaml"), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			want, ask := "", ""
			for line := range strings.Lines(string(text)) {
				if rest, ok := strings.CutPrefix(line, "# root: "); ok {
					want = strings.TrimSpace(rest)
				}
				if rest, ok := strings.CutPrefix(line, "# ask: "); ok {
					ask = strings.TrimSpace(rest)
				}
			}
			e := Explain(factsOf(t, string(text)), noon)
			if len(e.Groups) == 0 {
				t.Fatal("nothing is wrong")
			}
			if got := where(e.Groups[0].Root.Object) + " " + e.Groups[0].Root.Reason; got != want {
				t.Errorf("the root is %s, want %s", got, want)
			}
			var out bytes.Buffer
			if err := e.All().Text(&out, noon); err != nil {
				t.Fatal(err)
			}
			if ask != "" {
				fmt.Fprintf(&out, "\n# %s\n", ask)
				if err := aboutText(t, e, ask).Text(&out, noon); err != nil {
					t.Fatal(err)
				}
			}
			for _, n := range e.graph.nodes {
				if n.link.Page == "" {
					t.Errorf("%s of %s has no entry on the page", n.link.Reason, n.Object)
				}
			}
			compare(t, strings.TrimSuffix(file, ".yaml")+".txt", out.String())
		})
	}
}

// TestAnswer: the form that programs read.
func TestAnswer(t *testing.T) {
	text, err := os.ReadFile("testdata/faults/layer-source.yaml")
	if err != nil {
		t.Fatal(err)
	}
	e := Explain(factsOf(t, string(text)), noon)
	for file, answer := range map[string]*Answer{"testdata/all.json": e.All(), "testdata/about.json": aboutText(t, e, "Child/masters/aws")} {
		data, err := json.MarshalIndent(answer, "", "  ")
		if err != nil {
			t.Fatal(err)
		}
		compare(t, file, string(data)+"\n")
	}
}

// aboutText answers for the object that prints as the text.
func aboutText(t *testing.T, e *Explanation, text string) *Answer {
	t.Helper()
	for o := range e.graph.known {
		if where(o) == text {
			a, _ := e.About(o)
			return a
		}
	}
	t.Fatalf("there is no %s", text)
	return nil
}

func compare(t *testing.T, file, got string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s: -want, +got:\n%s", file, diff)
	}
}

// TestNoHeartbeat: what only an agent reconciles is not taken for well where none has ever
// renewed its Lease. Of Flux's kinds another controller may take care.
func TestNoHeartbeat(t *testing.T) {
	const (
		child  = "apiVersion: cascade.dev/v1alpha1\nkind: Child\nmetadata: {namespace: fleet, name: shop}\n"
		apps   = "apiVersion: kustomize.toolkit.fluxcd.io/v1\nkind: Kustomization\nmetadata: {namespace: flux-system, name: apps}\n"
		report = "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {namespace: elsewhere, name: cascade-report}\n"
	)
	for name, tc := range map[string]struct {
		reason, text string
		unread       bool
		silent       bool
	}{
		"Children": {"an agent is in another namespace, or gone", child, true, false},
		"Flux":     {"a cluster of Flux", apps, false, false},
		"Gone":     {"an agent left its report", child + report, false, true},
		"Back":     {"an agent left its report, and Flux has the rest", apps + report, false, false},
	} {
		r := Reader{Tier: tierOf(t, tc.text), Namespace: "elsewhere", Providers: &capibridge.Providers{}}
		f, err := r.Read(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var said bytes.Buffer
		if err := Explain(f, noon).All().Text(&said, noon); err != nil {
			t.Fatal(err)
		}
		if strings.Contains(said.String(), ReasonAgentSilent) != tc.silent || strings.Contains(f.Unread["Lease"], "elsewhere/"+v1alpha1.HeartbeatLease) != tc.unread {
			t.Errorf("%s: %s: %v, unread %v: %s", name, tc.reason, f.Heartbeat, f.Unread, said.String())
		}
	}
}
