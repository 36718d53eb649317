// Command cascade is the agent that runs in every tier, and the command line
// for the people who run it.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"syscall"
	"time"
	_ "time/tzdata" // the image has no files of time zones, which windows of Rollouts name

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	automationv1 "github.com/fluxcd/image-automation-controller/api/v1"
	reflectorv1 "github.com/fluxcd/image-reflector-controller/api/v1"
	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	notificationv1 "github.com/fluxcd/notification-controller/api/v1"
	notificationv1beta3 "github.com/fluxcd/notification-controller/api/v1beta3"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	generatorv1 "github.com/fluxcd/source-watcher/api/v2/v1beta1"
	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/cmd/cascade/agent"
	"github.com/cascade-gitops/cascade/syncer/apply"
)

// errNotReady makes the process exit with 1 after the verb has said why.
var errNotReady = errors.New("not ready")

func main() {
	agent.BecomeWorker(os.Args)
	ctx, stop := untilTold()
	defer stop()
	streams := genericiooptions.IOStreams{In: os.Stdin, Out: newPlain(os.Stdout), ErrOut: newPlain(os.Stderr)}
	root := newRoot(streams)
	invokedBy(os.Args).give(root)
	if err := root.ExecuteContext(ctx); err != nil {
		stop()
		os.Exit(exitCode(streams, err)) //nolint:gocritic // stop has run
	}
}

// untilTold returns a context that ends when the program is told to end.
func untilTold() (context.Context, context.CancelFunc) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	told := ctx
	if !signal.Ignored(syscall.SIGHUP) { // nohup ignores it
		// A terminal that closes says so more than once, through the shell and by itself: it stays caught.
		told, _ = signal.NotifyContext(ctx, syscall.SIGHUP)
	}
	context.AfterFunc(told, stop) // who asks twice does not wait for what is under way
	return told, stop
}

// exitCode is that of an error, which is told unless the verb has said why.
func exitCode(streams genericiooptions.IOStreams, err error) int {
	switch {
	case errors.Is(err, errChanges), errors.Is(err, errSomething):
		return 2
	case !errors.Is(err, errNotReady):
		fmt.Fprintf(streams.ErrOut, "✗ %v\n", err)
	}
	return 1
}

// newRoot builds the command tree.
func newRoot(streams genericiooptions.IOStreams) *cobra.Command {
	c := &cli{streams: streams, flags: genericclioptions.NewConfigFlags(true), now: time.Now}
	root := &cobra.Command{
		Use:   "cascade",
		Short: "Runs a fleet of Kubernetes clusters from Git, tier by tier",
		Long: "Cascade keeps the cluster that it runs in equal to Git and, once Cluster API has made\n" +
			"clusters below it, seeds each with an agent of its own that pulls from its own repository.",
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.SetOut(streams.Out)
	root.SetErr(streams.ErrOut)
	root.AddCommand(
		agent.New(agent.Program{Version: version(), Scheme: newScheme, Now: time.Now, Rand: rand.Float64}),
		c.newGet(), c.newReconcile(), c.newTree(), c.newApprove(), c.newInstall(), c.newUninstall(), c.newBootstrap(), c.newMigrate(), c.newCheck(), c.newChild(), c.newRollout(), c.newPlan(), c.newPivot(), c.newWhy(), c.newWeb(),
		c.newSave(), c.newRestore(),
		c.newChildren(), c.newDiff(), c.newEvents(), c.newLogs(), c.newResume(), c.newSuspend(), c.newTrace(),
		c.newMom(), c.newVersion(),
	)
	return root
}

// cli is what the verbs share.
type cli struct {
	streams genericiooptions.IOStreams
	flags   *genericclioptions.ConfigFlags
	now     func() time.Time
}

// client connects to the cluster that the kubeconfig flags name.
func (c *cli) client() (client.WithWatch, error) {
	config, err := c.flags.ToRESTConfig()
	if err != nil {
		return nil, fmt.Errorf("cannot load kubeconfig: %w", err)
	}
	config.QPS = -1
	log.SetLogger(logr.Discard()) // the verbs say what matters by their errors
	cl, err := client.NewWithWatch(config, client.Options{Scheme: newScheme()})
	if err != nil {
		return nil, fmt.Errorf("cannot connect to the cluster: %w", err)
	}
	return cl, nil
}

// connect connects to the cluster that the kubeconfig flags name, to apply there.
func (c *cli) connect() (*apply.Cluster, error) {
	config, err := c.flags.ToRESTConfig()
	if err != nil {
		return nil, fmt.Errorf("cannot load kubeconfig: %w", err)
	}
	log.SetLogger(logr.Discard())
	return apply.Connect(config, newScheme())
}

// say tells how far something is that takes a while.
func (c *cli) say(format string, args ...any) {
	fmt.Fprintf(c.streams.ErrOut, "► "+format+"\n", args...)
}

// namespace is the one asked for, or the agent's.
func (c *cli) namespace() string { return cmp.Or(c.saidNamespace(), v1alpha1.AgentNamespace) }

// saidNamespace is the namespace of -n, empty if nobody said it.
func (c *cli) saidNamespace() string {
	if c.flags.Namespace == nil {
		return ""
	}
	return *c.flags.Namespace
}

func newScheme() *runtime.Scheme {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		clientgoscheme.AddToScheme, apiextensionsv1.AddToScheme,
		sourcev1.AddToScheme, kustomizev1.AddToScheme, helmv2.AddToScheme, v1alpha1.AddToScheme,
		notificationv1.AddToScheme, notificationv1beta3.AddToScheme, reflectorv1.AddToScheme, automationv1.AddToScheme, generatorv1.AddToScheme,
	} {
		utilruntime.Must(add(scheme))
	}
	return scheme
}
