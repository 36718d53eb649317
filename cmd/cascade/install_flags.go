package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/cmd/cascade/agent"
	"github.com/cascade-gitops/cascade/cmd/cascade/installation"
	"github.com/cascade-gitops/cascade/deploy"
)

// valueFlags are the flags of `cascade install` that say what the agent is to be. They have
// the words of spec.agent of a Layer, and count more than the file of --values.
type valueFlags struct {
	file string

	image, pullPolicy, priority, hostNetwork, events, metricsAuth, firstSync string
	sizeLimit, claim, claimSize, claimClass, account, pagesCertificate       string
	pullSecrets, args, env, tolerations, controllers, impersonates           []string
	requests, limits, nodeSelector, labels                                   map[string]string
	replicas                                                                 int32
	lockdown, clusterDeleter, networkPolicy, receiver, pages                 bool
}

func (v *valueFlags) bind(f *pflag.FlagSet) {
	f.StringVar(&v.file, "values", "", "file with values in the words of spec.agent of a Layer, in YAML; - reads them from the standard input; flags count more")
	f.StringVar(&v.image, "image", "", "image of the agent, with a tag or a digest; without it, CASCADE_IMAGE or the one of this release")
	f.StringVar(&v.pullPolicy, "image-pull-policy", "", "Always, IfNotPresent or Never")
	f.StringSliceVar(&v.pullSecrets, "image-pull-secret", nil, "name of a Secret in the agent's namespace to pull the image with")
	f.StringArrayVar(&v.args, "arg", nil, "argument of the agent; may be given several times")
	f.StringArrayVar(&v.env, "env", nil, "variable of the agent as NAME=VALUE, for instance HTTPS_PROXY; may be given several times")
	f.StringToStringVar(&v.requests, "requests", nil, "resources that the agent requests, as cpu=50m,memory=64Mi")
	f.StringToStringVar(&v.limits, "limits", nil, "resources that the agent may use, as memory=1Gi")
	f.Int32Var(&v.replicas, "replicas", 1, "replicas of the agent, which share the Children of the tier out; on the host's network, each on a node of its own")
	f.StringToStringVar(&v.nodeSelector, "node-selector", nil, "labels of the nodes that the agent may run on")
	f.StringArrayVar(&v.tolerations, "toleration", nil, "taint that the agent tolerates besides those of a new node, as key[=value][:effect]; may be given several times")
	f.StringVar(&v.priority, "priority-class", "", "priority class of the agent's pods")
	f.StringVar(&v.hostNetwork, "host-network", hostNetworkAuto, "true runs the agent in the network of its node, which works without a CNI; false in the network of pods; "+
		"auto leaves it as it is, and in a new installation looks whether a node is ready")
	f.StringVar(&v.sizeLimit, "storage-size-limit", "", "most that the agent keeps on its node")
	f.StringVar(&v.claim, "storage-claim", "", "PersistentVolumeClaim for what the agent fetches")
	f.StringVar(&v.claimSize, "storage-size", "", "size of the claim, which is made; without it the claim has to be there")
	f.StringVar(&v.claimClass, "storage-class", "", "class of the claim that is made")
	f.StringToStringVar(&v.labels, "labels", nil, "labels of all objects of the agent")
	f.BoolVar(&v.lockdown, "lockdown", false, "for a tier of several tenants: the agent has few rights of its own, and acts as service accounts")
	f.StringVar(&v.account, "lockdown-service-account", "", "service account of what names none; default if nothing is said")
	f.StringSliceVar(&v.impersonates, "lockdown-impersonates", nil, "names of the service accounts, of any namespace, that the agent may act as besides; without them it may act as any")
	f.BoolVar(&v.clusterDeleter, "lockdown-cluster-deleter", false, "bring the ClusterRole cascade-cluster-deleter, bound to nobody")
	f.StringSliceVar(&v.controllers, "controllers", nil, "kinds that the agent reconciles; all if nothing is said")
	f.StringVar(&v.events, "events-address", "", "URL of Flux's notification-controller, which events are posted to")
	f.BoolVar(&v.networkPolicy, "network-policy", true, "let nothing in but to metrics and health, and to Receivers and pages where they are served; without effect on the host's network")
	f.BoolVar(&v.receiver, "receiver", false, "serve Flux's Receivers at port 9292, with the Service webhook-receiver")
	f.BoolVar(&v.pages, "pages", false, "serve pages about the tier at port 8443 over HTTPS, with the Service cascade-pages")
	f.StringVar(&v.pagesCertificate, "pages-certificate", "", "name of a Secret of the agent's namespace with tls.crt and tls.key for --pages; without it the certificate is signed by nobody")
	f.StringVar(&v.metricsAuth, "metrics-auth", "", "who may read metrics: none asks nobody, kubernetes those who may get the non-resource URL /metrics")
	f.StringVar(&v.firstSync, "first-sync", agent.FirstSyncAdopt, "adopt, or create for a tier that never had a Cluster")
}

// hostNetworkAuto decides by what is there.
const hostNetworkAuto = "auto"

// options are the values of the file and of the flags that were given.
func (v *valueFlags) options(f *pflag.FlagSet, in io.Reader) (deploy.Options, error) {
	var o deploy.Options
	if v.file != "" {
		text, err := read(v.file, in)
		if err != nil {
			return o, err
		}
		if o, err = deploy.Parse(text); err != nil {
			return o, err
		}
	}
	for _, set := range []func(*pflag.FlagSet, *deploy.Options) error{v.setPod, v.setPlace, v.setStorage, v.setLockdown, v.setFlags} {
		if err := set(f, &o); err != nil {
			return o, err
		}
	}
	var err error
	o.Image, err = imageOf(cmp.Or(o.Image, os.Getenv("CASCADE_IMAGE")), version())
	return o, err
}

// published is where the image of each release is.
const published = "ghcr.io/cascade-gitops/cascade"

// imageOf is the image that a program of a version installs. What is built between releases
// has none that somebody else could pull.
func imageOf(given, version string) (string, error) {
	if given != "" {
		return given, nil
	}
	if !installation.OfRelease(version) {
		return "", fmt.Errorf("cannot tell which image: this program is of no release (%s); say --image, which make image push prints", version)
	}
	return published + ":" + version, nil
}

func read(file string, in io.Reader) ([]byte, error) {
	var text []byte
	var err error
	if file == "-" {
		text, err = io.ReadAll(in)
	} else {
		text, err = os.ReadFile(file)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read values: %w", err)
	}
	return text, nil
}

func (v *valueFlags) setPod(f *pflag.FlagSet, o *deploy.Options) error {
	o.Image = cmp.Or(v.image, o.Image)
	o.ImagePullPolicy = corev1.PullPolicy(cmp.Or(v.pullPolicy, string(o.ImagePullPolicy)))
	if f.Changed("image-pull-secret") {
		o.ImagePullSecrets = nil
		for _, name := range v.pullSecrets {
			o.ImagePullSecrets = append(o.ImagePullSecrets, v1alpha1.LocalReference{Name: name})
		}
	}
	o.Args = append(o.Args, v.args...)
	for _, text := range v.env {
		name, value, found := strings.Cut(text, "=")
		if !found {
			return fmt.Errorf("cannot use --env %q: write NAME=VALUE", text)
		}
		o.Env = append(o.Env, corev1.EnvVar{Name: name, Value: value})
	}
	for _, given := range []struct {
		flag string
		from map[string]string
		to   func(*v1alpha1.AgentResources) *corev1.ResourceList
	}{
		{"requests", v.requests, func(r *v1alpha1.AgentResources) *corev1.ResourceList { return &r.Requests }},
		{"limits", v.limits, func(r *v1alpha1.AgentResources) *corev1.ResourceList { return &r.Limits }},
	} {
		for name, text := range given.from {
			quantity, err := resource.ParseQuantity(text)
			if err != nil {
				return fmt.Errorf("cannot use --%s %s=%s: %w", given.flag, name, text, err)
			}
			if o.Resources == nil {
				o.Resources = &v1alpha1.AgentResources{}
			}
			list := given.to(o.Resources)
			if *list == nil {
				*list = corev1.ResourceList{}
			}
			(*list)[corev1.ResourceName(name)] = quantity
		}
	}
	return nil
}

func (v *valueFlags) setPlace(f *pflag.FlagSet, o *deploy.Options) error {
	if f.Changed("replicas") {
		if v.replicas < 1 {
			return fmt.Errorf("cannot install an agent with --replicas %d: it must be from 1 to %d", v.replicas, deploy.MostReplicas)
		}
		o.Replicas = v.replicas
	}
	if f.Changed("node-selector") {
		o.NodeSelector = v.nodeSelector
	}
	for _, text := range v.tolerations {
		o.Tolerations = append(o.Tolerations, toleration(text))
	}
	o.PriorityClassName = cmp.Or(v.priority, o.PriorityClassName)
	if f.Changed("labels") {
		o.Labels = v.labels
	}
	switch v.hostNetwork {
	case hostNetworkAuto:
		if f.Changed("host-network") {
			o.HostNetwork = nil
		}
	default:
		on, err := strconv.ParseBool(v.hostNetwork)
		if err != nil {
			return fmt.Errorf("cannot use --host-network %q: use auto, true or false", v.hostNetwork)
		}
		o.HostNetwork = &on
	}
	return nil
}

// toleration of a taint as kubectl taint writes it.
func toleration(text string) corev1.Toleration {
	text, effect, _ := strings.Cut(text, ":")
	key, value, valued := strings.Cut(text, "=")
	t := corev1.Toleration{Key: key, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffect(effect)}
	if valued {
		t.Operator, t.Value = corev1.TolerationOpEqual, value
	}
	return t
}

func (v *valueFlags) setStorage(_ *pflag.FlagSet, o *deploy.Options) error {
	storage := &v1alpha1.AgentStorage{}
	if o.Storage != nil {
		storage = o.Storage
	}
	quantity := func(flag, text string, to **resource.Quantity) error {
		if text == "" {
			return nil
		}
		q, err := resource.ParseQuantity(text)
		if err != nil {
			return fmt.Errorf("cannot use --%s %s: %w", flag, text, err)
		}
		*to, o.Storage = &q, storage
		return nil
	}
	if err := quantity("storage-size-limit", v.sizeLimit, &storage.SizeLimit); err != nil {
		return err
	}
	if v.claim == "" && v.claimSize == "" && v.claimClass == "" {
		return nil
	}
	o.Storage = storage
	if storage.Claim == nil {
		storage.Claim = &v1alpha1.AgentClaim{}
	}
	storage.Claim.Name = cmp.Or(v.claim, storage.Claim.Name)
	if v.claimClass != "" {
		storage.Claim.StorageClassName = &v.claimClass
	}
	return quantity("storage-size", v.claimSize, &storage.Claim.Size)
}

func (v *valueFlags) setLockdown(f *pflag.FlagSet, o *deploy.Options) error {
	named := v.account != "" || len(v.impersonates) > 0 || v.clusterDeleter
	switch {
	case f.Changed("lockdown") && !v.lockdown:
		o.Lockdown = nil
	case v.lockdown && o.Lockdown == nil:
		o.Lockdown = &v1alpha1.AgentLockdown{}
	}
	if o.Lockdown == nil {
		if named {
			return fmt.Errorf("cannot use flags of the lockdown without --lockdown")
		}
		return nil
	}
	o.Lockdown.ServiceAccount = cmp.Or(v.account, o.Lockdown.ServiceAccount)
	if len(v.impersonates) > 0 {
		o.Lockdown.Impersonates = v.impersonates
	}
	if f.Changed("lockdown-cluster-deleter") {
		o.Lockdown.ClusterDeleter = v.clusterDeleter
	}
	return nil
}

func (v *valueFlags) setPages(f *pflag.FlagSet, o *deploy.Options) error {
	switch {
	case f.Changed("pages") && !v.pages:
		o.Pages = nil
	case f.Changed("pages") && o.Pages == nil:
		o.Pages = &v1alpha1.AgentPages{}
	}
	if v.pagesCertificate == "" {
		return nil
	}
	if o.Pages == nil {
		return errors.New("cannot use --pages-certificate without --pages: no pages are served")
	}
	o.Pages.CertificateSecretRef = &v1alpha1.LocalReference{Name: v.pagesCertificate}
	return nil
}

func (v *valueFlags) setFlags(f *pflag.FlagSet, o *deploy.Options) error {
	if f.Changed("controllers") {
		o.Controllers = v.controllers
	}
	o.EventsAddress = cmp.Or(v.events, o.EventsAddress)
	if f.Changed("network-policy") {
		o.NetworkPolicy = &v.networkPolicy
	}
	if f.Changed("receiver") {
		o.Receiver = v.receiver
	}
	if err := v.setPages(f, o); err != nil {
		return err
	}
	o.MetricsAuth = v1alpha1.MetricsAuth(cmp.Or(v.metricsAuth, string(o.MetricsAuth)))
	if err := agent.CheckFirstSync(v.firstSync); err != nil {
		return err
	}
	if f.Changed("first-sync") {
		o.FirstSync = v1alpha1.FirstSyncPolicyAdopt
		if v.firstSync == agent.FirstSyncCreate {
			o.FirstSync = v1alpha1.FirstSyncPolicyCreate
		}
	}
	return nil
}
