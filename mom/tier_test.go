//go:build linux

package mom

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
)

func TestTier(t *testing.T) {
	a, b := Tier{Repository: "https://example.com/a", Path: "mom"}, Tier{Repository: "https://example.com/a", Path: "mon"}
	failed := func(f *Facts) { f.Kustomizations[0].Status.Conditions = ready("False", 2) }
	empty := func(f *Facts) { f.Kustomizations[0].Status.Inventory = nil }
	never := func(f *Facts) { failed(f); empty(f); f.Kustomizations[0].Status.LastAppliedRevision = "" }
	for name, tc := range map[string]struct {
		reason string
		before Tier
		change func(*Facts)
		want   Tier
	}{
		"First":   {"all is applied", Tier{}, func(*Facts) {}, b},
		"Nothing": {"there is not even a Kustomization", Tier{}, func(f *Facts) { *f = Facts{Sync: f.Sync} }, Tier{}},
		"Slip":    {"the path is not there, so nothing was applied", Tier{}, never, Tier{}},
		"Partly": {"one object is refused, and the others may be there", Tier{}, func(f *Facts) {
			never(f)
			f.Kustomizations[0].Status.Inventory = &kustomizev1.ResourceInventory{Entries: []kustomizev1.ResourceRef{{ID: "n_a__ConfigMap", Version: "v1"}}}
		}, b},
		"Empty":      {"the path has no objects", Tier{}, empty, Tier{}},
		"MovedEmpty": {"nor has that to which it should move", a, empty, a},
		"MovedHeld": {"all is applied, and what is to be deleted waits for a person", a, func(f *Facts) {
			f.Kustomizations[0].Status.Conditions = []metav1.Condition{{Type: "Ready", Status: "False", Reason: v1alpha1.ReasonPruneBlocked, ObservedGeneration: 2}}
		}, b},
		"Moved":     {"it is elsewhere from now on", a, func(*Facts) {}, b},
		"MovedSlip": {"what is there is still of the tier of before", a, failed, a},
		"MovedUnread": {"what the Kustomization says is of the repository of before", a, func(f *Facts) {
			f.Sources[0].Object = &sourcev1.GitRepository{ObjectMeta: f.Kustomizations[0].ObjectMeta, Status: sourcev1.GitRepositoryStatus{Conditions: ready("False", 2)}}
		}, a},
		"MovedUnasked": {"what is said was said before this run", a, func(f *Facts) { f.Request = "later" }, a},
		"MovedBehind":  {"the repository has more", a, func(f *Facts) { f.Sources[0].Artifact.Revision = "main@2" }, a},
	} {
		t.Run(name, func(t *testing.T) {
			f := complete()
			tc.change(&f)
			if got := f.tier(tc.before, b); got != tc.want {
				t.Errorf("%s: got %s, want %s", tc.reason, got, tc.want)
			}
		})
	}
}

// TestTierOfFolder: the tier of a folder is the one that was applied into its cluster. A slip in
// the first call is none; what was killed just after it began is asked.
func TestTierOfFolder(t *testing.T) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{sourcev1.AddToScheme, kustomizev1.AddToScheme, helmv2.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	a, b := Repository{URL: "ssh://ann@example.com/a", Branch: "main", Path: "mom"}, Repository{URL: "ssh://ann@example.com/a", Branch: "main", Path: "mon"}
	unknown, elsewhere := Repository{}, Repository{URL: "ssh://example.com/c", Path: "mom"}
	prod, none := Repository{URL: a.URL, Branch: "prod", Path: "mom"}, Repository{URL: a.URL, Path: "mom"}
	var nothing kustomizev1.KustomizationStatus
	some := kustomizev1.KustomizationStatus{
		Inventory: &kustomizev1.ResourceInventory{Entries: []kustomizev1.ResourceRef{{ID: "n_a__ConfigMap", Version: "v1"}}}, LastAttemptedRevision: "main@sha1:1",
	}
	all := some
	all.LastAppliedRevision = "main@sha1:1"
	slip := all
	slip.LastAttemptedRevision = "slip@sha1:2"
	for name, tt := range map[string]struct {
		reason string
		// before is the tier that the folder knows, told the branch that the cluster was told last.
		before  Repository
		told    string
		applied kustomizev1.KustomizationStatus
		wanted  Repository
		moved   bool
		err     string
		want    Tier
	}{
		"Slip":           {"nothing was applied from where it looked first", unknown, "main", nothing, b, false, "", Tier{}},
		"Same":           {"it goes on", unknown, "main", some, a, false, "", a.tier()},
		"Other":          {"its Clusters would be built a second time", unknown, "main", some, b, false, "its cluster is of path mom, branch main, of ssh://example.com/a, not of path mon", a.tier()},
		"Moved":          {"it is so when all is applied from there", unknown, "main", some, b, true, "", a.tier()},
		"OldBranch":      {"an earlier program did not write the branch down, which is the same", none, "main", all, a, false, "", a.tier()},
		"OldOtherBranch": {"nor this one, and it is another", none, "main", all, prod, false, "its cluster is of path mom, branch main, of ssh://example.com/a, not of path mom, branch prod, of", a.tier()},
		"OldBranchMoved": {"what the cluster was told last is of no other tier's branch", elsewhere, "main", some, a, true, "", elsewhere.tier()},
		"OldPartly":      {"so where one object was refused from the start", none, "main", some, prod, false, "its cluster is of path mom, branch main, of", a.tier()},
		"OldUnread":      {"a branch that is not there was told last, and this is its correction", none, "slip", all, a, false, "", a.tier()},
		"OldNoPath":      {"so with one that does not have the path", none, "slip", slip, a, false, "", a.tier()},
		"OldNever":       {"nobody knows, and it is known once all is applied", none, "slip", nothing, a, false, "", none.tier()},
	} {
		t.Run(name, func(t *testing.T) {
			folder := Folder(t.TempDir())
			first := &run{Options: Options{Folder: folder, Repository: a}, board: &board{folder: folder}}
			if err := first.begin(t.Context()); err != nil {
				t.Fatal(err)
			}
			if tt.before.URL != "" {
				if err := writeJSON(folder.origin(), Origin{Tier: tt.before.tier()}); err != nil {
					t.Fatal(err)
				}
			}
			if err := os.MkdirAll(filepath.Join(folder.plane(), "etcd"), 0o700); err != nil {
				t.Fatal(err)
			}
			key := syncKey()
			k := &kustomizev1.Kustomization{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}, Spec: kustomizev1.KustomizationSpec{Path: "./mom"}, Status: tt.applied}
			r := &run{Options: Options{Folder: folder, Repository: tt.wanted, Moved: tt.moved, Now: time.Now, Say: t.Logf}, board: &board{folder: folder}}
			r.client = fake.NewClientBuilder().WithScheme(scheme).WithObjects(k, &sourcev1.GitRepository{ObjectMeta: k.ObjectMeta, Spec: sourcev1.GitRepositorySpec{URL: a.URL, Reference: &sourcev1.GitRepositoryRef{Branch: tt.told}}}).Build()
			err := r.begin(t.Context())
			if err == nil {
				err = r.goOn(t.Context())
			}
			if (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
				t.Errorf("%s: got %v, want %q", tt.reason, err, tt.err)
			}
			var is Origin
			if _, err := readJSON(folder.origin(), &is); err != nil || is.Tier != tt.want {
				t.Errorf("%s: the folder is said to be of %s, %v", tt.reason, is.Tier, err)
			}
		})
	}
}

// TestKnow: once all is applied the folder knows the tier, with a state by way of the save.
func TestKnow(t *testing.T) {
	folder := Folder(t.TempDir())
	r := &run{Options: Options{Folder: folder, Repository: Repository{URL: "https://example.com/a", Path: "mom"}, Say: t.Logf}}
	r.know(complete())
	var is Origin
	if _, err := readJSON(folder.origin(), &is); err != nil || is.Tier != r.Repository.tier() {
		t.Errorf("the folder is said to be of %s, %v", is.Tier, err)
	}
	r.origin.Tier = Tier{}
	r.saver = &saver{board: &board{folder: folder}, now: time.Now, changed: make(chan struct{}, 1)}
	r.know(complete())
	if r.saver.tier != r.Repository.tier() || len(r.saver.changed) != 1 {
		t.Errorf("what is to be saved is of %s, %d signals", r.saver.tier, len(r.saver.changed))
	}
}
