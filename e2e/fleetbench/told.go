package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	fluxmeta "github.com/fluxcd/pkg/apis/meta"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/e2e/fleetsim"
	"github.com/cascade-gitops/cascade/e2e/testbed"
)

// late is when all messages about a cause are there: an Alert waits at most two minutes for more of
// one cause, and tells once more five minutes later what came since.
const late = 8 * time.Minute

// measureTold seeds a fleet, tells its hub of a push, and measures how long it takes until all
// children know; then it lets all children fail for one cause, and counts what people are told.
func measureTold(ctx context.Context, o options) (results []result, err error) {
	s, err := setUp(ctx, o, o.told)
	if s != nil {
		defer func() { err = errors.Join(err, s.close(err)) }()
	}
	if err != nil {
		return nil, err
	}
	hook, err := testbed.FreeAddress()
	if err != nil {
		return nil, err
	}
	s.options.args = append(s.options.args, "--receiver-addr", hook)
	chat, err := startChat()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, chat.Close()) }()
	if err := s.declareTold(ctx, chat.url); err != nil {
		return nil, err
	}
	for _, step := range []func(context.Context) (result, error){
		s.seed,
		func(ctx context.Context) (result, error) { return s.push(ctx, "http://"+hook) },
		func(ctx context.Context) (result, error) { return s.fail(ctx, chat) },
	} {
		r, err := step(ctx)
		if err != nil {
			return results, err
		}
		tell(r)
		results = append(results, r)
		if err := pause(ctx, o.settle); err != nil {
			return results, err
		}
	}
	return results, nil
}

// declareTold creates the Receiver of the repository, and an Alert about all children.
func (s *stand) declareTold(ctx context.Context, chat string) error {
	object := func(apiVersion, kind string, spec map[string]any) *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": apiVersion, "kind": kind, "metadata": map[string]any{"name": "told", "namespace": namespace}, "spec": spec,
		}}
	}
	for _, o := range []client.Object{
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "told", Namespace: namespace}, StringData: map[string]string{"token": "told"}},
		object("notification.toolkit.fluxcd.io/v1", "Receiver", map[string]any{
			"type": "generic", "secretRef": map[string]any{"name": "told"}, "resources": []any{map[string]any{"kind": "GitRepository", "name": repository}},
		}),
		object("notification.toolkit.fluxcd.io/v1beta3", "Provider", map[string]any{"type": "slack", "address": chat}),
		object("notification.toolkit.fluxcd.io/v1beta3", "Alert", map[string]any{
			"providerRef": map[string]any{"name": "told"}, "eventSeverity": "error", "eventSources": []any{map[string]any{"kind": "Child", "name": "*"}},
		}),
	} {
		if err := s.Client.Create(ctx, o); err != nil {
			return fmt.Errorf("cannot create %s: %w", o.GetObjectKind().GroupVersionKind().Kind, err)
		}
	}
	return nil
}

// push tells the hub that the repository has something new, and waits until each child was told.
// The repository has nothing new, so that nothing else is written in the children.
func (s *stand) push(ctx context.Context, address string) (result, error) {
	r := s.result("push")
	path := ""
	if err := s.until(ctx, "the Receiver has a path", func() (bool, error) {
		receiver := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "notification.toolkit.fluxcd.io/v1", "kind": "Receiver"}}
		if err := s.Client.Get(ctx, types.NamespacedName{Namespace: namespace, Name: "told"}, receiver); err != nil {
			return false, err
		}
		var err error
		path, _, err = unstructured.NestedString(receiver.Object, "status", "webhookPath")
		return path != "", err
	}); err != nil {
		return r, err
	}
	return r, s.cost(ctx, &r, nil, func() error {
		begin := time.Now()
		request, err := http.NewRequestWithContext(ctx, http.MethodPost, address+path, nil)
		if err != nil {
			return err
		}
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			return fmt.Errorf("cannot tell of a push: %w", err)
		}
		if err := response.Body.Close(); err != nil {
			return err
		}
		if response.StatusCode != http.StatusOK {
			return fmt.Errorf("cannot tell of a push: %s", response.Status)
		}
		times := map[string]time.Time{}
		if err := s.until(ctx, "each child is told", func() (bool, error) {
			reached, err := s.control.Reached(ctx, "patch configmaps")
			for _, name := range reached {
				if _, known := times[name]; !known {
					times[name] = time.Now()
				}
			}
			return len(times) == len(s.names), err
		}); err != nil {
			return fmt.Errorf("%d of %d children were told: %w", len(times), len(s.names), err)
		}
		all := make([]time.Time, 0, len(times))
		for _, at := range times {
			all = append(all, at)
		}
		r.spread(begin, all)
		return nil
	})
}

// fail has all children refuse what a commit brings, and counts the messages about that. One
// cause is one message, and one more for those that came late (decision 072).
func (s *stand) fail(ctx context.Context, to *chat) (result, error) {
	r := s.result("one cause")
	if err := s.control.SetFaults(ctx, s.names, fleetsim.Faults{DeadWebhook: time.Second, Latency: s.options.latency}); err != nil {
		return r, err
	}
	commit, err := s.commit(ctx, "refused")
	if err != nil {
		return r, err
	}
	before, _ := to.told("")
	return r, s.cost(ctx, &r, map[string]int{"PATCH gitrepositories": 1}, func() error {
		begin := time.Now()
		patch := fmt.Sprintf(`{"metadata":{"annotations":{%q:%q}}}`, fluxmeta.ReconcileRequestAnnotation, commit)
		if err := s.Client.Patch(ctx, s.GitRepository(namespace, repository), client.RawPatch(types.MergePatchType, []byte(patch))); err != nil {
			return err
		}
		times, err := s.await(ctx, s.names, "not ready", func(c state) bool { return !c.ready })
		if err != nil {
			return err
		}
		r.spread(begin, times)
		if err := pause(ctx, late); err != nil {
			return err
		}
		all, of := to.told(v1alpha1.ReasonSeedFailed)
		r.Messages = of
		fmt.Fprintf(os.Stderr, "%d children failed for one cause: %d messages about that, %d about others, of which %d came before\n", len(s.names), of, all-of, before)
		return nil
	})
}

// chat is a server that people are told by.
type chat struct {
	url    string
	server *http.Server
	begun  time.Time

	mu    sync.Mutex // guards texts
	texts []string
}

func startChat() (*chat, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	c := &chat{url: "http://" + l.Addr().String() + "/chat", begun: time.Now()}
	c.server = &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(io.LimitReader(r.Body, 1<<20))
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		fmt.Fprintf(os.Stderr, "told after %.0f s: %s\n", time.Since(c.begun).Seconds(), body)
		c.mu.Lock()
		defer c.mu.Unlock()
		c.texts = append(c.texts, string(body))
	})}
	go func() { _ = c.server.Serve(l) }() // until Close
	return c, nil
}

// told is how many messages there were, and how many of them have a text.
func (c *chat) told(text string) (all, with int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, t := range c.texts {
		if strings.Contains(t, text) {
			with++
		}
	}
	return len(c.texts), with
}

// Close ends the server.
func (c *chat) Close() error { return c.server.Close() }
