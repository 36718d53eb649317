package migration

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/selection"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// ofFlux selects what belongs to an installation of Flux.
func ofFlux() client.MatchingLabels {
	return client.MatchingLabels{"app.kubernetes.io/part-of": "flux"}
}

// Deployed are the Deployments of Flux's controllers with their accounts.
type Deployed struct {
	Deployments []appsv1.Deployment
	Accounts    []corev1.ServiceAccount
}

// ReadDeployed reads those of a cluster, whatever patched them.
func ReadDeployed(ctx context.Context, c client.Client) (Deployed, error) {
	deployments, accounts := &appsv1.DeploymentList{}, &corev1.ServiceAccountList{}
	if err := c.List(ctx, deployments, ofFlux()); err != nil {
		return Deployed{}, fmt.Errorf("cannot list Flux's controllers: %w", err)
	}
	if err := c.List(ctx, accounts, ofFlux()); err != nil {
		return Deployed{}, fmt.Errorf("cannot list the accounts of Flux's controllers: %w", err)
	}
	return Deployed{deployments.Items, accounts.Items}, nil
}

// DeployedBy are those among the objects that a repository makes.
func DeployedBy(objects []*unstructured.Unstructured) (Deployed, error) {
	var d Deployed
	for _, u := range objects {
		var err error
		switch u.GetKind() {
		case "Deployment":
			d.Deployments = append(d.Deployments, appsv1.Deployment{})
			err = runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, &d.Deployments[len(d.Deployments)-1])
		case "ServiceAccount":
			d.Accounts = append(d.Accounts, corev1.ServiceAccount{})
			err = runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, &d.Accounts[len(d.Accounts)-1])
		}
		if err != nil {
			return Deployed{}, fmt.Errorf("cannot read %s %s of the repository: %w", u.GetKind(), u.GetName(), err)
		}
	}
	return d, nil
}

// In are those of a namespace.
func (d Deployed) In(namespace string) Deployed {
	return Deployed{
		slices.DeleteFunc(slices.Clone(d.Deployments), func(o appsv1.Deployment) bool { return o.Namespace != namespace }),
		slices.DeleteFunc(slices.Clone(d.Accounts), func(o corev1.ServiceAccount) bool { return o.Namespace != namespace }),
	}
}

// replaced are the Deployments of the controllers whose work an agent does.
func (d Deployed) replaced() []appsv1.Deployment {
	var found []appsv1.Deployment
	for _, name := range replaced() {
		if i := slices.IndexFunc(d.Deployments, func(o appsv1.Deployment) bool { return o.Name == name }); i >= 0 {
			found = append(found, d.Deployments[i])
		}
	}
	return found
}

// sharded reports whether there are copies of them for a part of the objects.
func (d Deployed) sharded() bool {
	return slices.ContainsFunc(d.Deployments, func(o appsv1.Deployment) bool { return isShard(o.Name) })
}

// Any reports whether one of the controllers is there whose work an agent does.
func (d Deployed) Any() bool { return len(d.replaced()) > 0 }

// Agent is what is known of an agent that takes the place of Flux's controllers.
type Agent struct {
	Namespace string
	// Said are the names of the flags that a person decided about, Env those of its variables.
	Said, Env []string
	// Annotations are those of its account.
	Annotations map[string]string
	// Follows reports whether it does anything by an argument of Flux, and why it refuses it.
	Follows func(arg string) (bool, error)
}

// Carried is what an agent is told because Flux's controllers are.
type Carried struct {
	// Args of the agent.
	Args []string
	// Warns are what is not carried over, and a person should know.
	Warns []string
	// Refused is why nobody can tell what the agent is to be told, empty if one can.
	Refused string
}

// Flags of Flux with a rule of their own here.
const (
	flagConcurrent    = "concurrent"
	flagEvents        = "events-addr"
	flagGates         = "feature-gates"
	flagAllNamespaces = "watch-all-namespaces"
	flagSelector      = "watch-label-selector"
)

// ofProgram reports whether a flag says where a program itself is, how it logs and how it is
// elected. An agent has its own.
func ofProgram(name string) bool {
	return slices.Contains([]string{"enable-leader-election", "health-addr", "metrics-addr", "storage-addr", "storage-adv-addr", "storage-path"}, name) ||
		strings.HasPrefix(name, "leader-election-") || strings.HasPrefix(name, "log-")
}

// unsaid is the value of a flag that says what no flag says, too, of a controller in a namespace.
func unsaid(name, value, namespace string) bool {
	if name == flagEvents && strings.TrimRight(value, "./") == "http://notification-controller."+namespace+".svc.cluster.local" {
		return true // where the agent posts them anyway
	}
	usual := map[string]string{
		flagAllNamespaces: "true", "no-cross-namespace-refs": "false", "default-service-account": "", "default-kubeconfig-service-account": "", flagSelector: "", flagEvents: "",
	}
	is, known := usual[name]
	return known && is == value
}

// agreeing are the controllers that say who may do what, or which objects are reconciled at all:
// to an agent one flag says so for all kinds.
func agreeing() map[string][]string {
	appliers := []string{"kustomize-controller", "helm-controller"}
	all := append([]string{"source-controller"}, appliers...)
	return map[string][]string{
		"no-cross-namespace-refs": appliers, "default-service-account": appliers, "default-kubeconfig-service-account": appliers, flagAllNamespaces: all, flagSelector: all,
	}
}

// setting is a flag that some controllers have. A feature gate is one of its own.
type setting struct {
	name string
	// of has the values by the controller.
	of map[string][]string
}

// Carry decides what of that which Flux's controllers are told an agent is told. A lockdown that was
// left behind would be lifted, and nobody would see it.
func Carry(d Deployed, agent Agent) Carried {
	var c Carried
	var problems []string
	flags := flagsOf(d)
	var gates []string
	for _, key := range slices.Sorted(maps.Keys(flags)) {
		f := flags[key]
		holders := slices.DeleteFunc(replaced(), func(name string) bool { return f.of[name] == nil })
		first := f.of[holders[0]]
		arg := f.args(first)
		leaves, more := false, false
		if f.name == flagSelector {
			leaves, more = f.leavesShards()
		}
		switch {
		case slices.Contains(agent.Said, f.name):
			c.Warns = append(c.Warns, fmt.Sprintf("%s has %s, and the agent what you say", holders[0], strings.Join(arg, " ")))
			continue
		case f.name == flagSelector && (d.sharded() || leaves && !more):
			c.Warns = append(c.Warns, fmt.Sprintf("%s has %s, which the agent does not get: it does the work of all shards", holders[0], strings.Join(arg, " ")))
			continue
		}
		followed, refused := f.followed(holders, agent.Follows)
		switch apart := f.apart(d, holders); {
		case refused != "":
			problems = append(problems, refused)
		case !followed:
		case leaves:
			problems = append(problems, fmt.Sprintf("%s has %s, and an agent does the work of all shards: say the rest of the selector", holders[0], strings.Join(arg, " ")))
		case apart != "":
			problems = append(problems, apart)
		case f.name == flagAllNamespaces && d.Deployments[0].Namespace != agent.Namespace:
			problems = append(problems, fmt.Sprintf("%s has %s, and an agent in namespace %s would reconcile nothing of namespace %s", holders[0], strings.Join(arg, " "), agent.Namespace, d.Deployments[0].Namespace))
		case f.name == flagGates:
			gates = append(gates, first...)
		default:
			c.Args = append(c.Args, arg...)
		}
	}
	if len(gates) > 0 {
		c.Args = append(c.Args, "--"+flagGates+"="+strings.Join(gates, ","))
	}
	if len(problems) > 0 {
		c.Refused = strings.Join(problems, "; ") + ". Say by --arg=--NAME=VALUE what the agent is to do instead, or change Flux's controllers where they are declared"
	}
	c.Warns = append(c.Warns, besides(d, agent)...)
	return c
}

func (f setting) args(values []string) []string {
	var args []string
	for _, v := range values {
		args = append(args, "--"+f.name+"="+v)
	}
	return args
}

// followed reports whether an agent does anything by the flag, or else whose it refuses, and why.
func (f setting) followed(holders []string, follows func(string) (bool, error)) (does bool, refused string) {
	for _, name := range holders {
		for _, arg := range f.args(f.of[name]) {
			one, err := follows(arg)
			if err != nil {
				return false, fmt.Sprintf("%s has %s, which the agent refuses: %v", name, arg, err)
			}
			does = does || one
		}
	}
	return does, ""
}

// leavesShards reports whether the flag is a selector by which a controller leaves objects to those for
// the parts, and whether it says anything else. Such a one outlives the controllers for the parts.
func (f setting) leavesShards() (leaves, more bool) {
	for _, value := range slices.Concat(slices.Collect(maps.Values(f.of))...) {
		selector, err := labels.Parse(value)
		if err != nil {
			return false, true
		}
		requirements, _ := selector.Requirements()
		for _, r := range requirements {
			if r.Key() == shardLabel && slices.Contains([]selection.Operator{selection.DoesNotExist, selection.NotIn, selection.NotEquals}, r.Operator()) {
				leaves = true
			} else {
				more = true
			}
		}
	}
	return leaves, more
}

// apart says how the controllers differ about the flag, empty if they do not.
func (f setting) apart(d Deployed, holders []string) string {
	asked := slices.Clone(holders)
	for _, o := range d.replaced() {
		if slices.Contains(agreeing()[f.name], o.Name) && !slices.Contains(asked, o.Name) {
			asked = append(asked, o.Name)
		}
	}
	differ := false
	var texts []string
	for _, name := range asked {
		text := "none"
		if values := f.of[name]; values != nil {
			text = strings.Join(f.args(values), " ")
		}
		texts = append(texts, name+" has "+text)
		differ = differ || !slices.Equal(f.of[name], f.of[asked[0]])
	}
	if !differ {
		return ""
	}
	return fmt.Sprintf("one --%s is for all kinds, and %s", f.name, strings.Join(texts, ", "))
}

// flagsOf are the flags of the controllers that an agent replaces, without those of the program
// itself and those that say what is so anyway, by their name or that of the feature gate. Of a flag
// that is there twice, as one that a patch adds to, the last value counts, but for lists.
func flagsOf(d Deployed) map[string]setting {
	flags := map[string]setting{}
	for _, o := range d.replaced() {
		for _, of := range argumentsOf(&o) {
			name, value := of[0], strings.ReplaceAll(of[1], "$(RUNTIME_NAMESPACE)", o.Namespace)
			key := name
			switch name {
			case flagConcurrent:
				if name = concurrentOf(o.Name); name == "" {
					continue
				}
				key = name
			case flagGates:
				for gate := range strings.SplitSeq(value, ",") {
					gate = strings.TrimSpace(gate)
					gateName, _, _ := strings.Cut(gate, "=")
					set(flags, flagGates+"="+gateName, flagGates, o.Name, gate)
				}
				continue
			case "sops-age-secret", "sops-vault-configmap": // in the namespace of the controller
				if !strings.Contains(value, "/") {
					value = o.Namespace + "/" + value
				}
			}
			if !ofProgram(name) {
				set(flags, key, name, o.Name, value)
			}
		}
	}
	for key, f := range flags {
		maps.DeleteFunc(f.of, func(_ string, values []string) bool {
			return unsaid(f.name, values[len(values)-1], d.Deployments[0].Namespace)
		})
		if len(f.of) == 0 {
			delete(flags, key)
		}
	}
	return flags
}

// set takes in a value of a flag of a controller.
func set(flags map[string]setting, key, name, controller, value string) {
	f, known := flags[key]
	if !known {
		f = setting{name: name, of: map[string][]string{}}
		flags[key] = f
	}
	if !isList(name) {
		f.of[controller] = nil
	}
	f.of[controller] = append(f.of[controller], value)
}

// isList reports whether all values of a flag count.
func isList(name string) bool {
	return slices.Contains([]string{"override-manager", "ssh-hostkey-algos", "ssh-kex-algos"}, name)
}

// concurrentOf is what the agent calls the concurrency of a controller.
func concurrentOf(controller string) string {
	return map[string]string{"source-controller": "concurrent-sources", "kustomize-controller": flagConcurrent, "helm-controller": "concurrent-releases"}[controller]
}

// program is the container of a controller.
func program(d *appsv1.Deployment) corev1.Container {
	containers := d.Spec.Template.Spec.Containers
	i := slices.IndexFunc(containers, func(c corev1.Container) bool { return c.Name == "manager" })
	if i < 0 {
		return corev1.Container{}
	}
	return containers[i]
}

// argumentsOf are the flags of a controller with their values. A flag without one is true.
func argumentsOf(d *appsv1.Deployment) [][2]string {
	var found [][2]string
	args := program(d).Args
	for i := 0; i < len(args); i++ {
		name, ok := strings.CutPrefix(args[i], "--")
		if !ok {
			continue
		}
		name, value, joined := strings.Cut(name, "=")
		switch {
		case joined:
		case i+1 < len(args) && !strings.HasPrefix(args[i+1], "-"):
			i++
			value = args[i]
		default:
			value = "true"
		}
		found = append(found, [2]string{name, value})
	}
	return found
}

// FlagNames are the names of the flags among the arguments of a program.
func FlagNames(args []string) []string {
	var found []string
	for _, arg := range args {
		if name, ok := strings.CutPrefix(arg, "--"); ok {
			name, _, _ = strings.Cut(name, "=")
			found = append(found, name)
		}
	}
	return found
}

// besides are what controllers have that no flag says, and an agent does not.
func besides(d Deployed, agent Agent) []string {
	var warns []string
	warn := func(format string, args ...any) { warns = append(warns, fmt.Sprintf(format, args...)) }
	for _, o := range d.replaced() {
		c := program(&o)
		for _, e := range c.Env {
			// Those that Flux's manifests have.
			if !slices.Contains(append([]string{"RUNTIME_NAMESPACE", "TUF_ROOT", "GOMAXPROCS", "GOMEMLIMIT"}, agent.Env...), e.Name) {
				warn("%s has the variable %s, and the agent has not: --env gives it one", o.Name, e.Name)
			}
		}
		for _, from := range c.EnvFrom {
			warn("%s has variables of %s, and the agent has not: --env gives it some", o.Name, sourceOf(from))
		}
		for _, v := range o.Spec.Template.Spec.Volumes {
			if v.EmptyDir == nil {
				warn("%s has the volume %s, and the agent has not: see files in the values", o.Name, v.Name)
			}
		}
		for _, a := range d.Accounts {
			if a.Name != cmp.Or(o.Spec.Template.Spec.ServiceAccountName, "default") {
				continue
			}
			for _, key := range slices.Sorted(maps.Keys(a.Annotations)) {
				if _, has := agent.Annotations[key]; !has && !strings.Contains(key, "kubectl.kubernetes.io/") && !strings.Contains(key, fluxGroups) {
					warn("ServiceAccount %s has the annotation %s, and that of the agent has not: what logs in at a cloud by it fails; see serviceAccountAnnotations in the values", a.Name, key)
				}
			}
		}
	}
	return warns
}

// sourceOf names where variables come from.
func sourceOf(from corev1.EnvFromSource) string {
	if from.SecretRef != nil {
		return "Secret " + from.SecretRef.Name
	}
	if from.ConfigMapRef != nil {
		return "ConfigMap " + from.ConfigMapRef.Name
	}
	return "another object"
}
