package decrypt

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"filippo.io/age"
	agearmor "filippo.io/age/armor"
	"github.com/ProtonMail/go-crypto/openpgp"
	"github.com/ProtonMail/go-crypto/openpgp/armor"
	"github.com/ProtonMail/go-crypto/openpgp/packet"
	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	"github.com/fluxcd/pkg/apis/meta"
	"github.com/getsops/sops/v3"
	"github.com/getsops/sops/v3/aes"
	sopsage "github.com/getsops/sops/v3/age"
	"github.com/getsops/sops/v3/cmd/sops/formats"
	sopskeys "github.com/getsops/sops/v3/keys"
	"github.com/getsops/sops/v3/pgp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	kustomizeprovider "sigs.k8s.io/kustomize/api/provider"
	"sigs.k8s.io/kustomize/api/resource"

	"github.com/cascade-gitops/cascade/syncer/mask"
	"github.com/cascade-gitops/cascade/syncer/render"
)

var dataKey = []byte("0123456789abcdef0123456789abcdef")

// seal encrypts plain content for a key whose data key is already encrypted.
func seal(t *testing.T, format formats.Format, plain string, master ...sopskeys.MasterKey) []byte {
	t.Helper()
	branches, err := storeOf(format).LoadPlainFile([]byte(plain))
	if err != nil {
		t.Fatal(err)
	}
	tree := sops.Tree{Branches: branches, Metadata: sops.Metadata{KeyGroups: []sops.KeyGroup{master}, Version: "3.13.3"}}
	if strings.Contains(plain, "kind: ") || strings.Contains(plain, `"kind"`) {
		tree.Metadata.EncryptedRegex = "^(data|stringData)$"
	}
	mac, err := tree.Encrypt(dataKey, aes.NewCipher())
	if err != nil {
		t.Fatal(err)
	}
	tree.Metadata.LastModified = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	tree.Metadata.MessageAuthenticationCode, err = aes.NewCipher().Encrypt(mac, dataKey, tree.Metadata.LastModified.Format(time.RFC3339))
	if err != nil {
		t.Fatal(err)
	}
	out, err := storeOf(format).EmitEncryptedFile(tree)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// forAge makes a key pair, and a SOPS key with the data key for it.
func forAge(t *testing.T) (secret string, master sopskeys.MasterKey) {
	t.Helper()
	identity, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	return "# comment\n" + identity.String() + "\n", ageKey(t, identity.Recipient(), identity.Recipient().String(), dataKey)
}

func ageKey(t *testing.T, recipient age.Recipient, name string, plain []byte) sopskeys.MasterKey {
	t.Helper()
	var out bytes.Buffer
	armored := agearmor.NewWriter(&out)
	w, err := age.Encrypt(armored, recipient)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(plain); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(w.Close(), armored.Close()); err != nil {
		t.Fatal(err)
	}
	return &sopsage.MasterKey{Recipient: name, EncryptedKey: out.String()}
}

func forPGP(t *testing.T, passphrase string) (secret string, master sopskeys.MasterKey) {
	t.Helper()
	entity, err := openpgp.NewEntity("ops", "", "ops@example.com", &packet.Config{Algorithm: packet.PubKeyAlgoEdDSA})
	if err != nil {
		t.Fatal(err)
	}
	var public bytes.Buffer
	w, err := armor.Encode(&public, "PGP MESSAGE", nil)
	if err != nil {
		t.Fatal(err)
	}
	plain, err := openpgp.Encrypt(w, openpgp.EntityList{entity}, nil, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := plain.Write(dataKey); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(plain.Close(), w.Close()); err != nil {
		t.Fatal(err)
	}
	if passphrase != "" {
		if err := entity.EncryptPrivateKeys([]byte(passphrase), nil); err != nil {
			t.Fatal(err)
		}
	}
	var private bytes.Buffer
	if w, err = armor.Encode(&private, openpgp.PrivateKeyType, nil); err != nil {
		t.Fatal(err)
	}
	if err := entity.SerializePrivateWithoutSigning(w, nil); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return private.String() + "\n", &pgp.MasterKey{Fingerprint: fmt.Sprintf("%X", entity.PrimaryKey.Fingerprint), EncryptedKey: public.String()}
}

func kustomization(secret string) *kustomizev1.Kustomization {
	k := &kustomizev1.Kustomization{ObjectMeta: metav1.ObjectMeta{Namespace: "apps", Name: "shop"}}
	k.Spec.Decryption = &kustomizev1.Decryption{Provider: "sops"}
	if secret != "" {
		k.Spec.Decryption.SecretRef = &meta.LocalObjectReference{Name: secret}
	}
	return k
}

func secretOf(name types.NamespacedName, data map[string]string) *corev1.Secret {
	s := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: name.Namespace, Name: name.Name}, Data: map[string][]byte{}}
	for k, v := range data {
		s.Data[k] = []byte(v)
	}
	return s
}

func open(t *testing.T, data map[string]string, o Options) *Decryptor {
	t.Helper()
	d, err := tryOpen(t, data, o)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func tryOpen(t *testing.T, data map[string]string, o Options) (*Decryptor, error) {
	t.Helper()
	c := fake.NewClientBuilder().WithObjects(secretOf(types.NamespacedName{Namespace: "apps", Name: "keys"}, data)).Build()
	return New(t.Context(), c, kustomization("keys"), o)
}

func object(t *testing.T, data []byte) *resource.Resource {
	t.Helper()
	r, err := kustomizeprovider.NewDefaultDepProvider().GetResourceFactory().FromBytes(data)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// TestFormats: every store, for every name that stands for it.
func TestFormats(t *testing.T) {
	secret, master := forAge(t)
	d := open(t, map[string]string{"identity.agekey": secret}, Options{})
	for name, tt := range map[string]struct {
		reason string
		file   string
		format formats.Format
		plain  string
	}{
		"YAML":   {reason: "by its ending", file: "values.yaml", format: formats.Yaml, plain: "user: admin\nnested:\n    - a: 1\n    - b: true\n"},
		"YML":    {reason: "the other ending", file: "values.yml", format: formats.Yaml, plain: "user: admin\n"},
		"JSON":   {reason: "by its ending", file: "x/values.json", format: formats.Json, plain: "{\n\t\"user\": \"admin\",\n\t\"list\": [\n\t\t1,\n\t\t2\n\t]\n}\n"},
		"Docker": {reason: "the key of a pull Secret is JSON", file: ".dockerconfigjson", format: formats.Json, plain: "{\n\t\"auths\": {}\n}\n"},
		"Dotenv": {reason: "by its ending", file: "vars.env", format: formats.Dotenv, plain: "USER=admin\nPASS=x=y\n"},
		"Envs":   {reason: "an envs source may have any name", file: "vars.txt", format: formats.Dotenv, plain: "USER=admin\n"},
		"INI":    {reason: "by its ending", file: "my.ini", format: formats.Ini, plain: "[db]\nuser = admin\n"},
		"Binary": {reason: "everything else is an envelope of JSON", file: "tls.p12", format: formats.Binary, plain: "\x00\x01secret\xff"},
	} {
		t.Run(name, func(t *testing.T) {
			sealed := seal(t, tt.format, tt.plain, master)
			if bytes.Contains(sealed, []byte("admin")) {
				t.Fatal("the fixture is not encrypted")
			}
			got, err := d.File(t.Context(), tt.file, sealed)
			if err != nil {
				t.Fatal(err)
			}
			if string(got) != tt.plain {
				t.Errorf("%s: got %q, want %q", tt.reason, got, tt.plain)
			}
		})
	}
}

func TestPlainFilesStay(t *testing.T) {
	secret, _ := forAge(t)
	d := open(t, map[string]string{"identity.agekey": secret}, Options{})
	for _, data := range []string{"", "user: admin\n", "\x00\xff", "{"} {
		for _, name := range []string{"a.yaml", "a.json", "a.env", "a.ini", "a"} {
			if got, err := d.File(t.Context(), name, []byte(data)); err != nil || string(got) != data {
				t.Errorf("%s with %q: got %q, %v", name, data, got, err)
			}
		}
	}
	var none *Decryptor
	if got, err := none.File(t.Context(), "a.yaml", []byte("mac: ENC[")); err != nil || string(got) != "mac: ENC[" {
		t.Errorf("without decryption: got %q, %v", got, err)
	}
}

// TestKeys: one file for each kind of key, and what does not open it.
func TestKeys(t *testing.T) {
	ageSecret, ageMaster := forAge(t)
	otherAge, _ := forAge(t)
	hybrid, err := age.GenerateHybridIdentity()
	if err != nil {
		t.Fatal(err)
	}
	pgpSecret, pgpMaster := forPGP(t, "")
	otherPGP, _ := forPGP(t, "")
	lockedPGP, lockedMaster := forPGP(t, "secret passphrase")
	bomb, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		reason string
		data   map[string]string
		master sopskeys.MasterKey
		want   string
	}{
		"Age":        {reason: "the usual case", data: map[string]string{"a.agekey": ageSecret}, master: ageMaster},
		"SeveralAge": {reason: "all identities are tried", data: map[string]string{"a.agekey": otherAge + ageSecret, "b.agekey": otherAge}, master: ageMaster},
		"Hybrid": {reason: "post-quantum identities", data: map[string]string{"a.agekey": hybrid.String()},
			master: ageKey(t, hybrid.Recipient(), hybrid.Recipient().String(), dataKey)},
		"OtherAge": {reason: "somebody else's key", data: map[string]string{"a.agekey": otherAge}, master: ageMaster, want: "cannot decrypt data key with age"},
		"NoAge":    {reason: "key files of this process are not looked for", data: map[string]string{"a.asc": pgpSecret}, master: ageMaster, want: "no age key is given"},
		"PGP":      {reason: "without gpg", data: map[string]string{"a.asc": pgpSecret}, master: pgpMaster},
		"PGPBlocks": {reason: "several blocks in one value, as gpg imports them", data: map[string]string{"a.asc": otherPGP + pgpSecret},
			master: pgpMaster},
		"OtherPGP": {reason: "somebody else's key", data: map[string]string{"a.asc": otherPGP}, master: pgpMaster, want: "cannot decrypt data key with PGP"},
		"Locked": {reason: "nobody can type the passphrase", data: map[string]string{"a.asc": lockedPGP}, master: lockedMaster,
			want: "1 of the given keys are protected by a passphrase"},
		"LockedBeside": {reason: "a locked key does not hide the others", data: map[string]string{"a.asc": lockedPGP, "b.asc": pgpSecret}, master: pgpMaster},
		"NoPGP":        {reason: "nothing given", data: map[string]string{"a.agekey": ageSecret}, master: pgpMaster, want: "no PGP key is given"},
		"LongDataKey": {reason: "a data key that goes on and on is not read to its end", data: map[string]string{"a.agekey": bomb.String()},
			master: ageKey(t, bomb.Recipient(), bomb.Recipient().String(), make([]byte, 8<<10)), want: "more than 4096 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			d := open(t, tt.data, Options{})
			got, err := d.File(t.Context(), "a.yaml", seal(t, formats.Yaml, "user: admin\n", tt.master))
			switch {
			case tt.want == "" && (err != nil || string(got) != "user: admin\n"):
				t.Errorf("%s: got %q, %v", tt.reason, got, err)
			case tt.want != "" && (err == nil || !strings.Contains(strings.Join(strings.Fields(strings.ReplaceAll(err.Error(), "|", " ")), " "), tt.want)):
				t.Errorf("%s: got %v, want %q", tt.reason, err, tt.want)
			}
			if err != nil {
				quiet(t, err, tt.data)
			}
		})
	}
}

// quiet checks that an error has nothing of the keys and of the plain content.
func quiet(t *testing.T, err error, secrets map[string]string) {
	t.Helper()
	for _, value := range secrets {
		for _, word := range strings.Fields(value) {
			if len(word) > 20 && strings.Contains(err.Error(), word) {
				t.Errorf("error tells key material: %v", err)
			}
		}
	}
	if strings.Contains(err.Error(), "admin") {
		t.Errorf("error tells plain content: %v", err)
	}
}

func TestKeysRefused(t *testing.T) {
	for name, tt := range map[string]struct {
		reason string
		key    string
		value  string
		want   string
	}{
		"Plugin": {reason: "it would run a program that the Secret names", key: "a.agekey", value: "AGE-PLUGIN-EVIL-1QQQQ", want: "line 1 needs an age plugin"},
		"Broken": {reason: "the line is not quoted", key: "a.agekey", value: "# x\nAGE-SECRET-KEY-1QQQQQQQQQQQQQQQQQQQQQQQQQQQQ", want: "line 2 is not an age identity"},
		"SSH":    {reason: "an unknown type", key: "a.agekey", value: "-----BEGIN OPENSSH PRIVATE KEY-----", want: "line 1 is not an age identity"},
		"PGP":    {reason: "no private key", key: "a.asc", value: "password-password-password", want: "no armored PGP private key"},
		"PGPBroken": {reason: "malformed", key: "a.asc", value: pgpHeader + "\n\nAAAA\n-----END PGP PRIVATE KEY BLOCK-----",
			want: "malformed"},
		"AWS":   {reason: "not a map", key: awsKey, value: "secret-secret-secret-secret", want: "aws_access_key_id"},
		"Azure": {reason: "incomplete", key: azureKey, value: "clientSecret: secret-secret-secret-secret", want: "it needs clientId"},
		"GCPExternal": {reason: "a source file is this process's own token, the token URL anybody's", key: gcpKey,
			value: `{"type":"external_account","credential_source":{"file":"/var/run/secrets/kubernetes.io/serviceaccount/token"},"token_url":"https://evil.example"}`,
			want:  `type "external_account" are not accepted`},
		"GCPNothing": {reason: "no JSON", key: gcpKey, value: "secret-secret-secret-secret", want: "not the JSON"},
	} {
		t.Run(name, func(t *testing.T) {
			data := map[string]string{tt.key: tt.value}
			_, err := tryOpen(t, data, Options{})
			if err == nil || !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), "'"+tt.key+"' data from sops decryption Secret 'apps/keys'") {
				t.Fatalf("%s: got %v, want %q", tt.reason, err, tt.want)
			}
			quiet(t, err, data)
		})
	}
}

func TestNew(t *testing.T) {
	secret, master := forAge(t)
	sealed := seal(t, formats.Yaml, "user: admin\n", master)
	global := types.NamespacedName{Namespace: "flux-system", Name: "age"}
	c := fake.NewClientBuilder().WithObjects(
		secretOf(global, map[string]string{"a.agekey": secret, "sops.vault-token": "t"}),
		secretOf(types.NamespacedName{Namespace: "apps", Name: "empty"}, nil),
	).Build()
	t.Run("NoDecryption", func(t *testing.T) {
		d, err := New(t.Context(), c, &kustomizev1.Kustomization{}, Options{AgeSecret: global})
		if d != nil || err != nil || d.Key() != "" {
			t.Errorf("got %v, %v", d, err)
		}
	})
	t.Run("Provider", func(t *testing.T) {
		k := kustomization("")
		k.Spec.Decryption.Provider = "other"
		if _, err := New(t.Context(), c, k, Options{}); err == nil {
			t.Error("another provider is accepted")
		}
	})
	t.Run("Missing", func(t *testing.T) {
		_, err := New(t.Context(), c, kustomization("absent"), Options{AgeSecret: global})
		if !apierrors.IsNotFound(err) || !strings.Contains(err.Error(), "apps/absent") {
			t.Errorf("got %v", err)
		}
	})
	t.Run("AgeSecret", func(t *testing.T) {
		d, err := New(t.Context(), c, kustomization(""), Options{AgeSecret: global})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := d.File(t.Context(), "a.yaml", sealed); err != nil {
			t.Error(err)
		}
		if d.keys.vaultToken != "" {
			t.Error("more than age keys is taken from the common Secret")
		}
	})
	t.Run("OwnSecretWins", func(t *testing.T) {
		d, err := New(t.Context(), c, kustomization("empty"), Options{AgeSecret: global})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := d.File(t.Context(), "a.yaml", sealed); err == nil {
			t.Error("the common key opens files of an object that brings its own")
		}
	})
}

func TestKey(t *testing.T) {
	a, b := map[string]string{"a.agekey": ""}, map[string]string{"a.agekey": "", "sops.vault-token": "x"}
	seen := map[string]string{}
	for name, d := range map[string]*Decryptor{
		"a": open(t, a, Options{}), "b": open(t, b, Options{}), "account": open(t, a, Options{ServiceAccount: "x"}),
		"vault":   open(t, a, Options{VaultAddresses: []string{"https://v"}}),
		"address": open(t, map[string]string{"a.agekey": "", "sops.vault-address": "x"}, Options{}),
	} {
		if other := seen[d.Key()]; other != "" || d.Key() == "" {
			t.Errorf("%s and %s have the same key %q", name, other, d.Key())
		}
		seen[d.Key()] = name
	}
	if again := open(t, a, Options{}).Key(); seen[again] != "a" {
		t.Error("the same keys give another digest")
	}
}

func TestResource(t *testing.T) {
	secret, master := forAge(t)
	d := open(t, map[string]string{"identity.agekey": secret}, Options{})
	sealed := seal(t, formats.Yaml, "apiVersion: v1\nkind: Secret\nmetadata:\n    name: db\n    namespace: shop\nstringData:\n    user: admin\n", master)
	value := func(format formats.Format, plain string) string {
		return base64.StdEncoding.EncodeToString(seal(t, format, plain, master))
	}
	t.Run("Object", func(t *testing.T) {
		r := object(t, sealed)
		got, err := d.Resource(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		want := "apiVersion: v1\nkind: Secret\nmetadata:\n  name: db\n  namespace: shop\nstringData:\n  user: admin\n"
		if got.MustYaml() != want {
			t.Errorf("got %s", got.MustYaml())
		}
		if !isEncrypted(r) {
			t.Error("the input is changed")
		}
	})
	t.Run("AnyKind", func(t *testing.T) {
		sealed := seal(t, formats.Yaml, "apiVersion: v1\nkind: ConfigMap\nmetadata:\n    name: db\ndata:\n    user: admin\n", master)
		got, err := d.Resource(t.Context(), object(t, sealed))
		if err != nil || got.GetDataMap()["user"] != "admin" {
			t.Errorf("got %v, %v", got, err)
		}
		if !slices.Contains(d.Plain(), "admin") || slices.Contains(d.Plain(), "db") {
			t.Errorf("what errors must not quote is %v", d.Plain())
		}
	})
	t.Run("Numbers", func(t *testing.T) {
		sealed := seal(t, formats.Yaml, "apiVersion: example.com/v1\nkind: Door\nmetadata:\n    name: db\ndata:\n    pins:\n        - 12345678\n    share: 1234.50\n", master)
		if _, err := d.Resource(t.Context(), object(t, sealed)); err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{"12345678", "1234.5"} {
			if !slices.Contains(d.Plain(), want) {
				t.Errorf("errors may quote %s: they must not have %v", want, d.Plain())
			}
		}
	})
	t.Run("Patch", func(t *testing.T) {
		sealed := seal(t, formats.Yaml, "apiVersion: example.com/v1\nkind: Door\nmetadata:\n    name: db\ndata:\n    password: hunter2-secret\n", master)
		if _, err := d.Patch(t.Context(), "db.enc.yaml", sealed); err != nil {
			t.Fatal(err)
		}
		if !slices.Contains(d.Plain(), "hunter2-secret") {
			t.Errorf("errors may quote a value of a patch: they must not have %v", d.Plain())
		}
	})
	t.Run("PatchOfAnyName", func(t *testing.T) {
		sealed := seal(t, formats.Binary, "spec:\n  list: {token: hunter33}\n", master)
		if _, err := d.Patch(t.Context(), "token.patch", sealed); err != nil {
			t.Fatal(err)
		}
		if !slices.Contains(d.Plain(), "hunter33") || slices.Contains(d.Plain(), "token") {
			t.Errorf("errors may quote a value of a patch that was sealed as a whole: they must not have %v", d.Plain())
		}
	})
	t.Run("PatchOfObject", func(t *testing.T) {
		for file, plain := range map[string]string{
			"merge.patch": "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: shop, namespace: default, labels: {app: shop}}\nspec: {paused: true, token: hunter22}\n",
			"json.patch":  "[{op: replace, path: /spec/token, value: hunter22}, {op: move, from: /spec/paused, path: /spec/stop}]",
		} {
			d := open(t, map[string]string{"identity.agekey": secret}, Options{})
			if _, err := d.Patch(t.Context(), file, seal(t, formats.Binary, plain, master)); err != nil {
				t.Fatal(err)
			}
			err := errors.New("apps/v1 Deployment/default/shop: cannot replace /spec/token, /spec/paused: true, token hunter22")
			want := "apps/v1 Deployment/default/shop: cannot replace /spec/token, /spec/paused: true, token *****"
			if got := mask.Error(err, d.Plain()).Error(); got != want {
				t.Errorf("%s: got %q, want %q", file, got, want)
			}
		}
	})
	t.Run("FileOfSecret", func(t *testing.T) {
		d := open(t, map[string]string{"identity.agekey": secret}, Options{})
		sealed := seal(t, formats.Binary, "namespace: default\n", master)
		if _, err := d.File(t.Context(), "app.conf", sealed); err != nil || len(d.Plain()) > 0 {
			t.Errorf("it gets into a Secret and nowhere else: got %v, and messages must not have %v", err, d.Plain())
		}
	})
	t.Run("LargePatches", func(t *testing.T) {
		// What a tenant chooses the size of is parsed up to a bound. Beyond that no error shows any value, as nobody looks for each.
		d := open(t, map[string]string{"identity.agekey": secret}, Options{})
		list := "[" + strings.Repeat("aaaa,", maxParsed/10) + "]"
		sealed := seal(t, formats.Binary, list, master)
		for range 4 {
			if _, err := d.Patch(t.Context(), "many.patch", sealed); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := d.Patch(t.Context(), "small.patch", seal(t, formats.Binary, "spec: {token: hunter33}\n", master)); err != nil {
			t.Fatal(err)
		}
		if n := len(d.Plain()); n > maxParsed {
			t.Errorf("%d values are kept", n)
		}
		for _, value := range []string{"hunter33", "aaaa"} {
			if got := mask.Error(fmt.Errorf("spec.token: Invalid value: %q", value), d.Plain()).Error(); strings.Contains(got, value) {
				t.Errorf("an error has %s: %q", value, got)
			}
		}
	})
	t.Run("Disabled", func(t *testing.T) {
		r := object(t, sealed)
		if err := r.SetAnnotations(map[string]string{annotation: "Disabled"}); err != nil {
			t.Fatal(err)
		}
		if got, err := d.Resource(t.Context(), r); err != nil || got != r {
			t.Errorf("got %v, %v", got, err)
		}
	})
	t.Run("Plain", func(t *testing.T) {
		r := object(t, []byte("apiVersion: v1\nkind: Secret\nmetadata: {name: x}\ndata: {a: YQ==, b: '???'}\n"))
		if got, err := d.Resource(t.Context(), r); err != nil || got != r {
			t.Errorf("got %v, %v", got, err)
		}
	})
	t.Run("Values", func(t *testing.T) {
		r := object(t, []byte("apiVersion: v1\nkind: Secret\nmetadata: {name: x}\ndata:\n  a.yaml: "+value(formats.Yaml, "user: admin\n")+
			"\n  b.env: "+value(formats.Dotenv, "USER=admin\n")+"\n  c.bin: "+value(formats.Binary, "admin")+
			"\n  d.ini: "+value(formats.Ini, "[db]\nuser = admin\n")+"\n  .dockerconfigjson: "+value(formats.Json, `{"user":"admin"}`)+"\n  plain: YQ==\n"))
		before := r.MustYaml()
		got, err := d.Resource(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		for key, want := range map[string]string{
			"a.yaml": "user: admin\n", "b.env": "USER=admin\n", "c.bin": "admin", "d.ini": "[db]\nuser = admin\n",
			".dockerconfigjson": "{\n\t\"user\": \"admin\"\n}\n", "plain": "a",
		} {
			data, err := base64.StdEncoding.DecodeString(got.GetDataMap()[key])
			if err != nil || string(data) != want {
				t.Errorf("%s is %q (%v), want %q", key, data, err, want)
			}
		}
		if r.MustYaml() != before {
			t.Error("the input is changed")
		}
	})
	t.Run("OtherKindsValues", func(t *testing.T) {
		r := object(t, []byte("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x}\ndata:\n  a.yaml: "+value(formats.Yaml, "user: admin\n")+"\n"))
		if got, err := d.Resource(t.Context(), r); err != nil || got != r {
			t.Errorf("only Secrets hold encoded values: got %v, %v", got, err)
		}
	})
	t.Run("MACIsNotVerified", func(t *testing.T) {
		// kustomize adds labels to what the MAC covers.
		r := object(t, sealed)
		if err := r.SetLabels(map[string]string{"added": "true"}); err != nil {
			t.Fatal(err)
		}
		if got, err := d.Resource(t.Context(), r); err != nil || got.GetLabels()["added"] != "true" {
			t.Errorf("got %v, %v", got, err)
		}
	})
	t.Run("MovedValue", func(t *testing.T) {
		moved := object(t, bytes.ReplaceAll(sealed, []byte("user:"), []byte("root:")))
		_, err := d.Resource(t.Context(), moved)
		if err == nil || !strings.Contains(err.Error(), "does not belong to its key") {
			t.Errorf("a value under another key gives %v", err)
		}
	})
}

// TestHostile: content that would take the process down is an error.
func TestHostile(t *testing.T) {
	secret, master := forAge(t)
	d := open(t, map[string]string{"identity.agekey": secret}, Options{})
	sealed := seal(t, formats.Yaml, "user: admin\n", master)
	encrypted, err := aes.NewCipher().Encrypt("admin", dataKey, "user:")
	if err != nil {
		t.Fatal(err)
	}
	many := make([]sopskeys.MasterKey, maxKeys+1)
	for i := range many {
		many[i] = master
	}
	// aliases are some 30 000 nodes in each document.
	aliases := "a: &a [" + strings.Repeat("a,", 100) + "]\nb: [" + strings.Repeat("*a,", 300) + "]\n"
	for name, tt := range map[string]struct {
		reason string
		file   string
		data   []byte
		want   string
	}{
		"Alias":   {reason: "an alias cycle overflows the stack", file: "a.yaml", data: []byte("mac: ENC[\ndata: &a {k: *a}\n"), want: "refused YAML"},
		"Deep":    {reason: "brackets overflow the stack", file: "a.json", data: []byte(`{"mac": "ENC[", "a":` + strings.Repeat("[", 4<<20)), want: "nested deeper"},
		"Quoted":  {reason: "brackets in strings are text", file: "a.json", data: []byte(`{"mac": "ENC[", "a": "\"` + strings.Repeat("[", 4<<10) + `"}`), want: "sops metadata not found"},
		"Nodes":   {reason: "a node takes a hundred times the memory of its text, and the name of a file is that of its key", file: "a.yaml", data: []byte("mac: ENC[\na: [" + strings.Repeat("a,", render.MaxNodes) + "]\n"), want: "refused YAML"},
		"Items":   {reason: "the same in JSON", file: "a.json", data: []byte(`{"mac": "ENC[", "a": [1` + strings.Repeat(",1", render.MaxNodes) + "]}"), want: "refused YAML"},
		"Braces":  {reason: "in braces a text is a key and a value", file: "a.yaml", data: []byte("mac: ENC[\n---\na: {" + strings.Repeat("a,", render.MaxNodes*6/10) + "}\n"), want: "refused YAML"},
		"Aliases": {reason: "SOPS copies what an alias stands for, in each document", file: "a.yaml", data: []byte("mac: ENC[\n" + strings.Repeat("---\n"+aliases, 60)), want: "refused YAML"},
		"Pairs":   {reason: "a parser reports each pair of the same keys", file: "a.yaml", data: []byte("mac: ENC[\na: {" + strings.Repeat("a,", 1000) + "}\n"), want: "refused YAML"},
		"Lines":   {reason: "a line is a value in dotenv", file: "a.env", data: []byte("sops_mac=ENC[\n" + strings.Repeat("a=\n", render.MaxNodes)), want: "refused YAML"},
		"Large":   {reason: "Flux's limit", file: "a.bin", data: append([]byte(`{"mac": "ENC[`), make([]byte, maxSize)...), want: "exceeding limit (5242880)"},
		"Bytes":   {reason: "SOPS panics on values of type bytes", file: "a.yaml", data: bytes.ReplaceAll(sealed, []byte("type:str]\nsops"), []byte("type:bytes]\nsops")), want: "malformed"},
		"Keys":    {reason: "each key is a request", file: "a.yaml", data: seal(t, formats.Yaml, "user: admin\n", many...), want: "names 65 keys"},
		"Line":    {reason: "dotenv quotes the line that it cannot read", file: "a.env", data: []byte("sops_mac=ENC[\nadmin\n"), want: "failed to load encrypted dotenv data: it is malformed"},
		"Plain":   {reason: "SOPS quotes a value that is not encrypted", file: "a.yaml", data: bytes.Replace(sealed, sealed[bytes.Index(sealed, []byte("ENC[")):bytes.IndexByte(sealed, '\n')], []byte("admin"), 1), want: "Input string <redacted>"},
		"Nothing": {reason: "no metadata", file: "a.yaml", data: []byte("mac: ENC[AES256_GCM]\n"), want: "sops metadata not found"},
		"Type":    {reason: "an unknown type", file: "a.yaml", data: bytes.Replace(sealed, sealed[bytes.Index(sealed, []byte("ENC[")):bytes.IndexByte(sealed, '\n')], []byte(strings.Replace(encrypted, "type:str", "type:admin", 1)), 1), want: "a value is malformed"},
	} {
		t.Run(name, func(t *testing.T) {
			out, err := d.File(t.Context(), tt.file, tt.data)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Fatalf("%s: got %q, %v, want %q", tt.reason, out, err, tt.want)
			}
			quiet(t, err, nil)
		})
	}
}

func FuzzFile(f *testing.F) {
	identity, err := age.GenerateX25519Identity()
	if err != nil {
		f.Fatal(err)
	}
	d := &Decryptor{}
	if err := d.keys.addAge([]byte(identity.String())); err != nil {
		f.Fatal(err)
	}
	for _, seed := range []string{"a: 1\nsops:\n  mac: ENC[\n", `{"sops": {"mac": "ENC["}}`, "A=b\nsops_mac=ENC[\n", "[sops]\nmac = ENC[\n"} {
		f.Add("a.yaml", []byte(seed))
		f.Add("a.json", []byte(seed))
		f.Add("a.env", []byte(seed))
		f.Add("a.ini", []byte(seed))
	}
	f.Fuzz(func(t *testing.T, name string, data []byte) {
		ctx, cancel := context.WithCancel(context.Background())
		cancel() // no key service is asked
		out, err := d.File(ctx, name, data)
		if err == nil && len(data) > 0 && !bytes.Equal(out, data) {
			t.Errorf("something was decrypted without its key: %q", out)
		}
	})
}
