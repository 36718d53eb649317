package source

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"

	"github.com/fluxcd/pkg/auth"
	gcpauth "github.com/fluxcd/pkg/auth/gcp"
	"golang.org/x/oauth2"
	"golang.org/x/oauth2/google"
	"google.golang.org/api/googleapi"
	"google.golang.org/api/option"
	"google.golang.org/api/storage/v1"
)

// gcs is a bucket of Google Cloud Storage. Google's client for its JSON API is a
// small part of its storage module, which is an eighth of a program with it.
type gcs struct {
	service *storage.Service
	name    string
	idle    func()
}

func (o BucketOrigin) openGCS(ctx context.Context) (bucket, error) {
	transport, err := o.transport()
	if err != nil {
		return nil, err
	}
	// A file that is stored compressed is returned inflated.
	transport.DisableCompression = true
	inner := modest{transport, func(req *http.Request) bool { return req.URL.Query().Get("alt") == "media" }, "{", &leftAlone{}}
	client := &http.Client{Transport: inner}
	options := []option.ClientOption{option.WithHTTPClient(client), option.WithUserAgent("cascade")}
	// As in Google's clients, an emulator is called without a credential.
	if emulator := os.Getenv("STORAGE_EMULATOR_HOST"); emulator != "" {
		if !strings.Contains(emulator, "://") {
			emulator = "http://" + emulator
		}
		options = append(options, option.WithEndpoint(strings.TrimSuffix(emulator, "/")+"/storage/v1/"))
		if o.Secret != nil {
			if _, err := serviceAccountKey(o.Secret); err != nil {
				return nil, err
			}
		}
	} else {
		var tokens oauth2.TokenSource
		if o.Secret != nil {
			key, err := serviceAccountKey(o.Secret)
			if err != nil {
				return nil, err
			}
			config, err := google.JWTConfigFromJSON(key, o.scope())
			if err != nil {
				return nil, failf(ReasonAuthenticationFailed, "cannot use the Secret: serviceaccount is not the key of a service account")
			}
			tokens = config.TokenSource(context.WithValue(ctx, oauth2.HTTPClient, &http.Client{Transport: modest{inner: transport}, Timeout: longestLogin}))
		} else {
			if err := o.way().forIdentity(o.Workload.account()); err != nil {
				return nil, err
			}
			tokens = workloadTokens{ctx, o}
		}
		client.Transport = &oauth2.Transport{Source: oauth2.ReuseTokenSource(nil, tokens), Base: inner}
	}
	service, err := storage.NewService(ctx, options...)
	if err != nil {
		return nil, failf(ReasonBucketFailed, "cannot read buckets: %w", err)
	}
	return &gcs{service: service, name: o.Bucket, idle: transport.CloseIdleConnections}, nil
}

// workloadTokens are those of the workload of a bucket.
type workloadTokens struct {
	ctx context.Context
	of  BucketOrigin
}

// Token implements oauth2.TokenSource.
func (w workloadTokens) Token() (*oauth2.Token, error) {
	return byWorkload(w.ctx, w.of, func(ctx context.Context, options []auth.Option) (*oauth2.Token, error) {
		return gcpauth.NewTokenSource(ctx, options...).Token()
	})
}

// scope of a token that is asked for.
func (o BucketOrigin) scope() string {
	if o.write {
		return storage.DevstorageReadWriteScope
	}
	return storage.DevstorageReadOnlyScope
}

// serviceAccountKey of a Secret. Other kinds of credentials name files and
// programs, and are refused.
func serviceAccountKey(secret map[string][]byte) ([]byte, error) {
	key, ok := secret["serviceaccount"]
	if !ok {
		return nil, failf(ReasonAuthenticationFailed, "cannot use the Secret: it needs the key serviceaccount")
	}
	var kind struct {
		Type string `json:"type"`
	}
	if err := json.Unmarshal(key, &kind); err != nil {
		return nil, failf(ReasonAuthenticationFailed, "cannot use the Secret: serviceaccount is not JSON")
	}
	if kind.Type != "service_account" {
		return nil, failf(ReasonAuthenticationFailed, "cannot use the Secret: serviceaccount must be the key of a service account, with 'type' set to 'service_account'")
	}
	return key, nil
}

func (g *gcs) exists(ctx context.Context) error {
	_, err := g.service.Buckets.Get(g.name).Fields("name").Context(ctx).Do()
	if err = g.error(err); errors.Is(err, errNoObject) {
		return errNoBucket
	}
	return err
}

func (g *gcs) list(ctx context.Context, prefix string, visit func(blob) error) error {
	var stop error
	err := g.service.Objects.List(g.name).Prefix(prefix).Fields("nextPageToken", "items(name,etag,size,generation)").Pages(ctx, func(page *storage.Objects) error {
		for _, o := range page.Items {
			if stop = visit(blob{key: o.Name, etag: o.Etag, size: int64(min(o.Size, 1<<62)), generation: o.Generation}); stop != nil {
				return stop
			}
		}
		return nil
	})
	return cmp.Or(stop, g.error(err))
}

func (g *gcs) open(ctx context.Context, o blob) (io.ReadCloser, blob, error) {
	if o.generation != 0 {
		body, size, err := g.content(ctx, o)
		if !errors.Is(err, errNoObject) {
			o.size = size
			return body, o, err
		}
	}
	// It is not known yet, or another one by now, or becomes one between the two requests: a
	// generation that was replaced is not found, and that the object is gone would be wrong.
	for range mostGenerations {
		now, err := g.service.Objects.Get(g.name, o.key).Fields("etag", "generation").Context(ctx).Do()
		if err != nil {
			return nil, blob{}, g.error(err)
		}
		o.etag, o.generation = now.Etag, now.Generation
		var body io.ReadCloser
		if body, o.size, err = g.content(ctx, o); !errors.Is(err, errNoObject) {
			return body, o, err
		}
	}
	return nil, blob{}, fmt.Errorf("cannot read object %s: it was replaced %d times meanwhile", o.key, mostGenerations)
}

// mostGenerations of an object are tried that is replaced while it is read.
const mostGenerations = 10

// content of an object at its generation.
func (g *gcs) content(ctx context.Context, o blob) (io.ReadCloser, int64, error) {
	res, err := g.service.Objects.Get(g.name, o.key).Generation(o.generation).Context(ctx).Download()
	if err != nil {
		return nil, 0, g.error(err)
	}
	return res.Body, res.ContentLength, nil
}

func (g *gcs) tag(b blob) string { return strconv.FormatInt(b.generation, 10) }

func (g *gcs) put(ctx context.Context, name string, content []byte, tag string) (string, error) {
	var generation int64 // zero: there must be none
	if tag != "" {
		var err error
		if generation, err = strconv.ParseInt(tag, 10, 64); err != nil {
			return "", fmt.Errorf("cannot use generation %q", tag)
		}
	}
	// One request, which is not repeated: whoever does not know what came of it looks.
	o, err := g.service.Objects.Insert(g.name, &storage.Object{Name: name}).IfGenerationMatch(generation).Fields("generation").
		Media(bytes.NewReader(content), googleapi.ContentType("application/octet-stream"), googleapi.ChunkSize(0)).Context(ctx).Do()
	var refused *googleapi.Error
	switch {
	case errors.As(err, &refused) && (refused.Code == http.StatusPreconditionFailed || tag != "" && refused.Code == http.StatusNotFound):
		return "", ErrMoved
	case err != nil:
		return "", g.error(err)
	}
	return strconv.FormatInt(o.Generation, 10), nil
}

func (g *gcs) remove(ctx context.Context, name string) error {
	return g.error(g.service.Objects.Delete(g.name, name).Context(ctx).Do())
}

func (g *gcs) close() { g.idle() }

// error in few words: the library's have what the server sent.
func (g *gcs) error(err error) error {
	var refused *googleapi.Error
	var token *oauth2.RetrieveError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &token):
		return failf(ReasonAuthenticationFailed, "cannot get a token for the service account: %s", short(cmp.Or(token.ErrorDescription, token.ErrorCode, "the server refused"), 200))
	case errors.As(err, &refused):
		if refused.Code == http.StatusNotFound {
			return errNoObject
		}
		words := fmt.Sprintf("the server answered %d %s", refused.Code, http.StatusText(refused.Code))
		if refused.Message != "" {
			words += ": " + short(refused.Message, 200)
		}
		if refused.Code == http.StatusForbidden || refused.Code == http.StatusUnauthorized {
			words += "; check spec.secretRef"
		}
		return errors.New(words)
	}
	return said(err)
}
