// Command standin stands for one of Flux's controllers: it holds the Lease by which that
// controller leads, in the namespace of its pod, and does nothing else. It gives the Lease
// back when it is ended, as the controllers do. Arguments after -- are those of the controller, and
// do nothing.
package main

import (
	"context"
	"flag"
	"log"
	"os"
	"os/signal"
	"syscall"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

func main() {
	name := flag.String("name", "", "name of the controller")
	namespace := flag.String("namespace", "flux-system", "namespace of the Lease")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	config, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	if err != nil {
		log.Fatalf("cannot load kubeconfig: %v", err)
	}
	config.UserAgent = "standin-" + *name
	identity, err := os.Hostname()
	if err != nil {
		log.Fatalf("cannot read the name of the host: %v", err)
	}
	// Times are those of Flux's controllers.
	leaderelection.RunOrDie(ctx, leaderelection.LeaderElectionConfig{
		Lock: &resourcelock.LeaseLock{
			LeaseMeta:  metav1.ObjectMeta{Namespace: *namespace, Name: *name + "-leader-election"},
			Client:     kubernetes.NewForConfigOrDie(config).CoordinationV1(),
			LockConfig: resourcelock.ResourceLockConfig{Identity: identity + "_" + *name},
		},
		ReleaseOnCancel: true, LeaseDuration: 35 * time.Second, RenewDeadline: 30 * time.Second, RetryPeriod: 5 * time.Second,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(context.Context) { log.Printf("%s leads", *name) },
			OnStoppedLeading: func() { log.Printf("%s leads no more", *name) },
		},
	})
}
