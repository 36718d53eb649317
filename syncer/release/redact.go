package release

import (
	"slices"

	helmrelease "helm.sh/helm/v4/pkg/release/v1"

	"github.com/cascade-gitops/cascade/syncer/mask"
)

// hide takes what a stored revision was made with out of texts from now on, but for what the
// HelmRelease itself shows. The rest may be of Secrets, which may have changed since or be
// gone: the values of today do not tell.
func (n *run) hide(rel *helmrelease.Release) {
	shown := mask.Scalars(map[string]any(n.obj.GetValues()))
	values := slices.DeleteFunc(mask.Scalars(rel.Config), func(v string) bool { return slices.Contains(shown, v) })
	if len(values) == 0 {
		return
	}
	redact, old := n.req.Redact, mask.Texts(values)
	n.req.Redact = func(text string) string {
		if text = old(text); redact != nil {
			text = redact(text)
		}
		return text
	}
}

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
