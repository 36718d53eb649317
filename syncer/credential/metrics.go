package credential

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
)

// collectTimeout bounds a look into the cache.
const collectTimeout = 5 * time.Second

// Fleet tells, at each scrape, how the Credentials of the tier stand. What belongs to one goes
// with it. It is a prometheus.Collector.
type Fleet struct {
	// Client reads from the cache.
	Client client.Reader
	// Active reports whether this process tells; nil does.
	Active func() bool
	// Selects passes the Credentials that this process reconciles; nil passes all.
	Selects func(client.Object) bool
}

type descs struct{ expiry, renewal, failures, unrevoked *prometheus.Desc }

func allDescs() descs {
	desc := func(name, help string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, []string{"namespace", "name"}, nil)
	}
	return descs{
		expiry:    desc("cascade_credential_expiry_timestamp_seconds", "Unix time at which what the Secret of the Credential has lapses; absent if nothing says when."),
		renewal:   desc("cascade_credential_last_renewal_timestamp_seconds", "Unix time at which it was issued or renewed last; absent before that."),
		failures:  desc("cascade_credential_failures", "Attempts to issue or renew it that failed since the last success."),
		unrevoked: desc("cascade_credential_unrevoked_leases", "Leases of earlier credentials that are not revoked yet."),
	}
}

// Describe implements prometheus.Collector.
func (f *Fleet) Describe(ch chan<- *prometheus.Desc) {
	d := allDescs()
	for _, one := range []*prometheus.Desc{d.expiry, d.renewal, d.failures, d.unrevoked} {
		ch <- one
	}
}

// Collect implements prometheus.Collector.
func (f *Fleet) Collect(ch chan<- prometheus.Metric) {
	if f.Active != nil && !f.Active() {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), collectTimeout)
	defer cancel()
	list := &v1alpha1.CredentialList{}
	if err := f.Client.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
		return
	}
	d := allDescs()
	for i := range list.Items {
		o := &list.Items[i]
		if f.Selects != nil && !f.Selects(o) {
			continue
		}
		tell := func(desc *prometheus.Desc, value float64) {
			ch <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value, o.Namespace, o.Name)
		}
		for desc, at := range map[*prometheus.Desc]*metav1.Time{d.expiry: o.Status.ExpiresAt, d.renewal: o.Status.LastRenewal} {
			if at != nil {
				tell(desc, float64(at.Unix()))
			}
		}
		tell(d.failures, float64(o.Status.Failures))
		tell(d.unrevoked, float64(o.Status.Unrevoked))
	}
}
