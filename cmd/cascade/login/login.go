package login

import (
	"cmp"
	"fmt"
	"maps"
	"net"
	"net/url"
	"strings"
	"time"

	"github.com/fluxcd/pkg/ssh"
	"github.com/fluxcd/pkg/ssh/knownhosts"
	"github.com/go-git/go-git/v5/plumbing/transport"
	"github.com/go-git/go-git/v5/plumbing/transport/http"
	gitssh "github.com/go-git/go-git/v5/plumbing/transport/ssh"
	gossh "golang.org/x/crypto/ssh"
)

// Keys of the Secret, which are Flux's.
const (
	usernameKey   = "username"
	passwordKey   = "password"
	bearerKey     = "bearerToken"
	caKey         = "ca.crt"
	oldCAKey      = "caFile"
	identityKey   = "identity"
	publicKey     = "identity.pub"
	knownHostsKey = "known_hosts"
)

// Given is what a person says of a login.
type Given struct {
	Username, Password string
	CA                 []byte
	// PrivateKey and Passphrase are for SSH. Without a key that of the cluster is used, or one is made.
	PrivateKey []byte
	Passphrase string
	KnownHosts []byte
}

// Login is how to reach a repository.
type Login struct {
	// Data of the Secret; empty: the repository asks for no login.
	Data map[string][]byte
	// Made is the public half of a key that was made, for a person to add as a deploy key.
	Made string
	// Pinned is the fingerprint of a server's key that was read now and is kept from now on.
	Pinned string

	url *url.URL
}

// Parse checks the URL of a repository.
func Parse(address string) (*url.URL, error) {
	u, err := url.Parse(address)
	if err != nil || u.Host == "" {
		if user, rest, ok := strings.Cut(address, "@"); ok && strings.Contains(rest, ":") && !strings.Contains(user, "/") {
			return nil, fmt.Errorf("cannot use a URL as git@host:path; write it as ssh://%s@%s", user, strings.Replace(rest, ":", "/", 1))
		}
		return nil, fmt.Errorf("cannot use the URL of the repository: it must be https://host/path or ssh://user@host/path")
	}
	if _, has := u.User.Password(); has || u.Scheme != "ssh" && u.User != nil {
		return nil, fmt.Errorf("cannot use a URL with a login, which would be in the repository for all to read; use --username and GIT_PASSWORD")
	}
	switch u.Scheme {
	case "https", "http", "ssh":
		return u, nil
	}
	return nil, fmt.Errorf("cannot use a URL that begins with %s: it must be https://host/path or ssh://user@host/path", u.Scheme)
}

// Scan reads the key of an SSH server.
type Scan func(host string) ([]byte, error)

// scanTimeout bounds the connection to a server whose key is read.
const scanTimeout = 30 * time.Second

// ScanHost reads the key that an SSH server shows.
func ScanHost(host string) ([]byte, error) { return ssh.ScanHostKey(host, scanTimeout, nil, false) }

// New decides on the login for a repository by what a person says and by what the Secret of
// the cluster has, which may be nothing.
func New(address string, given Given, has map[string][]byte, scan Scan) (*Login, error) {
	u, err := Parse(address)
	if err != nil {
		return nil, err
	}
	l := &Login{url: u, Data: map[string][]byte{}}
	if u.Scheme == "ssh" {
		return l, l.ssh(given, has, scan)
	}
	return l, l.http(given, has)
}

func (l *Login) http(given Given, has map[string][]byte) error {
	if given.PrivateKey != nil || given.KnownHosts != nil {
		return fmt.Errorf("cannot use a key of SSH for %s: the URL must begin with ssh://", l.url.Redacted())
	}
	if given.Username == "" && given.Password == "" {
		for _, key := range []string{usernameKey, passwordKey, bearerKey} {
			if has[key] != nil {
				l.Data[key] = has[key]
			}
		}
	} else {
		if given.Password == "" {
			return fmt.Errorf("cannot log in as %s without a password: set GIT_PASSWORD, or use --password-stdin", given.Username)
		}
		// Servers that take tokens do not look at the name, but it must not be empty.
		l.Data[usernameKey], l.Data[passwordKey] = []byte(cmp.Or(given.Username, "git")), []byte(given.Password)
	}
	if ca := firstOf(given.CA, has[caKey], has[oldCAKey]); ca != nil {
		l.Data[caKey] = ca
	}
	if l.url.Scheme == "http" && l.Data[passwordKey] != nil {
		return fmt.Errorf("cannot send a password to %s in the clear: use https:// or ssh://", l.url.Host)
	}
	return nil
}

func (l *Login) ssh(given Given, has map[string][]byte, scan Scan) error {
	if given.CA != nil || given.Username != "" {
		return fmt.Errorf("cannot use --username or --ca-file for %s: the name is in the URL, and servers are known by --known-hosts-file", l.url.Redacted())
	}
	var err error
	switch {
	case given.PrivateKey != nil:
		l.Data[identityKey] = given.PrivateKey
		if given.Passphrase != "" {
			l.Data[passwordKey] = []byte(given.Passphrase)
		}
	case has[identityKey] != nil:
		l.Data[identityKey] = has[identityKey]
		if has[passwordKey] != nil {
			l.Data[passwordKey] = has[passwordKey]
		}
	default:
		pair, err := ssh.NewEd25519Generator().Generate()
		if err != nil {
			return fmt.Errorf("cannot make a key: %w", err)
		}
		l.Data[identityKey], l.Made = pair.PrivateKey, strings.TrimSpace(string(pair.PublicKey))
	}
	signer, err := l.signer()
	if err != nil {
		return err
	}
	l.Data[publicKey] = gossh.MarshalAuthorizedKey(signer.PublicKey())
	known := firstOf(given.KnownHosts, has[knownHostsKey])
	if known == nil {
		if known, err = scan(l.host()); err != nil {
			return fmt.Errorf("cannot read the key of the server %s: %w; check the URL, or say --known-hosts-file", l.host(), err)
		}
		if l.Pinned, err = fingerprint(known); err != nil {
			return err
		}
	}
	if _, _, err := knownhosts.New(known); err != nil {
		return fmt.Errorf("cannot read the keys of known servers: %w", err)
	}
	l.Data[knownHostsKey] = known
	return nil
}

func (l *Login) host() string {
	return net.JoinHostPort(l.url.Hostname(), cmp.Or(l.url.Port(), "22"))
}

func (l *Login) signer() (gossh.Signer, error) {
	var signer gossh.Signer
	var err error
	if phrase := l.Data[passwordKey]; len(phrase) > 0 {
		signer, err = gossh.ParsePrivateKeyWithPassphrase(l.Data[identityKey], phrase)
	} else {
		signer, err = gossh.ParsePrivateKey(l.Data[identityKey])
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read the private key: %w; a key that is encrypted needs GIT_KEY_PASSPHRASE", err)
	}
	return signer, nil
}

func fingerprint(line []byte) (string, error) {
	_, _, key, _, _, err := gossh.ParseKnownHosts(line)
	if err != nil {
		return "", fmt.Errorf("cannot read the key of the server: %w", err)
	}
	return key.Type() + " " + gossh.FingerprintSHA256(key), nil
}

func firstOf(texts ...[]byte) []byte {
	for _, text := range texts {
		if len(text) > 0 {
			return text
		}
	}
	return nil
}

// Public is the public half of the key, for a person to add to the repository.
func (l *Login) Public() string { return strings.TrimSpace(string(l.Data[publicKey])) }

// For reports whether a Secret has a login for a URL of this kind: a key, or none that stands
// alone, whose phrase is no password.
func For(address string, data map[string][]byte) bool {
	if strings.HasPrefix(address, "ssh://") {
		return data[identityKey] != nil
	}
	return data[identityKey] == nil || data[usernameKey] != nil
}

// Elsewhere is what of a Secret may be used at another server than the one that it is for: a
// key, of which a server learns the public half only. A password would be given away.
func Elsewhere(address string, data map[string][]byte) map[string][]byte {
	kept := map[string][]byte{}
	if u, err := url.Parse(address); err != nil || u.Scheme != "ssh" || data[identityKey] == nil {
		return kept
	}
	for _, key := range []string{identityKey, passwordKey} {
		if data[key] != nil {
			kept[key] = data[key]
		}
	}
	return kept
}

// Replaced is a Secret with another login for the same server: what else it has stays, as the
// certificates and host keys of the server.
func Replaced(has, with map[string][]byte) map[string][]byte {
	data := maps.Clone(has)
	for _, key := range []string{usernameKey, passwordKey, bearerKey, identityKey, publicKey} {
		delete(data, key)
	}
	maps.Copy(data, with)
	return data
}

// SameServer reports whether a login for one URL is one for another.
func SameServer(a, b string) bool {
	one, err := url.Parse(a)
	other, err2 := url.Parse(b)
	return err == nil && err2 == nil && one.Scheme == other.Scheme && one.Host == other.Host
}

// InUse is the login of a Secret as it is, for a repository that is synced with it already.
func InUse(address string, data map[string][]byte) (*Login, error) {
	u, err := url.Parse(address)
	if err != nil || u.Host == "" {
		return nil, fmt.Errorf("cannot parse the URL of the repository")
	}
	l := &Login{url: u, Data: maps.Clone(data)}
	if u.Scheme == "ssh" && (data[identityKey] == nil || data[knownHostsKey] == nil) {
		return nil, fmt.Errorf("cannot log in to %s: the Secret lacks %s or %s; use --private-key-file and --known-hosts-file", u.Redacted(), identityKey, knownHostsKey)
	}
	return l, nil
}

// Auth is the login as go-git takes it, with the authorities that vouch for the server; both
// are nil for what is public.
func (l *Login) Auth() (transport.AuthMethod, []byte, error) {
	if l.url.Scheme != "ssh" {
		ca := firstOf(l.Data[caKey], l.Data[oldCAKey])
		switch {
		case l.Data[bearerKey] != nil:
			return &http.TokenAuth{Token: string(l.Data[bearerKey])}, ca, nil
		case l.Data[passwordKey] != nil || l.url.User != nil:
			// Flux, too, takes from the URL what the Secret has not.
			password, _ := l.url.User.Password()
			return &http.BasicAuth{
				Username: cmp.Or(string(l.Data[usernameKey]), l.url.User.Username()), Password: cmp.Or(string(l.Data[passwordKey]), password),
			}, ca, nil
		}
		return nil, ca, nil
	}
	signer, err := l.signer()
	if err != nil {
		return nil, nil, err
	}
	callback, algorithms, err := knownhosts.New(l.Data[knownHostsKey])
	if err != nil {
		return nil, nil, fmt.Errorf("cannot read the keys of known servers: %w", err)
	}
	return &key{
		PublicKeys: gitssh.PublicKeys{User: cmp.Or(l.url.User.Username(), "git"), Signer: signer}, callback: callback, algorithms: algorithms,
	}, nil, nil
}

// key logs in by a key, at servers that are known.
type key struct {
	gitssh.PublicKeys
	callback   gossh.HostKeyCallback
	algorithms []string
}

// ClientConfig implements gitssh.AuthMethod.
func (k *key) ClientConfig() (*gossh.ClientConfig, error) {
	k.HostKeyCallback = k.callback
	config, err := k.PublicKeys.ClientConfig()
	if err != nil {
		return nil, err
	}
	for _, algorithm := range k.algorithms {
		if algorithm == gossh.KeyAlgoRSA { // the name of a key, and of a signature that is broken
			config.HostKeyAlgorithms = append(config.HostKeyAlgorithms, gossh.KeyAlgoRSASHA512, gossh.KeyAlgoRSASHA256)
			continue
		}
		config.HostKeyAlgorithms = append(config.HostKeyAlgorithms, algorithm)
	}
	return config, nil
}
