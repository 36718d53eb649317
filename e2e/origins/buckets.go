package origins

import (
	"fmt"
	"net/http"
	"strings"

	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"
)

// Buckets is an S3 server.
type Buckets struct {
	server
	backend *s3mem.Backend
}

// StartBuckets starts one that wants a key, by its name; "" wants none. The
// signature is not verified. It must be closed.
func StartBuckets(accessKey string) *Buckets {
	b := &Buckets{backend: s3mem.New()}
	b.listen(gofakes3.New(b.backend, gofakes3.WithLogger(gofakes3.DiscardLog())).Server(), func(w http.ResponseWriter, r *http.Request) bool {
		if accessKey == "" || strings.Contains(r.Header.Get("Authorization"), "Credential="+accessKey+"/") {
			return false
		}
		w.Header().Set("Content-Type", "application/xml")
		w.WriteHeader(http.StatusForbidden)
		_, _ = fmt.Fprint(w, `<?xml version="1.0" encoding="UTF-8"?><Error><Code>InvalidAccessKeyId</Code><Message>The access key is unknown.</Message></Error>`)
		return true
	})
	return b
}

// Put creates a bucket if there is none, and puts files into it; "" removes one.
func (b *Buckets) Put(bucket string, files map[string]string) error {
	if exists, err := b.backend.BucketExists(bucket); err != nil {
		return fmt.Errorf("cannot look for bucket %s: %w", bucket, err)
	} else if !exists {
		if err := b.backend.CreateBucket(bucket); err != nil {
			return fmt.Errorf("cannot create bucket %s: %w", bucket, err)
		}
	}
	for key, text := range files {
		if text == "" {
			if _, err := b.backend.DeleteObject(bucket, key); err != nil {
				return fmt.Errorf("cannot delete %s: %w", key, err)
			}
			continue
		}
		if _, err := b.backend.PutObject(bucket, key, map[string]string{"Last-Modified": "Thu, 01 Jan 2026 00:00:00 GMT"}, strings.NewReader(text), int64(len(text)), nil); err != nil {
			return fmt.Errorf("cannot put %s: %w", key, err)
		}
	}
	return nil
}
