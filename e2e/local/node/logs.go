package node

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/big"
	"net"
	"net/http"
	"os"
	"strconv"
	"time"
)

// logHandler answers what the API server asks for `kubectl logs`. It is the only thing a kubelet serves that makes sense here:
// to run a command in a pod, run it on the host.
func logHandler(pods *pods) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /containerLogs/{namespace}/{pod}/{container}", func(w http.ResponseWriter, r *http.Request) {
		var file *os.File
		object, err := pods.GetPod(r.Context(), r.PathValue("namespace"), r.PathValue("pod"))
		if err == nil {
			if p := pods.worker(object.UID); p != nil {
				file, err = os.Open(p.logPath(r.PathValue("container")))
			}
		}
		if err != nil || file == nil {
			status := http.StatusNotFound
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				status = http.StatusInternalServerError
			}
			http.Error(w, fmt.Sprintf("cannot read log: %v", err), status)
			return
		}
		defer file.Close()
		query := r.URL.Query()
		if tail := query.Get("tailLines"); tail != "" {
			lines, err := strconv.Atoi(tail)
			if err == nil {
				err = seekTail(file, lines)
			}
			if err != nil {
				http.Error(w, fmt.Sprintf("cannot find the last lines: %v", err), http.StatusBadRequest)
				return
			}
		}
		w.Header().Set("Content-Type", "text/plain")
		if _, err := io.Copy(w, file); err != nil || query.Get("follow") != "true" {
			return // a reader that went away is nobody to tell
		}
		followLog(r.Context(), w, file)
	})
	return mux
}

// followLog sends what is appended until the reader goes away.
func followLog(ctx context.Context, w http.ResponseWriter, file *os.File) {
	control := http.NewResponseController(w)
	for {
		if err := control.Flush(); err != nil {
			return
		}
		if !sleep(ctx, 300*time.Millisecond) {
			return
		}
		if _, err := io.Copy(w, file); err != nil {
			return
		}
	}
}

// seekTail moves to the start of the last lines, reading backwards.
func seekTail(file io.ReadSeeker, lines int) error {
	end, err := file.Seek(0, io.SeekEnd)
	if err != nil {
		return err
	}
	buffer := make([]byte, 8192)
	start := end
	for start > 0 {
		n := min(int64(len(buffer)), start)
		start -= n
		if _, err := file.Seek(start, io.SeekStart); err != nil {
			return err
		}
		chunk := buffer[:n]
		if _, err := io.ReadFull(file, chunk); err != nil {
			return err
		}
		if start+n == end && lines > 0 {
			chunk = bytes.TrimSuffix(chunk, []byte("\n"))
		}
		for i := len(chunk) - 1; i >= 0; i-- {
			if chunk[i] != '\n' {
				continue
			}
			if lines--; lines <= 0 {
				_, err := file.Seek(start+int64(i)+1, io.SeekStart)
				return err
			}
		}
	}
	_, err = file.Seek(0, io.SeekStart)
	return err
}

// selfSigned is the server's certificate. The API server does not check it unless told to; what is served here, anyone on
// this machine who could connect can also read on its disk.
func selfSigned(ip string) (*tls.Config, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("cannot make key: %w", err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()),
		Subject:      pkix.Name{CommonName: "cascade-local-node"},
		NotBefore:    time.Now().Add(-time.Hour),
		NotAfter:     time.Now().AddDate(1, 0, 0),
		IPAddresses:  []net.IP{net.ParseIP(ip)},
	}
	certificate, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("cannot make certificate: %w", err)
	}
	return &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{certificate}, PrivateKey: key}}}, nil
}
