// Command coredns is CoreDNS with the plugins that the Corefile of kubeadm names, and no
// others: those for clouds are most of what the whole program is built from.
package main

import (
	_ "github.com/coredns/coredns/plugin/bind"
	_ "github.com/coredns/coredns/plugin/cache"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/forward"
	_ "github.com/coredns/coredns/plugin/health"
	_ "github.com/coredns/coredns/plugin/hosts"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	_ "github.com/coredns/coredns/plugin/loadbalance"
	_ "github.com/coredns/coredns/plugin/loop"
	_ "github.com/coredns/coredns/plugin/ready"
	_ "github.com/coredns/coredns/plugin/reload"

	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/coremain"
)

func main() {
	// In the order in which CoreDNS itself has them.
	dnsserver.Directives = []string{"reload", "bind", "ready", "health", "errors", "loadbalance", "cache", "hosts", "kubernetes", "loop", "forward"}
	coremain.Run()
}
