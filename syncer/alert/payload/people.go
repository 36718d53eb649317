package payload

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"html"
	"net/url"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/cascade-gitops/cascade/syncer/alert"
)

// Services where people read: events of one cause are one message.

// sender is the name under which a message is shown.
func (s *Settings) sender(m *alert.Message) string {
	if s.Username != "" {
		return s.Username
	}
	return m.Event.ReportingController
}

// slack posts a message with an attachment.
func slack(s *Settings, m *alert.Message) ([]Request, error) {
	u, err := s.endpoint()
	if err != nil {
		return nil, err
	}
	return slackAt(u.String(), s, m)
}

func slackAt(url string, s *Settings, m *alert.Message) ([]Request, error) {
	color := "good"
	if isError(m) {
		color = "danger"
	}
	fields := []any{}
	all, summary := pairs(m, mostPairs)
	if summary != "" {
		fields = append(fields, map[string]any{"title": "summary", "value": slackText(summary), "short": false})
	}
	for _, pair := range all {
		fields = append(fields, map[string]any{"title": slackText(pair[0]), "value": slackText(pair[1]), "short": false})
	}
	body := map[string]any{
		"username": s.sender(m),
		"attachments": []any{map[string]any{
			"color": color, "author_name": m.Title(), "text": slackText(m.Text(3000)), "mrkdwn_in": []string{"text"}, "fields": fields,
		}},
	}
	if s.Channel != "" {
		body["channel"] = s.Channel
	}
	requests, err := one(url, body)
	if err != nil {
		return nil, err
	}
	if s.Token != "" {
		requests[0].Header.Set("Authorization", bearer(s.Token))
	}
	requests[0].Refused = slackRefusal
	return requests, nil
}

// slackText keeps a text from being a link or a mention.
func slackText(text string) string {
	return strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;").Replace(text)
}

// slackRefusal is the word by which Slack says why a message with status 200 was not
// taken, such as channel_not_found.
func slackRefusal(body []byte) string {
	var answer struct {
		OK    *bool  `json:"ok"`
		Error string `json:"error"`
	}
	if json.Unmarshal(body, &answer) != nil || answer.OK == nil || *answer.OK {
		return ""
	}
	word := strings.Map(func(r rune) rune {
		if r == '_' || r >= 'a' && r <= 'z' {
			return r
		}
		return -1
	}, answer.Error)
	if word == "" {
		word = "error"
	}
	return alert.Cut(word, 60)
}

// discord posts an embed, or Slack's form to the endpoint that takes it.
func discord(s *Settings, m *alert.Message) ([]Request, error) {
	u, err := s.endpoint()
	if err != nil {
		return nil, err
	}
	if strings.HasSuffix(u.Path, "/slack") {
		return slackAt(u.String(), s, m)
	}
	color := 0x2eb886
	if isError(m) {
		color = 0xa30200
	}
	fields := []any{}
	all, summary := pairs(m, mostPairs)
	for _, pair := range all {
		if pair[1] != "" { // Discord takes none that is empty
			fields = append(fields, map[string]any{"name": pair[0], "value": alert.Cut(pair[1], 100), "inline": false})
		}
	}
	return one(u.String(), map[string]any{
		"username": alert.Cut(s.sender(m), 80), "content": summary, "allowed_mentions": map[string]any{"parse": []string{}},
		"embeds": []any{map[string]any{
			"title": alert.Cut(m.Title(), 250), "description": m.Text(1500), "color": color, "fields": fields,
			"timestamp": m.Event.Timestamp.UTC().Format(time.RFC3339),
		}},
	})
}

// teams posts an adaptive card, or the card of the connectors that came before.
func teams(s *Settings, m *alert.Message) ([]Request, error) {
	u, err := s.endpoint()
	if err != nil {
		return nil, err
	}
	all, summary := pairs(m, mostPairs)
	facts := []any{}
	if strings.HasSuffix(u.Hostname(), ".webhook.office.com") {
		color := "0076d7"
		if isError(m) {
			color = "ff0000"
		}
		for _, pair := range all {
			facts = append(facts, map[string]any{"name": pair[0], "value": pair[1]})
		}
		if summary == "" {
			summary = m.Title()
		}
		return one(u.String(), map[string]any{
			"@type": "MessageCard", "@context": "http://schema.org/extensions", "themeColor": color, "summary": summary,
			"sections": []any{map[string]any{"activityTitle": m.Text(5000), "activitySubtitle": m.Title(), "facts": facts}},
		})
	}
	color := "good"
	if isError(m) {
		color = "attention"
	}
	for _, pair := range all {
		facts = append(facts, map[string]any{"title": pair[0], "value": pair[1]})
	}
	text := func(text string, more map[string]any) any {
		block := map[string]any{"type": "TextBlock", "text": text, "wrap": true}
		for k, v := range more {
			block[k] = v
		}
		return block
	}
	body := []any{text(m.Title(), map[string]any{"weight": "bolder", "size": "medium", "color": color})}
	if summary != "" {
		body = append(body, text(summary, nil))
	}
	body = append(body, text(m.Text(5000), nil), map[string]any{"type": "FactSet", "facts": facts})
	return one(u.String(), map[string]any{
		"type": "message",
		"attachments": []any{map[string]any{
			"contentType": "application/vnd.microsoft.card.adaptive",
			"content": map[string]any{
				"$schema": "http://adaptivecards.io/schemas/adaptive-card.json", "type": "AdaptiveCard", "version": "1.4", "body": body,
				"msteams": map[string]any{"width": "Full"},
			},
		}},
	})
}

// googleChat posts a card.
func googleChat(s *Settings, m *alert.Message) ([]Request, error) {
	u, err := s.endpoint()
	if err != nil {
		return nil, err
	}
	all, summary := pairs(m, mostPairs)
	widgets := []any{}
	if summary != "" {
		widgets = append(widgets, map[string]any{"textParagraph": map[string]any{"text": html.EscapeString(summary)}})
	}
	color := "#2eb886"
	if isError(m) {
		color = "#a30200"
	}
	message := `<font color="` + color + `">` + html.EscapeString(m.Event.Reason) + "</font>\n" + html.EscapeString(m.Text(5000))
	widgets = append(widgets, map[string]any{"textParagraph": map[string]any{"text": message}})
	for _, pair := range all {
		widgets = append(widgets, map[string]any{"decoratedText": map[string]any{
			"topLabel": html.EscapeString(pair[0]), "text": html.EscapeString(pair[1]), "wrapText": true,
		}})
	}
	return one(u.String(), map[string]any{"cardsV2": []any{map[string]any{
		"cardId": "event",
		"card": map[string]any{
			"header":   map[string]any{"title": m.Title(), "subtitle": s.sender(m)},
			"sections": []any{map[string]any{"widgets": widgets}},
		},
	}}})
}

// rocket posts a message with an attachment, in the form that Rocket.Chat has from Slack.
func rocket(s *Settings, m *alert.Message) ([]Request, error) {
	u, err := s.endpoint()
	if err != nil {
		return nil, err
	}
	color := "#0076d7"
	if isError(m) {
		color = "#ff0000"
	}
	fields := []any{}
	all, summary := pairs(m, mostPairs)
	if summary != "" {
		fields = append(fields, map[string]any{"title": "summary", "value": unmentioned(summary), "short": false})
	}
	for _, pair := range all {
		fields = append(fields, map[string]any{"title": unmentioned(pair[0]), "value": unmentioned(pair[1]), "short": false})
	}
	body := map[string]any{
		"username": s.sender(m),
		"attachments": []any{map[string]any{
			"color": color, "author_name": m.Title(), "text": unmentioned(m.Text(3000)), "fields": fields,
		}},
	}
	if s.Channel != "" {
		body["channel"] = s.Channel
	}
	return one(u.String(), body)
}

// unmentioned keeps names in a text from being mentions: a space without a width follows a
// sign that begins a word. Within one, as in a revision, it mentions nobody.
func unmentioned(text string) string {
	var b strings.Builder
	before := ' '
	for _, r := range text {
		b.WriteRune(r)
		if r == '@' && !unicode.IsLetter(before) && !unicode.IsDigit(before) {
			b.WriteRune('\u200b')
		}
		before = r
	}
	return b.String()
}

// plain is a message as a text without markup.
func plain(m *alert.Message, most int) string {
	all, summary := pairs(m, mostPairs)
	var b strings.Builder
	if summary != "" {
		b.WriteString(summary + "\n")
	}
	b.WriteString(m.Text(most))
	for _, pair := range all {
		fmt.Fprintf(&b, "\n%s: %s", pair[0], pair[1])
	}
	return b.String()
}

// webex sends a plain text to a room.
func webex(s *Settings, m *alert.Message) ([]Request, error) {
	u, err := s.endpoint()
	if err != nil {
		return nil, err
	}
	token, err := s.token()
	if err != nil {
		return nil, err
	}
	if s.Channel == "" {
		return nil, invalid("there is no room: set spec.channel")
	}
	mark := "\u2139\ufe0f" // information
	if isError(m) {
		mark = "\U0001f6a8" // a police car's light
	}
	return one(u.String(), map[string]any{"roomId": s.Channel, "text": alert.Cut(mark+" "+m.Title()+"\n"+plain(m, 4000), 7000)}, "Authorization", bearer(token))
}

// lark posts a card whose texts are plain: others cannot mention anybody in them.
func lark(s *Settings, m *alert.Message) ([]Request, error) {
	u, err := s.endpoint()
	if err != nil {
		return nil, err
	}
	color := "turquoise"
	if isError(m) {
		color = "red"
	}
	text := func(content string) any { return map[string]any{"tag": "plain_text", "content": content} }
	requests, err := one(u.String(), map[string]any{
		"msg_type": "interactive",
		"card": map[string]any{
			"config":   map[string]any{"wide_screen_mode": true},
			"header":   map[string]any{"title": text(m.Title()), "template": color},
			"elements": []any{map[string]any{"tag": "div", "text": text(alert.Cut(plain(m, 5000), 20_000))}},
		},
	})
	if err != nil {
		return nil, err
	}
	requests[0].Refused = larkRefusal
	return requests, nil
}

// larkRefusal is the code by which Lark says why a message with status 200 was not taken.
func larkRefusal(body []byte) string {
	var answer struct {
		Code int `json:"code"`
	}
	if json.Unmarshal(body, &answer) != nil || answer.Code == 0 {
		return ""
	}
	return "code " + strconv.Itoa(answer.Code)
}

// telegramAddress is where Telegram is, without an address.
const telegramAddress = "https://api.telegram.org"

// telegram sends a plain text: what others wrote cannot be markup.
func telegram(s *Settings, m *alert.Message) ([]Request, error) {
	token, err := s.token()
	if err != nil {
		return nil, err
	}
	if s.Channel == "" {
		return nil, invalid("there is no chat: set spec.channel")
	}
	if s.Address == "" {
		s.Address = telegramAddress
	}
	u, err := s.endpoint()
	if err != nil {
		return nil, err
	}
	mark := "\u2139\ufe0f" // information
	if isError(m) {
		mark = "\U0001f6a8" // a police car's light
	}
	all, summary := pairs(m, mostPairs)
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s\n", mark, m.Title())
	if summary != "" {
		b.WriteString(summary + "\n")
	}
	b.WriteString(m.Text(2000))
	for _, pair := range all {
		fmt.Fprintf(&b, "\n%s: %s", pair[0], pair[1])
	}
	chat, topic, _ := strings.Cut(s.Channel, ":")
	content := map[string]any{"chat_id": chat, "text": alert.Cut(b.String(), 4000)}
	if topic != "" {
		content["message_thread_id"] = topic
	}
	return one(u.JoinPath("bot"+url.PathEscape(token), "sendMessage").String(), content)
}

// pagerDutyKey is that of an incident: each object has one, for as long as it fails, and one more for what may
// be wrong beside that.
func pagerDutyKey(m *alert.Message) string {
	o, key := &m.Event.InvolvedObject, ""
	if key = string(o.UID); key == "" {
		sum := sha256.Sum256([]byte(o.Kind + "/" + o.Namespace + "/" + o.Name))
		key = hex.EncodeToString(sum[:])
	}
	if aspect := alert.AspectOf(&m.Event); aspect != "" {
		key += "/" + aspect
	}
	return key
}

// pagerDuty triggers an incident for an error. An incident about many is that of the first
// one. What succeeds resolves that of the same object, with those of others that are told
// along, and is a change in the timeline.
func pagerDuty(s *Settings, m *alert.Message) ([]Request, error) {
	u, err := s.endpoint()
	if err != nil {
		return nil, err
	}
	if s.Channel == "" {
		return nil, invalid("there is no routing key: set spec.channel")
	}
	e := &m.Event
	base := u.Scheme + "://" + u.Host
	key := pagerDutyKey(m)
	details := map[string]any{"message": m.Text(5000)}
	all, summary := pairs(m, mostPairs)
	for _, pair := range all {
		details[pair[0]] = pair[1]
	}
	if summary == "" {
		summary = m.Title() + ": " + words(e.Reason)
	}
	if n := len(m.Over); n > 1 {
		summary = fmt.Sprintf("%s, and %d more", alert.Cut(summary, 900), n-1)
	}
	content := map[string]any{
		"summary": alert.Cut(summary, 1000), "source": "Flux " + e.ReportingController, "timestamp": e.Timestamp.UTC().Format(time.RFC3339), "custom_details": details,
	}
	if isError(m) {
		content["severity"], content["component"], content["group"], content["class"] = "error", e.InvolvedObject.Name, e.InvolvedObject.Kind, e.Reason
		return one(base+"/v2/enqueue", map[string]any{"routing_key": s.Channel, "event_action": "trigger", "dedup_key": key, "payload": content})
	}
	change, err := post(base+"/v2/change/enqueue", map[string]any{"routing_key": s.Channel, "payload": content})
	if err != nil {
		return nil, err
	}
	if !alert.EndsIncident(e) {
		return []Request{change}, nil
	}
	over := m.Over
	if len(over) == 0 {
		over = []string{key}
	}
	requests := make([]Request, 0, len(over)+1)
	for _, key := range over {
		resolve, err := post(base+"/v2/enqueue", map[string]any{"routing_key": s.Channel, "event_action": "resolve", "dedup_key": key})
		if err != nil {
			return nil, err
		}
		requests = append(requests, resolve)
	}
	return append(requests, change), nil
}

// opsgenie creates an alert. It has no alias: nothing closes alerts, and an open one would
// swallow all that follow under the same alias, for which nobody would be paged.
func opsgenie(s *Settings, m *alert.Message) ([]Request, error) {
	u, err := s.endpoint()
	if err != nil {
		return nil, err
	}
	token, err := s.token()
	if err != nil {
		return nil, err
	}
	e := &m.Event
	all, summary := pairs(m, mostPairs)
	details := map[string]string{"severity": e.Severity}
	for _, pair := range all {
		details[pair[0]] = pair[1]
	}
	if summary != "" {
		details["summary"] = summary
	}
	return one(u.String(), map[string]any{
		"message": alert.Cut(m.Title()+": "+words(e.Reason), 130), "description": m.Text(mostMessage), "details": details, "source": "Flux " + e.ReportingController,
	}, "Authorization", "GenieKey "+token)
}
