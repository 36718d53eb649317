package payload

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/cascade-gitops/cascade/syncer/alert"
)

// Programs that read events: each event is one request.

func post(url string, body any) (Request, error) {
	text, err := json.Marshal(body)
	if err != nil {
		return Request{}, fmt.Errorf("cannot write the message: %w", err)
	}
	return Request{Method: http.MethodPost, URL: url, Body: text, Header: http.Header{"Content-Type": {"application/json"}}}, nil
}

func one(url string, body any, header ...string) ([]Request, error) {
	r, err := post(url, body)
	if err != nil {
		return nil, err
	}
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	return []Request{r}, nil
}

func basic(username, password string) string {
	return "Basic " + base64.StdEncoding.EncodeToString([]byte(username+":"+password))
}

func bearer(token string) string { return "Bearer " + token }

// login adds the token of the Secret, or its user.
func (s *Settings) login(r *Request) {
	switch {
	case s.Token != "":
		r.Header.Set("Authorization", bearer(s.Token))
	case s.Username != "" && s.Password != "":
		r.Header.Set("Authorization", basic(s.Username, s.Password))
	}
}

// generic posts the event as it is.
func generic(s *Settings, m *alert.Message) ([]Request, error) {
	u, err := s.endpoint()
	if err != nil {
		return nil, err
	}
	r, err := post(u.String(), &m.Event)
	if err != nil {
		return nil, err
	}
	r.Header.Set("Gotk-Component", m.Event.ReportingController)
	for name, value := range s.Headers {
		r.Header.Set(name, value)
	}
	return []Request{r}, nil
}

// genericHMAC posts the event with a proof of who sent it.
func genericHMAC(s *Settings, m *alert.Message) ([]Request, error) {
	token, err := s.token()
	if err != nil {
		return nil, err
	}
	all, err := generic(s, m)
	if err != nil {
		return nil, err
	}
	sum := hmac.New(sha256.New, []byte(token))
	sum.Write(all[0].Body)
	all[0].Header.Set("X-Signature", "sha256="+hex.EncodeToString(sum.Sum(nil)))
	return all, nil
}

// alertmanager posts an alert with the labels of Flux. They identify it: what tells of the
// same again makes no other one.
func alertmanager(s *Settings, m *alert.Message) ([]Request, error) {
	u, err := s.endpoint()
	if err != nil {
		return nil, err
	}
	e := &m.Event
	labels, annotations := map[string]string{}, map[string]string{"message": alert.Cut(e.Message, mostMessage)}
	all, summary := pairs(m, mostPairs)
	for _, pair := range all {
		labels[labelName(pair[0])] = pair[1]
	}
	if summary != "" {
		annotations["summary"] = summary
	}
	for name, value := range map[string]string{
		"alertname": "Flux" + e.InvolvedObject.Kind + titled(e.Reason), "severity": e.Severity, "reason": e.Reason,
		"kind": e.InvolvedObject.Kind, "name": e.InvolvedObject.Name, "namespace": e.InvolvedObject.Namespace,
		"reportingcontroller": e.ReportingController,
	} {
		labels[name] = value
	}
	r, err := post(u.String(), []any{map[string]any{
		"status": "firing", "labels": labels, "annotations": annotations, "startsAt": e.Timestamp.UTC().Format(time.RFC3339),
	}})
	if err != nil {
		return nil, err
	}
	s.login(&r)
	return []Request{r}, nil
}

// titled is a reason as Flux has it in the name of an alert: of its letters the first alone is
// a capital.
func titled(reason string) string {
	if reason == "" {
		return ""
	}
	return strings.ToUpper(reason[:1]) + strings.ToLower(reason[1:])
}

// labelName is a name that every version of Alertmanager takes.
func labelName(key string) string {
	name := strings.Map(func(r rune) rune {
		if r == '_' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' {
			return r
		}
		return '_'
	}, key)
	if name == "" || name[0] >= '0' && name[0] <= '9' {
		name = "_" + name
	}
	return name
}

// grafana posts an annotation.
func grafana(s *Settings, m *alert.Message) ([]Request, error) {
	u, err := s.endpoint()
	if err != nil {
		return nil, err
	}
	e := &m.Event
	tags := []string{"flux", e.ReportingController, e.Severity, "kind: " + e.InvolvedObject.Kind, "name: " + e.InvolvedObject.Name, "namespace: " + e.InvolvedObject.Namespace}
	all, summary := pairs(m, mostPairs)
	for _, pair := range all {
		tags = append(tags, pair[0]+": "+pair[1])
	}
	text := m.Title() + "\n" + m.Text(mostMessage)
	if summary != "" {
		text = summary + "\n" + text
	}
	r, err := post(u.String(), map[string]any{"time": e.Timestamp.UnixMilli(), "text": text, "tags": tags})
	if err != nil {
		return nil, err
	}
	s.login(&r)
	return []Request{r}, nil
}

// datadog posts an event with tags.
func datadog(s *Settings, m *alert.Message) ([]Request, error) {
	u, err := s.endpoint()
	if err != nil {
		return nil, err
	}
	token, err := s.token()
	if err != nil {
		return nil, err
	}
	e := &m.Event
	kind := "info"
	if isError(m) {
		kind = "error"
	}
	tags := []string{
		"reporting_controller:" + e.ReportingController, "event_reason:" + e.Reason, "kind:" + e.InvolvedObject.Kind, "name:" + e.InvolvedObject.Name, "namespace:" + e.InvolvedObject.Namespace,
	}
	all, summary := pairs(m, mostPairs)
	for _, pair := range all {
		tags = append(tags, alert.Cut(pair[0]+":"+pair[1], 200)) // Datadog cuts them there
	}
	text := m.Text(3900) // of 4000
	if summary != "" {
		text = alert.Cut(summary+"\n"+text, 3900)
	}
	return one(u.JoinPath("api", "v1", "events").String(), map[string]any{
		"title": alert.Cut(m.Title()+": "+words(e.Reason), 100), "text": text, "tags": tags, "alert_type": kind, "source_type_name": "fluxcd",
		"date_happened": e.Timestamp.Unix(), "aggregation_key": alert.Cut(e.InvolvedObject.Kind+"/"+e.InvolvedObject.Namespace+"/"+e.InvolvedObject.Name, 100),
	}, "DD-API-KEY", token)
}

// githubDispatch starts workflows of a repository.
func githubDispatch(s *Settings, m *alert.Message) ([]Request, error) {
	api, owner, name, err := githubRepository(s)
	if err != nil {
		return nil, err
	}
	token, err := s.token()
	if err != nil {
		return nil, err
	}
	o := &m.Event.InvolvedObject
	return one(api+"/repos/"+owner+"/"+name+"/dispatches",
		map[string]any{"event_type": alert.Cut(o.Kind+"/"+o.Name+"."+o.Namespace, 100), "client_payload": &m.Event},
		"Authorization", bearer(token), "Accept", "application/vnd.github+json", "X-GitHub-Api-Version", githubVersion)
}

// otel posts a span in OTLP's form of JSON. Spans of one revision are of one trace: those
// of sources are its roots, and what was made of them are their children. Who sends needs
// to remember nothing for that: identifiers are digests of Alert and revision.
func otel(s *Settings, m *alert.Message) ([]Request, error) {
	u, err := s.endpoint()
	if err != nil {
		return nil, err
	}
	e := &m.Event
	revision, _ := e.GetRevision()
	about := revision
	if about == "" {
		about = e.InvolvedObject.Kind + "/" + e.InvolvedObject.Namespace + "/" + e.InvolvedObject.Name + "@" + strconv.FormatInt(e.Timestamp.UnixNano(), 10)
	}
	trace := sha256.Sum256([]byte(m.Alert.String() + "\x00" + about))
	at := strconv.FormatInt(e.Timestamp.UnixNano(), 10)
	span := map[string]any{
		"traceId": hex.EncodeToString(trace[:16]), "name": e.InvolvedObject.Kind + "/" + e.InvolvedObject.Name, "kind": 1,
		"startTimeUnixNano": at, "endTimeUnixNano": at, "attributes": attributes(m),
		"events": []any{map[string]any{"timeUnixNano": at, "name": e.Reason, "attributes": []any{attribute("message", alert.Cut(e.Message, mostMessage))}}},
	}
	root := hex.EncodeToString(trace[16:24])
	if isSource(e.InvolvedObject.GroupVersionKind().Group) || revision == "" {
		span["spanId"] = root
	} else {
		own := sha256.Sum256([]byte(strings.Join([]string{root, e.InvolvedObject.Kind, e.InvolvedObject.Namespace, e.InvolvedObject.Name, e.Reason, at}, "\x00")))
		span["spanId"], span["parentSpanId"] = hex.EncodeToString(own[:8]), root
	}
	if isError(m) {
		span["status"] = map[string]any{"code": 2, "message": alert.Cut(e.Message, 200)}
	} else {
		span["status"] = map[string]any{"code": 1}
	}
	r, err := post(u.String(), map[string]any{"resourceSpans": []any{map[string]any{
		"resource":   map[string]any{"attributes": []any{attribute("service.name", e.ReportingController), attribute("service.instance.id", e.ReportingInstance)}},
		"scopeSpans": []any{map[string]any{"scope": map[string]any{"name": "cascade"}, "spans": []any{span}}},
	}}})
	if err != nil {
		return nil, err
	}
	s.login(&r)
	for name, value := range s.Headers {
		r.Header.Set(name, value)
	}
	return []Request{r}, nil
}

func isSource(group string) bool {
	return group == "source.toolkit.fluxcd.io" || group == "source.extensions.fluxcd.io"
}

func attribute(key, value string) any {
	return map[string]any{"key": key, "value": map[string]any{"stringValue": value}}
}

func attributes(m *alert.Message) []any {
	o := &m.Event.InvolvedObject
	all := []any{
		attribute("k8s.object.kind", o.Kind), attribute("k8s.object.name", o.Name), attribute("k8s.namespace.name", o.Namespace), attribute("k8s.object.uid", string(o.UID)),
		attribute("severity", m.Event.Severity), attribute("reason", m.Event.Reason),
	}
	shown, summary := pairs(m, mostPairs)
	for _, pair := range shown {
		all = append(all, attribute(pair[0], pair[1]))
	}
	if summary != "" {
		all = append(all, attribute("summary", summary))
	}
	return all
}

// mostMessage bounds the text of an event for whoever says no bound.
const mostMessage = 15_000
