package capi

import (
	"crypto/tls"
	"crypto/x509"
	"net"
	"path/filepath"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/cascade-gitops/cascade/e2e/local/manifest"
)

func TestAdapt(t *testing.T) {
	objects, err := manifest.Decode([]byte(`
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: clusters.cluster.x-k8s.io}
spec: {group: cluster.x-k8s.io}
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata: {name: validating-webhook-configuration}
webhooks:
- name: one
  clientConfig: {service: {name: webhook-service, namespace: system, path: /validate-one}}
---
apiVersion: v1
kind: Service
metadata: {name: webhook-service}
`))
	if err != nil {
		t.Fatal(err)
	}
	for _, object := range objects[:2] {
		if err := adapt(object, "https://127.0.0.1:1", "Q0E="); err != nil {
			t.Fatal(err)
		}
	}
	url, _, _ := unstructured.NestedString(objects[0].Object, "spec", "conversion", "webhook", "clientConfig", "url")
	if url != "https://127.0.0.1:1/convert" || objects[0].GetLabels()["cluster.x-k8s.io/v1beta2"] != "v1beta2" {
		t.Errorf("definition: %v", objects[0].Object)
	}
	hooks, _, _ := unstructured.NestedSlice(objects[1].Object, "webhooks")
	client := hooks[0].(map[string]any)["clientConfig"].(map[string]any)
	if client["url"] != "https://127.0.0.1:1/validate-one" || client["caBundle"] != "Q0E=" || client["service"] != nil {
		t.Errorf("webhook: %v", client)
	}
	if objects[1].GetName() != "capi-validating-webhook-configuration" {
		t.Errorf("name: %s", objects[1].GetName())
	}
	if err := adapt(objects[2], "https://127.0.0.1:1", "Q0E="); err == nil {
		t.Error("a Service was adapted")
	}
}

func TestCertificates(t *testing.T) {
	dir := t.TempDir()
	authority, err := writeCertificates(dir, "127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.LoadX509KeyPair(filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key"))
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(authority)
	if _, err := pair.Leaf.Verify(x509.VerifyOptions{Roots: pool, DNSName: net.ParseIP("127.0.0.1").String()}); err != nil {
		t.Error(err)
	}
}
