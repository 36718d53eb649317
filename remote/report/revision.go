package report

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"

	"sigs.k8s.io/controller-runtime/pkg/client"
)

// revisions of a tier's sources. One alone is its revision. Several are name=revision in
// order of their names, joined by commas; see shortened.
func revisions(sources []client.Object) string {
	var all []string
	for _, o := range sources {
		if revision := factsOf(o).revision; revision != "" {
			all = append(all, o.GetName()+"="+revision)
		}
	}
	slices.Sort(all)
	if len(all) == 1 {
		_, revision, _ := strings.Cut(all[0], "=")
		return shortened(revision)
	}
	return shortened(strings.Join(all, ","))
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
