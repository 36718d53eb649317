// Package digest identifies things by their content.
//
// The package is pure. Digests of this package tell content apart; they are no
// signature, and nothing is read back from them.
package digest

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"hash"
	"strconv"
)

// Sum is a digest by SHA-256.
type Sum [sha256.Size]byte

// Of identifies a list of parts. Each part is taken with its length, so that two
// different lists have different digests.
func Of[P string | []byte](parts ...P) Sum {
	h := sha256.New()
	var length [24]byte
	for _, p := range parts {
		h.Write(append(strconv.AppendInt(length[:0], int64(len(p)), 10), ':'))
		h.Write([]byte(p))
	}
	return sum(h)
}

// Hex is the digest in hexadecimal digits.
func (s Sum) Hex() string { return hex.EncodeToString(s[:]) }

// String is the digest as status fields have it: sha256:<hex>.
func (s Sum) String() string { return "sha256:" + s.Hex() }

// Short is enough of a digest for what is kept in memory in large numbers.
type Short [16]byte

// Short returns the first half of the digest.
func (s Sum) Short() Short { return Short(s[:16]) }

// Quoted identifies a list of parts as Of does, in the form that artifacts of
// charts have recorded: another form would have each of them made again once.
func Quoted(parts ...string) Sum {
	h := sha256.New()
	for _, p := range parts {
		fmt.Fprintf(h, "%q\n", p)
	}
	return sum(h)
}

// JSON identifies a value as it is written by encoding/json, with a newline at its
// end. It is the form in which Flux takes digests of parts of a spec.
func JSON(v any) (Sum, error) {
	h := sha256.New()
	if err := json.NewEncoder(h).Encode(v); err != nil {
		return Sum{}, fmt.Errorf("cannot encode %T: %w", v, err)
	}
	return sum(h), nil
}

func sum(h hash.Hash) (s Sum) {
	h.Sum(s[:0])
	return s
}
