package decrypt

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"filippo.io/age"
	agearmor "filippo.io/age/armor"
	"github.com/ProtonMail/go-crypto/openpgp"
	"github.com/ProtonMail/go-crypto/openpgp/armor"
	"github.com/getsops/sops/v3/keyservice"
	"google.golang.org/grpc"
)

// maxDataKey bounds what is read as a data key. It has 32 bytes, or a few more
// where it is split; a message can say that it expands to gigabytes.
const maxDataKey = 4 << 10

// service answers SOPS's questions for data keys, within the caller's context:
// SOPS itself asks without one.
type service struct {
	ctx context.Context
	d   *Decryptor
}

func (s *service) Encrypt(context.Context, *keyservice.EncryptRequest, ...grpc.CallOption) (*keyservice.EncryptResponse, error) {
	return nil, errors.New("cannot encrypt")
}

func (s *service) Decrypt(_ context.Context, request *keyservice.DecryptRequest, _ ...grpc.CallOption) (*keyservice.DecryptResponse, error) {
	ctx, cancel := context.WithTimeout(s.ctx, keyServiceTime)
	defer cancel()
	plain, err := s.decrypt(ctx, request)
	if err != nil {
		return nil, err
	}
	return &keyservice.DecryptResponse{Plaintext: plain}, nil
}

func (s *service) decrypt(ctx context.Context, request *keyservice.DecryptRequest) ([]byte, error) {
	switch k := request.Key.KeyType.(type) {
	case *keyservice.Key_AgeKey:
		return s.d.keys.decryptAge(request.Ciphertext)
	case *keyservice.Key_PgpKey:
		return s.d.keys.decryptPGP(request.Ciphertext)
	case *keyservice.Key_VaultKey:
		return s.d.vault(ctx, k.VaultKey, request.Ciphertext)
	case *keyservice.Key_KmsKey:
		return s.d.aws(ctx, k.KmsKey, request.Ciphertext)
	case *keyservice.Key_AzureKeyvaultKey:
		return s.d.azure(ctx, k.AzureKeyvaultKey, request.Ciphertext)
	case *keyservice.Key_GcpKmsKey:
		return s.d.gcp(ctx, k.GcpKmsKey, request.Ciphertext)
	}
	return nil, fmt.Errorf("key service %T is not supported", request.Key.KeyType)
}

// addAge reads one identity per line, of X25519 or post-quantum hybrid. A line
// is never quoted.
func (k *keys) addAge(value []byte) error {
	for i, text := range strings.Split(string(value), "\n") {
		text = strings.TrimSpace(text)
		var identity age.Identity
		var err error
		switch {
		case text == "", strings.HasPrefix(text, "#"):
			continue
		case strings.HasPrefix(text, "AGE-SECRET-KEY-PQ-1"):
			identity, err = age.ParseHybridIdentity(text)
		case strings.HasPrefix(text, "AGE-SECRET-KEY-1"):
			identity, err = age.ParseX25519Identity(text)
		case strings.HasPrefix(text, "AGE-PLUGIN-"):
			return fmt.Errorf("line %d needs an age plugin, which is a program; none is run", i+1)
		default:
			err = errors.New("unknown identity type")
		}
		if err != nil {
			return fmt.Errorf("line %d is not an age identity", i+1)
		}
		k.age = append(k.age, identity)
	}
	return nil
}

func (k *keys) decryptAge(ciphertext []byte) ([]byte, error) {
	if len(k.age) == 0 {
		return nil, errors.New("no age key is given")
	}
	r, err := age.Decrypt(agearmor.NewReader(bytes.NewReader(ciphertext)), k.age...)
	if err != nil {
		return nil, fmt.Errorf("cannot decrypt data key with age: %w", err)
	}
	return readDataKey(r)
}

const pgpHeader = "-----BEGIN PGP PRIVATE KEY BLOCK-----"

// addPGP reads armored private keys, one or more blocks of them.
func (k *keys) addPGP(value []byte) error {
	blocks := strings.Split(string(value), pgpHeader)
	if len(blocks) == 1 {
		return errors.New("it has no armored PGP private key")
	}
	for _, block := range blocks[1:] {
		ring, err := openpgp.ReadArmoredKeyRing(strings.NewReader(pgpHeader + block))
		if err != nil {
			return errors.New("its PGP private key is malformed")
		}
		for _, entity := range ring {
			if entity.PrivateKey != nil && entity.PrivateKey.Encrypted && !entity.PrivateKey.Dummy() {
				k.locked++
			}
		}
		k.pgp = append(k.pgp, ring...)
	}
	return nil
}

func (k *keys) decryptPGP(ciphertext []byte) ([]byte, error) {
	if len(k.pgp) == 0 {
		return nil, errors.New("no PGP key is given")
	}
	block, err := armor.Decode(bytes.NewReader(ciphertext))
	if err != nil {
		return nil, fmt.Errorf("cannot read data key encrypted with PGP: %w", err)
	}
	// Without a prompt, keys under a passphrase are passed over.
	message, err := openpgp.ReadMessage(block.Body, k.pgp, nil, nil)
	if err != nil {
		if k.locked > 0 {
			err = fmt.Errorf("%w; %d of the given keys are protected by a passphrase and cannot be used", err, k.locked)
		}
		return nil, fmt.Errorf("cannot decrypt data key with PGP: %w", err)
	}
	return readDataKey(message.UnverifiedBody)
}

func readDataKey(r io.Reader) ([]byte, error) {
	key, err := io.ReadAll(io.LimitReader(r, maxDataKey+1))
	if err != nil {
		return nil, fmt.Errorf("cannot read data key: %w", err)
	}
	if len(key) > maxDataKey {
		return nil, fmt.Errorf("cannot use data key: it has more than %d bytes", maxDataKey)
	}
	return key, nil
}
