package agent

import (
	"bytes"
	"crypto/tls"
	"encoding/pem"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	"k8s.io/client-go/util/cert"
)

// TestCertificate: files of a certificate are used from when they are there, and are not missed.
func TestCertificate(t *testing.T) {
	made := func() (public, private []byte) {
		public, private, err := cert.GenerateSelfSignedCertKey("of-the-files", nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		return public, private
	}
	firstPublic, firstPrivate := made()
	nextPublic, nextPrivate := made()
	dir, at, told := filepath.Join(t.TempDir(), "files"), time.Unix(1e9, 0), 0
	log := funcr.New(func(_, args string) {
		if strings.Contains(args, "cannot read certificate") {
			told++
		}
	}, funcr.Options{})
	config := &tls.Config{}
	s := serving{metricsAuth: metricsAuthKubernetes, metricsCerts: dir}
	for _, change := range s.build(func() time.Time { return at }, log).TLSOpts {
		change(config)
	}
	var own []byte
	for _, step := range []struct {
		reason          string
		public, private []byte
		after           time.Duration
		want            []byte // nil: nobody signed it
		told            int
	}{
		{"there is no directory yet", nil, nil, 0, nil, 1},
		{"nor is there a minute later, which was told", nil, nil, time.Minute, nil, 1},
		{"half of a pair is none", firstPublic, nil, time.Minute, nil, 2},
		{"the files came later than the agent", firstPublic, firstPrivate, time.Minute, firstPublic, 2},
		{"they are not read for each connection", nextPublic, nextPrivate, time.Second, firstPublic, 2},
		{"they were renewed", nextPublic, nextPrivate, time.Minute, nextPublic, 2},
		{"the key is that of another certificate", nextPublic, firstPrivate, time.Minute, nextPublic, 3},
		{"that was told", nextPublic, firstPrivate, time.Minute, nextPublic, 3},
		{"they are as before", nextPublic, nextPrivate, time.Minute, nextPublic, 3},
		{"the Secret was deleted", nil, nil, time.Minute, nextPublic, 4},
	} {
		at = at.Add(step.after)
		if err := os.RemoveAll(dir); err != nil {
			t.Fatal(err)
		}
		for file, text := range map[string][]byte{"tls.crt": step.public, "tls.key": step.private} {
			if text == nil {
				continue
			}
			if err := os.MkdirAll(dir, 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, file), text, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		pair, err := config.GetCertificate(nil)
		if err != nil {
			t.Fatalf("%s: %v", step.reason, err)
		}
		want := own
		if step.want != nil {
			block, _ := pem.Decode(step.want)
			want = block.Bytes
		} else if own == nil {
			own, want = pair.Certificate[0], pair.Certificate[0]
		}
		if !bytes.Equal(pair.Certificate[0], want) {
			t.Errorf("%s: it shows another certificate", step.reason)
		}
		if told != step.told {
			t.Errorf("%s: it told %d times what is wrong, want %d", step.reason, told, step.told)
		}
	}
}
