package migration

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/syncer/credential"
)

// Plan is what a migration will do.
type Plan struct {
	// Says are the sentences for a person.
	Says []string
	// Warns are what a person should know before.
	Warns []string
	// Refused is why it must not be done, empty if it may.
	Refused string
}

func (p *Plan) say(format string, args ...any) { p.Says = append(p.Says, fmt.Sprintf(format, args...)) }
func (p *Plan) warn(format string, args ...any) {
	p.Warns = append(p.Warns, fmt.Sprintf(format, args...))
}

// Names of controllers.
func Names(controllers []Controller) string {
	var list []string
	for _, c := range controllers {
		list = append(list, c.Name)
	}
	return strings.Join(list, ", ")
}

func kinds(list []Kind) string {
	var texts []string
	for _, k := range list {
		texts = append(texts, fmt.Sprintf("%d %s", k.Count, k.Name))
	}
	return strings.Join(texts, ", ")
}

// FromFlux plans the move to an agent, with these files of the repository changed.
func FromFlux(f Facts, files []string) Plan {
	var p Plan
	if len(f.Replaced) == 0 {
		p.Refused = fmt.Sprintf("there is no controller of Flux in namespace %s; use cascade bootstrap for a new tier, or --sync NAMESPACE/NAME", f.Namespace)
		return p
	}
	if shards := running(f.Shards); len(shards) > 0 {
		p.Refused = fmt.Sprintf("%s would go on with a part of the objects, beside the agent; scale them to zero where they are declared, and try again", Names(shards))
		return p
	}
	if len(f.Outdated) > 0 {
		p.Refused = fmt.Sprintf("the definitions do not serve %s, which the agent reads; upgrade Flux to 2.6 or later first", strings.Join(f.Outdated, ", "))
		return p
	}
	if f.Suspended != "" {
		p.Refused = fmt.Sprintf("%s is suspended, so that the commit would not arrive; run %s first, and try again", f.Suspended, f.Resume)
		return p
	}
	if f.Instance != "" {
		p.say("FluxInstance %s declares the controllers: it has to scale them to zero, as the patch below does", f.Instance)
	}
	p.ofFiles(files)
	p.say("ends, in this order: %s", Names(f.Replaced))
	p.say("starts then: the agent, in namespace cascade-system")
	if len(f.Others) > 0 {
		p.say("goes on as it is: %s", Names(f.Others))
	}
	taken, left := f.shared()
	p.ofObjects(f, taken)
	if len(left) > 0 {
		p.say("is left to what goes on: %s", kinds(left))
	}
	p.say("nothing is deleted, and each object is compared by its UID in the end")
	if len(f.Unserved) > 0 {
		p.warn("the agent does not serve: %s; what of Flux serves them goes on, where it runs, and gets artifacts with --arg=--artifact-addr=:9090 only", kinds(f.Unserved))
	}
	if f.Layers+f.Children > 0 {
		p.warn("%d Layers and %d Children are there already: the agent serves them", f.Layers, f.Children)
	}
	return p
}

// Leave is what a person says may stand still after a move back.
type Leave struct{ Children, Credentials bool }

// ToFlux plans the move back. What an agent holds back nobody may leave: Flux deletes and
// creates at once.
func ToFlux(f Facts, files []string, leave Leave) Plan {
	var p Plan
	held := f.Held
	if !f.Ended {
		held = slices.Concat(held, f.Unseen)
	}
	switch credentials := f.ours(credential.Kind); {
	case f.untold() != "":
		p.Refused = f.untold() + ". Flux would delete at once what Git dropped. Upgrade the agent with this program, by cascade bootstrap git, and try again when all of them were applied since"
	case len(held) > 0:
		p.Refused = fmt.Sprintf("the agent holds back what Flux would do at once: %s. Correct it in Git, or decide about it with cascade approve, and try again", strings.Join(held, "; "))
		if f.Kept {
			p.Refused += ". What is kept until something else is gone, as a Cluster, is there for as long as that; to have it stay for good, say so on each object: " +
				"kustomize.toolkit.fluxcd.io/prune: disabled, or helm.sh/resource-policy: keep where a HelmRelease has it"
		}
	case f.Layers+f.Children > 0 && !leave.Children:
		p.Refused = fmt.Sprintf("there are %d Layers and %d Children, which Flux does not serve: what they push would stand still. Delete them, or say --leave-children", f.Layers, f.Children)
	case credentials > 0 && !leave.Credentials:
		p.Refused = fmt.Sprintf("there are %d Credentials, which Flux does not renew: what they issued lapses. Delete them, or say --leave-credentials", credentials)
	case len(f.Replaced) == 0:
		p.Refused = fmt.Sprintf("there is no controller of Flux in namespace %s to go back to; run flux install or flux bootstrap after cascade uninstall", f.Namespace)
	}
	if p.Refused != "" {
		return p
	}
	p.say("ends: the agent, in namespace cascade-system")
	p.ofFiles(files)
	p.say("deletes the agent's own objects: its Deployment, rights and admission policies; its Namespace and the definitions stay")
	p.say("starts then: %s", Names(f.Replaced))
	var still, taken []Kind
	for _, k := range f.Served {
		if f.has(k.Controller) {
			taken = append(taken, k)
		} else {
			still = append(still, k)
		}
	}
	p.ofObjects(f, f.unsharded(taken))
	p.say("nothing else is deleted, and each object is compared by its UID in the end")
	for _, text := range f.UnseenSuspended {
		p.warn("%s. Flux leaves it alone as well, and deletes what Git dropped of it once it is resumed", text)
	}
	if n := len(f.Unseen); n > 0 {
		p.warn("%d Kustomizations and HelmReleases with parts or keys of Clusters are not applied, and no agent keeps any: Flux deletes what Git dropped of them", n)
	}
	if f.Layers+f.Children > 0 {
		p.warn("%d Layers and %d Children stay, and nobody serves them", f.Layers, f.Children)
	}
	if len(f.Ours) > 0 {
		p.warn("nobody serves then: %s", kinds(f.Ours))
	}
	if idle := f.idle(); len(idle) > 0 && len(f.Sharded) > 0 {
		p.warn("%s have the label %s: nobody serves them then while the controller for them is at zero, as %s is; scale it up where it is declared, after this", kinds(f.Sharded), shardLabel, Names(idle))
	}
	for _, k := range still {
		p.warn("nobody serves then: %s, as %s does not run", kinds([]Kind{k}), k.Controller)
	}
	for _, text := range f.Annotated {
		p.warn("%s, which Flux does not read", text)
	}
	return p
}

func (p *Plan) ofFiles(files []string) {
	if len(files) == 0 {
		p.say("the repository declares it already")
		return
	}
	p.say("commits: %s", strings.Join(files, ", "))
}

// shared tells the kinds that an agent serves where it runs from those with which a controller
// of Flux goes on.
func (f Facts) shared() (agent, flux []Kind) {
	for _, k := range f.Served {
		if f.goesOn(k.Controller) {
			flux = append(flux, k)
		} else {
			agent = append(agent, k)
		}
	}
	return agent, flux
}

// idle are controllers for a part of the objects that are not to run.
func (f Facts) idle() []Controller {
	return slices.DeleteFunc(slices.Clone(f.Shards), func(c Controller) bool { return c.Replicas > 0 })
}

// unsharded are kinds without the objects that wait for an idle controller.
func (f Facts) unsharded(list []Kind) []Kind {
	if len(f.idle()) == 0 {
		return list
	}
	var left []Kind
	for _, k := range list {
		if i := slices.IndexFunc(f.Sharded, func(s Kind) bool { return s.Name == k.Name }); i >= 0 {
			k.Count -= f.Sharded[i].Count
		}
		if k.Count > 0 {
			left = append(left, k)
		}
	}
	return left
}

// GoesOn reports whether a controller of Flux works on a kind after the move back.
func (f Facts) GoesOn(kind schema.GroupKind) bool {
	return v1alpha1.IsFluxGroup(kind.Group) && f.has(controllerOf(kind.Group, kind.Kind))
}

// has reports whether Flux has the controller of a kind after the move back.
func (f Facts) has(controller string) bool {
	return controller == "" || f.goesOn(controller) || slices.ContainsFunc(f.Replaced, func(c Controller) bool { return c.Name == controller })
}

// goesOn reports whether a controller of Flux that an agent does not replace is to run.
func (f Facts) goesOn(controller string) bool {
	return slices.ContainsFunc(running(f.Others), func(c Controller) bool { return c.Name == controller })
}

// ours is how many objects of one of Cascade's kinds there are.
func (f Facts) ours(kind string) int {
	for _, k := range f.Ours {
		if k.Name == kind {
			return k.Count
		}
	}
	return 0
}

func (p *Plan) ofObjects(f Facts, taken []Kind) {
	if len(taken) > 0 {
		p.say("is taken over: %s, with %d objects in their inventories", kinds(taken), f.Objects)
	}
	if f.Unrecorded > 0 {
		p.warn("%d HelmReleases have no inventory: what they installed is not compared", f.Unrecorded)
	}
}

// InstancePatch is what a person adds to a FluxInstance so that it runs none of the
// controllers that an agent replaces.
func InstancePatch(f Facts) string {
	var b strings.Builder
	b.WriteString("spec:\n  kustomize:\n    patches:\n")
	for _, c := range f.Replaced {
		fmt.Fprintf(&b, "    - target: {kind: Deployment, name: %s}\n      patch: |\n        - {op: replace, path: /spec/replicas, value: 0}\n", c.Name)
	}
	return b.String()
}

// Runs reports whether controllers that an agent replaces are to run.
func (f Facts) Runs() bool { return len(running(f.Replaced)) > 0 }

// running are those controllers that are to run.
func running(controllers []Controller) []Controller {
	return slices.DeleteFunc(slices.Clone(controllers), func(c Controller) bool { return c.Replicas == 0 })
}
