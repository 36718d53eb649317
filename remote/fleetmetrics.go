package remote

import (
	"context"
	"hash/fnv"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/remote/link"
	"github.com/cascade-gitops/cascade/remote/report"
)

// collectTimeout bounds a look into the cache.
const collectTimeout = 5 * time.Second

// Fleet tells, at each scrape, what stands in Children and Layers, and what their
// connections know. A replica tells of the children that it drives, and the leader of the
// layers. It is a prometheus.Collector.
type Fleet struct {
	// Client reads from the cache.
	Client      client.Reader
	Connections *link.Pool
	Part        Part
	Now         func() time.Time

	mu sync.Mutex // guards behind; never held over a call
	// behind is since when children stay at a revision of a layer that it is no longer to bring.
	behind map[stay]time.Time
}

// stay identifies a child that stays at a revision of a layer which is not the one that the
// layer is to bring. It is a digest: of a fleet that a commit is on its way to there are many.
type stay uint64

func stayOf(layer types.NamespacedName, child *v1alpha1.Child, revision string) stay {
	h := fnv.New64a()
	for _, part := range []string{layer.Namespace, layer.Name, string(child.UID), revision} {
		h.Write(append([]byte(part), 0))
	}
	return stay(h.Sum64())
}

// fleetDescs are what a Fleet tells.
type fleetDescs struct {
	condition, info, clusters, contact, expiry, overdue, held, breakers *prometheus.Desc
	ready, children, behind, lag                                        *prometheus.Desc
}

func descsOfFleet() fleetDescs {
	child, layer := []string{"namespace", "name"}, []string{"namespace", "name"}
	desc := func(name, help string, labels []string, more ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, append(append([]string{}, labels...), more...), nil)
	}
	return fleetDescs{
		condition: desc("cascade_child_condition", "1 if the condition of the child is true; absent where no Layer selects its cluster.", child, "condition"),
		info:      desc("cascade_child_info", "What the child is: 1, with labels to join by.", child, "environment", "owner", "provider", "region", "version"),
		clusters:  desc("cascade_child_clusters", "Clusters below the child as its agent reports them, all and ready ones; absent for a child without any.", child, "state"),
		contact:   desc("cascade_child_last_contact_timestamp_seconds", "Unix time at which the child was last heard of; its report is as old. Absent before that, and where no Layer selects its cluster.", child),
		expiry:    desc("cascade_child_credential_expiry_timestamp_seconds", "Unix time at which the first credential lapses that the child was given; absent if none says when.", child),
		overdue:   desc("cascade_child_overdue_credential_expiry_timestamp_seconds", "Unix time at which the first credential of the child lapses that should have been renewed long ago, at five sixths of its life; absent without any.", child),
		held:      desc("cascade_child_held_layers", "Layers of the child that hold something for a person to decide; absent without any.", child),
		breakers:  desc("cascade_child_breakers_open", "Children that are probed seldom, because they did not answer several times in a row.", nil),
		ready:     desc("cascade_layer_ready", "1 if the layer is in place on all children that it selects.", layer),
		children:  desc("cascade_layer_children", "Children that the layer selects, by how it stands on them.", layer, "state"),
		behind:    desc("cascade_layer_children_behind", "Children that have another revision of the layer than it is to bring; those that are suspended or paused or keep a layer that no longer selects them, and all of a suspended layer, do not count.", layer),
		lag:       desc("cascade_layer_lag_seconds", "For how long some child has stayed at another revision of the layer than it is to bring, as this process saw it; 0 if all have it.", layer),
	}
}

// Describe implements prometheus.Collector.
func (f *Fleet) Describe(ch chan<- *prometheus.Desc) {
	d := descsOfFleet()
	for _, desc := range []*prometheus.Desc{d.condition, d.info, d.clusters, d.contact, d.expiry, d.overdue, d.held, d.breakers, d.ready, d.children, d.behind, d.lag} {
		ch <- desc
	}
}

// Collect implements prometheus.Collector.
func (f *Fleet) Collect(ch chan<- prometheus.Metric) {
	leads := f.Part.leads()
	if !leads && f.Part.Tenures == nil {
		return // another replica tells
	}
	ctx, cancel := context.WithTimeout(context.Background(), collectTimeout)
	defer cancel()
	children := &v1alpha1.ChildList{}
	if err := f.Client.List(ctx, children, client.UnsafeDisableDeepCopy); err != nil {
		return
	}
	d := descsOfFleet()
	for i := range children.Items {
		if c := &children.Items[i]; f.Part.selects(c) && f.Part.drives(client.ObjectKeyFromObject(c)) {
			f.child(ch, &d, c)
		}
	}
	send(ch, d.breakers, float64(f.Connections.Broken()))
	layers := &v1alpha1.LayerList{}
	if !leads || f.Client.List(ctx, layers, client.UnsafeDisableDeepCopy) != nil {
		return
	}
	f.layers(ch, &d, layers.Items, children.Items)
}

// drives reports whether this process drives a child.
func (p Part) drives(child types.NamespacedName) bool {
	return p.Tenures == nil || p.Tenures.Has(child)
}

func send(ch chan<- prometheus.Metric, d *prometheus.Desc, value float64, labels ...string) {
	for i := range labels {
		labels[i] = strings.ToValidUTF8(labels[i], "")
	}
	if m, err := prometheus.NewConstMetric(d, prometheus.GaugeValue, value, labels...); err == nil {
		ch <- m
	}
}

func (f *Fleet) child(ch chan<- prometheus.Metric, d *fleetDescs, child *v1alpha1.Child) {
	key := client.ObjectKeyFromObject(child)
	tell := func(desc *prometheus.Desc, value float64, more ...string) {
		send(ch, desc, value, append([]string{key.Namespace, key.Name}, more...)...)
	}
	for _, kind := range []string{v1alpha1.ConnectedCondition, v1alpha1.SeededCondition, v1alpha1.ReadyCondition} {
		c, value := meta.FindStatusCondition(child.Status.Conditions, kind), 0.0
		switch {
		case c != nil && c.Reason == v1alpha1.ReasonNoLayer:
			continue // it is not to be so: a person may leave the cluster without layers
		case c != nil && c.Status == metav1.ConditionTrue:
			value = 1
		}
		tell(d.condition, value, kind)
	}
	tell(d.info, 1, child.Labels[environmentLabel], child.Labels[v1alpha1.OwnerLabel], child.Status.Provider, child.Status.Region, report.Cut(child.Status.Version, mostWord))
	if counts := report.CountsBelow(child); counts != nil && counts.Total > 0 {
		tell(d.clusters, float64(counts.Total), "total")
		tell(d.clusters, float64(counts.Ready), "ready")
	}
	heard, _ := f.Connections.Heard(key)
	if at := child.Status.HeardAt; at != nil && heard.IsZero() {
		heard = at.Time
	}
	if !heard.IsZero() {
		tell(d.contact, seconds(heard))
	}
	var expires, late time.Time
	for _, c := range child.Status.Credentials {
		if c.ExpiresAt != nil && (expires.IsZero() || c.ExpiresAt.Time.Before(expires)) {
			expires = c.ExpiresAt.Time
		}
		if neglected(c, f.Now()) && (late.IsZero() || c.ExpiresAt.Time.Before(late)) {
			late = c.ExpiresAt.Time
		}
	}
	if !expires.IsZero() {
		tell(d.expiry, seconds(expires))
	}
	if !late.IsZero() {
		tell(d.overdue, seconds(late))
	}
	held := 0
	for i := range child.Status.Layers {
		if child.Status.Layers[i].Held != nil {
			held++
		}
	}
	if held > 0 {
		tell(d.held, float64(held))
	}
}

// environmentLabel on a Cluster or Child names its environment, as in the fleets of the
// documentation. mostWord bounds what a child says of itself.
const (
	environmentLabel = "environment"
	mostWord         = 64
)

func (f *Fleet) layers(ch chan<- prometheus.Metric, d *fleetDescs, layers []v1alpha1.Layer, children []v1alpha1.Child) {
	type named struct{ namespace, name string }
	revisions := map[named]string{}
	for i := range layers {
		if !layers[i].Spec.Suspend {
			revisions[named{layers[i].Namespace, layers[i].Name}] = layers[i].Status.Revision
		}
	}
	f.mu.Lock()
	was := f.behind
	f.mu.Unlock()
	// How many are behind, and the first of those that still stay where they were.
	is, behind, since := map[stay]time.Time{}, map[named]int{}, map[named]time.Time{}
	for i := range children {
		child := &children[i]
		if child.Spec.Suspend || managedElsewhere(child) != nil {
			continue // it stays where it is until it is resumed, or back
		}
		for j := range child.Status.Layers {
			entry := &child.Status.Layers[j]
			of := named{child.Namespace, entry.Name}
			if newest := revisions[of]; newest == "" || newest == entry.Revision {
				continue
			}
			switch entry.Reason {
			case v1alpha1.ReasonPaused, v1alpha1.ReasonRemovalHeld:
				continue // nothing is sent of the layer, as a person wants or has to decide
			}
			at := stayOf(types.NamespacedName{Namespace: of.namespace, Name: of.name}, child, entry.Revision)
			begun, known := was[at]
			if !known {
				begun = f.Now()
			}
			is[at] = begun
			behind[of]++
			if first, ok := since[of]; !ok || begun.Before(first) {
				since[of] = begun
			}
		}
	}
	for i := range layers {
		layer := &layers[i]
		key := client.ObjectKeyFromObject(layer)
		if !f.Part.selects(layer) {
			continue
		}
		tell := func(desc *prometheus.Desc, value float64, more ...string) {
			send(ch, desc, value, append([]string{key.Namespace, key.Name}, more...)...)
		}
		ready := 0.0
		if meta.IsStatusConditionTrue(layer.Status.Conditions, v1alpha1.ReadyCondition) {
			ready = 1
		}
		tell(d.ready, ready)
		c := layer.Status.Children
		for state, n := range map[standing]int32{
			isCurrent: c.Current, isUpdating: c.Updating, isFailed: c.Failed, isUnreachable: c.Unreachable, isWaiting: c.Waiting, "suspended": c.Suspended,
		} {
			tell(d.children, float64(n), string(state))
		}
		if c.Elsewhere > 0 { // most tiers never have any
			tell(d.children, float64(c.Elsewhere), string(isElsewhere))
		}
		of := named{key.Namespace, key.Name}
		tell(d.behind, float64(behind[of]))
		late := 0.0
		if first, ok := since[of]; ok {
			late = f.Now().Sub(first).Seconds()
		}
		tell(d.lag, late)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.behind = is
}
