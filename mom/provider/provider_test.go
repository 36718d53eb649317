package provider

import (
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"io/fs"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

const description = `
program: manager
namespace: one-system
provider: infrastructure-one
labels: {cluster.x-k8s.io/v1beta1: v1beta1}
labelsOf: {twos.example.com: {extra: "1"}}
conversion: CONVERSION
args: ["--webhook-port=${webhookPort}", "--webhook-cert-dir=${certificates}", "--health-addr=${health}"]
env: {RUN: "${run}/x", BIN: "${programs}"}
`

const manifests = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: ones.example.com, annotations: {cert-manager.io/inject-ca-from: a/b, keep: "yes"}}
spec: {group: example.com}
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: twos.example.com}
spec:
  conversion: {strategy: Webhook, webhook: {clientConfig: {service: {name: a, namespace: b, path: /other}}}}
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata: {name: validating-webhook-configuration}
webhooks:
- name: one.example.com
  clientConfig: {service: {name: webhook-service, namespace: system, path: /validate-one}}
  failurePolicy: Fail
`

func files(conversion, text string) fstest.MapFS {
	return fstest.MapFS{
		"one/provider.yaml":  {Data: []byte(strings.Replace(description, "CONVERSION", conversion, 1))},
		"one/manifests.yaml": {Data: []byte(text)},
	}
}

func TestDefinitions(t *testing.T) {
	at := Address{Host: "127.0.0.1", Port: 7, Authority: []byte("CA")}
	for name, tc := range map[string]struct {
		reason     string
		conversion Conversion
		// converted are the definitions that lead to the webhook.
		converted []string
	}{
		"All":      {"Cluster API's own kinds are all converted, which only its overlays say", ConversionAll, []string{"ones.example.com", "twos.example.com"}},
		"Declared": {"a manifest that was built already says it", ConversionDeclared, []string{"twos.example.com"}},
		"None":     {"versions that differ by name only", ConversionNone, nil},
	} {
		t.Run(name, func(t *testing.T) {
			p, err := Read(files(string(tc.conversion), manifests), "one")
			if err != nil {
				t.Fatal(err)
			}
			definitions, err := p.Definitions(at)
			if err != nil {
				t.Fatal(err)
			}
			var converted []string
			for _, u := range definitions {
				url, _, _ := unstructured.NestedString(u.Object, "spec", "conversion", "webhook", "clientConfig", "url")
				bundle, _, _ := unstructured.NestedString(u.Object, "spec", "conversion", "webhook", "clientConfig", "caBundle")
				if url == "https://127.0.0.1:7/convert" && bundle == "Q0E=" {
					converted = append(converted, u.GetName())
				}
				labels := u.GetLabels()
				if (labels["extra"] == "1") != (u.GetName() == "twos.example.com") {
					t.Errorf("labels of %s are %v", u.GetName(), labels)
				}
				if labels["cluster.x-k8s.io/v1beta1"] != "v1beta1" || labels[providerLabel] != "infrastructure-one" {
					t.Errorf("labels of %s are %v", u.GetName(), labels)
				}
				if _, ok := labels[moveLabel]; !ok {
					t.Errorf("labels of %s are %v", u.GetName(), labels)
				}
				if u.GetName() == "ones.example.com" && (len(u.GetAnnotations()) != 1 || u.GetAnnotations()["keep"] != "yes") {
					t.Errorf("annotations are %v", u.GetAnnotations())
				}
			}
			if len(definitions) != 2 || !slices.Equal(converted, tc.converted) {
				t.Errorf("%s: %v are converted, want %v", tc.reason, converted, tc.converted)
			}
			if !p.Webhooks() {
				t.Errorf("%s: it has an admission webhook", tc.reason)
			}
		})
	}
}

func TestAdmission(t *testing.T) {
	p, err := Read(files("None", manifests), "one")
	if err != nil {
		t.Fatal(err)
	}
	configurations, err := p.Admission(Address{Host: "127.0.0.1", Port: 7, Authority: []byte("CA")})
	if err != nil || len(configurations) != 1 {
		t.Fatalf("%v, %v", configurations, err)
	}
	u := configurations[0]
	hooks, _, _ := unstructured.NestedSlice(u.Object, "webhooks")
	hook := hooks[0].(map[string]any)
	config := hook["clientConfig"].(map[string]any)
	if u.GetName() != "one-validating-webhook-configuration" || config["url"] != "https://127.0.0.1:7/validate-one" || config["caBundle"] != "Q0E=" ||
		config["service"] != nil || hook["failurePolicy"] != "Fail" {
		t.Errorf("got %v", u.Object)
	}
	// What was read stays as it is: another start has another port.
	again, err := p.Admission(Address{Host: "127.0.0.1", Port: 8, Authority: []byte("CB")})
	if err != nil {
		t.Fatal(err)
	}
	hooks, _, _ = unstructured.NestedSlice(again[0].Object, "webhooks")
	if url := hooks[0].(map[string]any)["clientConfig"].(map[string]any)["url"]; url != "https://127.0.0.1:8/validate-one" {
		t.Errorf("got %v", url)
	}
}

func TestCommand(t *testing.T) {
	p, err := Read(files("None", manifests), "one")
	if err != nil {
		t.Fatal(err)
	}
	args, env, err := p.Command(Place{Kubeconfig: "/k", WebhookPort: 7, Certificates: "/c", Health: "127.0.0.1:8", Programs: "/p", Run: "/r"})
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{"--webhook-port=7", "--webhook-cert-dir=/c", "--health-addr=127.0.0.1:8"}; !slices.Equal(args, want) {
		t.Errorf("arguments are %q, want %q", args, want)
	}
	if want := []string{"KUBECONFIG=/k", "POD_NAMESPACE=one-system", "POD_NAME=manager", "BIN=/p", "RUN=/r/x"}; !slices.Equal(env, want) {
		t.Errorf("environment is %q, want %q", env, want)
	}
}

func TestReadRefuses(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		files  fstest.MapFS
		want   string
	}{
		"NoDescription": {"nobody says how it is run", fstest.MapFS{"one/a.yaml": {Data: []byte(manifests)}}, "it has no provider.yaml"},
		"Unknown":       {"a field that nobody reads", fstest.MapFS{"one/provider.yaml": {Data: []byte(description + "more: 1\n")}}, "unknown field"},
		"Conversion":    {"a word that is none", files("Some", manifests), `conversion "Some"`},
		"Deployment":    {"there is no node to run its pods", files("None", "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: a}\n"), "neither a definition"},
		"Placeholder":   {"a manager would take it as it is", fstest.MapFS{"one/provider.yaml": {Data: []byte(strings.NewReplacer("${health}", "${home}", "CONVERSION", "None").Replace(description))}}, "${home} is no placeholder"},
		"Open":          {"nor one that does not end", fstest.MapFS{"one/provider.yaml": {Data: []byte(strings.NewReplacer("${health}", "${health", "CONVERSION", "None").Replace(description))}}, "is no placeholder"},
		"NoProgram":     {"nothing would run", fstest.MapFS{"one/provider.yaml": {Data: []byte(strings.NewReplacer("program: manager", "", "CONVERSION", "None").Replace(description))}}, "it has no program"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Read(tc.files, "one")
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%s: got %v, want %q", tc.reason, err, tc.want)
			}
		})
	}
	p, err := Read(files("None", strings.Replace(manifests, "/validate-one", `""`, 1)), "one")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Admission(Address{}); err == nil || !strings.Contains(err.Error(), "cannot find the path of webhook one.example.com") {
		t.Errorf("a webhook without a path: %v", err)
	}
}

func TestNewCertificate(t *testing.T) {
	now := time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)
	c, err := NewCertificate("127.0.0.1", now, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(c.Certificate, c.Key)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(c.Authority)
	if _, err := pair.Leaf.Verify(x509.VerifyOptions{Roots: pool, DNSName: "127.0.0.1", CurrentTime: now}); err != nil {
		t.Error(err)
	}
	if _, err := NewCertificate("example.com", now, rand.Reader); err == nil {
		t.Error("a name has a certificate")
	}
}

// TestProviders: what is run and packed is understood.
func TestProviders(t *testing.T) {
	files := os.DirFS("../providers")
	entries, err := fs.ReadDir(files, ".")
	if err != nil {
		t.Fatal(err)
	}
	if len(entries) == 0 {
		t.Fatal("there are no providers")
	}
	for _, entry := range entries {
		if !entry.IsDir() {
			continue
		}
		text, err := fs.ReadFile(files, entry.Name()+"/"+descriptionFile)
		if err != nil {
			t.Error(err)
			continue
		}
		// The manifests come from their modules when it is packed.
		if _, err := Read(fstest.MapFS{entry.Name() + "/" + descriptionFile: {Data: text}}, entry.Name()); err != nil {
			t.Error(err)
		}
	}
}
