package fleet

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/e2e/scenario"
	"github.com/cascade-gitops/cascade/e2e/stage"
)

// treeIsFresh: what a tenant did with a commit is in the report that the MoM has, two
// tiers above, without anybody waiting for the next time that a child is asked.
// CASCADE_FRESHNESS is the number of commits.
func (f *fleet) treeIsFresh(t *testing.T) {
	commits := 2
	if text := os.Getenv("CASCADE_FRESHNESS"); text != "" {
		var err error
		if commits, err = strconv.Atoi(text); err != nil {
			t.Fatal(err)
		}
	}
	var took []time.Duration
	for range commits {
		sha := f.greet(t)
		f.appliedIn(t, "alpha", sha)
		began := time.Now()
		f.seenAtTheTop(t, "production", "alpha", sha)
		took = append(took, time.Since(began))
	}
	slices.Sort(took)
	t.Logf("%d commits that a tenant had applied were in the tree at the top after %.1f s (p50), %.1f s (p99), %.1f s (last)",
		commits, took[len(took)/2].Seconds(), took[min(len(took)*99/100, len(took)-1)].Seconds(), took[len(took)-1].Seconds())
}

// appliedIn waits until a tenant has applied a commit to apps.
func (f *fleet) appliedIn(t *testing.T, tenant, sha string) {
	t.Helper()
	scenario.Eventually(t, scenario.Converge, tenant+" applies the commit", func(ctx context.Context) error {
		api, err := f.tiers[tenant].Client()
		if err != nil {
			return err
		}
		list := &kustomizev1.KustomizationList{}
		if err := api.List(ctx, list); err != nil {
			return err
		}
		for i := range list.Items {
			if strings.HasSuffix(list.Items[i].Status.LastAppliedRevision, sha) {
				return nil
			}
		}
		return fmt.Errorf("no Kustomization has applied %s", sha)
	})
}

// seenAtTheTop waits until the MoM knows that a tenant below one of its children is
// ready at a commit.
func (f *fleet) seenAtTheTop(t *testing.T, master, tenant, sha string) {
	t.Helper()
	scenario.Eventually(t, scenario.Converge, "the MoM knows of the commit", func(ctx context.Context) error {
		child := &v1alpha1.Child{}
		if err := scenario.Get(ctx, f.MoM, child, stage.Namespace, master); err != nil {
			return err
		}
		if child.Status.Report == nil {
			return fmt.Errorf("%s has no report", master)
		}
		for _, row := range child.Status.Report.Tiers {
			if strings.HasSuffix(row.Path, tenant) && strings.Contains(row.Revision, sha) && row.Ready {
				return nil
			}
		}
		return fmt.Errorf("the report of %s says %+v", master, child.Status.Report.Tiers)
	})
}
