package receive

import (
	"context"
	"crypto/subtle"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"time"

	notificationv1 "github.com/fluxcd/notification-controller/api/v1"
	"github.com/fluxcd/pkg/apis/meta"
	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/net/netutil"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/syncer/worker"
)

const (
	// pathIndex finds Receivers by their path.
	pathIndex = "cascade.webhookPath"
	// pathLength is that of every path: a SHA-256 in hex.
	pathLength = len(notificationv1.ReceiverWebhookPath) + 64
	// secretFor is for how long the Secret of a Receiver is taken to be the same, and
	// secretAgain how old it has to be to be read again for a request that does not fit it.
	secretFor   = 30 * time.Second
	secretAgain = time.Second
	// mostSecrets are kept.
	mostSecrets = 1024
	// secretTimeout bounds reading one.
	secretTimeout = 5 * time.Second
	// retryAfter is what those are told who came at a bad time, in seconds.
	retryAfter = "5"
	// mostLeft is what is read of the body of a request that was answered before, so that its
	// connection can be used again.
	mostLeft = 16 << 10
	// mostConnections bounds what senders hold who do nothing.
	mostConnections = 1024
	// farewell is the time that requests have to end with the process.
	farewell = 5 * time.Second
)

// Options of a Handler.
type Options struct {
	// Receivers reads Receivers from a cache with the index of IndexPaths.
	Receivers client.Reader
	// Secrets reads from the API server.
	Secrets    client.Reader
	Objects    *Objects
	Identities Identities
	Workers    worker.Runner
	Now        func() time.Time
	Log        logr.Logger
	Registry   prometheus.Registerer
}

// Handler serves the paths of Receivers. It is safe for concurrent use.
type Handler struct {
	receivers client.Reader
	secrets   client.Reader
	objects   *Objects
	verifier  verifier
	now       func() time.Time
	log       logr.Logger
	results   *prometheus.CounterVec

	// asking are the places of requests whose issuer is asked, places those that are read, with
	// neighbors of one namespace among them, and acting those that are carried out.
	asking    *places[neighbor]
	places    *places[netip.Addr]
	neighbors *places[neighbor]
	acting    *places[string]

	forged   *budgets[sender]
	visitors *budgets[visitor]
	accepted *budgets[types.NamespacedName]

	mu   sync.Mutex // guards kept; never held over a call
	kept map[types.NamespacedName]keptSecret
}

// keptSecret is what the Secret of a Receiver had.
type keptSecret struct {
	uid        types.UID
	generation int64
	at         time.Time
	data       map[string][]byte
}

// IndexPaths makes the cache find Receivers by their path.
func IndexPaths(ctx context.Context, mgr ctrl.Manager) error {
	return mgr.GetFieldIndexer().IndexField(ctx, &notificationv1.Receiver{}, pathIndex, pathsOf)
}

func pathsOf(o client.Object) []string {
	if path := o.(*notificationv1.Receiver).Status.WebhookPath; path != "" {
		return []string{path}
	}
	return nil
}

// NewHandler returns a Handler, whose metrics are registered.
func NewHandler(o Options) *Handler {
	h := &Handler{
		receivers: o.Receivers, secrets: o.Secrets, objects: o.Objects, now: o.Now, log: o.Log,
		verifier: verifier{identities: o.Identities, workers: o.Workers, google: googleIssuer},
		asking:   newPlaces[neighbor](mostConnections, mostOfRemote), acting: newPlaces[string](mostActing, mostActing/2),
		places: newPlaces[netip.Addr](mostReading, mostOfRemote), neighbors: newPlaces[neighbor](mostConnections, mostOfNamespace),
		forged: newBudgets[sender](forgedRate, forgedBurst), visitors: newBudgets[visitor](forgedRate, forgedBurst), accepted: newBudgets[types.NamespacedName](receiverRate, receiverBurst),
		kept: map[types.NamespacedName]keptSecret{},
		results: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "cascade_receiver_requests_total", Help: "Requests to the paths of Receivers, by what became of them.",
		}, []string{"result"}),
	}
	o.Registry.MustRegister(h.results)
	for _, result := range results() {
		h.results.WithLabelValues(result)
	}
	return h
}

// Serve serves a Handler until the context ends, and closes the listener.
func Serve(ctx context.Context, h http.Handler, listener net.Listener) error {
	server := newServer(h)
	served := make(chan error, 1)
	go func() { served <- server.Serve(netutil.LimitListener(listener, mostConnections)) }()
	select {
	case err := <-served:
		return fmt.Errorf("cannot serve Receivers: %w", err)
	case <-ctx.Done():
	}
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), farewell)
	defer cancel()
	_ = server.Shutdown(last) // who does not leave by then is cut off
	_ = server.Close()
	if err := <-served; !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("cannot serve Receivers: %w", err)
	}
	return nil
}

// newServer serves a Handler with bounds on what slow senders hold.
func newServer(h http.Handler) *http.Server {
	return &http.Server{
		Handler: h, ReadHeaderTimeout: bodyTime, ReadTimeout: readWait + 2*bodyTime, WriteTimeout: 4*readWait + 2*bodyTime + askTime + 2*actTime,
		IdleTimeout: 10 * time.Second, MaxHeaderBytes: 32 << 10,
	}
}

// ServeHTTP implements http.Handler.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("Cache-Control", "no-store")
	err := h.serve(w, r)
	if err == nil {
		h.results.WithLabelValues(resultAccepted).Inc()
		w.WriteHeader(http.StatusOK)
		return
	}
	var why *refusal
	if !errors.As(err, &why) {
		why = &refusal{resultFailed, http.StatusInternalServerError, "the request cannot be carried out now"}
	}
	h.results.WithLabelValues(why.result).Inc()
	if why.status == http.StatusServiceUnavailable || why.status == http.StatusTooManyRequests {
		w.Header().Set("Retry-After", retryAfter)
	}
	if r.ContentLength < 0 || r.ContentLength > mostLeft {
		// What is left of the body is not waited for.
		w.Header().Set("Connection", "close")
	}
	http.Error(w, why.text, why.status)
}

// unknown is the answer to a path that no Receiver has.
func unknown() error { return &refusal{resultUnknown, http.StatusNotFound, "404 page not found"} }

func busy() error {
	return &refusal{resultBusy, http.StatusServiceUnavailable, "too many requests are being read"}
}

func (h *Handler) serve(w http.ResponseWriter, r *http.Request) error {
	found := h.find(r.Context(), r.URL.Path)
	if len(found) == 0 {
		return unknown()
	}
	remote := remoteOf(r.RemoteAddr)
	if r.ContentLength > mostBody {
		return tooLarge()
	}
	// Others may have written the same path into the status of their Receivers: each is
	// asked whether the path is its own.
	for _, receiver := range found {
		v, err := h.check(w, r, receiver, remote)
		switch {
		case is(err, resultUnknown):
			continue
		case err != nil:
			return err
		}
		return h.act(r.Context(), receiver.DeepCopy(), v)
	}
	return unknown()
}

func tooLarge() error {
	return &refusal{resultTooLarge, http.StatusRequestEntityTooLarge, "the body is larger than 1 MiB"}
}

func is(err error, result string) bool {
	var why *refusal
	return errors.As(err, &why) && why.result == result
}

// mostSame bounds the Receivers that are asked about one path.
const mostSame = 8

// find returns the Receivers that say that a path is theirs. They are of the cache, and must not be changed.
func (h *Handler) find(ctx context.Context, path string) []*notificationv1.Receiver {
	if len(path) != pathLength || !strings.HasPrefix(path, notificationv1.ReceiverWebhookPath) {
		return nil
	}
	list := &notificationv1.ReceiverList{}
	if err := h.receivers.List(ctx, list, client.MatchingFields{pathIndex: path}, client.UnsafeDisableDeepCopy); err != nil {
		h.log.Error(err, "cannot look up a Receiver")
		return nil
	}
	var found []*notificationv1.Receiver
	for i := range list.Items {
		if len(found) < mostSame {
			found = append(found, &list.Items[i])
		}
	}
	return found
}

// check reads and verifies a request to a Receiver.
func (h *Handler) check(w http.ResponseWriter, r *http.Request, receiver *notificationv1.Receiver, remote netip.Addr) (*verified, error) {
	from := sender{client.ObjectKeyFromObject(receiver), remote}
	// Without a token in it, the path is no secret. Strangers and the pipeline may come from one Ingress.
	secretPath := receiver.Spec.Type != notificationv1.GenericOIDCReceiver
	if secretPath && !h.forged.left(from, h.now()) {
		return nil, tooMany()
	}
	secret, fresh, err := h.owned(r, receiver, remote)
	if err != nil {
		return nil, err
	}
	if receiver.Spec.Suspend || !receiver.DeletionTimestamp.IsZero() || !apimeta.IsStatusConditionTrue(receiver.Status.Conditions, meta.ReadyCondition) {
		return nil, &refusal{resultNotReady, http.StatusServiceUnavailable, "the Receiver is suspended, or not ready"}
	}
	again := func(err error) bool {
		if fresh || !secretPath || !is(err, resultForged) {
			return false
		}
		// What is verified by may have been replaced, and the path stayed.
		var now map[string][]byte
		if now, fresh, _ = h.secretOf(r.Context(), receiver, true); !fresh || !owns(receiver, now, r.URL.Path) {
			return false
		}
		secret = now
		return true
	}
	judged := func(err error) error {
		if is(err, resultForged) || is(err, resultMalformed) {
			if secretPath {
				h.forged.take(from, h.now())
			}
			h.log.V(1).Info("refused a request", "receiver", from.receiver.String(), "remote", remote.String(), "why", err.Error())
		}
		return err
	}
	of := neighbor{receiver.Namespace, remote}
	// Issuers may be slow. The body comes after them, so that who waits for them has nothing
	// in memory, and none of the places that others need.
	claims, err := h.ask(r, receiver, secret, of)
	if again(err) {
		claims, err = h.ask(r, receiver, secret, of)
	}
	if err != nil {
		return nil, judged(err)
	}
	leave, ok := h.enter(r.Context(), of)
	if !ok {
		return nil, busy()
	}
	defer leave()
	read, err := h.read(w, r)
	if err != nil {
		return nil, err
	}
	v, err := verify(&receiver.Spec, secret, claims, *read)
	if again(err) {
		v, err = verify(&receiver.Spec, secret, claims, *read)
	}
	return v, judged(err)
}

func tooMany() error {
	return &refusal{resultLimited, http.StatusTooManyRequests, "too many requests of this sender were refused"}
}

// ask asks the issuer of the token that a request came with, if there is one, and the Receiver what it thinks of it.
func (h *Handler) ask(r *http.Request, receiver *notificationv1.Receiver, secret map[string][]byte, of neighbor) (map[string]any, error) {
	if !asks(receiver.Spec.Type) {
		return nil, nil
	}
	leave, ok := h.asking.enter(r.Context(), of, readWait)
	if !ok {
		return nil, busy()
	}
	defer leave()
	ctx, cancel := context.WithTimeout(r.Context(), askTime)
	defer cancel()
	claims, err := h.verifier.identify(ctx, receiver, secret, r.Header)
	if err != nil || receiver.Spec.Type != notificationv1.GenericOIDCReceiver {
		return claims, err
	}
	_, p, err := providerOf(receiver, r.Header)
	if err != nil {
		return nil, err
	}
	who := visitorOf(client.ObjectKeyFromObject(receiver), p.IssuerURL, claims)
	if !h.visitors.left(who, h.now()) {
		return nil, tooMany()
	}
	err = h.verifier.examine(ctx, receiver, p, claims)
	if is(err, resultForged) {
		h.visitors.take(who, h.now())
	}
	return claims, err
}

// enter waits for a place in which a body is read: how long that takes is up to whoever knows
// the path, as who made the Receiver does.
func (h *Handler) enter(ctx context.Context, of neighbor) (leave func(), ok bool) {
	part, ok := h.neighbors.enter(ctx, of, readWait)
	if !ok {
		return nil, false
	}
	free, ok := h.places.enter(ctx, of.remote, readWait)
	if !ok {
		part()
		return nil, false
	}
	return func() {
		free()
		part()
	}, true
}

// owned is what the Secret of a Receiver has whose path a request has.
func (h *Handler) owned(r *http.Request, receiver *notificationv1.Receiver, remote netip.Addr) (secret map[string][]byte, fresh bool, err error) {
	leave, ok := h.places.enter(r.Context(), remote, readWait)
	if !ok {
		return nil, false, busy()
	}
	defer leave()
	secret, fresh, err = h.secretOf(r.Context(), receiver, false)
	if err == nil && !fresh && !owns(receiver, secret, r.URL.Path) {
		// The token may have been replaced a moment ago, and the path with it.
		secret, fresh, err = h.secretOf(r.Context(), receiver, true)
	}
	if err == nil && !owns(receiver, secret, r.URL.Path) {
		err = unknown()
	}
	return secret, fresh, err
}

// owns reports whether a path is that of a Receiver, in constant time.
func owns(receiver *notificationv1.Receiver, secret map[string][]byte, path string) bool {
	return subtle.ConstantTimeCompare([]byte(receiver.GetWebhookPath(string(secret[tokenKey]))), []byte(path)) == 1
}

// read reads the body.
func (h *Handler) read(w http.ResponseWriter, r *http.Request) (*delivery, error) {
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(bodyTime)) // or that of the server
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, mostBody))
	var long *http.MaxBytesError
	switch {
	case errors.As(err, &long):
		return nil, tooLarge()
	case err != nil:
		return nil, &refusal{resultMalformed, http.StatusBadRequest, "the body cannot be read"}
	}
	return &delivery{header: r.Header, body: body}, nil
}

// secretOf is what the Secret of a Receiver has, or had a moment ago. fresh: it was read
// just now.
func (h *Handler) secretOf(ctx context.Context, receiver *notificationv1.Receiver, again bool) (data map[string][]byte, fresh bool, err error) {
	key, now := client.ObjectKeyFromObject(receiver), h.now()
	h.mu.Lock()
	known, ok := h.kept[key]
	h.mu.Unlock()
	age := now.Sub(known.at)
	ok = ok && known.uid == receiver.UID && known.generation == receiver.Generation
	if ok && (age < secretAgain || !again && age < secretFor) {
		return known.data, false, nil
	}
	ctx, cancel := context.WithTimeout(ctx, secretTimeout)
	defer cancel()
	if data, err = secretOf(ctx, h.secrets, receiver); err != nil {
		h.log.V(1).Info("cannot read the Secret of a Receiver", "receiver", key.String(), "error", err.Error())
		return nil, false, &refusal{resultNotReady, http.StatusServiceUnavailable, "the Receiver is not ready"}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.kept) >= mostSecrets {
		clear(h.kept)
	}
	h.kept[key] = keptSecret{uid: receiver.UID, generation: receiver.Generation, at: now, data: data}
	return data, true, nil
}

// act carries a verified request out.
func (h *Handler) act(ctx context.Context, receiver *notificationv1.Receiver, v *verified) error {
	name := client.ObjectKeyFromObject(receiver)
	if !h.accepted.take(name, h.now()) {
		return &refusal{resultLimited, http.StatusTooManyRequests, "too many requests for this Receiver"}
	}
	leave, ok := h.acting.enter(ctx, receiver.Namespace, actTime)
	if !ok {
		return busy()
	}
	defer leave()
	// What was begun is done, also for a sender who does not wait for the answer.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), actTime)
	defer cancel()
	n, err := h.objects.request(ctx, receiver, v)
	switch {
	case errors.Is(err, errFilter):
		h.log.Error(err, "cannot notify", "receiver", name.String())
		return &refusal{resultMalformed, http.StatusBadRequest, errFilter.Error()}
	case err != nil && !onlyMissing(err):
		h.log.Error(err, "cannot notify", "receiver", name.String(), "requested", n)
		return err
	case err != nil:
		h.log.Info("some of what the Receiver names is not there", "receiver", name.String(), "requested", n, "missing", err.Error())
		return nil
	}
	h.log.Info("received", "receiver", name.String(), "requested", n)
	return nil
}
