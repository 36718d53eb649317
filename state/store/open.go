package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"strings"
	"time"

	sourcev1 "github.com/fluxcd/source-controller/api/v1"

	"github.com/cascade-gitops/cascade/syncer/source"
)

// DefaultBranch is that of a state in a Git repository, if the address names none.
const DefaultBranch = "cascade-state"

// Options of Open. The zero value is that of a process whose own identity may read and
// write.
type Options struct {
	// Secret has the credential in the keys of Flux's Secrets: those of a Bucket of the
	// provider, or of a GitRepository. nil asks the cloud for the identity of the process.
	Secret map[string][]byte
	// Certificates has ca.crt, tls.crt and tls.key for buckets.
	Certificates map[string][]byte
	Proxy        *url.URL
	// Workload asks a cloud where there is no Secret, in the name of another one than the
	// process.
	Workload *source.Workload
	// Dir is where a mirror of a Git repository is kept. If it is empty, it is a directory
	// that Close deletes.
	Dir string
	// Now is the clock; nil is that of the system.
	Now func() time.Time
}

// Address is where a state is kept, parsed.
type Address struct {
	// Kind is file, s3, azblob, gs or git.
	Kind string
	// Path of a directory, or below which objects are.
	Path string
	// Bucket, or container.
	Bucket string
	// Endpoint of S3, host and port, or of Azure, a URL.
	Endpoint, Region string
	// Insecure: plain HTTP, to S3.
	Insecure bool
	// URL and Branch of a Git repository.
	URL, Branch string
}

// String names it for people, without what could be a credential.
func (a Address) String() string {
	switch a.Kind {
	case "file":
		return a.Path
	case "git":
		return "git+" + a.URL + "?branch=" + a.Branch
	}
	return strings.TrimSuffix(a.Kind+"://"+a.Bucket+"/"+a.Path, "/")
}

// SamePlace reports whether two addresses are known to be of one place. A region says only how a bucket is
// reached, as its name is its own in all regions of a server; another server has other buckets of that name.
func SamePlace(a, b string) bool {
	one, err1 := Parse(a)
	other, err2 := Parse(b)
	one.Region, other.Region = "", ""
	return errors.Join(err1, err2) == nil && one == other
}

// Parse reads an address:
//
//	/a/directory, a/directory, file:///a/directory
//	s3://bucket/prefix[?region=R][&endpoint=https://host:port]
//	azblob://container/prefix?account=NAME, or ?endpoint=URL
//	gs://bucket/prefix
//	git+https://host/repository[?branch=B], git+ssh://git@host/repository[?branch=B]
func Parse(address string) (Address, error) {
	refuse := func(why string) (Address, error) {
		return Address{}, fmt.Errorf("cannot use the address of a state: %s", why)
	}
	scheme, _, ok := strings.Cut(address, "://")
	switch {
	case address == "":
		return refuse("it is empty")
	case !ok:
		if scheme, rest, ok := strings.Cut(address, ":"); ok && !strings.ContainsAny(scheme, "/.") && strings.HasPrefix(rest, "/") {
			return refuse("a directory has no scheme, or file://")
		}
		path, err := filepath.Abs(address)
		if err != nil {
			return refuse(err.Error())
		}
		return Address{Kind: "file", Path: path}, nil
	}
	u, err := url.Parse(address)
	if err != nil {
		return refuse("it is no URL") // the error has the address, which may have a password
	}
	if _, ok := u.User.Password(); ok {
		return refuse("it has a password; put it into a Secret or a file of credentials")
	}
	query := u.Query()
	for key := range query {
		if !known(scheme, key) {
			return refuse(fmt.Sprintf("%.40q is no option of %.20s://", key, scheme))
		}
	}
	a := Address{Kind: scheme, Path: strings.Trim(u.Path, "/"), Bucket: u.Host}
	switch scheme {
	case "file":
		if u.Host != "" && u.Host != "localhost" || u.Path == "" {
			return refuse("a directory of this machine is file:///<path>")
		}
		return Address{Kind: "file", Path: filepath.Clean(u.Path)}, nil
	case "s3":
		a.Region = query.Get("region")
		if e := query.Get("endpoint"); e != "" {
			at, err := url.Parse(e)
			if err != nil || at.Host == "" || at.Scheme != "https" && at.Scheme != "http" || strings.Trim(at.Path, "/") != "" {
				return refuse("endpoint is no URL such as https://<host>:<port>")
			}
			a.Endpoint, a.Insecure = at.Host, at.Scheme == "http"
		}
	case "azblob":
		a.Endpoint = query.Get("endpoint")
		if account := query.Get("account"); account != "" && a.Endpoint == "" {
			if strings.ContainsAny(account, "./:@?#") {
				return refuse("account is the name of a storage account, without its domain")
			}
			a.Endpoint = "https://" + account + ".blob.core.windows.net"
		}
		if a.Endpoint == "" {
			return refuse("it needs ?account=<name>, or ?endpoint=<URL>")
		}
	case "gs":
	case "git+https", "git+http", "git+ssh":
		a.Kind, a.Branch = "git", cmp.Or(query.Get("branch"), DefaultBranch)
		u.RawQuery, u.Fragment, u.Scheme = "", "", strings.TrimPrefix(scheme, "git+")
		a.URL, a.Bucket, a.Path = u.String(), "", ""
	default:
		return refuse(fmt.Sprintf("scheme %.20q is none of file, s3, azblob, gs, git+https, git+ssh", scheme))
	}
	if a.Kind != "git" && (a.Bucket == "" || u.User != nil) {
		return refuse(scheme + "://<bucket>/<prefix> names no bucket")
	}
	return a, nil
}

func known(scheme, option string) bool {
	switch scheme {
	case "s3":
		return option == "region" || option == "endpoint"
	case "azblob":
		return option == "account" || option == "endpoint"
	case "git+https", "git+http", "git+ssh":
		return option == "branch"
	}
	return false
}

// Open returns the store at an address, as Parse reads it. It writes nothing, but makes a
// directory.
func Open(ctx context.Context, address string, o Options) (Store, error) {
	a, err := Parse(address)
	if err != nil {
		return nil, err
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	at, err := a.open(ctx, o)
	if err != nil {
		return nil, fmt.Errorf("cannot open the state at %s: %w", a, err)
	}
	return newStore(at, o.Now), nil
}

func (a Address) open(ctx context.Context, o Options) (place, error) {
	origin := source.BucketOrigin{
		Bucket: a.Bucket, Endpoint: a.Endpoint, Region: a.Region, Insecure: a.Insecure,
		Secret: o.Secret, Certificates: o.Certificates, Proxy: o.Proxy, Workload: o.Workload,
	}
	switch a.Kind {
	case "file":
		return openDirectory(a.Path)
	case "git":
		return openGit(source.Origin{URL: a.URL, Secret: o.Secret, Proxy: o.Proxy}, a.Branch, a.String(), o.Dir, o.Now)
	case "s3":
		origin.Provider = sourcev1.BucketProviderGeneric
		if o.Secret == nil {
			origin.Provider = sourcev1.BucketProviderAmazon
		}
		if origin.Endpoint == "" {
			origin.Endpoint = "s3.amazonaws.com"
			if a.Region != "" {
				origin.Endpoint = "s3." + a.Region + ".amazonaws.com"
			}
		}
	case "azblob":
		origin.Provider = sourcev1.BucketProviderAzure
		if o.Secret == nil && o.Workload == nil {
			origin.Workload = &source.Workload{}
		}
	case "gs":
		origin.Provider = sourcev1.BucketProviderGoogle
	default:
		return nil, errors.New("no such kind")
	}
	return openObjects(ctx, origin, a.Path, a.String())
}
