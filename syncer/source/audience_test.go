package source

import (
	"context"
	"net/url"
	"testing"
	"time"
)

// TestAudiences: the identity of a cloud goes to hosts of that cloud that nobody else
// can have.
func TestAudiences(t *testing.T) {
	for name, tt := range map[string]struct {
		to              audience
		passes, refuses []string
	}{
		"AzureDevOps": {azureDevOps, []string{"dev.azure.com", "DEV.azure.com:443", "org.visualstudio.com"},
			[]string{"azure.com", "dev.azure.com.example.com", "a.b.visualstudio.com", "visualstudio.com", "evil-dev.azure.com", "app.azurewebsites.net"}},
		"CodeCommit": {codeCommit, []string{"git-codecommit.eu-west-1.amazonaws.com", "git-codecommit-fips.us-east-1.amazonaws.com", "git-codecommit.cn-north-1.amazonaws.com.cn", "vpce-1-a.git-codecommit.us-east-1.vpce.amazonaws.com"},
			[]string{"ec2-1-2-3-4.compute.amazonaws.com", "git-codecommit.s3-website.eu-west-1.amazonaws.com", "git-codecommit.x.amazonaws.com.example.com"}},
		"AzureStorage": {azureStorage, []string{"fleet.blob.core.windows.net", "fleet.z12.blob.storage.azure.net", "fleet.privatelink.blob.core.windows.net", "fleet.blob.core.chinacloudapi.cn", "fleet-secondary.blob.core.usgovcloudapi.net"},
			[]string{"fleet.web.core.windows.net", "blob.core.windows.net.example.com", "blob.core.windows.net", "127.0.0.1:10000", "fleet.blob.core.windows.net.example.com"}},
		"Entra": {azureEntra, []string{"login.microsoftonline.com", "login.microsoftonline.us"}, []string{"login.example.com", "x.login.microsoftonline.com"}},
		"S3": {amazonS3, []string{"s3.amazonaws.com", "s3.eu-west-1.amazonaws.com", "s3-fips.us-gov-west-1.amazonaws.com", "s3.dualstack.eu-west-1.amazonaws.com", "bucket.vpce-1.s3.us-east-1.vpce.amazonaws.com", "s3.eu-west-1.api.aws"},
			[]string{"minio.example.com:9000", "ec2-1-2-3-4.eu-west-1.compute.amazonaws.com", "s3.amazonaws.com.example.com", "127.0.0.1:9000"}},
	} {
		for _, host := range tt.passes {
			if err := tt.to.check(host, true); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			if err := tt.to.check(host, false); ReasonOf(err) != ReasonCredentialRefused {
				t.Errorf("%s: %s without TLS: %v", name, host, err)
			}
		}
		for _, host := range tt.refuses {
			if err := tt.to.check(host, true); ReasonOf(err) != ReasonCredentialRefused {
				t.Errorf("%s: %s: %v", name, host, err)
			}
		}
	}
}

// TestIdentityOfBuckets: what the agent, its node or a service account is goes to no
// host that an object names by itself.
func TestIdentityOfBuckets(t *testing.T) {
	text := func(kv ...string) map[string][]byte {
		m := map[string][]byte{}
		for i := 0; i < len(kv); i += 2 {
			m[kv[i]] = []byte(kv[i+1])
		}
		return m
	}
	const account = "https://fleet.blob.core.windows.net"
	for name, o := range map[string]BucketOrigin{
		"Azure":     {Provider: "azure", Endpoint: "https://blobs.example.com"},
		"Plain":     {Provider: "azure", Endpoint: "http://fleet.blob.core.windows.net"},
		"Node":      {Provider: "azure", Endpoint: "https://blobs.example.com", Secret: text("clientId", "x")},
		"Authority": {Provider: "azure", Endpoint: account, Secret: text("authorityHost", "https://login.example.com")},
		"S3":        {Provider: "aws", Endpoint: "minio.example.com"},
	} {
		o.Bucket = "fleet"
		if _, err := NewBuckets(t.TempDir(), plenty).Fetch(t.Context(), o, nil, nil); ReasonOf(err) != ReasonCredentialRefused {
			t.Errorf("%s: Fetch() = %v, want reason %s", name, err, ReasonCredentialRefused)
		}
	}
	for name, secret := range map[string]map[string][]byte{
		"Secret": text("tenantId", "t", "clientId", "c", "clientSecret", "s"), "Key": text("accountKey", "eA=="), "SAS": text("sasKey", "?sig=x"),
	} {
		if (BucketOrigin{Secret: secret}).azureAmbient() {
			t.Errorf("%s: the credential of a Secret is taken for the agent's", name)
		}
	}
}

// TestIdentityOnItsWay: what the agent or its node is goes to no server that may be somebody else's, although it has the name of the
// cloud's.
func TestIdentityOnItsWay(t *testing.T) {
	// Nothing is asked: whoever comes so far fails for another reason.
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	logins, err := NewLogins(10, time.Hour, time.Now)
	if err != nil {
		t.Fatal(err)
	}
	registry := func(provider, at, account string) func(Way) error {
		return func(w Way) error {
			_, err := logins.Registry(ctx, provider, at, account, w, nil, Key{})
			return err
		}
	}
	git := func(provider, at, account string) func(Way) error {
		return func(w Way) error {
			_, err := logins.Cloud(ctx, provider, at, account, w, nil, Key{})
			return err
		}
	}
	bucket := func(o BucketOrigin) func(Way) error {
		return func(w Way) error {
			o := o
			o.Bucket, o.Proxy, o.Insecure, o.Certificates = "fleet", w.Proxy, w.Insecure, w.Certificates
			if o.Workload == nil {
				o.Workload = &Workload{Logins: logins}
			}
			_, err := NewBuckets(t.TempDir(), plenty).Fetch(ctx, o, nil, nil)
			return err
		}
	}
	const account = "https://fleet.blob.core.windows.net"
	secret := func(key string) map[string][]byte { return map[string][]byte{key: []byte("x")} }
	ca := newCloud(t, "login.example.com").ca
	proxy := &url.URL{Scheme: "http", Host: "127.0.0.1:1"}
	all := map[string]Way{
		"CA": {Certificates: ca}, "FormerCA": {Certificates: map[string][]byte{"caFile": ca["ca.crt"]}}, "Insecure": {Insecure: true},
		"Proxy": {Proxy: proxy, Certificates: ca},
	}
	for name, tt := range map[string]struct {
		reason string
		use    func(Way) error
	}{
		"RegistryAWS":   {"an image at Amazon", registry("aws", "oci://123456789012.dkr.ecr.eu-west-1.amazonaws.com/app", "")},
		"RegistryAzure": {"an image at Azure", registry("azure", "oci://fleet.azurecr.io/app", "")},
		"RegistryGCP":   {"an image at Google", registry("gcp", "oci://gcr.io/fleet/app", "")},
		"GitAzure":      {"a repository at Azure", git("azure", "https://dev.azure.com/org/project/_git/repo", "")},
		"GitAWS":        {"a repository at Amazon", git("aws", "https://git-codecommit.eu-west-1.amazonaws.com/v1/repos/x", "")},
		"BucketGCP":     {"a bucket at Google", bucket(BucketOrigin{Provider: "gcp"})},
		"BucketAWS":     {"a bucket at Amazon", bucket(BucketOrigin{Provider: "aws", Endpoint: "s3.eu-west-1.amazonaws.com"})},
		"BucketAzure":   {"a bucket at Azure", bucket(BucketOrigin{Provider: "azure", Endpoint: account})},
		"BucketHost":    {"the same with another place to log in", bucket(BucketOrigin{Provider: "azure", Endpoint: account, Secret: map[string][]byte{"authorityHost": []byte("https://login.microsoftonline.com")}})},
		"BucketNode": {"an identity of the node that a Secret names, whatever the service account is",
			bucket(BucketOrigin{Provider: "azure", Endpoint: account, Secret: secret("clientId"), Workload: &Workload{Logins: logins, ServiceAccount: "own"}})},
	} {
		for field, way := range all {
			t.Run(name+"/"+field, func(t *testing.T) {
				if err := tt.use(way); ReasonOf(err) != ReasonCredentialRefused {
					t.Errorf("%s: %v; want reason %s", tt.reason, err, ReasonCredentialRefused)
				}
			})
		}
		t.Run(name+"/Plain", func(t *testing.T) {
			for _, way := range []Way{{}, {Proxy: proxy}, {Certificates: secret("x")}} {
				if err := tt.use(way); err == nil || ReasonOf(err) == ReasonCredentialRefused {
					t.Errorf("%s: with %+v: %v; nothing of it lets anybody pass for the cloud", tt.reason, way, err)
				}
			}
		})
	}
	for field, way := range all {
		if err := way.forIdentity("own"); err != nil {
			t.Errorf("%s with a service account of the object: %v", field, err)
		}
	}
}
