package remote

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/inventory"
	"github.com/cascade-gitops/cascade/remote/link"
	"github.com/cascade-gitops/cascade/remote/reason"
	"github.com/cascade-gitops/cascade/remote/record"
	"github.com/cascade-gitops/cascade/syncer/apply"
)

// earlierRecord is the record of a layer as earlier versions wrote it: a key of one
// ConfigMap for all layers, and the same inventory in the status of the Child.
type earlierRecord struct {
	Revision   string           `json:"revision,omitempty"`
	Digest     string           `json:"digest,omitempty"`
	Inventory  earlierInventory `json:"inventory"`
	ClusterUID string           `json:"clusterUID,omitempty"`
	Settled    bool             `json:"settled,omitempty"`
}

// earlierInventory is read entry by entry, and no further than the largest one: the child may have a list of
// millions there, each of which takes ten times its text.
type earlierInventory []v1alpha1.InventoryEntry

// UnmarshalJSON implements json.Unmarshaler.
func (l *earlierInventory) UnmarshalJSON(text []byte) error {
	*l = nil
	d := json.NewDecoder(bytes.NewReader(text))
	switch t, err := d.Token(); {
	case err != nil, t == nil: // null, as of a layer without objects
		return err
	case t != json.Delim('['):
		return errors.New("its inventory is not a list")
	}
	for d.More() {
		if len(*l) == record.MaxEntries {
			return fmt.Errorf("its inventory has more than %d entries", record.MaxEntries)
		}
		var e v1alpha1.InventoryEntry
		if err := d.Decode(&e); err != nil {
			return err
		}
		*l = append(*l, e)
	}
	return nil
}

func earlierKey(layer types.NamespacedName) string { return layer.Namespace + "." + layer.Name }

// earlierRecords reads the records of earlier versions in the child, each as it stands.
func earlierRecords(ctx context.Context, session *link.Session) (map[string]string, error) {
	cm := &corev1.ConfigMap{}
	path := "/api/v1/namespaces/" + v1alpha1.AgentNamespace + "/configmaps/" + v1alpha1.SeedConfigMap
	err := session.Read(ctx, path, cm)
	if apierrors.IsNotFound(err) {
		return map[string]string{}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read the records of an earlier version in the child: %w", err)
	}
	if cm.Data == nil {
		return map[string]string{}, nil
	}
	return cm.Data, nil
}

func parseEarlier(key, text string) (earlierRecord, error) {
	var found earlierRecord
	if err := json.Unmarshal([]byte(text), &found); err != nil {
		return found, reason.Because(v1alpha1.ReasonRecordInvalid, fmt.Errorf("cannot parse seed record %s in the child: %w; repair or delete the key in ConfigMap %s/%s",
			key, err, v1alpha1.AgentNamespace, v1alpha1.SeedConfigMap))
	}
	return found, nil
}

// fromEarlier completes a record by what an earlier version recorded of the layer, if one
// did: before the layer had a record, or after that, when the tier went back to the
// earlier version for a while. The inventory in the Child's status, which only earlier
// versions write, shows it, and at the first contact the child itself.
func (p *push) fromEarlier(ctx context.Context, rec *record.Record, entry *v1alpha1.ChildLayer) error {
	if _, ok := p.notes.earlier[earlierKey(rec.Layer)]; rec.Exists() && !ok && len(entry.Inventory) == 0 {
		return nil
	}
	if p.notes.earlier == nil {
		found, err := earlierRecords(ctx, p.session)
		if err != nil {
			return cannotReach(err)
		}
		p.notes.earlier = found
	}
	var found *earlierRecord
	if text, ok := p.notes.earlier[earlierKey(rec.Layer)]; ok {
		parsed, err := parseEarlier(earlierKey(rec.Layer), text)
		if err != nil {
			return err
		}
		found = &parsed
	}
	if err := addEarlier(rec, found, entry); err != nil {
		return reason.Because(v1alpha1.ReasonRecordInvalid, err)
	}
	return nil
}

// addEarlier adds to a record what an earlier version recorded of the layer in the child,
// nil if nothing, and in the Child's status. Objects of either are answered for. The
// layer counts as in place only if all records agree that it is: otherwise it is compared
// with the child.
func addEarlier(rec *record.Record, found *earlierRecord, entry *v1alpha1.ChildLayer) error {
	owned, err := entriesOf(entry.Inventory)
	if err != nil {
		return err
	}
	digests := []string{entry.Digest}
	if found != nil {
		there, err := entriesOf(found.Inventory)
		if err != nil {
			return err
		}
		owned = inventory.Union(there, owned)
		digests = append(digests, found.Digest)
		rec.Settled = rec.Settled || found.Settled
		if !rec.Exists() {
			rec.Cluster.UID = found.ClusterUID
			rec.Applied = record.State{Revision: found.Revision, Digest: found.Digest}
			rec.Attempted = rec.Applied
		}
	}
	rec.Inventory = inventory.Union(owned, rec.Inventory)
	for _, d := range digests {
		if d != rec.Applied.Digest || !entry.Ready && !unsent(entry.Reason) {
			rec.Attempted = record.State{}
		}
	}
	return nil
}

// dropEarlier removes what an earlier version recorded of a layer in the child, now that
// it has a record of its own, or none.
func (p *push) dropEarlier(ctx context.Context, layer types.NamespacedName) error {
	if _, ok := p.notes.earlier[earlierKey(layer)]; !ok {
		return nil
	}
	admin, err := p.session.Administrator(ctx)
	if err != nil {
		return cannotReach(err)
	}
	failed := func(err error) error {
		return reason.Because(v1alpha1.ReasonSeedFailed, fmt.Errorf("cannot remove the record of an earlier version of layer %s in the child: %w", layer, err))
	}
	if len(p.notes.earlier) == 1 {
		cm := &corev1.ConfigMap{}
		cm.Namespace, cm.Name = v1alpha1.AgentNamespace, v1alpha1.SeedConfigMap
		if err := admin.Delete(ctx, cm); client.IgnoreNotFound(err) != nil {
			return failed(err)
		}
	} else if err := removeKey(ctx, admin, earlierKey(layer)); err != nil {
		return failed(err)
	}
	delete(p.notes.earlier, earlierKey(layer))
	return nil
}

// removeKey removes one key of the records of earlier versions, whoever owns the field.
func removeKey(ctx context.Context, admin *apply.Cluster, key string) error {
	patch, err := json.Marshal(map[string]any{"data": map[string]any{key: nil}})
	if err != nil {
		return err
	}
	cm := &unstructured.Unstructured{}
	cm.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("ConfigMap"))
	cm.SetNamespace(v1alpha1.AgentNamespace)
	cm.SetName(v1alpha1.SeedConfigMap)
	return client.IgnoreNotFound(admin.Patch(ctx, cm, client.RawPatch(types.MergePatchType, patch), client.FieldOwner(seedManager)))
}

func entriesOf(refs []v1alpha1.InventoryEntry) ([]inventory.Entry, error) {
	entries := make([]inventory.Entry, 0, len(refs))
	for _, ref := range refs {
		e, err := inventory.Parse(ref.ID, ref.Version)
		if err != nil {
			return nil, err
		}
		entries = append(entries, e)
	}
	return entries, nil
}
