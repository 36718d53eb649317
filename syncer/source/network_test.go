package source

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"
)

// TestOwnTransports: where Go's default transport is denied to what has no leave,
// as it is in a program that renders, every kind of source is still read.
func TestOwnTransports(t *testing.T) {
	key, public := pair(t)
	images := newDocker(t, httptest.NewServer)
	img := image(t, nil, fluxLayer(t, map[string]string{"a": "1"}))
	digest := images.push("latest", img)
	images.signOld(digest, digest, key)
	objects := newShelf(t, httptest.NewServer)
	objects.put(map[string]string{"a": "1"})
	google := newGoogle(t)
	google.files["a"] = "1"
	azure := newAzure(t, func(r *http.Request) bool { return r.Header.Get("Authorization") == "Bearer good" })
	azure.files["a"] = "1"

	before := http.DefaultTransport
	defer func() { http.DefaultTransport = before }()
	http.DefaultTransport = &http.Transport{DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
		if !NetworkAllowed(ctx) {
			return nil, errors.New("denied")
		}
		return (&net.Dialer{}).DialContext(ctx, network, address)
	}}
	i, b := NewImages(t.TempDir(), plenty, time.Now), NewBuckets(t.TempDir(), plenty)
	pullImage(t, i, images.origin(), ImageReference{}, ImageOptions{}, nil)
	if ok, err := i.Verify(t.Context(), images.origin(), Image{Digest: digest}, ImageVerification{Provider: "cosign", Secret: map[string][]byte{"a.pub": public}}); !ok || err != nil {
		t.Errorf("Verify() = %t, %v", ok, err)
	}
	for name, o := range map[string]BucketOrigin{
		"S3":    objects.origin(),
		"GCS":   {Provider: "gcp", Bucket: "fleet", Proxy: google.proxy, Certificates: google.ca, Secret: map[string][]byte{"serviceaccount": serviceAccount(t)}},
		"Azure": {Provider: "azure", Endpoint: "https://" + azureAccount, Bucket: "fleet", Proxy: azure.proxy, Certificates: azure.ca, Secret: map[string][]byte{"tenantId": []byte("tenant"), "clientId": []byte("client"), "clientSecret": []byte("s3cret")}},
	} {
		if s := pullBucket(t, b, o, nil, nil); read(t, s, "a") != "1" {
			t.Errorf("%s: a file has other content", name)
		}
	}
}
