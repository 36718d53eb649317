package page

import (
	"bytes"
	"flag"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/net/html"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/cmd/cascade/cause"
)

var update = flag.Bool("update", false, "write the golden files anew")

var noon = time.Date(2026, 9, 1, 12, 0, 0, 0, time.UTC)

func ago(d time.Duration) metav1.Time { return metav1.NewTime(noon.Add(-d)) }

const (
	shaOne = "main@sha1:1111111111111111111111111111111111111111"
	shaTwo = "main@sha1:2222222222222222222222222222222222222222"
)

func ready(status metav1.ConditionStatus, reason, message string, since time.Duration) []metav1.Condition {
	return []metav1.Condition{{Type: v1alpha1.ReadyCondition, Status: status, Reason: reason, Message: message, LastTransitionTime: ago(since)}}
}

func child(name, environment string, conditions []metav1.Condition, layers ...v1alpha1.ChildLayer) v1alpha1.Child {
	c := v1alpha1.Child{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: name, CreationTimestamp: ago(48 * time.Hour), Labels: map[string]string{
		EnvironmentLabel: environment, v1alpha1.OwnerLabel: "team-" + name,
	}}}
	c.Spec.ClusterRef = &v1alpha1.LocalReference{Name: name}
	c.Status.Conditions, c.Status.Layers, c.Status.Version, c.Status.Provider, c.Status.Region = conditions, layers, "v1.36.3", "aws", "eu-west-1"
	return c
}

func layer(name, applied, tried string, good bool, reason, message string) v1alpha1.ChildLayer {
	return v1alpha1.ChildLayer{Name: name, Revision: applied, LastAttemptedRevision: tried, Ready: good, Reason: reason, Message: message, Since: ago(20 * time.Minute), Objects: 12}
}

// threeTiers is a master of masters with three masters, of which one has tenants, one does
// not answer, and one cannot be given its layer.
func threeTiers() Facts {
	production := child("production", "production", ready(metav1.ConditionFalse, v1alpha1.ReasonChildrenNotReady, "1 of 3 clusters below is not ready", 12*time.Minute),
		layer("master", shaTwo, shaTwo, true, "Succeeded", ""))
	production.Status.Report = &v1alpha1.Report{
		Agent: "v1.4.0", Revision: "apps=" + shaOne + ",fleet=" + shaTwo, Reason: v1alpha1.ReasonChildrenNotReady, Message: "1 of 3 clusters below is not ready", Since: ago(12 * time.Minute), Objects: 40,
		Failing:  []v1alpha1.Failure{{Name: "Child/tenants/shop", Reason: v1alpha1.ReasonKustomizationFailing, Message: "Kustomization apps: no such path"}},
		Children: &v1alpha1.ReportCounts{Total: 3, Ready: 2},
		Tiers: []v1alpha1.TierRow{
			{Path: "tenants/bank", Revision: shaTwo, Ready: true, Reason: "Succeeded", Since: ago(30 * time.Hour), Version: "v1.36.3", Owner: "bank", Provider: "aws", Region: "eu-west-1"},
			{Path: "tenants/shop", Revision: shaOne, Reason: v1alpha1.ReasonKustomizationFailing, Message: "Kustomization apps: cannot build " + shaTwo + ": no such path", Since: ago(12 * time.Minute), Version: "v1.35.1", Owner: "shop"},
		},
	}
	production.Status.Rollouts = []v1alpha1.ChildRollout{{Name: "base", RolloutRevision: v1alpha1.RolloutRevision{Revision: shaOne}, Run: 3, Result: v1alpha1.ResultSucceeded, Since: ago(26 * time.Hour)}}
	production.Status.Credentials = []v1alpha1.ChildCredential{
		{Name: "git-ssh"}, {Name: "lapsed", ExpiresAt: new(ago(time.Hour)), RenewAt: new(ago(9 * time.Hour))},
		{Name: "soon", ExpiresAt: new(ago(-4 * time.Hour)), RenewAt: new(ago(time.Hour))}, {Name: "valid", ExpiresAt: new(ago(-40 * time.Hour)), RenewAt: new(ago(-20 * time.Hour))},
	}
	staging := child("staging", "staging", ready(metav1.ConditionTrue, "Succeeded", "", 90*time.Minute), layer("master", shaTwo, shaTwo, true, "Succeeded", ""))
	staging.Status.HeardAt = new(ago(25 * time.Minute))
	staging.Status.Report = &v1alpha1.Report{Revision: shaTwo, Ready: true, Reason: "Succeeded", Since: ago(5 * time.Hour), Tiers: []v1alpha1.TierRow{
		{Path: "tenants/test", Revision: shaTwo, Ready: true, Reason: "Succeeded", Since: ago(5 * time.Hour)},
	}, Children: &v1alpha1.ReportCounts{Total: 1, Ready: 1}}
	lab := child("lab", "lab", ready(metav1.ConditionFalse, v1alpha1.ReasonPruneBlocked, "layer master: 14 of 20 objects would be deleted", 3*time.Hour),
		v1alpha1.ChildLayer{Name: "master", Revision: shaOne, LastAttemptedRevision: shaTwo, Reason: v1alpha1.ReasonPruneBlocked, Message: "14 of 20 objects would be deleted; plan 0123abcd", Since: ago(3 * time.Hour),
			Held: &v1alpha1.Held{Prune: &v1alpha1.HeldPrune{Hash: "0123abcd", Deletes: 14}}})
	master := v1alpha1.Layer{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "master"}}
	master.Status.Revision, master.Status.Conditions = shaTwo, ready(metav1.ConditionFalse, v1alpha1.ReasonChildrenNotReady, "1 of 3 children", 3*time.Hour)
	clusters := kustomizev1.Kustomization{ObjectMeta: metav1.ObjectMeta{Namespace: "cascade-system", Name: "clusters"}}
	clusters.Status.Conditions = []metav1.Condition{{Type: v1alpha1.CreateHeldCondition, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonCreateHeld, Message: "Clusters fleet/new are not created: they may run already", LastTransitionTime: ago(2 * time.Hour)}}
	v1alpha1.SetHeld(&clusters, v1alpha1.Held{Create: &v1alpha1.HeldCreate{Clusters: []string{"fleet/new"}}})
	return Facts{
		At: noon.Add(-2 * time.Second), Children: []v1alpha1.Child{production, staging, lab}, Layers: []v1alpha1.Layer{master}, Rollouts: []v1alpha1.Rollout{aRollout()},
		Kustomizations: []kustomizev1.Kustomization{clusters},
		Own: &v1alpha1.Report{
			Agent: "v1.4.0", Revision: shaTwo, Reason: v1alpha1.ReasonKustomizationFailing, Message: "1 of 4 objects is not ready", Since: ago(2 * time.Hour),
			Failing: []v1alpha1.Failure{{Name: "Kustomization/cascade-system/clusters", Reason: v1alpha1.ReasonCreateHeld, Message: "Clusters fleet/new are not created"}},
		},
		Events: []corev1.Event{
			{Type: "Normal", Reason: "Seeded", Message: "layer master at " + shaTwo, Count: 3, LastTimestamp: ago(time.Hour)},
			{Type: "Warning", Reason: "ChildrenNotReady", Message: "1 of 3 clusters below is not ready", LastTimestamp: ago(12 * time.Minute)},
		},
	}
}

func aRollout() v1alpha1.Rollout {
	waves := []v1alpha1.RolloutWave{{Name: "canary"}, {Name: "staging"}, {Name: "production", Approval: v1alpha1.ApprovalRequired}}
	r := v1alpha1.Rollout{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "base"}}
	r.Spec.Waves = waves
	to := v1alpha1.RolloutRevision{Revision: shaTwo}
	r.Status.Candidate = &to
	r.Status.LastGood = &v1alpha1.RolloutGood{RolloutRevision: v1alpha1.RolloutRevision{Revision: shaOne}, Run: 3, At: ago(26 * time.Hour)}
	r.Status.Run = &v1alpha1.RolloutRun{
		Number: 4, RolloutRevision: to, Phase: v1alpha1.RolloutProgressing, Terms: v1alpha1.RolloutTerms{Waves: waves}, Wave: 2, Began: ago(2 * time.Hour), Since: ago(2 * time.Hour),
		Approvals: []v1alpha1.RolloutApproval{{Wave: "staging", By: "jo@example.com", At: ago(time.Hour)}},
	}
	r.Status.Clusters = v1alpha1.RolloutCounts{Total: 112, Updated: 9, Updating: 1, Pending: 100, Failed: 1, Deferred: 1}
	r.Status.Waves = []v1alpha1.RolloutWaveStatus{
		{Name: "canary", RolloutCounts: v1alpha1.RolloutCounts{Total: 2, Updated: 2}},
		{Name: "staging", RolloutCounts: v1alpha1.RolloutCounts{Total: 10, Updated: 7, Updating: 1, Failed: 1, Deferred: 1}},
		{Name: "production", RolloutCounts: v1alpha1.RolloutCounts{Total: 100, Pending: 100}},
	}
	r.Status.Failing = []v1alpha1.Failure{{Name: "shop", Reason: v1alpha1.ReasonDeadlineExceeded, Message: "not ready at " + shaTwo}}
	r.Status.Unassigned = 2
	r.Status.Conditions = ready(metav1.ConditionFalse, v1alpha1.ReasonAwaitingApproval, "wave production waits for an approval", time.Hour)
	r.Status.History = []v1alpha1.RolloutHistory{{Number: 3, RolloutRevision: v1alpha1.RolloutRevision{Revision: shaOne}, Phase: v1alpha1.RolloutCompleted, Began: ago(30 * time.Hour), Ended: ago(26 * time.Hour), Failed: 1}}
	return r
}

func render(t *testing.T, n Name, f Facts, q Query) string {
	t.Helper()
	p, err := New()
	if err != nil {
		t.Fatal(err)
	}
	text, err := p.Render(n, f, q, noon)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := html.Parse(bytes.NewReader(text)); err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s: -want, +got:\n%s", file, diff)
	}
}

// TestPages: each page about three tiers, word by word.
func TestPages(t *testing.T) {
	missing := threeTiers()
	missing.Own, missing.Missing = nil, []string{"ConfigMap cascade-system/cascade-report: you may not read it"}
	silent := threeTiers()
	silent.Own.Ready, silent.Own.Reason, silent.Own.Message, silent.Own.Failing = true, "Succeeded", "", nil
	silent.Heartbeat = &cause.Heartbeat{Namespace: "cascade-system", Name: v1alpha1.HeartbeatLease, Renewed: noon.Add(-48 * time.Hour), Holds: 45 * time.Second}
	for file, tc := range map[string]struct {
		reason string
		page   Name
		facts  Facts
		query  Query
	}{
		"fleet.html":         {"what is not ready is first", Fleet, threeTiers(), Query{}},
		"fleet-stale.html":   {"only what was not heard of", Fleet, threeTiers(), Query{State: "Stale"}},
		"fleet-silent.html":  {"nobody keeps up to date what is shown", Fleet, silent, Query{}},
		"fleet-empty.html":   {"a tier without children", Fleet, Facts{At: noon}, Query{}},
		"fleet-missing.html": {"what may not be read is told", Fleet, missing, Query{Namespace: "fleet"}},
		"why.html":           {"the root is first", Why, threeTiers(), Query{}},
		"why-none.html":      {"all is well", Why, Facts{At: noon}, Query{}},
		"why-cluster.html":   {"a child of this tier, and what is below it", Why, threeTiers(), Query{Cluster: "fleet/production"}},
		"why-below.html":     {"a cluster of the third tier", Why, threeTiers(), Query{Cluster: "fleet/production>tenants/shop"}},
		"why-object.html":    {"an object of this tier", Why, threeTiers(), Query{Object: "Kustomization/cascade-system/clusters"}},
		"why-absent.html":    {"no such object", Why, threeTiers(), Query{Object: "Kustomization/cascade-system/none"}},
		"commits.html":       {"who runs what", Commits, threeTiers(), Query{}},
		"cluster.html":       {"a child of this tier", Cluster, threeTiers(), Query{Cluster: "fleet/production"}},
		"cluster-held.html":  {"a child that holds a plan", Cluster, threeTiers(), Query{Cluster: "fleet/lab"}},
		"cluster-stale.html": {"a child that was not heard of", Cluster, threeTiers(), Query{Cluster: "fleet/staging"}},
		"cluster-below.html": {"a cluster of the third tier", Cluster, threeTiers(), Query{Cluster: "fleet/production>tenants/shop"}},
		"cluster-none.html":  {"no such cluster", Cluster, threeTiers(), Query{Cluster: "fleet/gone"}},
		"held.html":          {"what waits for a person", Held, threeTiers(), Query{}},
		"held-none.html":     {"nothing does", Held, Facts{At: noon}, Query{}},
		"rollouts.html":      {"where a revision is", Rollouts, threeTiers(), Query{}},
		"rollouts-none.html": {"no Rollout", Rollouts, Facts{At: noon}, Query{}},
	} {
		t.Run(strings.TrimSuffix(file, ".html"), func(t *testing.T) {
			golden(t, file, render(t, tc.page, tc.facts, tc.query))
		})
	}
}

// TestUnknownPage: a name that is no page is an error, not a page without content.
func TestUnknownPage(t *testing.T) {
	p, err := New()
	if err != nil {
		t.Fatal(err)
	}
	if text, err := p.Render("other", Facts{}, Query{}, noon); err == nil {
		t.Errorf("there is a page: %s", text)
	}
}

// thousand are children as a large tier has them: 300 of them fail at one commit, some
// were not heard of, and each reports 20 clusters below.
func thousand() Facts {
	f := Facts{At: noon}
	for i := range 1000 {
		long := strings.Repeat("x", 200)
		c := child(fmt.Sprintf("child-%04d", i), fmt.Sprintf("environment-%02d", i%20), ready(metav1.ConditionTrue, "Succeeded", "", time.Hour), layer("base", shaTwo, shaTwo, true, "Succeeded", ""))
		switch {
		case i < 300:
			c.Status.Conditions = ready(metav1.ConditionFalse, v1alpha1.ReasonBuildFailed, "layer base: cannot build: "+long, 9*time.Minute)
			c.Status.Layers = []v1alpha1.ChildLayer{layer("base", shaOne, shaTwo, false, v1alpha1.ReasonBuildFailed, "cannot build: "+long)}
		case i < 320:
			c.Status.HeardAt = new(ago(time.Duration(i) * time.Minute))
		}
		c.Status.Rollouts = []v1alpha1.ChildRollout{{Name: "base", RolloutRevision: v1alpha1.RolloutRevision{Revision: fmt.Sprintf("main@sha1:%040d", i)}, Result: v1alpha1.ResultSucceeded}}
		c.Status.Report = &v1alpha1.Report{Revision: fmt.Sprintf("main@sha1:%040d", i), Ready: true, Reason: "Succeeded", Children: &v1alpha1.ReportCounts{Total: 25, Ready: 25}}
		for j := range 20 {
			c.Status.Report.Tiers = append(c.Status.Report.Tiers, v1alpha1.TierRow{
				Path: fmt.Sprintf("tenants/tenant-%02d", j), Revision: shaTwo, Ready: true, Reason: "Succeeded", Since: ago(time.Hour), Owner: fmt.Sprint("owner-", i), Region: fmt.Sprint("region-", i),
			})
		}
		k := kustomizev1.Kustomization{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: fmt.Sprint("k-", i)}}
		k.Status.Conditions = []metav1.Condition{{Type: v1alpha1.CreateHeldCondition, Status: metav1.ConditionTrue, Message: long}}
		names := make([]string, 200)
		for n := range names {
			names[n] = fmt.Sprintf("fleet/a-cluster-with-a-long-name-%06d", n)
		}
		v1alpha1.SetHeld(&k, v1alpha1.Held{Create: &v1alpha1.HeldCreate{Clusters: names}})
		f.Kustomizations = append(f.Kustomizations, k)
		f.Children = append(f.Children, c)
	}
	for i := range 100 {
		r := aRollout()
		r.Name = fmt.Sprint("rollout-", i)
		for w := range 29 {
			r.Status.Waves = append(r.Status.Waves, v1alpha1.RolloutWaveStatus{Name: fmt.Sprint("wave-", w), RolloutCounts: r.Status.Clusters})
		}
		f.Rollouts = append(f.Rollouts, r)
	}
	for i := range 1000 {
		f.Events = append(f.Events, corev1.Event{Reason: "Reason", Message: strings.Repeat("y", 1000), LastTimestamp: ago(time.Duration(i) * time.Second)})
	}
	return f
}

// TestThousandChildren: no page of a large tier is larger than 200 KB, and the first rows
// say what is not ready.
func TestThousandChildren(t *testing.T) {
	f := thousand()
	for _, tc := range []struct {
		reason string
		page   Name
		query  Query
		says   []string
	}{
		{"300 clusters and one commit are one line", Fleet, Query{}, []string{
			"26000 clusters below", `Layer/fleet/base</a>: <span class="reason">BuildFailed</span> at <code>main@sha1:22222222</code>`,
			"kubectl describe layer base -n fleet", `href="./?page=2"`, "<strong>5000</strong> without a row",
		}},
		{"the last page", Fleet, Query{Page: 1 << 19}, []string{"20901 to 21000 of 21000"}},
		{"what was not heard of, with all below it", Fleet, Query{State: "Stale"}, []string{"1 to 100 of 420"}},
		{"one in a thousand", Fleet, Query{Search: "child-0999>tenants/tenant-19"}, []string{"fleet/child-0999"}},
		{"all causes", Why, Query{}, []string{"Layer/fleet/base</a>", "1 to 20 of"}},
		{"one that waits for them", Why, Query{Cluster: "fleet/child-0001"}, []string{"<strong>Layer/fleet/base</strong>", "<strong>Child/fleet/child-0001</strong>"}},
		{"many revisions and environments", Commits, Query{}, []string{"(others)", "more revisions"}},
		{"one of them", Cluster, Query{Cluster: "fleet/child-0001"}, []string{"950 more events", "tenants/tenant-19"}},
		{"all held", Held, Query{}, []string{"1 to 50 of 1100"}},
		{"all Rollouts", Rollouts, Query{}, []string{"1 to 5 of 100"}},
	} {
		text := render(t, tc.page, f, tc.query)
		t.Logf("%s: %d bytes", tc.page, len(text))
		if len(text) > 200_000 {
			t.Errorf("%s: %d bytes", tc.reason, len(text))
		}
		for _, part := range tc.says {
			if !strings.Contains(text, part) {
				t.Errorf("%s: %s does not say %q", tc.reason, tc.page, part)
			}
		}
	}
}

// TestFactsStay: no page changes what it is made of, which others are made of too.
func TestFactsStay(t *testing.T) {
	for name, facts := range map[string]func() Facts{"ThreeTiers": threeTiers, "Objects": withObjects} {
		t.Run(name, func(t *testing.T) {
			f, before := facts(), facts()
			for _, n := range Names() {
				for _, q := range []Query{{}, {Cluster: f.Children[0].Namespace + "/" + f.Children[0].Name, State: "Ready", Page: 2}} {
					render(t, n, f, q)
				}
			}
			if !reflect.DeepEqual(before, f) {
				t.Error("a page changed its facts")
			}
		})
	}
}

// TestHostile: whatever stands in a name, a message or a commit is text on every page.
func TestHostile(t *testing.T) {
	const evil = `"><script>alert(1)</script><img src=x onerror=alert(1)>'` + "\x1b[2J\u202e`$(id)`"
	f := threeTiers()
	for i := range f.Children {
		c := &f.Children[i]
		c.Namespace, c.Name = evil, evil
		c.Labels = map[string]string{EnvironmentLabel: evil, v1alpha1.OwnerLabel: evil}
		c.Status.Version, c.Status.Provider, c.Status.Region = evil, evil, evil
		c.Status.Conditions = ready(metav1.ConditionFalse, evil, evil, time.Hour)
		c.Status.Layers = []v1alpha1.ChildLayer{{Name: evil, Revision: evil, LastAttemptedRevision: "main@" + evil, Reason: evil, Message: evil},
			{Name: evil, Reason: v1alpha1.ReasonPruneBlocked, Held: &v1alpha1.Held{Prune: &v1alpha1.HeldPrune{Hash: evil}}}}
		c.Status.Rollouts = []v1alpha1.ChildRollout{{Name: evil, RolloutRevision: v1alpha1.RolloutRevision{Revision: evil}, Result: evil, Reason: evil}}
		c.Status.Credentials = []v1alpha1.ChildCredential{{Name: evil}}
		c.Status.Report = &v1alpha1.Report{Agent: evil, Revision: evil, Reason: evil, Message: evil, Failing: []v1alpha1.Failure{{Name: evil, Reason: evil, Message: evil}},
			Tiers: []v1alpha1.TierRow{{Path: "tenants/shop", Revision: evil, Reason: evil, Message: evil, Version: evil, Owner: evil, Provider: evil, Region: evil}}}
	}
	f.Layers[0].Name, f.Layers[0].Status.Removal = evil, &v1alpha1.Removal{Held: true, Hash: evil, Names: []string{evil}}
	r := &f.Rollouts[0]
	r.Name, r.Status.Run.Revision, r.Status.Run.Image = evil, evil, evil
	r.Status.Run.Approvals[0] = v1alpha1.RolloutApproval{Wave: evil, By: evil}
	r.Status.Waves[0].Name, r.Status.Run.Terms.Waves[2].Name = evil, evil
	r.Status.Failing[0] = v1alpha1.Failure{Name: evil, Reason: evil, Message: evil}
	r.Status.History[0].Revision, r.Status.History[0].Phase = evil, evil
	r.Status.Conditions[0].Message = evil
	f.Kustomizations[0].Name = evil
	v1alpha1.SetHeld(&f.Kustomizations[0], v1alpha1.Held{Create: &v1alpha1.HeldCreate{Clusters: []string{evil}}, Prune: &v1alpha1.HeldPrune{Hash: evil}})
	f.Own = &v1alpha1.Report{Agent: evil, Revision: evil, Reason: evil, Message: evil, Failing: []v1alpha1.Failure{{Name: evil + "/a/b", Reason: evil, Message: evil}}}
	f.Events[0] = corev1.Event{Type: evil, Reason: evil, Message: evil}
	f.Missing = []string{evil}
	asked := strings.NewReplacer("\x1b", "", "\u202e", "").Replace(evil) // the rest is left out
	for _, n := range Names() {
		text := render(t, n, f, Query{Cluster: asked, Namespace: asked, Search: asked, State: asked, Owner: asked})
		if n != Cluster && !strings.Contains(text, "alert(1)") {
			t.Errorf("%s shows nothing of it", n)
		}
		for _, r := range text {
			if r == '\x1b' || r == '\u202e' {
				t.Errorf("%s: has %q", n, r)
			}
		}
		wellFormed(t, n, text)
	}
	found := render(t, Cluster, f, Query{Cluster: evil + "/" + evil})
	wellFormed(t, Cluster, found)
	if strings.Contains(found, "No such cluster") {
		t.Error("the cluster is not found")
	}
}

// wellFormed: a page has the elements that templates write, and no attribute that runs.
func wellFormed(t *testing.T, n Name, text string) {
	t.Helper()
	z := html.NewTokenizer(strings.NewReader(text))
	for {
		kind := z.Next()
		if kind == html.ErrorToken {
			return
		}
		token := z.Token()
		if kind != html.StartTagToken && kind != html.SelfClosingTagToken {
			continue
		}
		if token.Data == "img" || token.Data == "style" || token.Data == "iframe" {
			t.Errorf("%s has an element %s", n, token)
		}
		for _, a := range token.Attr {
			switch {
			case strings.HasPrefix(a.Key, "on"), a.Key == "style":
				t.Errorf("%s has an attribute: %s", n, token)
			case token.Data == "script" && (a.Key == "src" && a.Val != "live.js"):
				t.Errorf("%s has a script: %s", n, token)
			case a.Key == "href" || a.Key == "action" || a.Key == "src":
				u, err := url.Parse(a.Val)
				if err != nil || u.Scheme != "" || u.Host != "" {
					t.Errorf("%s leads elsewhere: %s", n, token)
				}
			}
		}
	}
}

// TestAssets: style and script refer to nothing outside.
func TestAssets(t *testing.T) {
	for _, file := range []string{"style.css", "live.js", "icon.svg"} {
		content, mediaType, found := Asset(file)
		if !found || len(content) == 0 || mediaType == "" {
			t.Errorf("%s is not there", file)
		}
		text := strings.ReplaceAll(string(content), "http://www.w3.org/2000/svg", "")
		for _, part := range []string{"http:", "https:", "url(", "@import", "innerHTML", "eval("} {
			if strings.Contains(text, part) {
				t.Errorf("%s has %s", file, part)
			}
		}
	}
	if _, _, found := Asset("layout.html"); found {
		t.Error("templates are served")
	}
}

func TestQuery(t *testing.T) {
	long := strings.Repeat("x", maxWord+1)
	for name, tc := range map[string]struct{ reason, text, want string }{
		"Empty":   {"nothing is asked", "", ""},
		"All":     {"what is known comes back", "owner=a&page=3&path=fleet%2Fa%3Eb%2Fc&state=Not+ready", "owner=a&page=3&path=fleet%2Fa%3Eb%2Fc&state=Not+ready"},
		"Unknown": {"what is not known is ignored", "x=1&owner=a", "owner=a"},
		"Long":    {"what is too long is left out", "owner=" + long, ""},
		"NoText":  {"what is no text is left out", "owner=%ff", ""},
		"Plain":   {"what a terminal obeys is left out", "owner=%1b%5b2J", ""},
		"Page":    {"a page that is none is the first", "page=-3", ""},
		"Huge":    {"nor is a number without end", "page=99999999999999999999", ""},
	} {
		t.Run(name, func(t *testing.T) {
			values, err := url.ParseQuery(tc.text)
			if err != nil {
				t.Fatal(err)
			}
			if got := ParseQuery(values).Encode(); got != tc.want {
				t.Errorf("%s: %q, want %q", tc.reason, got, tc.want)
			}
		})
	}
}
