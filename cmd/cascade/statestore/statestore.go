// Package statestore opens where a state is kept, as flags and the environment of a program say: what one program
// saved, another one restores or goes on from by the same words.
package statestore

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/cascade-gitops/cascade/state/store"
	"github.com/cascade-gitops/cascade/syncer/source"
)

// MostBytes bounds a file of a credential.
const MostBytes = 1 << 20

// CredentialsMean is what a flag for Credentials means.
const CredentialsMean = "directory with a file for each key of a Secret of Flux's Bucket or GitRepository; without it the credentials of the environment count"

// Place is where a state is kept.
type Place struct {
	// Address as store.Parse reads it.
	Address string
	// Credentials is a directory of files, empty for none; Flag is its name for people.
	Credentials, Flag string
	// Repository is one whose login there is, with the data of a Secret: it counts for a state in Git on the same
	// server, as one that people log in to by one name.
	Repository string
	Login      map[string][]byte
}

// Open opens it.
func (p Place) Open(ctx context.Context, now func() time.Time) (store.Store, error) {
	options := store.Options{Now: now}
	a, err := store.Parse(p.Address)
	if err != nil {
		return nil, err
	}
	switch {
	case p.Credentials != "":
		if options.Secret, err = p.read(); err != nil {
			return nil, err
		}
		options.Certificates = options.Secret
	case a.Kind == "s3" && a.Endpoint != "" && os.Getenv("AWS_ACCESS_KEY_ID") != "":
		// Who names a server names whom the keys are for.
		options.Secret = map[string][]byte{"accesskey": []byte(os.Getenv("AWS_ACCESS_KEY_ID")), "secretkey": []byte(os.Getenv("AWS_SECRET_ACCESS_KEY"))}
	case a.Kind == "git" && len(p.Login) > 0 && sameServer(a.URL, p.Repository):
		options.Secret = p.Login
	}
	return store.Open(source.AllowNetwork(ctx), p.Address, options)
}

// sameServer reports whether two URLs lead to one server in the same way.
func sameServer(one, other string) bool {
	a, err1 := url.Parse(one)
	b, err2 := url.Parse(other)
	return errors.Join(err1, err2) == nil && a.Scheme == b.Scheme && a.Host != "" && strings.EqualFold(a.Host, b.Host)
}

// read reads the credentials as a Secret is mounted.
func (p Place) read() (map[string][]byte, error) {
	entries, err := os.ReadDir(p.Credentials)
	if err != nil {
		return nil, fmt.Errorf("cannot read %s: %w", p.Flag, err)
	}
	secret := map[string][]byte{}
	for _, e := range entries {
		info, err := os.Stat(filepath.Join(p.Credentials, e.Name()))
		if err != nil || !info.Mode().IsRegular() || strings.HasPrefix(e.Name(), ".") {
			continue
		}
		if info.Size() > MostBytes {
			return nil, fmt.Errorf("cannot read %s: %s has more than %d bytes", p.Flag, e.Name(), MostBytes)
		}
		content, err := os.ReadFile(filepath.Join(p.Credentials, e.Name()))
		if err != nil {
			return nil, fmt.Errorf("cannot read %s: %w", p.Flag, err)
		}
		// Editors and echo end a file with a line.
		if value := strings.TrimRight(string(content), "\n"); !strings.Contains(value, "\n") {
			content = []byte(value)
		}
		secret[e.Name()] = content
	}
	if len(secret) == 0 {
		return nil, fmt.Errorf("cannot read %s: the directory has no files", p.Flag)
	}
	return secret, nil
}
