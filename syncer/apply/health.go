package apply

import (
	"context"
	"fmt"
	"strings"

	"github.com/fluxcd/cli-utils/pkg/kstatus/status"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/inventory"
)

// Health of a set of objects, as kstatus sees them.
type Health struct {
	// InProgress and Failed objects, each with its status and message.
	InProgress []string
	Failed     []string
	// Pending are the entries of both.
	Pending []inventory.Entry
}

// Done: every object is as it should be.
func (h Health) Done() bool { return len(h.InProgress) == 0 && len(h.Failed) == 0 }

// Message names what is not done, failed objects first.
func (h Health) Message() string {
	all := append(append([]string{}, h.Failed...), h.InProgress...)
	const most = 10
	if len(all) > most {
		all = append(all[:most], fmt.Sprintf("and %d more", len(all)-most))
	}
	return strings.Join(all, ", ")
}

// Health reads each object and computes its status. An error means that the
// cluster could not be asked, not that something is unhealthy.
func (a *Applier) Health(ctx context.Context, entries []inventory.Entry) (Health, error) {
	var h Health
	for _, e := range entries {
		u := e.Object()
		err := a.client.Get(ctx, client.ObjectKeyFromObject(u), u)
		switch {
		case apierrors.IsNotFound(err), meta.IsNoMatchError(err):
			h.InProgress = append(h.InProgress, fmt.Sprintf("%s status: 'NotFound'", e))
			h.Pending = append(h.Pending, e)
			continue
		case err != nil:
			return h, fmt.Errorf("cannot read %s: %w", e, err)
		}
		result, err := status.Compute(u)
		if err != nil {
			h.Failed = append(h.Failed, fmt.Sprintf("%s status: 'Unknown': %v", e, err))
			h.Pending = append(h.Pending, e)
			continue
		}
		line := fmt.Sprintf("%s status: '%s'", e, result.Status)
		if result.Message != "" {
			line += ": " + result.Message
		}
		switch result.Status {
		case status.CurrentStatus:
		case status.FailedStatus:
			h.Failed = append(h.Failed, line)
			h.Pending = append(h.Pending, e)
		default:
			h.InProgress = append(h.InProgress, line)
			h.Pending = append(h.Pending, e)
		}
	}
	return h, nil
}
