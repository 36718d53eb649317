package agent

import (
	"crypto/rand"
	"errors"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/pflag"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/cascade-gitops/cascade/syncer/source"
)

// storage is where sources are kept, and to whom else they are served.
type storage struct {
	path           string
	snapshots      string
	maxPackBytes   int64
	addr           string
	advertisedAddr string
}

func (s *storage) bind(f *pflag.FlagSet) {
	f.StringVar(&s.path, "storage-path", filepath.Join(os.TempDir(), "cascade"), "directory for Git objects; it may be empty after a restart")
	f.StringVar(&s.snapshots, "snapshot-path", "",
		"directory, of a volume that outlives the agent, for the last snapshot of each source: it is used after a restart until the source can be fetched; empty keeps none")
	f.Int64Var(&s.maxPackBytes, "max-pack-bytes", 512<<20, "most bytes that one fetch may receive")
	f.StringVar(&s.addr, "artifact-addr", "",
		"address that serves packed artifacts to other consumers of sources, who have their URLs from the status of a source, e.g. :9090; empty packs and serves none")
	f.StringVar(&s.advertisedAddr, "artifact-adv-addr", "",
		"host and port in the URLs of artifacts; empty is the Service source-controller in the agent's namespace")
	f.StringVar(&s.addr, "storage-addr", "", "Flux's name of --artifact-addr")
	f.StringVar(&s.advertisedAddr, "storage-adv-addr", "", "Flux's name of --artifact-adv-addr")
}

func (s *storage) check() error {
	if strings.Contains(s.advertisedAddr, "@") {
		return errors.New("cannot use --artifact-adv-addr: it has a login, and the URL of each artifact has one of its own")
	}
	return nil
}

// dir is a directory of the storage.
func (s *storage) dir(name string) string { return filepath.Join(s.path, name) }

// kept is what keeps snapshots, if there is a place for them.
func (s *storage) kept() *source.Kept {
	if s.snapshots == "" {
		return nil
	}
	return source.NewKept(s.snapshots, source.MaxInflatedBytes)
}

// build packs artifacts and serves them, if somebody is to have them.
func (s *storage) build(mgr ctrl.Manager, namespace string) (*source.Storage, error) {
	if s.addr == "" {
		return nil, nil
	}
	advertised := s.advertisedAddr
	if advertised == "" {
		advertised = "source-controller." + namespace + ".svc.cluster.local."
	}
	seal, err := source.OpenSeal(s.dir("artifacts.key"), rand.Reader)
	if err != nil {
		return nil, err
	}
	served := source.NewStorage(s.dir("artifacts"), s.addr, advertised, seal)
	return served, mgr.Add(served)
}
