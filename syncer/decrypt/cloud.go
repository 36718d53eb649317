package decrypt

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
	"unicode/utf16"

	kmsapi "cloud.google.com/go/kms/apiv1"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/cloud"
	"github.com/Azure/azure-sdk-for-go/sdk/azidentity"
	"github.com/Azure/azure-sdk-for-go/sdk/security/keyvault/azkeys"
	awssdk "github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/arn"
	"github.com/aws/aws-sdk-go-v2/credentials"
	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	"github.com/fluxcd/pkg/auth"
	authaws "github.com/fluxcd/pkg/auth/aws"
	authazure "github.com/fluxcd/pkg/auth/azure"
	authgcp "github.com/fluxcd/pkg/auth/gcp"
	"github.com/fluxcd/pkg/auth/generic"
	"github.com/fluxcd/pkg/cache"
	"github.com/getsops/sops/v3/azkv"
	"github.com/getsops/sops/v3/gcpkms"
	"github.com/getsops/sops/v3/hcvault"
	"github.com/getsops/sops/v3/keyservice"
	"github.com/getsops/sops/v3/kms"
	vaultapi "github.com/hashicorp/vault/api"
	"golang.org/x/oauth2"
	"golang.org/x/oauth2/google"
	"google.golang.org/api/option"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"github.com/cascade-gitops/cascade/syncer/answer"
	"github.com/cascade-gitops/cascade/syncer/source"
)

// newHTTPClient is explicit because the process denies the default transport
// to whoever takes it unasked. Every answer is waited for within a bound.
func newHTTPClient() *http.Client {
	return &http.Client{Timeout: keyServiceTime, Transport: answer.Over(&http.Transport{
		Proxy:                 http.ProxyFromEnvironment,
		DialContext:           (&net.Dialer{Timeout: 10 * time.Second}).DialContext,
		ForceAttemptHTTP2:     true,
		TLSHandshakeTimeout:   10 * time.Second,
		ResponseHeaderTimeout: keyServiceTime,
		IdleConnTimeout:       30 * time.Second,
		MaxIdleConnsPerHost:   2,
	})}
}

// identity are the options of a token for the Kustomization's service account,
// or for this process where none is set. The context lets the providers'
// clients, which clone the default transport, reach the network.
func (d *Decryptor) identity(ctx context.Context, operation string, more ...auth.Option) (context.Context, []auth.Option, error) {
	if d.options.Client == nil {
		return nil, nil, errors.New("no credentials are given")
	}
	o := []auth.Option{auth.WithClient(d.options.Client)}
	if d.serviceAccount != "" {
		o = append(o, auth.WithServiceAccountName(d.serviceAccount), auth.WithServiceAccountNamespace(d.name.Namespace))
	}
	if d.options.Tokens != nil {
		o = append(o, auth.WithCache(*d.options.Tokens, cache.InvolvedObject{
			Kind: kustomizev1.KustomizationKind, Name: d.name.Name, Namespace: d.name.Namespace, Operation: operation,
		}))
	}
	return source.AllowNetwork(ctx), append(o, more...), nil
}

// Forget drops the metrics of a Kustomization that is gone.
func (o Options) Forget(name types.NamespacedName) {
	for _, operation := range []string{
		kustomizev1.MetricDecryptWithAWS, kustomizev1.MetricDecryptWithAzure, kustomizev1.MetricDecryptWithGCP, kustomizev1.MetricDecryptWithVault,
	} {
		o.Tokens.DeleteEventsForObject(kustomizev1.KustomizationKind, name.Name, name.Namespace, operation)
	}
}

// awsCredentials as written in the Secret.
type awsCredentials struct {
	AccessKeyID     string `json:"aws_access_key_id"`
	SecretAccessKey string `json:"aws_secret_access_key"`
	SessionToken    string `json:"aws_session_token"`
}

func parseAWS(value []byte) (*awsCredentials, error) {
	c := &awsCredentials{}
	if err := yaml.Unmarshal(value, c); err != nil {
		return nil, errors.New("it is not YAML with aws_access_key_id and aws_secret_access_key")
	}
	return c, nil
}

func (d *Decryptor) aws(ctx context.Context, key *keyservice.KmsKey, ciphertext []byte) ([]byte, error) {
	master := kms.MasterKey{Arn: key.Arn, Role: key.Role, EncryptionContext: map[string]*string{}, EncryptedKey: string(ciphertext)}
	for name, value := range key.Context {
		master.EncryptionContext[name] = &value
	}
	// A profile would name a file of this process.
	var provider awssdk.CredentialsProvider
	if c := d.keys.aws; c != nil {
		provider = credentials.NewStaticCredentialsProvider(c.AccessKeyID, c.SecretAccessKey, c.SessionToken)
	} else {
		var region []auth.Option
		if parsed, err := arn.Parse(key.Arn); err == nil {
			region = append(region, auth.WithSTSRegion(parsed.Region))
		}
		permitted, o, err := d.identity(ctx, kustomizev1.MetricDecryptWithAWS, region...)
		if err != nil {
			return nil, err
		}
		provider = authaws.NewCredentialsProvider(permitted, o...)
	}
	kms.NewCredentialsProvider(provider).ApplyToMasterKey(&master)
	// Left to itself, the SDK makes a transport of its own and heeds
	// AWS_CA_BUNDLE, which it cannot do with any other client.
	if d.givenHTTP {
		kms.NewHTTPClient(d.options.HTTP).ApplyToMasterKey(&master)
	}
	return master.DecryptContext(ctx)
}

// azureCredentials as written in the Secret: fields of an authentication file,
// or those that the az command prints.
type azureCredentials struct {
	TenantID                   string `json:"tenantId"`
	ClientID                   string `json:"clientId"`
	ClientSecret               string `json:"clientSecret"`
	ClientCertificate          string `json:"clientCertificate"`
	ClientCertificatePassword  string `json:"clientCertificatePassword"`
	ClientCertificateSendChain bool   `json:"clientCertificateSendChain"`
	AuthorityHost              string `json:"authorityHost"`
	AppID                      string `json:"appId"`
	Tenant                     string `json:"tenant"`
	Password                   string `json:"password"`
}

func parseAzure(value []byte) (*azureCredentials, error) {
	c := &azureCredentials{}
	if err := yaml.Unmarshal(utf8Of(value), c); err != nil {
		return nil, errors.New("it is not an Azure authentication file")
	}
	if _, err := c.credential(&http.Client{}, false); err != nil {
		return nil, err
	}
	return c, nil
}

// utf8Of undoes what PowerShell does to a file that it writes.
func utf8Of(value []byte) []byte {
	var order binary.ByteOrder
	switch {
	case bytes.HasPrefix(value, []byte{0xff, 0xfe}):
		order = binary.LittleEndian
	case bytes.HasPrefix(value, []byte{0xfe, 0xff}):
		order = binary.BigEndian
	default:
		return bytes.TrimPrefix(value, []byte{0xef, 0xbb, 0xbf})
	}
	var units []uint16
	for pair := range slices.Chunk(value[2:], 2) {
		if len(pair) == 2 {
			units = append(units, order.Uint16(pair))
		}
	}
	return []byte(string(utf16.Decode(units)))
}

// credential of Entra ID. private: its authority is not one that Entra's public
// instances know of.
func (c *azureCredentials) credential(transport *http.Client, private bool) (azcore.TokenCredential, error) {
	o := azcore.ClientOptions{Transport: transport, Cloud: cloud.AzurePublic}
	if c.AuthorityHost != "" {
		o.Cloud = cloud.Configuration{ActiveDirectoryAuthorityHost: c.AuthorityHost, Services: map[cloud.ServiceName]cloud.ServiceConfiguration{}}
	}
	var credential azcore.TokenCredential
	var err error
	switch {
	case c.TenantID != "" && c.ClientID != "" && c.ClientSecret != "":
		credential, err = azidentity.NewClientSecretCredential(c.TenantID, c.ClientID, c.ClientSecret, &azidentity.ClientSecretCredentialOptions{ClientOptions: o, DisableInstanceDiscovery: private})
	case c.TenantID != "" && c.ClientID != "" && c.ClientCertificate != "":
		certificates, key, perr := azidentity.ParseCertificates([]byte(c.ClientCertificate), []byte(c.ClientCertificatePassword))
		if perr != nil {
			return nil, errors.New("its clientCertificate cannot be parsed")
		}
		credential, err = azidentity.NewClientCertificateCredential(c.TenantID, c.ClientID, certificates, key,
			&azidentity.ClientCertificateCredentialOptions{ClientOptions: o, DisableInstanceDiscovery: private, SendCertificateChain: c.ClientCertificateSendChain})
	case c.Tenant != "" && c.AppID != "" && c.Password != "":
		credential, err = azidentity.NewClientSecretCredential(c.Tenant, c.AppID, c.Password, &azidentity.ClientSecretCredentialOptions{ClientOptions: o, DisableInstanceDiscovery: private})
	case c.ClientID != "":
		credential, err = azidentity.NewManagedIdentityCredential(&azidentity.ManagedIdentityCredentialOptions{ClientOptions: o, ID: azidentity.ClientID(c.ClientID)})
	default:
		return nil, errors.New("it needs clientId, or tenantId, clientId and clientSecret or clientCertificate, or tenant, appId and password")
	}
	if err != nil {
		return nil, errors.New("its fields are not those of an Azure identity")
	}
	return credential, nil
}

func (d *Decryptor) azure(ctx context.Context, key *keyservice.AzureKeyVaultKey, ciphertext []byte) ([]byte, error) {
	master := azkv.MasterKey{VaultURL: key.VaultUrl, Name: key.Name, Version: key.Version, EncryptedKey: string(ciphertext)}
	var credential azcore.TokenCredential
	var err error
	if d.keys.azure != nil {
		credential, err = d.keys.azure.credential(d.options.HTTP, d.options.skipInstanceDiscovery)
	} else {
		var permitted context.Context
		var o []auth.Option
		if permitted, o, err = d.identity(ctx, kustomizev1.MetricDecryptWithAzure); err == nil {
			credential = authazure.NewTokenCredential(permitted, o...)
		}
	}
	if err != nil {
		return nil, err
	}
	azkv.NewTokenCredential(credential).ApplyToMasterKey(&master)
	azkv.NewClientOptions(&azkeys.ClientOptions{
		ClientOptions: azcore.ClientOptions{Transport: d.options.HTTP},
		// A test's server is not below vault.azure.net.
		DisableChallengeResourceVerification: d.options.azure != "",
	}).ApplyToMasterKey(&master)
	return master.DecryptContext(ctx)
}

// gcpCredentials as written in the Secret.
type gcpCredentials struct {
	kind google.CredentialsType
	data []byte
}

// parseGCP accepts credentials that are complete in themselves. Other types
// name files, programs and addresses from which this process would fetch a
// token, its own among them.
func parseGCP(value []byte) (*gcpCredentials, error) {
	value = bytes.TrimSpace(value)
	var written struct {
		Type string `json:"type"`
	}
	if err := json.Unmarshal(value, &written); err != nil {
		return nil, errors.New("it is not the JSON of Google credentials")
	}
	kind := google.CredentialsType(written.Type)
	if kind != google.ServiceAccount && kind != google.AuthorizedUser {
		return nil, fmt.Errorf("credentials of type %.40q are not accepted; use a service_account key", written.Type)
	}
	if _, err := google.CredentialsFromJSONWithType(context.Background(), value, kind, kmsapi.DefaultAuthScopes()...); err != nil {
		return nil, errors.New("it is not a complete key of Google credentials")
	}
	return &gcpCredentials{kind: kind, data: value}, nil
}

func (d *Decryptor) gcp(ctx context.Context, key *keyservice.GcpKmsKey, ciphertext []byte) ([]byte, error) {
	// Google's clients take theirs from the context.
	ctx = context.WithValue(ctx, oauth2.HTTPClient, d.options.HTTP)
	var tokens oauth2.TokenSource
	if d.keys.gcp != nil {
		c, err := google.CredentialsFromJSONWithType(ctx, d.keys.gcp.data, d.keys.gcp.kind, kmsapi.DefaultAuthScopes()...)
		if err != nil {
			return nil, errors.New("the given Google credentials are not complete")
		}
		tokens = c.TokenSource
	} else {
		permitted, o, err := d.identity(ctx, kustomizev1.MetricDecryptWithGCP)
		if err != nil {
			return nil, err
		}
		tokens = authgcp.NewTokenSource(permitted, o...)
	}
	o := []option.ClientOption{option.WithHTTPClient(oauth2.NewClient(ctx, tokens))}
	if d.options.gcp != "" {
		o = append(o, option.WithEndpoint(d.options.gcp))
	}
	master := gcpkms.MasterKey{ResourceID: key.ResourceId, EncryptedKey: string(ciphertext)}
	gcpkms.UseRESTClient{}.ApplyToMasterKey(&master)
	gcpkms.ClientOptions(o).ApplyToMasterKey(&master)
	return master.DecryptContext(ctx)
}

func (d *Decryptor) vault(ctx context.Context, key *keyservice.VaultKey, ciphertext []byte) ([]byte, error) {
	if err := checkVaultAddress(key.VaultAddress); err != nil {
		return nil, err
	}
	if err := d.vaultAllowed(ctx, key.VaultAddress); err != nil {
		return nil, err
	}
	token, err := d.vaultToken(ctx, key.VaultAddress)
	if err != nil {
		return nil, err
	}
	master := hcvault.MasterKey{VaultAddress: key.VaultAddress, EnginePath: key.EnginePath, KeyName: key.KeyName, EncryptedKey: string(ciphertext)}
	hcvault.Token(token).ApplyToMasterKey(&master)
	hcvault.NewHTTPClient(d.vaultHTTP()).ApplyToMasterKey(&master)
	return master.DecryptContext(ctx)
}

// vaultHTTP is a client of its own: Vault's library changes the one it is given.
func (d *Decryptor) vaultHTTP() *http.Client {
	own := *d.options.HTTP
	if shared, ok := own.Transport.(answer.Transport); ok {
		transport := shared.Clone()
		transport.DisableKeepAlives = true // it lives for one call
		own.Transport = answer.Over(transport)
	}
	return &own
}

// checkVaultAddress keeps to the web: Vault's library would also dial a
// socket's path.
func checkVaultAddress(address string) error {
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Host == "" {
		return errors.New("cannot use Vault address: it is not a URL of http or https")
	}
	return nil
}

// vaultAllowed refuses an address that neither the Secret nor the operator names. The
// file that names it comes from Git, and whoever may write there would otherwise get the
// token by naming a server of his own (docs/decisions/020).
func (d *Decryptor) vaultAllowed(ctx context.Context, address string) error {
	same := func(other string) bool {
		return strings.TrimSuffix(strings.TrimSpace(other), "/") == strings.TrimSuffix(address, "/")
	}
	if d.keys.vaultAddress != "" {
		if same(d.keys.vaultAddress) {
			return nil
		}
	} else if slices.ContainsFunc(d.options.VaultAddresses, same) {
		return nil
	} else if d.options.VaultConfig.Name != "" {
		// It lists the servers that service accounts log in to.
		_, err := d.vaultLoginPath(ctx, address)
		if err == nil || d.keys.vaultToken == "" {
			return err
		}
	}
	return &source.Error{Reason: source.ReasonCredentialRefused, Err: fmt.Errorf(
		"CredentialRefused: cannot use a token for Vault %.200s, which a file in the source names: set %s in the decryption Secret, or --sops-vault-address of the agent, to that address", address, vaultAddressKey)}
}

// vaultToken returns the token of the Secret, or logs a service account in where the
// operator listed the server. A token of the environment is nobody's.
func (d *Decryptor) vaultToken(ctx context.Context, address string) (string, error) {
	switch {
	case d.keys.vaultToken != "":
		return d.keys.vaultToken, nil
	case d.options.VaultConfig.Name != "":
		return d.loginVault(ctx, address)
	}
	return "", fmt.Errorf("no Vault token is given; set %s in the decryption Secret", vaultTokenKey)
}

func (d *Decryptor) loginVault(ctx context.Context, address string) (string, error) {
	permitted, o, err := d.identity(ctx, kustomizev1.MetricDecryptWithVault, auth.WithAudiences(address))
	if err != nil {
		return "", err
	}
	path, err := d.vaultLoginPath(ctx, address)
	if err != nil {
		return "", err
	}
	issued, err := auth.GetAccessToken(permitted, generic.Provider{}, o...)
	if err != nil {
		return "", fmt.Errorf("cannot create a service account token for Vault: %w", err)
	}
	jwt, ok := issued.(*generic.Token)
	if !ok {
		return "", fmt.Errorf("cannot use token of type %T for Vault", issued)
	}
	role, err := vaultRole(jwt.Token)
	if err != nil {
		return "", err
	}
	config := vaultapi.DefaultConfig()
	config.Address, config.HttpClient = address, d.vaultHTTP()
	c, err := vaultapi.NewClient(config)
	if err != nil {
		return "", fmt.Errorf("cannot make a client of Vault %s: %w", address, err)
	}
	c.ClearToken() // of the environment
	secret, err := c.Logical().WriteWithContext(ctx, path, map[string]any{"role": role, "jwt": jwt.Token})
	if err != nil {
		return "", fmt.Errorf("cannot log in to Vault %s at %s as role %s: %w", address, path, role, err)
	}
	if secret == nil || secret.Auth == nil || secret.Auth.ClientToken == "" {
		return "", fmt.Errorf("cannot log in to Vault %s at %s as role %s: it gave no token", address, path, role)
	}
	return secret.Auth.ClientToken, nil
}

func (d *Decryptor) vaultLoginPath(ctx context.Context, address string) (string, error) {
	name := d.options.VaultConfig
	list := &corev1.ConfigMap{}
	if err := d.options.Client.Get(ctx, name, list); err != nil {
		return "", fmt.Errorf("cannot read ConfigMap %s of Vault servers: %w", name, err)
	}
	var servers kustomizev1.VaultConfig
	if err := yaml.Unmarshal([]byte(list.Data["config.yaml"]), &servers); err != nil {
		return "", fmt.Errorf("cannot parse config.yaml of ConfigMap %s: %w", name, err)
	}
	for _, s := range servers.Instances {
		if s.Address == address && s.LoginPath != "" {
			return s.LoginPath, nil
		}
	}
	return "", fmt.Errorf("no Vault login path configured for address '%s' in ConfigMap '%s'", address, name)
}

// vaultRole is <namespace>_<name> of the token's service account.
func vaultRole(jwt string) (string, error) {
	malformed := errors.New("cannot tell the service account of its token")
	parts := strings.Split(jwt, ".")
	if len(parts) != 3 {
		return "", malformed
	}
	payload, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		return "", malformed
	}
	var claims struct {
		Subject string `json:"sub"`
	}
	if err := json.Unmarshal(payload, &claims); err != nil {
		return "", malformed
	}
	account, ok := strings.CutPrefix(claims.Subject, "system:serviceaccount:")
	namespace, name, both := strings.Cut(account, ":")
	if !ok || !both || namespace == "" || name == "" {
		return "", malformed
	}
	return namespace + "_" + name, nil
}
