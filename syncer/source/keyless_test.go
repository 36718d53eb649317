package source

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	ct "github.com/google/certificate-transparency-go"
	cttls "github.com/google/certificate-transparency-go/tls"
	"github.com/google/certificate-transparency-go/x509util"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/sigstore/rekor/pkg/generated/client/entries"
	"github.com/sigstore/rekor/pkg/generated/models"
	"github.com/sigstore/rekor/pkg/util"
	"github.com/sigstore/sigstore-go/pkg/root"
	"github.com/sigstore/sigstore-go/pkg/testing/ca"
	"github.com/sigstore/sigstore/pkg/cryptoutils"
	"github.com/sigstore/sigstore/pkg/signature"
	"github.com/sigstore/sigstore/pkg/signature/options"
)

// ownSigstore gives out certificates to whoever asks, and logs that it did.
type ownSigstore struct {
	t                    *testing.T
	root, issuer         *x509.Certificate
	issuerKey, ct, rekor *ecdsa.PrivateKey
}

func newOwnSigstore(t *testing.T) *ownSigstore {
	t.Helper()
	s := &ownSigstore{t: t}
	rootCert, rootKey, err := ca.GenerateRootCa()
	if err != nil {
		t.Fatal(err)
	}
	s.root = rootCert
	if s.issuer, s.issuerKey, err = ca.GenerateFulcioIntermediate(rootCert, rootKey); err != nil {
		t.Fatal(err)
	}
	s.ct, _ = pair(t)
	s.rekor, _ = pair(t)
	return s
}

// trustedRoot is what those need who believe it.
func (s *ownSigstore) trustedRoot() *root.TrustedRoot {
	s.t.Helper()
	since, until := time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	log := func(key *ecdsa.PrivateKey) map[string]*root.TransparencyLog {
		id := s.id(key)
		return map[string]*root.TransparencyLog{hex.EncodeToString(id[:]): {
			BaseURL: "https://log.invalid", ID: id[:], ValidityPeriodStart: since, ValidityPeriodEnd: until, HashFunc: crypto.SHA256, PublicKey: key.Public(), SignatureHashFunc: crypto.SHA256,
		}}
	}
	trusted, err := root.NewTrustedRoot(root.TrustedRootMediaType01, []root.CertificateAuthority{&root.FulcioCertificateAuthority{
		Root: s.root, Intermediates: []*x509.Certificate{s.issuer}, ValidityPeriodStart: since, ValidityPeriodEnd: until,
	}}, log(s.ct), nil, log(s.rekor))
	if err != nil {
		s.t.Fatal(err)
	}
	return trusted
}

func (s *ownSigstore) id(key *ecdsa.PrivateKey) [sha256.Size]byte {
	s.t.Helper()
	der, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		s.t.Fatal(err)
	}
	return sha256.Sum256(der)
}

// certificate for an identity, with the log's word that it is public.
func (s *ownSigstore) certificate(subject, issuer string) (*ecdsa.PrivateKey, []byte) {
	s.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		s.t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(7), EmailAddresses: []string{subject}, NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(10 * time.Minute),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageCodeSigning},
		ExtraExtensions: []pkix.Extension{{Id: asn1.ObjectIdentifier{1, 3, 6, 1, 4, 1, 57264, 1, 1}, Value: []byte(issuer)}},
	}
	make := func() *x509.Certificate {
		der, err := x509.CreateCertificate(rand.Reader, template, s.issuer, key.Public(), s.issuerKey)
		if err != nil {
			s.t.Fatal(err)
		}
		cert, err := x509.ParseCertificate(der)
		if err != nil {
			s.t.Fatal(err)
		}
		return cert
	}
	// What is promised is the certificate without the promise.
	sct := ct.SignedCertificateTimestamp{SCTVersion: ct.V1, LogID: ct.LogID{KeyID: s.id(s.ct)}, Timestamp: uint64(time.Now().UnixMilli())}
	input, err := ct.SerializeSCTSignatureInput(sct, ct.LogEntry{Leaf: ct.MerkleTreeLeaf{Version: ct.V1, LeafType: ct.TimestampedEntryLeafType, TimestampedEntry: &ct.TimestampedEntry{
		Timestamp: sct.Timestamp, EntryType: ct.PrecertLogEntryType,
		PrecertEntry: &ct.PreCert{IssuerKeyHash: sha256.Sum256(s.issuer.RawSubjectPublicKeyInfo), TBSCertificate: make().RawTBSCertificate},
	}}})
	if err != nil {
		s.t.Fatal(err)
	}
	signed, err := cttls.CreateSignature(*s.ct, cttls.SHA256, input)
	if err != nil {
		s.t.Fatal(err)
	}
	sct.Signature = ct.DigitallySigned(signed)
	list, err := x509util.MarshalSCTsIntoSCTList([]*ct.SignedCertificateTimestamp{&sct})
	if err != nil {
		s.t.Fatal(err)
	}
	data, err := cttls.Marshal(*list)
	if err != nil {
		s.t.Fatal(err)
	}
	if data, err = asn1.Marshal(data); err != nil {
		s.t.Fatal(err)
	}
	template.ExtraExtensions = append(template.ExtraExtensions, pkix.Extension{Id: asn1.ObjectIdentifier{1, 3, 6, 1, 4, 1, 11129, 2, 4, 2}, Value: data})
	inPEM, err := cryptoutils.MarshalCertificateToPEM(make())
	if err != nil {
		s.t.Fatal(err)
	}
	return key, inPEM
}

// sign as cosign does without a key: with a certificate, and the log's word that
// it was used while it was good.
func (s *ownSigstore) sign(d *docker, of, claimed, subject, issuer string) {
	s.t.Helper()
	key, certificate := s.certificate(subject, issuer)
	payload := claim(claimed)
	sig := base64.StdEncoding.EncodeToString(signedBy(s.t, key, payload))
	body := base64.StdEncoding.EncodeToString(fmt.Appendf(nil, `{"apiVersion":"0.0.1","kind":"hashedrekord","spec":{"data":{"hash":{"algorithm":"sha256","value":"%x"}},"signature":{"content":%q,"publicKey":{"content":%q}}}}`,
		sha256.Sum256(payload), sig, base64.StdEncoding.EncodeToString(certificate)))
	id := s.id(s.rekor)
	entry := map[string]any{"body": body, "integratedTime": time.Now().Unix(), "logIndex": 1, "logID": hex.EncodeToString(id[:])}
	canonical, err := json.Marshal(entry)
	if err != nil {
		s.t.Fatal(err)
	}
	bundle, err := json.Marshal(map[string]any{"SignedEntryTimestamp": signedBy(s.t, s.rekor, canonical), "Payload": entry})
	if err != nil {
		s.t.Fatal(err)
	}
	chain, err := cryptoutils.MarshalCertificatesToPEM([]*x509.Certificate{s.issuer, s.root})
	if err != nil {
		s.t.Fatal(err)
	}
	d.pushSignature(of, payload, map[string]string{
		"dev.cosignproject.cosign/signature": sig, "dev.sigstore.cosign/certificate": string(certificate), "dev.sigstore.cosign/chain": string(chain), "dev.sigstore.cosign/bundle": string(bundle),
	})
}

// signBundle is sign as cosign does it since version 3.
func (s *ownSigstore) signBundle(d *docker, of v1.Image, claimed, subject, issuer string) {
	s.t.Helper()
	key, certificate := s.certificate(subject, issuer)
	env := envelope(s.t, key, claimed)
	var parts struct {
		Payload    []byte
		Signatures []struct{ Sig string }
	}
	if err := json.Unmarshal(env, &parts); err != nil {
		s.t.Fatal(err)
	}
	body := fmt.Appendf(nil, `{"apiVersion":"0.0.1","kind":"dsse","spec":{"envelopeHash":{"algorithm":"sha256","value":"%x"},"payloadHash":{"algorithm":"sha256","value":"%x"},"signatures":[{"signature":%q,"verifier":%q}]}}`,
		sha256.Sum256(env), sha256.Sum256(parts.Payload), parts.Signatures[0].Sig, base64.StdEncoding.EncodeToString(certificate))
	id, now := s.id(s.rekor), time.Now().Unix()
	canonical, err := json.Marshal(map[string]any{"body": base64.StdEncoding.EncodeToString(body), "integratedTime": now, "logIndex": 0, "logID": hex.EncodeToString(id[:])})
	if err != nil {
		s.t.Fatal(err)
	}
	// The log has one entry. Its name ends with the id of its tree, as that of a log of Rekor's
	// first version does, whose entries these are.
	top := sha256.Sum256(append([]byte{0}, body...))
	checkpoint, err := util.CreateSignedCheckpoint(util.Checkpoint{Origin: "log.invalid - 1", Size: 1, Hash: top[:]})
	if err != nil {
		s.t.Fatal(err)
	}
	signer, err := signature.LoadSigner(s.rekor, crypto.SHA256)
	if err != nil {
		s.t.Fatal(err)
	}
	if _, err := checkpoint.Sign("log.invalid", signer, options.WithContext(s.t.Context())); err != nil {
		s.t.Fatal(err)
	}
	note, err := checkpoint.MarshalText()
	if err != nil {
		s.t.Fatal(err)
	}
	block, _ := pem.Decode(certificate)
	data, err := json.Marshal(map[string]any{
		"mediaType": sigstoreBundleType, "dsseEnvelope": env,
		"verificationMaterial": map[string]any{
			"certificate": map[string]any{"rawBytes": block.Bytes},
			"tlogEntries": []any{map[string]any{
				"logIndex": "0", "logId": map[string]any{"keyId": id[:]}, "kindVersion": map[string]any{"kind": "dsse", "version": "0.0.1"}, "integratedTime": fmt.Sprint(now),
				"inclusionPromise":  map[string]any{"signedEntryTimestamp": signedBy(s.t, s.rekor, canonical)},
				"inclusionProof":    map[string]any{"logIndex": "0", "rootHash": top[:], "treeSize": "1", "checkpoint": map[string]any{"envelope": string(note)}},
				"canonicalizedBody": body,
			}},
		},
	})
	if err != nil {
		s.t.Fatal(err)
	}
	d.pushReferrer(of, sigstoreBundleType, data)
}

func TestCosignKeyless(t *testing.T) {
	own, foreign := newOwnSigstore(t), newOwnSigstore(t)
	trusted, err := own.trustedRoot().MarshalJSON()
	if err != nil {
		t.Fatal(err)
	}
	const me, issuer = "me@example.com", "https://issuer.example.com"
	right := []SignerIdentity{{Issuer: `^https://issuer\.example\.com$`, Subject: `^me@example\.com$`}}
	for name, tc := range map[string]struct {
		reason string
		by     *ownSigstore
		who    string
		claims string
		ids    []SignerIdentity
		trust  []byte
		fails  string
	}{
		"Right":   {"the ordinary case", own, me, "", right, trusted, ""},
		"Public":  {"whom everybody believes", own, me, "", right, nil, ""},
		"Second":  {"one of two identities", own, me, "", append([]SignerIdentity{{Issuer: "^x$", Subject: "^x$"}}, right...), trusted, ""},
		"Anybody": {"as in Flux, no identity is any", own, me, "", nil, trusted, ""},
		"Other":   {"somebody else", own, "you@example.com", "", right, trusted, ReasonVerificationFailed},
		"Issuer":  {"the same name from elsewhere", own, me, "", []SignerIdentity{{Issuer: "^https://other$", Subject: ".*"}}, trusted, ReasonVerificationFailed},
		"Foreign": {"certificates of somebody whom nobody believes", foreign, me, "", right, trusted, ReasonVerificationFailed},
		"Moved":   {"a good signature of another image", own, me, sumOf([]byte("x")), right, trusted, ReasonVerificationFailed},
		"Broken":  {"roots that are none", own, me, "", right, []byte("s3cret"), ReasonVerificationFailed},
		"Regexp":  {"an identity that cannot be read", own, me, "", []SignerIdentity{{Issuer: "(", Subject: "("}}, trusted, ReasonVerificationFailed},
	} {
		for _, form := range []string{"Old", "Bundle"} {
			t.Run(name+form, func(t *testing.T) {
				d := newDocker(t, httptest.NewServer)
				img := image(t, nil, fluxLayer(t, map[string]string{"a": name}))
				digest := d.push("latest", img)
				claimed := digest
				if tc.claims != "" {
					claimed = tc.claims
				}
				tc.by.t = t
				if form == "Old" {
					tc.by.sign(d, digest, claimed, tc.who, issuer)
				} else {
					tc.by.signBundle(d, img, claimed, tc.who, issuer)
				}
				fails := tc.fails
				if form == "Bundle" && tc.ids == nil {
					fails = ReasonVerificationFailed // as in Flux, a bundle has to be somebody's
				}
				i := NewImages(t.TempDir(), plenty, time.Now)
				i.sigstore.fetch = func(context.Context) (root.TrustedMaterial, error) { return own.trustedRoot(), nil }
				ok, err := i.Verify(t.Context(), d.origin(), Image{Digest: digest}, ImageVerification{Provider: "cosign", Identities: tc.ids, TrustedRoot: tc.trust})
				if ok != (fails == "") || (err != nil) != (fails != "") || (err != nil && ReasonOf(err) != fails) {
					t.Errorf("%s: Verify() = %t, %v, want %q", tc.reason, ok, err, fails)
				}
				if err != nil && (strings.Contains(err.Error(), "s3cret") || !strings.Contains(err.Error(), "cosign keyless")) {
					t.Errorf("%s: the error is %v", tc.reason, err)
				}
			})
		}
	}
	d := newDocker(t, httptest.NewServer)
	digest := d.push("latest", image(t, nil, fluxLayer(t, map[string]string{"a": "1"})))
	i := NewImages(t.TempDir(), plenty, time.Now)
	down := errors.New("the network is down")
	i.sigstore.fetch = func(context.Context) (root.TrustedMaterial, error) { return nil, down }
	if ok, err := i.Verify(t.Context(), d.origin(), Image{Digest: digest}, ImageVerification{Provider: "cosign", Identities: right}); ok || !errors.Is(err, down) || ReasonOf(err) != ReasonVerificationFailed {
		t.Errorf("Verify() without roots = %t, %v", ok, err)
	}
}

// TestLogOfSignatures: what may pass is no verdict on a signature, so the log is asked again, and with all of the
// question.
func TestLogOfSignatures(t *testing.T) {
	refuse := func(code int) func(http.ResponseWriter) {
		return func(w http.ResponseWriter) {
			w.Header().Set("Retry-After", "3600")
			w.WriteHeader(code)
		}
	}
	for name, tc := range map[string]struct {
		reason string
		fail   func(http.ResponseWriter)
		// times that it fails, asked that it is asked.
		times, asked int64
		want         string
	}{
		"Busy":        {"it wants an hour, which nobody has", refuse(http.StatusTooManyRequests), 1, 2, ""},
		"Unavailable": {"one of its servers ends", refuse(http.StatusServiceUnavailable), 1, 2, ""},
		"Reset": {"so does a connection", func(w http.ResponseWriter) {
			if c, _, err := http.NewResponseController(w).Hijack(); err == nil {
				_ = c.(*net.TCPConn).SetLinger(0)
				_ = c.Close()
			}
		}, 1, 2, ""},
		"Down":    {"it says what it said last", refuse(http.StatusServiceUnavailable), 9, 4, "503"},
		"Limited": {"so here", refuse(http.StatusTooManyRequests), 9, 4, "429"},
		"Refused": {"this would be so again", refuse(http.StatusBadRequest), 9, 1, "400"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var asked atomic.Int64
			s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if question, err := io.ReadAll(r.Body); err != nil || !strings.Contains(string(question), `"logIndexes":[7]`) || r.UserAgent() != "cascade" {
					t.Errorf("%s: %q asks %s, %v", tc.reason, r.UserAgent(), question, err)
				}
				if asked.Add(1) <= tc.times {
					tc.fail(w)
					return
				}
				w.Header().Set("Content-Type", "application/json")
				_, _ = io.WriteString(w, "[]")
			}))
			defer s.Close()
			log, err := logAt(s.URL, nil)
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			at := int64(7)
			question := entries.NewSearchLogQueryParamsWithContext(ctx)
			question.SetEntry(&models.SearchLogQuery{LogIndexes: []*int64{&at}})
			_, err = log.Entries.SearchLogQuery(question)
			if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) || asked.Load() != tc.asked {
				t.Errorf("%s: got %v after %d, want %q after %d", tc.reason, err, asked.Load(), tc.want, tc.asked)
			}
		})
	}
}
