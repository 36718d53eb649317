package credential

import (
	"bytes"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"golang.org/x/crypto/ssh"
)

// mostAhead is the furthest end that is believed: later ones are nobody's intent.
const mostAhead = 100 * 365 * 24 * time.Hour

// End is when something ends by what is in it: certificates, signed keys, tokens, and the
// fields in which secrets engines say so. Zero if nothing says. It is for what is not leased,
// and for leases that outlive their content.
func End(fields map[string]any, asked time.Time) time.Time {
	fields = unwrapped(fields)
	var first time.Time
	see := func(end time.Time) {
		if end.IsZero() || end.Sub(asked) > mostAhead {
			return
		}
		if first.IsZero() || end.Before(first) {
			first = end.UTC()
		}
	}
	for name, value := range fields {
		text, _ := value.(string)
		switch name {
		case "expiration", "expires_at_seconds":
			see(unixOf(value))
		case "expires_at", "expiry", "expiration_time":
			if at, err := time.Parse(time.RFC3339, text); err == nil {
				see(at)
			} else {
				see(unixOf(value))
			}
		case "ttl", "token_ttl":
			if d := secondsOf(value); d > 0 && d < mostAhead {
				see(asked.Add(d))
			}
		}
		if text != "" {
			see(EndOf([]byte(text)))
		}
	}
	return first
}

// EndOf is when a text ends that is a certificate, a signed key of SSH, or a token that says
// so; zero for any other.
func EndOf(text []byte) time.Time {
	text = bytes.TrimSpace(text)
	switch {
	case len(text) == 0 || len(text) > mostContent:
		return time.Time{}
	case bytes.HasPrefix(text, []byte("-----BEGIN CERTIFICATE-----")):
		// The first is whose it is. Those behind it may end earlier, and then it is of no use.
		var first time.Time
		for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
			if c, err := x509.ParseCertificate(block.Bytes); err == nil && (first.IsZero() || c.NotAfter.Before(first)) {
				first = c.NotAfter
			}
		}
		return first
	case bytes.Contains(text[:min(len(text), 64)], []byte("-cert-v01@openssh.com ")):
		if key, _, _, _, err := ssh.ParseAuthorizedKey(text); err == nil {
			if c, ok := key.(*ssh.Certificate); ok && c.ValidBefore != ssh.CertTimeInfinity && c.ValidBefore < 1<<40 {
				return time.Unix(int64(c.ValidBefore), 0)
			}
		}
	case bytes.HasPrefix(text, []byte("eyJ")) && bytes.Count(text, []byte(".")) == 2 && len(text) < 64<<10:
		claims := jwt.RegisteredClaims{}
		if _, _, err := jwt.NewParser().ParseUnverified(string(text), &claims); err == nil && claims.ExpiresAt != nil {
			return claims.ExpiresAt.Time
		}
	}
	return time.Time{}
}

// numberOf is a whole number that an answer has as a number or a text.
func numberOf(value any) (int64, bool) {
	var text string
	switch v := value.(type) {
	case json.Number:
		text = v.String()
	case string:
		text = strings.TrimSpace(v)
	case float64:
		text = strconv.FormatFloat(v, 'f', -1, 64)
	default:
		return 0, false
	}
	n, err := strconv.ParseInt(text, 10, 64)
	return n, err == nil
}

func unixOf(value any) time.Time {
	if n, ok := numberOf(value); ok && n > 0 && n < 1<<40 {
		return time.Unix(n, 0)
	}
	return time.Time{}
}

func secondsOf(value any) time.Duration {
	if n, ok := numberOf(value); ok {
		if n <= 0 || n > int64(mostAhead/time.Second) {
			return 0
		}
		return time.Duration(n) * time.Second
	}
	if text, ok := value.(string); ok {
		if d, err := time.ParseDuration(text); err == nil && d > 0 {
			return d
		}
	}
	return 0
}

// parseTime reads a time of an annotation; zero for none.
func parseTime(text string) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	t, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		return time.Time{}, fmt.Errorf("cannot read time %.40q", text)
	}
	return t.UTC(), nil
}

func formatTime(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(time.RFC3339Nano)
}
