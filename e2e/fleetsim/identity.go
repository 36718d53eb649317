package fleetsim

import (
	"crypto/hmac"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	authenticatedGroup = "system:authenticated"
	mastersGroup       = "system:masters"
	adminName          = "kubernetes-admin"
	issuer             = "https://kubernetes.default.svc.cluster.local"
)

// user is who made a request.
type user struct {
	name   string
	uid    string
	groups []string
}

func (u *user) master() bool { return slices.Contains(u.groups, mastersGroup) }

var anonymous = &user{name: "system:anonymous", groups: []string{"system:unauthenticated"}}

func admin() *user {
	return &user{name: adminName, groups: []string{mastersGroup, authenticatedGroup}}
}

// claims of a token, in the form of those of Kubernetes.
type claims struct {
	Audience []string `json:"aud"`
	Expires  int64    `json:"exp"`
	IssuedAt int64    `json:"iat"`
	Issuer   string   `json:"iss"`
	ID       string   `json:"jti"`
	Subject  string   `json:"sub"`
	// Cluster says whose token it is; it is only here.
	Cluster    string             `json:"cluster"`
	Epoch      int                `json:"epoch"`
	Kubernetes *kubernetesSubject `json:"kubernetes.io,omitempty"`
	// Administrator is the number of an administrator's credential, counted from
	// one.
	Administrator int `json:"administrator,omitempty"`
}

type kubernetesSubject struct {
	Namespace      string  `json:"namespace"`
	ServiceAccount subject `json:"serviceaccount"`
}

type subject struct {
	Name string `json:"name"`
	UID  string `json:"uid"`
}

const tokenHeader = `{"alg":"HS256","kid":"fleetsim"}`

func (f *Fleet) sign(c claims) string {
	body, _ := json.Marshal(c) // strings and numbers
	e := base64.RawURLEncoding
	text := e.EncodeToString([]byte(tokenHeader)) + "." + e.EncodeToString(body)
	mac := hmac.New(sha256.New, f.secret)
	mac.Write([]byte(text))
	return text + "." + e.EncodeToString(mac.Sum(nil))
}

// verify returns the claims of a token that this fleet issued.
func (f *Fleet) verify(token string) (claims, bool) {
	var c claims
	end := strings.LastIndexByte(token, '.')
	if end < 0 {
		return c, false
	}
	e := base64.RawURLEncoding
	signature, err := e.DecodeString(token[end+1:])
	mac := hmac.New(sha256.New, f.secret)
	mac.Write([]byte(token[:end]))
	if err != nil || !hmac.Equal(signature, mac.Sum(nil)) {
		return c, false
	}
	_, body, _ := strings.Cut(token[:end], ".")
	text, err := e.DecodeString(body)
	if err != nil || json.Unmarshal(text, &c) != nil {
		return c, false
	}
	return c, true
}

// identity of the cluster in credentials: those of an earlier one of the same
// name do not count.
func (c *Cluster) identity() string { return fmt.Sprintf("%s/%d", c.Name, c.incarnation) }

// authenticate says who makes a request; nil is nobody whom the cluster knows.
// The cluster is locked.
func (c *Cluster) authenticate(r *http.Request) *user {
	if r.TLS != nil && len(r.TLS.PeerCertificates) > 0 {
		connection, _ := r.Context().Value(connKey{}).(*conn)
		if u := c.byCertificate(r.TLS.PeerCertificates[0], connection); u != nil {
			return u
		}
		if r.Header.Get("Authorization") == "" {
			return nil
		}
	}
	header := r.Header.Get("Authorization")
	if header == "" {
		return anonymous
	}
	token, ok := strings.CutPrefix(header, "Bearer ")
	if !ok {
		return nil
	}
	claims, ok := c.fleet.verify(token)
	now := c.now()
	switch {
	case !ok, claims.Cluster != c.identity(), c.lapsed(claims.IssuedAt), now.Unix() >= claims.Expires:
		return nil
	case claims.Administrator > 0:
		if claims.Administrator-1 < c.revoked.credential {
			return nil
		}
		return admin()
	case claims.Epoch < c.revoked.epoch || claims.Kubernetes == nil:
		return nil
	}
	k := claims.Kubernetes
	account := c.objects[builtin("ServiceAccount").key(k.Namespace, k.ServiceAccount.Name)]
	if account == nil || account.uid.String() != k.ServiceAccount.UID {
		return nil
	}
	return &user{
		name: "system:serviceaccount:" + k.Namespace + ":" + k.ServiceAccount.Name, uid: k.ServiceAccount.UID,
		groups: []string{"system:serviceaccounts", "system:serviceaccounts:" + k.Namespace, authenticatedGroup},
	}
}

func (c *Cluster) lapsed(issued int64) bool {
	life := c.currentFaults().Lapse
	return life > 0 && c.now().Sub(time.Unix(issued, 0)) >= life
}

// byCertificate accepts what Kubeconfig issued. A signature is checked once for
// each connection.
func (c *Cluster) byCertificate(cert *x509.Certificate, connection *conn) *user {
	now := c.now()
	if connection == nil || connection.signed.Load() != cert {
		if cert.CheckSignatureFrom(c.fleet.ca.cert) != nil {
			return nil
		}
		if connection != nil {
			connection.signed.Store(cert)
		}
	}
	if now.After(cert.NotAfter) || c.lapsed(cert.NotBefore.Add(certificateSlack).Unix()) {
		return nil
	}
	var identity string
	credential := -1
	for _, unit := range cert.Subject.OrganizationalUnit {
		name, number, _ := strings.Cut(unit, "#")
		if _, err := fmt.Sscanf(number, "%d", &credential); err == nil {
			identity = name
		}
	}
	if identity != c.identity() || credential < c.revoked.credential {
		return nil
	}
	return &user{name: cert.Subject.CommonName, groups: append(slices.Clone(cert.Subject.Organization), authenticatedGroup)}
}

// administratorToken is a token of the administrator. The cluster is locked.
func (c *Cluster) administratorToken(life time.Duration) string {
	now := c.now()
	return c.fleet.sign(claims{
		Issuer: issuer, Subject: adminName, Cluster: c.identity(), IssuedAt: now.Unix(), Expires: now.Add(life).Unix(),
		Administrator: c.credential + 1, ID: fmt.Sprint(c.credential),
	})
}

// Shortest life of a token that one may ask for, and the default, as in
// kube-apiserver.
const (
	minTokenSeconds     = 600
	defaultTokenSeconds = 3600
)

// issue fills in a TokenRequest for an account. The cluster is locked.
func (c *Cluster) issue(account *record, request *authenticationv1.TokenRequest) {
	seconds := int64(defaultTokenSeconds)
	if request.Spec.ExpirationSeconds != nil {
		seconds = *request.Spec.ExpirationSeconds
	}
	request.Spec.ExpirationSeconds = &seconds
	if len(request.Spec.Audiences) == 0 {
		request.Spec.Audiences = []string{issuer}
	}
	now := c.now()
	expires := now.Add(time.Duration(seconds) * time.Second)
	c.writes++
	request.Status = authenticationv1.TokenRequestStatus{
		ExpirationTimestamp: metav1.NewTime(time.Unix(expires.Unix(), 0).UTC()),
		Token: c.fleet.sign(claims{
			Audience: request.Spec.Audiences, Issuer: issuer, Subject: "system:serviceaccount:" + account.namespace + ":" + account.name,
			Cluster: c.identity(), Epoch: c.revoked.epoch, IssuedAt: now.Unix(), Expires: expires.Unix(), ID: fmt.Sprint(c.writes),
			Kubernetes: &kubernetesSubject{Namespace: account.namespace, ServiceAccount: subject{Name: account.name, UID: account.uid.String()}},
		}),
	}
	request.Name, request.Namespace = account.name, account.namespace
	request.CreationTimestamp = metav1.NewTime(time.Unix(now.Unix(), 0).UTC())
}
