package source

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/cloud"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/streaming"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/to"
	"github.com/Azure/azure-sdk-for-go/sdk/azidentity"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob"
	azblobmodel "github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/blob"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/bloberror"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/blockblob"
	"github.com/fluxcd/pkg/auth"
	azureauth "github.com/fluxcd/pkg/auth/azure"
)

// azureBlobs is a container of Azure Blob Storage.
type azureBlobs struct {
	client *azblob.Client
	name   string
	idle   func()
}

func (o BucketOrigin) openAzure(ctx context.Context) (bucket, error) {
	u, err := url.Parse(o.Endpoint)
	if err != nil || u.Host == "" || (u.Scheme != "https" && u.Scheme != "http") {
		return nil, failf(ReasonURLInvalid, "cannot use spec.endpoint: it is not a URL such as https://<account>.blob.core.windows.net")
	}
	if o.azureAmbient() {
		if err := azureStorage.checkURL(u); err != nil {
			return nil, err
		}
		if host := string(o.Secret["authorityHost"]); host != "" {
			authority, err := url.Parse(host)
			if err != nil {
				return nil, failf(ReasonAuthenticationFailed, "cannot use authorityHost of the Secret: it is not a URL")
			}
			if err := azureEntra.checkURL(authority); err != nil {
				return nil, err
			}
		}
	}
	transport, err := o.transport()
	if err != nil {
		return nil, err
	}
	through := func(left *leftAlone) *http.Client {
		return &http.Client{
			Transport: modest{transport, func(req *http.Request) bool {
				return req.URL.Query().Get("comp") == "" && req.URL.Query().Get("restype") == ""
			}, "<Blob>", left},
			// A credential goes to one place.
			CheckRedirect: func(*http.Request, []*http.Request) error { return errors.New("redirect refused") },
		}
	}
	base := azcore.ClientOptions{
		Transport: through(nil), // for tokens
		Retry:     policy.RetryOptions{MaxRetries: 1, RetryDelay: 500 * time.Millisecond, MaxRetryDelay: 5 * time.Second},
	}
	if host := string(o.Secret["authorityHost"]); host != "" {
		base.Cloud = cloud.Configuration{ActiveDirectoryAuthorityHost: host}
	}
	options := &azblob.ClientOptions{ClientOptions: base}
	options.Transport = through(&leftAlone{})
	token, err := o.azureToken(ctx, base)
	if err != nil {
		return nil, err
	}
	var client *azblob.Client
	switch key, sas := o.Secret["accountKey"], o.Secret["sasKey"]; {
	case token != nil:
		client, err = azblob.NewClient(o.Endpoint, token, options)
	case len(key) > 0:
		account, rest, _ := strings.Cut(u.Hostname(), ".")
		if !strings.Contains(rest, ".") {
			return nil, failf(ReasonAuthenticationFailed, "cannot use accountKey of the Secret: the host of spec.endpoint does not begin with the name of an account")
		}
		shared, problem := azblob.NewSharedKeyCredential(account, string(key))
		if problem != nil {
			return nil, failf(ReasonAuthenticationFailed, "cannot use accountKey of the Secret: it is not in base64")
		}
		client, err = azblob.NewClientWithSharedKeyCredential(o.Endpoint, shared, options)
	case len(sas) > 0:
		query, problem := url.ParseQuery(strings.TrimPrefix(string(sas), "?"))
		if problem != nil {
			return nil, failf(ReasonAuthenticationFailed, "cannot use sasKey of the Secret: it is not the query of a URL")
		}
		for k, v := range u.Query() {
			if !query.Has(k) {
				query[k] = v
			}
		}
		u.RawQuery = query.Encode()
		client, err = azblob.NewClientWithNoCredential(u.String(), options)
	default:
		client, err = azblob.NewClientWithNoCredential(o.Endpoint, options)
	}
	if err != nil {
		return nil, failf(ReasonAuthenticationFailed, "cannot read containers: %w", said(err))
	}
	return &azureBlobs{client: client, name: o.Bucket, idle: transport.CloseIdleConnections}, nil
}

// azureAmbient reports whether the identity is that of the agent, of its node or of a
// service account, and not one whose secret is in the Secret. It follows azureToken.
func (o BucketOrigin) azureAmbient() bool {
	has := func(key string) bool { return len(o.Secret[key]) > 0 }
	switch {
	case o.Secret == nil:
		return true
	case has("tenantId") && has("clientId") && (has("clientSecret") || has("clientCertificate")):
		return false
	case has("clientId"):
		return true
	}
	return !has("accountKey") && !has("sasKey")
}

// azureToken is a credential that gets tokens, nil if the Secret has another
// one. Without a Secret it is that of the environment or the workload. The
// first that applies counts, as in Flux.
func (o BucketOrigin) azureToken(ctx context.Context, base azcore.ClientOptions) (azcore.TokenCredential, error) {
	text := func(key string) string { return string(o.Secret[key]) }
	tenant, id := text("tenantId"), text("clientId")
	var token azcore.TokenCredential
	var err error
	switch {
	case o.Secret == nil:
		return o.azureChain(ctx, base)
	case tenant != "" && id != "" && text("clientSecret") != "":
		token, err = azidentity.NewClientSecretCredential(tenant, id, text("clientSecret"), &azidentity.ClientSecretCredentialOptions{ClientOptions: base})
	case tenant != "" && id != "" && text("clientCertificate") != "":
		chain, key, problem := azidentity.ParseCertificates(o.Secret["clientCertificate"], o.Secret["clientCertificatePassword"])
		if problem != nil {
			return nil, failf(ReasonAuthenticationFailed, "cannot use clientCertificate of the Secret: it is not a certificate with its key, or clientCertificatePassword is another one")
		}
		send := text("clientCertificateSendChain")
		token, err = azidentity.NewClientCertificateCredential(tenant, id, chain, key, &azidentity.ClientCertificateCredentialOptions{
			ClientOptions: base, SendCertificateChain: send == "1" || strings.EqualFold(send, "true"),
		})
	case id != "":
		if err := o.way().forIdentity(""); err != nil { // the node's, whoever has a service account
			return nil, err
		}
		token, err = azidentity.NewManagedIdentityCredential(&azidentity.ManagedIdentityCredentialOptions{ClientOptions: ownLogin(base), ID: azidentity.ClientID(id)})
	case text("accountKey") != "", text("sasKey") != "":
		return nil, nil
	case text("authorityHost") != "":
		return o.azureChain(ctx, base)
	default:
		return nil, failf(ReasonAuthenticationFailed, "cannot use the Secret: it needs clientId, accountKey or sasKey, or tenantId and clientId with clientSecret or clientCertificate")
	}
	if err != nil {
		return nil, failf(ReasonAuthenticationFailed, "cannot use the Secret: %s", short(err.Error(), 200))
	}
	return token, nil
}

func (o BucketOrigin) azureChain(ctx context.Context, base azcore.ClientOptions) (azcore.TokenCredential, error) {
	var chain []azcore.TokenCredential
	// Who names a service account is not the agent.
	if o.Workload.account() == "" {
		if token, err := azidentity.NewEnvironmentCredential(&azidentity.EnvironmentCredentialOptions{ClientOptions: ownLogin(base)}); err == nil {
			chain = append(chain, token)
		}
	}
	if o.Workload != nil {
		chain = append(chain, workloadCredential{ctx, o})
	}
	if len(chain) == 0 {
		return nil, nil
	}
	if err := o.way().forIdentity(o.Workload.account()); err != nil {
		return nil, err
	}
	token, err := azidentity.NewChainedTokenCredential(chain, nil)
	if err != nil {
		return nil, failf(ReasonAuthenticationFailed, "cannot get a credential from provider azure: %w", err)
	}
	return token, nil
}

// workloadCredential is that of the workload of a bucket.
type workloadCredential struct {
	ctx context.Context
	of  BucketOrigin
}

// GetToken implements azcore.TokenCredential. The library has no context to give.
func (w workloadCredential) GetToken(_ context.Context, of policy.TokenRequestOptions) (azcore.AccessToken, error) {
	return byWorkload(w.ctx, w.of, func(ctx context.Context, options []auth.Option) (azcore.AccessToken, error) {
		return azureauth.NewTokenCredential(ctx, options...).GetToken(ctx, of)
	})
}

// ownLogin are options for a login of the agent or its node. The proxy of an object is not for that: the service of a machine
// is asked in plain text.
func ownLogin(base azcore.ClientOptions) azcore.ClientOptions {
	base.Transport = &http.Client{
		Transport:     modest{inner: transportTo(&tls.Config{MinVersion: tls.VersionTLS12}, http.ProxyFromEnvironment)},
		CheckRedirect: func(*http.Request, []*http.Request) error { return errors.New("redirect refused") },
	}
	return base
}

func (a *azureBlobs) exists(ctx context.Context) error {
	one := int32(1)
	_, err := a.client.NewListBlobsFlatPager(a.name, &azblob.ListBlobsFlatOptions{MaxResults: &one}).NextPage(ctx)
	if bloberror.HasCode(err, bloberror.ContainerNotFound) {
		return errNoBucket
	}
	return a.error(err)
}

func (a *azureBlobs) list(ctx context.Context, prefix string, visit func(blob) error) error {
	options := &azblob.ListBlobsFlatOptions{}
	if prefix != "" {
		options.Prefix = &prefix
	}
	pages := a.client.NewListBlobsFlatPager(a.name, options)
	for pages.More() {
		page, err := pages.NextPage(ctx)
		if err != nil {
			return a.error(err)
		}
		if page.Segment == nil {
			continue
		}
		for _, item := range page.Segment.BlobItems {
			if item == nil || item.Name == nil {
				continue
			}
			b := blob{key: *item.Name}
			if p := item.Properties; p != nil {
				b.etag = quoted(p.ETag)
				if p.ContentLength != nil {
					b.size = *p.ContentLength
				}
			}
			if err := visit(b); err != nil {
				return err
			}
		}
	}
	return nil
}

// quoted is the ETag as it is in the header of an answer: a list has it without
// quotes.
func quoted(etag *azcore.ETag) string {
	if etag == nil || *etag == "" {
		return ""
	}
	if text := string(*etag); strings.Contains(text, `"`) {
		return text
	}
	return `"` + string(*etag) + `"`
}

func (a *azureBlobs) open(ctx context.Context, o blob) (io.ReadCloser, blob, error) {
	res, err := a.client.DownloadStream(ctx, a.name, o.key, nil)
	if err != nil {
		return nil, blob{}, a.error(err)
	}
	now := blob{key: o.key, etag: quoted(res.ETag), size: -1}
	if res.ContentLength != nil {
		now.size = *res.ContentLength
	}
	return res.Body, now, nil
}

func (a *azureBlobs) tag(b blob) string { return b.etag }

func (a *azureBlobs) put(ctx context.Context, name string, content []byte, tag string) (string, error) {
	conditions := &azblobmodel.ModifiedAccessConditions{}
	if tag == "" {
		conditions.IfNoneMatch = to.Ptr(azcore.ETagAny)
	} else {
		conditions.IfMatch = to.Ptr(azcore.ETag(`"` + strings.Trim(tag, `"`) + `"`))
	}
	res, err := a.client.ServiceClient().NewContainerClient(a.name).NewBlockBlobClient(name).Upload(ctx, streaming.NopCloser(bytes.NewReader(content)), &blockblob.UploadOptions{
		AccessConditions: &azblobmodel.AccessConditions{ModifiedAccessConditions: conditions},
	})
	var refused *azcore.ResponseError
	switch {
	case errors.As(err, &refused) && (refused.StatusCode == http.StatusPreconditionFailed || bloberror.HasCode(err, bloberror.BlobAlreadyExists) ||
		tag != "" && bloberror.HasCode(err, bloberror.BlobNotFound)):
		return "", ErrMoved
	case err != nil:
		return "", a.error(err)
	}
	return quoted(res.ETag), nil
}

func (a *azureBlobs) remove(ctx context.Context, name string) error {
	_, err := a.client.DeleteBlob(ctx, a.name, name, nil)
	return a.error(err)
}

func (a *azureBlobs) close() { a.idle() }

// error in few words: the library's have URLs, which may have a signature, and
// what the server sent.
func (a *azureBlobs) error(err error) error {
	var refused *azcore.ResponseError
	var login *azidentity.AuthenticationFailedError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &login):
		words := "cannot get a token"
		if login.RawResponse != nil {
			words += fmt.Sprintf(": the server answered %d %s", login.RawResponse.StatusCode, http.StatusText(login.RawResponse.StatusCode))
		}
		return failf(ReasonAuthenticationFailed, "%s; check spec.secretRef", words)
	case errors.As(err, &refused):
		if bloberror.HasCode(err, bloberror.BlobNotFound) {
			return errNoObject
		}
		words := fmt.Sprintf("the server answered %d %s", refused.StatusCode, short(refused.ErrorCode, 60))
		if refused.StatusCode == http.StatusForbidden || refused.StatusCode == http.StatusUnauthorized {
			words += "; check the name of the bucket and spec.secretRef"
		}
		return errors.New(words)
	}
	return said(err)
}
