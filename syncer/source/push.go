package source

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/fluxcd/pkg/git/signature"
	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/format/packfile"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp/capability"
	"github.com/go-git/go-git/v5/plumbing/transport"
	"github.com/go-git/go-git/v5/storage/memory"
	"golang.org/x/crypto/ssh"
)

// NewTag is an annotated tag that is to be written.
type NewTag struct {
	// Reference that is to point to it. Before is the tag object that the reference points
	// to now, empty if there must be none: who wrote it meanwhile does not lose that.
	Reference, Before string
	// Name that the tag has itself, and the commit that it is on.
	Name, Commit string
	// Tagger writes it at a time.
	Tagger, Address string
	At              time.Time
	Message         string
	// SigningKey is an SSH private key in PEM, and its passphrase; none leaves it unsigned.
	SigningKey, Passphrase []byte
}

// ErrMoved: somebody else wrote the reference since it was read.
var ErrMoved = errors.New("somebody else wrote the reference meanwhile")

// Push writes an annotated tag and lets a reference point to it. Nothing but the tag is sent:
// the repository has the commit. It returns the tag's own hash.
func (m *Mirrors) Push(ctx context.Context, origin Origin, tag NewTag) (_ string, err error) {
	defer recovered(&err)
	raw, err := tag.encode()
	if err != nil {
		return "", err
	}
	dial, err := origin.dialer()
	if err == nil {
		err = dial.restrict(m.KeyExchanges, m.HostKeys)
	}
	if err != nil {
		return "", err
	}
	store := memory.NewStorage()
	o := store.NewEncodedObject()
	o.SetType(plumbing.TagObject)
	w, err := o.Writer()
	if err != nil {
		return "", err
	}
	if _, err := w.Write(raw); err != nil {
		return "", err
	}
	hash, err := store.SetEncodedObject(o)
	if err != nil {
		return "", err
	}
	var pack bytes.Buffer
	if _, err := packfile.NewEncoder(&pack, store, false).Encode([]plumbing.Hash{hash}, 0); err != nil {
		return "", fmt.Errorf("cannot pack tag %s: %w", tag.Name, err)
	}
	wire, err := dial.connectToWrite(ctx)
	if err != nil {
		return "", connectError(dial, err)
	}
	defer wire.Close()
	adv, err := wire.references(ctx)
	if err != nil {
		return "", connectError(dial, err)
	}
	before := plumbing.NewHash(tag.Before)
	if now := adv.References[tag.Reference]; now != before {
		return "", failf(ReasonGitOperationFailed, "cannot write %s: %w", tag.Reference, ErrMoved)
	}
	req := packp.NewReferenceUpdateRequestFromCapabilities(adv.Capabilities)
	if adv.Capabilities.Supports(capability.ReportStatus) {
		_ = req.Capabilities.Set(capability.ReportStatus)
	}
	req.Commands = []*packp.Command{{Name: plumbing.ReferenceName(tag.Reference), Old: before, New: hash}}
	req.Packfile = io.NopCloser(&pack)
	if err := wire.update(ctx, req); err != nil {
		return "", connectError(dial, fmt.Errorf("cannot write %s: %w; the credential must be allowed to write it", tag.Reference, err))
	}
	return hash.String(), nil
}

// encode returns the exact bytes of the tag.
func (t *NewTag) encode() ([]byte, error) {
	if strings.ContainsAny(t.Name+t.Tagger+t.Address, "\n<>\x00") || !plumbing.IsHash(t.Commit) {
		return nil, fmt.Errorf("cannot write tag %q of commit %q: a name has a character that is not allowed", t.Name, t.Commit)
	}
	text := []byte(fmt.Sprintf("object %s\ntype commit\ntag %s\ntagger %s <%s> %d +0000\n\n%s\n", t.Commit, t.Name, t.Tagger, t.Address, t.At.Unix(), strings.TrimRight(t.Message, "\n")))
	if len(t.SigningKey) == 0 {
		return text, nil
	}
	signer, err := signature.NewSSHSigner(t.SigningKey, t.Passphrase)
	if err != nil {
		return nil, errSigningKey()
	}
	armour, err := signer.Sign(bytes.NewReader(text))
	if err != nil {
		return nil, fmt.Errorf("cannot sign tag %s: %w", t.Name, err)
	}
	return append(text, armour...), nil
}

// SigningKeys verify what is signed with an SSH private key in PEM; none without one.
func SigningKeys(key, passphrase []byte) (Verification, error) {
	if len(key) == 0 {
		return Verification{}, nil
	}
	private, err := ssh.ParsePrivateKey(key)
	if errors.As(err, new(*ssh.PassphraseMissingError)) {
		private, err = ssh.ParsePrivateKeyWithPassphrase(key, passphrase)
	}
	if err != nil {
		return Verification{}, errSigningKey()
	}
	return Verification{AuthorizedKeys: []string{string(ssh.MarshalAuthorizedKey(private.PublicKey()))}}, nil
}

func errSigningKey() error {
	return failf(ReasonAuthenticationFailed, "cannot sign with the key signingKey: it is no SSH private key, or its passphrase is not in the key signingPassphrase")
}

// writer speaks the protocol by which references are written.
type writer interface {
	references(ctx context.Context) (*packp.AdvRefs, error)
	update(ctx context.Context, req *packp.ReferenceUpdateRequest) error
	Close() error
}

// connectToWrite opens a wire to write, which ends with the context at the latest.
func (d *dialer) connectToWrite(ctx context.Context) (writer, error) {
	if d.ssh != nil {
		w, err := d.runSSH(ctx, transport.ReceivePackServiceName)
		if err != nil {
			return nil, err
		}
		return w, nil
	}
	session, err := d.http.NewReceivePackSession(d.endpoint, d.auth)
	if err != nil {
		return nil, err
	}
	return httpWriter{session}, nil
}

type httpWriter struct{ transport.ReceivePackSession }

func (w httpWriter) references(ctx context.Context) (*packp.AdvRefs, error) {
	return w.AdvertisedReferencesContext(ctx)
}

func (w httpWriter) update(ctx context.Context, req *packp.ReferenceUpdateRequest) error {
	_, err := w.ReceivePack(ctx, req)
	return err
}

// update sends the request and reads what came of it. A server that hangs ends with the
// context, which closes the connection.
func (w *sshWire) update(ctx context.Context, req *packp.ReferenceUpdateRequest) error {
	if err := req.Encode(w.stdin); err != nil {
		return err
	}
	if err := w.stdin.Close(); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if !req.Capabilities.Supports(capability.ReportStatus) {
		return nil
	}
	report := packp.NewReportStatus()
	if err := report.Decode(referencesOf(contextReader{ctx, w.stdout})); err != nil {
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return fmt.Errorf("cannot read the server's answer: %w", err)
	}
	return report.Error()
}
