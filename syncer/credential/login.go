package credential

import (
	"context"
	"crypto/tls"
	"slices"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/syncer/vault"
)

// Keys of Secrets that logins are made with.
const (
	addressKey  = "vault-address"
	tokenKey    = "token"
	secretIDKey = "secret-id"
	caKey       = "ca.crt"
)

// mostCA bounds the certificates of authorities: a journal has them with each login.
const mostCA = 16 << 10

// server is the server of a source.
func (k *keeping) server(ctx context.Context, spec *v1alpha1.VaultSource) (vault.Server, error) {
	s := vault.Server{Address: spec.Address, Namespace: spec.Namespace}
	if err := vault.CheckAddress(spec.Address); err != nil {
		return s, &failure{v1alpha1.ReasonInvalidSpec, err}
	}
	if spec.CASecretRef == nil {
		return s, nil
	}
	secret, err := k.loginSecret(ctx, spec.CASecretRef.Name, caKey)
	if err != nil {
		return s, err
	}
	if s.CA = secret.Data[caKey]; len(s.CA) > mostCA {
		return s, because(v1alpha1.ReasonCredentialMissing, "cannot use Secret %s: its %s has more than %d bytes", spec.CASecretRef.Name, caKey, mostCA)
	}
	return s, nil
}

// login makes what the agent logs in with, if that may go to the server.
func (k *keeping) login(ctx context.Context, spec *v1alpha1.VaultSource) (vault.Server, vault.Login, error) {
	server, err := k.server(ctx, spec)
	if err != nil {
		return server, vault.Login{}, err
	}
	var l vault.Login
	switch auth := &spec.Auth; {
	case auth.Kubernetes != nil:
		l, err = k.tokenLogin(ctx, spec.Address, auth.Kubernetes.ServiceAccountName, auth.Kubernetes.Audiences)
		l.Mount = auth.Kubernetes.Mount
		if err == nil {
			l.Body["role"] = auth.Kubernetes.Role
		}
	case auth.JWT != nil && auth.JWT.SecretRef == nil:
		l, err = k.tokenLogin(ctx, spec.Address, auth.JWT.ServiceAccountName, auth.JWT.Audiences)
		l.Mount = auth.JWT.Mount
		if err == nil {
			l.Body["role"] = auth.JWT.Role
		}
	case auth.JWT != nil:
		var secret *corev1.Secret
		if secret, err = k.allowedSecret(ctx, spec.Address, auth.JWT.SecretRef.Name, tokenKey); err == nil {
			l = vault.Login{Mount: auth.JWT.Mount, Body: map[string]string{"role": auth.JWT.Role, "jwt": trimmed(secret.Data[tokenKey])}}
		}
	case auth.AppRole != nil:
		var secret *corev1.Secret
		if secret, err = k.allowedSecret(ctx, spec.Address, auth.AppRole.SecretRef.Name, secretIDKey); err == nil {
			l = vault.Login{Mount: auth.AppRole.Mount, Body: map[string]string{"role_id": auth.AppRole.RoleID, "secret_id": trimmed(secret.Data[secretIDKey])}}
		}
	case auth.Cert != nil:
		l, err = k.certificateLogin(ctx, spec.Address, auth.Cert)
	default:
		err = because(v1alpha1.ReasonInvalidSpec, "cannot log in to Vault: spec.vault.auth has no method")
	}
	return server, l, err
}

func trimmed(text []byte) string { return strings.TrimSpace(string(text)) }

func (k *keeping) certificateLogin(ctx context.Context, address string, auth *v1alpha1.VaultCertAuth) (vault.Login, error) {
	secret, err := k.allowedSecret(ctx, address, auth.SecretRef.Name, corev1.TLSCertKey, corev1.TLSPrivateKeyKey)
	if err != nil {
		return vault.Login{}, err
	}
	pair, err := tls.X509KeyPair(secret.Data[corev1.TLSCertKey], secret.Data[corev1.TLSPrivateKeyKey])
	if err != nil {
		// The error may quote what it read.
		return vault.Login{}, because(v1alpha1.ReasonCredentialMissing, "cannot log in with Secret %s: it has no certificate and key that go together", auth.SecretRef.Name)
	}
	l := vault.Login{Mount: auth.Mount, Body: map[string]string{}, Certificate: &pair}
	if auth.Role != "" {
		l.Body["name"] = auth.Role
	}
	return l, nil
}

// loginSecret reads a Secret that has to have these keys.
func (k *keeping) loginSecret(ctx context.Context, name string, keys ...string) (*corev1.Secret, error) {
	secret := &corev1.Secret{}
	if err := k.Live.Get(ctx, client.ObjectKey{Namespace: k.obj.Namespace, Name: name}, secret); err != nil {
		return nil, because(v1alpha1.ReasonCredentialMissing, "cannot read Secret %s: %w", name, err)
	}
	for _, key := range keys {
		if len(secret.Data[key]) == 0 {
			return nil, because(v1alpha1.ReasonCredentialMissing, "cannot use Secret %s: it has no key %s", name, key)
		}
	}
	return secret, nil
}

// allowedSecret reads a Secret that may be sent to an address: the operator named the address,
// or the Secret does.
func (k *keeping) allowedSecret(ctx context.Context, address, name string, keys ...string) (*corev1.Secret, error) {
	secret, err := k.loginSecret(ctx, name, keys...)
	if err != nil {
		return nil, err
	}
	if !k.ofOperator(address) && !lists(string(secret.Data[addressKey]), address, sameAddress) {
		return nil, because(v1alpha1.ReasonCredentialRefused, "cannot send Secret %s to Vault at %s: it has to name that address in its key %s, or the agent in --vault-address",
			name, address, addressKey)
	}
	return secret, nil
}

// ofOperator reports whether any login may go to an address.
func (k *keeping) ofOperator(address string) bool {
	return slices.ContainsFunc(k.VaultAddresses, func(one string) bool { return sameAddress(one, address) })
}

// sameAddress compares addresses, but for a slash at the end.
func sameAddress(a, b string) bool { return strings.TrimSuffix(a, "/") == strings.TrimSuffix(b, "/") }

// lists reports whether a list of an annotation or a Secret, separated by commas, has one.
func lists(list, one string, same func(a, b string) bool) bool {
	for item := range strings.SplitSeq(list, ",") {
		if item = strings.TrimSpace(item); item != "" && same(item, one) {
			return true
		}
	}
	return false
}

// tokenLogin makes a login of a token of a service account, which lives for the login only.
func (k *keeping) tokenLogin(ctx context.Context, address, name string, audiences []string) (vault.Login, error) {
	account := &corev1.ServiceAccount{}
	if err := k.Live.Get(ctx, client.ObjectKey{Namespace: k.obj.Namespace, Name: name}, account); err != nil {
		return vault.Login{}, because(v1alpha1.ReasonCredentialMissing, "cannot read ServiceAccount %s: %w", name, err)
	}
	if !k.ofOperator(address) {
		if !lists(account.Annotations[v1alpha1.VaultAddressAnnotation], address, sameAddress) {
			return vault.Login{}, because(v1alpha1.ReasonCredentialRefused, "cannot send a token of ServiceAccount %s to Vault at %s: it has to name that address in its annotation %s, or the agent in --vault-address",
				name, address, v1alpha1.VaultAddressAnnotation)
		}
		own, err := k.ownAudiences(ctx, account)
		if err != nil {
			return vault.Login{}, err
		}
		if slices.ContainsFunc(audiences, func(one string) bool { return slices.Contains(own, one) }) {
			return vault.Login{}, because(v1alpha1.ReasonCredentialRefused, "cannot send a token of ServiceAccount %s to Vault at %s: the API server itself would take it; name another audience, or the address in --vault-address",
				name, address)
		}
	}
	issued, err := k.token(ctx, account, audiences, shortestToken)
	if err != nil {
		return vault.Login{}, err
	}
	return vault.Login{Body: map[string]string{"jwt": issued.Status.Token}}, nil
}

// ownAudiences are those of the API server itself: what a token is for that names none. The
// token is not used.
func (k *keeping) ownAudiences(ctx context.Context, account *corev1.ServiceAccount) ([]string, error) {
	k.mu.Lock()
	known := k.audiences
	k.mu.Unlock()
	if len(known) > 0 {
		return known, nil
	}
	found, err := k.audiencesOf(ctx, account)
	if err != nil {
		return nil, err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.audiences = found
	return found, nil
}

// timeOfToken is how long the token lives that only tells its audiences.
const timeOfToken = 10 * time.Minute

func (k *keeping) audiencesOf(ctx context.Context, account *corev1.ServiceAccount) ([]string, error) {
	seconds := int64(timeOfToken / time.Second)
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &seconds}}
	if err := k.Client.SubResource("token").Create(ctx, account, request); err != nil {
		return nil, because(v1alpha1.ReasonCredentialMissing, "cannot ask the API server for its own audiences: %w", err)
	}
	if len(request.Spec.Audiences) == 0 {
		return nil, because(v1alpha1.ReasonCredentialMissing, "cannot ask the API server for its own audiences: it names none")
	}
	return request.Spec.Audiences, nil
}
