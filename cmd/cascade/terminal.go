package main

import (
	"fmt"
	"io"
	"unicode/utf8"

	"github.com/cascade-gitops/cascade/cmd/cascade/wording"
)

// plain writes text to a terminal. Names and messages come from Git and from clusters
// below: control characters among them could hide lines, or type for the person who
// reads them. plain writes these as escapes that can be read, for instance \x1b. Line
// feeds and tabs stay. It is for one goroutine.
type plain struct {
	to io.Writer
	// rest is the beginning of a character whose end has not been written yet.
	rest []byte
}

// Write implements io.Writer.
func (p *plain) Write(text []byte) (int, error) {
	in := append(p.rest, text...)
	out := make([]byte, 0, len(in))
	for len(in) > 0 {
		if !utf8.FullRune(in) {
			break
		}
		r, size := utf8.DecodeRune(in)
		switch {
		case r == utf8.RuneError && size == 1:
			out = fmt.Appendf(out, `\x%02x`, in[0])
		case r == '\n', r == '\t', !wording.Commands(r):
			out = append(out, in[:size]...)
		case r <= 0xff:
			out = fmt.Appendf(out, `\x%02x`, r)
		default:
			out = fmt.Appendf(out, `\u%04x`, r)
		}
		in = in[size:]
	}
	p.rest = append([]byte(nil), in...)
	if _, err := p.to.Write(out); err != nil {
		return 0, err
	}
	return len(text), nil
}
