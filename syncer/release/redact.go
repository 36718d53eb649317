package release

import "github.com/cascade-gitops/cascade/syncer/mask"

// text is a message about a failure, without secrets.
func (n *run) text(err error) string {
	if n.req.Redact == nil {
		return err.Error()
	}
	return n.req.Redact(err.Error())
}

// redacted is an error whose text is without secrets.
func (n *run) redacted(err error) error {
	if err == nil {
		return nil
	}
	return mask.Reword(err, n.text(err))
}
