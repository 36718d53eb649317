package decrypt

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"path"
	"slices"
	"strings"
	"time"

	"filippo.io/age"
	"github.com/ProtonMail/go-crypto/openpgp"
	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	"github.com/fluxcd/pkg/cache"
	"github.com/getsops/sops/v3/cmd/sops/formats"
	"github.com/getsops/sops/v3/logging"
	"github.com/sirupsen/logrus"
	"go.yaml.in/yaml/v3"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/kustomize/api/resource"

	"github.com/cascade-gitops/cascade/syncer/mask"
)

// Keys of the Secret that spec.decryption.secretRef names, as Flux has them.
const (
	pgpExtension  = ".asc"
	ageExtension  = ".agekey"
	vaultTokenKey = "sops.vault-token"
	// vaultAddressKey is not one of Flux's: docs/decisions/020.
	vaultAddressKey = "sops.vault-address"
	awsKey          = "sops.aws-kms"
	azureKey        = "sops.azure-kv"
	gcpKey          = "sops.gcp-kms"
	annotation      = "kustomize.toolkit.fluxcd.io/decrypt"
	annotationOff   = "disabled"
	provider        = "sops"
	maxSize         = 5 << 20
	// maxParsed bounds the patches of one reconcile whose values are noted each by itself. A value
	// of one letter takes a hundred times its length meanwhile.
	maxParsed      = 256 << 10
	keyServiceTime = 30 * time.Second
)

// Options of New. The zero value grants nothing beyond the object's Secret.
type Options struct {
	// AgeSecret has the age keys that are used when the object names no Secret
	// (--sops-age-secret). Other keys in it are not used.
	AgeSecret types.NamespacedName
	// ServiceAccount is used when spec.decryption.serviceAccountName is empty
	// (--default-decryption-service-account). With neither, key services see
	// the identity of this process.
	ServiceAccount string
	// VaultConfig is the ConfigMap that lists the Vault servers to which a
	// service account may log in (--sops-vault-configmap).
	VaultConfig types.NamespacedName
	// VaultAddresses are the servers that get the token of a Secret which names no
	// server itself (--sops-vault-address).
	VaultAddresses []string
	// Client creates the tokens of service accounts. Without one, only
	// credentials from Secrets are used. Tokens of service accounts need
	// auth.EnableObjectLevelWorkloadIdentity, which the program calls once.
	Client client.Client
	// Tokens caches what cloud providers issued. It may be nil.
	Tokens *cache.TokenCache
	// HTTP is used for key services. nil means a client of the Decryptor's own,
	// with time-outs; the AWS SDK then makes its own and heeds AWS_CA_BUNDLE,
	// which fails with a client that is given.
	HTTP *http.Client

	// endpoints, in tests.
	azure, gcp            string
	skipInstanceDiscovery bool
}

// Decryptor for one Kustomization. It is safe for concurrent use.
type Decryptor struct {
	options        Options
	givenHTTP      bool
	name           types.NamespacedName
	serviceAccount string
	key            string
	keys           keys
	// plain are the values of objects and patches that were decrypted, parsed the bytes of patches
	// that were encrypted as a whole.
	plain  []string
	parsed int
}

// keys that came from Secrets.
type keys struct {
	age        []age.Identity
	pgp        openpgp.EntityList
	locked     int // PGP keys that need a passphrase
	vaultToken string
	// vaultAddress is the server that vaultToken is for.
	vaultAddress string
	aws          *awsCredentials
	azure        *azureCredentials
	gcp          *gcpCredentials
}

// New reads the keys that spec.decryption names. It returns nil for an object
// without decryption; a nil Decryptor decrypts nothing. The error wraps the
// API server's answer when the Secret cannot be read.
func New(ctx context.Context, reader client.Reader, obj *kustomizev1.Kustomization, o Options) (*Decryptor, error) {
	spec := obj.Spec.Decryption
	if spec == nil {
		return nil, nil
	}
	if spec.Provider != provider {
		return nil, fmt.Errorf("cannot decrypt with provider %q: %q is the only one", spec.Provider, provider)
	}
	// SOPS has loggers of its own, which write comments of files.
	logging.SetLevel(logrus.PanicLevel)
	given := o.HTTP != nil
	if !given {
		o.HTTP = newHTTPClient()
	}
	d := &Decryptor{options: o, givenHTTP: given, name: client.ObjectKeyFromObject(obj), serviceAccount: spec.ServiceAccountName}
	if d.serviceAccount == "" {
		d.serviceAccount = o.ServiceAccount
	}
	digest := sha256.New()
	add := func(field string, values ...string) {
		for _, v := range append([]string{field}, values...) {
			fmt.Fprintf(digest, "%d:%s", len(v), v)
		}
	}
	add("identity", d.serviceAccount, obj.Namespace, o.VaultConfig.String())
	add("vault", o.VaultAddresses...)
	name, ageOnly := o.AgeSecret, true
	if spec.SecretRef != nil {
		name, ageOnly = types.NamespacedName{Namespace: obj.Namespace, Name: spec.SecretRef.Name}, false
	}
	if name.Name != "" {
		secret := &corev1.Secret{}
		if err := reader.Get(ctx, name, secret); err != nil {
			return nil, fmt.Errorf("cannot get %s decryption Secret '%s': %w", provider, name, err)
		}
		for _, key := range slices.Sorted(maps.Keys(secret.Data)) {
			if ageOnly && path.Ext(key) != ageExtension {
				continue
			}
			add(key, string(secret.Data[key]))
			if err := d.keys.add(key, secret.Data[key]); err != nil {
				return nil, fmt.Errorf("failed to import '%s' data from %s decryption Secret '%s': %w", key, provider, name, err)
			}
		}
	}
	d.key = hex.EncodeToString(digest.Sum(nil))
	return d, nil
}

func (k *keys) add(name string, value []byte) (err error) {
	switch {
	case path.Ext(name) == pgpExtension:
		err = k.addPGP(value)
	case path.Ext(name) == ageExtension:
		err = k.addAge(value)
	case name == vaultTokenKey:
		k.vaultToken = strings.TrimSpace(string(value))
	case name == vaultAddressKey:
		k.vaultAddress = strings.TrimSpace(string(value))
	case name == awsKey:
		k.aws, err = parseAWS(value)
	case name == azureKey:
		k.azure, err = parseAzure(value)
	case name == gcpKey:
		k.gcp, err = parseGCP(value)
	}
	return err
}

// Key identifies the keys and the identity in use, so that a rendering can be
// reused while it is the same. It is a digest of secrets: not for people's
// eyes. It does not tell that a key service withdrew a right.
func (d *Decryptor) Key() string {
	if d == nil {
		return ""
	}
	return d.key
}

// File returns the plain content of a file, or data itself if it is not
// encrypted. name decides the format by its ending: for an entry of a
// generator's files it is the key, or the path of an entry without one; for
// envs and patches it is the path. Anything else is binary, or dotenv if it has
// the marker of that. The content may be anything: the caller checks it as it
// checks other files.
func (d *Decryptor) File(ctx context.Context, name string, data []byte) ([]byte, error) {
	plain, _, err := d.file(ctx, name, data)
	return plain, err
}

// Patch is File for a patch, which puts its values into objects of any kind: Plain has those
// of one that was encrypted as a whole.
func (d *Decryptor) Patch(ctx context.Context, name string, data []byte) ([]byte, error) {
	plain, whole, err := d.file(ctx, name, data)
	if whole {
		d.noteAll(plain)
	}
	return plain, err
}

// file is File, and reports whether data was encrypted as a whole.
func (d *Decryptor) file(ctx context.Context, name string, data []byte) (plain []byte, whole bool, err error) {
	if d == nil {
		return data, false, nil
	}
	format := formatOf(name)
	if format == formats.Binary && !bytes.Contains(data, markers[formats.Binary]) {
		format = formats.Dotenv
	}
	if !bytes.Contains(data, markers[format]) {
		return data, false, nil
	}
	if plain, err = d.decrypt(ctx, data, format, format); err != nil {
		return nil, false, fmt.Errorf("cannot decrypt file '%s': %w", name, err)
	}
	if format == formats.Yaml || format == formats.Json {
		d.note(data, plain)
	}
	return plain, format == formats.Binary, nil
}

// Resource returns the object with everything in it decrypted: a new one, or r
// itself if nothing in it is encrypted. r is not changed.
func (d *Decryptor) Resource(ctx context.Context, r *resource.Resource) (*resource.Resource, error) {
	if d == nil || r == nil || strings.EqualFold(r.GetAnnotations()[annotation], annotationOff) {
		return r, nil
	}
	if isEncrypted(r) {
		return d.object(ctx, r)
	}
	if r.GetKind() != "Secret" {
		return r, nil
	}
	return d.secretValues(ctx, r)
}

func isEncrypted(r *resource.Resource) bool {
	field := r.Field("sops")
	return !field.IsNilOrEmpty() && !field.Value.Field("mac").IsNilOrEmpty()
}

func (d *Decryptor) object(ctx context.Context, r *resource.Resource) (*resource.Resource, error) {
	data, err := r.MarshalJSON()
	if err != nil {
		return nil, fmt.Errorf("cannot write '%s/%s' %s: %w", r.GetNamespace(), r.GetName(), r.GetKind(), err)
	}
	plain, err := d.decrypt(ctx, data, formats.Json, formats.Json)
	if err != nil {
		return nil, fmt.Errorf("failed to decrypt and format '%s/%s' %s data: %w", r.GetNamespace(), r.GetName(), r.GetKind(), err)
	}
	out := r.DeepCopy()
	if err := out.UnmarshalJSON(plain); err != nil {
		// The parser's error quotes what it cannot read.
		return nil, fmt.Errorf("failed to unmarshal decrypted '%s/%s' %s to JSON", r.GetNamespace(), r.GetName(), r.GetKind())
	}
	d.note(data, plain)
	return out, nil
}

// Plain are the values that were encrypted in objects and patches, and are plain now. An API server
// may quote them in an error about an object that is no Secret. mask.Unlisted is among them if there are more.
func (d *Decryptor) Plain() []string {
	if d == nil {
		return nil
	}
	return d.plain
}

// note collects the values in YAML or JSON that were encrypted before.
func (d *Decryptor) note(sealed, plain []byte) {
	before, after := yaml.NewDecoder(bytes.NewReader(sealed)), yaml.NewDecoder(bytes.NewReader(plain))
	for {
		var b, a yaml.Node
		if before.Decode(&b) != nil || after.Decode(&a) != nil {
			return // the end, mostly: who uses the content tells of anything else
		}
		d.noteNode(&b, &a)
	}
}

// noteAll notes what a patch has that was encrypted as a whole. Nobody else parses it in this
// process: if it is more than patches have, errors are withheld, for any of its values may stand in them.
func (d *Decryptor) noteAll(plain []byte) {
	if d.parsed += len(plain); d.parsed > maxParsed {
		d.plain = append(d.plain, mask.Unlisted)
		return
	}
	known := map[string]bool{}
	var walk func(*yaml.Node)
	walk = func(n *yaml.Node) {
		if tag := n.ShortTag(); n.Kind == yaml.ScalarNode && tag != "!!bool" && tag != "!!null" && !known[n.Value] {
			d.plain = append(d.plain, n.Value)
		}
		for i, c := range n.Content {
			if n.Kind != yaml.MappingNode || i%2 == 1 { // keys are known
				walk(c)
			}
		}
	}
	for documents := yaml.NewDecoder(bytes.NewReader(plain)); ; {
		var n yaml.Node
		switch err := documents.Decode(&n); {
		case errors.Is(err, io.EOF):
			return
		case err != nil:
			d.plain = append(d.plain, string(plain)) // no YAML
			return
		}
		addressed(n.Content[0], known)
		walk(&n)
	}
}

// addressed adds what tells which object a patch is for, and what it does there: messages have
// it, and a value that is the same is no secret.
func addressed(patch *yaml.Node, known map[string]bool) {
	add := func(mapping *yaml.Node, keys ...string) {
		for i := 1; i < len(mapping.Content); i += 2 {
			if slices.Contains(keys, mapping.Content[i-1].Value) {
				known[mapping.Content[i].Value] = true
			}
		}
	}
	switch patch.Kind {
	case yaml.SequenceNode: // of JSON 6902
		for _, operation := range patch.Content {
			add(operation, "op", "path", "from")
		}
	case yaml.MappingNode:
		add(patch, "apiVersion", "kind")
		for i := 1; i < len(patch.Content); i += 2 {
			if patch.Content[i-1].Value == "metadata" {
				add(patch.Content[i], "name", "namespace")
			}
		}
	}
}

// noteNode compares texts, and no values: of a number it takes the digits that stand there.
func (d *Decryptor) noteNode(before, after *yaml.Node) {
	switch {
	case before.Kind == yaml.ScalarNode && after.Kind == yaml.ScalarNode:
		if !strings.HasPrefix(before.Value, "ENC[") {
			return
		}
		d.plain = append(d.plain, after.Value)
		var number float64
		if after.Tag == "!!float" && after.Decode(&number) == nil {
			d.plain = append(d.plain, fmt.Sprint(number)) // as an API server writes it
		}
	case before.Kind != after.Kind:
	case before.Kind == yaml.MappingNode:
		values := map[string]*yaml.Node{}
		for i := 1; i < len(after.Content); i += 2 {
			values[after.Content[i-1].Value] = after.Content[i]
		}
		for i := 1; i < len(before.Content); i += 2 {
			if value := values[before.Content[i-1].Value]; value != nil {
				d.noteNode(before.Content[i], value)
			}
		}
	default: // a list, or a document
		for i := range min(len(before.Content), len(after.Content)) {
			d.noteNode(before.Content[i], after.Content[i])
		}
	}
}

func (d *Decryptor) secretValues(ctx context.Context, r *resource.Resource) (*resource.Resource, error) {
	values := r.GetDataMap()
	changed := false
	for _, key := range slices.Sorted(maps.Keys(values)) {
		data, err := base64.StdEncoding.DecodeString(values[key])
		if err != nil {
			continue // the API server reports it better
		}
		format, ok := detect(data)
		if !ok {
			continue
		}
		plain, err := d.decrypt(ctx, data, format, formatOf(key))
		if err != nil {
			return nil, fmt.Errorf("failed to decrypt and format '%s/%s' Secret field '%s': %w", r.GetNamespace(), r.GetName(), key, err)
		}
		values[key], changed = base64.StdEncoding.EncodeToString(plain), true
	}
	if !changed {
		return r, nil
	}
	out := r.DeepCopy()
	out.SetDataMap(values)
	return out, nil
}

// formatOf is the format that a name stands for.
func formatOf(name string) formats.Format {
	if strings.HasSuffix(name, corev1.DockerConfigJsonKey) {
		return formats.Json
	}
	return formats.FormatForPath(name)
}

// markers are in everything that SOPS encrypted. A binary file is a JSON
// envelope.
var markers = map[formats.Format][]byte{
	formats.Binary: []byte(`"mac": "ENC[`),
	formats.Json:   []byte(`"mac": "ENC[`),
	formats.Yaml:   []byte("mac: ENC["),
	formats.Dotenv: []byte("sops_mac=ENC["),
	formats.Ini:    []byte("[sops]"),
}

// detect finds out the format of an encrypted value. The marker of INI is last
// because it may stand in plain text.
func detect(data []byte) (formats.Format, bool) {
	for _, format := range []formats.Format{formats.Json, formats.Dotenv, formats.Yaml, formats.Ini} {
		if bytes.Contains(data, markers[format]) {
			return format, true
		}
	}
	return 0, false
}
