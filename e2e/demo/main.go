// Command demo shows the cascade on one machine: a MoM that makes a master for
// each environment, masters that make tenants, and tenants that run workloads,
// all of it from Git and with no hand on it in between.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/cascade-gitops/cascade/e2e/stage"
)

// Clusters that the repositories of the demo declare.
const clusters = 5

func main() {
	bin := flag.String("bin", "bin", "directory of the programs")
	repos := flag.String("repos", "e2e/testdata/repos", "directory of the repositories")
	charts := flag.String("charts", "deploy/charts", "directory of the charts that repository base gets")
	rules := flag.String("monitoring", "deploy/monitoring", "directory of the rules and dashboards for Prometheus")
	once := flag.Bool("once", false, "end when everything is ready")
	measure := flag.Duration("measure", 0, "measure the agents at rest for this long, when everything is ready")
	timeout := flag.Duration("timeout", 10*time.Minute, "how long to wait for everything to be ready")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	log.SetLogger(logr.Discard()) // clients say what matters by their errors
	d := &demo{start: time.Now(), out: os.Stdout}
	if err := d.run(ctx, *bin, *repos, *charts, *rules, *once, *timeout, *measure); err != nil && !errors.Is(err, context.Canceled) {
		fmt.Fprintf(os.Stderr, "✗ %v\n", err)
		stop()
		os.Exit(1) //nolint:gocritic // stop has run
	}
}

type demo struct {
	start time.Time
	out   io.Writer
}

func (d *demo) say(format string, args ...any) {
	fmt.Fprintf(d.out, "%6.1fs  %s\n", time.Since(d.start).Seconds(), fmt.Sprintf(format, args...))
}

func (d *demo) run(ctx context.Context, bin, repos, charts, rules string, once bool, timeout, measure time.Duration) (err error) {
	bin, err = filepath.Abs(bin)
	if err != nil {
		return fmt.Errorf("cannot resolve %s: %w", bin, err)
	}
	run, err := os.MkdirTemp("", "cascade-demo-")
	if err != nil {
		return fmt.Errorf("cannot create directory: %w", err)
	}
	o := stage.Options{
		Run: run, Bin: []string{bin}, Repos: repos, Charts: charts, Components: filepath.Join(bin, "components", "local"),
		Bootstrap: filepath.Join(repos, "masters", "bootstrap.yaml"), Log: d.say,
	}
	// Agents are measured as they are without it.
	prometheus := measure == 0 && withPrometheus()
	switch {
	case prometheus:
		o.PodNetwork, o.Change = true, monitoring(filepath.Join(rules, "alerts.yaml"))
	case measure == 0:
		d.say("this machine has no Prometheus, and production will have none; make prerequisites-prometheus installs Debian's")
	}
	s, err := stage.Start(ctx, o)
	if err != nil {
		return err
	}
	defer func() {
		d.say("cleaning up")
		err = errors.Join(err, s.Close())
	}()
	d.say("from here on nobody does anything but Git and Cascade")
	waitCtx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	if err := d.follow(waitCtx, s); err != nil {
		return fmt.Errorf("cannot wait for the fleet: %w", errors.Join(err, d.diagnose(ctx, s)))
	}
	if err := d.greet(ctx, s); err != nil {
		return err
	}
	fmt.Fprintln(d.out)
	if err := d.tree(ctx, s); err != nil {
		return err
	}
	fmt.Fprintf(d.out, "\nevery tier is ready, after %.0f s\n", time.Since(d.start).Seconds())
	if prometheus {
		p, err := d.scraped(ctx, s)
		if err != nil {
			return err
		}
		if once {
			if err := d.dashboards(ctx, p, filepath.Join(rules, "dashboards")); err != nil {
				return err
			}
		}
	}
	if measure > 0 {
		if err := d.measure(ctx, s, measure); err != nil {
			return err
		}
	}
	if once {
		return nil
	}
	d.suggest(s, bin)
	<-ctx.Done()
	return nil
}

// tier is a node of `cascade tree -o json`.
type tier struct {
	Name     string  `json:"name"`
	Ready    bool    `json:"ready"`
	Reason   string  `json:"reason"`
	Message  string  `json:"message"`
	Children []*tier `json:"children"`
}

// follow prints what changes in the tree until every tier is ready.
func (d *demo) follow(ctx context.Context, s *stage.Stage) error {
	seen := map[string]string{}
	tick := time.NewTicker(500 * time.Millisecond)
	defer tick.Stop()
	for {
		out, err := s.Run(ctx, "cascade", "tree", "-o", "json", "--kubeconfig", s.MoM.Kubeconfig())
		if err == nil {
			root := &tier{}
			if err := json.Unmarshal([]byte(out), root); err != nil {
				return fmt.Errorf("cannot parse tree: %w", err)
			}
			if root.Name = "mom"; d.compare(root, "", seen) == 1+clusters && allReady(root) {
				return nil
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

// compare prints the tiers whose state is news and returns how many there are.
func (d *demo) compare(t *tier, path string, seen map[string]string) int {
	name := t.Name[strings.LastIndex(t.Name, "/")+1:]
	if path != "" {
		name = path + " → " + name
	}
	if seen[name] != t.Reason {
		seen[name] = t.Reason
		switch {
		case t.Ready:
			d.say("%-34s ready", name)
		default:
			message := t.Message
			if r := []rune(message); len(r) > 90 {
				message = string(r[:87]) + "..."
			}
			d.say("%-34s %s: %s", name, t.Reason, strings.Join(strings.Fields(message), " "))
		}
	}
	n := 1
	for _, c := range t.Children {
		n += d.compare(c, name, seen)
	}
	return n
}

func allReady(t *tier) bool {
	if !t.Ready {
		return false
	}
	for _, c := range t.Children {
		if !allReady(c) {
			return false
		}
	}
	return true
}

// tenants of the demo, by their masters.
var tenants = map[string][]string{"production": {"alpha", "beta"}, "staging": {"gamma"}}

// greet asks the workload of each tenant, over HTTP, what it has to say.
func (d *demo) greet(ctx context.Context, s *stage.Stage) error {
	for _, env := range []string{"production", "staging"} {
		master, err := s.MoM.Child(ctx, env)
		if err != nil {
			return err
		}
		for _, name := range tenants[env] {
			tenant, err := master.Child(ctx, name)
			if err != nil {
				return err
			}
			said, err := ask(ctx, tenant)
			if err != nil {
				return fmt.Errorf("cannot ask the workload of %s: %w", name, err)
			}
			d.say("the workload in %s says: %s", name, said)
		}
	}
	return nil
}

func ask(ctx context.Context, tenant *stage.Tier) (string, error) {
	c, err := tenant.Client()
	if err != nil {
		return "", err
	}
	pods := &corev1.PodList{}
	if err := c.List(ctx, pods, client.InNamespace("apps"), client.MatchingLabels{"app.kubernetes.io/name": "hello"}); err != nil {
		return "", err
	}
	if len(pods.Items) == 0 {
		return "", errors.New("it has no pod")
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+stage.Loopback(pods.Items[0].Status.PodIP)+":8080/", nil)
	if err != nil {
		return "", err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 1000))
	return strings.TrimSpace(string(body)), err
}

func (d *demo) tree(ctx context.Context, s *stage.Stage) error {
	out, err := s.Run(ctx, "cascade", "tree", "--kubeconfig", s.MoM.Kubeconfig())
	fmt.Fprint(d.out, out)
	return err
}

// diagnose collects what a person would look at.
func (d *demo) diagnose(ctx context.Context, s *stage.Stage) error {
	out, err := s.Run(context.WithoutCancel(ctx), "cascade", "get", "all", "-A", "--kubeconfig", s.MoM.Kubeconfig())
	fmt.Fprintf(d.out, "\n%s\n", out)
	return err
}

func (d *demo) suggest(s *stage.Stage, bin string) {
	username, password := s.Git.Login()
	remote := func(repo string) string {
		return strings.Replace(s.Git.HTTPURL(repo), "://", "://"+username+":"+password+"@", 1)
	}
	pid, _ := os.ReadFile(filepath.Join(s.MoM.Dir, "pid"))
	fmt.Fprintf(d.out, `
It keeps running until Ctrl-C. Four things to try, in another terminal:

1. Change every tenant with one commit, and see it arrive, cluster by cluster, on the page that this prints the address of:
     %[4]s/cascade web --kubeconfig %[5]s &
     git clone %[1]s /tmp/apps && cd /tmp/apps
     sed -i 's/version 1/version 2/' hello/deployment.yaml && git commit -am 'Greet again' && git push
     %[4]s/cascade tree --kubeconfig %[5]s

2. Break every tenant with a commit, and ask the MoM for the cause:
     sed -i 's/  name: hello$/  name: Hello/' hello/deployment.yaml && git commit -am 'Break' && git push
     %[4]s/cascade why --kubeconfig %[5]s
     git revert --no-edit HEAD && git push

3. Kill the MoM; environments and tenants go on (repeat 1), and nothing below is touched:
     kill -9 %[6]s
   and bring it back:
     %[4]s/controlplane start --dir %[7]s --name mom --owner-pid %[8]d

4. Delete a tenant. In one commit it is refused:
     git clone %[2]s /tmp/env-staging && cd /tmp/env-staging
     git rm tenants/gamma.yaml && git commit -m 'Drop gamma' && git push
     (the Kustomization tenants of the master staging says PruneBlocked; undo with: git revert --no-edit HEAD && git push)
   In two commits it goes:
     sed -i 's/^  name: gamma$/&\n  annotations:\n    cascade.dev\/deletion: confirmed/' tenants/gamma.yaml && git commit -am 'Confirm' && git push
     git rm tenants/gamma.yaml && git commit -m 'Drop gamma' && git push
`, remote("apps"), remote("env-staging"), "", bin, s.MoM.Kubeconfig(), strings.TrimSpace(string(pid)), s.MoM.Dir, os.Getpid())
}
