package agent

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/cmd/cascade/lease"
	"github.com/cascade-gitops/cascade/deploy"
	"github.com/cascade-gitops/cascade/remote/epoch"
	"github.com/cascade-gitops/cascade/remote/tenure"
)

// layerKind stands for Layers and the children that they are for.
const layerKind = "Layer"

// controllerKinds that a process may reconcile.
func controllerKinds() []string {
	kinds := append(sourceKinds(), kustomizev1.KustomizationKind, helmv2.HelmReleaseKind, layerKind)
	for _, b := range beside() {
		kinds = append(kinds, b.kinds...)
	}
	return kinds
}

// sourceKinds that a process may fetch.
func sourceKinds() []string {
	return []string{
		sourcev1.GitRepositoryKind, sourcev1.OCIRepositoryKind, sourcev1.BucketKind, sourcev1.HelmRepositoryKind, sourcev1.HelmChartKind,
	}
}

// sharding is the part of the tier's objects that this process reconciles: those
// of some kinds, with some labels.
type sharding struct {
	kinds         []string
	shards        int
	selector      string
	allNamespaces bool
}

func (s *sharding) bind(f *pflag.FlagSet) {
	f.StringSliceVar(&s.kinds, "controllers", controllerKinds(),
		"kinds that this process reconciles; sources of other kinds are read by the URL of their artifact")
	f.StringVar(&s.selector, "watch-label-selector", "", "reconcile only sources, Kustomizations, HelmReleases, Layers and Children with these labels")
	f.BoolVar(&s.allNamespaces, "watch-all-namespaces", true,
		"false reconciles only sources, Kustomizations, HelmReleases, Layers and Children of the agent's own namespace; the agent reads the others all the same")
	f.IntVar(&s.shards, "shards", 1,
		"parts of the Children that the replicas of the agent share out among themselves; all replicas need the same number. With 1 the leader drives all Children")
}

func (s *sharding) check() error {
	for _, kind := range s.kinds {
		if !slices.Contains(controllerKinds(), kind) {
			return fmt.Errorf("cannot use --controllers %q: the kinds are %s", kind, strings.Join(controllerKinds(), ", "))
		}
	}
	if err := deploy.CheckControllers(s.kinds); err != nil {
		return err
	}
	switch {
	case s.shards < 1 || s.shards > mostShards:
		return fmt.Errorf("cannot use --shards %d: it must be from 1 to %d", s.shards, mostShards)
	case s.shards > 1 && s.split():
		return errors.New("cannot use --shards with --watch-label-selector or --watch-all-namespaces=false: " +
			"either the replicas share the Children out, or labels and namespaces do")
	}
	return nil
}

func (s *sharding) reconciles(kind string) bool { return slices.Contains(s.kinds, kind) }

// of returns those of kinds that are reconciled.
func (s *sharding) of(kinds ...string) []string {
	return slices.DeleteFunc(kinds, func(kind string) bool { return !s.reconciles(kind) })
}

// reconcilesObjects reports of an object whether its kind is reconciled.
func (s *sharding) reconcilesObjects(scheme *runtime.Scheme) func(client.Object) bool {
	return func(object client.Object) bool {
		gvk, err := apiutil.GVKForObject(object, scheme)
		return err == nil && s.reconciles(gvk.Kind)
	}
}

// mostShards bounds --shards: each is a Lease that every replica looks at.
const mostShards = 64

// split reports whether labels or namespaces share the objects out among agents.
func (s *sharding) split() bool { return s.selector != "" || !s.allNamespaces }

// build makes the function that only the objects with the labels pass, and of the
// agent's namespace, if these are all.
func (s *sharding) build(namespace string) (func(client.Object) bool, error) {
	selector, err := labels.Parse(s.selector)
	if err != nil {
		return nil, fmt.Errorf("cannot use --watch-label-selector %q: %w", s.selector, err)
	}
	return func(object client.Object) bool {
		return (s.allNamespaces || object.GetNamespace() == namespace) && selector.Matches(labels.Set(object.GetLabels()))
	}, nil
}

// tenures makes what this process has of the shards of Children; nil if the leader has
// them all. identity names the process among the replicas.
func (s *sharding) tenures(mgr ctrl.Manager, e *election, l *locks, c client.Client, tier *epoch.Tier, registry prometheus.Registerer) (*tenure.Tenures, error) {
	if s.shards == 1 {
		return nil, nil
	}
	t := tenure.New(tenure.Options{
		Shards: s.shards, Replica: l.identity, Namespace: l.namespace, Client: c,
		Lock: func(name string) tenure.Lock {
			return l.of(name, func(renewed time.Time) map[string]string { return tenure.Labels(s.shards, renewed) })
		},
		Lease: e.lease, Renew: e.renew, Retry: e.retry, Epoch: tier.Begin, Now: l.now, Registry: registry,
	})
	if err := mgr.Add(t); err != nil {
		return nil, fmt.Errorf("cannot set up shards: %w", err)
	}
	return t, nil
}

// lease is the name of the lease that agents with the same part of the objects
// compete for.
func (s *sharding) lease(namespace string) func(name string) string {
	part := s.selector
	if !s.allNamespaces {
		part += " in " + namespace
	}
	return func(name string) string {
		if part == "" {
			return name
		}
		sum := sha256.Sum256([]byte(part))
		return name + "-" + hex.EncodeToString(sum[:4])
	}
}

// LeaderLease is the name of the lease that agents with these arguments of their container compete
// for; empty without an election, and where only Kubernetes knows which part of the objects they have.
func LeaderLease(args []string, namespace string) string {
	s, e := &sharding{}, &election{}
	flags := pflag.NewFlagSet("agent", pflag.ContinueOnError)
	flags.ParseErrorsAllowlist.UnknownFlags = true
	s.bind(flags)
	e.bind(flags)
	if err := flags.Parse(args); err != nil {
		return v1alpha1.LeaderLease // such an agent does not run
	}
	if !e.enabled || strings.Contains(s.selector, "$(") {
		return ""
	}
	return s.lease(namespace)(v1alpha1.LeaderLease)
}

// fluxLeases are those of the controllers of Flux whose work this process does.
func (s *sharding) fluxLeases() []string {
	var names []string
	if slices.ContainsFunc(sourceKinds(), s.reconciles) {
		names = append(names, lease.SourceController)
	}
	if s.reconciles(kustomizev1.KustomizationKind) {
		names = append(names, lease.KustomizeController)
	}
	if s.reconciles(helmv2.HelmReleaseKind) {
		names = append(names, lease.HelmController)
	}
	return names
}

// besideLeases are those of the controllers of Flux that work beside an agent, of whose kinds
// this process reconciles some.
func (s *sharding) besideLeases() []string {
	var names []string
	for _, b := range beside() {
		if b.lease != "" && slices.ContainsFunc(b.kinds, s.reconciles) {
			names = append(names, b.lease)
		}
	}
	return names
}

// leave takes kinds from those that are reconciled.
func (s *sharding) leave(left []leftKind) {
	s.kinds = slices.DeleteFunc(slices.Clone(s.kinds), func(kind string) bool {
		return slices.ContainsFunc(left, func(l leftKind) bool { return l.kind == kind })
	})
}
