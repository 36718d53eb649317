package agent

import (
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/client-go/util/cert"
)

// certificatePause is the least time between two looks at the files of a certificate.
const certificatePause = 5 * time.Second

// certificate is what a server shows of itself: tls.crt and tls.key of a directory as they are
// now, which may come later than the agent. Until they are there, and without a directory, it
// is one that nobody signed. Files that make no pair leave the one before.
type certificate struct {
	dir string
	now func() time.Time
	log logr.Logger

	mu     sync.Mutex // guards what follows
	looked time.Time
	// public and private are what the files had, told is what was wrong with them.
	public, private []byte
	told            string
	pair            *tls.Certificate
}

// get implements tls.Config.GetCertificate.
func (c *certificate) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if since := c.now().Sub(c.looked); c.dir != "" && (since < 0 || since >= certificatePause) {
		c.looked = c.now()
		c.tell(c.read())
	}
	if c.pair != nil {
		return c.pair, nil
	}
	public, private, err := cert.GenerateSelfSignedCertKey("cascade", nil, nil)
	if err != nil {
		return nil, fmt.Errorf("cannot make certificate: %w", err)
	}
	err = c.use(public, private)
	return c.pair, err
}

// read takes the files if they are others than before.
func (c *certificate) read() error {
	public, errPublic := os.ReadFile(filepath.Join(c.dir, "tls.crt"))
	private, errPrivate := os.ReadFile(filepath.Join(c.dir, "tls.key"))
	if err := errors.Join(errPublic, errPrivate); err != nil {
		return err
	}
	if bytes.Equal(public, c.public) && bytes.Equal(private, c.private) {
		return nil
	}
	if err := c.use(public, private); err != nil {
		return err
	}
	c.public, c.private = public, private
	c.log.Info("using the certificate of the files", "directory", c.dir)
	return nil
}

func (c *certificate) use(public, private []byte) error {
	pair, err := tls.X509KeyPair(public, private)
	if err != nil {
		return fmt.Errorf("cannot use certificate: %w", err)
	}
	c.pair = &pair
	return nil
}

// tell logs what is wrong with the files, once.
func (c *certificate) tell(err error) {
	told := ""
	if err != nil {
		told = err.Error()
	}
	if told != "" && told != c.told {
		c.log.Error(err, "cannot read certificate; the one before is shown, or one that nobody signed", "directory", c.dir)
	}
	c.told = told
}
