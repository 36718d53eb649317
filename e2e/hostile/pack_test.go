package hostile

import (
	"bytes"
	"compress/zlib"
	"crypto/sha1" //nolint:gosec // what Git names objects by
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"net/http"
	"strings"
)

// Types of objects in a pack.
const (
	commitType, treeType, blobType, tagType = 1, 2, 3, 4
	ofsDelta, refDelta                      = 6, 7
)

var typeNames = map[int]string{commitType: "commit", treeType: "tree", blobType: "blob", tagType: "tag"}

// hash names an object as Git does.
func hash(kind int, content []byte) [20]byte {
	return sha1.Sum(append(fmt.Appendf(nil, "%s %d\x00", typeNames[kind], len(content)), content...)) //nolint:gosec // see above
}

// entry is one object of a pack: its header, which may say what it likes, and its
// content, deflated.
func entry(kind int, says uint64, base, content []byte) []byte {
	var out []byte
	b := byte(kind)<<4 | byte(says&15)
	for says >>= 4; says > 0; says >>= 7 {
		out = append(out, b|0x80)
		b = byte(says & 0x7f)
	}
	out = append(append(out, b), base...)
	var deflated bytes.Buffer
	w := zlib.NewWriter(&deflated)
	_, _ = w.Write(content) // to memory
	_ = w.Close()
	return append(out, deflated.Bytes()...)
}

// objectEntry is an entry that says what it is.
func objectEntry(kind int, content []byte) []byte {
	return entry(kind, uint64(len(content)), nil, content)
}

// packed is a pack with a right sum.
func packed(count uint32, entries ...[]byte) []byte {
	out := append([]byte("PACK\x00\x00\x00\x02"), binary.BigEndian.AppendUint32(nil, count)...)
	for _, e := range entries {
		out = append(out, e...)
	}
	sum := sha1.Sum(out) //nolint:gosec // see above
	return append(out, sum[:]...)
}

// treeEntry is one name of a directory.
func treeEntry(mode, name string, of [20]byte) []byte {
	return append([]byte(mode+" "+name+"\x00"), of[:]...)
}

// packServer serves one pack, whose commit is as given.
func packServer(name, reason string, commit [20]byte, pack []byte) fixture {
	var body bytes.Buffer
	body.WriteString(pkt("shallow "+hex.EncodeToString(commit[:])) + "0000" + pkt("NAK\n"))
	for rest := pack; len(rest) > 0; {
		n := min(len(rest), 60_000)
		body.WriteString(pkt("\x01" + string(rest[:n])))
		rest = rest[n:]
	}
	body.WriteString("0000")
	h := gitOf(text(advertised(hex.EncodeToString(commit[:]))), func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(body.Bytes()) })
	f := gitServer(name, reason, h, "GitOperationFailed", "LimitExceeded", "InvalidGitObject")
	// Where the repository can be fetched, it is no use to who applies it.
	f.objects = manifests(f.objects, "apiVersion: kustomize.toolkit.fluxcd.io/v1\nkind: Kustomization\nmetadata: {name: applied, namespace: $ns}\nspec: {sourceRef: {kind: GitRepository, name: bad}, path: ./app, targetNamespace: $ns, prune: true, interval: 10m, retryInterval: 1m}\n")
	return f
}

// commitOf is a commit of a directory.
func commitOf(root [20]byte, more string) []byte {
	return fmt.Appendf(nil, "tree %x\n%sauthor a <a@example.com> 1767225600 +0000\ncommitter a <a@example.com> 1767225600 +0000\n\nx\n", root, more)
}

// treePack serves a root directory that is made by hand.
func treePack(name, reason string, root []byte, others ...[]byte) fixture {
	commit := commitOf(hash(treeType, root), "")
	all := append([][]byte{objectEntry(commitType, commit), objectEntry(treeType, root)}, others...)
	return packServer(name, reason, hash(commitType, commit), packed(uint32(len(all)), all...))
}

// applied moves the object that must tell to the Kustomization: the commit can be
// fetched, and cannot be built.
func applied(f fixture) fixture {
	f.kind, f.tells = "Kustomization", []string{"BuildFailed", "ArtifactFailed"}
	f.objects = strings.NewReplacer("name: bad", "name: source", "name: applied", "name: bad", "path: ./app", "path: ./").Replace(f.objects)
	return f
}

// backwards is the offset of a delta's base, below 16 KiB.
func backwards(n int) []byte {
	if n < 128 {
		return []byte{byte(n)}
	}
	n -= 128
	return []byte{byte(n>>7) | 0x80, byte(n & 0x7f)}
}

// deltaOf is a delta that says the sizes of its base and of its result.
func deltaOf(base, target uint64, rest ...byte) []byte {
	return append(binary.AppendUvarint(binary.AppendUvarint(nil, base), target), rest...)
}

// packs are packs that keep to the protocol and are hostile in themselves.
func packs(*outside) []fixture {
	blob := []byte(configMap("a"))
	root := treeEntry("100644", "a.yaml", hash(blobType, blob))
	commit := commitOf(hash(treeType, root), "")
	is := hash(commitType, commit)
	good := [][]byte{objectEntry(commitType, commit), objectEntry(treeType, root), objectEntry(blobType, blob)}
	whole := packed(3, good...)
	wrong := bytes.Clone(whole)
	wrong[len(wrong)-1]++
	chain := append([][]byte{}, good...)
	back := len(chain[2])
	for range 5000 {
		// Each delta is on the one before, which is so many bytes ahead of it.
		copied := deltaOf(uint64(len(blob)), uint64(len(blob)), 0x90, byte(len(blob)))
		chain = append(chain, entry(ofsDelta, uint64(len(copied)), backwards(back), copied))
		back = len(chain[len(chain)-1])
	}
	zeros := make([]byte, 45<<20)
	story := append(bytes.Clone(commit), zeros...)
	half := bytes.Repeat([]byte{0xb0, 0xff, 0xff}, 1500)
	amplified := deltaOf(65535, 65535*1500, half...)
	base := bytes.Repeat([]byte("x"), 65535)
	baseHash := hash(blobType, base)
	all := []fixture{
		packServer("sum", "a sum that is wrong", is, wrong),
		packServer("cut", "a pack that is cut off", is, whole[:len(whole)/2]),
		packServer("count", "four billion objects in 32 bytes", is, packed(1<<32-1)),
		packServer("count-short", "fewer objects than it says", is, packed(4, good...)),
		packServer("count-long", "more objects than it says", is, packed(2, good...)),
		packServer("version", "a version that nobody has", is, append([]byte("PACK\x00\x00\x00\x09"), whole[8:]...)),
		packServer("noise", "no pack at all", is, []byte("garbage and more of it, and more, and still more")),
		packServer("empty", "nothing of what was asked for", is, packed(0)),
		packServer("other", "another commit than the branch", hash(commitType, []byte("other")), whole),
		packServer("no-tree", "a commit without its directory", is, packed(1, good[0])),
		applied(packServer("no-blob", "a directory without its files", is, packed(2, good[:2]...))),
		packServer("large", "an object that says it has a terabyte", is, packed(1, entry(blobType, 1<<40, nil, []byte("x")))),
		packServer("negative", "an object whose size turns negative", is, packed(1, entry(blobType, 1<<63, nil, []byte("x")))),
		packServer("swollen", "an object that is larger than it says", is, packed(4, append(good, entry(blobType, 7, nil, zeros))...)),
		packServer("zeros", "a hundred objects of 45 MiB in a few MiB", is, packed(103, append(good, repeated(objectEntry(blobType, zeros), 100)...)...)),
		packServer("no-zlib", "content that is not deflated", is, packed(4, append(good, []byte{blobType<<4 | 7, 1, 2, 3, 4, 5, 6, 7})...)),
		packServer("chain", "five thousand deltas on one object", is, packed(uint32(len(chain)), chain...)),
		packServer("delta-base", "a delta on what is not there", is, packed(4, append(good, entry(refDelta, 4, bytes.Repeat([]byte{9}, 20), deltaOf(10, 10, 0x90, 10)))...)),
		packServer("delta-offset", "a delta on what is before the pack", is, packed(4, append(good, entry(ofsDelta, 4, []byte{0xff, 0xff, 0xff, 0x7f}, deltaOf(10, 10, 0x90, 10)))...)),
		packServer("delta-self", "a delta on itself", is, packed(4, append(good, entry(ofsDelta, 4, []byte{0}, deltaOf(10, 10, 0x90, 10)))...)),
		packServer("delta-bomb", "a delta of some bytes that makes a terabyte", is, packed(5, append(good, objectEntry(blobType, base), entry(refDelta, uint64(len(deltaOf(65535, 1<<40, 0x90, 10))), baseHash[:], deltaOf(65535, 1<<40, 0x90, 10)))...)),
		packServer("delta-many", "two hundred deltas of 4 KiB that make 94 MiB each", is, packed(204, append(append(good, objectEntry(blobType, base)), repeated(entry(refDelta, uint64(len(amplified)), baseHash[:], amplified), 200)...)...)),
		packServer("delta-overflow", "a delta whose size turns negative", is, packed(5, append(good, objectEntry(blobType, base), entry(refDelta, uint64(len(deltaOf(65535, 1<<63, 0x90, 10))), baseHash[:], deltaOf(65535, 1<<63, 0x90, 10)))...)),
		packServer("delta-copy", "a delta that copies from behind its base", is, packed(5, append(good, objectEntry(blobType, base), entry(refDelta, 11, baseHash[:], deltaOf(65535, 10, 0x9f, 0xff, 0xff, 0xff, 0xff, 10)))...)),
		packServer("delta-zero", "a delta with an instruction that there is none of", is, packed(5, append(good, objectEntry(blobType, base), entry(refDelta, uint64(len(deltaOf(65535, 10, 0))), baseHash[:], deltaOf(65535, 10, 0)))...)),
		packServer("commit-noise", "a commit that is none", hash(commitType, []byte("no commit")), packed(1, objectEntry(commitType, []byte("no commit")))),
		packServer("commit-large", "a commit with a message of 45 MiB", hash(commitType, story), packed(3, objectEntry(commitType, story), good[1], good[2])),
		packServer("tree-of-blob", "a commit whose directory is a file", hash(commitType, commitOf(hash(blobType, blob), "")), packed(2, objectEntry(commitType, commitOf(hash(blobType, blob), "")), good[2])),
		treePack("tree-noise", "a directory that is none", []byte("100644 a")),
		treePack("tree-cut", "a directory whose last name is cut off", root[:len(root)-3], good[2]),
		treePack("tree-names", "a directory of half a million names", manyNames(500_000, hash(blobType, blob)), good[2]),
		treePack("tree-mode", "a mode that is no number", append([]byte("xyz a.yaml\x00"), root[len(root)-20:]...), good[2]),
	}
	return append(all, oddNames(blob)...)
}

// oddNames are directories with names that lead elsewhere where somebody writes them.
func oddNames(blob []byte) []fixture {
	of := hash(blobType, blob)
	var all []fixture
	for name, tt := range inOrder(map[string]struct{ reason, name string }{
		"above":    {"a file whose name leads up", ".."},
		"slash":    {"a file whose name has a path", "../../was-here"},
		"git":      {"a directory .git, with hooks and a configuration", ".git"},
		"git-case": {"the same, as other file systems see it", ".GiT"},
		"dot":      {"a file that is its directory", "."},
		"empty":    {"a file without a name", ""},
	}) {
		all = append(all, treePack("name-"+name, tt.reason, treeEntry("100644", tt.name, of), objectEntry(blobType, blob)))
	}
	return all
}

func repeated(e []byte, n int) [][]byte {
	all := make([][]byte, n)
	for i := range all {
		all[i] = e
	}
	return all
}

func manyNames(n int, of [20]byte) []byte {
	var out []byte
	for i := range n {
		out = append(out, treeEntry("100644", fmt.Sprintf("n%08d", i), of)...)
	}
	return out
}
