// Package nodes has the tests on real nodes: kubelet, containerd, kube-proxy, CoreDNS and a
// network for pods, with the image that is published. It needs root, and is run by make
// e2e-nodes alone. It does not wait for its place among other suites: on its site, nobody
// else is.
package nodes

import (
	"flag"
	"os"
	"testing"

	"github.com/go-logr/logr"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/cascade-gitops/cascade/e2e/machine"
)

func TestMain(m *testing.M) {
	flag.Parse()
	if flag.Lookup("test.list").Value.String() != "" {
		os.Exit(m.Run()) // names are told everywhere
	}
	os.Exit(machine.Main(func() int {
		log.SetLogger(logr.Discard())
		return m.Run()
	}))
}
