package capibridge

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/cache"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/syncer/expression"
	"github.com/cascade-gitops/cascade/syncer/worker"
)

// Gates that a Layer names by a word; anything else is a CEL expression.
const (
	WhenControlPlaneInitialized = "ControlPlaneInitialized"
	WhenAvailable               = "Available"
)

// Verdict says whether a cluster may be pushed to, and if not, why.
type Verdict struct {
	Open    bool
	Reason  string
	Message string
}

const (
	// answersHold is for how long the answer about a Cluster that does not change is kept: one
	// that was late may have been so for what else the machine did.
	answersHold = 10 * time.Minute
	// mostAnswers bounds what is kept.
	mostAnswers = 4096
)

// Gates decides about clusters and keeps the answers of expressions: a child is looked at
// far more often than its Cluster changes. The zero value is ready; it may be used by many
// goroutines.
type Gates struct {
	once    sync.Once
	answers *cache.LRUExpireCache
}

// asked is an expression about a state of a Cluster.
type asked struct {
	expression string
	uid        types.UID
	version    string
}

// answer is what an expression said, or why it says nothing.
type answer struct {
	open bool
	err  error
}

// Gate decides whether a layer may be pushed to a cluster. That the API server
// answers is for the caller to find out. Workers evaluate expressions, with the tasks of
// package expression.
func (g *Gates) Gate(ctx context.Context, workers worker.Runner, c Cluster, readyWhen string) Verdict {
	closed := func(reason, format string, args ...any) Verdict {
		return Verdict{Reason: reason, Message: fmt.Sprintf(format, args...)}
	}
	switch {
	case c.Deleting:
		return closed(v1alpha1.ReasonClusterDeleting, "Cluster is being deleted")
	case c.Paused:
		return closed(v1alpha1.ReasonPaused, "Cluster is paused")
	case !c.InfrastructureProvisioned:
		return closed(v1alpha1.ReasonClusterNotReady, "infrastructure is not provisioned yet")
	case !c.ControlPlaneInitialized:
		return closed(v1alpha1.ReasonClusterNotReady, "control plane is not initialized yet")
	}
	switch readyWhen {
	case "", WhenControlPlaneInitialized:
		return Verdict{Open: true}
	case WhenAvailable:
		if !c.Available {
			return closed(v1alpha1.ReasonClusterNotReady, "Cluster is not Available yet, as readyWhen asks")
		}
		return Verdict{Open: true}
	}
	open, err := g.evaluate(ctx, workers, readyWhen, c.Object)
	switch {
	case refused(err):
		return closed(v1alpha1.ReasonInvalidSpec, "cannot evaluate readyWhen: %s", err)
	case err != nil:
		return closed(v1alpha1.ReasonClusterNotReady, "cannot evaluate readyWhen: %s", err)
	case !open:
		return closed(v1alpha1.ReasonClusterNotReady, "readyWhen %q is false", readyWhen)
	}
	return Verdict{Open: true}
}

func (g *Gates) evaluate(ctx context.Context, workers worker.Runner, text string, cluster map[string]any) (bool, error) {
	g.once.Do(func() { g.answers = cache.NewLRUExpireCache(mostAnswers) })
	u := unstructured.Unstructured{Object: cluster}
	key := asked{text, u.GetUID(), u.GetResourceVersion()}
	if known, ok := g.answers.Get(key); ok {
		return known.(answer).open, known.(answer).err
	}
	open, err := expression.Rule(ctx, workers, text, "cluster", cluster)
	if key.version != "" && (err == nil || refused(err)) {
		g.answers.Add(key, answer{open, err}, answersHold)
	}
	return open, err
}

// refused reports whether an expression is to blame, and not what should evaluate it.
func refused(err error) bool {
	var failed *worker.TaskError
	var exceeded *worker.Exceeded
	return errors.Is(err, expression.ErrLate) || errors.As(err, &failed) || errors.As(err, &exceeded)
}
