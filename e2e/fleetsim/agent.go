package fleetsim

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/remote/report"
)

// Names of an agent.
const (
	agentDeployment = "cascade"
	agentManager    = "cascade"
)

// agent is what the agent of a cluster does about a write: it answers for the
// sync objects at once, and reports. The cluster is locked.
func (c *Cluster) agent(before, after *record) {
	installed := c.objects[builtin("Deployment").key(v1alpha1.AgentNamespace, agentDeployment)]
	if installed == nil {
		return
	}
	started := after.kind.Kind == "Deployment" && after.name == agentDeployment && after.namespace == v1alpha1.AgentNamespace
	switch {
	case started:
		for _, o := range c.objects {
			c.reconcile(o)
		}
	case synced(after.kind) && (before == nil || before.content.intent != after.content.intent):
		c.reconcile(after)
	default:
		return
	}
	c.report()
}

// synced reports whether an agent reconciles objects of a kind.
func synced(k *kind) bool {
	return strings.HasSuffix(k.Group, ".toolkit.fluxcd.io") && slices.Contains([]string{"GitRepository", "OCIRepository", "Kustomization"}, k.Kind)
}

// reconcile says of a sync object that it is in place. Its revision follows from
// what it asks for, so that clusters of one layer have the same.
func (c *Cluster) reconcile(r *record) {
	if !synced(r.kind) {
		return
	}
	generation := r.generation
	since := c.fleet.since()
	revision := revisionOf(r.content)
	c.control(r, agentManager, "status", "reconcile", func(o map[string]any) {
		status := part{"observedGeneration": generation, "conditions": []any{
			part{"type": "Ready", "status": "True", "reason": "Succeeded", "message": "in place", "lastTransitionTime": since, "observedGeneration": generation},
		}}
		if r.kind.Kind == "Kustomization" {
			status["lastAppliedRevision"] = revision
		} else {
			status["artifact"] = part{
				"revision": revision, "digest": "sha256:" + hex.EncodeToString(make([]byte, 32)), "lastUpdateTime": since,
				"path": "", "url": "", "size": int64(0),
			}
		}
		o["status"] = status
	})
}

func revisionOf(c *content) string {
	return "main@sha1:" + hex.EncodeToString(c.intent[:]) + strings.Repeat("0", 24)
}

// report writes what the agent says of its tier, and the leases that it renews.
func (c *Cluster) report() {
	said := v1alpha1.Report{Agent: "fleetsim", Ready: true, Reason: v1alpha1.ReasonSucceeded, Since: metav1.NewTime(c.fleet.start.UTC().Truncate(time.Second))}
	var revisions []string
	for _, o := range c.objects {
		switch {
		case !synced(o.kind):
		case o.kind.Kind == "Kustomization":
			said.Objects++
		default:
			revisions = append(revisions, o.name+"="+revisionOf(o.content))
		}
	}
	said.Children, said.Tiers = c.fleet.below.Children, c.fleet.below.Tiers
	slices.Sort(revisions)
	said.Revision = strings.Join(revisions, ",")
	if len(revisions) == 1 {
		_, said.Revision, _ = strings.Cut(revisions[0], "=")
	}
	text, _ := json.Marshal(said) // our own type
	c.ensure(builtin("ConfigMap"), v1alpha1.ReportConfigMap, part{"data": part{v1alpha1.ReportKey: string(text)}})
	if hints := builtin("ConfigMap"); c.objects[hints.key(v1alpha1.AgentNamespace, v1alpha1.HintsConfigMap)] == nil {
		c.ensure(hints, v1alpha1.HintsConfigMap, part{}) // in which the parent writes
	}
	for _, name := range []string{v1alpha1.LeaderLease, v1alpha1.HeartbeatLease} {
		c.renewed(name, report.Digest(string(text)))
	}
}

// renewed writes a lease that the agent renews from then on, with the digest of its report.
func (c *Cluster) renewed(name, digest string) {
	lease := c.ensure(builtin("Lease"), name, part{
		"labels": part{v1alpha1.ReportLabel: digest},
		"spec": part{
			"holderIdentity": "cascade-simulated", "leaseDurationSeconds": int64(15), "leaseTransitions": int64(0),
			"acquireTime": c.fleet.start.UTC().Format(metav1.RFC3339Micro), "renewTime": marks[holeRenewed],
		},
	})
	if lease != nil && !lease.renewing {
		renewing := *lease
		renewing.renewing = true
		c.objects[lease.kind.key(lease.namespace, lease.name)] = &renewing
	}
}

// below is the part of a report that is about n clusters below a tier, of which one in a
// hundred is not ready.
func below(n int, since metav1.Time) *v1alpha1.Report {
	var known report.Below
	for i := range n {
		child := &v1alpha1.Child{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: fmt.Sprintf("tenant-%04d", i), Labels: map[string]string{v1alpha1.OwnerLabel: "team"}}}
		ready := metav1.Condition{Type: v1alpha1.ReadyCondition, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonSucceeded, LastTransitionTime: since}
		if i%100 == 99 {
			ready.Status, ready.Reason, ready.Message = metav1.ConditionFalse, v1alpha1.ReasonKustomizationFailing, "Kustomization/apps/shop: HealthCheckFailed: waiting for Deployment/apps/shop"
		}
		child.Status.Conditions = []metav1.Condition{ready}
		child.Status.Version = "v1.36.3"
		child.Status.Report = &v1alpha1.Report{Agent: "v1", Ready: true, Reason: v1alpha1.ReasonSucceeded, Since: since, Revision: "main@sha1:" + strings.Repeat("0123456789", 4)}
		known.Put(child)
	}
	return report.Compute(report.Facts{Below: &known}, nil, since)
}

// ensure creates or replaces an object of the agent's namespace.
func (c *Cluster) ensure(k *kind, name string, with part) *record {
	object := part{"metadata": part{"name": name, "namespace": v1alpha1.AgentNamespace}}
	for key, v := range with {
		if key == "labels" {
			child(object, "metadata")[key] = v
		} else {
			object[key] = v
		}
	}
	content, err := c.fleet.store.content(k, object)
	if err != nil {
		c.fleet.complain(err)
		return nil
	}
	w := write{kind: k, version: k.stored, operation: opControl, namespace: v1alpha1.AgentNamespace, name: name, manager: agentManager}
	o := outcome{content: content, managed: c.fleet.store.managedSet([]metav1.ManagedFieldsEntry{{
		Manager: agentManager, Operation: metav1.ManagedFieldsOperationApply, APIVersion: k.apiVersion(k.stored), FieldsType: "FieldsV1",
		FieldsV1: metav1.NewFieldsV1(`{}`),
	}})}
	r, _ := c.commit(w, o, c.objects[k.key(w.namespace, name)], false)
	return r
}
