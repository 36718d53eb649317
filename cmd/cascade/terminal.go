package main

import (
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"time"
	"unicode/utf8"

	"golang.org/x/term"

	"github.com/cascade-gitops/cascade/cmd/cascade/wording"
)

// colour of what stands on a terminal, as the number of ECMA-48.
type colour string

const (
	noColour colour = "39"
	red      colour = "31"
	green    colour = "32"
	yellow   colour = "33"
	blue     colour = "34"
)

// colourOf is that of a mark with which the verbs begin their lines.
func colourOf(mark rune) (of colour, marks bool) {
	switch mark {
	case '✔':
		return green, true
	case '✗':
		return red, true
	case '⚠', '!':
		return yellow, true
	case '‖', '►', '◎':
		return blue, true
	}
	return noColour, false
}

// colourOfCell is that of a cell of a column READY.
func colourOfCell(cell string) colour {
	switch cell {
	case "True":
		return green
	case "False":
		return red
	case "Unknown":
		return yellow
	}
	return noColour
}

// painter takes text, and colours between texts. What is written to it chooses none.
type painter interface {
	io.Writer
	// paint has what follows be of a colour.
	paint(colour) error
	// paints reports whether anybody sees colours.
	paints() bool
}

// plain writes text to a terminal. Names and messages come from Git and from clusters
// below: control characters among them could hide lines, or type for the person who
// reads them. plain writes these as escapes that can be read, for instance \x1b. Line
// feeds and tabs stay. It is for one goroutine.
type plain struct {
	to io.Writer
	// colours: marks at the beginning of a line, and what paint says, are coloured. moves: a line
	// may be written anew.
	colours, moves bool
	// rest is the beginning of a character whose end has not been written yet.
	rest []byte
	// inLine: the line has begun. moving: it is one that goes with whatever is written next.
	inLine, moving bool
}

// newPlain writes to a file. Colours and lines that move are for terminals alone: a log of a
// pipeline has neither. NO_COLOR (https://no-color.org) takes the colours.
func newPlain(file *os.File) *plain {
	p := &plain{to: file}
	p.moves = term.IsTerminal(int(file.Fd())) && understands(runtime.GOOS, os.Getenv)
	p.colours = p.moves && os.Getenv("NO_COLOR") == ""
	return p
}

// understands reports whether a terminal takes sequences. Of those of Windows one that does
// names itself.
func understands(system string, env func(string) string) bool {
	if system == "windows" {
		return env("WT_SESSION") != ""
	}
	return env("TERM") != "dumb"
}

// Write implements io.Writer.
func (p *plain) Write(text []byte) (int, error) {
	in := append(p.rest, text...)
	out := p.still(make([]byte, 0, len(in)))
	for len(in) > 0 {
		if !utf8.FullRune(in) {
			break
		}
		r, size := utf8.DecodeRune(in)
		of, marks := colourOf(r)
		switch {
		case r == utf8.RuneError && size == 1:
			out = fmt.Appendf(out, `\x%02x`, in[0])
		case p.colours && marks && !p.inLine:
			out = append(append(sequence(out, of), in[:size]...), sequence(nil, noColour)...)
		case r == '\n', r == '\t', !wording.Commands(r):
			out = append(out, in[:size]...)
		case r <= 0xff:
			out = fmt.Appendf(out, `\x%02x`, r)
		default:
			out = fmt.Appendf(out, `\u%04x`, r)
		}
		p.inLine = r != '\n'
		in = in[size:]
	}
	p.rest = append([]byte(nil), in...)
	if _, err := p.to.Write(out); err != nil {
		return 0, err
	}
	return len(text), nil
}

// sequence by which a terminal changes the colour.
func sequence(out []byte, of colour) []byte {
	return append(append(append(out, "\x1b["...), of...), 'm')
}

// emptied is the sequence by which a terminal empties the line, from its beginning.
const emptied = "\r\x1b[K"

// still ends a line that moves.
func (p *plain) still(out []byte) []byte {
	if p.moving {
		p.moving = false
		out = append(out, emptied...)
	}
	return out
}

func (p *plain) paints() bool { return p.colours }

func (p *plain) paint(of colour) error {
	_, err := p.to.Write(sequence(nil, of))
	return err
}

// move writes a line that the next text takes the place of.
func (p *plain) move(text string) error {
	mark := "◎ "
	if p.colours {
		mark = string(sequence(nil, blue)) + "◎" + string(sequence(nil, noColour)) + " "
	}
	p.moving = true
	_, err := io.WriteString(p.to, emptied+mark+strings.Map(printable, text))
	return err
}

// progress tells a person on a terminal that something is waited for, and for how long. It is
// for one goroutine, and nothing for whoever is none.
type progress struct {
	to    *plain
	what  string
	began time.Time
	shown string
}

// progress begins to tell of what is waited for. It is told anew with each tick, and taken away by
// the end.
func (c *cli) progress(what string) *progress {
	p := &progress{what: what, began: c.now()}
	if to, ok := c.streams.ErrOut.(*plain); ok && to.moves {
		p.to = to
	}
	return p
}

// tick tells for how long it has been waited, once a second.
func (p *progress) tick(now time.Time) {
	if p.to == nil {
		return
	}
	text := fmt.Sprintf("waiting for %s, %s", p.what, now.Sub(p.began).Truncate(time.Second))
	if text == p.shown && p.to.moving {
		return
	}
	p.shown = text
	_ = p.to.move(text) // what fails here fails with the next line, too
}

// end takes away what was told.
func (p *progress) end() {
	if p.to != nil {
		_, _ = p.to.to.Write(p.to.still(nil)) // as above
	}
}

// Runes that stand for colours in the cells of a table on its way to a painter. They are no
// characters of any text, and cells of others are without them.
const (
	cellEnd rune = '\ufdd0' + iota
	cellNone
	cellRed
	cellGreen
	cellYellow
)

// coloured is a cell with runes for its colour. All cells of a column have as many.
func coloured(cell string) string {
	mark := map[colour]rune{noColour: cellNone, red: cellRed, green: cellGreen, yellow: cellYellow}[colourOfCell(cell)]
	return string(mark) + cell + string(cellEnd)
}

// cells write the text of coloured cells to a painter.
type cells struct{ to painter }

// Write implements io.Writer. Each write has whole characters, as a table has.
func (c cells) Write(text []byte) (int, error) {
	at := 0
	for i, r := range string(text) {
		if r < cellEnd || r > cellYellow {
			continue
		}
		if _, err := c.to.Write(text[at:i]); err != nil {
			return 0, err
		}
		of := map[rune]colour{cellRed: red, cellGreen: green, cellYellow: yellow}[r]
		if of == "" {
			of = noColour
		}
		if err := c.to.paint(of); err != nil {
			return 0, err
		}
		at = i + utf8.RuneLen(r)
	}
	if _, err := c.to.Write(text[at:]); err != nil {
		return 0, err
	}
	return len(text), nil
}

// sheet keeps what is written and painted, to be compared before it is shown.
type sheet struct {
	parts   []part
	colours bool
}

// part is text, or a colour if there is no text.
type part struct {
	text string
	of   colour
}

func (s *sheet) paints() bool { return s.colours }

func (s *sheet) paint(of colour) error {
	s.parts = append(s.parts, part{of: of})
	return nil
}

// Write implements io.Writer.
func (s *sheet) Write(text []byte) (int, error) {
	if n := len(s.parts); n > 0 && s.parts[n-1].of == "" {
		s.parts[n-1].text += string(text)
	} else {
		s.parts = append(s.parts, part{text: string(text)})
	}
	return len(text), nil
}

// show writes what is kept.
func (s *sheet) show(out io.Writer) error {
	to, paints := out.(painter)
	for _, p := range s.parts {
		var err error
		switch {
		case p.of == "":
			_, err = io.WriteString(out, p.text)
		case paints:
			err = to.paint(p.of)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// paints reports whether anybody sees colours there.
func paints(out io.Writer) bool {
	to, ok := out.(painter)
	return ok && to.paints()
}
