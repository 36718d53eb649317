package render

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/kustomize/api/resource"
)

// caesar is a Decrypter whose secrets are marked, and remembers the names it was
// asked with.
type caesar struct {
	names []string
	plain []string
	err   error
}

const sealMark = "sealed!"

func (c *caesar) File(_ context.Context, name string, data []byte) ([]byte, error) {
	c.names = append(c.names, name)
	if !bytes.Contains(data, []byte(sealMark)) {
		return data, nil
	}
	for _, field := range strings.Fields(string(data)) {
		if value, ok := strings.CutPrefix(field, sealMark); ok {
			c.plain = append(c.plain, value)
		}
	}
	return bytes.ReplaceAll(data, []byte(sealMark), nil), c.err
}

func (c *caesar) Patch(ctx context.Context, name string, data []byte) ([]byte, error) {
	return c.File(ctx, "patch "+name, data)
}

func (c *caesar) Plain() []string { return c.plain }

func (c *caesar) Resource(_ context.Context, r *resource.Resource) (*resource.Resource, error) {
	c.names = append(c.names, r.GetKind()+"/"+r.GetName())
	if sops := r.Field("sops"); sops != nil {
		data, err := r.MarshalJSON()
		if err != nil {
			return nil, err
		}
		data = bytes.ReplaceAll(data, []byte(sealMark), nil)
		data = bytes.ReplaceAll(data, []byte(`,"sops":{"mac":"x"}`), nil)
		return r, errors.Join(c.err, r.UnmarshalJSON(data))
	}
	m := r.GetDataMap()
	for k, v := range m {
		if data, err := base64.StdEncoding.DecodeString(v); err == nil {
			m[k] = base64.StdEncoding.EncodeToString(bytes.ReplaceAll(data, []byte(sealMark), nil))
		}
	}
	r.SetDataMap(m)
	return r, c.err
}

func TestDecryption(t *testing.T) {
	b64 := func(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) }
	for name, tc := range map[string]struct {
		reason string
		files  tree
		build  Build
		names  []string
		fields map[string]string // by kind/name/field...
	}{
		"Manifest": {
			"an object with a sops field is decrypted after the build, before anything else is made of it",
			tree{"a.yaml": "apiVersion: example.com/v1\nkind: Thing\nmetadata: {name: t}\nspec: {k: \"sealed!${v}\"}\nsops: {mac: x}\n---\n" + manifest("plain")},
			Build{Variables: map[string]string{"v": "x"}},
			[]string{"Thing/t"}, map[string]string{"Thing/t/spec/k": "x"},
		},
		"SecretValue": {
			"a value of a Secret may be encrypted by itself",
			tree{"s.yaml": "apiVersion: v1\nkind: Secret\nmetadata: {name: s}\ndata: {k: " + b64("sealed!word") + "}\n"}, Build{},
			[]string{"Secret/s"}, map[string]string{"Secret/s/data/k": b64("word")},
		},
		"GeneratorFiles": {
			"the key of a Secret tells the format, or the file's name",
			tree{"kustomization.yaml": "secretGenerator: [{name: s, files: [config.json=in, app.yaml], options: {disableNameSuffixHash: true}}]\n", "in": "sealed!{}", "app.yaml": "sealed!a: b\n"}, Build{},
			[]string{"app.yaml", "config.json", "Secret/s"}, map[string]string{"Secret/s/data/config.json": b64("{}"), "Secret/s/data/app.yaml": b64("a: b\n")},
		},
		"GeneratorEnvs": {
			"variables are dotenv unless the name says otherwise",
			tree{"kustomization.yaml": "secretGenerator: [{name: s, envs: [vars, more.ini], options: {disableNameSuffixHash: true}}]\n", "vars": "A=sealed!1\n", "more.ini": "B=2\n"}, Build{},
			[]string{"more.ini", "vars.env", "Secret/s"}, map[string]string{"Secret/s/data/A": b64("1")},
		},
		"Patch": {
			"a patch in a file of a base",
			tree{"kustomization.yaml": "resources: [base]\n", "base/kustomization.yaml": "resources: [a.yaml]\npatches: [{path: p/p.yaml}]\n", "base/a.yaml": manifest("a"), "base/p/p.yaml": manifest("a", "k", "sealed!v")}, Build{},
			[]string{"patch p/p.yaml"}, map[string]string{"ConfigMap/a/data/k": "v"},
		},
		"Component": {
			"and of a component that only the spec names",
			tree{"app/a.yaml": manifest("a"), "c/kustomization.yaml": "kind: Component\npatches: [{path: p.yaml}]\n", "c/p.yaml": manifest("a", "k", "sealed!v")}, Build{Path: "app", Components: []string{"../c"}},
			[]string{"patch p.yaml"}, map[string]string{"ConfigMap/a/data/k": "v"},
		},
		"ConfigMapFile": {
			"a ConfigMap is no secret",
			tree{"kustomization.yaml": "configMapGenerator: [{name: c, files: [f], options: {disableNameSuffixHash: true}}]\n", "f": "sealed!x"}, Build{},
			nil, map[string]string{"ConfigMap/c/data/f": "sealed!x"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := &caesar{}
			tc.build.Decrypter = c
			objects, err := objectsOf(rendered(t.Context(), tc.files, tc.build))
			if err != nil {
				t.Fatalf("%s\nRender(): %v", tc.reason, err)
			}
			if diff := cmp.Diff(slices.Sorted(slices.Values(tc.names)), slices.Sorted(slices.Values(c.names))); diff != "" {
				t.Errorf("%s\nwhat the Decrypter saw: -want, +got:\n%s", tc.reason, diff)
			}
			got := map[string]string{}
			for path := range tc.fields {
				parts := strings.Split(path, "/")
				for _, o := range objects {
					if o.GetKind() == parts[0] && o.GetName() == parts[1] {
						got[path], _, _ = unstructured.NestedString(o.Object, parts[2:]...)
					}
				}
			}
			if diff := cmp.Diff(tc.fields, got); diff != "" {
				t.Errorf("%s\n-want, +got:\n%s", tc.reason, diff)
			}
		})
	}
}

// TestDecryptionEitherWay: the short way and kustomize's make the same of objects
// that are decrypted.
func TestDecryptionEitherWay(t *testing.T) {
	files := tree{"a.yaml": "apiVersion: v1\nkind: Secret\nmetadata: {name: s, annotations: {z: \"1\", a: \"2\"}}\ndata: {k: c2VhbGVkIXdvcmQ=, a: eA==}\nstringData: {l: m}\n---\napiVersion: example.com/v1\nkind: Thing\nmetadata: {name: t}\nspec: {n: 1, f: [a, {b: c}], k: sealed!}\nsops: {mac: x}\n"}
	short, err := rendered(t.Context(), files, Build{Decrypter: &caesar{}})
	if err != nil {
		t.Fatal(err)
	}
	// A kustomization that does nothing is not plain if it has metadata.
	files["kustomization.yaml"] = "metadata: {name: x}\nresources: [a.yaml]\n"
	long, err := rendered(t.Context(), files, Build{Decrypter: &caesar{}})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(contents(long.Objects), contents(short.Objects)); diff != "" || short.Digest != long.Digest {
		t.Errorf("-kustomize, +short:\n%s\n%s %s", diff, long.Digest, short.Digest)
	}
}

func TestDecryptionFails(t *testing.T) {
	errKey := errors.New("no key")
	for name, tc := range map[string]struct {
		reason string
		files  tree
		err    error
		has    string
		kept   bool
	}{
		"NoKey":       {"a key may be there the next time", tree{"s.yaml": "apiVersion: v1\nkind: Secret\nmetadata: {name: s}\ndata: {k: eA==}\n"}, errKey, "Secret s", false},
		"NoKeyFile":   {"the same for a file, which is named", tree{"kustomization.yaml": "secretGenerator: [{name: s, files: [in]}]\n", "in": "sealed!"}, errKey, "/in", false},
		"TooLarge":    {"a file of any size would be taken into memory several times", tree{"kustomization.yaml": "secretGenerator: [{name: s, files: [in]}]\n", "in": strings.Repeat("x", MaxSealedBytes+1)}, nil, fmt.Sprint(MaxSealedBytes), true},
		"StillInSops": {"what stays encrypted is not applied", tree{"s.yaml": "apiVersion: v1\nkind: Secret\nmetadata: {name: s}\nsops: {mac: y}\n"}, nil, "SOPS", true},
		"Hostile":     {"decrypted files are as hostile as others", tree{"kustomization.yaml": "resources: [a.yaml]\npatches: [{path: p}]\n", "a.yaml": manifest("a"), "p": "data: &a {k: *sealed!a}\n"}, nil, "refused YAML", true},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := rendered(t.Context(), tc.files, Build{Decrypter: &caesar{err: tc.err}})
			if err == nil || !errors.Is(err, tc.err) && tc.err != nil || !strings.Contains(err.Error(), tc.has) {
				t.Fatalf("%s\nRender() = %v, want an error with %q", tc.reason, err, tc.has)
			}
			if failed := (*Error)(nil); errors.As(err, &failed) != tc.kept {
				t.Errorf("%s\nRender() = %v, to be kept: %t", tc.reason, err, tc.kept)
			}
		})
	}
}

// TestDecryptedStaysSecret: what was decrypted stands in no error, also where kustomize quotes the patch that has it.
func TestDecryptedStaysSecret(t *testing.T) {
	files := tree{
		"kustomization.yaml": "resources: [a.yaml]\npatches: [{path: p.yaml}]\n",
		"a.yaml":             "apiVersion: example.com/v1\nkind: Thing\nmetadata: {name: a}\nspec:\n  list:\n  - x\n",
		"p.yaml":             "apiVersion: example.com/v1\nkind: Thing\nmetadata: {name: a}\nspec:\n  list:\n    token: sealed!hunter22\n",
	}
	_, err := rendered(t.Context(), files, Build{Decrypter: &caesar{}})
	if err == nil || strings.Contains(err.Error(), "hunter22") || !strings.Contains(err.Error(), "*****") {
		t.Errorf("Render() = %v", err)
	}
}

// TestMeantToStayEncrypted: without the annotation it is refused, whatever is
// configured; with it, it is what somebody wants there.
func TestMeantToStayEncrypted(t *testing.T) {
	secret := "apiVersion: v1\nkind: Secret\nmetadata: {name: s, annotations: {kustomize.toolkit.fluxcd.io/decrypt: %s}}\nsops: {mac: y}\n"
	if _, err := rendered(t.Context(), tree{"s.yaml": fmt.Sprintf(secret, "enabled")}, Build{}); err == nil {
		t.Error("an encrypted Secret is applied")
	}
	r, err := rendered(t.Context(), tree{"s.yaml": fmt.Sprintf(secret, "Disabled")}, Build{})
	if err != nil || len(r.Objects) != 1 {
		t.Errorf("a Secret that is to stay encrypted is refused: %v", err)
	}
}
