package apply

import (
	"context"
	"fmt"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Numbers of the census.
const (
	// censusAfter is how many single reads of a kind in a namespace within
	// censusTTL make a list cheaper than the next.
	censusAfter = 8
	// censusTTL is how long a list stands for the state of the cluster. Flux
	// reads an object before it applies the whole stage that the object is in,
	// so what it decides by is as old as this or older.
	censusTTL = 5 * time.Second
	// censusMost bounds a list. Where there is more, objects are read singly.
	censusMost = 500
)

// census answers what there is under a name that the watch of owned objects
// does not show: nothing, most of the time. While many objects are created it
// lists the objects without an owner label once instead of asking for each.
type census struct {
	mu     sync.Mutex
	places map[place]*count
}

type place struct {
	resource  schema.GroupVersionResource
	namespace string
	without   string
}

type count struct {
	mu      sync.Mutex
	since   time.Time
	reads   int
	crowded bool
	objects map[string]*Live
}

func (c *census) at(p place) *count {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.places == nil || len(c.places) > 1000 {
		c.places = map[place]*count{}
	}
	n := c.places[p]
	if n == nil {
		n = &count{}
		c.places[p] = n
	}
	return n
}

// peek reads the metadata of an object that does not carry the label; nil if
// there is none.
func (c *Cluster) peek(ctx context.Context, resource schema.GroupVersionResource, namespace, name, label string, now time.Time) (*Live, error) {
	client := c.metadata.Resource(resource).Namespace(namespace)
	n := c.census.at(place{resource, namespace, label})
	n.mu.Lock()
	if now.Sub(n.since) > censusTTL {
		n.since, n.reads, n.objects, n.crowded = now, 0, nil, false
	}
	n.reads++
	if label != "" && n.reads > censusAfter && !n.crowded {
		// The lock is held: the others wait for this list instead of asking.
		defer n.mu.Unlock()
		if n.objects == nil {
			list, err := client.List(ctx, metav1.ListOptions{LabelSelector: "!" + label, Limit: censusMost})
			if err != nil {
				return nil, fmt.Errorf("cannot list %s in namespace %q: %w", resource.Resource, namespace, err)
			}
			if list.Continue != "" {
				n.crowded = true
				return c.read(ctx, resource, namespace, name)
			}
			n.objects = make(map[string]*Live, len(list.Items))
			for i := range list.Items {
				n.objects[list.Items[i].Name] = c.liveOf(&list.Items[i])
			}
		}
		return n.objects[name], nil
	}
	n.mu.Unlock()
	return c.read(ctx, resource, namespace, name)
}

// read reads the metadata of an object; nil if there is none.
func (c *Cluster) read(ctx context.Context, resource schema.GroupVersionResource, namespace, name string) (*Live, error) {
	p, err := c.metadata.Resource(resource).Namespace(namespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read %s %s: %w", resource.Resource, name, err)
	}
	return c.liveOf(p), nil
}
