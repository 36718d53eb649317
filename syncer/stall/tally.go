package stall

import (
	"maps"

	"github.com/prometheus/client_golang/prometheus"
)

// tally tells how the reconciles of each kind stand, at each scrape.
type tally struct{ *Watchdog }

func (tally) under() *prometheus.Desc {
	return prometheus.NewDesc("cascade_reconciles",
		"Reconciles under way, of kinds that may wait without a worker: running, aside as they take long, or waiting.", []string{"kind", "state"}, nil)
}

func (tally) room() *prometheus.Desc {
	return prometheus.NewDesc("cascade_reconciles_aside_limit",
		"How many reconciles of the kind there may be aside. Without room, those that take long keep the workers of the kind.", []string{"kind"}, nil)
}

// Describe implements prometheus.Collector.
func (c tally) Describe(to chan<- *prometheus.Desc) { to <- c.under(); to <- c.room() }

// Collect implements prometheus.Collector.
func (c tally) Collect(to chan<- prometheus.Metric) {
	c.mu.Lock()
	lots := maps.Clone(c.lots)
	c.mu.Unlock()
	for kind, lot := range lots {
		n := lot.Counts()
		for state, count := range map[string]int{"running": n.Running, "aside": n.Aside, "waiting": n.Waiting} {
			to <- prometheus.MustNewConstMetric(c.under(), prometheus.GaugeValue, float64(count), kind, state)
		}
		to <- prometheus.MustNewConstMetric(c.room(), prometheus.GaugeValue, float64(lot.Room()), kind)
	}
}
