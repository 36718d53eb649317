package agent

import (
	"context"
	"fmt"
	"os"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cascade-gitops/cascade/syncer/trace"
)

const (
	// whoseTraces bounds the look at whose cluster this is, before anything else is done.
	whoseTraces = 10 * time.Second
	// lastTraces is how long what is left is sent when the process ends.
	lastTraces = 2 * time.Second
)

// trace sets up traces, if the environment names a collector.
func (w *wiring) trace(ctx context.Context) error {
	wanted, err := trace.Wanted(os.Getenv)
	if err != nil || !wanted {
		return err
	}
	log := w.mgr.GetLogger().WithName("traces")
	p := trace.Process{Version: w.program.Version, Instance: w.locks.identity}
	system := &metav1.PartialObjectMetadata{}
	system.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Namespace"))
	looking, cancel := context.WithTimeout(ctx, whoseTraces)
	defer cancel()
	if err := w.mgr.GetAPIReader().Get(looking, types.NamespacedName{Name: metav1.NamespaceSystem}, system); err != nil {
		// The pod's name alone tells spans of two clusters apart, as far as it differs.
		log.Info("traces do not say which cluster they are of", "why", err.Error())
	}
	p.Cluster = string(system.UID)
	traces, err := trace.Export(ctx, p, log)
	if err != nil {
		return err
	}
	w.traces = traces
	if err := w.mgr.Add(farewell{traces}); err != nil {
		return fmt.Errorf("cannot set up traces: %w", err)
	}
	return nil
}

// farewell sends the last traces when the process ends, whether it leads or not.
type farewell struct{ traces *trace.Tracer }

func (f farewell) Start(ctx context.Context) error {
	<-ctx.Done()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastTraces)
	defer cancel()
	return f.traces.Close(ctx)
}

func (farewell) NeedLeaderElection() bool { return false }
