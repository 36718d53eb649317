package source

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/fluxcd/pkg/auth"
	awsauth "github.com/fluxcd/pkg/auth/aws"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
	"github.com/minio/minio-go/v7/pkg/s3utils"
)

// s3 is a bucket of a server that speaks S3.
type s3 struct {
	core *minio.Core
	name string
	idle func()
}

func (o BucketOrigin) openS3(ctx context.Context) (bucket, error) {
	if o.Secret != nil && (len(o.Secret["accesskey"]) == 0 || len(o.Secret["secretkey"]) == 0) {
		return nil, failf(ReasonAuthenticationFailed, "cannot use the Secret: it needs the keys accesskey and secretkey")
	}
	if err := o.checkSTS(); err != nil {
		return nil, err
	}
	transport, err := o.transport()
	if err != nil {
		return nil, err
	}
	options := &minio.Options{
		Region: o.Region, Secure: !o.Insecure, MaxRetries: 3,
		Transport: modest{transport, func(req *http.Request) bool { return req.URL.RawQuery == "" }, "<Contents", &leftAlone{}},
	}
	closers := []func(){transport.CloseIdleConnections}
	switch {
	case o.Secret != nil:
		options.Creds = credentials.NewStaticV4(string(o.Secret["accesskey"]), string(o.Secret["secretkey"]), "")
	case o.Provider == sourcev1.BucketProviderAmazon:
		if err := cmp.Or(amazonS3.check(o.Endpoint, !o.Insecure), o.way().forIdentity(o.Workload.account())); err != nil {
			return nil, err
		}
		options.Creds = credentials.New(&workloadKeys{ctx: ctx, of: o})
		if _, err := options.Creds.GetWithContext(nil); err != nil {
			return nil, err
		}
	case o.STS != nil:
		config, err := tlsConfig(o.STS.Certificates)
		if err != nil {
			return nil, err
		}
		sts := transportTo(config, transport.Proxy)
		closers = append(closers, sts.CloseIdleConnections)
		options.Creds = credentials.New(&credentials.LDAPIdentity{
			Client: &http.Client{Transport: modest{inner: sts}, Timeout: 30 * time.Second}, STSEndpoint: o.STS.Endpoint,
			LDAPUsername: string(o.STS.Secret["username"]), LDAPPassword: string(o.STS.Secret["password"]),
		})
	}
	core, err := minio.NewCore(o.Endpoint, options)
	if err != nil {
		return nil, failf(ReasonURLInvalid, "cannot use spec.endpoint %q: %w", o.Endpoint, err)
	}
	return &s3{core: core, name: o.Bucket, idle: func() {
		for _, c := range closers {
			c()
		}
	}}, nil
}

// workloadKeys are those of the workload of a bucket. Most lapse: within the hour those of a role, and a
// state is kept open for as long as its tier runs.
type workloadKeys struct {
	ctx     context.Context
	of      BucketOrigin
	expires time.Time // zero: never
}

// RetrieveWithCredContext implements credentials.Provider.
func (w *workloadKeys) RetrieveWithCredContext(*credentials.CredContext) (credentials.Value, error) {
	got, err := byWorkload(w.ctx, w.of, func(ctx context.Context, options []auth.Option) (aws.Credentials, error) {
		return awsauth.NewCredentialsProvider(ctx, options...).Retrieve(ctx)
	})
	if err != nil {
		return credentials.Value{}, failf(ReasonAuthenticationFailed, "cannot get a credential from provider aws: %w", err)
	}
	w.expires = got.Expires
	return credentials.Value{AccessKeyID: got.AccessKeyID, SecretAccessKey: got.SecretAccessKey, SessionToken: got.SessionToken, SignerType: credentials.SignatureV4}, nil
}

// Retrieve implements credentials.Provider.
func (w *workloadKeys) Retrieve() (credentials.Value, error) { return w.RetrieveWithCredContext(nil) }

// IsExpired implements credentials.Provider. A request takes a while.
func (w *workloadKeys) IsExpired() bool {
	return !w.expires.IsZero() && time.Until(w.expires) < time.Minute
}

// checkSTS refuses combinations as Flux does.
func (o BucketOrigin) checkSTS() error {
	sts := o.STS
	if sts == nil {
		return nil
	}
	provider := o.Provider
	if provider == "" {
		provider = sourcev1.BucketProviderGeneric
	}
	switch {
	case provider == sourcev1.BucketProviderAmazon && sts.Provider == sourcev1.STSProviderAmazon:
		if sts.Secret != nil {
			return failf(ReasonInvalidSTS, "spec.sts.secretRef is not required for the '%s' STS provider", sts.Provider)
		}
		if sts.Certificates != nil {
			return failf(ReasonInvalidSTS, "spec.sts.certSecretRef is not required for the '%s' STS provider", sts.Provider)
		}
	case provider == sourcev1.BucketProviderGeneric && sts.Provider == sourcev1.STSProviderLDAP:
		if sts.Secret != nil && (len(sts.Secret["username"]) == 0 || len(sts.Secret["password"]) == 0) {
			return failf(ReasonAuthenticationFailed, "cannot use the Secret of spec.sts: it needs the keys username and password")
		}
	case provider == sourcev1.BucketProviderAmazon, provider == sourcev1.BucketProviderGeneric:
		return failf(ReasonInvalidSTS, "STS provider '%s' is not supported for '%s' bucket provider", sts.Provider, provider)
	default:
		return failf(ReasonInvalidSTS, "STS configuration is not supported for '%s' bucket provider", provider)
	}
	u, err := url.Parse(sts.Endpoint)
	if err != nil || u.Host == "" || (u.Scheme != "https" && u.Scheme != "http") {
		return failf(ReasonURLInvalid, "cannot use spec.sts.endpoint: it is not a URL of scheme https")
	}
	return nil
}

const (
	// maxListBytes bounds one answer that is not an object.
	maxListBytes = 16 << 20
	// maxListed bounds the objects in it. Servers list a thousand at a time, those of Azure
	// five thousand. Ten bytes are enough for one of which the library makes half a
	// kilobyte.
	maxListed = 10_000
)

// modest bounds the answers that a library reads into memory.
type modest struct {
	inner http.RoundTripper
	// object reports whether a GET is for the content of an object; nil if none
	// is.
	object func(*http.Request) bool
	// entry is what each object of a list has; none are counted if it is empty.
	entry string
	// left is nil where a server that says when to come again is not left alone.
	left *leftAlone
}

// leftAlone has the last refusal of a server that said when to come again. The libraries ask again within a second or two
// where that fails.
type leftAlone struct{ refusal atomic.Pointer[refusedAt] }

type refusedAt struct {
	err error
	at  time.Time
}

// asks returns the refusal if the server refused a moment ago, which is before it is to be asked again.
func (l *leftAlone) asks(now time.Time) error {
	if r := l.refusal.Load(); r != nil && now.Sub(r.at) < leastAfter {
		return r.err
	}
	return nil
}

func (m modest) RoundTrip(req *http.Request) (*http.Response, error) {
	if m.left != nil {
		if err := m.left.asks(time.Now()); err != nil {
			if req.Body != nil {
				_ = req.Body.Close()
			}
			return nil, err
		}
	}
	res, err := m.inner.RoundTrip(req)
	if err != nil {
		return nil, worded{err}
	}
	if m.left != nil {
		now := time.Now()
		if err := Later(res, now); err != nil {
			_ = res.Body.Close()
			m.left.refusal.Store(&refusedAt{err, now})
			return nil, err // the libraries' errors have no header
		}
	}
	if res.StatusCode != http.StatusOK || req.Method != http.MethodGet || m.object == nil || !m.object(req) {
		what := "an answer has"
		if m.entry != "" {
			what = "the list of objects has"
		}
		res.Body = struct {
			io.Reader
			io.Closer
		}{m.listed(&limited{r: res.Body, left: maxListBytes, max: maxListBytes, what: what, flag: "use another server"}), res.Body}
	}
	return res, nil
}

// listed bounds the objects of a list.
func (m modest) listed(r io.Reader) io.Reader {
	if m.entry == "" {
		return r
	}
	seen, tail := 0, []byte(nil)
	return readerFunc(func(p []byte) (int, error) {
		n, err := r.Read(p)
		// The end of what was read before may have the begin of an entry.
		text := append(tail, p[:n]...)
		if seen += bytes.Count(text, []byte(m.entry)); seen > maxListed {
			return 0, failf(ReasonLimitExceeded, "cannot fetch: a list has more than %d objects; use another server", maxListed)
		}
		tail = append([]byte(nil), text[max(0, len(text)-len(m.entry)+1):]...)
		return n, err
	})
}

func (s *s3) exists(ctx context.Context) error {
	ok, err := s.core.BucketExists(ctx, s.name)
	if err != nil {
		return s.error(err)
	}
	if !ok {
		return errNoBucket
	}
	return nil
}

func (s *s3) list(ctx context.Context, prefix string, visit func(blob) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for o := range s.core.ListObjectsIter(ctx, s.name, minio.ListObjectsOptions{
		Recursive: true, Prefix: prefix, UseV1: s3utils.IsGoogleEndpoint(*s.core.EndpointURL()),
	}) {
		if o.Err != nil {
			return s.error(o.Err)
		}
		if err := visit(blob{key: o.Key, etag: o.ETag, size: o.Size}); err != nil {
			return err
		}
	}
	return ctx.Err()
}

func (s *s3) open(ctx context.Context, o blob) (io.ReadCloser, blob, error) {
	body, info, _, err := s.core.GetObject(ctx, s.name, o.key, minio.GetObjectOptions{})
	if err != nil {
		return nil, blob{}, s.error(err)
	}
	return body, blob{key: o.key, etag: info.ETag, size: info.Size}, nil
}

func (s *s3) tag(b blob) string { return b.etag }

func (s *s3) put(ctx context.Context, name string, content []byte, tag string) (string, error) {
	options := minio.PutObjectOptions{ContentType: "application/octet-stream"}
	if tag == "" {
		options.SetMatchETagExcept("*")
	} else {
		options.SetMatchETag(tag)
	}
	sum := sha256.Sum256(content)
	info, err := s.core.PutObject(ctx, s.name, name, bytes.NewReader(content), int64(len(content)), "", hex.EncodeToString(sum[:]), options)
	var refused minio.ErrorResponse
	switch {
	case errors.As(err, &refused) && (refused.StatusCode == http.StatusPreconditionFailed || refused.StatusCode == http.StatusConflict ||
		tag != "" && refused.StatusCode == http.StatusNotFound && refused.Code == minio.NoSuchKey):
		return "", ErrMoved
	case err != nil:
		return "", s.error(err)
	}
	return info.ETag, nil
}

func (s *s3) remove(ctx context.Context, name string) error {
	return s.error(s.core.RemoveObject(ctx, s.name, name, minio.RemoveObjectOptions{}))
}

func (s *s3) close() { s.idle() }

// error in few words: the library's have what the server sent.
func (s *s3) error(err error) error {
	var known *Error
	var refused minio.ErrorResponse
	switch {
	case err == nil:
		return nil
	case errors.As(err, &known):
		return known
	case errors.As(err, &refused):
		if refused.Code == minio.NoSuchKey {
			return errNoObject
		}
		words := []string{short(refused.Code, 60)}
		if refused.Message != "" {
			words = append(words, short(refused.Message, 200))
		}
		if refused.StatusCode == http.StatusForbidden || refused.StatusCode == http.StatusUnauthorized {
			words = append(words, "check spec.secretRef")
		}
		return fmt.Errorf("the server answered %s", strings.Join(words, ": "))
	}
	return said(err)
}
