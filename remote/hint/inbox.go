package hint

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	ctrlcache "sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
)

// Manager is the field manager of what the agent of a tier writes of hints, and of what its
// parent does.
const Manager = "cascade-hints"

const (
	// writeTimeout bounds a write of the ConfigMap, and mostTries how often it is tried
	// because another replica wrote it meanwhile.
	writeTimeout = 5 * time.Second
	mostTries    = 5
	// retryPause is the pause after the ConfigMap could not be made.
	retryPause = 10 * time.Second
)

// Sources are those of the tier; see Matcher.
type Sources interface {
	// Wake requests a reconcile of the tier's own sources of these repositories.
	Wake(ctx context.Context, hints []Hint)
}

// Inbox reads the hints of a tier. It is a Runnable of each replica.
type Inbox struct {
	Namespace string
	Client    client.Client
	// Reader reads from the API server.
	Reader client.Reader
	// Cache watches the one ConfigMap.
	Cache ctrlcache.Cache
	// Elected is closed when this process comes to lead the tier.
	Elected <-chan struct{}
	// Sources are nil if this process reconciles none.
	Sources Sources
	// Teller is nil if this process passes nothing on.
	Teller *Teller
	// Heard is told of each hint, whoever it is of; it may be nil, and does not wait.
	Heard func([]Hint)
	// Passed reports whether somebody may be below this tier: without, what Receivers heard is
	// not written down.
	Passed func() bool
	// ID returns another text each time, which nobody else has.
	ID  func() string
	Log logr.Logger

	mu   sync.Mutex // guards seen
	seen memory
}

// NeedLeaderElection is false: each replica passes on to the children that it drives.
func (i *Inbox) NeedLeaderElection() bool { return false }

func (i *Inbox) object() *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
		Namespace: i.Namespace, Name: v1alpha1.HintsConfigMap, Labels: map[string]string{"app.kubernetes.io/name": v1alpha1.AgentName},
	}}
}

// Start reads hints until the context ends.
func (i *Inbox) Start(ctx context.Context) error {
	informer, err := i.Cache.GetInformer(ctx, &corev1.ConfigMap{})
	if err != nil {
		return fmt.Errorf("cannot watch hints: %w", err)
	}
	var mu sync.Mutex // guards waiting: hints for the tier's own sources
	var waiting []Hint
	news, gone := make(chan struct{}, 1), make(chan struct{}, 1)
	wake := func(c chan struct{}) {
		select {
		case c <- struct{}{}:
		default: // whoever reads takes all that waits
		}
	}
	changed := func(o any, first bool) {
		of := i.read(o, first)
		if i.Heard != nil {
			i.Heard(slices.Concat(of.parent, of.tier))
		}
		if len(of.parent) > 0 {
			mu.Lock()
			waiting = merge(waiting, of.parent)
			mu.Unlock()
			wake(news)
		}
		if i.Teller != nil {
			i.Teller.Tell(slices.Concat(of.parent, of.tier))
		}
	}
	registration, err := informer.AddEventHandler(cache.ResourceEventHandlerDetailedFuncs{
		AddFunc:    func(o any, first bool) { changed(o, first) },
		UpdateFunc: func(_, o any) { changed(o, false) },
		DeleteFunc: func(any) { wake(gone) },
	})
	if err != nil {
		return fmt.Errorf("cannot watch hints: %w", err)
	}
	defer func() { _ = informer.RemoveEventHandler(registration) }()
	again := time.NewTimer(0)
	defer again.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-gone:
			again.Reset(0)
		case <-again.C:
			if err := i.make(ctx); err != nil && ctx.Err() == nil {
				i.Log.Error(err, "cannot make the ConfigMap of hints; trying again", "name", v1alpha1.HintsConfigMap)
				again.Reset(retryPause)
			}
		case <-news:
			mu.Lock()
			hints := waiting
			waiting = nil
			mu.Unlock()
			if i.leads() && i.Sources != nil {
				i.Sources.Wake(ctx, hints)
			}
		}
	}
}

func (i *Inbox) leads() bool {
	select {
	case <-i.Elected:
		return true
	default:
		return false
	}
}

// make makes the ConfigMap if there is none: the parent may write an entry of it, and not
// make it.
func (i *Inbox) make(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	if err := i.Reader.Get(ctx, client.ObjectKeyFromObject(i.object()), &corev1.ConfigMap{}); !apierrors.IsNotFound(err) {
		return err
	}
	err := i.Client.Create(ctx, i.object(), client.FieldOwner(Manager))
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

// found are hints that this process had not seen.
type found struct{ parent, tier []Hint }

// read takes the news out of the ConfigMap. What is there when the process begins is old: it
// fetches all of its sources at that time.
func (i *Inbox) read(o any, first bool) found {
	cm, ok := o.(*corev1.ConfigMap)
	if !ok || cm.Namespace != i.Namespace || cm.Name != v1alpha1.HintsConfigMap {
		return found{}
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	f := found{parent: i.seen.news(Parse(cm.Data[v1alpha1.HintsOfParentKey])), tier: i.seen.news(Parse(cm.Data[v1alpha1.HintsOfTierKey]))}
	if first {
		return found{}
	}
	return f
}

// Told is what a Receiver of this tier was told of.
type Told struct {
	// URL of a repository, and the commit that there is if that was told.
	URL, Revision string
}

// Publish writes down what a Receiver of this tier was told, for the replicas that pass it on.
// A write that fails is logged: the tiers below poll.
func (i *Inbox) Publish(ctx context.Context, told []Told) {
	if !i.Passed() {
		return
	}
	var hints []Hint
	for _, t := range told {
		repository := Repository(t.URL)
		if repository == "" {
			continue
		}
		h := Hint{ID: i.ID(), Repository: repository, Revision: t.Revision}
		if len(h.Revision) > mostRevision || !isWord(h.Revision) {
			h.Revision = ""
		}
		hints = merge(hints, []Hint{h})
	}
	if len(hints) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), writeTimeout)
	defer cancel()
	if err := i.add(ctx, hints); err != nil {
		i.Log.Error(err, "cannot write down what is to be passed on to children; they poll")
	}
}

// add adds hints to the tier's own entry.
func (i *Inbox) add(ctx context.Context, hints []Hint) error {
	for try := 1; ; try++ {
		cm := &corev1.ConfigMap{}
		err := i.Reader.Get(ctx, types.NamespacedName{Namespace: i.Namespace, Name: v1alpha1.HintsConfigMap}, cm)
		if err != nil {
			return fmt.Errorf("cannot read ConfigMap %s: %w", v1alpha1.HintsConfigMap, err)
		}
		before := cm.DeepCopy()
		text, err := Encode(merge(Parse(cm.Data[v1alpha1.HintsOfTierKey]), hints))
		if err != nil {
			return err
		}
		if cm.Data == nil {
			cm.Data = map[string]string{}
		}
		cm.Data[v1alpha1.HintsOfTierKey] = text
		err = i.Client.Patch(ctx, cm, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}), client.FieldOwner(Manager))
		if err == nil {
			return nil
		}
		if !apierrors.IsConflict(err) || try == mostTries || ctx.Err() != nil {
			return fmt.Errorf("cannot write ConfigMap %s: %w", v1alpha1.HintsConfigMap, errors.Join(err, ctx.Err()))
		}
	}
}

// has reports whether a revision of an artifact is of a commit.
func has(artifact, commit string) bool {
	return commit != "" && (strings.HasSuffix(artifact, ":"+commit) || strings.HasSuffix(artifact, "/"+commit))
}
