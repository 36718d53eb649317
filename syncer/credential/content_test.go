package credential

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/crypto/ssh"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
)

type values = map[string]v1alpha1.CredentialValue

func TestFill(t *testing.T) {
	aws := map[string]any{"access_key": "AK", "secret_key": "SK", "security_token": nil, "ttl": json.Number("60")}
	kv := map[string]any{"data": map[string]any{"username": "git", "password": "p"}, "metadata": map[string]any{"version": json.Number("3")}}
	for name, tc := range map[string]struct {
		reason string
		values values
		fields map[string]any
		want   map[string]string
		err    string
	}{
		"All":      {"without data each field is a key, but for those without a value", nil, aws, map[string]string{"access_key": "AK", "secret_key": "SK", "ttl": "60"}, ""},
		"Versions": {"a secret with versions is its content", nil, kv, map[string]string{"username": "git", "password": "p"}, ""},
		"From":     {"one field", values{"token": {From: "secret_key"}}, aws, map[string]string{"token": "SK"}, ""},
		"Profile": {"a file of several", values{"credentials": {Value: "[default]\naws_access_key_id = ${access_key}\naws_secret_access_key = ${secret_key}\n"}}, aws,
			map[string]string{"credentials": "[default]\naws_access_key_id = AK\naws_secret_access_key = SK\n"}, ""},
		"Escaped": {"a ${ that stays", values{"a": {Value: "$${access_key} ${access_key} $"}}, aws, map[string]string{"a": "${access_key} AK $"}, ""},
		"Within":  {"a field within a field", values{"a": {From: "outer.inner"}}, map[string]any{"outer": map[string]any{"inner": "x"}}, map[string]string{"a": "x"}, ""},
		"Dotted":  {"a name with a dot counts before that", values{"a": {From: "outer.inner"}}, map[string]any{"outer.inner": "y", "outer": map[string]any{"inner": "x"}}, map[string]string{"a": "y"}, ""},
		"Chain":   {"a list of texts is lines", values{"ca.crt": {From: "ca_chain"}}, map[string]any{"ca_chain": []any{"A", "B"}}, map[string]string{"ca.crt": "A\nB"}, ""},
		"Structured": {"all else is JSON", values{"a": {From: "x"}}, map[string]any{"x": map[string]any{"b": []any{json.Number("1"), true}}},
			map[string]string{"a": `{"b":[1,true]}`}, ""},
		"Once":       {"what was put in is not looked at again", values{"a": {Value: "${x}"}}, map[string]any{"x": "${x}"}, map[string]string{"a": "${x}"}, ""},
		"Missing":    {"a field that is not there", values{"a": {From: "b"}}, aws, nil, `no field "b"`},
		"Null":       {"one without a value", values{"a": {From: "security_token"}}, aws, nil, `no field "security_token"`},
		"Unclosed":   {"a ${ without an end", values{"a": {Value: "${x"}}, aws, nil, "no }"},
		"Key":        {"a key that a Secret cannot have", values{"a/b": {From: "access_key"}}, aws, nil, "as a key of a Secret"},
		"NothingFit": {"no field could be a key", nil, map[string]any{"a/b": "x"}, nil, "no field that a Secret could have"},
		"TooLarge":   {"more than a Secret has", values{"a": {From: "x"}, "b": {From: "x"}}, map[string]any{"x": strings.Repeat("x", 1<<19+1)}, nil, "bytes at most"},
		"Growing":    {"a text that grows by its fields", values{"a": {Value: strings.Repeat("${x}", 2000)}}, map[string]any{"x": strings.Repeat("x", 1<<16)}, nil, "too long"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := Fill(tc.values, tc.fields)
			if tc.err != "" {
				if err == nil || !strings.Contains(err.Error(), tc.err) || strings.Contains(err.Error(), "SK") {
					t.Errorf("%s: error %v, want one with %q", tc.reason, err, tc.err)
				}
				return
			}
			texts := map[string]string{}
			for k, v := range got {
				texts[k] = string(v)
			}
			if diff := cmp.Diff(tc.want, texts); err != nil || diff != "" {
				t.Errorf("%s: %v, -want +got:\n%s", tc.reason, err, diff)
			}
		})
	}
}

// FuzzFill: whatever is in an answer and a text, the result has a bound, and no error has a
// value in it.
func FuzzFill(f *testing.F) {
	f.Add("${a} $${a} ${b.c}", `{"a":"x","b":{"c":1}}`)
	f.Add("${", `{}`)
	f.Add("${data.x}", `{"data":{"x":[1,"y"]},"metadata":{}}`)
	f.Fuzz(func(t *testing.T, text, answer string) {
		var fields map[string]any
		if json.Unmarshal([]byte(answer), &fields) != nil {
			return
		}
		for _, v := range []values{nil, {"k": {Value: text}}, {"k": {From: text}}} {
			data, err := Fill(v, fields)
			if err == nil && len(data) == 0 {
				t.Error("no data and no error")
			}
			size := 0
			for k, v := range data {
				size += len(k) + len(v)
			}
			if size > mostContent {
				t.Errorf("%d bytes", size)
			}
		}
		End(fields, epoch)
	})
}

func TestEnd(t *testing.T) {
	cert := certificate(t, at(120))
	chain := cert + certificate(t, at(90))
	for name, tc := range map[string]struct {
		reason string
		fields map[string]any
		want   time.Time
	}{
		"Nothing":     {"a password has no end", map[string]any{"password": "p"}, time.Time{}},
		"PKI":         {"the engine says when", map[string]any{"expiration": json.Number("1767225700")}, time.Unix(1767225700, 0)},
		"Certificate": {"a certificate says when", map[string]any{"certificate": cert}, at(120)},
		"Chain":       {"what ends first in a chain counts", map[string]any{"tls.crt": chain}, at(90)},
		"Google":      {"tokens of Google Cloud", map[string]any{"token": "ya29.x", "expires_at_seconds": json.Number("1767225700")}, time.Unix(1767225700, 0)},
		"GitHub":      {"tokens of GitHub", map[string]any{"token": "ghs_x", "expires_at": at(3600).Format(time.RFC3339)}, at(3600)},
		"Static":      {"the rest of a static role's life", map[string]any{"password": "p", "ttl": json.Number("45")}, at(45)},
		"Duration":    {"a life in Go's words", map[string]any{"ttl": "90s"}, at(90)},
		"Token":       {"a token says when", map[string]any{"service_account_token": token(at(600))}, at(600)},
		"Signed":      {"a signed key says when", map[string]any{"signed_key": signed(t, at(300))}, at(300)},
		"Versions":    {"within a secret with versions", map[string]any{"data": map[string]any{"tls.crt": cert}, "metadata": map[string]any{}}, at(120)},
		"Soonest":     {"the first counts", map[string]any{"certificate": cert, "expiration": json.Number("1999999999")}, at(120)},
		"Absurd":      {"a time of no calendar is none", map[string]any{"expiration": json.Number("99999999999999")}, time.Time{}},
		"NoTime":      {"nor a text that is none", map[string]any{"expires_at": "tomorrow", "ttl": "later", "expiration": true}, time.Time{}},
		"Negative":    {"nor one before all times", map[string]any{"expiration": json.Number("-5"), "ttl": json.Number("-5")}, time.Time{}},
	} {
		t.Run(name, func(t *testing.T) {
			if got := End(tc.fields, epoch); !got.Equal(tc.want) {
				t.Errorf("%s: %s, want %s", tc.reason, got, tc.want)
			}
		})
	}
}

// FuzzEndOf: no text breaks the parsers, or ends in times that nothing can be compared with.
func FuzzEndOf(f *testing.F) {
	f.Add([]byte("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"))
	f.Add([]byte(token(at(1))))
	f.Add([]byte("ssh-ed25519-cert-v01@openssh.com AAAA"))
	f.Fuzz(func(t *testing.T, text []byte) {
		if end := EndOf(text); !end.IsZero() && end.Year() > 40000 {
			t.Errorf("%s", end)
		}
	})
}

func certificate(t *testing.T, ends time.Time) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "x"}, NotBefore: epoch.Add(-time.Hour), NotAfter: ends,
	}, &x509.Certificate{SerialNumber: big.NewInt(2)}, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
}

func token(ends time.Time) string {
	part := base64.RawURLEncoding.EncodeToString
	return part([]byte(`{"alg":"none"}`)) + "." + part(fmt.Appendf(nil, `{"exp":%d}`, ends.Unix())) + ".c2ln"
}

func signed(t *testing.T, ends time.Time) string {
	t.Helper()
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	key, err := ssh.NewPublicKey(public)
	if err != nil {
		t.Fatal(err)
	}
	signer, err := ssh.NewSignerFromKey(private)
	if err != nil {
		t.Fatal(err)
	}
	c := &ssh.Certificate{Key: key, CertType: ssh.UserCert, ValidBefore: uint64(ends.Unix())}
	if err := c.SignCert(rand.Reader, signer); err != nil {
		t.Fatal(err)
	}
	return string(ssh.MarshalAuthorizedKey(c))
}

func TestJournal(t *testing.T) {
	j := &journal{Next: 3, Entries: []entry{{Number: 1, Token: "a", LoginExpires: at(5)}, {Number: 2, Token: "b", Lease: "l", Life: time.Minute, Expires: at(60), RenewAt: at(40)}}}
	text, err := j.encode()
	if err != nil {
		t.Fatal(err)
	}
	got, err := parseJournal(text)
	if diff := cmp.Diff(j, got); err != nil || diff != "" {
		t.Errorf("%v, -want +got:\n%s", err, diff)
	}
	for name, tc := range map[string]struct{ reason, text string }{
		"Nothing":  {"a Secret without it", ""},
		"NoJSON":   {"what somebody wrote by hand", "hvs.secret"},
		"Later":    {"of a version that knows more", `{"format":2,"next":1}`},
		"Disorder": {"numbers that do not grow", `{"format":1,"next":9,"entries":[{"number":2,"token":"a"},{"number":2,"token":"b"}]}`},
		"Future":   {"a number that was not given", `{"format":1,"next":2,"entries":[{"number":2,"token":"a"}]}`},
		"NoToken":  {"an entry by which nothing can be revoked", `{"format":1,"next":2,"entries":[{"number":1}]}`},
		"Large":    {"more than is read", strings.Repeat(" ", mostJournal+1)},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := parseJournal([]byte(tc.text)); err == nil || strings.Contains(err.Error(), "hvs") {
				t.Errorf("%s: error %v", tc.reason, err)
			}
		})
	}
}

// FuzzJournal: what can be read is in order, and is written as it was read.
func FuzzJournal(f *testing.F) {
	f.Add([]byte(`{"format":1,"next":2,"entries":[{"number":1,"token":"a"}]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		j, err := parseJournal(text)
		if err != nil {
			return
		}
		again, err := j.encode()
		if err != nil {
			return // a time that JSON cannot have
		}
		if _, err := parseJournal(again); err != nil {
			t.Errorf("%s: %v", again, err)
		}
	})
}
