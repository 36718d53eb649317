package payload

import (
	"crypto/sha1" //nolint:gosec // a name of at most 40 characters, as Bitbucket wants it
	"encoding/hex"
	"net/url"
	"strings"

	eventv1 "github.com/fluxcd/pkg/apis/event/v1beta1"

	"github.com/cascade-gitops/cascade/syncer/alert"
)

// Commit statuses of Git servers: each object has one of its own at a commit.

const (
	// githubVersion is the version of GitHub's API that requests are written for.
	githubVersion = "2022-11-28"
	// mostStatusName is what GitLab and GitHub take of a name.
	mostStatusName = 255
)

// StatusName is the name of the commit status of a message, without an expression of the
// Provider: its object, and a part of the Provider's UID, which keeps clusters apart.
func StatusName(m *alert.Message, providerUID string) string {
	uid, _, _ := strings.Cut(providerUID, "-")
	o := &m.Event.InvolvedObject
	return strings.ToLower(o.Kind) + "/" + o.Name + "/" + uid
}

// status is what is said of a commit.
type status struct{ commit, name, text, state string }

// states are the words of one server.
type states struct{ success, failure, pending string }

// statusOf finds the commit of a message. What names none has nothing to send.
func statusOf(s *Settings, m *alert.Message, is states) (status, error) {
	commit := commitOf(&m.Event)
	if commit == "" {
		return status{}, ErrNothing
	}
	out := status{commit: commit, name: alert.Cut(s.Status, mostStatusName), text: words(m.Event.Reason), state: is.success}
	if out.name == "" {
		return status{}, invalid("the commit status has no name: correct spec.commitStatusExpr")
	}
	switch alert.StatusOf(&m.Event) {
	case alert.Unchanged:
		return status{}, ErrNothing
	case alert.Failing:
		out.state = is.failure
	case alert.UnderWay:
		out.state = is.pending
	}
	if counts := countsOf(m.Event.Metadata); counts != "" {
		out.text += ", " + counts
	}
	out.text = alert.Cut(out.text, 140)
	return out, nil
}

// countsOf tells on how many children of a layer or clusters of a Rollout a commit is.
func countsOf(metadata map[string]string) string {
	total, current := metadata["children"], metadata["current"]
	what := " children"
	if total == "" {
		total, what = metadata["clusters"], " clusters"
	}
	if total == "" || current == "" {
		return ""
	}
	text := current + " of " + total + what
	if failed := metadata["failed"]; failed != "" && failed != "0" {
		text += ", " + failed + " failed"
	}
	return text
}

// commitOf is the hash of the commit that an event is about. A digest that is no commit,
// such as that of an image, is none.
func commitOf(e *eventv1.Event) string {
	if commit := hash(e.Metadata[eventv1.MetaCommitKey]); commit != "" {
		return commit
	}
	if commit := hash(e.Metadata[eventv1.MetaOriginRevisionKey]); commit != "" {
		return commit
	}
	revision := e.Metadata[eventv1.MetaRevisionKey]
	if strings.Contains(revision, "sha256:") {
		return "" // of what is packed
	}
	return hash(revision)
}

// hash is the end of a revision: main@sha1:<hash>, main/<hash> or <hash>.
func hash(revision string) string {
	if i := strings.LastIndexAny(revision, ":/@"); i >= 0 {
		revision = revision[i+1:]
	}
	if len(revision) != 40 && len(revision) != 64 {
		return ""
	}
	if _, err := hex.DecodeString(revision); err != nil {
		return ""
	}
	return strings.ToLower(revision)
}

// repository is the host and the path of an address, without .git. SSH forms name the
// same repository.
func repository(s *Settings) (base *url.URL, parts []string, err error) {
	address := s.Address
	if host, path, ok := strings.Cut(address, ":"); ok && !strings.Contains(address, "://") {
		_, host, _ = cutLast(host, "@")
		address = "https://" + host + "/" + path
	}
	u, err := url.Parse(address)
	if err != nil || u.Host == "" {
		return nil, nil, invalid("the address is no URL of a repository: correct spec.address")
	}
	if u.Scheme == "ssh" {
		u.Scheme, u.Host = "https", u.Hostname()
	}
	if u.Scheme != "http" && u.Scheme != "https" {
		return nil, nil, invalid("the address is no URL of a repository: correct spec.address")
	}
	for _, part := range strings.Split(strings.Trim(strings.TrimSuffix(u.Path, ".git"), "/"), "/") {
		if part == "" || part == "." || part == ".." {
			return nil, nil, invalid("the address names no repository: correct spec.address")
		}
		parts = append(parts, part)
	}
	return &url.URL{Scheme: u.Scheme, Host: u.Host}, parts, nil
}

func cutLast(text, at string) (before, after string, found bool) {
	if i := strings.LastIndex(text, at); i >= 0 {
		return text[:i], text[i+len(at):], true
	}
	return "", text, false
}

func escaped(parts ...string) string {
	out := make([]string, len(parts))
	for i, part := range parts {
		out[i] = url.PathEscape(part)
	}
	return strings.Join(out, "/")
}

// ownerAndName splits a path into what is before the repository's owner, the owner and the
// repository.
func ownerAndName(parts []string) (prefix, owner, name string, err error) {
	if len(parts) < 2 {
		return "", "", "", invalid("the address names no owner and repository: correct spec.address")
	}
	n := len(parts)
	if n > 2 {
		prefix = "/" + escaped(parts[:n-2]...)
	}
	return prefix, url.PathEscape(parts[n-2]), url.PathEscape(parts[n-1]), nil
}

// githubRepository is the API of a GitHub, and a repository of it.
func githubRepository(s *Settings) (api, owner, name string, err error) {
	base, parts, err := repository(s)
	if err != nil {
		return "", "", "", err
	}
	if len(parts) != 2 {
		return "", "", "", invalid("the address is not that of a repository of GitHub: correct spec.address")
	}
	api = base.String() + "/api/v3"
	if base.Hostname() == "github.com" {
		api = "https://api.github.com"
	}
	return api, url.PathEscape(parts[0]), url.PathEscape(parts[1]), nil
}

func github(s *Settings, m *alert.Message) ([]Request, error) {
	is, err := statusOf(s, m, states{"success", "failure", "pending"})
	if err != nil {
		return nil, err
	}
	token, err := s.token()
	if err != nil {
		return nil, err
	}
	api, owner, name, err := githubRepository(s)
	if err != nil {
		return nil, err
	}
	return one(api+"/repos/"+owner+"/"+name+"/statuses/"+is.commit,
		map[string]any{"state": is.state, "context": is.name, "description": is.text},
		"Authorization", bearer(token), "Accept", "application/vnd.github+json", "X-GitHub-Api-Version", githubVersion)
}

// statusWithToken is a status of a commit, the token it is written with, and the repository.
func statusWithToken(s *Settings, m *alert.Message, of states) (is status, token string, base *url.URL, parts []string, err error) {
	if is, err = statusOf(s, m, of); err != nil {
		return is, "", nil, nil, err
	}
	if token, err = s.token(); err != nil {
		return is, "", nil, nil, err
	}
	base, parts, err = repository(s)
	return is, token, base, parts, err
}

func gitlab(s *Settings, m *alert.Message) ([]Request, error) {
	is, token, base, parts, err := statusWithToken(s, m, states{"success", "failed", "running"})
	if err != nil {
		return nil, err
	}
	all, err := one(base.String()+"/api/v4/projects/"+url.PathEscape(strings.Join(parts, "/"))+"/statuses/"+is.commit,
		map[string]any{"state": is.state, "name": is.name, "description": is.text}, "PRIVATE-TOKEN", token)
	if err != nil {
		return nil, err
	}
	// GitLab refuses a state that the status has already.
	all[0].Accepted = func(code int, body []byte) bool {
		return code == 400 && strings.Contains(string(body), "Cannot transition status")
	}
	return all, nil
}

func gitea(s *Settings, m *alert.Message) ([]Request, error) {
	is, token, base, parts, err := statusWithToken(s, m, states{"success", "failure", "pending"})
	if err != nil {
		return nil, err
	}
	prefix, owner, name, err := ownerAndName(parts)
	if err != nil {
		return nil, err
	}
	return one(base.String()+prefix+"/api/v1/repos/"+owner+"/"+name+"/statuses/"+is.commit,
		map[string]any{"state": is.state, "context": is.name, "description": is.text}, "Authorization", "token "+token)
}

// shortKey is a name in at most 40 characters.
func shortKey(name string) string {
	sum := sha1.Sum([]byte(name)) //nolint:gosec // it is a name
	return hex.EncodeToString(sum[:])
}

func bitbucket(s *Settings, m *alert.Message) ([]Request, error) {
	is, token, base, parts, err := statusWithToken(s, m, states{"SUCCESSFUL", "FAILED", "INPROGRESS"})
	if err != nil {
		return nil, err
	}
	username, password, ok := strings.Cut(token, ":")
	if !ok {
		return nil, invalid("the token is not of the form <username>:<app-password>: correct it in the Secret")
	}
	if len(parts) != 2 {
		return nil, invalid("the address is not that of a repository of Bitbucket: correct spec.address")
	}
	api := base.String()
	if base.Hostname() == "bitbucket.org" {
		api = "https://api.bitbucket.org"
	}
	return one(api+"/2.0/repositories/"+escaped(parts...)+"/commit/"+is.commit+"/statuses/build",
		map[string]any{
			"key": shortKey(is.name), "state": is.state, "name": is.name, "description": is.text, "url": base.String() + "/" + escaped(parts...) + "/commits/" + is.commit,
		}, "Authorization", basic(username, password))
}

func bitbucketServer(s *Settings, m *alert.Message) ([]Request, error) {
	is, err := statusOf(s, m, states{"SUCCESSFUL", "FAILED", "INPROGRESS"})
	if err != nil {
		return nil, err
	}
	if s.Token == "" && (s.Username == "" || s.Password == "") {
		return nil, invalid("there is no token, and no username with password: name a Secret with them in spec.secretRef")
	}
	base, parts, err := repository(s)
	if err != nil {
		return nil, err
	}
	n := len(parts)
	if n < 3 || parts[n-3] != "scm" || !strings.HasPrefix(s.Address, "http") {
		return nil, invalid("the address is not the HTTPS clone URL of a repository, https://host/scm/<project>/<repository>.git: correct spec.address")
	}
	prefix := ""
	if n > 3 {
		prefix = "/" + escaped(parts[:n-3]...)
	}
	where := base.String() + prefix
	all, err := one(where+"/rest/api/latest/projects/"+url.PathEscape(parts[n-2])+"/repos/"+url.PathEscape(parts[n-1])+"/commits/"+is.commit+"/builds",
		map[string]any{"key": shortKey(is.name), "state": is.state, "name": is.name, "description": is.text, "url": where}, "X-Atlassian-Token", "no-check")
	if err != nil {
		return nil, err
	}
	s.login(&all[0])
	return all, nil
}

func azureDevOps(s *Settings, m *alert.Message) ([]Request, error) {
	is, token, base, parts, err := statusWithToken(s, m, states{"succeeded", "failed", "pending"})
	if err != nil {
		return nil, err
	}
	n := len(parts)
	switch {
	case n >= 4 && parts[n-2] == "_git":
	case n == 4 && parts[0] == "v3": // of SSH: v3/organization/project/repository
		base.Host = strings.TrimPrefix(base.Host, "ssh.")
		parts = []string{parts[1], parts[2], "_git", parts[3]}
	default:
		return nil, invalid("the address is not that of a repository, https://dev.azure.com/<organization>/<project>/_git/<repository>: correct spec.address")
	}
	n = len(parts)
	return one(base.String()+"/"+escaped(parts[:n-2]...)+"/_apis/git/repositories/"+url.PathEscape(parts[n-1])+"/commits/"+is.commit+"/statuses?api-version=7.1",
		map[string]any{"state": is.state, "description": is.text, "context": map[string]any{"genre": "fluxcd", "name": is.name}}, "Authorization", basic("", token))
}
