package source

import "testing"

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
