package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/cascade-gitops/cascade/e2e/stage"
)

const (
	// monitored is the environment that has a Prometheus.
	monitored = "production"
	// scrapeWait bounds how long its first scrapes may take, and queryWait what each query of
	// the dashboards may take to have data.
	scrapeWait, queryWait = 2 * time.Minute, 2 * time.Minute
)

// withPrometheus reports whether the machine has one.
func withPrometheus() bool {
	_, err := exec.LookPath("prometheus")
	return err == nil
}

// monitoring changes the repositories of the demo so that the environment has a Prometheus:
// its agent lists and serves the metrics of the tenants' agents, and services has the
// Prometheus, with the rules of this directory.
func monitoring(rules string) func(repository, tree string) error {
	return func(repository, tree string) error {
		switch repository {
		case "masters":
			const plain, serving = "    firstSync: Create\n", "    firstSync: Create\n    metricsAuth: kubernetes\n    args: [--child-endpoints=agent]\n"
			file := filepath.Join(tree, "mom", "layer.yaml")
			text, err := os.ReadFile(file)
			if err != nil {
				return err
			}
			if strings.Count(string(text), plain) != 1 {
				return fmt.Errorf("%s does not say how agents are installed", file)
			}
			return os.WriteFile(file, []byte(strings.Replace(string(text), plain, serving, 1)), 0o644)
		case "env-" + monitored:
			manifests, err := os.ReadFile(filepath.Join(tree, "monitoring", "prometheus.yaml"))
			if err != nil {
				return err
			}
			alerts, err := os.ReadFile(rules)
			if err != nil {
				return err
			}
			config, err := yaml.Marshal(&corev1.ConfigMap{
				TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
				ObjectMeta: metav1.ObjectMeta{
					Name: "prometheus-rules", Namespace: "services", Annotations: map[string]string{"kustomize.toolkit.fluxcd.io/substitute": "disabled"},
				},
				Data: map[string]string{"alerts.yaml": string(alerts)},
			})
			if err != nil {
				return err
			}
			return errors.Join(
				os.WriteFile(filepath.Join(tree, "services", "prometheus.yaml"), manifests, 0o644),
				os.WriteFile(filepath.Join(tree, "services", "prometheus-rules.yaml"), config, 0o644),
			)
		}
		return nil
	}
}

// scraped waits until the environment's Prometheus scrapes the agents of all its tenants, and
// returns it.
func (d *demo) scraped(ctx context.Context, s *stage.Stage) (stage.Prometheus, error) {
	var p stage.Prometheus
	master, err := s.MoM.Child(ctx, monitored)
	if err != nil {
		return p, err
	}
	c, err := master.Client()
	if err != nil {
		return p, err
	}
	pods := &corev1.PodList{}
	if err := c.List(ctx, pods, client.InNamespace("services"), client.MatchingLabels{"app.kubernetes.io/name": "prometheus"}); err != nil {
		return p, err
	}
	if len(pods.Items) == 0 {
		return p, errors.New("the environment's Prometheus has no pod")
	}
	p.URL = "http://" + stage.Loopback(pods.Items[0].Status.PodIP) + ":9090"
	var up []string
	err = retry(ctx, scrapeWait, func(ctx context.Context) error {
		samples, err := p.Query(ctx, `up{job="tenants"} == 1`)
		if err != nil {
			return err
		}
		up = nil
		for _, sample := range samples {
			up = append(up, sample.Labels["child"])
		}
		slices.Sort(up)
		if !slices.Equal(up, tenants[monitored]) {
			return fmt.Errorf("it scrapes %v", up)
		}
		return nil
	})
	if err != nil {
		return p, fmt.Errorf("cannot scrape the tenants of %s: %w", monitored, err)
	}
	d.say("the Prometheus of %s scrapes the agents of %s: %s", monitored, strings.Join(up, " and "), p.URL)
	return p, nil
}

// retry calls f until it succeeds or the time is over.
func retry(ctx context.Context, within time.Duration, f func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	tick := time.NewTicker(500 * time.Millisecond)
	defer tick.Stop()
	for {
		err := f(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return err
		case <-tick.C:
		}
	}
}

// withoutData are metrics that the demo has none of, and why; docs/monitoring.md lists them.
var withoutData = map[string]string{
	"cascade_rollout_clusters":                               "no Rollout is applied",
	"cascade_child_credential_expiry":                        "no credential of the tenants lapses",
	"cascade_credential_expiry":                              "there is no Credential",
	"cascade_state_backup_last_success":                      "there is no StateBackup",
	"cascade_worker_":                                        "what confined processes work on was worked on before the first scrape",
	"cascade_drifted_objects":                                "nobody changes an object, and drift is corrected",
	"cascade_event_posts_total":                              "no `--events-addr` is given",
	"cascade_resource_ready{namespace=~\"$namespace\"} == 0": "everything is ready",
	"cascade_child_condition{condition=\"Ready\",namespace=~\"$namespace\"} == 0) * on": "everything is ready",
}

// excused is why a query has no data in the demo, empty if it has to have some.
func excused(expr string) string {
	for part, reason := range withoutData {
		if strings.Contains(expr, part) {
			return reason
		}
	}
	return ""
}

// dashboards has every query of the dashboards answered with data by the environment's
// Prometheus, but for what the demo has none of.
func (d *demo) dashboards(ctx context.Context, p stage.Prometheus, dir string) error {
	all, err := stage.Panels(dir)
	if err != nil {
		return err
	}
	var failures []error
	shown, excuses := 0, 0
	for _, panel := range all {
		if excused(panel.Expr) != "" {
			excuses++
			continue
		}
		err := retry(ctx, queryWait, func(ctx context.Context) error {
			return p.Shows(ctx, panel)
		})
		if err != nil {
			failures = append(failures, fmt.Errorf("cannot show %s of dashboard %s: %w: %s", panel.Title, panel.Dashboard, err, panel.Expr))
			continue
		}
		shown++
	}
	d.say("%d of %d queries of the dashboards have data there; the demo has nothing for %d", shown, len(all), excuses)
	return errors.Join(failures...)
}
