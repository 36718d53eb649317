package remote

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/remote/hindrance"
	"github.com/cascade-gitops/cascade/remote/link"
)

const (
	// startingFor is how long an agent may be on its way before somebody looks what keeps it
	// from running: its image is pulled, and it is elected, meanwhile.
	startingFor = 15 * time.Second
	// hindrancePause is how long it is not looked again, so that a child whose agent never
	// starts costs three lists each half minute.
	hindrancePause = 30 * time.Second
	// hindranceTimeout bounds one look.
	hindranceTimeout = 10 * time.Second
	// mostHindrances bounds how many are told.
	mostHindrances = 3
)

// hindrances are what was found to keep the agent of a child from running, and when it was
// looked.
type hindrances struct {
	looked time.Time
	found  []string
}

// hindered adds to the error of an agent that does not run what keeps its pods from running,
// as far as the kubeconfig may read them: the parent's own account has no right to. A look
// that fails adds nothing; what is known stays until the next one.
func (r *run) hindered(ctx context.Context, session *link.Session, err error) error {
	h := &r.notes.hindrances
	if now := r.Now(); now.Sub(h.looked) >= hindrancePause {
		h.looked = now
		ctx, cancel := context.WithTimeout(ctx, hindranceTimeout)
		defer cancel()
		if cluster, lerr := session.Lister(ctx); lerr == nil {
			if found, lerr := hindrance.Of(ctx, cluster, v1alpha1.AgentNamespace); lerr == nil {
				// Pods are listed in any order; the same ones are the same message.
				slices.Sort(found)
				h.found = found[:min(len(found), mostHindrances)]
			}
			cluster.Close()
		}
	}
	if len(h.found) == 0 {
		return err
	}
	return fmt.Errorf("%w: %s", err, strings.Join(h.found, "; "))
}
