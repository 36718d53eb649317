package flux

import (
	"context"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/cascade-gitops/cascade/e2e/scenario"
)

// counted is how many ConfigMaps the quota counts, each with a write of its status.
const counted = 5

// status: an object without a generation whose status is written is as it was applied. The API
// server counts in the status of a ResourceQuota. That somebody changes what the quota declares is
// seen after that, and is the one reason to apply it again.
func (d *drift) status(t *testing.T) {
	d.Kustomization(t, "quota", "{}")
	d.Ready(t, "quota")
	from := d.AuditOffset(t)
	for i := range counted {
		d.Apply(t, d.Fill(fmt.Sprintf("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: counted-%d, namespace: $ns}\n", i)))
	}
	scenario.Eventually(t, scenario.Converge, "the quota has counted", func(ctx context.Context) error {
		quota := &corev1.ResourceQuota{}
		if err := d.Load(ctx, quota, d.Namespace, "quota"); err != nil {
			return err
		}
		if used := quota.Status.Used[corev1.ResourceConfigMaps]; used.Value() < counted {
			return fmt.Errorf("it has counted %s", used.String())
		}
		return nil
	})
	d.Patch(t, &corev1.ResourceQuota{}, "quota", `{"spec":{"hard":{"configmaps":"900"}}}`)
	scenario.Eventually(t, scenario.Converge, "the quota is as it is declared", func(ctx context.Context) error {
		quota := &corev1.ResourceQuota{}
		if err := d.Load(ctx, quota, d.Namespace, "quota"); err != nil {
			return err
		}
		if hard := quota.Spec.Hard[corev1.ResourceConfigMaps]; hard.Value() != 1000 {
			return fmt.Errorf("it allows %s", hard.String())
		}
		return nil
	})
	applied := 0
	for _, e := range d.Writes(t, from) {
		if e.ObjectRef.Resource == "resourcequotas" {
			applied++
		}
	}
	if applied != 1 {
		quota := &corev1.ResourceQuota{}
		if err := d.Load(t.Context(), quota, d.Namespace, "quota"); err != nil {
			t.Fatal(err)
		}
		t.Errorf("the quota was applied %d times for one change of what it declares: %+v", applied, quota.ManagedFields)
	}
}
