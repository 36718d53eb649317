package hint

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"net/url"
	"path"
	"slices"
	"strings"
)

const (
	// Most hints are in one entry, and mostEncoded bytes.
	Most        = 32
	mostEncoded = 16 << 10
	// mostID and mostRevision bound what others wrote.
	mostID       = 64
	mostRevision = 64
	// digestLength is that of a digest of a repository, in hex.
	digestLength = 2 * sha256.Size
)

// Hint says that a repository may have something new.
type Hint struct {
	// ID is the same wherever the hint is passed on to.
	ID string `json:"id"`
	// Repository is the digest of its URL; see Repository.
	Repository string `json:"repository"`
	// Revision is the commit that a server told of, empty if it did not: who has that needs
	// no fetch.
	Revision string `json:"revision,omitempty"`
}

// Repository is the digest of the URL of a repository, or empty for what is no URL. It is the
// same for the ways in which people write one URL: with another scheme or user, with .git, a
// slash at the end, the default port, or letters of the host in another case.
func Repository(address string) string {
	name, ok := normalize(address)
	if !ok {
		return ""
	}
	sum := sha256.Sum256([]byte(name))
	return hex.EncodeToString(sum[:])
}

// normalize is host and path of a repository.
func normalize(address string) (string, bool) {
	address = strings.TrimSpace(address)
	if !strings.Contains(address, "://") {
		// user@host:path, as SSH has it.
		host, rest, ok := strings.Cut(address, ":")
		if !ok || strings.Contains(host, "/") {
			return "", false
		}
		address = "ssh://" + host + "/" + strings.TrimPrefix(rest, "/")
	}
	u, err := url.Parse(address)
	if err != nil || u.Hostname() == "" {
		return "", false
	}
	host := strings.TrimSuffix(strings.ToLower(u.Hostname()), ".")
	if port := u.Port(); port != "" && port != defaultPorts()[u.Scheme] {
		host += ":" + port
	}
	rest := strings.TrimSuffix(strings.TrimPrefix(path.Clean("/"+u.Path), "/"), ".git")
	return host + "/" + rest, true
}

func defaultPorts() map[string]string {
	return map[string]string{"https": "443", "http": "80", "ssh": "22", "git": "9418", "oci": "443"}
}

// Encode is an entry with the last of the hints, the newest last.
func Encode(hints []Hint) (string, error) {
	if len(hints) > Most {
		hints = hints[len(hints)-Most:]
	}
	text, err := json.Marshal(hints)
	return string(text), err
}

// Parse reads an entry. What is none, or too long, or was not written by us, is left out:
// whoever writes the entry can do no more than wake.
func Parse(text string) []Hint {
	if len(text) > mostEncoded {
		return nil
	}
	var found []Hint
	if json.Unmarshal([]byte(text), &found) != nil {
		return nil
	}
	if len(found) > Most {
		found = found[len(found)-Most:]
	}
	var hints []Hint
	for _, h := range found {
		if h.ID == "" || len(h.ID) > mostID || len(h.Revision) > mostRevision || len(h.Repository) != digestLength || !isHex(h.Repository) || !isWord(h.ID) || !isWord(h.Revision) {
			continue
		}
		hints = append(hints, h)
	}
	return hints
}

func isHex(s string) bool {
	_, err := hex.DecodeString(s)
	return err == nil && s == strings.ToLower(s)
}

// isWord reports whether a text has letters, digits and hyphens only.
func isWord(s string) bool {
	return strings.IndexFunc(s, func(c rune) bool {
		return (c < '0' || c > '9') && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && c != '-'
	}) < 0
}

// merge adds hints to those of before, the newest last. Each revision of a repository is a
// push of its own, and there once; a hint without a revision stands for all that came before.
// What is too much is in the next hint of its repository, which loses its revision, so that
// nobody leaves it aside; or else the oldest goes.
func merge(before, hints []Hint) []Hint {
	merged := slices.Clone(before)
	for _, h := range hints {
		merged = slices.DeleteFunc(merged, func(b Hint) bool {
			return b.Repository == h.Repository && (h.Revision == "" || b.Revision == h.Revision)
		})
		merged = append(merged, h)
	}
	for len(merged) > Most {
		gone := 0
		for i, h := range merged {
			later := slices.IndexFunc(merged[i+1:], func(l Hint) bool { return l.Repository == h.Repository })
			if later >= 0 {
				merged[i+1+later].Revision = ""
				gone = i
				break
			}
		}
		merged = slices.Delete(merged, gone, gone+1)
	}
	return merged
}

// memory are the hints that were seen, the last ones.
type memory struct {
	seen  map[string]bool
	order []string
}

// mostSeen bounds a memory: several times what all entries of a ConfigMap can have.
const mostSeen = 64 * Most

// news are those that were not seen; from now on they were.
func (m *memory) news(hints []Hint) []Hint {
	if m.seen == nil {
		m.seen = map[string]bool{}
	}
	var fresh []Hint
	for _, h := range hints {
		if m.seen[h.ID] {
			continue
		}
		m.seen[h.ID] = true
		m.order = append(m.order, h.ID)
		fresh = append(fresh, h)
	}
	for len(m.order) > mostSeen {
		delete(m.seen, m.order[0])
		m.order = m.order[1:]
	}
	return fresh
}
