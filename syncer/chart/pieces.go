package chart

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"

	repo "helm.sh/helm/v4/pkg/repo/v1"
	"sigs.k8s.io/yaml"

	"github.com/cascade-gitops/cascade/syncer/render"
)

// Limits of an index beside its size. YAML and JSON become many times larger in
// memory, so an index is never parsed as a whole unless it is small.
const (
	// maxPiece bounds one version of one chart.
	maxPiece = 512 << 10
	// maxWhole bounds an index that is in no form that can be read in pieces.
	maxWhole = 1 << 20
	// maxVersions bounds the versions of all charts, with the names.
	maxVersions = 100_000
)

// errOdd is wrapped by errors for YAML that cannot be read in pieces, but may
// be correct.
var errOdd = errors.New("it is not in the form that `helm repo index` writes")

// sink takes an index apart.
type sink interface {
	// begin is called for each chart, with all its versions to follow.
	begin(name string, null bool) error
	version(*repo.ChartVersion) error
}

// readYAML reads an index in YAML's block style piece by piece: the lines of one
// version are parsed by the library, and no more. Where a piece ends is clear from
// the columns in which lines begin; only inside of quotes and brackets may lines
// begin further to the left than what they belong to, and a piece that ends there
// is no YAML. The head has what is not in a list of versions.
func readYAML(r io.Reader, to sink) (*repo.IndexFile, error) {
	y := &yamlPieces{lines: bufio.NewReaderSize(r, 64<<10), to: to, names: map[string]bool{}}
	var rest bytes.Buffer
	listed, streamed := false, false
	if err := y.next(); err != nil {
		return nil, err
	}
	for !y.end {
		if y.column != 0 {
			return nil, fmt.Errorf("%w: line %d is indented", errOdd, y.number)
		}
		if entriesKey.Match(y.line) {
			if listed {
				return nil, errors.New(`key "entries" is there twice`)
			}
			listed = true
			if err := y.next(); err != nil {
				return nil, err
			}
			if y.end || y.column == 0 {
				rest.WriteString("entries:\n") // null, or a list, which is wrong
				if err := y.collect(&rest, maxWhole, y.section); err != nil {
					return nil, err
				}
				continue
			}
			streamed = true
			if err := y.charts(); err != nil {
				return nil, err
			}
			continue
		}
		rest.Write(y.line)
		if err := y.next(); err != nil {
			return nil, err
		}
		if err := y.collect(&rest, maxWhole, y.section); err != nil {
			return nil, err
		}
	}
	head := &repo.IndexFile{}
	if err := decode(rest.Bytes(), head); err != nil {
		return nil, err
	}
	if streamed {
		if head.Entries != nil {
			return nil, errors.New(`key "entries" is there twice`)
		}
		head.Entries = map[string]repo.ChartVersions{}
		return head, nil
	}
	return head, spill(head, to)
}

var (
	// The library ends a line also at characters that are not ASCII.
	entriesKey = regexp.MustCompile(`^(entries|"entries"|'entries'):[ \t]*(#[\t -~]*)?\r?\n?$`)
	// plainKey is a key whose value is on the lines that follow.
	plainKey = regexp.MustCompile(`^ *([A-Za-z0-9][A-Za-z0-9._/-]*|"[^"\\]*"|'[^']*'):[ \t]*(#[\t -~]*)?\r?\n?$`)
)

// yamlPieces is at a line that is neither blank nor a comment, or at the end.
type yamlPieces struct {
	lines *bufio.Reader
	to    sink
	names map[string]bool
	any   bool

	line []byte
	// column in which the line begins; far to the right if it begins with a tab.
	column int
	number int
	end    bool
	// skipped are blank lines and comments before the line: they may belong to the
	// piece that the line continues.
	skipped []byte
}

// next goes to the next line that is not blank or a comment.
func (y *yamlPieces) next() error {
	y.skipped = y.skipped[:0]
	for {
		line, err := y.lines.ReadSlice('\n')
		if errors.Is(err, bufio.ErrBufferFull) {
			y.line = append(y.line[:0], line...)
			for errors.Is(err, bufio.ErrBufferFull) {
				line, err = y.lines.ReadSlice('\n')
				if y.line = append(y.line, line...); len(y.line) > maxPiece {
					return limitf("line %d of the index has more than %d bytes", y.number+1, maxPiece)
				}
			}
			line = y.line
		}
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		if len(line) == 0 {
			y.end = true
			return nil
		}
		if y.number++; y.number == 1 {
			line = bytes.TrimPrefix(line, []byte("\xEF\xBB\xBF"))
		}
		text := bytes.TrimLeft(line, " ")
		switch {
		case len(bytes.TrimSpace(text)) == 0 || text[0] == '#':
			if y.skipped = append(y.skipped, line...); len(y.skipped) > maxPiece {
				return limitf("the index has more than %d bytes of comments before line %d", maxPiece, y.number)
			}
			continue
		case bytes.HasPrefix(line, []byte("---")) && !y.any && len(bytes.TrimSpace(line)) == 3:
			y.any = true
			continue
		case bytes.HasPrefix(line, []byte("---")), bytes.HasPrefix(line, []byte("...")), line[0] == '%', line[0] == '{', line[0] == '[':
			return fmt.Errorf("%w: line %d", errOdd, y.number)
		}
		y.any = true
		y.line = append(y.line[:0], line...)
		if y.column = len(line) - len(text); text[0] == '\t' {
			y.column = 1 << 30
		}
		return nil
	}
}

// item: the line begins an entry of a list.
func (y *yamlPieces) item() bool {
	text := y.line[min(y.column, len(y.line)):]
	return len(text) > 0 && text[0] == '-' && (len(text) == 1 || strings.IndexByte(" \t\r\n", text[1]) >= 0)
}

// section: the line begins a part of the index.
func (y *yamlPieces) section() bool { return y.column == 0 && !y.item() }

// collect appends lines up to the first one for which stop holds, or the end, with
// the blank lines before that one, which may belong to a text.
func (y *yamlPieces) collect(piece *bytes.Buffer, most int, stop func() bool) error {
	for {
		piece.Write(y.skipped)
		if piece.Len() > most {
			return limitf("a part of the index that ends in line %d has more than %d bytes", y.number, most)
		}
		if y.end || stop() {
			return nil
		}
		piece.Write(y.line)
		if err := y.next(); err != nil {
			return err
		}
	}
}

// charts reads the mapping of names to versions, up to the next line in column 0.
func (y *yamlPieces) charts() error {
	column := y.column
	var piece bytes.Buffer
	for !y.end && y.column > 0 {
		if y.column != column {
			return fmt.Errorf("%w: line %d is indented in another way than the first chart", errOdd, y.number)
		}
		piece.Reset()
		piece.Write(y.line)
		if !plainKey.Match(y.line) {
			if err := y.next(); err != nil {
				return err
			}
			if err := y.collect(&piece, maxWhole, func() bool { return y.column <= column && (y.column < column || !y.item()) }); err != nil {
				return err
			}
			if err := y.chart(piece.Bytes()); err != nil {
				return err
			}
			continue
		}
		if err := y.next(); err != nil {
			return err
		}
		if y.end || y.column < column || y.column == column && !y.item() {
			if err := y.chart(piece.Bytes()); err != nil { // null
				return err
			}
			continue
		}
		if !y.item() {
			return fmt.Errorf("%w: line %d is no list of versions", errOdd, y.number)
		}
		var key map[string]any
		if err := yaml.Unmarshal(piece.Bytes(), &key); err != nil || len(key) != 1 {
			return fmt.Errorf("%w: the key before line %d", errOdd, y.number)
		}
		for name := range key {
			if err := y.begin(name, false); err != nil {
				return err
			}
		}
		items := y.column
		for !y.end && y.column == items && y.item() {
			piece.Reset()
			piece.Write(y.line)
			if err := y.next(); err != nil {
				return err
			}
			if err := y.collect(&piece, maxPiece, func() bool { return y.column <= items }); err != nil {
				return err
			}
			var versions repo.ChartVersions
			if err := decode(piece.Bytes(), &versions); err != nil {
				return fmt.Errorf("before line %d: %w", y.number, err)
			}
			for _, v := range versions {
				if err := y.to.version(v); err != nil {
					return err
				}
			}
		}
		if !y.end && y.column > column {
			return fmt.Errorf("%w: line %d is indented in another way than the first version", errOdd, y.number)
		}
	}
	return nil
}

// chart reads one chart as a whole.
func (y *yamlPieces) chart(piece []byte) error {
	var entry map[string]repo.ChartVersions
	if err := decode(piece, &entry); err != nil {
		return fmt.Errorf("before line %d: %w", y.number, err)
	}
	if len(entry) != 1 {
		return fmt.Errorf("%w: before line %d", errOdd, y.number)
	}
	for name, versions := range entry {
		if err := y.begin(name, versions == nil); err != nil {
			return err
		}
		for _, v := range versions {
			if err := y.to.version(v); err != nil {
				return err
			}
		}
	}
	return nil
}

func (y *yamlPieces) begin(name string, null bool) error {
	if y.names[name] {
		return fmt.Errorf("chart %q is there twice", name)
	}
	y.names[name] = true
	return y.to.begin(name, null)
}

// decode parses a piece as Helm parses an index: a field that it does not know is
// an error.
func decode(piece []byte, into any) error {
	if err := render.Check(piece); err != nil {
		return err
	}
	return yaml.UnmarshalStrict(piece, into)
}

// readWhole parses a small YAML index at once.
func readWhole(data []byte, to sink) (*repo.IndexFile, error) {
	head := &repo.IndexFile{}
	if err := decode(data, head); err != nil {
		return nil, err
	}
	return head, spill(head, to)
}

// spill moves the charts that are in a head.
func spill(head *repo.IndexFile, to sink) error {
	for name, versions := range head.Entries {
		if err := to.begin(name, versions == nil); err != nil {
			return err
		}
		for _, v := range versions {
			if err := to.version(v); err != nil {
				return err
			}
		}
	}
	return nil
}

// jsonPieces limits how much is read at a time.
type jsonPieces struct {
	r    io.Reader
	left int
}

func (p *jsonPieces) Read(b []byte) (int, error) {
	if p.left <= 0 {
		return 0, limitf("a part of the index has more than %d bytes", maxPiece)
	}
	n, err := p.r.Read(b[:min(len(b), p.left)])
	p.left -= n
	return n, err
}

// readJSON reads an index in JSON piece by piece.
func readJSON(r io.Reader, to sink) (*repo.IndexFile, error) {
	// The decoder reads ahead as much as one piece, and doubles its buffer.
	pieces := &jsonPieces{r: r, left: 3 * maxPiece}
	d := json.NewDecoder(pieces)
	if err := delimiter(d, '{'); err != nil {
		return nil, err
	}
	rest, size, null := map[string]json.RawMessage{}, 0, true
	for d.More() {
		key, err := token[string](d)
		if err != nil {
			return nil, err
		}
		if !strings.EqualFold(key, "entries") {
			var raw json.RawMessage
			if err := d.Decode(&raw); err != nil {
				return nil, err
			}
			pieces.left = 3 * maxPiece
			if size += len(key) + len(raw); size > maxWhole {
				return nil, limitf("the index has more than %d bytes beside its charts", maxWhole)
			}
			rest[key] = raw
			continue
		}
		if null, err = jsonCharts(d, pieces, to); err != nil {
			return nil, err
		}
	}
	if err := delimiter(d, '}'); err != nil {
		return nil, err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("there is more after the index")
	}
	head := &repo.IndexFile{}
	data, err := json.Marshal(rest)
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(data, head); err != nil {
		return nil, err
	}
	if !null {
		head.Entries = map[string]repo.ChartVersions{}
	}
	return head, nil
}

func jsonCharts(d *json.Decoder, pieces *jsonPieces, to sink) (null bool, err error) {
	open, err := d.Token()
	if err != nil {
		return false, err
	}
	if open == nil {
		return true, nil
	}
	if open != json.Delim('{') {
		return false, errors.New("entries is no object")
	}
	for d.More() {
		name, err := token[string](d)
		if err != nil {
			return false, err
		}
		open, err := d.Token()
		if err != nil {
			return false, err
		}
		if err := to.begin(name, open == nil); err != nil {
			return false, err
		}
		pieces.left = 3 * maxPiece
		if open == nil {
			continue
		}
		if open != json.Delim('[') {
			return false, fmt.Errorf("the versions of chart %q are no list", name)
		}
		for d.More() {
			var v *repo.ChartVersion
			if err := d.Decode(&v); err != nil {
				return false, err
			}
			pieces.left = 3 * maxPiece
			if err := to.version(v); err != nil {
				return false, err
			}
		}
		if err := delimiter(d, ']'); err != nil {
			return false, err
		}
	}
	return false, delimiter(d, '}')
}

func token[T any](d *json.Decoder) (t T, err error) {
	got, err := d.Token()
	if err != nil {
		return t, err
	}
	t, ok := got.(T)
	if !ok {
		return t, fmt.Errorf("%v is not expected in an index", got)
	}
	return t, nil
}

func delimiter(d *json.Decoder, want json.Delim) error {
	got, err := token[json.Delim](d)
	if err == nil && got != want {
		err = fmt.Errorf("%v is not expected in an index", got)
	}
	return err
}
