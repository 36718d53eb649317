package source

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"sync"
	"time"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/opencontainers/go-digest"

	"github.com/cascade-gitops/cascade/syncer/answer"
)

// ReasonArtifactFailed: an artifact that another controller stored cannot be
// used.
const ReasonArtifactFailed = meta.ArtifactFailedReason

// ErrArtifactNotFound: the server does not have the artifact, or no longer has it. Its
// source is being packed again, or has been. The caller tries again after a moment.
var ErrArtifactNotFound = errors.New("artifact not found")

// originRevision is the key of an artifact's metadata that names the revision
// of what it was made from.
const originRevision = "org.opencontainers.image.revision"

const (
	// artifactTimeout bounds the fetch of one artifact, the body included.
	artifactTimeout = 5 * time.Minute
	// artifactSilence bounds how long a server may send nothing of a body.
	artifactSilence = 30 * time.Second
)

// Artifacts fetches what other controllers packed, by the URL in the status of
// a source. Equal digests are fetched and unpacked once, however many objects
// ask for them; what nobody needs any more is dropped. A URL that was not asked yet is
// asked in any case, if only whether the artifact is there. It is safe for
// concurrent use.
type Artifacts struct {
	dir    string
	host   string
	limits limits
	client *http.Client
	// timeout and silence are artifactTimeout and artifactSilence, but for tests.
	timeout, silence time.Duration

	// archives are those that are unpacked, by digest; places are the same by digest and
	// URL.
	archives, places pool[archive]

	mu sync.Mutex // guards newest
	// newest keeps the last snapshot of each source.
	newest map[Key]fetched
}

// fetched is a snapshot, and the URL that had it.
type fetched struct {
	*Snapshot
	url string
}

// NewArtifacts unpacks into files in dir, which have no names there. An archive
// of more than maxBytes is refused. As in Flux, the environment variable
// SOURCE_CONTROLLER_LOCALHOST names another host to fetch from.
func NewArtifacts(dir string, maxBytes int64) *Artifacts {
	return &Artifacts{
		dir: dir, host: os.Getenv("SOURCE_CONTROLLER_LOCALHOST"), timeout: artifactTimeout, silence: artifactSilence,
		limits: limits{packBytes: maxBytes, inflatedBytes: MaxInflatedBytes, entriesMost: MaxEntries},
		client: &http.Client{
			Transport: answer.Over(&http.Transport{
				Proxy:                  http.ProxyFromEnvironment,
				DialContext:            (&net.Dialer{Timeout: 10 * time.Second}).DialContext,
				TLSClientConfig:        &tls.Config{MinVersion: tls.VersionTLS12},
				TLSHandshakeTimeout:    10 * time.Second,
				ResponseHeaderTimeout:  30 * time.Second,
				MaxResponseHeaderBytes: 64 << 10,
				MaxIdleConnsPerHost:    4,
				IdleConnTimeout:        30 * time.Second,
			}),
			CheckRedirect: func(req *http.Request, via []*http.Request) error {
				if req.URL.Host != via[0].URL.Host || len(via) >= 5 {
					return errors.New("redirect refused")
				}
				return nil
			},
		},
		newest: map[Key]fetched{},
	}
}

// Fetch returns the snapshot of an artifact that is in the status of the source
// with this key: the same one as long as the artifact is the same. The error is
// ErrArtifactNotFound if the server does not have it.
func (a *Artifacts) Fetch(ctx context.Context, key Key, artifact *meta.Artifact) (*Snapshot, error) {
	if artifact == nil {
		return nil, failf(ReasonArtifactFailed, "cannot fetch artifact: %w", ErrArtifactNotFound)
	}
	sum, err := digest.Parse(artifact.Digest)
	if err != nil {
		return nil, failf(ReasonArtifactFailed, "cannot fetch artifact: its digest %q cannot be read", artifact.Digest)
	}
	origin := artifact.Metadata[originRevision]
	a.mu.Lock()
	last := a.newest[key]
	a.mu.Unlock()
	if last.Snapshot != nil && last.Digest == artifact.Digest && last.Revision == artifact.Revision && last.OriginRevision == origin && last.url == artifact.URL {
		return last.Snapshot, nil
	}
	content, err := a.places.obtain(ctx, sum.String()+" "+artifact.URL, func() (*archive, error) { return a.at(ctx, sum, artifact.URL) })
	if err != nil {
		var known *Error
		if !errors.As(err, &known) {
			err = failf(ReasonArtifactFailed, "cannot fetch artifact: %w", err)
		}
		return nil, err
	}
	s := &Snapshot{
		Revision: artifact.Revision, OriginRevision: origin, Digest: artifact.Digest, Time: artifact.LastUpdateTime.Time,
		Metadata: artifact.Metadata,
		root:     content.root, packed: content.packed,
		rules: &rules{id: "none"}, // whoever packed it has applied them
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.newest[key] = fetched{s, artifact.URL}
	return s, nil
}

// Forget drops what is kept for a source that is gone.
func (a *Artifacts) Forget(key Key) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.newest, key)
}

// at is the archive that a URL has. What is known under its digest is not sent again.
func (a *Artifacts) at(ctx context.Context, sum digest.Digest, from string) (*archive, error) {
	asked := false
	content, err := a.archives.obtain(ctx, sum.String(), func() (*archive, error) {
		asked = true
		return a.get(ctx, sum, from)
	})
	if err != nil || asked {
		return content, err
	}
	ctx, _, end := a.within(ctx)
	defer end()
	res, _, err := a.ask(ctx, from)
	if err != nil {
		return nil, err
	}
	res.Body.Close() // nothing of it is needed
	return content, nil
}

// ask requests an artifact. The caller closes the body of the answer. where is the URL
// without a credential.
func (a *Artifacts) ask(ctx context.Context, from string) (res *http.Response, where string, err error) {
	u, err := url.Parse(from)
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" {
		return nil, "", failf(ReasonArtifactFailed, "cannot fetch artifact: its URL is not of scheme http or https")
	}
	if a.host != "" {
		u.Host = a.host
	}
	where = u.Redacted()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return nil, "", failf(ReasonArtifactFailed, "cannot fetch artifact %s: %w", where, err)
	}
	if res, err = a.client.Do(req); err != nil {
		return nil, "", failf(ReasonArtifactFailed, "cannot fetch artifact: %w", err)
	}
	switch res.StatusCode {
	case http.StatusOK:
		return res, where, nil
	case http.StatusNotFound:
		err = failf(ReasonArtifactFailed, "cannot fetch artifact %s: %w", where, ErrArtifactNotFound)
	default:
		err = failf(ReasonArtifactFailed, "cannot fetch artifact %s: the server answered %s", where, res.Status)
	}
	res.Body.Close()
	return nil, "", err
}

func (a *Artifacts) get(ctx context.Context, sum digest.Digest, from string) (*archive, error) {
	ctx, lively, end := a.within(ctx)
	defer end()
	res, where, err := a.ask(ctx, from)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	verifier, most := sum.Verifier(), a.limits.packBytes
	file, err := newSpool(ctx, a.dir, &limited{r: lively(res.Body), left: most, max: most, what: "the artifact has", flag: "raise --max-pack-bytes or shrink it"}, verifier)
	if err != nil {
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		return nil, wrapArtifact(where, err)
	}
	// An artifact whose content does not match its announced digest is not
	// unpacked.
	if !verifier.Verified() {
		file.close()
		return nil, failf(ReasonArtifactFailed, "cannot use artifact %s: its digest is not %s", where, sum)
	}
	content, err := file.unpack(ctx, a.limits)
	if err != nil {
		file.close()
		return nil, wrapArtifact(where, err)
	}
	return content, nil
}

// within bounds a fetch in time: all of it, and each pause of the server. lively watches
// a body for pauses; end is called when the fetch has ended.
func (a *Artifacts) within(ctx context.Context) (_ context.Context, lively func(io.Reader) io.Reader, end func()) {
	ctx, stop := context.WithTimeoutCause(ctx, a.timeout, fmt.Errorf("it was not sent within %s", a.timeout))
	ctx, cancel := context.WithCancelCause(ctx)
	silent := time.AfterFunc(a.silence, func() { cancel(fmt.Errorf("the server sent nothing for %s", a.silence)) })
	lively = func(r io.Reader) io.Reader {
		return readerFunc(func(p []byte) (int, error) {
			n, err := r.Read(p)
			if n > 0 {
				silent.Reset(a.silence)
			}
			return n, err
		})
	}
	return ctx, lively, func() {
		silent.Stop()
		cancel(nil)
		stop()
	}
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

func wrapArtifact(where string, err error) error {
	reason := ReasonArtifactFailed
	var known *Error
	if errors.As(err, &known) {
		reason = known.Reason
	}
	return failf(reason, "cannot use artifact %s: %w", where, err)
}
