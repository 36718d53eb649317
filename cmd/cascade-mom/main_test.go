//go:build linux

package main

import (
	"bufio"
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"filippo.io/age"

	"github.com/cascade-gitops/cascade/mom"
)

func TestCheck(t *testing.T) {
	fine := up{branch: "main", firstSync: "adopt", interval: time.Minute, keep: 1}
	for name, tc := range map[string]struct {
		reason string
		change func(*up)
		want   string
	}{
		"Fine":      {"nothing is said", func(*up) {}, ""},
		"State":     {"a state, and who can go on from it", func(u *up) { u.state, u.identityFile = "s", "key" }, ""},
		"NoKey":     {"a state that nobody could open", func(u *up) { u.state = "s" }, "cannot keep a state without --identity"},
		"NoState":   {"keys for nothing", func(u *up) { u.recipients = []string{"age1"} }, "without --state"},
		"Version":   {"a version of nothing", func(u *up) { u.version = "1-1" }, "without --state"},
		"FirstSync": {"a word that is none", func(u *up) { u.firstSync = "yes" }, `--first-sync "yes"`},
		"Until":     {"nor this", func(u *up) { u.until = "done" }, `--until "done"`},
		"For":       {"a time that is over", func(u *up) { u.lasts = -1 }, "--for"},
		"Branch":    {"a variable that is not set: it would be any branch", func(u *up) { u.branch = "" }, "--branch"},
		"Keep":      {"the newest is always kept", func(u *up) { u.keep = 0 }, "--keep 0"},
	} {
		t.Run(name, func(t *testing.T) {
			u := fine
			tc.change(&u)
			err := u.check()
			if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%s: got %v, want %q", tc.reason, err, tc.want)
			}
		})
	}
}

// TestStateOf: the state is opened with what cascade save opens it with, or with the login of the repository.
func TestStateOf(t *testing.T) {
	var seen []string
	var mu sync.Mutex
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		name, password, _ := r.BasicAuth()
		seen = append(seen, r.Header.Get("Authorization"), name+":"+password)
		w.Header().Set("WWW-Authenticate", `Basic realm="x"`)
		w.WriteHeader(http.StatusUnauthorized)
	})
	server, plain := httptest.NewTLSServer(handler), httptest.NewServer(handler)
	defer server.Close()
	defer plain.Close()
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	id, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	credentials := filepath.Join(dir, "credentials")
	if err := errors.Join(os.WriteFile(filepath.Join(dir, "key"), []byte(id.String()+"\n"), 0o600), os.Mkdir(credentials, 0o700)); err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string]string{"accesskey": "of-files", "secretkey": "s\n", "username": "of-files", "password": "s\n", "ca.crt": string(ca)} {
		if err := os.WriteFile(filepath.Join(credentials, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	ann := map[string][]byte{"username": []byte("ann"), "password": []byte("s3cret"), "ca.crt": ca}
	for name, tc := range map[string]struct {
		reason string
		change func(*up)
		env    string
		want   string // of what the server is shown
	}{
		"Endpoint": {"keys of the environment are for the server that is named", func(u *up) { u.state = "s3://state/mom?endpoint=" + plain.URL }, "of-environment", "Credential=of-environment/"},
		"EndpointFiles": {"a directory has others, and who vouches for the server", func(u *up) {
			u.state, u.stateCredentials = "s3://state/mom?endpoint="+server.URL, credentials
		}, "of-environment", "Credential=of-files/"},
		"Git": {"the state is where the repository is", func(u *up) { u.state = "git+" + server.URL + "/state.git" }, "", "ann:s3cret"},
		"GitFiles": {"it is somebody else's there", func(u *up) {
			u.state, u.stateCredentials = "git+"+server.URL+"/state.git", credentials
		}, "", "of-files:s"},
		"GitElsewhere": {"a login is for its server", func(u *up) { u.state, u.url = "git+"+server.URL+"/state.git", "https://example.com/masters" }, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("AWS_ACCESS_KEY_ID", tc.env)
			t.Setenv("AWS_SECRET_ACCESS_KEY", "s")
			u := &up{url: server.URL + "/masters", identityFile: filepath.Join(dir, "key"), keep: 1}
			tc.change(u)
			seen = nil
			s, err := u.stateOf(t.Context(), ann)
			if err != nil {
				t.Fatalf("%s: %v", tc.reason, err)
			}
			defer s.Store.Close()
			if _, err := s.Store.Versions(t.Context()); err == nil {
				t.Error("a server that refuses has versions")
			}
			mu.Lock()
			defer mu.Unlock()
			if all := strings.Join(seen, " "); !strings.Contains(all, tc.want) || tc.want == "" && strings.Contains(all, "ann") {
				t.Errorf("%s: the server is shown %q", tc.reason, all)
			}
		})
	}
}

// TestEndings: a terminal that closes is told to programs, who save; nohup says that it is not.
func TestEndings(t *testing.T) {
	defer signal.Reset(syscall.SIGHUP)
	for name, tc := range map[string]struct {
		reason  string
		dispose func()
		want    bool
	}{
		"Terminal": {"the state is to be saved, and the lock given back", func() { signal.Notify(make(chan os.Signal, 1), syscall.SIGHUP) }, true},
		"NoHup":    {"it goes on without a terminal", func() { signal.Ignore(syscall.SIGHUP) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			tc.dispose()
			got := endings()
			if slices.Contains(got, os.Signal(syscall.SIGHUP)) != tc.want || !slices.Contains(got, os.Signal(syscall.SIGTERM)) || !slices.Contains(got, os.Interrupt) {
				t.Errorf("%s: got %v", tc.reason, got)
			}
		})
	}
}

// TestKeepAwake: neither Ctrl-Z nor the end of who reads its output stops who renews the lock.
func TestKeepAwake(t *testing.T) {
	keepAwake()
	for _, s := range []os.Signal{syscall.SIGTSTP, syscall.SIGTTIN, syscall.SIGTTOU, syscall.SIGPIPE} {
		if !signal.Ignored(s) {
			t.Errorf("%s stops it, and its programs go on or are killed", s)
		}
	}
}

// unread is an output whose reader has ended.
type unread struct{}

func (unread) Write([]byte) (int, error) { return 0, syscall.EPIPE }

// TestUnread: what was done is done, whoever reads that it was.
func TestUnread(t *testing.T) {
	options := func(dir string) mom.Options {
		return mom.Options{
			Folder: mom.Folder(dir), Programs: dir, Now: time.Now, Rand: func() float64 { return 0 },
			Say: func(format string, args ...any) { fmt.Printf(format+"\n", args...) },
		}
	}
	if dir := os.Getenv("MOM_TEST_UNREAD"); dir != "" {
		ctx, stop := signal.NotifyContext(t.Context(), syscall.SIGTERM)
		defer stop()
		if err := mom.Up(ctx, options(dir)); err != nil {
			t.Fatal(err)
		}
		return
	}
	stopped, stop := context.WithCancel(t.Context())
	stop()
	u := &up{out: unread{}}
	if err := u.bringUp(stopped, options(t.TempDir())); err != nil {
		t.Errorf("up: %v", err)
	}

	p := &place{name: "mom", dir: t.TempDir()}
	running := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestUnread$")
	running.Env = append(os.Environ(), "MOM_TEST_UNREAD="+p.dir)
	said, err := running.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := running.Start(); err != nil {
		t.Fatal(err)
	}
	// It has no programs, which it says when it tries to start them.
	if line, err := bufio.NewReader(said).ReadString('\n'); !strings.Contains(line, mom.PlaneProgram) {
		t.Fatalf("it says %q, %v", line, err)
	}
	down := newDown(p)
	down.SetArgs(nil)
	down.SetOut(unread{})
	if err := down.ExecuteContext(t.Context()); err != nil {
		t.Errorf("down: %v", err)
	}
	if err := running.Wait(); err != nil {
		t.Errorf("it ended with %v", err)
	}
}

func TestEnvironment(t *testing.T) {
	got := environment([]string{"PATH=/bin", "GIT_PASSWORD=secret", "AWS_PROFILE=ann", "KUBECONFIG=/k", "GIT_KEY_PASSPHRASE=secret", "HTTPS_PROXY=http://p"})
	if want := []string{"PATH=/bin", "AWS_PROFILE=ann", "HTTPS_PROXY=http://p"}; !slices.Equal(got, want) {
		t.Errorf("programs get %q, want %q", got, want)
	}
}

func TestFolder(t *testing.T) {
	for name, tc := range map[string]struct {
		reason          string
		place           place
		state, home     string
		want, complaint string
	}{
		"Home":  {"where users keep state", place{name: "mom"}, "", "/home/ann", "/home/ann/.local/state/cascade/mom/mom", ""},
		"State": {"where they say that they keep it", place{name: "two"}, "/var/ann", "/home/ann", "/var/ann/cascade/mom/two", ""},
		"Dir":   {"where they say now", place{name: "mom", dir: "/tmp/x"}, "/var/ann", "/home/ann", "/tmp/x", ""},
		"Name":  {"a name must not lead elsewhere", place{name: ".."}, "", "/home/ann", "", `--name ".."`},
		"None":  {"a job without a home", place{name: "mom"}, "", "", "", "say --dir"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("HOME", tc.home)
			t.Setenv("XDG_STATE_HOME", tc.state)
			got, err := tc.place.folder()
			if got != mom.Folder(tc.want) || (err == nil) != (tc.complaint == "") || err != nil && !strings.Contains(err.Error(), tc.complaint) {
				t.Errorf("%s: got %s, %v", tc.reason, got, err)
			}
		})
	}
}

// TestAsItIs: what a run that was killed, or that stands still, said last is not taken for how it is.
func TestAsItIs(t *testing.T) {
	now := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	well := func(phase mom.Phase, looked time.Time) mom.Status {
		return mom.Status{PID: 7, Phase: phase, Looked: looked, Verdict: mom.Verdict{Ready: true}, State: &mom.StateStatus{Version: "5-7"}}
	}
	for name, tc := range map[string]struct {
		reason string
		said   mom.Status
		pid    int
		phase  mom.Phase
		tells  string
		ready  bool
	}{
		"Running":  {"it looked a moment ago", well(mom.PhaseRunning, now.Add(-3*time.Second)), 7, mom.PhaseRunning, "", true},
		"Silent":   {"it stands still, or its disk is full", well(mom.PhaseRunning, now.Add(-2*time.Minute)), 7, mom.PhaseRunning, "says nothing since 2026-01-01T11:58:00Z", false},
		"Earlier":  {"an earlier program does not say when", well(mom.PhaseRunning, time.Time{}), 7, mom.PhaseRunning, "", true},
		"Starting": {"it installs, and looks later", well(mom.PhaseStarting, now.Add(-time.Hour)), 7, mom.PhaseStarting, "", true},
		"Saving":   {"it saves", well(mom.PhaseStopping, now.Add(-2*time.Minute)), 7, mom.PhaseStopping, "", true},
		"Killed":   {"it was killed while it saved", well(mom.PhaseStopping, now), 0, mom.PhaseStopped, "ended without saving", true},
		"Unnamed":  {"it runs in another container", well(mom.PhaseRunning, now.Add(-3*time.Second)), mom.Unnamed, mom.PhaseRunning, "", true},
		"Stopped":  {"it saved", well(mom.PhaseStopped, now.Add(-time.Hour)), 0, mom.PhaseStopped, "", true},
	} {
		t.Run(name, func(t *testing.T) {
			got := asItIs(tc.said, tc.pid, now)
			if got.Phase != tc.phase || !strings.Contains(got.Message, tc.tells) || (tc.tells == "") != (got.Message == "") || got.Verdict.Ready != tc.ready {
				t.Errorf("%s: %+v", tc.reason, got)
			}
		})
	}
}

func TestPrinted(t *testing.T) {
	at := time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)
	running := mom.Status{
		Phase: mom.PhaseRunning, Since: at, Repository: "ssh://git@example.com/masters", Branch: "prod", Path: "mom", Kubeconfig: "/k",
		Verdict: mom.Verdict{Ready: true, Depends: []string{"Child/n/one: credential cloud lapses"}},
		State:   &mom.StateStatus{Address: "s3://fleet/mom", Version: "2-1", SavedAt: at, Unsaved: true},
	}
	for _, want := range []string{
		"Running since 2030-01-02T03:04:05Z\n", "repository: ssh://git@example.com/masters, branch prod, path mom\n", "state: s3://fleet/mom, version 2-1 of 2030-01-02T03:04:05Z, changed since\n", "ready: it may go\n",
		"but: Child/n/one: credential cloud lapses\n", "PROGRAM",
	} {
		if got := printed(running); !strings.Contains(got, want) {
			t.Errorf("it does not say %q:\n%s", want, got)
		}
	}
	stopped := running
	stopped.Phase, stopped.Message = mom.PhaseStopped, "of this"
	got := printed(stopped)
	if strings.Contains(got, "it may go") || strings.Contains(got, "PROGRAM") || !strings.Contains(got, "message: of this\n") {
		t.Errorf("one that stopped says\n%s", got)
	}
}
