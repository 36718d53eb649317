// Package payload writes what each type of Provider is sent for a message: requests of
// HTTP, in the form that its service documents.
//
// Invariants:
//
//   - it is pure: settings and a message come in, requests come out;
//   - a body is bounded, however long a message or metadata are, and what a service takes
//     for a command or a mention in a text is written so that it is none;
//   - a type that is not served is refused by name, with what to do instead.
//
// Failure model: an Error has a stable reason. ErrNothing says that there is nothing to
// send, such as a commit status of an event without a commit.
package payload

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	notificationv1beta3 "github.com/fluxcd/notification-controller/api/v1beta3"

	"github.com/cascade-gitops/cascade/syncer/alert"
)

// Reasons of Error.
const (
	// ReasonUnsupported: the type is one that is not served here.
	ReasonUnsupported = "UnsupportedProvider"
	// ReasonInvalid: the Provider or its Secret lacks something, or has it wrong.
	ReasonInvalid = "InvalidProvider"
)

// Error is why a Provider cannot be sent anything. Its text has nothing of a Secret.
type Error struct{ Reason, Text string }

func (e *Error) Error() string { return e.Text }

// ErrNothing is of a message that has nothing for a type of Provider.
var ErrNothing = errors.New("there is nothing to send")

func invalid(format string, args ...any) error {
	return &Error{ReasonInvalid, fmt.Sprintf(format, args...)}
}

// Settings are those of a Provider, with what its Secret says over its spec.
type Settings struct {
	Type, Address, Channel, Username, Password, Token string
	// Headers are added to requests of type generic and generic-hmac, and of otel.
	Headers map[string]string
	// Status is the name of a commit status; see StatusName.
	Status string
}

// Request is one request of HTTP.
type Request struct {
	Method, URL string
	Header      http.Header
	Body        []byte
	// Refused, if not nil, reads an answer for a refusal that its code does not tell, and
	// returns a word for it; or empty. Accepted, if not nil, reports whether an answer with
	// the code of an error is none.
	Refused  func(body []byte) string
	Accepted func(code int, body []byte) bool
}

// kind is what is known of a type of Provider.
type kind struct {
	build func(*Settings, *alert.Message) ([]Request, error)
	// together: people read it, so that events of one cause are one message. Programs get
	// each event.
	together bool
	// status: it is sent commit statuses.
	status bool
	// incident, if not nil, is the key of what a message opens or closes there.
	incident func(*alert.Message) string
}

func kindOf(name string) (kind, bool) {
	switch name {
	case notificationv1beta3.GenericProvider:
		return kind{build: generic}, true
	case notificationv1beta3.GenericHMACProvider:
		return kind{build: genericHMAC}, true
	case notificationv1beta3.SlackProvider:
		return kind{build: slack, together: true}, true
	case notificationv1beta3.MSTeamsProvider:
		return kind{build: teams, together: true}, true
	case notificationv1beta3.DiscordProvider:
		return kind{build: discord, together: true}, true
	case notificationv1beta3.GoogleChatProvider:
		return kind{build: googleChat, together: true}, true
	case notificationv1beta3.TelegramProvider:
		return kind{build: telegram, together: true}, true
	case notificationv1beta3.RocketProvider:
		return kind{build: rocket, together: true}, true
	case notificationv1beta3.WebexProvider:
		return kind{build: webex, together: true}, true
	case notificationv1beta3.LarkProvider:
		return kind{build: lark, together: true}, true
	case notificationv1beta3.AlertManagerProvider:
		return kind{build: alertmanager}, true
	case notificationv1beta3.GrafanaProvider:
		return kind{build: grafana}, true
	case notificationv1beta3.PagerDutyProvider:
		return kind{build: pagerDuty, together: true, incident: pagerDutyKey}, true
	case notificationv1beta3.OpsgenieProvider:
		return kind{build: opsgenie, together: true}, true
	case notificationv1beta3.DataDogProvider:
		return kind{build: datadog}, true
	case notificationv1beta3.OTELProvider:
		return kind{build: otel}, true
	case notificationv1beta3.GitHubDispatchProvider:
		return kind{build: githubDispatch}, true
	case notificationv1beta3.GitHubProvider:
		return kind{build: github, status: true}, true
	case notificationv1beta3.GitLabProvider:
		return kind{build: gitlab, status: true}, true
	case notificationv1beta3.GiteaProvider:
		return kind{build: gitea, status: true}, true
	case notificationv1beta3.BitbucketProvider:
		return kind{build: bitbucket, status: true}, true
	case notificationv1beta3.BitbucketServerProvider:
		return kind{build: bitbucketServer, status: true}, true
	case notificationv1beta3.AzureDevOpsProvider:
		return kind{build: azureDevOps, status: true}, true
	}
	return kind{}, false
}

// Together reports whether a type of Provider is told of many events in one message.
func Together(name string) bool {
	k, _ := kindOf(name)
	return k.together
}

// Incident is the key of the incident that a message opens at a type of Provider, or, if it
// is over, closes; empty if it does neither.
func Incident(name string, m *alert.Message) (key string, over bool) {
	k, _ := kindOf(name)
	over = alert.EndsIncident(&m.Event)
	if k.incident == nil || !over && alert.StateOf(&m.Event) != alert.Failing {
		return "", false
	}
	return k.incident(m), over
}

// IsStatus reports whether a type of Provider is sent commit statuses.
func IsStatus(name string) bool {
	k, _ := kindOf(name)
	return k.status
}

// Supported is an Error for a type that is not served.
func Supported(name string) error {
	if _, ok := kindOf(name); !ok {
		return &Error{ReasonUnsupported, fmt.Sprintf("type %s is not served by this agent: run Flux's notification-controller for it, "+
			"leave Alert and Provider out of --controllers, and let the agent post all events there with --events-addr", name)}
	}
	return nil
}

// Build returns the requests for a message, in the order in which they are sent.
func Build(s Settings, m alert.Message) ([]Request, error) {
	if err := Supported(s.Type); err != nil {
		return nil, err
	}
	k, _ := kindOf(s.Type)
	if m.StatusOnly && !k.status {
		return nil, ErrNothing
	}
	return k.build(&s, &m)
}

// endpoint is the address of a Provider, which must be a URL of HTTP.
func (s *Settings) endpoint() (*url.URL, error) {
	if s.Address == "" {
		return nil, invalid("there is no address: set spec.address, or address in the Secret of spec.secretRef")
	}
	u, err := url.Parse(s.Address)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, invalid("the address is no URL of http or https: correct spec.address, or address in the Secret")
	}
	return u, nil
}

// token is what proves who sends.
func (s *Settings) token() (string, error) {
	if s.Token == "" {
		return "", invalid("there is no token: name a Secret with token in spec.secretRef")
	}
	return s.Token, nil
}

// pairs are the metadata of a message sorted by key, the summary apart, in at most so many.
func pairs(m *alert.Message, most int) (all [][2]string, summary string) {
	for _, key := range keys(m.Event.Metadata) {
		value := m.Event.Metadata[key]
		if key == "summary" {
			summary = alert.Cut(value, mostSummary)
			continue
		}
		if len(all) < most {
			all = append(all, [2]string{alert.Cut(key, mostKey), alert.Cut(value, mostValue)})
		}
	}
	return all, summary
}

// Bounds of what is shown of metadata.
const (
	mostSummary = 1000
	mostKey     = 100
	mostValue   = 1000
	mostPairs   = 20
)

func keys(m map[string]string) []string {
	all := make([]string, 0, len(m))
	for k := range m {
		all = append(all, k)
	}
	slices.Sort(all)
	return all
}

// isError reports whether a message tells of an error.
func isError(m *alert.Message) bool { return m.Event.Severity == "error" }

// words turns a reason into words: ReconciliationSucceeded is reconciliation succeeded.
func words(reason string) string {
	var b strings.Builder
	for i, r := range reason {
		upper := r >= 'A' && r <= 'Z'
		if upper && i > 0 && (reason[i-1] < 'A' || reason[i-1] > 'Z') {
			b.WriteByte(' ')
		}
		b.WriteRune(r)
	}
	return strings.ToLower(b.String())
}
