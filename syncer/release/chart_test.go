package release

import (
	"strings"
	"testing"
)

func TestTrackedVersion(t *testing.T) {
	const sum = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
	for name, tc := range map[string]struct {
		reason            string
		version, revision string
		want, digest      string
		err               string
	}{
		"Tag":       {"the tag is the version", "1.2.3", "1.2.3@sha256:" + sum, "1.2.3+0123456789ab", "sha256:" + sum, ""},
		"Prefix":    {"people tag with a v", "1.2.3", "v1.2.3@sha256:" + sum, "1.2.3+0123456789ab", "sha256:" + sum, ""},
		"Metadata":  {"a registry allows no plus; what was there gives way to the digest", "1.2.3+build", "1.2.3_build@sha256:" + sum, "1.2.3+0123456789ab", "sha256:" + sum, ""},
		"Digest":    {"it was asked for by digest", "1.2.3", "sha256:" + sum, "1.2.3+0123456789ab", "sha256:" + sum, ""},
		"Latest":    {"a tag that is no version has too many parts for Flux, but a digest", "1.2.3", "latest@sha256:" + sum, "1.2.3+0123456789ab", "latest@sha256:" + sum, ""},
		"Mismatch":  {"the tag promises another version", "1.2.3", "1.2.4@sha256:" + sum, "", "", "does not match chart version 1.2.3"},
		"NoVersion": {"a chart has to have one", "one", "1.2.3@sha256:" + sum, "", "", "invalid chart version one"},
		"NoDigest":  {"there is nothing to tell artifacts apart by", "1.2.3", "abc", "", "", "invalid artifact revision abc"},
		"Short":     {"nor here", "1.2.3", "sha256:0123", "", "", "invalid artifact revision"},
		"Twice":     {"two digests are none", "1.2.3", "1.2.3@sha256:" + sum + "@sha256:" + sum, "", "", "does not match"},
	} {
		t.Run(name, func(t *testing.T) {
			got, digest, err := TrackedVersion(tc.version, tc.revision)
			if got != tc.want || digest != tc.digest || (err != nil) != (tc.err != "") || err != nil && !strings.Contains(err.Error(), tc.err) {
				t.Errorf("%s\nTrackedVersion(%q, %q) = %q, %q, %v; want %q, %q, %q", tc.reason, tc.version, tc.revision, got, digest, err, tc.want, tc.digest, tc.err)
			}
		})
	}
}
