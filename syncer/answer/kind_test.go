package answer

import (
	"net/http"
	"net/http/httptest"
	"testing"
)

func TestClassify(t *testing.T) {
	for path, want := range map[string]kind{
		"/version": probe, "/readyz": probe, "/": probe,
		"/openapi/v2": openAPI, "/openapi/v3/apis/apps/v1": openAPI,
		"/api": discovery, "/apis": discovery, "/api/v1": discovery, "/apis/apps": discovery, "/apis/apps/v1": discovery,
		"/api/v1/namespaces": list, "/api/v1/namespaces/a": object, "/api/v1/namespaces/a/secrets": list,
		"/api/v1/namespaces/a/secrets/b": object, "/apis/apps/v1/deployments": list, "/apis/apps/v1/namespaces/a/deployments/b/scale": object,
		"/api/v1/nodes/a": object, "/api/v1/namespaces/a/pods/b/log": text, "/api/v1/namespaces/a/services/https:b:1/proxy/metrics": proxied, "/api/v1/namespaces/a/pods/b:1/proxy/metrics": proxied, "/api/v1/namespaces/a/pods/b": object, "/api/v1/secrets?watch=true": watch, "/api/v1/watch/secrets": watch,
	} {
		for _, prefix := range []string{"", "/k8s/clusters/c", "/k8s/clusters/c/"} {
			at := path
			if prefix != "" {
				at = "/k8s/clusters/c" + path
			}
			if got := classify(httptest.NewRequest(http.MethodGet, at, nil), prefix); got != want {
				t.Errorf("%s below %q is %d, want %d", path, prefix, got, want)
			}
		}
	}
	if got := classify(httptest.NewRequest(http.MethodPost, "/api/v1/namespaces/a/secrets", nil), ""); got != object {
		t.Errorf("what is created is %d", got)
	}
	if got := classify(httptest.NewRequest(http.MethodDelete, "/api/v1/namespaces/a/secrets", nil), ""); got != list {
		t.Errorf("what is deleted together is %d", got)
	}
}
