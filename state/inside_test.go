package state

import (
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	kube "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/clusterapi"
	"github.com/cascade-gitops/cascade/api/v1alpha1"
)

// TestRestoreAsksTheCluster: a state of before a move does not know that the Cluster manages itself by now.
func TestRestoreAsksTheCluster(t *testing.T) {
	const (
		definition = `{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"clusters.cluster.x-k8s.io"},"spec":{"group":"cluster.x-k8s.io","versions":[{"name":"v1beta2","served":true,"storage":true}]}}`
		moved      = `{"apiVersion":"cluster.x-k8s.io/v1beta2","kind":"Cluster","metadata":{"namespace":"fleet","name":"a"%s},"spec":{"paused":%t}}`
	)
	for name, tc := range map[string]struct {
		reason       string
		definition   string
		there        string
		down, paused bool
		want         string // the reason of the step
		resumed      bool
	}{
		"Moved":    {reason: "it manages itself", definition: definition, there: fmt.Sprintf(moved, "", false), want: ReasonMovedAway},
		"Paused":   {reason: "it does, and somebody paused it there", definition: definition, there: fmt.Sprintf(moved, "", true), want: ReasonMovedAway},
		"Restored": {reason: "it is being restored into itself", definition: definition, there: fmt.Sprintf(moved, `,"annotations":{"cascade.dev/restoring":"x"}`, true), resumed: true},
		"Others":   {reason: "it manages others", definition: definition, resumed: true},
		"Tenant":   {reason: "it manages none", resumed: true},
		"Down":     {reason: "nobody answers: the clusters of a lost tier may be out of reach", down: true, want: ReasonNotAsked, resumed: true},
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Type", "application/json")
				answer := map[string]string{
					"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/clusters.cluster.x-k8s.io": tc.definition,
					"/apis/cluster.x-k8s.io/v1beta2/namespaces/fleet/clusters/a":                        tc.there,
				}[r.URL.Path]
				if answer == "" {
					w.WriteHeader(http.StatusNotFound)
					answer = `{"apiVersion":"v1","kind":"Status","status":"Failure","reason":"NotFound","code":404}`
				}
				_, _ = io.WriteString(w, answer)
			}))
			defer server.Close()
			ca := base64.StdEncoding.EncodeToString(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}))
			kubeconfig := "{apiVersion: v1, kind: Config, current-context: a, contexts: [{name: a, context: {cluster: a, user: a}}], users: [{name: a, user: {token: x}}]," +
				" clusters: [{name: a, cluster: {server: '" + server.URL + "', certificate-authority-data: " + ca + "}}]}"
			if tc.down {
				server.Close()
			}
			a := cluster(t, "a")
			secret := object(t, "{apiVersion: v1, kind: Secret, metadata: {name: a-kubeconfig, namespace: fleet, labels: {cluster.x-k8s.io/cluster-name: a}}, data: {value: "+
				base64.StdEncoding.EncodeToString([]byte(kubeconfig))+"}}", "Cluster/a")
			c := newFake(t)
			report, err := Restore(t.Context(), c, snapshotOf(a, []*unstructured.Unstructured{secret}), Options{Inside: Inside})
			if err != nil {
				t.Fatal(err)
			}
			i := slices.IndexFunc(report.Steps, func(s Step) bool { return strings.HasPrefix(s.Object, "Cluster/") })
			if got := report.Steps[i]; got.Reason != tc.want || (len(report.Resumed) == 1) != tc.resumed {
				t.Errorf("%s: %s %s, resumed %q, want %q, %t", tc.reason, got.Reason, got.Why, report.Resumed, tc.want, tc.resumed)
			}
			u := a[0].DeepCopy()
			if err := c.Get(t.Context(), kube.ObjectKeyFromObject(u), u); err != nil {
				t.Fatal(err)
			}
			if clusterapi.IsPausedBySpec(u) == tc.resumed || u.GetAnnotations()[v1alpha1.RestoringAnnotation] != "" {
				t.Errorf("%s: the Cluster is %v", tc.reason, u.Object)
			}
		})
	}
}
