package origins

import (
	"bytes"
	"net/http"
	"testing"
)

// answer asks with headers and returns the status.
func answer(t *testing.T, url string, header http.Header, login Login) int {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	for key, values := range header {
		request.Header[key] = values
	}
	if login != (Login{}) {
		request.SetBasicAuth(login.Username, login.Password)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	if err := response.Body.Close(); err != nil {
		t.Fatal(err)
	}
	if tag := response.Header.Get("ETag"); tag != "" && header != nil {
		header.Set("If-None-Match", tag)
	}
	return response.StatusCode
}

func TestCharts(t *testing.T) {
	login := Login{Username: "somebody", Password: "secret"}
	c := StartCharts(login)
	defer c.Close()
	c.Add(Chart{Name: "app", Version: "1.0.0"})
	header := http.Header{}
	for _, step := range []struct {
		reason, path string
		login        Login
		want         int
	}{
		{"nobody is let in without the login", "/index.yaml", Login{}, http.StatusUnauthorized},
		{"nor with another", "/index.yaml", Login{Username: "somebody", Password: "wrong"}, http.StatusUnauthorized},
		{"the index is there", "/index.yaml", login, http.StatusOK},
		{"and is not sent again as long as it is the same", "/index.yaml", login, http.StatusNotModified},
		{"the archive is there", "/app-1.0.0.tgz", login, http.StatusOK},
		{"no other is", "/app-2.0.0.tgz", login, http.StatusNotFound},
	} {
		if got := answer(t, c.URL()+step.path, header, step.login); got != step.want {
			t.Errorf("%s: %d, want %d", step.reason, got, step.want)
		}
	}
	c.Add(Chart{Name: "app", Version: "2.0.0"})
	if got := answer(t, c.URL()+"/index.yaml", header, login); got != http.StatusOK {
		t.Errorf("another index is answered with %d", got)
	}
	if got := c.Count(http.MethodGet, "/index.yaml", http.StatusOK); got != 2 {
		t.Errorf("%d downloads of the index are counted, want 2", got)
	}
	if first := c.Requests()[0]; first.Authorization != "" || c.Requests()[2].Username != "somebody" {
		t.Errorf("requests are %+v", c.Requests())
	}
	c.Fault(http.NotFoundHandler())
	if got := answer(t, c.URL()+"/index.yaml", nil, login); got != http.StatusNotFound {
		t.Errorf("a fault is answered with %d", got)
	}
}

func TestPack(t *testing.T) {
	chart := Chart{Name: "app", Version: "1.0.0", Files: map[string]string{"values.yaml": "a: b\n", "templates/a.yaml": "a: b\n", "templates/b.yaml": "a: b\n"}}
	if !bytes.Equal(chart.Pack(), chart.Pack()) {
		t.Error("the same chart packs to other bytes")
	}
	if _, ok := chart.Files["Chart.yaml"]; ok {
		t.Error("to pack a chart changes it")
	}
}

func TestRegistry(t *testing.T) {
	r := StartRegistry(Login{Username: "somebody", Password: "secret"})
	defer r.Close()
	digest, err := r.PushFiles("repo", "v1", map[string]string{"a": "b"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	again, err := r.PushFiles("repo", "v2", map[string]string{"a": "b"}, nil)
	if err != nil || again != digest {
		t.Errorf("the same files are %s, then %s: %v", digest, again, err)
	}
	if got := answer(t, "http://"+r.Address()+"/v2/repo/manifests/v1", nil, Login{}); got != http.StatusUnauthorized {
		t.Errorf("without the login the answer is %d", got)
	}
	if got := answer(t, "http://"+r.Address()+"/v2/repo/manifests/v1", nil, r.login); got != http.StatusOK {
		t.Errorf("with the login the answer is %d", got)
	}
}

func TestBuckets(t *testing.T) {
	b := StartBuckets("key")
	defer b.Close()
	if err := b.Put("bucket", map[string]string{"dir/a": "b", "dir/b": "c"}); err != nil {
		t.Fatal(err)
	}
	if err := b.Put("bucket", map[string]string{"dir/b": ""}); err != nil {
		t.Fatal(err)
	}
	signed := http.Header{"Authorization": {"AWS4-HMAC-SHA256 Credential=key/20260101/us-east-1/s3/aws4_request"}}
	for _, step := range []struct {
		reason, path string
		header       http.Header
		want         int
	}{
		{"nobody is let in without the key", "/bucket/dir/a", nil, http.StatusForbidden},
		{"the object is there", "/bucket/dir/a", signed, http.StatusOK},
		{"what was removed is not", "/bucket/dir/b", signed, http.StatusNotFound},
	} {
		if got := answer(t, "http://"+b.Address()+step.path, step.header, Login{}); got != step.want {
			t.Errorf("%s: %d, want %d", step.reason, got, step.want)
		}
	}
}
