package page

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	autov1 "github.com/fluxcd/image-automation-controller/api/v1"
	imagev1 "github.com/fluxcd/image-reflector-controller/api/v1"
	notificationv1 "github.com/fluxcd/notification-controller/api/v1"
	notificationv1beta3 "github.com/fluxcd/notification-controller/api/v1beta3"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	generatorv1 "github.com/fluxcd/source-watcher/api/v2/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/cmd/cascade/cause"
)

// objectsPage lists what this tier syncs and what it is run with, but for clusters, Rollouts
// and what is held, which have pages of their own.
type objectsPage struct {
	Filters filterView
	Rows    []objectView
	Paging  paging
}

type objectView struct {
	Name, Kind         string
	State, Class, Sign string
	Since              moment
	Reason, Message    string
	Details            []detailView
	Why                linkView
}

// detailView is a text, a revision or the like, and a time, each of which may be missing.
type detailView struct {
	Code, Text string
	When       *moment
}

// States of objects besides those of causes.
const (
	objectReady = cause.State("Ready")
	// objectSilent: its kind does not say how it is.
	objectSilent = cause.State("No status")
)

// listedObject is one on the way to its row.
type listedObject struct {
	cause.Object
	of    client.Object
	state cause.State
	// link is what is said of it, nil if it is as it should be.
	link *cause.Link
	// conditions of its kind.
	conditions []metav1.Condition
}

// objectsOf shows what is not as it should be first, in the words of page Why.
func objectsOf(f Facts, q Query, now time.Time) *objectsPage {
	findings := explain(f, now).Findings()
	all := f.objects()
	for i := range all {
		all[i].judge(findings)
	}
	slices.SortStableFunc(all, func(a, b listedObject) int {
		return cmp.Or(cmp.Compare(a.rank(), b.rank()), strings.Compare(a.Kind, b.Kind), strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
	})
	v := &objectsPage{Filters: objectFilters(all, q)}
	chosen := slices.DeleteFunc(all, func(o listedObject) bool { return !q.selectsObject(&o) })
	shown, p := part(chosen, q.Page, maxRows, q.at(Objects))
	v.Paging = p
	for i := range shown {
		v.Rows = append(v.Rows, shown[i].view(q, now))
	}
	return v
}

// objects that the page lists.
func (f *Facts) objects() []listedObject {
	var all []listedObject
	add := func(kind string, o client.Object, conditions []metav1.Condition) {
		all = append(all, listedObject{Object: cause.Object{Kind: kind, Namespace: o.GetNamespace(), Name: o.GetName()}, of: o, conditions: conditions})
	}
	for _, list := range [][]client.Object{f.Sources, f.Others, f.Notifications} {
		for _, o := range list {
			var conditions []metav1.Condition
			if says, ok := o.(interface{ GetConditions() []metav1.Condition }); ok {
				conditions = says.GetConditions()
			}
			if kind := kindOfObject(o); kind != "" {
				add(kind, o, conditions)
			}
		}
	}
	for i := range f.Kustomizations {
		add("Kustomization", &f.Kustomizations[i], f.Kustomizations[i].Status.Conditions)
	}
	for i := range f.HelmReleases {
		add("HelmRelease", &f.HelmReleases[i], f.HelmReleases[i].Status.Conditions)
	}
	for i := range f.Layers {
		add("Layer", &f.Layers[i], f.Layers[i].Status.Conditions)
	}
	for i := range f.Credentials {
		add("Credential", &f.Credentials[i], f.Credentials[i].Status.Conditions)
	}
	for i := range f.Backups {
		add("StateBackup", &f.Backups[i], f.Backups[i].Status.Conditions)
	}
	return all
}

// kindOfObject is the kind of a source or another object of Flux; empty for what is none.
func kindOfObject(o client.Object) string {
	switch o.(type) {
	case *sourcev1.GitRepository:
		return sourcev1.GitRepositoryKind
	case *sourcev1.OCIRepository:
		return sourcev1.OCIRepositoryKind
	case *sourcev1.Bucket:
		return sourcev1.BucketKind
	case *sourcev1.HelmRepository:
		return sourcev1.HelmRepositoryKind
	case *sourcev1.HelmChart:
		return sourcev1.HelmChartKind
	case *sourcev1.ExternalArtifact:
		return sourcev1.ExternalArtifactKind
	case *generatorv1.ArtifactGenerator:
		return generatorv1.ArtifactGeneratorKind
	case *imagev1.ImageRepository:
		return imagev1.ImageRepositoryKind
	case *imagev1.ImagePolicy:
		return imagev1.ImagePolicyKind
	case *autov1.ImageUpdateAutomation:
		return autov1.ImageUpdateAutomationKind
	case *notificationv1.Receiver:
		return notificationv1.ReceiverKind
	case *notificationv1beta3.Alert:
		return notificationv1beta3.AlertKind
	case *notificationv1beta3.Provider:
		return notificationv1beta3.ProviderKind
	}
	return ""
}

// judge finds out how an object stands.
func (o *listedObject) judge(findings map[cause.Object][]cause.Link) {
	o.state = objectReady
	switch of := o.of.(type) {
	case *notificationv1beta3.Alert:
		o.state = silent(of.Spec.Suspend)
	case *notificationv1beta3.Provider:
		o.state = silent(of.Spec.Suspend)
	case *sourcev1.HelmRepository:
		if of.Spec.Type == sourcev1.HelmRepositoryTypeOCI {
			o.state = objectSilent
		}
	}
	for i := range findings[o.Object] {
		if l := &findings[o.Object][i]; o.link == nil || stateRank(l.State) < stateRank(o.link.State) {
			o.link, o.state = l, l.State
		}
	}
}

// silent is the state of an object whose kind does not say how it is.
func silent(suspended bool) cause.State {
	if suspended {
		return cause.Suspended
	}
	return objectSilent
}

// stateRank orders states, the worst first.
func stateRank(s cause.State) int { return slices.Index(objectStates(), s) }

// objectStates in the order in which a person looks for them.
func objectStates() []cause.State {
	return []cause.State{cause.Failing, cause.Held, cause.Progressing, cause.Suspended, objectReady, objectSilent}
}

func (o *listedObject) rank() int { return stateRank(o.state) }

// selectsObject reports whether an object is among those that a query asks for.
func (q Query) selectsObject(o *listedObject) bool {
	if q.Kind != "" && q.Kind != o.Kind || q.State != "" && q.State != string(o.state) {
		return false
	}
	if q.Search == "" {
		return true
	}
	texts := []string{o.Object.String()}
	if o.link != nil {
		texts = append(texts, o.link.Reason, o.link.Message)
	}
	return slices.ContainsFunc(texts, func(text string) bool { return strings.Contains(strings.ToLower(text), strings.ToLower(q.Search)) })
}

// objectFilters has the kinds and states that there are.
func objectFilters(all []listedObject, q Query) filterView {
	v := filterView{Query: q, Clear: link(Objects, Query{Namespace: q.Namespace}), Active: q.Search != "" || q.Kind != "" || q.State != ""}
	column := func(label, key, chosen string, known []string, of func(o *listedObject) string) {
		counts := map[string]int{}
		for i := range all {
			counts[of(&all[i])]++
		}
		s := selectView{Label: label, Name: key, Options: []optionView{{Text: "any"}}}
		for _, n := range known {
			if counts[n] > 0 || n == chosen {
				s.Options = append(s.Options, optionView{Value: n, Text: fmt.Sprintf("%s (%d)", name(n), counts[n]), Chosen: n == chosen})
			}
		}
		v.Selects = append(v.Selects, s)
	}
	kinds, states := map[string]int{}, make([]string, 0, len(objectStates()))
	for i := range all {
		kinds[all[i].Kind]++
	}
	if q.Kind != "" {
		kinds[q.Kind] += 0 // it is a choice, whether there are any or not
	}
	names, _ := mostOf(kinds, len(kinds))
	for _, s := range objectStates() {
		states = append(states, string(s))
	}
	column("Kind", "kind", q.Kind, names, func(o *listedObject) string { return o.Kind })
	column("State", "state", q.State, states, func(o *listedObject) string { return string(o.state) })
	return v
}

// view of an object.
func (o *listedObject) view(q Query, now time.Time) objectView {
	v := objectView{Name: name(o.Namespace + "/" + o.Name), Kind: o.Kind, State: string(o.state), Since: moment{Age: "–"}}
	switch o.state {
	case objectReady:
		v.Class, v.Sign = stateReady.Class(), stateReady.Sign()
	case objectSilent:
		v.Class, v.Sign = "none", "–"
	default:
		v.Class, v.Sign = marked(o.state)
	}
	if o.link != nil {
		v.Reason, v.Message, v.Why = name(o.link.Reason), message(o.link.Message), whyObject("", o.Object.String(), q)
		if o.link.Since != nil {
			v.Since = momentOf(*o.link.Since, now)
		}
	} else if at := slices.IndexFunc(o.conditions, func(c metav1.Condition) bool { return c.Type == v1alpha1.ReadyCondition }); at >= 0 {
		v.Since = momentOf(o.conditions[at].LastTransitionTime, now)
	}
	v.Details = o.details(now)
	return v
}
