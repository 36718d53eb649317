package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"strings"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/cmd/cascade/checkout"
	"github.com/cascade-gitops/cascade/cmd/cascade/login"
)

// loginFlags say how to log in to a repository, and who writes there.
type loginFlags struct {
	username, caFile, keyFile, knownHostsFile string
	passwordStdin                             bool
	author                                    checkout.Author
}

func (l *loginFlags) bind(f *pflag.FlagSet) {
	f.StringVar(&l.username, "username", "", "name for HTTPS; the password, or a token, is in GIT_PASSWORD")
	f.BoolVar(&l.passwordStdin, "password-stdin", false, "read the password from the standard input instead")
	f.StringVar(&l.caFile, "ca-file", "", "authorities of the server for HTTPS, in PEM")
	f.StringVar(&l.keyFile, "private-key-file", "", "private key for SSH; its passphrase is in GIT_KEY_PASSPHRASE; without it, the key in the cluster is used, or one is made")
	f.StringVar(&l.knownHostsFile, "known-hosts-file", "", "keys of the server for SSH; without it, the key is read once, printed and kept")
	f.StringVar(&l.author.Name, "author-name", "Cascade", "author of commits")
	f.StringVar(&l.author.Email, "author-email", "cascade@localhost", "address of the author")
}

// given reads what the flags name.
func (l *loginFlags) given(in io.Reader) (login.Given, error) {
	g := login.Given{Username: l.username, Password: os.Getenv("GIT_PASSWORD"), Passphrase: os.Getenv("GIT_KEY_PASSPHRASE")}
	for _, file := range []struct {
		name string
		into *[]byte
	}{{l.caFile, &g.CA}, {l.keyFile, &g.PrivateKey}, {l.knownHostsFile, &g.KnownHosts}} {
		if file.name == "" {
			continue
		}
		text, err := os.ReadFile(file.name)
		if err != nil {
			return g, fmt.Errorf("cannot read the login: %w", err)
		}
		*file.into = text
	}
	if l.passwordStdin {
		line, err := bufio.NewReader(in).ReadString('\n')
		if err != nil && !errors.Is(err, io.EOF) {
			return g, fmt.Errorf("cannot read the password: %w", err)
		}
		if g.Password = strings.TrimRight(line, "\r\n"); g.Password == "" {
			return g, fmt.Errorf("cannot read the password: the standard input is empty")
		}
	}
	return g, nil
}

// some reports whether a person said anything about the login.
func (l *loginFlags) some() bool {
	return l.username != "" || l.passwordStdin || l.keyFile != "" || os.Getenv("GIT_PASSWORD") != ""
}

// loginSecret reads a login, nil if there is no such Secret.
func loginSecret(ctx context.Context, c client.Client, key client.ObjectKey) (map[string][]byte, error) {
	secret := &corev1.Secret{}
	err := c.Get(ctx, key, secret)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read Secret %s: %w", key, err)
	}
	return secret.Data, nil
}

// keepLogin creates the Secret of the login for a repository, or replaces what is in it.
func keepLogin(ctx context.Context, c client.Client, key client.ObjectKey, url string, data map[string][]byte) error {
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: key.Namespace}}
	if err := c.Create(ctx, namespace); err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("cannot create Namespace %s: %w", key.Namespace, err)
	}
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name, Annotations: map[string]string{urlAnnotation: url}}, Data: data}
	err := c.Create(ctx, secret)
	if apierrors.IsAlreadyExists(err) {
		if err = c.Get(ctx, key, secret); err == nil {
			secret.Data = data
			metav1.SetMetaDataAnnotation(&secret.ObjectMeta, urlAnnotation, url)
			err = c.Update(ctx, secret)
		}
	}
	if err != nil {
		return fmt.Errorf("cannot write Secret %s: %w", key, err)
	}
	return nil
}

// consent asks the person, who may end the command instead.
func (c *cli) consent(ctx context.Context, question string, yes bool) error {
	if yes {
		return nil
	}
	fmt.Fprintf(c.streams.ErrOut, "%s [y/N] ", question)
	type read struct {
		line string
		err  error
	}
	said := make(chan read, 1)
	go func() { // nothing ends a read of the standard input but the process
		line, err := bufio.NewReader(c.streams.In).ReadString('\n')
		said <- read{line, err}
	}()
	select {
	case <-ctx.Done():
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			return errors.New("cannot go on without consent: nobody answered in time")
		}
		return errors.New("interrupted")
	case s := <-said:
		switch answer := strings.ToLower(strings.TrimSpace(s.line)); {
		case answer == "y" || answer == "yes":
			return nil
		case s.err != nil:
			return errors.New("cannot go on without consent: answer y, or say --yes")
		}
		return errors.New("cannot go on: not wanted")
	}
}

// remoteOf is a branch of a repository with a login. Its URL is for people to see: a login that is
// in the address is not in it.
func remoteOf(address, branch string, l *login.Login) (checkout.Remote, error) {
	auth, ca, err := l.Auth()
	return checkout.Remote{URL: withoutLogin(address), Branch: branch, Auth: auth, CA: ca}, err
}

// withoutLogin is a URL without the login that may be in it.
func withoutLogin(address string) string {
	u, err := url.Parse(address)
	if err != nil || u.Scheme == "ssh" || u.User == nil {
		return address
	}
	u.User = nil
	return u.String()
}
