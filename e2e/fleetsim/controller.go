package fleetsim

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const controllerManager = "kube-controller-manager"

// react is what the controllers of a cluster do about a write, at once. Times
// that they write into objects are that of the fleet's start, so that clusters
// have the same ones. The cluster is locked.
func (c *Cluster) react(before, after *record) {
	intended := before == nil || before.content.intent != after.content.intent
	switch after.kind.Kind {
	case "CustomResourceDefinition":
		if intended {
			c.establish(after)
		}
	case "Deployment":
		if intended && after.kind.Group == "apps" {
			c.roll(after)
		}
	}
	c.agent(before, after)
}

// since is the time of everything that controllers write.
func (f *Fleet) since() string { return f.start.UTC().Format(time.RFC3339) }

// establish makes the API server serve what a definition defines.
func (c *Cluster) establish(r *record) {
	since := c.fleet.since()
	c.control(r, "kube-apiserver", "status", "establish", func(o map[string]any) {
		names := child(child(o, "spec"), "names")
		accepted := part{}
		for k, v := range names {
			accepted[k] = v
		}
		status := child(o, "status")
		status["acceptedNames"] = accepted
		status["conditions"] = []any{
			part{"type": "NamesAccepted", "status": "True", "reason": "NoConflicts", "message": "no conflicts found", "lastTransitionTime": since},
			part{"type": "Established", "status": "True", "reason": "InitialNamesAccepted", "message": "the initial names have been accepted", "lastTransitionTime": since},
		}
	})
}

// established reports whether the API server serves what a definition defines.
func (f *Fleet) established(c *content) bool { return f.definition(c).established }

// kindOf is the kind that a definition defines, nil if it cannot be served.
func (f *Fleet) kindOf(c *content) *kind { return f.definition(c).kind }

// definition is what is known of a CustomResourceDefinition.
type definition struct {
	kind        *kind
	established bool
}

func (f *Fleet) definition(of *content) definition {
	f.decoded.Lock()
	defer f.decoded.Unlock()
	if d, ok := f.decoded.definitions[of]; ok {
		return d
	}
	var d definition
	if object, err := of.object(); err == nil {
		for _, condition := range children(child(object, "status"), "conditions") {
			d.established = d.established || condition["type"] == "Established" && condition["status"] == "True"
		}
		if d.established {
			if d.kind, err = f.store.define(object); err != nil {
				f.complain(err)
			}
		}
	}
	if len(f.decoded.definitions) >= maxDecoded {
		clear(f.decoded.definitions)
	}
	f.decoded.definitions[of] = d
	return d
}

// roll makes a Deployment available.
func (c *Cluster) roll(r *record) {
	since := c.fleet.since()
	generation := r.generation
	c.control(r, controllerManager, "status", fmt.Sprintf("roll %d", generation), func(o map[string]any) {
		replicas, ok := child(o, "spec")["replicas"].(int64)
		if !ok {
			replicas = 1
		}
		condition := func(kind, reason, message string) part {
			return part{"type": kind, "status": "True", "reason": reason, "message": message, "lastTransitionTime": since, "lastUpdateTime": since}
		}
		name, _ := child(o, "metadata")["name"].(string)
		status := part{"observedGeneration": generation, "conditions": []any{
			condition("Available", "MinimumReplicasAvailable", "Deployment has minimum availability."),
			condition("Progressing", "NewReplicaSetAvailable", fmt.Sprintf("ReplicaSet %q has successfully progressed.", name)),
		}}
		if replicas > 0 {
			for _, key := range []string{"replicas", "updatedReplicas", "readyReplicas", "availableReplicas"} {
				status[key] = replicas
			}
		}
		o["status"] = status
	})
}

// remove deletes an object, or marks it if it has finalizers: then it is
// returned. The cluster is locked.
func (c *Cluster) remove(r *record) (*record, *apierrors.StatusError) {
	namespace := r.kind.Kind == "Namespace" && r.kind.Group == ""
	definition := r.kind.Kind == "CustomResourceDefinition"
	if !r.content.finalized && !namespace && !definition {
		c.drop(r)
		return nil, nil
	}
	if r.content.leaving {
		return r, nil
	}
	object, err := r.content.object()
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	m := child(object, "metadata")
	m["deletionTimestamp"] = c.now().UTC().Format(time.RFC3339)
	if namespace {
		child(object, "status")["phase"] = "Terminating"
	} else {
		m["deletionGracePeriodSeconds"] = int64(0)
	}
	if definition {
		finalizers, _ := m["finalizers"].([]any)
		m["finalizers"] = append(finalizers, "customresourcecleanup.apiextensions.k8s.io")
	}
	marked := *r
	if marked.content, err = c.fleet.store.content(r.kind, object); err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	marked.version = c.next()
	if r.kind.Generation {
		marked.generation++
	}
	c.put(r, &marked)
	switch {
	case namespace:
		c.empty(marked.name)
		if !r.content.finalized {
			c.drop(&marked)
		}
	case definition:
		if k := c.fleet.kindOf(r.content); k != nil {
			for _, o := range c.list(k, "") {
				c.drop(o)
			}
		}
		if !r.content.finalized {
			c.drop(&marked)
		}
	}
	return &marked, nil
}

// empty deletes everything in a namespace.
func (c *Cluster) empty(namespace string) {
	for key, o := range c.objects {
		if key.namespace == namespace {
			c.drop(o)
		}
	}
}

func causeOfTermination(namespace string) metav1.StatusCause {
	return metav1.StatusCause{Type: corev1.NamespaceTerminatingCause, Message: fmt.Sprintf("namespace %s is being terminated", namespace), Field: "metadata.namespace"}
}
