package account

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	authzv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/remote/reason"
	"github.com/cascade-gitops/cascade/syncer/source"
)

// authorizer is an API server that answers reviews.
type authorizer struct {
	client.Reader
	user string
	// allows are rights, as "user verb resource namespace/name".
	allows []string
	fails  error
	asked  int
}

func (a *authorizer) Create(_ context.Context, o client.Object, _ ...client.CreateOption) error {
	a.asked++
	review := o.(*authzv1.SelfSubjectAccessReview)
	r := review.Spec.ResourceAttributes
	review.Status.Allowed = slices.Contains(a.allows, strings.Join([]string{a.user, r.Verb, r.Resource + "." + r.Group, r.Namespace + "/" + r.Name}, " "))
	return a.fails
}

type stand struct {
	*Accounts
	server *authorizer
	now    time.Time
}

func newStand(allows ...string) *stand {
	s := &stand{server: &authorizer{allows: allows}, now: time.Date(2026, 9, 1, 12, 0, 0, 0, time.UTC)}
	s.Accounts = &Accounts{Now: func() time.Time { return s.now }, As: func(_ context.Context, user string) (Caller, error) {
		s.server.user = user
		return s.server, nil
	}}
	return s
}

func layerAs(account string) *v1alpha1.Layer {
	l := &v1alpha1.Layer{}
	l.Namespace, l.Name, l.Spec.ServiceAccountName = "team", "app", account
	return l
}

const (
	deployer  = "system:serviceaccount:team:deployer"
	escalates = deployer + " escalate layers.cascade.dev team/app"
	gets      = deployer + " get gitrepositories.source.toolkit.fluxcd.io platform/fleet"
)

func TestOf(t *testing.T) {
	for name, tc := range map[string]struct {
		reason, named, byDefault string
		allows                   []string
		want                     string
	}{
		"None":      {reason: "a tier of one team names no accounts"},
		"Named":     {reason: "the Layer says", named: "deployer", want: deployer},
		"NamedWins": {reason: "the default is for those that name none", named: "deployer", byDefault: "other", want: deployer},
		"Default":   {reason: "a team cannot leave its account out", byDefault: "deployer", want: deployer},
		"Escalates": {reason: "the platform's layers install agents", byDefault: "deployer", allows: []string{escalates}},
		"NamedDoesNot": {
			reason: "whoever names an account wants its bounds", named: "deployer", byDefault: "deployer", allows: []string{escalates}, want: deployer,
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStand(tc.allows...)
			s.Default = tc.byDefault
			got, err := s.Of(t.Context(), layerAs(tc.named))
			if err != nil || got.User() != tc.want || got.Parent() != (tc.want == "") {
				t.Errorf("%s: Of() = %q, %v; want %q", tc.reason, got.User(), err, tc.want)
			}
		})
	}
}

func TestMayUse(t *testing.T) {
	of := func(namespace string) source.Key {
		return source.Key{Kind: "GitRepository", NamespacedName: types.NamespacedName{Namespace: namespace, Name: "fleet"}}
	}
	for name, tc := range map[string]struct {
		reason, account string
		noCross         bool
		allows          []string
		key             source.Key
		want            string
	}{
		"Own":         {reason: "a source of the same namespace is the team's", account: "deployer", key: of("team")},
		"Parent":      {reason: "as Kustomizations do without the flag", key: of("platform")},
		"ParentFlag":  {reason: "as Kustomizations do with the flag", noCross: true, key: of("platform"), want: "can't access 'GitRepository/platform/fleet', cross-namespace references have been blocked"},
		"Account":     {reason: "nobody let it", account: "deployer", key: of("platform"), want: "let it get gitrepositories fleet"},
		"Allowed":     {reason: "the owner of the source let it", account: "deployer", allows: []string{gets}, key: of("platform")},
		"AllowedFlag": {reason: "the flag refuses what nobody allowed", account: "deployer", noCross: true, allows: []string{gets}, key: of("platform")},
		"Another":     {reason: "the right is for one source", account: "deployer", allows: []string{gets}, key: of("other"), want: "let it get"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStand(tc.allows...)
			s.NoCrossNamespaceRefs = tc.noCross
			as := Account{Name: tc.account, Namespace: "team"}
			err := s.MayUse(t.Context(), layerAs(tc.account), as, tc.key)
			if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want) || reason.Of(err) != v1alpha1.ReasonAccessDenied) {
				t.Errorf("%s: MayUse() = %v, want %q", tc.reason, err, tc.want)
			}
		})
	}
}

// TestAnswers: children share what is asked; a right that is taken away, or given, shows
// after seconds; an API server that does not answer takes none away for a while.
func TestAnswers(t *testing.T) {
	s := newStand(gets)
	key := source.Key{Kind: "GitRepository", NamespacedName: types.NamespacedName{Namespace: "platform", Name: "fleet"}}
	use := func() error {
		return s.MayUse(t.Context(), layerAs("deployer"), Account{Namespace: "team", Name: "deployer"}, key)
	}
	for range 1000 {
		if err := use(); err != nil {
			t.Fatal(err)
		}
	}
	if s.server.asked != 1 {
		t.Errorf("%d questions for a thousand children", s.server.asked)
	}
	s.server.allows = nil
	s.now = s.now.Add(holds)
	if err := use(); reason.Of(err) != v1alpha1.ReasonAccessDenied {
		t.Errorf("MayUse() after the right was taken away = %v", err)
	}
	s.server.allows = []string{gets}
	s.now = s.now.Add(holds)
	if err := use(); err != nil {
		t.Errorf("MayUse() after the right was given = %v", err)
	}
	s.server.fails = errors.New("down")
	s.now = s.now.Add(lasts - time.Second)
	if err := use(); err != nil {
		t.Errorf("MayUse() while nobody answers = %v", err)
	}
	s.now = s.now.Add(time.Second)
	if err := use(); err == nil || reason.Of(err) != v1alpha1.ReasonProgressing {
		t.Errorf("MayUse() long after the last answer = %v", err)
	}
}

func TestAdmit(t *testing.T) {
	with := func(account string, change func(*v1alpha1.LayerSpec)) *v1alpha1.Layer {
		l := layerAs(account)
		change(&l.Spec)
		return l
	}
	agent := func(s *v1alpha1.LayerSpec) { s.Agent = &v1alpha1.AgentSpec{} }
	providers := func(s *v1alpha1.LayerSpec) { s.Providers = &v1alpha1.ProvidersSpec{} }
	team := Account{Namespace: "team", Name: "deployer"}
	for name, tc := range map[string]struct {
		reason string
		layer  *v1alpha1.Layer
		as     Account
		want   string
	}{
		"Parent":    {"the platform installs agents", with("", agent), Account{}, ""},
		"Objects":   {"what Git declares is bounded by the account's rights", layerAs("deployer"), team, ""},
		"Agent":     {"its image and arguments are chosen by the team", with("deployer", agent), team, "spec.agent"},
		"Providers": {"their manifests are", with("deployer", providers), team, "spec.providers"},
		"Default":   {"it can be permitted to the layer", with("", agent), team, "escalate layers.cascade.dev app"},
	} {
		t.Run(name, func(t *testing.T) {
			err := Admit(tc.layer, tc.as)
			if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want) || reason.Of(err) != v1alpha1.ReasonInvalidSpec) {
				t.Errorf("%s: Admit() = %v, want %q", tc.reason, err, tc.want)
			}
		})
	}
}

func TestRefused(t *testing.T) {
	team := Account{Namespace: "team", Name: "deployer"}
	no := apierrors.NewForbidden(corev1.Resource("secrets"), "a", errors.New("no"))
	for name, tc := range map[string]struct {
		as   Account
		err  error
		want string
	}{
		"Account": {team, no, v1alpha1.ReasonAccessDenied},
		"Missing": {team, apierrors.NewNotFound(corev1.Resource("secrets"), "a"), v1alpha1.ReasonCredentialMissing},
		"Parent":  {Account{}, no, v1alpha1.ReasonCredentialMissing},
	} {
		if got := reason.Of(Refused(tc.as, v1alpha1.ReasonCredentialMissing, tc.err)); got != tc.want {
			t.Errorf("%s: the reason is %s, want %s", name, got, tc.want)
		}
	}
}
