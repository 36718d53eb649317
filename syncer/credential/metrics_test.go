package credential

import (
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
)

// TestMetrics: each Credential has its series, and who stands by tells nothing.
func TestMetrics(t *testing.T) {
	s := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(s); err != nil {
		t.Fatal(err)
	}
	at := func(seconds int64) *metav1.Time { return &metav1.Time{Time: time.Unix(seconds, 0)} }
	c := fake.NewClientBuilder().WithScheme(s).WithObjects(
		&v1alpha1.Credential{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "keys"}, Status: v1alpha1.CredentialStatus{ExpiresAt: at(100), LastRenewal: at(40), Failures: 2, Unrevoked: 1}},
		&v1alpha1.Credential{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "static"}, Status: v1alpha1.CredentialStatus{LastRenewal: at(50)}},
		&v1alpha1.Credential{ObjectMeta: metav1.ObjectMeta{Namespace: "b", Name: "other"}},
	).Build()
	f := &Fleet{Client: c, Selects: func(o client.Object) bool { return o.GetNamespace() == "a" }}
	if err := testutil.CollectAndCompare(f, strings.NewReader(`
# HELP cascade_credential_expiry_timestamp_seconds Unix time at which what the Secret of the Credential has lapses; absent if nothing says when.
# TYPE cascade_credential_expiry_timestamp_seconds gauge
cascade_credential_expiry_timestamp_seconds{name="keys",namespace="a"} 100
# HELP cascade_credential_failures Attempts to issue or renew it that failed since the last success.
# TYPE cascade_credential_failures gauge
cascade_credential_failures{name="keys",namespace="a"} 2
cascade_credential_failures{name="static",namespace="a"} 0
# HELP cascade_credential_last_renewal_timestamp_seconds Unix time at which it was issued or renewed last; absent before that.
# TYPE cascade_credential_last_renewal_timestamp_seconds gauge
cascade_credential_last_renewal_timestamp_seconds{name="keys",namespace="a"} 40
cascade_credential_last_renewal_timestamp_seconds{name="static",namespace="a"} 50
# HELP cascade_credential_unrevoked_leases Leases of earlier credentials that are not revoked yet.
# TYPE cascade_credential_unrevoked_leases gauge
cascade_credential_unrevoked_leases{name="keys",namespace="a"} 1
cascade_credential_unrevoked_leases{name="static",namespace="a"} 0
`)); err != nil {
		t.Error(err)
	}
	f.Active = func() bool { return false }
	if n := testutil.CollectAndCount(f); n != 0 {
		t.Errorf("%d series of who stands by", n)
	}
}
