package source

import (
	"net"
	"net/url"
	"regexp"
	"strings"
)

// ReasonCredentialRefused: a credential would go to a host that it is not for.
const ReasonCredentialRefused = "CredentialRefused"

// audience is where the credential of a cloud may go. An object names the host, and
// whoever may write it would otherwise get the identity of the agent, or of a service
// account, by the name of a host of his own.
type audience struct {
	hosts *regexp.Regexp
	names string // for people
}

// Hosts of clouds, in all their partitions. A host that somebody else can get, such as
// a website in a bucket, must not match.
var (
	azureDevOps  = audience{regexp.MustCompile(`^(dev\.azure\.com|[a-z0-9-]+\.visualstudio\.com)$`), "dev.azure.com and <organisation>.visualstudio.com"}
	codeCommit   = audience{regexp.MustCompile(`^(vpce-[a-z0-9-]+\.)?git-codecommit(-fips)?\.[a-z0-9-]+\.(vpce\.)?amazonaws\.(com(\.cn)?|eu)$`), "git-codecommit.<region>.amazonaws.com"}
	azureStorage = audience{regexp.MustCompile(`^[a-z0-9-]+(\.z[0-9]+)?(\.privatelink)?\.blob\.(core\.(windows\.net|chinacloudapi\.cn|usgovcloudapi\.net|cloudapi\.de)|storage\.azure\.net)$`), "<account>.blob.core.windows.net"}
	azureEntra   = audience{regexp.MustCompile(`^login\.(microsoftonline\.(com|us)|partner\.microsoftonline\.cn|chinacloudapi\.cn|microsoft\.com)$`), "login.microsoftonline.com"}
	amazonS3     = audience{regexp.MustCompile(`^([a-z0-9.-]+\.)?s3[a-z0-9.-]*\.(amazonaws\.(com(\.cn)?|eu)|api\.aws|api\.amazonwebservices\.com\.cn|sc2s\.sgov\.gov|c2s\.ic\.gov|cloud\.adc-e\.uk|csp\.hci\.ic\.gov)$`), "s3.<region>.amazonaws.com"}
)

// check refuses a host that is not of the audience, and one without TLS where secure is
// false.
func (a audience) check(host string, secure bool) error {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	host = strings.ToLower(strings.TrimSuffix(host, "."))
	if !a.hosts.MatchString(host) {
		return failf(ReasonCredentialRefused, "cannot use the identity of the cloud for host %q: it is for %s only; use a Secret, or correct the URL", short(host, 100), a.names)
	}
	if !secure {
		return failf(ReasonCredentialRefused, "cannot use the identity of the cloud for host %q without TLS; use https", host)
	}
	return nil
}

func (a audience) checkURL(u *url.URL) error { return a.check(u.Host, u.Scheme == "https") }

// Way is how a server is reached, as the object says that names the server. Its author chose it.
type Way struct {
	// Proxy is asked to connect; nil for none.
	Proxy *url.URL
	// Insecure: the server does not have to prove who it is.
	Insecure bool
	// Certificates is the data of a Secret. Its ca.crt vouches for the server.
	Certificates map[string][]byte
}

// forIdentity refuses a way on which somebody could pass for the cloud, and take the token that is sent: the right name of a
// host proves nothing where the object says who vouches for it. It does so for the identity of the agent, which is everybody's.
// What a service account may read is the business of who may write objects beside it.
func (w Way) forIdentity(serviceAccount string) error {
	switch {
	case serviceAccount != "":
		return nil
	case w.Insecure:
		return failf(ReasonCredentialRefused, "cannot use the identity of the agent with spec.insecure: whoever is on the way could take the token; remove it, or use a Secret or a serviceAccountName of your own")
	case len(first(w.Certificates, "ca.crt", "caFile")) > 0:
		return failf(ReasonCredentialRefused, "cannot use the identity of the agent with a ca.crt: whoever has its key could take the token; remove ca.crt from the Secret, or use a Secret or a serviceAccountName of your own")
	}
	return nil
}

// forRepository refuses a repository that is not at the GitHub whose API gave the token:
// the same host, or that of which the API is a subdomain.
func (a *app) forRepository(repository string) error {
	u, err := url.Parse(repository)
	if err != nil {
		return failf(ReasonURLInvalid, "cannot parse URL")
	}
	host, api := strings.ToLower(u.Hostname()), strings.ToLower(a.api.Hostname())
	if host != api && "api."+host != api {
		return failf(ReasonCredentialRefused, "cannot use the GitHub App of %s for host %q: a token goes to the GitHub that gave it; correct spec.url, or %s of the Secret", api, short(host, 100), appBaseURL)
	}
	if a.api.Scheme == "https" && u.Scheme != "https" {
		return failf(ReasonCredentialRefused, "cannot use the GitHub App for %q without TLS; use https", short(host, 100))
	}
	return nil
}
