package fleet

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	notificationv1 "github.com/fluxcd/notification-controller/api/v1"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cascade-gitops/cascade/e2e/scenario"
	"github.com/cascade-gitops/cascade/e2e/stage"
)

// pushedBelow is the time from a webhook at the top to the object in a tenant two tiers below, in
// the long form.
const pushedBelow = 5 * time.Second

// pushReachesEveryTenant: the one webhook of the fleet is at the MoM, no tenant looks for itself
// more often than once an hour, and each has what was pushed within seconds. CASCADE_PUSHES is
// the number of pushes, of which 99 of a hundred have to arrive in time.
func (f *fleet) pushReachesEveryTenant(t *testing.T) {
	pushes, long := 3, false
	if text := os.Getenv("CASCADE_PUSHES"); text != "" {
		var err error
		if pushes, err = strconv.Atoi(text); err != nil {
			t.Fatal(err)
		}
		long = true
	}
	tenants := []string{"alpha", "beta", "gamma"}
	f.pollEach(t, "2s", "1h", tenants)
	url := f.hook(t)
	var took []time.Duration
	f.commit(t, "apps", "Declare what is pushed", func(dir string) error {
		return scenario.ReplaceIn(filepath.Join(dir, "hello", "kustomization.yaml"), "  - deployment.yaml\n", "  - deployment.yaml\n  - pushed.yaml\n")
	})
	for i := range pushes {
		// The Deployment of apps keeps ten of its generations, which are not to be used up here.
		text := scenario.ConfigMapWith("pushed", "", fmt.Sprintf("{k: push-%d}", i))
		f.commit(t, "apps", "Push", func(dir string) error {
			return os.WriteFile(filepath.Join(dir, "hello", "pushed.yaml"), []byte(text), 0o644)
		})
		begun := time.Now()
		post(t, url)
		for _, name := range tenants {
			f.has(t, name, fmt.Sprint("push-", i))
			took = append(took, time.Since(begun))
		}
	}
	slices.Sort(took)
	p50, p99 := took[len(took)/2], took[min(len(took)*99/100, len(took)-1)]
	t.Logf("%d pushes told to the MoM were objects in %d tenants after %.2f s (p50), %.2f s (p99), %.2f s (last)",
		pushes, len(tenants), p50.Seconds(), p99.Seconds(), took[len(took)-1].Seconds())
	if long && p99 > pushedBelow {
		t.Errorf("the p99 of %d pushes is %s, want %s", pushes, p99, pushedBelow)
	}
	f.pollEach(t, "1h", "2s", tenants)
}

// pollEach has the tenants look for new commits of apps at another interval.
func (f *fleet) pollEach(t *testing.T, before, after string, tenants []string) {
	t.Helper()
	for _, environment := range []string{"env-production", "env-staging"} {
		f.commit(t, environment, "Look each "+after, func(dir string) error {
			const of = "url: ${git_url}/apps.git\n  ref: {branch: main}\n  secretRef: {name: git-auth}\n  interval: "
			return scenario.ReplaceIn(filepath.Join(dir, "layers", "tenant", "sync.yaml"), of+before, of+after)
		})
	}
	want, err := time.ParseDuration(after)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range tenants {
		scenario.Eventually(t, scenario.Converge, name+" looks each "+after, func(ctx context.Context) error {
			apps := &sourcev1.GitRepository{}
			if err := scenario.Get(ctx, f.tiers[name], apps, stage.Namespace, "apps"); err != nil {
				return err
			}
			if got := apps.Spec.Interval; got != (metav1.Duration{Duration: want}) || apps.Status.ObservedGeneration != apps.Generation {
				return fmt.Errorf("it looks each %s", got.Duration)
			}
			return nil
		})
	}
}

// hook makes the Receiver of apps at the MoM, and returns the URL that is told of a push.
func (f *fleet) hook(t *testing.T) string {
	t.Helper()
	c, err := f.MoM.Watcher()
	if err != nil {
		t.Fatal(err)
	}
	(&scenario.Tier{Stage: f.Stage, Client: c}).RestartAgent(t, "--receiver-addr=$(POD_IP):9292")
	username, password := f.Git.Login()
	if err := stage.Apply(t.Context(), c, fmt.Sprintf(`apiVersion: v1
kind: Secret
metadata: {name: hook, namespace: %[1]s}
stringData: {token: hook, username: %[2]s, password: %[3]s}
---
apiVersion: source.toolkit.fluxcd.io/v1
kind: GitRepository
metadata: {name: apps, namespace: %[1]s}
spec: {url: "%[4]s", ref: {branch: main}, secretRef: {name: hook}, interval: 1h}
---
apiVersion: notification.toolkit.fluxcd.io/v1
kind: Receiver
metadata: {name: hook, namespace: %[1]s}
spec: {type: generic, secretRef: {name: hook}, resources: [{kind: GitRepository, name: apps}]}
`, stage.Namespace, username, password, f.Git.HTTPURL("apps"))); err != nil {
		t.Fatal(err)
	}
	url := ""
	scenario.Eventually(t, scenario.Converge, "the MoM takes webhooks", func(ctx context.Context) error {
		receiver := &notificationv1.Receiver{}
		if err := scenario.Get(ctx, f.MoM, receiver, stage.Namespace, "hook"); err != nil {
			return err
		}
		if receiver.Status.WebhookPath == "" {
			return errors.New("the Receiver has no path")
		}
		metrics, err := scenario.MetricsAddress(f.MoM)
		if err != nil {
			return err
		}
		host, _, err := net.SplitHostPort(metrics)
		if err != nil {
			return err
		}
		url = "http://" + net.JoinHostPort(host, "9292") + receiver.Status.WebhookPath
		return notify(ctx, url)
	})
	return url
}

// post tells of a push.
func post(t *testing.T, url string) {
	t.Helper()
	scenario.Eventually(t, scenario.Converge, "the webhook is accepted", func(ctx context.Context) error { return notify(ctx, url) })
}

func notify(ctx context.Context, url string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, nil)
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return errors.New(response.Status)
	}
	return nil
}

// has waits until a tenant has what was pushed, and looks often: what it takes is a number.
func (f *fleet) has(t *testing.T, tenant, value string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), scenario.Converge)
	defer cancel()
	looks := time.NewTicker(20 * time.Millisecond)
	defer looks.Stop()
	for {
		cm := &corev1.ConfigMap{}
		err := scenario.Get(ctx, f.tiers[tenant], cm, "apps", "pushed")
		if err == nil && cm.Data["k"] == value {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("%s does not get %s: it has %v, %v", tenant, value, cm.Data, err)
		case <-looks.C:
		}
	}
}
