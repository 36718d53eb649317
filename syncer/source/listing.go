package source

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"
	"sync/atomic"
)

// MaxTags bounds the tags of one image.
const MaxTags = 100_000

// rememberLists bounds the bytes of answers that are kept for their entity tags, and rememberList those of one.
const (
	rememberLists = 16 << 20
	rememberList  = 1 << 20
)

// Identity is equal for origins that are the same repository, read in the same way with the same credential.
func (o ImageOrigin) Identity() string { return o.key() }

// Canonical is the name of the repository with all that a short one implies.
func (o ImageOrigin) Canonical() (string, error) {
	repo, err := o.repository()
	if err != nil {
		return "", err
	}
	return repo.Name(), nil
}

// TagList is what a registry says of the tags of a repository.
type TagList struct {
	// Tags in the order of the registry. They are of the form that tags have: others are left out.
	Tags []string
	// Unchanged reports that the registry sent none of them, as they are those that it sent before.
	Unchanged bool
}

// tagForm is what a tag may be, by the specification of the distribution protocol.
var tagForm = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9._-]{0,127}$`)

// List lists the tags of a repository. A registry that gives its answers entity tags is asked whether they are
// still right. It refuses more than MaxTags, and answers of more than eight MiB or altogether thirty-two. room is told how
// many bytes more, or fewer, are in memory of what was read, and refuses by its error: many lists may be read at the same time, each
// for as long as its registry likes.
func (i *Images) List(ctx context.Context, origin ImageOrigin, room func(bytes int) error) (TagList, error) {
	var found TagList
	err := i.do(ctx, origin, ReasonReadFailed, func(ctx context.Context, r *registry) error {
		asked := &tagListing{known: i.lists, origin: origin.key(), room: room}
		asked.left.Store(MaxTags + 1000)
		ctx = context.WithValue(ctx, tagListingKey{}, asked)
		failed := func(err error) error {
			what := fmt.Sprintf("cannot list the tags of %s", r.repo)
			if ctx.Err() != nil {
				what += " in time" // the library tells of its first try, by another scheme perhaps
			}
			return imageError(ReasonReadFailed, what, err)
		}
		lister, err := r.puller.Lister(ctx, r.repo)
		if err != nil {
			return failed(err)
		}
		for lister.HasNext() {
			page, err := lister.Next(ctx)
			if err != nil {
				return failed(err)
			}
			size := 0
			for _, tag := range page.Tags {
				if tagForm.MatchString(tag) {
					found.Tags = append(found.Tags, tag)
					size += TagBytes(tag)
				}
			}
			if err := room(size - int(asked.page.Swap(0))); err != nil {
				return failed(err)
			}
			if len(found.Tags) > MaxTags {
				return failed(tooManyTags())
			}
		}
		found.Unchanged = asked.same.Load() > 0 && asked.other.Load() == 0
		return nil
	})
	return found, err
}

// visit calls a function with each tag of a repository, page by page. A registry chooses how large its pages are and
// how long it takes: of each only MaxTags are read, and none is kept.
func (i *Images) visit(ctx context.Context, r *registry, origin ImageOrigin, each func(tag string) error) error {
	asked := &tagListing{known: i.lists, origin: origin.key(), room: func(int) error { return nil }}
	asked.left.Store(MaxTags + 1000)
	ctx = context.WithValue(ctx, tagListingKey{}, asked)
	failed := func(err error) error {
		return imageError(ReasonReadFailed, fmt.Sprintf("cannot list the tags of %s", r.repo), err)
	}
	lister, err := r.puller.Lister(ctx, r.repo)
	if err != nil {
		return failed(err)
	}
	for lister.HasNext() {
		asked.left.Store(MaxTags + 1000)
		page, err := lister.Next(ctx)
		if err != nil {
			return failed(err)
		}
		for _, tag := range page.Tags {
			if !tagForm.MatchString(tag) {
				continue
			}
			if err := each(tag); err != nil {
				return err
			}
		}
	}
	return nil
}

// TagBytes is the memory that a tag takes in a list.
func TagBytes(tag string) int { return len(tag) + 16 } // what refers to it

func tooManyTags() error {
	return failf(ReasonLimitExceeded, "the registry has more than %d tags of it; remove old ones", MaxTags)
}

// listed is an answer with tags.
type listed struct {
	tag    string
	header http.Header
	body   []byte
}

// tagListing is one operation that lists tags.
type tagListing struct {
	known  *recent[string, listed]
	origin string
	// left bounds the elements of lists in all answers, and so the texts that they are read into.
	left atomic.Int64
	// same and other count the answers that were known and those that were sent.
	same, other atomic.Int64
	// room is told what is read, and page counts that of the answer whose tags are not in the list yet.
	room func(bytes int) error
	page atomic.Int64
}

// read counts bytes of an answer with so many elements of lists, and is an error if that is too much.
func (l *tagListing) read(bytes, elements int) error {
	if l.left.Add(-int64(elements)) < 0 {
		return tooManyTags()
	}
	l.page.Add(int64(bytes))
	return l.room(bytes)
}

type tagListingKey struct{}

func isTagList(req *http.Request) bool {
	return req.Method == http.MethodGet && strings.HasSuffix(req.URL.Path, "/tags/list")
}

func (l *tagListing) key(req *http.Request) string { return l.origin + " " + req.URL.RequestURI() }

// conditional asks for an answer only if it is another one than is known.
func (l *tagListing) conditional(req *http.Request) *http.Request {
	known, ok := l.known.get(l.key(req))
	if !ok {
		return req
	}
	req = req.Clone(req.Context())
	req.Header.Set("If-None-Match", known.tag)
	return req
}

// answer returns the body of an answer, the known one for one that is the same.
func (l *tagListing) answer(req *http.Request, res *http.Response) io.ReadCloser {
	body := res.Body
	switch {
	case res.StatusCode == http.StatusNotModified && req.Header.Get("If-None-Match") != "":
		known, ok := l.known.get(l.key(req))
		if !ok || known.tag != req.Header.Get("If-None-Match") {
			return body // forgotten meanwhile; the library says what it got
		}
		_ = body.Close()
		l.same.Add(1)
		res.StatusCode, res.Status, res.Header, res.ContentLength = http.StatusOK, "200 OK", known.header.Clone(), int64(len(known.body))
		body = io.NopCloser(bytes.NewReader(known.body))
	case res.StatusCode == http.StatusOK:
		l.other.Add(1)
		if tag := res.Header.Get("Etag"); tag != "" && len(tag) < 200 {
			header := http.Header{}
			for _, name := range []string{"Content-Type", "Link"} {
				if value := res.Header.Get(name); value != "" {
					header.Set(name, value)
				}
			}
			body = &remembered{ReadCloser: body, as: listed{tag: tag, header: header}, keep: func(as listed) { l.known.put(l.key(req), as, len(as.body)+1000) }}
		}
	}
	return &elements{ReadCloser: body, of: l}
}

// remembered keeps an answer that was read to its end.
type remembered struct {
	io.ReadCloser
	as    listed
	keep  func(listed)
	over  bool
	ended bool
}

func (r *remembered) Read(p []byte) (int, error) {
	n, err := r.ReadCloser.Read(p)
	if len(r.as.body)+n > rememberList {
		r.over, r.as.body = true, nil
	}
	if !r.over {
		r.as.body = append(r.as.body, p[:n]...)
	}
	if err == io.EOF && !r.ended {
		r.ended = true
		if !r.over {
			r.keep(r.as)
		}
	}
	return n, err
}

// Close reads what a reader of JSON leaves: the end of a line.
func (r *remembered) Close() error {
	_, _ = io.CopyN(io.Discard, struct{ io.Reader }{r}, 1<<10)
	return r.ReadCloser.Close()
}

// elements bounds what is in the lists that are fields of a body: a list of a million empty texts is small before it is
// read. What is deeper costs nothing, as nobody reads it: Google's registries tell a lot of each manifest. It
// does not look at the names of fields, of which JSON has many spellings.
type elements struct {
	io.ReadCloser
	of *tagListing

	depth int
	// list: what is open at the second depth is a list.
	list          bool
	text, escaped bool
}

func (e *elements) Read(p []byte) (int, error) {
	n, err := e.ReadCloser.Read(p)
	count := 0
	for _, c := range p[:n] {
		switch {
		case e.escaped:
			e.escaped = false
		case e.text:
			e.escaped, e.text = c == '\\', c != '"'
		case c == '"':
			e.text = true
		case c == '{' || c == '[':
			if e.depth++; e.depth == 2 {
				if e.list = c == '['; e.list {
					count++
				}
			}
		case c == '}' || c == ']':
			e.depth--
		case c == ',' && e.depth == 2 && e.list:
			count++
		}
	}
	if err := e.of.read(n, count); err != nil {
		return 0, err
	}
	return n, err
}
