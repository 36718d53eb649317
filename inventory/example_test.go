package inventory_test

import (
	"fmt"

	"github.com/cascade-gitops/cascade/inventory"
)

// A directory was renamed, so the rendering lacks a ConfigMap and a Cluster. The first
// may go. The second carries a real cluster and needs a person's confirmation, and
// what stood beside it waits with it.
func ExamplePlanPrune() {
	settings := inventory.Entry{Namespace: "fleet", Name: "settings", Kind: "ConfigMap", Version: "v1"}
	prod := inventory.Entry{Namespace: "fleet", Name: "prod", Group: "cluster.x-k8s.io", Kind: "Cluster", Version: "v1beta2"}
	app := inventory.Entry{Namespace: "fleet", Name: "app", Group: "apps", Kind: "Deployment", Version: "v1"}
	owned := []inventory.Entry{settings, prod, app}

	plan := inventory.PlanPrune(inventory.Facts{
		Target:   "local",
		Owned:    owned,
		Rendered: []inventory.Entry{app},
		Live: map[inventory.Entry]inventory.Live{
			settings: {State: inventory.Present, UID: "1", Owned: true},
			prod:     {State: inventory.Present, UID: "2", Owned: true},
		},
	})

	fmt.Println("deletes:", plan.Deletes[0].Entry)
	fmt.Println("protected:", plan.Protected[0])
	fmt.Println("held:", plan.Held, "because", plan.Guard)
	// Output:
	// deletes: ConfigMap/fleet/settings
	// protected: Cluster/fleet/prod
	// held: true because 1 protected objects are no longer declared either
}

// An entry and its id in the inventory of a Kustomization.
func ExampleParse() {
	e, err := inventory.Parse("fleet_web_apps_Deployment", "v1")
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(e, "of", e.GroupVersionKind().GroupVersion())
	// Output: Deployment/fleet/web of apps/v1
}
