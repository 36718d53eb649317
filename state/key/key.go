// Package key makes the keys of archives of what people write: recipients, for whom an
// archive is encrypted, and identities, which open it.
//
// A recipient is a public key of age (age1..., age1pq1...) or SSH (ssh-ed25519, ssh-rsa), or
// the name of a key in a key management service: awskms:<ARN>, gcpkms:<resource>,
// azurekv:<URL of the key> or hcvault:<URL of the key in Vault's transit engine>. The
// service wraps the key of the file, in a part of the header of its own, as SOPS has it wrap
// its data keys; so an archive may be for people and for services, and each can open it.
//
// Invariants:
//
//   - a service gets the key of one file and never a part of the state;
//   - an archive names no service that is asked: only services that the caller named are,
//     so that whoever keeps archives cannot make their reader call somewhere;
//   - errors have no private key in them.
//
// Failure model: a service that does not answer is an error with its reason, within the
// context; it is not taken for a wrong key.
package key

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"time"

	"filippo.io/age"
	"filippo.io/age/agessh"
	"filippo.io/age/armor"
	"github.com/getsops/sops/v3/azkv"
	"github.com/getsops/sops/v3/gcpkms"
	"github.com/getsops/sops/v3/hcvault"
	"github.com/getsops/sops/v3/kms"
)

const (
	// stanza is the type of the part of the header that a service wrapped.
	stanza = "cascade.dev/kms"
	// patience bounds one call to a service.
	patience = 30 * time.Second
	// most bounds what a file of identities may have.
	most = 64
	// mostWrapped bounds the stanzas that a service is asked about.
	mostWrapped = 16
)

// Recipients reads one recipient of each text. Services are asked with the context, and
// with the credentials of the process, as sops takes them. Either all are post-quantum or none:
// age encrypts for no mix, which whoever breaks the weaker ones can read.
func Recipients(ctx context.Context, texts ...string) ([]age.Recipient, error) {
	var out []age.Recipient
	hybrid := 0
	for _, text := range texts {
		text = strings.TrimSpace(text)
		r, err := recipient(ctx, text)
		if strings.HasPrefix(text, "AGE-SECRET-KEY-") {
			text = "AGE-SECRET-KEY-..."
		}
		if err != nil {
			return nil, fmt.Errorf("cannot use recipient %.120q: %w", text, err)
		}
		if _, ok := r.(*age.HybridRecipient); ok {
			hybrid++
		}
		out = append(out, r)
	}
	if hybrid > 0 && hybrid < len(out) {
		return nil, errors.New("cannot use the recipients: age encrypts for age1pq1... only if all of them are such")
	}
	return out, nil
}

func recipient(ctx context.Context, text string) (age.Recipient, error) {
	switch {
	case strings.HasPrefix(text, "AGE-SECRET-KEY-"):
		return nil, errors.New("it is the private key; give the public one, which begins with age1")
	case strings.HasPrefix(text, "age1pq1"):
		return age.ParseHybridRecipient(text)
	case strings.HasPrefix(text, "age1"):
		return age.ParseX25519Recipient(text)
	case strings.HasPrefix(text, "ssh-"):
		return agessh.ParseRecipient(text)
	}
	return parseService(ctx, text)
}

// Identities reads the private keys in a file of age, or one SSH private key without a
// passphrase, or names of services, a line each.
func Identities(ctx context.Context, file []byte) ([]age.Identity, error) {
	if bytes.Contains(file, []byte(" PRIVATE KEY-----")) {
		id, err := agessh.ParseIdentity(file)
		if err != nil {
			return nil, errors.New("cannot use the identity: it is no SSH private key of type ed25519 or rsa without a passphrase")
		}
		return []age.Identity{id}, nil
	}
	if bytes.HasPrefix(bytes.TrimSpace(file), []byte(armor.Header)) || bytes.HasPrefix(file, []byte("age-encryption.org/")) {
		return nil, errors.New("cannot use the identity: its file is encrypted; decrypt it with age first")
	}
	var out []age.Identity
	for i, line := range strings.Split(string(file), "\n") {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		if len(out) == most {
			return nil, fmt.Errorf("cannot use the identities: there are more than %d", most)
		}
		id, err := identity(ctx, line)
		if err != nil {
			// The error may not repeat the line, which is a secret.
			return nil, fmt.Errorf("cannot use the identity in line %d: %w", i+1, err)
		}
		out = append(out, id)
	}
	if len(out) == 0 {
		return nil, errors.New("cannot use the identity: the file has none")
	}
	return out, nil
}

func identity(ctx context.Context, line string) (age.Identity, error) {
	malformed := errors.New("it is no AGE-SECRET-KEY-... and no key service")
	switch {
	case strings.HasPrefix(line, "age1"), strings.HasPrefix(line, "ssh-"):
		return nil, errors.New("it is a public key; what was encrypted with it is opened by the private one")
	case strings.HasPrefix(line, "AGE-SECRET-KEY-PQ-"):
		id, err := age.ParseHybridIdentity(line)
		if err != nil {
			return nil, malformed
		}
		return id, nil
	case strings.HasPrefix(line, "AGE-SECRET-KEY-"):
		id, err := age.ParseX25519Identity(line)
		if err != nil {
			return nil, malformed
		}
		return id, nil
	}
	s, err := parseService(ctx, line)
	if err != nil {
		return nil, malformed
	}
	return s, nil
}

// wrapping is a key of sops, which wraps data keys.
type wrapping interface {
	EncryptContext(ctx context.Context, dataKey []byte) error
	EncryptedDataKey() []byte
	SetEncryptedDataKey([]byte)
	DecryptContext(ctx context.Context) ([]byte, error)
}

// service is a key in a service. It is a recipient and an identity.
type service struct {
	ctx  context.Context
	name string
	// key makes one for each call: sops keeps what was wrapped in it.
	key func() (wrapping, error)
}

func parseService(ctx context.Context, text string) (*service, error) {
	kind, id, ok := strings.Cut(text, ":")
	if !ok || id == "" {
		return nil, errors.New("it begins with none of age1, ssh-, awskms:, gcpkms:, azurekv:, hcvault: as a key does")
	}
	s := &service{ctx: ctx, name: text}
	switch kind {
	case "awskms":
		if !strings.HasPrefix(id, "arn:") {
			return nil, errors.New("it needs the ARN of a key, arn:<partition>:kms:<region>:<account>:key/<id>")
		}
		s.key = func() (wrapping, error) { return kms.NewMasterKeyFromArn(id, nil, ""), nil }
	case "gcpkms":
		if !strings.HasPrefix(id, "projects/") || !strings.Contains(id, "/cryptoKeys/") {
			return nil, errors.New("it needs the name of a key, projects/<p>/locations/<l>/keyRings/<r>/cryptoKeys/<k>")
		}
		s.key = func() (wrapping, error) {
			k := gcpkms.NewMasterKeyFromResourceID(id)
			gcpkms.UseRESTClient{}.ApplyToMasterKey(k)
			return k, nil
		}
	case "azurekv":
		vault, path, ok := strings.Cut(strings.TrimPrefix(id, "https://"), "/keys/")
		name, version, versioned := strings.Cut(path, "/")
		if !strings.HasPrefix(id, "https://") || !ok || vault == "" || strings.Contains(vault, "/") || name == "" || !versioned || version == "" {
			return nil, errors.New("it needs the URL of a key with its version, https://<vault>.vault.azure.net/keys/<name>/<version>")
		}
		s.key = func() (wrapping, error) { return azkv.NewMasterKey("https://"+vault, name, version), nil }
	case "hcvault":
		if _, err := hcvault.NewMasterKeyFromURI(id); err != nil || !strings.HasPrefix(id, "https://") && !strings.HasPrefix(id, "http://") {
			return nil, errors.New("it needs the URL of a key, https://<vault>/v1/<transit>/keys/<name>")
		}
		s.key = func() (wrapping, error) { return hcvault.NewMasterKeyFromURI(id) }
	default:
		return nil, errors.New("it begins with none of age1, ssh-, awskms:, gcpkms:, azurekv:, hcvault: as a key does")
	}
	return s, nil
}

// tag tells which key wrapped a stanza, without naming it to whoever keeps the archive.
func (s *service) tag() string {
	sum := sha256.Sum256([]byte(s.name))
	return hex.EncodeToString(sum[:8])
}

// Wrap has the service wrap the key of a file.
func (s *service) Wrap(fileKey []byte) ([]*age.Stanza, error) {
	ctx, cancel := context.WithTimeout(s.ctx, patience)
	defer cancel()
	k, err := s.key()
	if err != nil {
		return nil, err
	}
	if err := k.EncryptContext(ctx, fileKey); err != nil {
		return nil, fmt.Errorf("cannot wrap the key of the state with %s: %w", s.name, err)
	}
	return []*age.Stanza{{Type: stanza, Args: []string{s.tag()}, Body: k.EncryptedDataKey()}}, nil
}

// Unwrap has the service unwrap it.
func (s *service) Unwrap(stanzas []*age.Stanza) ([]byte, error) {
	ctx, cancel := context.WithTimeout(s.ctx, patience)
	defer cancel()
	asked := 0
	for _, st := range stanzas {
		if st.Type != stanza || len(st.Args) != 1 || st.Args[0] != s.tag() {
			continue
		}
		if asked++; asked > mostWrapped {
			break
		}
		k, err := s.key()
		if err != nil {
			return nil, err
		}
		k.SetEncryptedDataKey(st.Body)
		fileKey, err := k.DecryptContext(ctx)
		if err != nil {
			return nil, fmt.Errorf("cannot unwrap the key of the state with %s: %w", s.name, err)
		}
		return fileKey, nil
	}
	return nil, age.ErrIncorrectIdentity
}
