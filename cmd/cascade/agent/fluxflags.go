package agent

import (
	"fmt"
	"slices"
	"strings"

	"github.com/go-logr/logr"
	"github.com/spf13/pflag"
)

// fluxFlags are those flags of Flux's controllers that the agent does not follow. A
// Deployment may have them in its arguments: each is accepted where it means nothing here,
// or refused by its name with what to do instead. docs/flux-compatibility.md lists them.
type fluxFlags struct{ flags []*fluxFlag }

// fluxFlag is a flag of Flux that takes any value, and remembers whether it was given.
type fluxFlag struct {
	name string
	// fits are values with which the agent agrees; nil are all.
	fits []string
	// why it has no effect, or why other values are refused and what to do.
	why string
	// plain needs no value: --name is --name=true.
	plain bool

	value string
	given bool
}

var _ pflag.Value = (*fluxFlag)(nil)

// String implements pflag.Value.
func (f *fluxFlag) String() string { return f.value }

// Set implements pflag.Value.
func (f *fluxFlag) Set(value string) error {
	f.value, f.given = value, true
	return nil
}

// Type implements pflag.Value.
func (f *fluxFlag) Type() string { return "string" }

// refused reports whether the agent cannot do what the value says.
func (f *fluxFlag) refused() bool {
	return f.given && f.fits != nil && !slices.Contains(f.fits, strings.ToLower(f.value))
}

// notFollowed lists the flags of Flux 2.9's controllers that mean nothing here, or of which
// only some values do.
func notFollowed() []*fluxFlag {
	const (
		sha256   = "the digests of artifacts and snapshots are of SHA-256; leave the flag out"
		notifier = "cascade_receiver_requests_total and cascade_events_received_total count requests by what became of them; leave the flag out"
		fair     = "requests are not limited here: API servers share their capacity fairly by themselves"
		cached   = "indexes of Helm repositories are kept on disk and asked for by their entity tag"
		tags     = "lists of tags are kept in one compressed file each, below --snapshot-path or --storage-path"
		memory   = "what needs memory without a bound runs in workers with limits; see --worker-memory"
	)
	off, on := []string{"false"}, []string{"true"}
	return []*fluxFlag{
		{name: "artifact-digest-algo", fits: []string{"sha256"}, why: sha256},
		{name: "artifact-retention-records", why: "of each source the artifact is kept, and the one before"},
		{name: "artifact-retention-ttl", why: "of each source the artifact is kept, and the one before"},
		{name: "export-http-path-metrics", plain: true, fits: off, why: notifier},
		{name: "helm-cache-max-size", why: cached},
		{name: "helm-cache-purge-interval", why: cached},
		{name: "helm-cache-ttl", why: cached},
		{name: "http-retry", why: "a fetch that fails is tried again with its object, after spec.retryInterval or --requeue-dependency"},
		{name: "http-timeout", why: "a server has 30 s for each part of its answer, and 5 minutes for all of it"},
		{name: "insecure-kubeconfig-exec", plain: true, fits: off, why: "a kubeconfig must not start programs in the agent; use a token, a client certificate or spec.kubeConfig.configMapRef"},
		{name: "insecure-kubeconfig-tls", plain: true, fits: off, why: "who the API server is must be verified; put its CA into the kubeconfig"},
		{name: "kube-api-burst", why: fair},
		{name: "kube-api-qps", why: fair},
		{name: "leader-election-release-on-cancel", plain: true, fits: on, why: "the lease is given back on exit, so that the next agent begins at once; leave the flag out"},
		{name: "oom-watch-current-memory-path", why: memory},
		{name: "oom-watch-interval", why: memory},
		{name: "oom-watch-max-memory-path", why: memory},
		{name: "oom-watch-memory-threshold", why: memory},
		{name: "reconciliation-timeout", why: "a reconcile of an ArtifactGenerator ends after 5 minutes, and what it may cost is counted"},
		{name: "snapshot-digest-algo", fits: []string{"sha256"}, why: sha256},
		{name: "storage-compression-threshold", why: tags},
		{name: "storage-value-log-file-size", why: tags},
	}
}

func (f *fluxFlags) bind(flags *pflag.FlagSet) {
	f.flags = notFollowed()
	for _, flag := range f.flags {
		bound := flags.VarPF(flag, flag.name, "", flag.why)
		bound.Hidden = true
		if flag.plain {
			bound.NoOptDefVal = "true"
		}
	}
}

// Follows reports whether an agent does anything by one argument of a controller of Flux. It is an
// error if the agent does not start with it.
func Follows(arg string) (bool, error) {
	o, err := checked([]string{arg}, false)
	if err != nil {
		return false, err
	}
	return !slices.ContainsFunc(o.flux.flags, func(f *fluxFlag) bool { return f.given }), nil
}

// Check is an error if an agent ends at its start by the arguments of its container, of which each may
// be right and all of them are not. Flags that are not known may be those of another version.
func Check(args []string) error {
	// Kubernetes replaces variables, and makes one dollar of two. An address of a pod has the place of
	// the one that matters here.
	const dollars = "$$"
	known := strings.NewReplacer(dollars, dollars, "$(POD_IP)", "192.0.2.1")
	var said []string
	for _, arg := range args {
		arg = known.Replace(arg)
		// What other variables have nobody knows, and the rest may be right by it: an agent that may
		// work is not refused.
		if strings.Contains(strings.ReplaceAll(arg, dollars, ""), "$(") {
			return nil
		}
		said = append(said, strings.ReplaceAll(arg, dollars, "$"))
	}
	_, err := checked(said, true)
	return err
}

// checked are the options of some arguments, as an agent checks them at its start.
func checked(args []string, others bool) (*options, error) {
	o := &options{}
	flags := pflag.NewFlagSet("agent", pflag.ContinueOnError)
	flags.ParseErrorsAllowlist.UnknownFlags = others
	for _, g := range o.groups() {
		g.bind(flags)
	}
	if err := flags.Parse(args); err != nil {
		return nil, err
	}
	for _, g := range o.groups() {
		if err := g.check(); err != nil {
			return nil, err
		}
	}
	if err := o.together(); err != nil {
		return nil, err
	}
	_, err := o.gates.build(true)
	return o, err
}

func (f *fluxFlags) check() error {
	for _, flag := range f.flags {
		if flag.refused() {
			return fmt.Errorf("cannot use --%s=%s: %s", flag.name, flag.value, flag.why)
		}
	}
	return nil
}

// tell logs which flags have no effect.
func (f *fluxFlags) tell(log logr.Logger) {
	for _, flag := range f.flags {
		if flag.given {
			log.Info("a flag of Flux's controllers has no effect here", "flag", flag.name, "why", flag.why)
		}
	}
}
