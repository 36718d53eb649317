package check

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	autov1 "github.com/fluxcd/image-automation-controller/api/v1"
	imagev1 "github.com/fluxcd/image-reflector-controller/api/v1"
	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	notificationv1 "github.com/fluxcd/notification-controller/api/v1"
	notificationv1beta3 "github.com/fluxcd/notification-controller/api/v1beta3"
	generatorv1 "github.com/fluxcd/source-watcher/api/v2/v1beta1"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
)

var now = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// well are the facts of a tier in which all is well.
func well() *Facts {
	fresh := Lease{Namespace: "cascade-system", Name: "lease", Holder: "a", Renewed: now.Add(-5 * time.Second), Holds: 15 * time.Second}
	defined := func(name, group string, served ...string) Definition {
		return Definition{Name: name, Group: group, Served: served, Stored: served[:1], Established: true}
	}
	cluster := defined("clusters.cluster.x-k8s.io", "cluster.x-k8s.io", "v1beta2", "v1beta1")
	cluster.Contracts = []string{"v1beta1", "v1beta2"}
	provider := defined("localclusters.infrastructure.cluster.x-k8s.io", "infrastructure.cluster.x-k8s.io", "v1alpha1")
	provider.Contracts = []string{"v1beta1"}
	flux := defined("kustomizations.kustomize.toolkit.fluxcd.io", "kustomize.toolkit.fluxcd.io", "v1")
	flux.Flux = "v2.9.5"
	ready := func(status metav1.ConditionStatus, reason string) *metav1.Condition {
		return &metav1.Condition{Type: "Ready", Status: status, Reason: reason}
	}
	return &Facts{
		Program: "v1.4.0", Kubernetes: "v1.36.3", FluxVersion: "v2.9.5", Reported: "v1.4.0",
		Needed:      map[string]string{"kustomizations.kustomize.toolkit.fluxcd.io": "v1", "layers.cascade.dev": "v1alpha1"},
		Definitions: []Definition{flux, defined("layers.cascade.dev", "cascade.dev", "v1alpha1"), cluster, provider},
		FluxLeases:  []Lease{{Namespace: "flux-system", Name: "kustomize-controller-leader-election", Holder: "old", Renewed: now.Add(-time.Hour), Holds: time.Minute}},
		Workload:    &Workload{Namespace: "cascade-system", Name: "cascade", Wanted: 2, Available: 2, Sharding: 2, Lease: v1alpha1.LeaderLease},
		Leader:      &fresh, Heartbeat: &fresh, Shards: map[int]Lease{0: fresh, 1: fresh},
		Policies:  []Policy{{Name: "cascade-clusters", Exists: true, Fails: true, Denies: true}},
		Providers: []Provider{{Label: "cluster-api", Namespace: "capi-system", Name: "capi", Available: true}},
		Synced: []Object{
			{Kind: "GitRepository", Namespace: "flux-system", Name: "fleet", Source: true, Ready: ready(metav1.ConditionTrue, "Succeeded")},
			{Kind: "GitRepository", Namespace: "flux-system", Name: "off", Source: true, Suspended: true, Ready: ready(metav1.ConditionFalse, "GitOperationFailed")},
			{Kind: "Kustomization", Namespace: "flux-system", Name: "fleet", Ready: ready(metav1.ConditionTrue, "ReconciliationSucceeded")},
			{Kind: "Kustomization", Namespace: "flux-system", Name: "new", Created: now.Add(-time.Second)},
		},
		Known:  []Child{{Namespace: "fleet", Name: "a", Connected: ready(metav1.ConditionTrue, "Succeeded"), Agent: "v1.3.9"}},
		Unread: map[Subject]error{},
	}
}

// TestJudge: each fault alone is told by its reason, with what it is about and what to do.
func TestJudge(t *testing.T) {
	for name, tt := range map[string]struct {
		reason string
		fault  func(f *Facts)
		want   string
		says   string
		level  Level
	}{
		"TooOld":    {"older than the policies", func(f *Facts) { f.Kubernetes = "v1.29.14" }, ReasonKubernetesTooOld, "v1.29.14", Failure},
		"NoVersion": {"another server", func(f *Facts) { f.Kubernetes = "nginx" }, ReasonUnread, "nginx", Warning},
		"Rights":    {"no administrator", func(f *Facts) { f.Denied = []string{"create namespaces"} }, ReasonRightsMissing, "create namespaces", Failure},
		"Undefined": {"somebody deleted it", func(f *Facts) { f.Definitions = f.Definitions[:1] }, ReasonDefinitionMissing, "layers.cascade.dev", Failure},
		"NotServed": {"of an old Flux", func(f *Facts) {
			f.Definitions[0].Served, f.Definitions[0].Stored = []string{"v1beta2"}, []string{"v1beta2"}
		}, ReasonDefinitionNotServed, "kustomizations.kustomize.toolkit.fluxcd.io v1", Failure},
		"NotThere": {"names conflict", func(f *Facts) { f.Definitions[1].Established = false }, ReasonDefinitionNotServed, "layers.cascade.dev", Failure},
		"Stored":   {"stored in a version of long ago", func(f *Facts) { f.Definitions[0].Stored = []string{"v1beta1", "v1"} }, ReasonStoredNotServed, "v1beta1", Warning},
		"Dropped": {"stored in a version that is served, and that our definition does not have", func(f *Facts) {
			f.Definitions[0].Served, f.Definitions[0].Stored = []string{"v1", "v1beta2"}, []string{"v1beta2", "v1"}
		}, ReasonStoredDropped, "v1beta2", Failure},
		"Newer":   {"Flux was upgraded", func(f *Facts) { f.Definitions[0].Flux = "v2.10.0" }, ReasonDefinitionNewer, "v2.10.0", Warning},
		"Flux":    {"Flux is at work", func(f *Facts) { f.FluxLeases[0].Renewed = now }, ReasonControllerRunning, "flux-system/kustomize-controller-leader-election", Failure},
		"NoAgent": {"never installed", func(f *Facts) { f.Workload, f.Leader, f.Heartbeat = nil, nil, nil }, ReasonAgentMissing, "cascade-system", Failure},
		"SilentMom": {"its process hangs, or was ended", func(f *Facts) {
			l := *f.Heartbeat
			l.Renewed = now.Add(-time.Hour)
			f.Workload, f.Leader, f.Heartbeat = nil, nil, &l
		}, ReasonAgentMissing, "1h0m0s ago", Failure},
		"OtherMom": {"its agent is of another version", func(f *Facts) { f.Workload, f.Leader, f.Program = nil, nil, "v1.5.0" }, ReasonAgentDiffers, "v1.5.0", Warning},
		"NotRunning": {"no such image", func(f *Facts) {
			f.Workload.Available = 1
			f.Workload.Pods = []Pod{{"p", "ImagePullBackOff", "no such image"}}
		}, ReasonAgentNotAvailable, "pod p: ImagePullBackOff: no such image", Failure},
		"Zero":       {"scaled to nothing", func(f *Facts) { f.Workload.Wanted, f.Workload.Available = 0, 0 }, ReasonAgentNotAvailable, "0 of 0", Failure},
		"NoLeader":   {"nobody leads", func(f *Facts) { f.Leader = nil }, ReasonNoLeader, "cascade-leader", Failure},
		"OldLeader":  {"it hangs", func(f *Facts) { l := *f.Leader; l.Renewed = now.Add(-time.Hour); f.Leader = &l }, ReasonNoLeader, "1h0m0s ago", Failure},
		"Silent":     {"it leads and does not report", func(f *Facts) { f.Heartbeat = nil }, ReasonAgentSilent, "cascade-heartbeat", Failure},
		"NoElection": {"it hangs, and competes for no Lease", func(f *Facts) { f.Workload.Lease, f.Leader, f.Heartbeat = "", nil, nil }, ReasonAgentSilent, "cascade-heartbeat", Failure},
		"Shard":      {"one replica has other arguments", func(f *Facts) { delete(f.Shards, 1) }, ReasonShardUnserved, "shard 1 of 2", Failure},
		"Version":    {"another program", func(f *Facts) { f.Program = "v1.5.0" }, ReasonAgentDiffers, "v1.5.0", Warning},
		"Policy":     {"deleted", func(f *Facts) { f.Policies[0].Exists = false }, ReasonPolicyMissing, "cascade-clusters", Failure},
		"Ignores":    {"failurePolicy: Ignore", func(f *Facts) { f.Policies[0].Fails = false }, ReasonPolicyDisarmed, "cascade-clusters", Failure},
		"Audits":     {"the binding only audits", func(f *Facts) { f.Policies[0].Denies = false }, ReasonPolicyDisarmed, "cascade-clusters", Failure},
		"Provider":   {"no certificate", func(f *Facts) { f.Providers[0].Available = false; f.Providers[0].Message = "no replica" }, ReasonProviderUnavailable, "capi-system/capi is not available: no replica", Failure},
		"NoContract": {"definitions by hand", func(f *Facts) { f.Definitions[3].Contracts = nil }, ReasonContractMissing, "localclusters", Failure},
		"Contract":   {"a provider of years ago", func(f *Facts) { f.Definitions[3].Contracts = []string{"v1alpha4"} }, ReasonContractMismatch, "v1alpha4", Failure},
		"OldCore": {"a provider that is newer than Cluster API", func(f *Facts) {
			f.Definitions[2].Served, f.Definitions[2].Stored = []string{"v1beta1"}, []string{"v1beta1"}
			f.Definitions[3].Contracts = []string{"v1beta2"}
		},
			ReasonContractMismatch, "v1beta2", Failure},
		"Source": {"wrong credentials", func(f *Facts) { c := f.Synced[1].Ready; f.Synced[0].Ready = c }, ReasonSourceFailing, "GitOperationFailed: GitRepository/flux-system/fleet", Failure},
		"Nobody": {"another selector", func(f *Facts) { f.Synced[3].Created = now.Add(-time.Hour) }, ReasonNotReconciled, "Kustomization/flux-system/new", Failure},
		"NotReady": {"a build that fails", func(f *Facts) {
			f.Synced[2].Ready = &metav1.Condition{Status: metav1.ConditionFalse, Reason: "BuildFailed"}
		}, ReasonNotReady, "BuildFailed: Kustomization/flux-system/fleet", Warning},
		"Held": {"a prune", func(f *Facts) { f.Synced[2].Held = []metav1.Condition{{Type: "PruneBlocked"}} }, ReasonHeld, "Kustomization/flux-system/fleet (PruneBlocked)", Warning},
		"Lost": {"a dead cluster", func(f *Facts) {
			f.Known[0].Connected = &metav1.Condition{Status: metav1.ConditionFalse, Reason: "Unreachable"}
		}, ReasonChildUnreachable, "Unreachable: fleet/a", Failure},
		"Stale": {"an agent that is dead", func(f *Facts) { f.Known[0].Heard = &metav1.Time{} }, ReasonChildStale, "fleet/a", Failure},
		"Skew":  {"two minor versions behind", func(f *Facts) { f.Known[0].Agent = "v1.2.9" }, ReasonChildSkew, "v1.2.9", Failure},
		"Ahead": {"two minor versions before", func(f *Facts) { f.Known[0].Agent = "v1.6.0" }, ReasonChildSkew, "v1.6.0", Failure},
		"Identity": {"a provider that waits for its keys", func(f *Facts) {
			f.Providers = append(f.Providers, Provider{Label: "infrastructure-aws", Namespace: "capa-system", Name: "capa", Available: true, Secrets: []GivenSecret{{Name: "keys", Needed: true}, {Name: "more"}}})
		}, ReasonIdentityMissing, "capa-system/capa needs Secret keys", Failure},
		"Unrenewed": {"a Vault that is down before anything is broken", func(f *Facts) {
			f.Synced = append(f.Synced, Object{Kind: "Credential", Namespace: "capa-system", Name: "keys", Ready: &metav1.Condition{Status: metav1.ConditionTrue}, SourceFailing: &metav1.Condition{Reason: "VaultUnreachable"}})
		}, ReasonNotRenewed, "VaultUnreachable: Credential/capa-system/keys", Warning},
		"Lapsed": {"what has lapsed", func(f *Facts) {
			f.Synced = append(f.Synced, Object{Kind: "Credential", Namespace: "capa-system", Name: "keys", Ready: &metav1.Condition{Status: metav1.ConditionFalse, Reason: "CredentialLapsed"}, SourceFailing: &metav1.Condition{Reason: "VaultUnreachable"}})
		}, ReasonNotReady, "CredentialLapsed: Credential/capa-system/keys", Warning},
		"Faults":      {"what its agent counts", func(f *Facts) { f.Known[0].Faults = &v1alpha1.ReportFaults{CredentialsLapsed: 2} }, ReasonFaultsBelow, "fleet/a (2 credentials have lapsed)", Warning},
		"FaultsBelow": {"and what is counted below it", func(f *Facts) { f.Known[0].FaultsBelow = &v1alpha1.ReportFaults{BackupsStale: 1} }, ReasonFaultsBelow, "below fleet/a (1 backup is too old)", Warning},
		"Image": {"a registry that refuses the login", func(f *Facts) {
			f.Synced = append(f.Synced, Object{Kind: "ImageRepository", Namespace: "apps", Name: "web", Ready: &metav1.Condition{Status: metav1.ConditionFalse, Reason: "AuthenticationFailed"}})
		}, ReasonNotReady, "AuthenticationFailed: ImageRepository/apps/web", Warning},
		"Receiver": {"a kind that was left out of --controllers", func(f *Facts) {
			f.Synced = append(f.Synced, Object{Kind: "Receiver", Namespace: "apps", Name: "hook", Created: now.Add(-time.Hour)})
		}, ReasonNotReconciled, "Receiver/apps/hook", Failure},
		"NoProvider": {"a Provider that was renamed", func(f *Facts) {
			f.Alerts = []Alert{{Namespace: "apps", Name: "all", Provider: "chat", Missing: true}, {Namespace: "apps", Name: "fine", Provider: "to"}}
		}, ReasonProviderNotFound, "Alert/apps/all (Provider chat)", Warning},
		"Unsupported": {"a type that only Flux's controller serves, which does not run any more", func(f *Facts) {
			f.Alerts = []Alert{{Namespace: "apps", Name: "all", Provider: "bus", Type: "nats"}}
			f.Notifiers = []Lease{{Holder: "old", Renewed: now.Add(-time.Hour), Holds: time.Minute}}
		}, ReasonProviderUnsupported, "Alert/apps/all (type nats)", Warning},
		"Static":   {"keys for ever", func(f *Facts) { f.Known[0].Static = &metav1.Condition{Status: metav1.ConditionTrue} }, ReasonStaticCredential, "fleet/a", Warning},
		"Expiring": {"a token", func(f *Facts) { f.Known[0].Expiring = &metav1.Condition{Status: metav1.ConditionTrue} }, ReasonCredentials, "fleet/a", Warning},
		"Unread":   {"no right to list", func(f *Facts) { f.Unread[Children] = errors.New("forbidden") }, ReasonUnread, "forbidden", Failure},
	} {
		t.Run(name, func(t *testing.T) {
			f := well()
			tt.fault(f)
			var got []string
			for _, found := range Judge(f, now) {
				if found.Level == OK {
					continue
				}
				got = append(got, found.Reason)
				if found.Reason == tt.want && (found.Level != tt.level || !strings.Contains(found.Message, tt.says) || found.Remedy == "") {
					t.Errorf("%s: got %+v, want %s that says %q and what to do", tt.reason, found, tt.level, tt.says)
				}
			}
			if fmt.Sprint(got) != "["+tt.want+"]" {
				t.Errorf("%s: the reasons are %v, want %s alone", tt.reason, got, tt.want)
			}
		})
	}
}

// TestJudgeWell: where all is well each subject has one finding that says so; before an
// installation only what that needs is judged, and what it brings is not missing.
func TestJudgeWell(t *testing.T) {
	for name, tt := range map[string]struct {
		reason string
		change func(f *Facts)
		want   int
	}{
		"Installed": {"a tier", func(*Facts) {}, 10},
		"Vendor":    {"a version with a suffix", func(f *Facts) { f.Kubernetes = "v1.30.0-eks-1234" }, 10},
		"Commit":    {"a version that is no release", func(f *Facts) { f.Program, f.Reported, f.Known[0].Agent = "7bade91", "7bade91", "c06ebe2" }, 10},
		"NoCAPI":    {"a tier without Cluster API", func(f *Facts) { f.Definitions = f.Definitions[:2]; f.Providers = nil }, 10},
		"Notifier": {"a type that Flux's controller serves beside the agent", func(f *Facts) {
			f.Alerts = []Alert{{Namespace: "apps", Name: "all", Provider: "bus", Type: "nats"}}
			f.Notifiers = []Lease{{Holder: "a", Renewed: now.Add(-time.Second), Holds: time.Minute}}
		}, 10},
		"Mom":    {"its agent is a process beside the cluster", func(f *Facts) { f.Workload, f.Leader, f.Shards = nil, nil, nil }, 10},
		"Before": {"an empty cluster", func(f *Facts) { *f = Facts{Before: true, Kubernetes: f.Kubernetes, Needed: f.Needed} }, 5},
	} {
		t.Run(name, func(t *testing.T) {
			f := well()
			tt.change(f)
			all := Judge(f, now)
			if Failed(all) || len(all) != tt.want {
				t.Errorf("%s: %d findings, want %d: %+v", tt.reason, len(all), tt.want, all)
			}
			for _, found := range all {
				if found.Level != OK || found.Message == "" || found.Subject == "" {
					t.Errorf("%s: %+v", tt.reason, found)
				}
			}
		})
	}
}

// TestNamesAreBounded: a fleet of which nothing works is told in a few lines.
func TestNamesAreBounded(t *testing.T) {
	f := well()
	for i := range 5000 {
		f.Known = append(f.Known, Child{Namespace: "fleet", Name: fmt.Sprintf("c%04d", i), Connected: &metav1.Condition{Status: metav1.ConditionFalse, Reason: "Unreachable"}})
	}
	for _, found := range Judge(f, now) {
		if len(found.Message) > 300 {
			t.Errorf("a finding has %d characters: %.300s", len(found.Message), found.Message)
		}
		if found.Reason == ReasonChildUnreachable && !strings.HasSuffix(found.Message, "fleet/c0004 and 4995 more") {
			t.Errorf("it says %q", found.Message)
		}
	}
}

// TestReadsLease: agents with a part of the objects compete for a Lease of their own, or for none.
func TestReadsLease(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		args   []string
		lease  string
	}{
		"Plain":      {"the one that all share", []string{"agent", "--shards=1"}, v1alpha1.LeaderLease},
		"Selector":   {"labels share the objects out", []string{"agent", "--watch-label-selector=team=a"}, "cascade-leader-289b4946"},
		"Apart":      {"a flag and its value are two arguments", []string{"agent", "--watch-label-selector", "team=a"}, "cascade-leader-289b4946"},
		"Namespace":  {"namespaces do", []string{"agent", "--watch-all-namespaces=false"}, "cascade-leader-7ced3b35"},
		"NoElection": {"nobody competes", []string{"agent", "--enable-leader-election=false"}, ""},
		"Variable":   {"which one is not known", []string{"agent", "--watch-label-selector=team=$(TEAM)"}, ""},
		"Later":      {"of another version", []string{"agent", "--of-tomorrow", "--watch-label-selector=team=a"}, "cascade-leader-289b4946"},
	} {
		t.Run(name, func(t *testing.T) {
			labels := map[string]string{"app.kubernetes.io/name": v1alpha1.AgentName}
			d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.AgentNamespace, Name: v1alpha1.AgentName, Labels: labels}, Status: appsv1.DeploymentStatus{AvailableReplicas: 1}}
			d.Spec.Template.Spec.Containers = []corev1.Container{{Args: tc.args}}
			objects := []client.Object{d}
			for _, lease := range []string{tc.lease, v1alpha1.HeartbeatLease} {
				if lease != "" {
					objects = append(objects, &coordinationv1.Lease{
						ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.AgentNamespace, Name: lease},
						Spec:       coordinationv1.LeaseSpec{HolderIdentity: new("a"), RenewTime: new(metav1.NewMicroTime(now)), LeaseDurationSeconds: new(int32(45))},
					})
				}
			}
			f := &Facts{Shards: map[int]Lease{}}
			r := &Reader{Client: fake.NewClientBuilder().WithScheme(clientgoscheme.Scheme).WithObjects(objects...).Build(), Namespace: v1alpha1.AgentNamespace}
			if err := r.agent(t.Context(), f); err != nil {
				t.Fatal(err)
			}
			for _, found := range judgeAgent(f, now) {
				if found.Level == Failure {
					t.Errorf("%s: %s: %s", tc.reason, found.Reason, found.Message)
				}
			}
		})
	}
}

// TestReadsRollouts: a Rollout that is refused, or to which no commit comes any more, is found.
func TestReadsRollouts(t *testing.T) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		clientgoscheme.AddToScheme, kustomizev1.AddToScheme, helmv2.AddToScheme, v1alpha1.AddToScheme, generatorv1.AddToScheme, imagev1.AddToScheme, autov1.AddToScheme,
		notificationv1.AddToScheme, notificationv1beta3.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	conditions := func(ready metav1.ConditionStatus, reason string) []metav1.Condition {
		return []metav1.Condition{{Type: v1alpha1.ReadyCondition, Status: ready, Reason: reason}, {Type: v1alpha1.UpstreamCondition, Status: "False", Reason: v1alpha1.ReasonUpstreamUnreadable}}
	}
	for name, tc := range map[string]struct {
		reason     string
		suspended  bool
		conditions []metav1.Condition
		want       string
	}{
		"Refused":   {"its spec is wrong", false, conditions("False", v1alpha1.ReasonInvalidSpec), "InvalidSpec: Rollout/fleet/web"},
		"Completed": {"its clusters have the last commit that came", false, conditions("True", v1alpha1.ReasonSucceeded), "UpstreamUnreadable: Rollout/fleet/web"},
		"Suspended": {"a person stopped it", true, conditions("True", v1alpha1.ReasonSuspended), ""},
		"Well":      {"nothing is wrong", false, conditions("True", v1alpha1.ReasonSucceeded)[:1], ""},
	} {
		t.Run(name, func(t *testing.T) {
			o := &v1alpha1.Rollout{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "web"}}
			o.Spec.Suspend, o.Status.Conditions = tc.suspended, tc.conditions
			f := well()
			r := &Reader{Client: fake.NewClientBuilder().WithScheme(scheme).WithObjects(o).Build()}
			if err := r.objects(t.Context(), f); err != nil {
				t.Fatal(err)
			}
			got := ""
			for _, found := range Judge(f, now) {
				if found.Reason == ReasonNotReady {
					got += found.Message
				}
			}
			if got != tc.want {
				t.Errorf("%s: it finds %q, want %q", tc.reason, got, tc.want)
			}
		})
	}
}

// TestReasonsAreDocumented: docs/check.md has each reason, and none that there is not.
func TestReasonsAreDocumented(t *testing.T) {
	page, err := os.ReadFile("../../../docs/check.md")
	if err != nil {
		t.Fatal(err)
	}
	code, err := os.ReadFile("judge.go")
	if err != nil {
		t.Fatal(err)
	}
	declared := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^\tReason\w+ += "(\w+)"`).FindAllStringSubmatch(string(code), -1) {
		declared[m[1]] = true
	}
	documented := map[string]bool{}
	for _, row := range regexp.MustCompile(`(?m)^\|[^|]*\|([^|]*)\| (?:Failure|Warning) \|`).FindAllStringSubmatch(string(page), -1) {
		for _, m := range regexp.MustCompile("`(\\w+)`").FindAllStringSubmatch(row[1], -1) {
			documented[m[1]] = true
		}
	}
	if len(declared) < 20 || !maps.Equal(declared, documented) {
		t.Errorf("docs/check.md has the reasons %v, the code %v", documented, declared)
	}
}

// TestIdentities: each infrastructure provider is told by what it is somebody.
func TestIdentities(t *testing.T) {
	for name, tc := range map[string]struct {
		reason   string
		provider Provider
		want     string
	}{
		"Role":    {"a role by its account", Provider{Account: "capa", Roles: []string{"eks.amazonaws.com/role-arn=arn:x"}}, "has a role by ServiceAccount capa: eks.amazonaws.com/role-arn=arn:x"},
		"Secret":  {"keys of a Secret", Provider{Secrets: []GivenSecret{{Name: "keys", Exists: true}, {Name: "absent"}}}, "has Secrets: keys"},
		"Both":    {"both", Provider{Account: "capa", Roles: []string{"r"}, Secrets: []GivenSecret{{Name: "keys", Unknown: true}}}, "has a role by ServiceAccount capa (r), and Secrets: keys"},
		"Neither": {"nothing of its own", Provider{}, "has neither a Secret nor a role of its own: it is whoever its node is, or whom the identities of its clusters name"},
	} {
		t.Run(name, func(t *testing.T) {
			f := well()
			tc.provider.Label, tc.provider.Namespace, tc.provider.Name, tc.provider.Available = "infrastructure-aws", "capa-system", "capa", true
			f.Providers = append(f.Providers, tc.provider)
			for _, finding := range Judge(f, now) {
				if finding.Level == OK && finding.Message == "infrastructure-aws: Deployment capa-system/capa "+tc.want {
					return
				}
			}
			t.Errorf("%s: nothing says that it %s", tc.reason, tc.want)
		})
	}
}
