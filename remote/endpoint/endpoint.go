package endpoint

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/remote/access"
	"github.com/cascade-gitops/cascade/remote/link"
)

// Agent is the name of the endpoint that every child's agent has.
const Agent = "agent"

// agentPort is where agents serve metrics, as their Deployment says.
const agentPort = "8080"

// most bounds the endpoints of a child: each is a target for every child.
const most = 16

// Endpoint is something that every child is asked for. The zero Service stands for the
// child's agent.
type Endpoint struct {
	// Name is the last word of the path by which it is scraped.
	Name string
	// Namespace and Service, as [https:]name:port, in the child.
	Namespace, Service string
	// Port of the agent's pod, without a Service.
	Port string
	// Path of the metrics.
	Path string
}

// Endpoints of each child, without two of one name.
type Endpoints []Endpoint

var (
	// form is NAME=NAMESPACE/SERVICE:PORT/PATH, the Service with https: before it or not.
	form = regexp.MustCompile(`^([^=/]+)=([^/]+)/(https:)?([^/:]+):([^/:]+)(/.*)$`)
	// plain are the letters that a path may have: none of them is ever escaped.
	plain = regexp.MustCompile(`^(/[A-Za-z0-9_-][A-Za-z0-9._-]*)+$`)
)

// Parse reads endpoints: the word agent, or agent:PORT where agents serve metrics at another
// port, and NAME=NAMESPACE/[https:]SERVICE:PORT/PATH.
func Parse(texts []string) (Endpoints, error) {
	if len(texts) > most {
		return nil, fmt.Errorf("cannot use %d endpoints: %d are the most", len(texts), most)
	}
	var all Endpoints
	for _, text := range texts {
		e, err := parse(text)
		if err != nil {
			return nil, fmt.Errorf("cannot use endpoint %q: %w", text, err)
		}
		if _, twice := all.Named(e.Name); twice {
			return nil, fmt.Errorf("cannot use endpoint %q: another one has the name %s", text, e.Name)
		}
		all = append(all, e)
	}
	return all, nil
}

func parse(text string) (Endpoint, error) {
	if name, port, ok := strings.Cut(text, ":"); name == Agent {
		if !ok {
			port = agentPort
		}
		if n, err := strconv.Atoi(port); err != nil || len(validation.IsValidPortNum(n)) > 0 {
			return Endpoint{}, fmt.Errorf("%q is not the number of a port", port)
		}
		return Endpoint{Name: Agent, Port: port, Path: "/metrics"}, nil
	}
	m := form.FindStringSubmatch(text)
	if m == nil {
		return Endpoint{}, errors.New("it is neither agent, nor agent:PORT, nor NAME=NAMESPACE/[https:]SERVICE:PORT/PATH")
	}
	e := Endpoint{Name: m[1], Namespace: m[2], Service: m[3] + m[4] + ":" + m[5], Path: m[6]}
	for _, word := range []string{e.Name, e.Namespace, m[4]} {
		if problems := validation.IsDNS1123Label(word); len(problems) > 0 {
			return Endpoint{}, fmt.Errorf("%q is no name: %s", word, problems[0])
		}
	}
	if n, err := strconv.Atoi(m[5]); err == nil && len(validation.IsValidPortNum(n)) > 0 || err != nil && len(validation.IsValidPortName(m[5])) > 0 {
		return Endpoint{}, fmt.Errorf("%q is neither the number nor the name of a port", m[5])
	}
	if !plain.MatchString(e.Path) || path.Clean(e.Path) != e.Path {
		return Endpoint{}, fmt.Errorf("%q is no path of letters, digits, dots, dashes and underscores", e.Path)
	}
	if e.Name == Agent {
		return Endpoint{}, errors.New("agent is the name of the agent's own endpoint")
	}
	return e, nil
}

// Named returns the endpoint of a name.
func (all Endpoints) Named(name string) (Endpoint, bool) {
	at := slices.IndexFunc(all, func(e Endpoint) bool { return e.Name == name })
	if at < 0 {
		return Endpoint{}, false
	}
	return all[at], true
}

// Permission is what the parent needs in each child to scrape all of them.
func (all Endpoints) Permission() (link.Permission, error) {
	var services []access.ServiceProxy
	_, agent := all.Named(Agent)
	for _, e := range all {
		if e.Service != "" {
			services = append(services, access.ServiceProxy{Namespace: e.Namespace, Name: e.Service})
		}
	}
	p := link.Permission{Role: access.ScrapeRole}
	p.Objects, p.Needs = access.Scrape(agent, services)
	text, err := json.Marshal(p.Needs)
	if err != nil {
		return p, fmt.Errorf("cannot encode what the parent needs: %w", err)
	}
	sum := sha256.Sum256(text)
	p.Digest = hex.EncodeToString(sum[:8])
	return p, nil
}

// path of the endpoint at the API server of a child, for the pod of its agent.
func (e Endpoint) path(pod string) string {
	if e.Service == "" {
		return fmt.Sprintf("/api/v1/namespaces/%s/pods/%s:%s/proxy%s", v1alpha1.AgentNamespace, pod, e.Port, e.Path)
	}
	return fmt.Sprintf("/api/v1/namespaces/%s/services/%s/proxy%s", e.Namespace, e.Service, e.Path)
}
