package source

import (
	"context"
	"crypto"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	openapi "github.com/go-openapi/runtime"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/hashicorp/go-retryablehttp"
	"github.com/sigstore/cosign/v3/pkg/cosign"
	ocisignature "github.com/sigstore/cosign/v3/pkg/oci/signature"
	rekorclient "github.com/sigstore/rekor/pkg/client"
	rekor "github.com/sigstore/rekor/pkg/generated/client"
	"github.com/sigstore/sigstore-go/pkg/bundle"
	"github.com/sigstore/sigstore-go/pkg/root"
	"github.com/sigstore/sigstore-go/pkg/tuf"
	"github.com/sigstore/sigstore-go/pkg/verify"
	"github.com/sigstore/sigstore/pkg/cryptoutils"
	"github.com/sigstore/sigstore/pkg/signature"
	"github.com/theupdateframework/go-tuf/v2/metadata/fetcher"
)

// cosign looks for one signature that is good: a bundle that refers to the
// image, as cosign writes them since version 3, or one of those at the tag that
// stands for it. The library's own functions are not used to find them: they
// inflate without bounds, and verify on goroutines that nobody recovers.
func (i *Images) cosign(ctx context.Context, r *registry, at name.Digest, v ImageVerification) error {
	checks, err := i.checks(ctx, r, v)
	if err != nil {
		return err
	}
	digest, err := v1.NewHash(at.DigestStr())
	if err != nil {
		return err
	}
	bundles, problem := r.bundles(ctx, at)
	problems := []error{problem}
	for _, b := range bundles {
		for _, check := range checks {
			err := verifyBundle(ctx, check, digest, b)
			if err == nil {
				return nil
			}
			problems = append(problems, err)
		}
	}
	signatures, problem := r.signatures(ctx, at)
	problems = append(problems, problem)
	for _, s := range signatures {
		for _, check := range checks {
			// The digest has to be in what was signed: a signature of another image
			// may have been put at this tag.
			check.ClaimVerifier = cosign.SimpleClaimVerifier
			_, err := cosign.VerifyImageSignature(ctx, ocisignature.New(static.NewLayer(s.payload, s.layer.MediaType), s.layer), digest, &check)
			if err == nil {
				return nil
			}
			problems = append(problems, err)
		}
	}
	if err := errors.Join(problems...); err != nil {
		var known *Error
		if errors.As(err, &known) || ctx.Err() != nil {
			return err
		}
		return fmt.Errorf("no matching signatures were found for '%s': %s", at, short(err.Error(), 500))
	}
	return fmt.Errorf("no signatures were found for '%s'", at)
}

// checks are the options of the library, one for each key or identity.
func (i *Images) checks(ctx context.Context, r *registry, v ImageVerification) ([]cosign.CheckOpts, error) {
	var checks []cosign.CheckOpts
	if v.Secret != nil {
		for _, file := range slices.Sorted(maps.Keys(v.Secret)) {
			if !strings.HasSuffix(file, ".pub") {
				continue
			}
			key, err := cryptoutils.UnmarshalPEMToPublicKey(v.Secret[file])
			if err != nil {
				return nil, fmt.Errorf("%s of the Secret is not a public key in PEM", file)
			}
			verifier, err := signature.LoadVerifier(key, crypto.SHA256)
			if err != nil {
				return nil, fmt.Errorf("cannot use the public key %s of the Secret: %w", file, err)
			}
			checks = append(checks, cosign.CheckOpts{SigVerifier: verifier, Offline: true, IgnoreTlog: true, MaxWorkers: 1})
		}
		if len(checks) == 0 {
			return nil, errors.New("the Secret has no public key; it needs one under a name that ends in .pub")
		}
		return checks, nil
	}
	trusted, log, err := i.trusted(ctx, r, v)
	if err != nil {
		return nil, err
	}
	base := cosign.CheckOpts{TrustedMaterial: trusted, RekorClient: log, MaxWorkers: 1}
	for _, id := range v.Identities {
		check := base
		check.Identities = []cosign.Identity{{IssuerRegExp: id.Issuer, SubjectRegExp: id.Subject}}
		checks = append(checks, check)
	}
	if len(checks) == 0 {
		checks = append(checks, base)
	}
	return checks, nil
}

// trusted is whom to believe, and the log to ask about a signature that does not
// have its entry with it.
func (i *Images) trusted(ctx context.Context, r *registry, v ImageVerification) (root.TrustedMaterial, *rekor.Rekor, error) {
	log := "https://rekor.sigstore.dev"
	var trusted root.TrustedMaterial
	var err error
	if v.TrustedRoot != nil {
		own, err := root.NewTrustedRootFromJSON(v.TrustedRoot)
		if err != nil {
			return nil, nil, errors.New("trusted_root.json of the Secret cannot be read")
		}
		trusted, log = own, ""
		logs := own.RekorLogs()
		for _, id := range slices.Sorted(maps.Keys(logs)) {
			if log = logs[id].BaseURL; log != "" {
				break
			}
		}
	} else if trusted, err = i.sigstore.get(ctx); err != nil {
		return nil, nil, fmt.Errorf("cannot get the roots of Sigstore: %w", err)
	}
	if log == "" {
		return trusted, nil, nil
	}
	if u, err := url.Parse(log); err != nil || u.Host == "" {
		return nil, nil, errors.New("the address of the log in trusted_root.json is not a URL")
	}
	config := r.guard.inner.TLSClientConfig.Clone()
	config.InsecureSkipVerify = false
	client, err := logAt(log, config)
	if err != nil {
		return nil, nil, err
	}
	return trusted, client, nil
}

// logAt is a log of signatures, whose address may be a tenant's. As in Flux it is asked again where it fails in a
// way that may pass: that it did not answer would be told as if there was no good signature.
func logAt(address string, config *tls.Config) (*rekor.Rekor, error) {
	client, err := rekorclient.GetRekorClient(address)
	if err != nil {
		return nil, fmt.Errorf("cannot ask the log of signatures: %w", err)
	}
	const least, most = 200 * time.Millisecond, time.Second
	again := retryablehttp.NewClient()
	again.HTTPClient = &http.Client{Transport: byName{modest{inner: transportTo(config, http.ProxyFromEnvironment)}}}
	again.Logger, again.RetryMax, again.RetryWaitMin, again.RetryWaitMax = nil, rekorclient.DefaultRetryCount, least, most
	again.Backoff = func(least, most time.Duration, attempt int, res *http.Response) time.Duration {
		return min(retryablehttp.DefaultBackoff(least, most, attempt, res), most) // Retry-After may be any time
	}
	again.ErrorHandler = func(res *http.Response, err error, _ int) (*http.Response, error) {
		if res != nil {
			return res, nil // the library tells what it says
		}
		return nil, err
	}
	client.SetTransport(asking{client.Transport, again.StandardClient()})
	return client, nil
}

// byName tells a server who asks.
type byName struct{ inner http.RoundTripper }

func (n byName) RoundTrip(req *http.Request) (*http.Response, error) {
	req = req.Clone(req.Context())
	req.Header.Set("User-Agent", "cascade")
	return n.inner.RoundTrip(req)
}

// asking has a library send its requests by a client of this package, whose answers have bounds. Those of
// its own have none.
type asking struct {
	openapi.ClientTransport
	by *http.Client
}

// Submit implements openapi.ClientTransport.
func (a asking) Submit(operation *openapi.ClientOperation) (any, error) {
	operation.Client = a.by
	return a.ClientTransport.Submit(operation)
}

// bundles that refer to an image. Referrers that are no bundles are skipped.
func (r *registry) bundles(ctx context.Context, at name.Digest) ([]*bundle.Bundle, error) {
	found, err := r.referrers(ctx, at)
	if err != nil {
		return nil, fmt.Errorf("cannot list what refers to the image: %w", said(err))
	}
	var bundles []*bundle.Bundle
	for _, descriptor := range found {
		img, manifest, err := r.image(ctx, r.repo.Digest(descriptor.Digest.String()))
		if ReasonOf(err) == ReasonLimitExceeded || ctx.Err() != nil {
			return nil, err
		}
		if err != nil || len(manifest.Layers) != 1 || !strings.HasPrefix(string(manifest.Layers[0].MediaType), "application/vnd.dev.sigstore.bundle") {
			continue
		}
		data, err := small(img, manifest.Layers[0])
		if ReasonOf(err) == ReasonLimitExceeded {
			return nil, err
		}
		b := &bundle.Bundle{}
		if err != nil || b.UnmarshalJSON(data) != nil || !b.MinVersion("v0.3") {
			continue
		}
		bundles = append(bundles, b)
	}
	return bundles, nil
}

func verifyBundle(ctx context.Context, check cosign.CheckOpts, digest v1.Hash, b *bundle.Bundle) error {
	if b.GetDsseEnvelope() == nil {
		return errors.New("a bundle has no DSSE envelope")
	}
	sum, err := hex.DecodeString(digest.Hex)
	if err != nil {
		return err
	}
	check.NewBundleFormat = true
	_, err = cosign.VerifyNewBundle(ctx, &check, verify.WithArtifactDigest(digest.Algorithm, sum), b)
	return err
}

// signed is what was signed, and the layer with the signature in its
// annotations.
type signed struct {
	payload []byte
	layer   v1.Descriptor
}

// signatures at the tag that stands for an image.
func (r *registry) signatures(ctx context.Context, at name.Digest) ([]signed, error) {
	img, manifest, err := r.image(ctx, r.repo.Tag(strings.Replace(at.DigestStr(), ":", "-", 1)+".sig"))
	var refused *transport.Error
	if errors.As(err, &refused) && refused.StatusCode == http.StatusNotFound {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("cannot fetch signatures: %w", said(err))
	}
	var found []signed
	for _, layer := range manifest.Layers {
		payload, err := small(img, layer)
		if err != nil {
			return nil, fmt.Errorf("cannot fetch signature: %w", said(err))
		}
		found = append(found, signed{payload, layer})
	}
	return found, nil
}

// Sigstore's roots are fetched again when they are a day old, and after a
// failure not before a minute.
const (
	rootsFresh = 24 * time.Hour
	rootsRetry = time.Minute
)

// sigstore has the roots of the public Sigstore, from when they are needed.
type sigstore struct {
	now   func() time.Time
	fetch func(ctx context.Context) (root.TrustedMaterial, error)

	mu      sync.Mutex
	busy    chan struct{}
	roots   root.TrustedMaterial
	fetched time.Time
	failed  error
	tried   time.Time
}

func (s *sigstore) get(ctx context.Context) (root.TrustedMaterial, error) {
	for {
		s.mu.Lock()
		now := s.now()
		if s.roots != nil && now.Sub(s.fetched) < rootsFresh {
			defer s.mu.Unlock()
			return s.roots, nil
		}
		if s.failed != nil && now.Sub(s.tried) < rootsRetry {
			defer s.mu.Unlock()
			if s.roots != nil {
				return s.roots, nil
			}
			return nil, s.failed
		}
		if s.busy == nil {
			break
		}
		busy := s.busy
		s.mu.Unlock()
		select {
		case <-busy:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	done := make(chan struct{})
	s.busy = done
	s.mu.Unlock()
	roots, err := func() (roots root.TrustedMaterial, err error) {
		defer func() {
			if p := recover(); p != nil {
				err = fmt.Errorf("cannot read what was sent: %v", p)
			}
		}()
		return s.fetch(ctx)
	}()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.busy = nil
	close(done)
	now := s.now()
	if err != nil {
		// A caller that ran out of time does not fail the others.
		if ctx.Err() == nil {
			s.failed, s.tried = err, now
		}
		if s.roots != nil {
			return s.roots, nil
		}
		return nil, err
	}
	s.roots, s.fetched, s.failed = roots, now, nil
	return roots, nil
}

// fetchRoots by The Update Framework, beginning with the root that the library
// has.
func fetchRoots(ctx context.Context) (root.TrustedMaterial, error) {
	inner := transportTo(nil, http.ProxyFromEnvironment)
	defer inner.CloseIdleConnections()
	get := fetcher.NewDefaultFetcher()
	get.SetHTTPUserAgent("cascade")
	get.SetHTTPClient(&http.Client{Transport: during{ctx, inner}, Timeout: 30 * time.Second})
	return root.FetchTrustedRootWithOptions(tuf.DefaultOptions().WithFetcher(get).WithDisableLocalCache())
}

// during gives requests a context where the library has none.
type during struct {
	ctx   context.Context
	inner http.RoundTripper
}

func (d during) RoundTrip(req *http.Request) (*http.Response, error) {
	return d.inner.RoundTrip(req.WithContext(d.ctx))
}
