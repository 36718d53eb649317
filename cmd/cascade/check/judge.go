package check

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/Masterminds/semver/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cascade-gitops/cascade/api/clusterapi"
	"github.com/cascade-gitops/cascade/api/v1alpha1"
)

// Level is how bad a finding is.
type Level string

// Levels. A Warning is what a person should know of; with a Failure the tier does not work,
// in part or as a whole.
const (
	OK      Level = "OK"
	Warning Level = "Warning"
	Failure Level = "Failure"
)

// Finding is what was found about a subject. Reason and Remedy are empty where all is well.
type Finding struct {
	Subject Subject `json:"subject"`
	Level   Level   `json:"level"`
	Reason  string  `json:"reason,omitempty"`
	Message string  `json:"message"`
	Remedy  string  `json:"remedy,omitempty"`
}

// Reasons of findings, stable because scripts match on them. docs/check.md says what each
// means.
const (
	ReasonUnread              = "Unread"
	ReasonKubernetesTooOld    = "KubernetesTooOld"
	ReasonRightsMissing       = "RightsMissing"
	ReasonDefinitionMissing   = "DefinitionMissing"
	ReasonDefinitionNotServed = "DefinitionNotServed"
	ReasonDefinitionNewer     = "DefinitionNewer"
	ReasonStoredNotServed     = "StoredVersionNotServed"
	ReasonStoredDropped       = "StoredVersionDropped"
	ReasonControllerRunning   = "OtherControllerRunning"
	ReasonAgentMissing        = "AgentMissing"
	ReasonAgentNotAvailable   = "AgentNotAvailable"
	ReasonAgentDiffers        = "AgentVersionDiffers"
	ReasonNoLeader            = "NoLeader"
	ReasonAgentSilent         = "AgentSilent"
	ReasonShardUnserved       = "ShardUnserved"
	ReasonPolicyMissing       = "PolicyMissing"
	ReasonPolicyDisarmed      = "PolicyDisarmed"
	ReasonProviderUnavailable = "ProviderNotAvailable"
	ReasonContractMissing     = "ContractMissing"
	ReasonContractMismatch    = "ContractMismatch"
	ReasonSourceFailing       = "SourceFailing"
	ReasonNotReconciled       = "NotReconciled"
	ReasonNotReady            = "NotReady"
	ReasonHeld                = "HeldForAPerson"
	ReasonChildUnreachable    = "ChildUnreachable"
	ReasonChildStale          = "ChildStale"
	ReasonChildSkew           = "ChildAgentSkew"
	ReasonCredentials         = "CredentialsExpiring"
	ReasonStaticCredential    = "StaticCredential"
	ReasonFaultsBelow         = "FaultsBelow"
	ReasonNotRenewed          = "CredentialNotRenewed"
	ReasonIdentityMissing     = "ProviderIdentityMissing"
	ReasonProviderNotFound    = "ProviderNotFound"
	ReasonProviderUnsupported = "UnsupportedProvider"
)

// LeastKubernetes is the oldest version of Kubernetes that an agent runs on: the first one
// that serves v1 of ValidatingAdmissionPolicy, with which the API server itself keeps
// Clusters from being deleted.
const LeastKubernetes = "1.30.0"

// Judge tells how the cluster is. Each subject has at least one finding, but those that
// only an installed agent has, when the cluster is checked before an installation.
func Judge(f *Facts, now time.Time) []Finding {
	var all []Finding
	for _, s := range subjects() {
		if f.Before && !s.before {
			continue
		}
		found := s.judge(f, now)
		if err := f.Unread[s.of]; err != nil {
			found = []Finding{fail(ReasonUnread, "run it as a user who may read this",
				"cannot read what there is to know of %s: %v", s.of, err)}
		}
		for _, finding := range found {
			finding.Subject = s.of
			all = append(all, finding)
		}
	}
	return all
}

// Failed reports whether one of the findings is a failure.
func Failed(all []Finding) bool {
	return slices.ContainsFunc(all, func(f Finding) bool { return f.Level == Failure })
}

func fail(reason, remedy, format string, args ...any) Finding {
	return Finding{Level: Failure, Reason: reason, Remedy: remedy, Message: fmt.Sprintf(format, args...)}
}

func warn(reason, remedy, format string, args ...any) Finding {
	return Finding{Level: Warning, Reason: reason, Remedy: remedy, Message: fmt.Sprintf(format, args...)}
}

// orWell adds what is well to say if nothing else was found.
func orWell(found []Finding, format string, args ...any) []Finding {
	if len(found) > 0 {
		return found
	}
	return []Finding{{Level: OK, Message: fmt.Sprintf(format, args...)}}
}

func judgeServer(f *Facts, _ time.Time) []Finding {
	has, err := semver.NewVersion(f.Kubernetes)
	if err != nil {
		return []Finding{warn(ReasonUnread, "see what answers at the address of the kubeconfig", "the API server says that its version is %q", f.Kubernetes)}
	}
	// A vendor's suffix, as in v1.32.3-gke.100, would count as before the release.
	if core, err := has.SetPrerelease(""); err == nil && core.LessThan(semver.MustParse(LeastKubernetes)) {
		return []Finding{fail(ReasonKubernetesTooOld, "upgrade the cluster first", "Kubernetes is %s, %s is the oldest that an agent runs on", f.Kubernetes, LeastKubernetes)}
	}
	return orWell(nil, "Kubernetes %s", f.Kubernetes)
}

func judgeRights(f *Facts, _ time.Time) []Finding {
	var found []Finding
	if len(f.Denied) > 0 {
		found = append(found, fail(ReasonRightsMissing, "install as a cluster administrator", "this user may not %s", listed(f.Denied)))
	}
	return orWell(found, "this user may install an agent")
}

func judgeDefinitions(f *Facts, _ time.Time) []Finding {
	var missing, unserved, newer, stored, dropped []string
	there := map[string]Definition{}
	for _, d := range f.Definitions {
		there[d.Name] = d
		if isNewer(d.Flux, f.FluxVersion) {
			newer = append(newer, d.Name+" "+d.Flux)
		}
		if needed, ok := f.Needed[d.Name]; ok && (!d.Established || !slices.Contains(d.Served, needed)) {
			unserved = append(unserved, d.Name+" "+needed)
			continue
		}
		for _, v := range d.Stored {
			needed, ours := f.Needed[d.Name]
			switch {
			case !slices.Contains(d.Served, v):
				stored = append(stored, d.Name+" "+v)
			case ours && v != needed && v1alpha1.IsFluxGroup(d.Group) && !isNewer(d.Flux, f.FluxVersion):
				dropped = append(dropped, d.Name+" "+v)
			}
		}
	}
	for name := range f.Needed {
		if _, ok := there[name]; !ok {
			missing = append(missing, name)
		}
	}
	var found []Finding
	if len(missing) > 0 && !f.Before {
		found = append(found, fail(ReasonDefinitionMissing, "run: cascade install", "%s not defined: what Git declares of these kinds is not synced", are(missing)))
	}
	if len(unserved) > 0 {
		found = append(found, fail(ReasonDefinitionNotServed, "run: cascade install; a definition of a Flux before 2.3 has to be migrated first (flux migrate)",
			"%s not served", are(unserved)))
	}
	if len(stored) > 0 {
		found = append(found, warn(ReasonStoredNotServed, "store the objects anew in a version that is served, and take the old one out of status.storedVersions of the definition",
			"objects may be stored as %s, which the API server does not serve", listed(stored)))
	}
	if len(dropped) > 0 {
		// https://kubernetes.io/docs/tasks/extend-kubernetes/custom-resources/custom-resource-definition-versioning/#upgrade-existing-objects-to-a-new-stored-version
		found = append(found, fail(ReasonStoredDropped, "run: flux migrate, of Flux 2.6 or later, which stores them anew",
			"objects may be stored as %s, which the definitions of the agent do not have: the API server refuses these", listed(dropped)))
	}
	if len(newer) > 0 {
		found = append(found, warn(ReasonDefinitionNewer, "nothing, unless fields of the newer version are used: they have no effect here",
			"%s of a later Flux than %s, and left as they are", are(newer), f.FluxVersion))
	}
	switch {
	case len(missing) > 0 && f.Before:
		return orWell(found, "%d of %d kinds are defined; an installation defines the others", len(f.Needed)-len(missing), len(f.Needed))
	default:
		return orWell(found, "all %d kinds are defined and served", len(f.Needed))
	}
}

func judgeControllers(f *Facts, now time.Time) []Finding {
	var names []string
	for i := range f.FluxLeases {
		if l := &f.FluxLeases[i]; l.held(now) {
			names = append(names, l.Namespace+"/"+l.Name)
		}
	}
	var found []Finding
	if len(names) > 0 {
		// An agent waits for them, so that two engines are never at work.
		found = append(found, fail(ReasonControllerRunning, "scale Flux's controllers to zero, in Git if Git declares them: docs/flux-compatibility.md",
			"Flux's own controllers are at work here and hold %s; an agent waits until they end", listed(names)))
	}
	return orWell(found, "no other controller does an agent's work")
}

func judgeAgent(f *Facts, now time.Time) []Finding {
	w := f.Workload
	if w == nil && f.Heartbeat.held(now) {
		// It is a process beside the cluster.
		return orWell(judgeProgram(f, ""), "agent %s works, and is no Deployment of this cluster, as that of cascade mom", orUnknown(f.Reported))
	}
	if w == nil {
		remedy, age := "run: cascade install", since(f.Heartbeat, now)
		if age != "" {
			age = ", and nobody renews Lease " + v1alpha1.HeartbeatLease + age
			remedy += "; or, where cascade mom runs it, see: cascade mom status"
		}
		return []Finding{fail(ReasonAgentMissing, remedy, "there is no Deployment of an agent in namespace %s%s", v1alpha1.AgentNamespace, age)}
	}
	var found []Finding
	if w.Available < w.Wanted || w.Wanted == 0 {
		why := ""
		for _, p := range w.Pods[:min(len(w.Pods), most)] {
			why += fmt.Sprintf("; pod %s: %s", p.Name, strings.TrimSuffix(p.Reason+": "+p.Message, ": "))
		}
		found = append(found, fail(ReasonAgentNotAvailable, "see: kubectl -n "+w.Namespace+" describe deployment,pods -l app.kubernetes.io/name="+v1alpha1.AgentName,
			"%d of %d replicas of Deployment %s/%s are available%s", w.Available, w.Wanted, w.Namespace, w.Name, why))
	}
	if w.Lease != "" && !f.Leader.held(now) {
		found = append(found, fail(ReasonNoLeader, "see: kubectl -n "+w.Namespace+" logs deployment/"+w.Name, "no agent holds Lease %s/%s%s: nothing is synced",
			w.Namespace, w.Lease, since(f.Leader, now)))
	} else if !f.Heartbeat.held(now) {
		found = append(found, fail(ReasonAgentSilent, "see: kubectl -n "+w.Namespace+" logs deployment/"+w.Name,
			"the agent does not renew Lease %s/%s%s: its report is old", w.Namespace, v1alpha1.HeartbeatLease, since(f.Heartbeat, now)))
	}
	found = append(found, judgeShards(f, now)...)
	found = append(found, judgeProgram(f, ", or run: cascade install")...)
	return orWell(found, "agent %s: %d of %d replicas are available", orUnknown(f.Reported), w.Available, w.Wanted)
}

// judgeProgram holds the version of the agent against that of this program. or is what one may do besides to use the
// agent's version.
func judgeProgram(f *Facts, or string) []Finding {
	if f.Reported == "" || f.Reported == f.Program {
		return nil
	}
	return []Finding{warn(ReasonAgentDiffers, "use the program of the agent's version"+or, "the agent is %s, this program is %s", f.Reported, f.Program)}
}

// judgeShards holds the Leases of shards against the number that the Deployment asks for.
func judgeShards(f *Facts, now time.Time) []Finding {
	var unserved []string
	for i := range f.Workload.Sharding {
		lease, ok := f.Shards[i]
		if f.Workload.Sharding > 1 && (!ok || !lease.held(now)) {
			unserved = append(unserved, fmt.Sprint(i))
		}
	}
	if len(unserved) == 0 {
		return nil
	}
	return []Finding{fail(ReasonShardUnserved, "see whether all replicas run, and with the same --shards",
		"no replica serves shard %s of %d: the Children in it are left alone", listed(unserved), f.Workload.Sharding)}
}

func judgeWalls(f *Facts, _ time.Time) []Finding {
	var missing, disarmed []string
	for _, p := range f.Policies {
		switch {
		case !p.Exists:
			missing = append(missing, p.Name)
		case !p.Fails || !p.Denies:
			disarmed = append(disarmed, p.Name)
		}
	}
	var found []Finding
	if len(missing) > 0 {
		found = append(found, fail(ReasonPolicyMissing, "run: cascade install", "admission policies are missing: %s; the API server does not refuse what they refuse", listed(missing)))
	}
	if len(disarmed) > 0 {
		found = append(found, fail(ReasonPolicyDisarmed, "run: cascade install", "admission policies refuse nothing: %s, by failurePolicy or for want of a binding that denies", listed(disarmed)))
	}
	return orWell(found, "all %d admission policies are in force", len(f.Policies))
}

func judgeProviders(f *Facts, _ time.Time) []Finding {
	var found []Finding
	understood := understoodContracts(f.Definitions)
	if len(understood) == 0 && len(f.Providers) == 0 {
		return orWell(nil, "Cluster API is not installed in this tier")
	}
	var without, others []string
	for _, d := range f.Definitions {
		switch {
		case !clusterapi.BuildsClusters(d.Group) || d.Group == clusterapi.Group:
		case len(d.Contracts) == 0:
			without = append(without, d.Name)
		case !slices.ContainsFunc(d.Contracts, func(c string) bool { return slices.Contains(understood, c) }):
			others = append(others, d.Name+" "+strings.Join(d.Contracts, ","))
		}
	}
	if len(without) > 0 {
		found = append(found, fail(ReasonContractMissing, "install the provider by its release, or by spec.providers of a Layer: its definitions carry labels cluster.x-k8s.io/<contract>",
			"definitions say no contract with Cluster API: %s; objects of these kinds are not reconciled", listed(without)))
	}
	if len(others) > 0 {
		found = append(found, fail(ReasonContractMismatch, "install versions of Cluster API and its providers that go together",
			"Cluster API follows %s here, and definitions %s", strings.Join(understood, " and "), listed(others)))
	}
	for _, p := range f.Providers {
		if !p.Available {
			found = append(found, fail(ReasonProviderUnavailable, "see: kubectl -n "+p.Namespace+" describe deployment "+p.Name,
				"%s: Deployment %s/%s is not available: %s", p.Label, p.Namespace, p.Name, p.Message))
		}
	}
	found = orWell(append(found, judgeIdentities(f.Providers)...), "Cluster API follows %s, %d controllers are available", strings.Join(understood, " and "), len(f.Providers))
	for _, p := range f.Providers {
		if strings.HasPrefix(p.Label, infrastructurePrefix) {
			found = append(found, Finding{Level: OK, Message: p.Label + ": Deployment " + p.Namespace + "/" + p.Name + " " + identityOf(&p)})
		}
	}
	return found
}

// infrastructurePrefix begins the labels of providers that need an identity of a cloud.
const infrastructurePrefix = "infrastructure-"

// judgeIdentities finds Secrets that are missing, without which a provider does not begin.
func judgeIdentities(all []Provider) []Finding {
	var found []Finding
	for _, p := range all {
		for _, s := range p.Secrets {
			if s.Needed && !s.Exists && !s.Unknown {
				found = append(found, fail(ReasonIdentityMissing, "hand it over by spec.providers of the Layer: docs/credentials.md",
					"%s: Deployment %s/%s needs Secret %s, which is not there", p.Label, p.Namespace, p.Name, s.Name))
			}
		}
	}
	return found
}

// identityOf says by what a provider is somebody in its cloud, as far as its Deployment tells.
func identityOf(p *Provider) string {
	var secrets []string
	for _, s := range p.Secrets {
		if s.Exists || s.Unknown {
			secrets = append(secrets, s.Name)
		}
	}
	switch {
	case len(p.Roles) > 0 && len(secrets) > 0:
		return "has a role by ServiceAccount " + p.Account + " (" + listed(p.Roles) + "), and Secrets: " + listed(secrets)
	case len(p.Roles) > 0:
		return "has a role by ServiceAccount " + p.Account + ": " + listed(p.Roles)
	case len(secrets) > 0:
		return "has Secrets: " + listed(secrets)
	}
	return "has neither a Secret nor a role of its own: it is whoever its node is, or whom the identities of its clusters name"
}

// understoodContracts are those that Cluster API follows, by the versions of its Cluster.
// One with v1beta2 follows providers of v1beta1, too (its provider contract).
func understoodContracts(all []Definition) []string {
	for _, d := range all {
		if d.Name != clusterapi.ClusterCRD {
			continue
		}
		if slices.Contains(d.Served, "v1beta2") {
			return []string{"v1beta2", "v1beta1"}
		}
		return d.Served
	}
	return nil
}

func judgeSources(f *Facts, now time.Time) []Finding {
	return judgeSynced(f, now, true, "sources", func(reason, why string) Finding {
		return fail(ReasonSourceFailing, "see: cascade get sources -A", "%s: %s", reason, why)
	})
}

func judgeObjects(f *Facts, now time.Time) []Finding {
	found := judgeSynced(f, now, false, "objects that are synced or kept", func(reason, why string) Finding {
		return warn(ReasonNotReady, "see: cascade get all -A", "%s: %s", reason, why)
	})
	var held []string
	for _, o := range f.Synced {
		for _, c := range o.Held {
			held = append(held, o.String()+" ("+c.Type+")")
		}
	}
	unrenewed := map[string][]string{}
	for _, o := range f.Synced {
		if c := o.SourceFailing; c != nil && !o.Suspended && (o.Ready == nil || o.Ready.Status == metav1.ConditionTrue) {
			unrenewed[c.Reason] = append(unrenewed[c.Reason], o.String())
		}
	}
	for _, reason := range sorted(unrenewed) {
		found = slices.DeleteFunc(found, func(f Finding) bool { return f.Level == OK })
		found = append(found, warn(ReasonNotRenewed, "see: cascade get credentials -A, and docs/credentials.md", "valid, and not to be renewed at present: %s: %s", reason, listed(unrenewed[reason])))
	}
	if mute := judgeAlerts(f, now); len(mute) > 0 {
		found = append(slices.DeleteFunc(found, func(f Finding) bool { return f.Level == OK }), mute...)
	}
	if len(held) > 0 {
		found = slices.DeleteFunc(found, func(f Finding) bool { return f.Level == OK })
		found = append(found, warn(ReasonHeld, "see: cascade approve --help; cascade tree shows what is held", "a person has to decide about %s", listed(held)))
	}
	return found
}

// judgeAlerts finds Alerts that tell nobody.
func judgeAlerts(f *Facts, now time.Time) []Finding {
	var missing, unsupported []string
	for _, a := range f.Alerts {
		switch {
		case a.Missing:
			missing = append(missing, fmt.Sprintf("Alert/%s/%s (Provider %s)", a.Namespace, a.Name, a.Provider))
		case a.Type != "" && !slices.ContainsFunc(f.Notifiers, func(l Lease) bool { return l.held(now) }):
			unsupported = append(unsupported, fmt.Sprintf("Alert/%s/%s (type %s)", a.Namespace, a.Name, a.Type))
		}
	}
	var found []Finding
	if len(missing) > 0 {
		found = append(found, warn(ReasonProviderNotFound, "create the Provider in the namespace of the Alert, or correct spec.providerRef", "nobody is told by %s", listed(missing)))
	}
	if len(unsupported) > 0 {
		found = append(found, warn(ReasonProviderUnsupported, "run Flux's notification-controller for these: docs/notifications.md", "the agent does not serve the Provider of %s", listed(unsupported)))
	}
	return found
}

// judgeSynced counts the objects of some kinds that are not ready by their reasons.
func judgeSynced(f *Facts, now time.Time, sources bool, what string, finding func(reason, why string) Finding) []Finding {
	// startup is how long an object may be without a condition.
	const startup = time.Minute
	failing, silent, total := map[string][]string{}, []string(nil), 0
	for _, o := range f.Synced {
		if o.Source != sources || o.Suspended {
			continue
		}
		total++
		switch {
		case o.Ready == nil:
			if now.Sub(o.Created) > startup {
				silent = append(silent, o.String())
			}
		case o.Ready.Status == metav1.ConditionFalse:
			failing[o.Ready.Reason] = append(failing[o.Ready.Reason], o.String())
		}
	}
	var found []Finding
	for _, reason := range sorted(failing) {
		found = append(found, finding(reason, listed(failing[reason])))
	}
	if len(silent) > 0 {
		found = append(found, fail(ReasonNotReconciled, "see whether an agent runs, and whether its --controllers, --watch-label-selector and namespaces take these in",
			"nobody reconciles %s", listed(silent)))
	}
	return orWell(found, "%d %s, none failing", total, what)
}

func (o Object) String() string { return o.Kind + "/" + o.Namespace + "/" + o.Name }

func judgeChildren(f *Facts, _ time.Time) []Finding {
	lost, skewed := map[string][]string{}, map[string][]string{}
	var stale, expiring, static, faulty []string
	for _, c := range f.Known {
		name := c.Namespace + "/" + c.Name
		if c.Connected != nil && c.Connected.Status == metav1.ConditionFalse {
			lost[c.Connected.Reason] = append(lost[c.Connected.Reason], name)
		} else if c.Heard != nil {
			stale = append(stale, name)
		}
		if c.Expiring != nil && c.Expiring.Status == metav1.ConditionTrue {
			expiring = append(expiring, name)
		}
		if c.Static != nil && c.Static.Status == metav1.ConditionTrue {
			static = append(static, name)
		}
		if text := c.Faults.String(); text != "" {
			faulty = append(faulty, name+" ("+text+")")
		}
		if text := c.FaultsBelow.String(); text != "" {
			faulty = append(faulty, "below "+name+" ("+text+")")
		}
		if c.Agent != "" && f.Reported != "" && tooFar(f.Reported, c.Agent) {
			skewed[c.Agent] = append(skewed[c.Agent], name)
		}
	}
	var found []Finding
	for _, reason := range sorted(lost) {
		found = append(found, fail(ReasonChildUnreachable, "see: cascade get children -A, and docs/reasons.md", "%s: %s", reason, listed(lost[reason])))
	}
	if len(stale) > 0 {
		found = append(found, fail(ReasonChildStale, "see the agent in these clusters: kubectl -n "+v1alpha1.AgentNamespace+" get pods", "not heard of for long: %s", listed(stale)))
	}
	for _, version := range sorted(skewed) {
		found = append(found, fail(ReasonChildSkew, "change spec.agent.image of their Layer; an agent may be one minor version before or behind that of its parent",
			"the agent of this tier is %s, that of %s is %s", f.Reported, listed(skewed[version]), version))
	}
	if len(expiring) > 0 {
		found = append(found, warn(ReasonCredentials, "renew what their Layers hand over: docs/clusters.md", "credentials are about to lapse in %s", listed(expiring)))
	}
	if len(static) > 0 {
		found = append(found, warn(ReasonStaticCredential, "replace them, or say static: true in the Layer: docs/credentials.md", "credentials without an end were handed to %s", listed(static)))
	}
	if len(faulty) > 0 {
		found = append(found, warn(ReasonFaultsBelow, "see which in these tiers: cascade why, and in each of them cascade get credentials -A, cascade get statebackups -A",
			"credentials that are not renewed, or a state that is not saved, in %s", listed(faulty)))
	}
	return orWell(found, "%d children, all connected", len(f.Known))
}

// tooFar reports whether the agent of a child is more than one minor version from that of its
// parent. Versions that are no releases are not compared.
func tooFar(parent, child string) bool {
	p, err := semver.NewVersion(parent)
	c, err2 := semver.NewVersion(child)
	if err != nil || err2 != nil {
		return false
	}
	far := int64(p.Minor()) - int64(c.Minor()) //nolint:gosec // minor versions are small
	return p.Major() != c.Major() || far > 1 || far < -1
}

// isNewer reports whether a release is later than another one; false if it is none.
func isNewer(release, than string) bool {
	r, err := semver.NewVersion(release)
	t, err2 := semver.NewVersion(than)
	return err == nil && err2 == nil && r.GreaterThan(t)
}

// most names are in a finding.
const most = 5

// listed names a few, and says how many more there are.
func listed(names []string) string {
	slices.Sort(names)
	if more := len(names) - most; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), more)
	}
	return strings.Join(names, ", ")
}

func are(names []string) string {
	if len(names) == 1 {
		return names[0] + " is"
	}
	return listed(names) + " are"
}

func sorted[V any](of map[string]V) []string {
	var keys []string
	for key := range of {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}

// since says when a Lease was renewed last.
func since(l *Lease, now time.Time) string {
	if l == nil || l.Renewed.IsZero() {
		return ""
	}
	return fmt.Sprintf(", which was renewed %s ago", now.Sub(l.Renewed).Truncate(time.Second))
}

func orUnknown(version string) string {
	if version == "" {
		return "(of a version that it has not reported)"
	}
	return version
}
