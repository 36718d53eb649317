package link

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"

	"k8s.io/apimachinery/pkg/types"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
)

// hintsPath is where the parent writes hints, under a field manager of its own.
const (
	hintsPath    = "/api/v1/namespaces/" + v1alpha1.AgentNamespace + "/configmaps/" + v1alpha1.HintsConfigMap
	hintsManager = "cascade-parent-hints"
)

// ErrNoHints: the agent of the child is of a version that takes no hints, or has not started.
var ErrNoHints = errors.New("the child takes no hints")

// TakesHints says whether the child is told of what repositories have: it has an agent, and
// nobody suspended or paused it. recorded is the identity that it must have.
func (l *Link) TakesHints(takes bool, recorded string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.hinted = ""; takes {
		l.hinted = recorded
	}
}

// Hinted are the children that are driven here, answered their last probe, and take hints.
func (c *Pool) Hinted() []types.NamespacedName {
	c.mu.Lock()
	links := make([]*Link, 0, len(c.links))
	for _, l := range c.links {
		links = append(links, l)
	}
	c.mu.Unlock()
	var keys []types.NamespacedName
	for _, l := range links {
		if as, _ := l.hints(); as != nil {
			keys = append(keys, l.key)
		}
	}
	return keys
}

// hints is who may write hints, and the identity that the child must have.
func (l *Link) hints() (as *caller, recorded string) {
	as = l.account()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.hinted == "" {
		return nil, ""
	}
	return as, l.hinted
}

// Hint writes the parent's entry of the hints in a child, as the parent's own account, after
// it read that the child is the recorded cluster. A child without the ConfigMap has an agent
// of an earlier version: nothing is made there. One that forbids it has the next Grant write the rights
// again. It is safe for concurrent use, beside probes
// and sessions.
func (c *Pool) Hint(ctx context.Context, child types.NamespacedName, entry string) error {
	c.mu.Lock()
	l := c.links[child]
	c.mu.Unlock()
	if l == nil {
		return ErrUnknown
	}
	as, recorded := l.hints()
	if as == nil {
		return ErrNotConnected
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(l.life, cancel)()
	uid, err := kubeSystemUID(ctx, as)
	if err != nil {
		return err
	}
	if uid != recorded {
		return fmt.Errorf("cannot hint: %w", &IdentityError{Found: uid, Recorded: recorded})
	}
	body, err := json.Marshal(map[string]any{"data": map[string]string{v1alpha1.HintsOfParentKey: entry}})
	if err != nil {
		return fmt.Errorf("cannot encode hints: %w", err)
	}
	u := as.base.JoinPath(hintsPath)
	u.RawQuery = "fieldManager=" + hintsManager
	r, err := http.NewRequestWithContext(ctx, http.MethodPatch, u.String(), bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("cannot hint: %w", err)
	}
	r.Header.Set("Content-Type", string(types.MergePatchType))
	r.Header.Set("Accept", "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json")
	response, err := as.http.Do(r)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	_, _ = io.Copy(io.Discard, io.LimitReader(response.Body, 64<<10)) // so that the connection can be used again
	switch response.StatusCode {
	case http.StatusOK, http.StatusCreated:
		return nil
	case http.StatusNotFound:
		return ErrNoHints
	}
	return fmt.Errorf("cannot hint: the child answered %d", response.StatusCode)
}
