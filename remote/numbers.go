package remote

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
)

// numbersPause is the least time between a write of a Rollout or a Layer and the next one
// that tells other numbers, names and messages, and nothing else. A store keeps each state of
// an object as a whole: while children change by the hundred, one write each second of what
// counts them would cost as much as all of the children.
const numbersPause = 5 * time.Second

// numbers remembers when statuses with numbers were written last. It is safe for concurrent
// use.
type numbers struct {
	mu sync.Mutex
	at map[types.NamespacedName]time.Time
}

// early is how long to wait before other numbers are written; zero writes them now.
func (n *numbers) early(key types.NamespacedName, now time.Time) time.Duration {
	n.mu.Lock()
	defer n.mu.Unlock()
	// A clock that was set back holds nothing up.
	if wait := numbersPause - now.Sub(n.at[key]); wait > 0 && wait <= numbersPause {
		return wait
	}
	return 0
}

// wrote remembers a write.
func (n *numbers) wrote(key types.NamespacedName, now time.Time) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.at == nil {
		n.at = map[types.NamespacedName]time.Time{}
	}
	n.at[key] = now
}

func (n *numbers) forget(key types.NamespacedName) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.at, key)
}

// onlyNumbers reports whether two statuses of a Rollout differ in nothing but what is counted
// and said: no decision is made from that.
func onlyNumbers(a, b *v1alpha1.RolloutStatus) bool {
	rest := func(s *v1alpha1.RolloutStatus) v1alpha1.RolloutStatus {
		c := *s
		c.Waves, c.Clusters, c.Unassigned, c.Failing, c.Conditions = nil, v1alpha1.RolloutCounts{}, 0, nil, withoutMessages(s.Conditions)
		return c
	}
	return equality.Semantic.DeepEqual(rest(a), rest(b))
}

// onlyCounts reports the same of two statuses of a Layer. What is on record of it decides
// about removals, and is written at once.
func onlyCounts(a, b *v1alpha1.LayerStatus) bool {
	rest := func(s *v1alpha1.LayerStatus) v1alpha1.LayerStatus {
		c := *s
		c.Children, c.Failing, c.Conditions = v1alpha1.ChildCounts{}, nil, withoutMessages(s.Conditions)
		return c
	}
	return equality.Semantic.DeepEqual(rest(a), rest(b))
}

func withoutMessages(conditions []metav1.Condition) []metav1.Condition {
	list := make([]metav1.Condition, len(conditions))
	for i, c := range conditions {
		c.Message = ""
		list[i] = c
	}
	return list
}
