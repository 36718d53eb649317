package source

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/fluxcd/pkg/auth"
	"github.com/fluxcd/pkg/cache"
	"github.com/fluxcd/pkg/sourceignore"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/syncer/answer"
)

// MaxObjects bounds the objects of a bucket that are listed.
const MaxObjects = 100_000

const (
	// parallelObjects are fetched at the same time.
	parallelObjects = 16
	// storesMost bounds the files on disk that one snapshot has its content in:
	// each change of the bucket adds one, until all is put into a new one.
	storesMost = 8
)

// BucketOrigin is a part of a bucket and the credential it is read with.
type BucketOrigin struct {
	// Provider is generic (S3), aws, gcp or azure; empty is generic.
	Provider string
	// Endpoint is host and port, and a URL for azure; gcp has none.
	Endpoint string
	Bucket   string
	Region   string
	// Prefix of the names of the objects.
	Prefix string
	// Insecure: plain HTTP.
	Insecure bool
	// Secret has the data of the credential Secret in Flux's keys: accesskey and
	// secretkey; serviceaccount; accountKey, sasKey, or clientId with tenantId,
	// clientSecret, clientCertificate and others.
	Secret map[string][]byte
	// Certificates has ca.crt, tls.crt and tls.key.
	Certificates map[string][]byte
	// Proxy is asked to connect. If it is nil, the environment names it.
	Proxy *url.URL
	// STS gives out credentials for S3, if there is no Secret; nil if it is not
	// set.
	STS *BucketSTS
	// Workload asks a cloud where there is no Secret.
	Workload *Workload

	// write asks for a credential that may write, where that is another one.
	write bool
}

// BucketSTS is a service that gives out credentials.
type BucketSTS struct {
	// Provider is aws or ldap.
	Provider     string
	Endpoint     string
	Secret       map[string][]byte
	Certificates map[string][]byte
}

// Workload authenticates to a cloud without a password: it is the service account of an
// object or, without a name, the agent.
type Workload struct {
	// Logins keeps tokens; without it the process asks for itself, each time.
	Logins         *Logins
	ServiceAccount string
	// Client must not read from a cache.
	Client client.Client
	Key    Key
}

// longestLogin is how long a cloud is asked for a credential at most.
const longestLogin = 30 * time.Second

// byWorkload gets something from a cloud with the options of the library, which are none without
// a workload.
func byWorkload[T any](ctx context.Context, o BucketOrigin, get func(context.Context, []auth.Option) (T, error)) (T, error) {
	ctx, cancel := context.WithTimeout(AllowNetwork(ctx), longestLogin)
	defer cancel()
	var more []auth.Option
	if o.Region != "" {
		more = append(more, auth.WithSTSRegion(o.Region))
	}
	if o.STS != nil {
		more = append(more, auth.WithSTSEndpoint(o.STS.Endpoint))
	}
	w := o.Workload
	switch {
	case w == nil:
		return get(ctx, nil)
	case w.Logins == nil:
		return get(ctx, more)
	}
	as := account{w.ServiceAccount, o.Proxy, w.Client, w.Key}
	place := o.Region
	if o.STS != nil {
		place += " " + o.STS.Endpoint
	}
	return inLine(ctx, &w.Logins.lines, as.line(o.Provider, place), func(tokens *cache.TokenCache) (T, error) {
		return get(ctx, append(as.options(tokens), more...))
	})
}

// account is the service account that acts, empty for the agent.
func (w *Workload) account() string {
	if w == nil {
		return ""
	}
	return w.ServiceAccount
}

// way to the server.
func (o BucketOrigin) way() Way {
	return Way{Proxy: o.Proxy, Insecure: o.Insecure, Certificates: o.Certificates}
}

// place is where the objects are.
func (o BucketOrigin) place() string {
	return fmt.Sprintf("%q %q %q %q", o.Provider, o.Endpoint, o.Bucket, o.Prefix)
}

// key identifies what the origin may show: another credential is another origin.
func (o BucketOrigin) key() string {
	h := sha256.New()
	fmt.Fprintf(h, "%s %q insecure=%t\n", o.place(), o.Region, o.Insecure)
	if o.Proxy != nil {
		fmt.Fprintf(h, "proxy=%q\n", o.Proxy)
	}
	write := func(data map[string][]byte) {
		for _, k := range slices.Sorted(maps.Keys(data)) {
			fmt.Fprintf(h, "%q=%q\n", k, data[k])
		}
		fmt.Fprintln(h)
	}
	write(o.Secret)
	write(o.Certificates)
	if s := o.STS; s != nil {
		fmt.Fprintf(h, "sts %q %q\n", s.Provider, s.Endpoint)
		write(s.Secret)
		write(s.Certificates)
	}
	if o.Workload != nil && len(o.Secret) == 0 {
		fmt.Fprintf(h, "workload=%q\n", identityOf(o.Provider, o.Workload.ServiceAccount, o.Workload.Key))
	}
	return hex.EncodeToString(h.Sum(nil)[:12])
}

// blob is an object of a bucket.
type blob struct {
	key string
	// etag changes with the content; in the form that the header of an answer has
	// it, as the revision of a source is made of them.
	etag string
	size int64
	// generation of the object, for clouds that count them.
	generation int64
}

// There is no such object, or bucket.
var (
	errNoObject = errors.New("object not found")
	errNoBucket = errors.New("bucket not found")
)

// bucket is one that is being read. Errors tell no secrets, not even in a URL.
type bucket interface {
	// exists fails if the bucket cannot be read.
	exists(ctx context.Context) error
	// list calls visit for each object below a prefix, until visit fails.
	list(ctx context.Context, prefix string, visit func(blob) error) error
	// open returns what is there now, which may be another object than the one
	// that was listed.
	open(ctx context.Context, o blob) (io.ReadCloser, blob, error)
	close()
}

func (o BucketOrigin) open(ctx context.Context) (bucket, error) {
	switch o.Provider {
	case sourcev1.BucketProviderGoogle:
		return o.openGCS(ctx)
	case sourcev1.BucketProviderAzure:
		return o.openAzure(ctx)
	case "", sourcev1.BucketProviderGeneric, sourcev1.BucketProviderAmazon:
		return o.openS3(ctx)
	}
	return nil, failf(ReasonInvalidProvider, "cannot use spec.provider %q: it is not one of generic, aws, gcp, azure", o.Provider)
}

// transport to the server.
func (o BucketOrigin) transport() (answer.Transport, error) {
	config, err := tlsConfig(o.Certificates)
	if err != nil {
		return answer.Transport{}, err
	}
	proxy := http.ProxyFromEnvironment
	if o.Proxy != nil {
		proxy = http.ProxyURL(o.Proxy)
	}
	transport := transportTo(config, proxy)
	transport.MaxIdleConnsPerHost = parallelObjects
	// The libraries ask again where a server of objects does not answer.
	transport.ResponseHeaderTimeout = time.Minute
	return transport, nil
}

// Buckets makes snapshots of buckets. Objects are fetched when their ETag is
// another one than in the last snapshot, and once for all sources of the same
// origin. It is safe for concurrent use.
type Buckets struct {
	dir    string
	limits limits
	// objectsMost bounds the objects that are listed.
	objectsMost int
	pulls       pool[contents]
}

// NewBuckets keeps files in dir, which have no names there. A bucket with more
// than maxBytes, or MaxObjects, is refused.
func NewBuckets(dir string, maxBytes int64) *Buckets {
	return &Buckets{dir: dir, limits: limits{packBytes: maxBytes}, objectsMost: MaxObjects}
}

// contents of a bucket at one revision.
type contents struct {
	place, revision string
	root            node
	objects         map[string]stored
}

// stored is an object that was fetched.
type stored struct {
	etag string
	node node
}

// Fetch returns the snapshot of what the rules leave: those of the file
// .sourceignore in the root of the bucket, then those of the object. Its
// revision is Flux's: a digest of the names and ETags. If it is that of last,
// last is returned, and nothing but the list was asked for.
func (b *Buckets) Fetch(ctx context.Context, origin BucketOrigin, ignore *string, last *Snapshot) (_ *Snapshot, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = failf(ReasonBucketFailed, "cannot read what the server of bucket %s sent: %v", origin.Bucket, p)
		}
	}()
	ctx = AllowNetwork(ctx)
	from, err := origin.open(ctx)
	if err != nil {
		return nil, err
	}
	defer from.close()
	if err := from.exists(ctx); err != nil {
		return nil, bucketError(err, "cannot find bucket '%s'", origin.Bucket)
	}
	index, rulesFile, err := b.index(ctx, from, origin, ignore)
	if err != nil {
		return nil, bucketError(err, "cannot list bucket '%s'", origin.Bucket)
	}
	revision := revisionOf(index)
	if last != nil && last.bucket != nil && last.Revision == revision && last.bucket.place == origin.place() {
		return last, nil
	}
	key := fmt.Sprintf("%s %s %x", origin.key(), revision, sha256.Sum256(rulesFile))
	got, err := b.pulls.obtain(ctx, key, func() (*contents, error) {
		return b.pull(ctx, from, origin, index, rulesFile, last)
	})
	if err != nil {
		return nil, bucketError(err, "cannot fetch bucket '%s'", origin.Bucket)
	}
	if got.revision != revision {
		// An object changed after the list was made: this is not what is at that revision.
		b.pulls.forget(key)
	}
	return &Snapshot{
		Revision: got.revision, Digest: treeDigest(got.root, nil), File: strings.TrimPrefix(got.revision, "sha256:") + ".tar.gz",
		root: got.root, rules: &rules{id: "none"}, bucket: got,
	}, nil
}

// bucketError has the reason of the cause if that is more telling.
func bucketError(err error, format string, args ...any) error {
	reason := ReasonBucketFailed
	var known *Error
	if errors.As(err, &known) {
		switch known.Reason {
		case ReasonLimitExceeded, ReasonAuthenticationFailed:
			reason = known.Reason
		}
	}
	return failf(reason, format+": %w", append(args, err)...)
}

// revisionOf the names and ETags, as Flux has it.
func revisionOf(index map[string]blob) string {
	h := sha256.New()
	for _, key := range slices.Sorted(maps.Keys(index)) {
		fmt.Fprintf(h, "%s %s\n", key, index[key].etag)
	}
	return "sha256:" + hex.EncodeToString(h.Sum(nil))
}

// maxRulesBytes bounds the file of rules in a bucket.
const maxRulesBytes = 1 << 20

// index lists the objects that the rules leave, and the file of rules. Nothing
// is fetched of a bucket with names that cannot be files.
func (b *Buckets) index(ctx context.Context, from bucket, origin BucketOrigin, ignore *string) (map[string]blob, []byte, error) {
	var rulesFile []byte
	body, _, err := from.open(ctx, blob{key: sourceignore.IgnoreFile})
	switch {
	case err == nil:
		rulesFile, err = io.ReadAll(&limited{r: body, left: maxRulesBytes, max: maxRulesBytes, what: "the file " + sourceignore.IgnoreFile + " has", flag: "shrink it"})
		_ = body.Close()
		if err != nil {
			return nil, nil, fmt.Errorf("cannot read %s: %w", sourceignore.IgnoreFile, err)
		}
		if rulesFile == nil {
			rulesFile = []byte{}
		}
	case !errors.Is(err, errNoObject):
		return nil, nil, fmt.Errorf("cannot read %s: %w", sourceignore.IgnoreFile, err)
	}
	patterns := sourceignore.ReadPatterns(bytes.NewReader(rulesFile), nil)
	if ignore != nil {
		patterns = append(patterns, sourceignore.ReadPatterns(strings.NewReader(*ignore), nil)...)
	}
	if len(patterns) > maxPatterns {
		return nil, nil, failf(ReasonLimitExceeded, "it has more than %d ignore patterns", maxPatterns)
	}
	matcher := sourceignore.NewMatcher(patterns)
	room := newRoom(MaxEntries)
	index, names, tree := map[string]blob{}, map[string]string{}, &folder{room: room}
	var seen int
	var total int64
	err = from.list(ctx, origin.Prefix, func(o blob) error {
		if seen++; seen > b.objectsMost {
			return failf(ReasonLimitExceeded, "it has more than %d objects; use a prefix", b.objectsMost)
		}
		if err := room.header(o.key); err != nil {
			return err
		}
		if strings.HasSuffix(o.key, "/") || o.key == sourceignore.IgnoreFile || matcher.Match(strings.Split(o.key, "/"), false) {
			return nil
		}
		name, err := inside(o.key)
		if err != nil {
			return fmt.Errorf("cannot use object: %w", err)
		}
		if strings.Count(name, "/") > maxDepth {
			return failf(ReasonLimitExceeded, "the names of objects have more than %d parts", maxDepth)
		}
		if other, ok := names[name]; ok && other != o.key {
			return fmt.Errorf("cannot use objects %q and %q: they are the same file", other, o.key)
		}
		names[name] = o.key
		if err := tree.put(name, &node{}); err != nil {
			return fmt.Errorf("cannot use object: %w", err)
		}
		if total += o.size; total > b.limits.packBytes {
			return failf(ReasonLimitExceeded, "it has more than %d bytes; use a prefix or exclude objects in spec.ignore", b.limits.packBytes)
		}
		index[o.key] = o
		return nil
	})
	return index, rulesFile, err
}

// storesOf are the files that objects have their content in.
func storesOf(objects map[string]stored) map[store]bool {
	stores := map[store]bool{}
	for _, s := range objects {
		stores[s.node.in] = true
	}
	return stores
}
