package endpoint

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
)

// DiscoveryPath is where targets are listed, in the form of Prometheus' HTTP service
// discovery.
const DiscoveryPath = "/sd/children"

// environmentLabel on a Cluster or Child names its environment, as in the fleets of the
// documentation.
const environmentLabel = "environment"

// longest bounds a label that comes from a child or its provider.
const longest = 126

// Group is targets of one form, as Prometheus reads them.
type Group struct {
	Targets []string          `json:"targets"`
	Labels  map[string]string `json:"labels"`
}

// Discovery lists the endpoints of the tier's children, also of those that other replicas
// drive. It is safe for concurrent use.
type Discovery struct {
	Endpoints Endpoints
	// List lists the Children, which are not changed.
	List func(context.Context) ([]v1alpha1.Child, error)
	// Drivers tells at which address each child is scraped: that of the replica which drives
	// it. self is the address that the one who asks reached this one by.
	Drivers func(ctx context.Context, self string) (func(child types.NamespacedName) (address string, ok bool), error)
	// TLS: what is listed is served so.
	TLS bool
	Log logr.Logger
}

// ServeHTTP implements http.Handler.
func (d *Discovery) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet {
		w.Header().Set("Allow", http.MethodGet)
		http.Error(w, "only GET is served", http.StatusMethodNotAllowed)
		return
	}
	groups, err := d.groups(r)
	if err != nil {
		d.Log.Error(err, "cannot list what may be scraped of children")
		// Prometheus keeps the targets that it has.
		http.Error(w, "cannot tell which replica drives which child; see the log of the agent", http.StatusServiceUnavailable)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	_ = json.NewEncoder(w).Encode(groups) // fails only if nobody listens any more
}

func (d *Discovery) groups(r *http.Request) ([]Group, error) {
	children, err := d.List(r.Context())
	if err != nil {
		return nil, fmt.Errorf("cannot list Children: %w", err)
	}
	addresses, err := d.Drivers(r.Context(), r.Host)
	if err != nil {
		return nil, err
	}
	groups := []Group{} // an empty list is one, too
	for i := range children {
		child := &children[i]
		if !scraped(child) {
			continue
		}
		at, ok := addresses(types.NamespacedName{Namespace: child.Namespace, Name: child.Name})
		if !ok {
			return nil, fmt.Errorf("nobody drives Child %s/%s at the moment", child.Namespace, child.Name)
		}
		for _, e := range d.Endpoints {
			if e.Service == "" && child.Status.Report == nil {
				continue // it has no agent that ever reported
			}
			groups = append(groups, d.group(child, e, at))
		}
	}
	slices.SortFunc(groups, func(a, b Group) int {
		return cmp.Compare(a.Labels["__metrics_path__"], b.Labels["__metrics_path__"])
	})
	return groups, nil
}

// scraped reports whether a child is a target: the parent met it, and it is neither the
// tier's own cluster, which Prometheus reaches by itself, nor one that no layer selects, to
// which nobody connects, nor on its way out.
func scraped(child *v1alpha1.Child) bool {
	if c := meta.FindStatusCondition(child.Status.Conditions, v1alpha1.ConnectedCondition); c != nil && c.Reason == v1alpha1.ReasonNoLayer {
		return false
	}
	return child.DeletionTimestamp.IsZero() && !child.Spec.InCluster && child.Status.Identity != nil
}

func (d *Discovery) group(child *v1alpha1.Child, e Endpoint, address string) Group {
	scheme := "http"
	if d.TLS {
		scheme = "https"
	}
	g := Group{Targets: []string{address}, Labels: map[string]string{
		"__scheme__": scheme, "__metrics_path__": ProxyPath + child.Namespace + "/" + child.Name + "/" + e.Name,
	}}
	for name, value := range map[string]string{
		// A label namespace would take the place of what the child says of its objects. One of the version would make
		// all its series others with each upgrade, in which alerts end and begin anew: cascade_child_info has it.
		"child_namespace": child.Namespace, "child": child.Name, "endpoint": e.Name,
		"environment": child.Labels[environmentLabel], "owner": child.Labels[v1alpha1.OwnerLabel],
		"provider": child.Status.Provider, "region": child.Status.Region,
		// All targets have one address: this tells them apart.
		"instance": child.Namespace + "/" + child.Name,
	} {
		if value = bounded(value); value != "" {
			g.Labels[name] = value
		}
	}
	return g
}

func bounded(text string) string {
	text = strings.ToValidUTF8(text, "")
	if len(text) > longest {
		text = strings.ToValidUTF8(text[:longest], "")
	}
	return text
}

// Advertised is the address of an agent for others: that on which it listens, or at the
// host by which it was reached if it listens everywhere.
func Advertised(listen, host string) (string, error) {
	at, port, err := net.SplitHostPort(listen)
	if err != nil {
		return "", fmt.Errorf("cannot tell the address of metrics %q: %w", listen, err)
	}
	if ip := net.ParseIP(at); at != "" && (ip == nil || !ip.IsUnspecified()) {
		return listen, nil
	}
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	return net.JoinHostPort(strings.Trim(host, "[]"), port), nil
}
