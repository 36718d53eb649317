//go:build linux

package mom

import (
	"context"
	"encoding/base64"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/cascade-gitops/cascade/mom/provider"
	"github.com/cascade-gitops/cascade/mom/supervise"
	"github.com/cascade-gitops/cascade/state/archive"
	"github.com/cascade-gitops/cascade/state/store"
)

// TestLookFails: a cluster that does not answer is not one that may go, whatever was said of
// it before.
func TestLookFails(t *testing.T) {
	folder, looked := Folder(t.TempDir()), time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	r := &run{Options: Options{Now: func() time.Time { return looked }}, board: &board{folder: folder}, supervisor: supervise.New(supervise.Options{})}
	defer r.supervisor.Close()
	r.board.change(func(s *Status) { s.Verdict = Verdict{Ready: true} })
	r.client = fake.NewClientBuilder().WithScheme(runtime.NewScheme()).WithInterceptorFuncs(interceptor.Funcs{
		List: func(context.Context, client.WithWatch, client.ObjectList, ...client.ListOption) error {
			return errors.New("connection refused")
		},
	}).Build()
	if v := r.look(t.Context()); v.Ready || len(v.Waiting) != 1 || !strings.Contains(v.Waiting[0], "connection refused") {
		t.Errorf("it is judged %+v", v)
	}
	if s, _, err := folder.ReadStatus(); err != nil || s.Verdict.Ready || !s.Looked.Equal(looked) {
		t.Errorf("its status says %+v at %s, %v", s.Verdict, s.Looked, err)
	}
	// What is asked while it ends says nothing.
	r.board.change(func(s *Status) { s.Verdict = Verdict{Ready: true} })
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	r.look(ended)
	if s, _, err := folder.ReadStatus(); err != nil || !s.Verdict.Ready {
		t.Errorf("at the end its status says %+v, %v", s.Verdict, err)
	}
}

// TestStoppedEarly: whoever waits until the tier is ready is not told so by a stop; whoever asks for
// the stop gets what they want.
func TestStoppedEarly(t *testing.T) {
	stopped, stop := context.WithCancel(t.Context())
	stop()
	for name, tt := range map[string]struct {
		reason string
		until  bool
		want   error
	}{
		"Ready":   {"a deployment would go on as if all masters were there", true, ErrNotReady},
		"Forever": {"this is how it ends", false, nil},
	} {
		t.Run(name, func(t *testing.T) {
			folder := Folder(t.TempDir())
			err := Up(stopped, Options{Folder: folder, Programs: t.TempDir(), UntilReady: tt.until, Now: time.Now, Say: t.Logf, Rand: func() float64 { return 0 }})
			if !errors.Is(err, tt.want) || tt.want == nil && err != nil {
				t.Errorf("%s: got %v, want %v", tt.reason, err, tt.want)
			}
			if s, _, err := folder.ReadStatus(); err != nil || s.Phase != PhaseStopped || s.Message != "" {
				t.Errorf("%s: its status says %s %q, %v", tt.reason, s.Phase, s.Message, err)
			}
		})
	}
}

// slow is a store whose versions take longer to list than anybody waits.
type slow struct{ *lockable }

func (slow) Versions(ctx context.Context) ([]store.Version, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// TestStoppedBefore: one that is stopped before anything runs was stopped as asked, too, and so was
// one whose time is over by then.
func TestStoppedBefore(t *testing.T) {
	for name, tt := range map[string]struct {
		reason string
		// before had the lock for this folder.
		before string
		until  bool
		// lasts is after what time it is to stop, zero where a person stops it.
		lasts   time.Duration
		want    error
		message string
	}{
		"Lock":      {"it waits for the lock of the process that was killed", "me", false, 0, nil, ""},
		"LockReady": {"and who waits for the tier is not told that it is ready", "me", true, 0, ErrNotReady, ""},
		"State":     {"it looks for what is saved", "", false, 0, nil, ""},
		"Over":      {"its time begins with the call", "me", false, time.Second, nil, ""},
		"OverReady": {"a job has no longer than that", "me", true, time.Second, ErrNotReady, "not ready after 1s: it waits for the lock of the state until 2000-01-01T00:01:30Z"},
		"OverState": {"whatever it does then", "", true, time.Second, ErrNotReady, "not ready after 1s"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				folder, s := Folder(t.TempDir()), &lockable{}
				if err := writeJSON(folder.origin(), Origin{State: "there", Holder: tt.before}); err != nil {
					t.Fatal(err)
				}
				if tt.before != "" {
					s.holder, s.until = tt.before, time.Now().Add(lockFor)
				}
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				if tt.lasts == 0 {
					time.AfterFunc(time.Second, cancel)
				}
				err := Up(ctx, Options{
					Folder: folder, UntilReady: tt.until, For: tt.lasts, Now: time.Now, Say: t.Logf, State: &State{Address: "there", Store: slow{s}, Holder: "me"},
				})
				if !errors.Is(err, tt.want) || tt.want == nil && err != nil {
					t.Errorf("%s: got %v, want %v", tt.reason, err, tt.want)
				}
				if s, _, err := folder.ReadStatus(); err != nil || s.Phase != PhaseStopped || (s.Message == "") != (tt.message == "") || !strings.Contains(s.Message, tt.message) {
					t.Errorf("%s: its status says %s %q, %v", tt.reason, s.Phase, s.Message, err)
				}
			})
		})
	}
}

// versioned is a store with one version.
type versioned struct{ store.Store }

func (versioned) Versions(context.Context) ([]store.Version, error) {
	return []store.Version{{Epoch: 9, Number: 1}}, nil
}

func (versioned) Load(context.Context, store.Version) ([]byte, error) { return []byte("sealed"), nil }

// TestWrongKey: the cluster of a folder does not give way to a state that cannot be opened.
func TestWrongKey(t *testing.T) {
	folder := Folder(t.TempDir())
	if err := os.MkdirAll(filepath.Join(folder.plane(), "etcd"), 0o700); err != nil {
		t.Fatal(err)
	}
	origin := Origin{State: "there", Epoch: 3}
	if err := writeJSON(folder.origin(), origin); err != nil {
		t.Fatal(err)
	}
	wrong := errors.New("it is for another key")
	r := &run{
		Options: Options{Folder: folder, Now: time.Now, Say: t.Logf, State: &State{
			Address: "there", Store: versioned{}, Open: func([]byte) (*archive.Snapshot, error) { return nil, wrong },
		}},
		board: &board{folder: folder}, lease: &lease{},
	}
	if err := r.begin(t.Context()); !errors.Is(err, wrong) {
		t.Errorf("got %v", err)
	}
	if _, err := os.Stat(folder.plane()); err != nil {
		t.Error("the cluster of the folder was put aside")
	}
	var is Origin
	if _, err := readJSON(folder.origin(), &is); err != nil || is != origin {
		t.Errorf("the folder is said to be %+v, %v", is, err)
	}
}

// TestStateOfAnotherTier: the record of a state counts for its tier only. The folder keeps its
// cluster, and is of the tier of the state until the run has applied another one.
func TestStateOfAnotherTier(t *testing.T) {
	a, b := Repository{URL: "ssh://ann@example.com/a", Path: "mom"}, Repository{URL: "ssh://bob@example.com/b", Path: "mom"}
	prod, trunk := Repository{URL: a.URL, Branch: "prod", Path: "mom"}, Repository{URL: a.URL, Branch: "main", Path: "mom"}
	const refused = "it is of path mom of ssh://example.com/a, not of path mom of ssh://example.com/b"
	for name, tt := range map[string]struct {
		reason string
		folder Origin
		saved  *archive.Snapshot
		wanted Repository
		moved  bool
		want   string
	}{
		"Same":           {"another person's login is none of another repository", Origin{State: "there"}, saved(a.tier(), true), Repository{URL: "ssh://bob@example.com/a", Path: "mom"}, false, ""},
		"Branch":         {"prod would be run by what is declared on main", Origin{State: "there"}, saved(prod.tier(), true), trunk, false, "it is of path mom, branch prod, of ssh://example.com/a, not of path mom, branch main, of"},
		"BranchMoved":    {"a person says that it is the same", Origin{State: "there"}, saved(prod.tier(), true), trunk, true, ""},
		"UnknownBranch":  {"an older program saved it", Origin{State: "there"}, saved(a.tier(), true), prod, false, ""},
		"Another":        {"all Clusters of b are new to the record of a", Origin{State: "there"}, saved(a.tier(), true), b, false, refused},
		"Crashed":        {"the Clusters of a would be run by b, and be in its state", Origin{State: "there"}, saved(a.tier(), false), b, false, refused},
		"Moved":          {"a person says that it is the same", Origin{State: "there"}, saved(a.tier(), false), b, true, ""},
		"MovedElsewhere": {"the folder was of the tier of before, which does not count", Origin{State: "there", Tier: a.tier()}, saved(b.tier(), false), b, false, ""},
		"Unnamed":        {"an older program saved it, and the folder knows", Origin{State: "there", Tier: a.tier()}, saved(Tier{}, false), b, false, refused},
		"Unknown":        {"nobody knows", Origin{State: "there"}, saved(Tier{}, false), b, false, ""},
	} {
		t.Run(name, func(t *testing.T) {
			folder := Folder(t.TempDir())
			if err := os.MkdirAll(filepath.Join(folder.plane(), "etcd"), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := writeJSON(folder.origin(), tt.folder); err != nil {
				t.Fatal(err)
			}
			r := &run{
				Options: Options{Folder: folder, Now: time.Now, Say: t.Logf, Repository: tt.wanted, Moved: tt.moved, State: &State{
					Address: "there", Store: versioned{}, Open: func([]byte) (*archive.Snapshot, error) { return tt.saved, nil },
				}},
				board: &board{folder: folder}, lease: &lease{},
			}
			err := r.begin(t.Context())
			if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
				t.Fatalf("%s: got %v, want %q", tt.reason, err, tt.want)
			}
			if _, there := os.Stat(folder.plane()); (there == nil) != (err != nil) {
				t.Errorf("%s: the cluster of the folder: %v", tt.reason, there)
			}
			var is Origin
			if _, failed := readJSON(folder.origin(), &is); failed != nil || err == nil && is.Tier != tierOf(tt.saved) {
				t.Errorf("%s: the folder is said to be %+v, %v", tt.reason, is, failed)
			}
		})
	}
}

// emptied is a store whose versions somebody deleted.
type emptied struct{ store.Store }

func (emptied) Versions(context.Context) ([]store.Version, error) { return nil, store.ErrGone }

// TestVersionsGone: a state that had versions and has none is not one of a tier that never was:
// all its clusters would be built again. The folder that was in use last goes on.
func TestVersionsGone(t *testing.T) {
	for name, tt := range map[string]struct {
		reason  string
		cluster bool
		want    error
	}{
		"Elsewhere": {"nobody knows what there was", false, store.ErrGone},
		"Folder":    {"its cluster is the state", true, nil},
	} {
		t.Run(name, func(t *testing.T) {
			folder := Folder(t.TempDir())
			if tt.cluster {
				if err := os.MkdirAll(filepath.Join(folder.plane(), "etcd"), 0o700); err != nil {
					t.Fatal(err)
				}
			}
			r := &run{
				Options: Options{Folder: folder, Now: time.Now, Say: t.Logf, FirstSync: "create", State: &State{Address: "there", Store: emptied{}}},
				board:   &board{folder: folder}, lease: &lease{},
			}
			if err := r.begin(t.Context()); !errors.Is(err, tt.want) || err == nil && r.beginning.How != GoOn {
				t.Errorf("%s: it begins %s, %v", tt.reason, r.beginning.How, err)
			}
		})
	}
}

// TestTokenDue: a token is renewed in time, also after a sleep in which one of the clocks stood
// still.
func TestTokenDue(t *testing.T) {
	now := time.Now()
	for name, tt := range map[string]struct {
		reason string
		last   time.Time
		want   bool
	}{
		"Fresh": {"it has hours", now.Add(-time.Minute), false},
		"Due":   {"half an hour is over", now.Add(-tokenRenewal), true},
		"Slept": {"the machine slept for a night", now.Round(0).Add(-8 * time.Hour), true},
	} {
		t.Run(name, func(t *testing.T) {
			if got := tokenDue(tt.last, now); got != tt.want {
				t.Errorf("%s: got %t", tt.reason, got)
			}
		})
	}
}

// TestHandOut: people get a kubeconfig that is whole, and programs one that follows the files
// of the control plane. Both are those of now.
func TestHandOut(t *testing.T) {
	f := Folder(t.TempDir())
	if err := os.MkdirAll(f.plane(), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, certificate := range []string{"first", "renewed"} {
		data := base64.StdEncoding.EncodeToString([]byte(certificate))
		text := "apiVersion: v1\nkind: Config\nclusters:\n- name: m\n  cluster: {server: https://127.0.0.1:1, certificate-authority-data: " + data + "}\n" +
			"users:\n- name: u\n  user: {client-certificate-data: " + data + ", client-key-data: " + data + "}\ncontexts:\n- name: m\n  context: {cluster: m, user: u}\ncurrent-context: m\n"
		if err := os.WriteFile(filepath.Join(f.plane(), "kubeconfig"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := f.handOut(); err != nil {
			t.Fatal(err)
		}
		people, err := clientcmd.LoadFromFile(f.Kubeconfig())
		if err != nil || string(people.AuthInfos["u"].ClientCertificateData) != certificate {
			t.Errorf("people have %v, %v", people.AuthInfos["u"], err)
		}
		programs, err := clientcmd.LoadFromFile(f.programs())
		if err != nil {
			t.Fatal(err)
		}
		login, cluster := programs.AuthInfos["u"], programs.Clusters["m"]
		pki := filepath.Join(f.plane(), "pki")
		if login.ClientCertificate != filepath.Join(pki, "admin.crt") || login.ClientKey != filepath.Join(pki, "admin.key") || cluster.CertificateAuthority != filepath.Join(pki, "ca.crt") {
			t.Errorf("programs have %+v of %+v", login, cluster)
		}
		if len(login.ClientCertificateData)+len(login.ClientKeyData)+len(cluster.CertificateAuthorityData) > 0 {
			t.Error("programs have a certificate that is not read again")
		}
	}
}

// TestPortsDiffer: no two programs of a run get the same port.
func TestPortsDiffer(t *testing.T) {
	r := &run{Options: Options{Providers: make([]*provider.Provider, 6)}}
	if err := r.takePorts(); err != nil {
		t.Fatal(err)
	}
	all := slices.Concat(r.ports...)
	slices.Sort(all)
	if len(r.ports) != 7 || len(slices.Compact(all)) != 14 {
		t.Errorf("the ports are %v", r.ports)
	}
}
