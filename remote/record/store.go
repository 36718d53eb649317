package record

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/remote/epoch"
)

// manager is the field manager of records.
const manager = "cascade-record"

// ErrMoved: somebody else wrote the record since it was read.
var ErrMoved = errors.New("the record of the layer in the child was written by another process meanwhile")

// Get reads the record of a layer from its ConfigMap, which read reads by its name. One
// that is not there is empty, and Put creates it.
func Get(ctx context.Context, read func(ctx context.Context, name string) (*corev1.ConfigMap, error), layer types.NamespacedName) (*Record, error) {
	cm, err := read(ctx, Name(layer))
	if apierrors.IsNotFound(err) {
		return &Record{Layer: layer}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read the record of layer %s in the child: %w", layer, err)
	}
	room := int64(maxRoom)
	return decode(layer, cm, &room)
}

// Put writes the record, unless that is what stands in the child. If somebody else wrote it since it was read, Put changes
// nothing and returns ErrMoved: the caller reads it again and decides anew.
func (r *Record) Put(ctx context.Context, child client.Writer) error {
	cm, err := r.encode()
	if err != nil {
		return err
	}
	text, packed := cm.Data[headKey], cm.BinaryData[inventoryKey]
	if r.version != "" && text == r.text && bytes.Equal(packed, r.packed) {
		return nil
	}
	if r.version == "" {
		err = child.Create(ctx, cm, client.FieldOwner(manager))
	} else {
		err = child.Update(ctx, cm, client.FieldOwner(manager))
	}
	switch {
	case apierrors.IsAlreadyExists(err), apierrors.IsConflict(err), apierrors.IsNotFound(err) && r.version != "":
		return fmt.Errorf("cannot write the record of layer %s: %w", r.Layer, ErrMoved)
	case err != nil:
		return fmt.Errorf("cannot write the record of layer %s in the child: %w", r.Layer, err)
	}
	r.version, r.text, r.packed, r.there, r.by = cm.ResourceVersion, text, packed, slices.Clone(r.Inventory), r.Parent
	return nil
}

// Delete removes the record, if it is the one that was read.
func (r *Record) Delete(ctx context.Context, child client.Writer) error {
	if r.version == "" {
		return nil
	}
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.AgentNamespace, Name: Name(r.Layer)}}
	err := child.Delete(ctx, cm, &client.DeleteOptions{Preconditions: &metav1.Preconditions{ResourceVersion: &r.version}})
	switch {
	case apierrors.IsConflict(err):
		return fmt.Errorf("cannot delete the record of layer %s: %w", r.Layer, ErrMoved)
	case err != nil && !apierrors.IsNotFound(err):
		return fmt.Errorf("cannot delete the record of layer %s in the child: %w", r.Layer, err)
	}
	r.version, r.text, r.packed, r.there, r.by = "", "", nil, nil, epoch.Mark{}
	return nil
}

// List reads the records of all layers. One that cannot be used is left out: it is an
// error of its layer. All of them together are unusable if they take too much room.
func List(ctx context.Context, child client.Reader) ([]*Record, error) {
	list := &corev1.ConfigMapList{}
	if err := child.List(ctx, list, client.InNamespace(v1alpha1.AgentNamespace), client.MatchingLabels{v1alpha1.RecordLabel: "layer"}); err != nil {
		return nil, fmt.Errorf("cannot list the records of layers in the child: %w", err)
	}
	room := int64(listRoom)
	records := make([]*Record, 0, len(list.Items))
	for i := range list.Items {
		var h head
		if err := json.Unmarshal([]byte(list.Items[i].Data[headKey]), &h); err != nil {
			continue
		}
		namespace, name, _ := strings.Cut(h.Layer, "/")
		r, err := decode(types.NamespacedName{Namespace: namespace, Name: name}, &list.Items[i], &room)
		if room < 0 {
			return nil, fmt.Errorf("%w: all of them take more than %d bytes; delete the ConfigMaps with label %s in namespace %s of the child that are of no use",
				ErrUnusable, listRoom, v1alpha1.RecordLabel, v1alpha1.AgentNamespace)
		}
		if err == nil && list.Items[i].Name == Name(r.Layer) {
			records = append(records, r)
		}
	}
	return records, nil
}
