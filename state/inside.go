package state

import (
	"context"
	"encoding/base64"
	"fmt"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	kube "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/clusterapi"
	"github.com/cascade-gitops/cascade/capibridge"
	"github.com/cascade-gitops/cascade/syncer/answer"
)

const (
	// insideTimeout is how long one cluster is asked for its own Cluster. Of a tier that is lost, many may
	// be out of reach.
	insideTimeout = 15 * time.Second
	// insideMost are asked at a time.
	insideMost = 64
)

// Inside reads the Cluster of a name in the cluster that a kubeconfig is of; nil if that manages none of that
// name.
func Inside(ctx context.Context, kubeconfig []byte, name types.NamespacedName) (*unstructured.Unstructured, error) {
	ctx, cancel := context.WithTimeout(ctx, insideTimeout)
	defer cancel()
	config, err := (capibridge.Allowed{}).Kubeconfig(kubeconfig)
	if err != nil {
		return nil, err
	}
	if err := (answer.Addresses{}).Guard(config); err != nil {
		return nil, err
	}
	c, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("cannot use kubeconfig: %w", err)
	}
	definition, err := c.Resource(definitions.GroupVersion().WithResource("customresourcedefinitions")).Get(ctx, clusterapi.ClusterCRD, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil // it has no Cluster API
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read CRD %s: %w", clusterapi.ClusterCRD, err)
	}
	kind := clusterapi.ClusterKind.WithVersion(clusterapi.VersionOf(definition))
	u, err := c.Resource(kind.GroupVersion().WithResource("clusters")).Namespace(name.Namespace).Get(ctx, name.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read Cluster %s: %w", name, err)
	}
	return u, nil
}

// ask finds out which Clusters of a plan manage themselves by now. A pivot that gave one to itself after the
// state was saved is on record in the lost tier alone, and there. It says so in the step of each.
func (r *restorer) ask(ctx context.Context) {
	if r.options.Inside == nil {
		return
	}
	steps := map[key]*Step{}
	for _, s := range r.plan.steps {
		steps[s.key] = s
	}
	places := make(chan struct{}, insideMost)
	var asked sync.WaitGroup
	defer asked.Wait()
	for _, name := range r.plan.resume {
		s := steps[clusterKey(name)]
		secret := steps[key{secrets.GroupKind(), kube.ObjectKey{Namespace: name.Namespace, Name: clusterapi.KubeconfigSecret(name.Name)}}]
		if s == nil || s.Reason != "" || secret == nil { // it stays paused, or never had an API server
			continue
		}
		text, _, _ := unstructured.NestedString(secret.saved.Object, "data", clusterapi.KubeconfigKey)
		places <- struct{}{}
		asked.Go(func() {
			defer func() { <-places }()
			kubeconfig, err := base64.StdEncoding.DecodeString(text)
			var there *unstructured.Unstructured
			if err == nil {
				there, err = r.options.Inside(ctx, kubeconfig, name)
			}
			switch {
			case err != nil:
				s.Reason, s.Why = ReasonNotAsked, "it is not known whether it manages itself since the state was saved, which does not hold it up: "+err.Error()
			case there != nil && restoringFrom(there) == "":
				s.Reason, s.Why = ReasonMovedAway, "it manages itself by now, as after a move that the state does not have: it stays paused here; where it is not to, take spec.paused off it once nothing manages it there"
			}
		})
	}
}
