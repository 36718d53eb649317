package report

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/remote/rollout"
)

// A parent that waits for a tier to be ready at a revision must not take an earlier readiness
// for that: a source has a new revision before those who refer to it have looked at it. The
// revision in a report is therefore what they all have tried.

// sourceKey names a source.
type sourceKey struct{ kind, namespace, name string }

func keyOf(o client.Object) sourceKey {
	return sourceKey{factsOf(o).kind, o.GetNamespace(), o.GetName()}
}

// fetched are the revisions that sources have.
func fetched(f Facts) map[sourceKey]string {
	has := map[sourceKey]string{}
	for _, o := range f.Sources {
		if facts := factsOf(o); facts.revision != "" {
			has[keyOf(o)] = facts.revision
		}
	}
	return has
}

// tried are the revisions of sources that those who refer to them tried last, where that is
// not the one that the source has. One who tried nothing yet is not ready anyway, and says
// nothing.
func tried(f Facts, before *v1alpha1.Report) map[sourceKey]string {
	has := fetched(f)
	late := map[sourceKey]string{}
	note := func(of sourceKey, revision string) {
		if revision == "" || has[of] == "" || has[of] == revision {
			return
		}
		// Of several the same one each time.
		if known, ok := late[of]; !ok || revision < known {
			late[of] = revision
		}
	}
	for i := range f.Kustomizations {
		o := &f.Kustomizations[i]
		if o.Spec.Suspend {
			continue
		}
		ref := o.Spec.SourceRef
		note(sourceKey{ref.Kind, cmp.Or(ref.Namespace, o.Namespace), ref.Name}, o.Status.LastAttemptedRevision)
	}
	charts := map[string]*sourcev1.HelmChart{}
	for _, o := range f.Sources {
		switch o := o.(type) {
		case *sourcev1.GitRepository:
			for i, in := range o.Status.ObservedInclude {
				if !o.Spec.Suspend && i < len(o.Status.IncludedArtifacts) {
					note(sourceKey{sourcev1.GitRepositoryKind, o.Namespace, in.GitRepositoryRef.Name}, o.Status.IncludedArtifacts[i].Revision)
				}
			}
		case *sourcev1.HelmChart:
			if !o.Spec.Suspend && o.Spec.SourceRef.Kind == sourcev1.GitRepositoryKind {
				charts[o.Namespace+"/"+o.Name] = o
				note(sourceKey{o.Spec.SourceRef.Kind, o.Namespace, o.Spec.SourceRef.Name}, o.Status.ObservedSourceArtifactRevision)
			}
		}
	}
	for i := range f.Releases {
		o := &f.Releases[i]
		if o.Spec.Suspend {
			continue
		}
		from := o.Status.HelmChart
		if ref := o.Spec.ChartRef; ref != nil {
			of := sourceKey{ref.Kind, cmp.Or(ref.Namespace, o.Namespace), ref.Name}
			if from = of.namespace + "/" + of.name; of.kind != sourcev1.HelmChartKind {
				// The digest alone is on record, whatever the tag: the same one is no other revision.
				if from = ""; o.Status.LastAttemptedRevisionDigest != rollout.Content(has[of]) {
					note(of, o.Status.LastAttemptedRevisionDigest)
				}
			}
		}
		chart := charts[from]
		if chart == nil || hasTried(o, chart) {
			continue
		}
		// Which commit its chart was of, its status does not tell: what was reported stands.
		of := sourceKey{chart.Spec.SourceRef.Kind, chart.Namespace, chart.Spec.SourceRef.Name}
		note(of, told(before, of))
	}
	return late
}

// told is the revision of a source in a report; empty if that does not tell.
func told(r *v1alpha1.Report, of sourceKey) string {
	if r == nil {
		return ""
	}
	if r.Brought != nil {
		if has, _ := BroughtRevision(r, v1alpha1.RolloutPinnedSource{Kind: of.kind, Namespace: of.namespace, Name: of.name}); has != "" {
			return has
		}
	}
	if revision, ok := RevisionOf(r, of.name); ok {
		return revision
	}
	return ""
}

// updating counts the layers that are on their way to children of the tier which are ready with
// an earlier revision of theirs, once for each child. A layer that a Rollout moves has the
// revisions that this lets it have, and the Rollout is on its way meanwhile.
func updating(f Facts) (n int64) {
	has := fetched(f)
	for i := range f.Layers {
		l := &f.Layers[i]
		if l.Spec.Suspend || !l.DeletionTimestamp.IsZero() || slices.ContainsFunc(f.Rollouts, func(o v1alpha1.Rollout) bool { return movesLayer(&o, l) }) {
			continue
		}
		revision := l.Status.Revision
		if ref := l.Spec.SourceRef; ref != nil {
			// The layer may not have been counted since its source has another one.
			revision = cmp.Or(has[sourceKey{ref.Kind, cmp.Or(ref.Namespace, l.Namespace), ref.Name}], revision)
		}
		n += f.Below.behind(l, revision)
	}
	return n
}

func movesLayer(o *v1alpha1.Rollout, l *v1alpha1.Layer) bool {
	ref := o.Spec.Moves.LayerRef
	return ref != nil && o.Namespace == l.Namespace && ref.Name == l.Name
}

// hasTried reports whether a release has tried the chart that there is. One that never tried
// any is not ready, and says nothing.
func hasTried(o *helmv2.HelmRelease, chart *sourcev1.HelmChart) bool {
	artifact, attempted := chart.Status.Artifact, o.Status.LastAttemptedRevision
	return artifact == nil || attempted == "" || attempted == artifact.Revision
}

// isPinned reports whether a source is pinned to a commit or a digest.
func isPinned(o client.Object) bool {
	switch o := o.(type) {
	case *sourcev1.GitRepository:
		return o.Spec.Reference != nil && o.Spec.Reference.Commit != ""
	case *sourcev1.OCIRepository:
		return o.Spec.Reference != nil && o.Spec.Reference.Digest != ""
	}
	return false
}

// revisions that a tier has of its sources. One alone is its revision. Several are
// name=revision in order of their names, joined by commas; see shortened. If they are too
// long for all of them to be named, those that are pinned are named first.
func revisions(f Facts, late map[sourceKey]string) string {
	type named struct {
		text   string
		pinned bool
	}
	var all []named
	for _, o := range f.Sources {
		if revision := cmp.Or(late[keyOf(o)], factsOf(o).revision); factsOf(o).revision != "" {
			all = append(all, named{o.GetName() + "=" + revision, isPinned(o)})
		}
	}
	slices.SortFunc(all, func(a, b named) int { return strings.Compare(a.text, b.text) })
	joined := func() string {
		texts := make([]string, len(all))
		for i := range all {
			texts[i] = all[i].text
		}
		return strings.Join(texts, ",")
	}
	if len(all) == 1 {
		_, revision, _ := strings.Cut(all[0].text, "=")
		return shortened(revision)
	}
	text := joined()
	if len(text) > maxRevision {
		slices.SortStableFunc(all, func(a, b named) int { return -boolean(a.pinned, b.pinned) })
		text = joined()
	}
	return shortened(text)
}

// brought are the sources and HelmReleases of a tier that layers brought, and that have anything.
func brought(f Facts, late map[sourceKey]string) *v1alpha1.ReportBrought {
	type object struct {
		v1alpha1.ReportedSource
		pinned bool
	}
	var all []object
	tell := func(o client.Object, kind, revision string) {
		if o.GetLabels()[v1alpha1.LayerLabelGroup+"/name"] != "" {
			is := v1alpha1.ReportedSource{Kind: kind, Namespace: o.GetNamespace(), Name: o.GetName(), Revision: bounded(revision, maxRevision)}
			all = append(all, object{is, isPinned(o) || o.GetAnnotations()[v1alpha1.PinnedAnnotation] != ""})
		}
	}
	for _, o := range f.Sources {
		if facts := factsOf(o); facts.kind != sourcev1.BucketKind && facts.revision != "" {
			tell(o, facts.kind, cmp.Or(late[keyOf(o)], facts.revision))
		}
	}
	for i := range f.Releases {
		// Whether it is ready at that version, the tier's readiness says. One whose version cannot be told has one all the same.
		if has := f.Releases[i].Status.History.Latest(); has != nil {
			tell(&f.Releases[i], helmv2.HelmReleaseKind, chartVersion(&f.Releases[i], has.ChartVersion))
		}
	}
	slices.SortFunc(all, func(a, b object) int {
		return cmp.Or(-boolean(a.pinned, b.pinned), boolean(a.Revision == "", b.Revision == ""), cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	b := &v1alpha1.ReportBrought{More: int32(max(0, len(all)-maxBrought)), Complete: len(all) <= maxBrought}
	for _, o := range all[:min(len(all), maxBrought)] {
		b.Objects = append(b.Objects, o.ReportedSource)
	}
	return b
}

// chartVersion is what the repository calls the version of the chart that a release has. With values
// files the chart is packaged anew, by the generation of its HelmChart, which its version has in the
// place of other metadata: it is the one that the release asks for. Of a release that asks for a
// range none is told. To pin it where it is would package the chart anew, and upgrade the release.
func chartVersion(o *helmv2.HelmRelease, has string) string {
	if o.Spec.Chart == nil || len(o.Spec.Chart.Spec.ValuesFiles) == 0 {
		return has
	}
	packaged, _, _ := strings.Cut(has, "+")
	if asked := o.Spec.Chart.Spec.Version; rollout.IsChart(asked, packaged) {
		return asked
	}
	return ""
}

// BroughtRevision is what an object that a Rollout moves has in the cluster of a report; empty if
// it has nothing, or that is not told: there was no room for one that was not pinned yet, or the
// agent is of before. Such a one may tell a revision by which its parent finds that a pin is in
// effect, if nothing else.
func BroughtRevision(r *v1alpha1.Report, of v1alpha1.RolloutPinnedSource) (has, perhaps string) {
	if r.Brought == nil {
		revision, tells := RevisionOf(r, of.Name)
		switch {
		case of.Kind == helmv2.HelmReleaseKind, !tells:
			return "", ""
		case revision == r.Revision: // its only source, which may be any
			return "", revision
		}
		return revision, ""
	}
	if i := broughtAt(r.Brought, of); i >= 0 {
		return r.Brought.Objects[i].Revision, ""
	}
	return "", ""
}

// broughtAt is where a report tells of an object, below zero if it does not.
func broughtAt(b *v1alpha1.ReportBrought, of v1alpha1.RolloutPinnedSource) int {
	return slices.IndexFunc(b.Objects, func(o v1alpha1.ReportedSource) bool {
		return o.Kind == of.Kind && o.Namespace == of.Namespace && o.Name == of.Name
	})
}

// HasNothing reports whether the cluster of a report has nothing of an object that a Rollout moves: its
// agent tells of all that layers brought, and that is not among it.
func HasNothing(r *v1alpha1.Report, of v1alpha1.RolloutPinnedSource) bool {
	return r.Brought != nil && r.Brought.Complete && broughtAt(r.Brought, of) < 0
}

// RevisionOf is the revision of one source in a report: the only one, of whatever name, or
// that of the name among several. It is false if the report does not tell: it names others,
// had no room for it, or has sources of that name at different revisions.
func RevisionOf(r *v1alpha1.Report, source string) (string, bool) {
	if r == nil || r.Revision == "" {
		return "", false
	}
	if name, _, ok := strings.Cut(r.Revision, "="); !ok || strings.ContainsAny(name, "@:") {
		return r.Revision, !strings.HasPrefix(r.Revision, "+")
	}
	found := ""
	for part := range strings.SplitSeq(r.Revision, ",") {
		name, revision, ok := strings.Cut(part, "=")
		if !ok || name != source {
			continue
		}
		if found != "" && found != revision {
			return "", false
		}
		found = revision
	}
	return found, found != ""
}

// shortened bounds a revision. Of one that is too long the first parts stay, as many as
// fit, and the last part says how many are left out, with a digest of all:
//
//	a=main@sha1:...,b=main@sha1:...,+41 sha256:0123456789abcdef
//
// The same sources give the same text, and sources of which any is at another revision
// give another one. What is short enough stays as it is.
func shortened(revision string) string {
	if len(revision) <= maxRevision && plain(revision) {
		return revision
	}
	sum := sha256.Sum256([]byte(revision))
	parts := strings.Split(revision, ",")
	rest := func(kept int) string {
		return fmt.Sprintf("+%d sha256:%s", len(parts)-kept, hex.EncodeToString(sum[:8]))
	}
	var text strings.Builder
	kept := 0
	for ; kept < len(parts); kept++ {
		// The number does not get longer with the parts that are kept.
		if text.Len()+len(parts[kept])+len(",")+len(rest(kept)) > maxRevision || !plain(parts[kept]) {
			break
		}
		text.WriteString(parts[kept] + ",")
	}
	return text.String() + rest(kept)
}
