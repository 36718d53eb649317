package release

import (
	"slices"
	"sync"

	v2 "github.com/fluxcd/helm-controller/api/v2"
	helmrelease "helm.sh/helm/v4/pkg/release/v1"

	"github.com/cascade-gitops/cascade/syncer/mask"
)

// hide takes what a stored revision was made with out of texts from now on, but for what the
// HelmRelease itself shows, and the names of what the revision has, which the cluster shows. The
// rest may be of Secrets, which may have changed since or be gone: the values of today do not
// tell. It costs nothing until there is a text.
func (n *run) hide(rel *helmrelease.Release) {
	redact := n.req.Redact
	old := sync.OnceValue(func() func(string) string { return mask.Texts(secretsOf(rel, n.obj)) })
	n.req.Redact = func(text string) string {
		if text = old()(text); redact != nil {
			text = redact(text)
		}
		return text
	}
}

// secretsOf are the values of a revision that may be of Secrets. Tenants choose how many there are.
func secretsOf(rel *helmrelease.Release, obj *v2.HelmRelease) []string {
	shown := map[string]struct{}{}
	for _, v := range slices.Concat(mask.Scalars(map[string]any(obj.GetValues())), namesIn(rel)) {
		shown[v] = struct{}{}
	}
	return slices.DeleteFunc(mask.Scalars(rel.Config), func(v string) bool {
		_, ok := shown[v]
		return ok
	})
}

// namesIn are the names, namespaces and kinds of what a revision has, and its own. Those of a
// manifest that cannot be read are left out.
func namesIn(rel *helmrelease.Release) []string {
	names := []string{rel.Name, rel.Namespace}
	if rel.Chart != nil && rel.Chart.Metadata != nil {
		names = append(names, rel.Chart.Metadata.Name)
	}
	texts := []string{rel.Manifest}
	for _, h := range rel.Hooks {
		texts = append(texts, h.Manifest)
	}
	for _, text := range texts {
		objects, err := readObjects(rel, text)
		if err != nil {
			continue
		}
		for _, u := range objects {
			names = append(names, u.GetName(), u.GetNamespace(), u.GetKind())
		}
	}
	return names
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
