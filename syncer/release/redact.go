package release

// text is a message about a failure, without secrets.
func (n *run) text(err error) string {
	if n.req.Redact == nil {
		return err.Error()
	}
	return n.req.Redact(err.Error())
}

// redacted is an error whose text is without secrets.
func (n *run) redacted(err error) error {
	if err == nil || n.req.Redact == nil {
		return err
	}
	return &redacted{n.text(err), err}
}

type redacted struct {
	text string
	err  error
}

func (r *redacted) Error() string { return r.text }

func (r *redacted) Unwrap() error { return r.err }
