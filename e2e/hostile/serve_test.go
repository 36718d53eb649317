package hostile

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
)

// says answers everything with a text.
func says(contentType, text string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", contentType)
		_, _ = io.WriteString(w, text) // to a client that may have had enough
	}
}

// statusOf answers everything with a status and a text.
func statusOf(status int, text string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		_, _ = io.WriteString(w, text)
	}
}

// hangs answers nothing until the client goes.
func hangs(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }

// begins answers with headers and the beginning of a body, and then hangs.
func begins(text string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, text)
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	}
}

// drips answers with a byte of a text each 100 ms, over and over.
func drips(text string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		for i := 0; ; i++ {
			if _, err := w.Write([]byte{text[i%len(text)]}); err != nil || http.NewResponseController(w).Flush() != nil {
				return
			}
			select {
			case <-r.Context().Done():
				return
			case <-tick.C:
			}
		}
	}
}

// switches answers that the protocol is another one from now on, which nobody asked for. Then it says a
// piece over and over, or nothing, until the client hangs up.
func switches(piece string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		c, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		defer c.Close()
		_, err = io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n")
		for piece != "" && err == nil {
			_, err = io.WriteString(c, piece)
		}
		_, _ = io.Copy(io.Discard, c)
	}
}

// endless answers with a beginning, and then with a piece over and over.
func endless(begin, piece string) http.HandlerFunc {
	piece = strings.Repeat(piece, 1+(1<<16)/len(piece))
	return func(w http.ResponseWriter, r *http.Request) {
		_, err := io.WriteString(w, begin)
		for err == nil && r.Context().Err() == nil {
			_, err = io.WriteString(w, piece)
		}
	}
}

// bombing answers with a beginning and four gigabytes of spaces, gzipped, to whom asks
// for that or not. It is made once, as who means harm would, and costs the server nothing.
func bombing(begin string) http.HandlerFunc {
	first, more := gzipped(begin), gzipped(strings.Repeat(" ", 1<<20))
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Encoding", "gzip")
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(first)
		for range 1 << 12 {
			if _, err := w.Write(more); err != nil || r.Context().Err() != nil {
				return
			}
		}
	}
}

// gzipped is a text as a member of a gzip file. What reads one member reads all that follow.
func gzipped(text string) []byte {
	var b bytes.Buffer
	gz := gzip.NewWriter(&b)
	_, _ = io.WriteString(gz, text) // a buffer takes all
	_ = gz.Close()
	return b.Bytes()
}

// leads redirects everything to another address.
func leads(status int, to string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, to+r.URL.Path, status) }
}

// circles redirects everything to the same server, under another path each time.
func circles(w http.ResponseWriter, r *http.Request) {
	http.Redirect(w, r, "/x"+r.URL.RequestURI(), http.StatusFound)
}

// headers answers with a million headers, or as many as the client takes.
func headers(w http.ResponseWriter, _ *http.Request) {
	for i := range 100_000 {
		w.Header().Set(fmt.Sprint("X-", i), strings.Repeat("x", 100))
	}
}

// lies says that a body is longer than it is, and cuts the connection.
func lies(text string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", fmt.Sprint(len(text)+1<<30))
		_, _ = io.WriteString(w, text)
	}
}

// paths answers by the end of the path, and what is not there as rest says.
func paths(rest http.HandlerFunc, by map[string]http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		for suffix, h := range by {
			if strings.HasSuffix(r.URL.Path, suffix) {
				h(w, r)
				return
			}
		}
		rest(w, r)
	}
}
