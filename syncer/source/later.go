package source

import (
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"
)

// Bounds of when a server that refuses may say to come again. What it says of less than leastAfter
// is left to the backoff, which takes longer as soon as it is refused a few times; and one that
// names a time in thirty years is asked before.
const (
	leastAfter = 10 * time.Second
	mostAfter  = time.Hour
)

// later is a refusal of a server that said when to come again. Its text does not say when: that
// would be another failure at each attempt.
type later struct {
	code  int
	after time.Duration
}

func (l *later) Error() string {
	return fmt.Sprintf("the server answered %d %s, and said when to come again", l.code, http.StatusText(l.code))
}

// NonRetriable tells the library of Azure not to ask again at once.
func (l *later) NonRetriable() {}

// Later is an error if a server refuses, and says when to come again; nil otherwise.
func Later(res *http.Response, now time.Time) error {
	switch res.StatusCode {
	case http.StatusTooManyRequests, http.StatusServiceUnavailable, http.StatusForbidden: // GitHub refuses with the last one, too
	default:
		return nil
	}
	said := res.Header.Get("Retry-After")
	at, err := http.ParseTime(said)
	after := at.Sub(now)
	if err != nil {
		seconds, err := strconv.ParseUint(said, 10, 32)
		if err != nil {
			return nil
		}
		after = time.Duration(seconds) * time.Second
	}
	if after < leastAfter {
		return nil
	}
	return &later{code: res.StatusCode, after: min(after, mostAfter)}
}

// After is how long a server that refused is left alone; 0 if it did not say. It is more than
// the server said, so that it is not less once it is spread as intervals are.
func After(err error) time.Duration {
	var l *later
	if !errors.As(err, &l) {
		return 0
	}
	return l.after + l.after/10
}
