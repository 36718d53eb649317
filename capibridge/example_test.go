package capibridge_test

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/cascade-gitops/cascade/capibridge"
)

const cluster = `
apiVersion: cluster.x-k8s.io/v1beta2
kind: Cluster
metadata: {namespace: fleet, name: prod, labels: {tier: tenant}}
spec:
  infrastructureRef: {apiGroup: infrastructure.cluster.x-k8s.io, kind: AWSCluster, name: prod}
status:
  initialization: {infrastructureProvisioned: true, controlPlaneInitialized: true}
`

// A Cluster is read without its Go types; a gate then decides whether it may be pushed
// to, by a word or by an expression over the whole object, which a worker evaluates.
func ExampleGates_Gate() {
	u := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(cluster), &u.Object); err != nil {
		fmt.Println(err)
		return
	}
	c := capibridge.FromObject(u)
	var gates capibridge.Gates
	ctx := context.Background()
	fmt.Println(c.Provider, gates.Gate(ctx, nil, c, ""))
	fmt.Println(gates.Gate(ctx, nil, c, capibridge.WhenAvailable).Message)
	// Output:
	// aws {true  }
	// Cluster is not Available yet, as readyWhen asks
}

// Of a kubeconfig, only an address and inline credentials are accepted: client-go
// would run the program that this one names.
func ExampleAllowed_Kubeconfig() {
	_, err := capibridge.Allowed{}.Kubeconfig([]byte(`
kind: Config
current-context: prod
contexts: [{name: prod, context: {cluster: prod, user: prod}}]
clusters: [{name: prod, cluster: {server: https://prod.example:6443}}]
users: [{name: prod, user: {exec: {apiVersion: client.authentication.k8s.io/v1, command: sh}}}]
`))
	fmt.Println(err)
	// Output: cannot use kubeconfig: exec not allowed; it must be self-contained, with inline certificates or an inline token
}
