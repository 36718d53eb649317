package page

import (
	"bytes"
	"embed"
	"fmt"
	"html/template"
	"time"
)

//go:embed assets
var assets embed.FS

// Kind is one that a page needs to read.
type Kind string

// The kinds that pages are made of.
const (
	Children       Kind = "children"
	Layers         Kind = "layers"
	RolloutKind    Kind = "rollouts"
	Kustomizations Kind = "kustomizations"
	HelmReleases   Kind = "helmreleases"
	// OwnReport and Events are left out of a page for whoever may not read them.
	OwnReport Kind = "report"
	Events    Kind = "events"
	// So are these, of which chains of causes are made: an answer without them says so.
	Sources        Kind = "sources"
	ClusterAPI     Kind = "clusters"
	AgentHeartbeat Kind = "leases"
	Artifacts      Kind = "artifacts"
	Images         Kind = "image updates"
	Receivers      Kind = "receivers"
	Credentials    Kind = "credentials"
	Backups        Kind = "statebackups"
	// Notifications are Alerts and Providers, which say nothing of how they are.
	Notifications Kind = "alerts and providers"
)

// Needs are the kinds without which a page is not shown, and those that it is shown
// without.
func Needs(n Name) (required, optional []Kind) {
	// Chains of causes are made of these.
	causes := []Kind{Sources, Artifacts, Images, Receivers, Credentials, Backups, AgentHeartbeat, ClusterAPI}
	switch n {
	case Fleet, Why:
		return []Kind{Children, Layers, RolloutKind, Kustomizations, HelmReleases}, append([]Kind{OwnReport}, causes...)
	case Objects:
		return []Kind{Children, Layers, RolloutKind, Kustomizations, HelmReleases}, append(causes, Notifications)
	case Commits:
		return []Kind{Children, Layers, RolloutKind}, []Kind{OwnReport, AgentHeartbeat}
	case Cluster:
		return []Kind{Children, RolloutKind}, []Kind{OwnReport, AgentHeartbeat, Events}
	case Held:
		return []Kind{Children, Layers, RolloutKind, Kustomizations, HelmReleases}, []Kind{OwnReport}
	case Rollouts:
		return []Kind{RolloutKind}, []Kind{OwnReport}
	}
	return nil, nil
}

// Names are the pages, in the order of the navigation.
func Names() []Name { return []Name{Fleet, Why, Objects, Commits, Rollouts, Held, Cluster} }

// Pages writes pages. It is safe for concurrent use.
type Pages struct {
	template *template.Template
}

// New parses the templates.
func New() (*Pages, error) {
	t, err := template.New("").Funcs(template.FuncMap{
		"matrix": func(caption, what string, m matrix) captioned { return captioned{m, caption, what} },
	}).ParseFS(assets, "assets/*.html")
	if err != nil {
		return nil, fmt.Errorf("cannot parse the pages: %w", err)
	}
	return &Pages{t}, nil
}

// Asset is a file that pages refer to, and its media type; false if there is none.
func Asset(file string) (content []byte, mediaType string, found bool) {
	types := map[string]string{"style.css": "text/css; charset=utf-8", "live.js": "text/javascript; charset=utf-8", "icon.svg": "image/svg+xml"}
	mediaType, found = types[file]
	if !found {
		return nil, "", false
	}
	content, err := assets.ReadFile("assets/" + file)
	return content, mediaType, err == nil
}

// captioned is a matrix with the words around it.
type captioned struct {
	matrix
	Caption, What string
}

// layout is what all pages have.
type layout struct {
	Title, Heading string
	Nav            []navView
	// Live is where changes of the page are told; empty for none.
	Live    string
	Reload  string
	At      moment
	AtText  string
	Missing []string
	// Namespace that the page is bounded to.
	Namespace string
	Page      string
	View      any
}

type navView struct {
	Text, Link string
	Current    bool
}

// titles of the pages.
func titles() map[Name]string {
	return map[Name]string{Fleet: "Fleet", Why: "Why", Objects: "Objects", Commits: "Commits", Rollouts: "Rollouts", Held: "Held", Cluster: "Cluster"}
}

func layoutOf(n Name, q Query) *layout {
	l := &layout{Title: titles()[n], Heading: titles()[n], Page: string(n), Namespace: name(q.Namespace), Reload: link(n, q)}
	for _, other := range Names() {
		if other == Cluster {
			continue // there is none without the path of a cluster
		}
		l.Nav = append(l.Nav, navView{titles()[other], link(other, Query{Namespace: q.Namespace}), other == n})
	}
	return l
}

// Render makes the whole of a page at a time.
func (p *Pages) Render(n Name, f Facts, q Query, now time.Time) ([]byte, error) {
	l := layoutOf(n, q)
	for _, m := range f.Missing {
		l.Missing = append(l.Missing, message(m))
	}
	l.At, l.AtText = moment{Exact: f.At.UTC().Format(time.RFC3339)}, f.At.UTC().Format("2006-01-02 15:04:05 UTC")
	l.Live = "live?of=" + string(n)
	if text := q.Encode(); text != "" {
		l.Live += "&" + text
	}
	switch n {
	case Fleet:
		l.View = fleetOf(f, q, now)
	case Why:
		v := whyOf(f, q, now)
		l.View, l.Heading = v, v.Title
		l.Title = l.Heading
	case Objects:
		l.View = objectsOf(f, q, now)
	case Commits:
		l.View = commitsOf(f, q, now)
	case Cluster:
		v := clusterPageOf(f, q, now)
		l.View, l.Heading = v, v.Path
		if !v.Found {
			l.Heading = "No such cluster"
		}
		l.Title = l.Heading
	case Held:
		l.View = heldOf(f, q, now)
	case Rollouts:
		l.View = rolloutsOf(f, q, now)
	default:
		return nil, fmt.Errorf("cannot show page %q: there is no such page", n)
	}
	return p.execute(l)
}

// Problem is shown instead of a page: its title, and what to do. Neither names anything of
// the tier.
func (p *Pages) Problem(title, text string) ([]byte, error) {
	l := layoutOf("", Query{})
	l.Title, l.Heading, l.Page, l.Reload, l.View = title, title, "problem", "", text
	return p.execute(l)
}

func (p *Pages) execute(l *layout) ([]byte, error) {
	var out bytes.Buffer
	if err := p.template.ExecuteTemplate(&out, "layout", l); err != nil {
		return nil, fmt.Errorf("cannot write page %s: %w", l.Page, err)
	}
	return out.Bytes(), nil
}
