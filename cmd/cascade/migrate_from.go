package main

import (
	"context"
	"fmt"
	"io/fs"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/cmd/cascade/checkout"
	"github.com/cascade-gitops/cascade/cmd/cascade/installation"
	"github.com/cascade-gitops/cascade/cmd/cascade/layout"
	"github.com/cascade-gitops/cascade/cmd/cascade/login"
	"github.com/cascade-gitops/cascade/cmd/cascade/migration"
	"github.com/cascade-gitops/cascade/syncer/apply"
)

// fromFlux plans the move to an agent and, if it is wanted, does it.
func (m *migrate) fromFlux(ctx context.Context) error {
	cluster, err := m.connect()
	if err != nil {
		return err
	}
	defer cluster.Close()
	if err := m.readSync(ctx, cluster); err != nil {
		return err
	}
	facts, err := migration.Read(ctx, cluster, m.kustomization.Namespace)
	if err != nil {
		return err
	}
	facts.Suspended, facts.Resume = suspended(m.git, m.kustomization)
	if err := m.operator(ctx, cluster, facts); err != nil {
		return err
	}
	if err := m.look(ctx, cluster); err != nil {
		return err
	}
	l, err := m.logInAs(ctx, cluster)
	if err != nil {
		return err
	}
	remote, err := remoteOf(m.url, m.branch, l)
	if err != nil {
		return err
	}
	pending, err := m.planFrom(ctx, remote, facts)
	if err != nil || m.exportDiff {
		return err
	}
	if !m.yes {
		m.say("nothing was changed; --yes does it")
		return nil
	}
	if m.committed && pending > 0 {
		return fmt.Errorf("cannot go on: the repository does not declare it yet, %d files differ; merge the change, say the same flags as for --export-diff, and try again", pending)
	}
	if err := m.doFrom(ctx, cluster, remote, l, facts); err != nil || !m.handsOver {
		return err
	}
	m.say("the agent is administrator until cascade bootstrap git, with the same values, takes that away by a commit of its own")
	return nil
}

// planFrom says what will happen, and returns how many files are to change.
func (m *migrate) planFrom(ctx context.Context, remote checkout.Remote, facts migration.Facts) (int, error) {
	tree, err := checkout.Clone(ctx, remote)
	if err != nil {
		return 0, err
	}
	defer tree.Close()
	_, changes, err := m.takes(tree.Files())
	if err != nil {
		return 0, err
	}
	if err := m.tell(migration.FromFlux(facts, changes.Names())); err != nil {
		return 0, err
	}
	if facts.Instance != "" && facts.Runs() {
		fmt.Fprint(m.streams.ErrOut, migration.InstancePatch(facts))
		if m.yes {
			return 0, fmt.Errorf("cannot stop the controllers of FluxInstance %s: it would start them again; commit the patch above where it is declared, and try again when they are at zero", facts.Instance)
		}
	}
	if m.exportDiff {
		return len(changes), layout.Diff(m.streams.Out, tree.Files(), changes)
	}
	return len(changes), nil
}

// takes decides about the files; without anything of Flux there is nothing to take.
func (m *migrate) takes(files fs.FS) (*layout.Flux, layout.Changes, error) {
	flux, changes, err := m.decide(files, true)
	if err == nil && flux == nil {
		err = fmt.Errorf("cannot find what flux bootstrap wrote below %s of the repository, gotk-components.yaml in a directory of its own; scale Flux's controllers to zero where they are declared, and use cascade bootstrap", m.path)
	}
	return flux, changes, err
}

func (m *migrate) doFrom(ctx context.Context, cluster *apply.Cluster, remote checkout.Remote, l *login.Login, facts migration.Facts) error {
	record, err := m.recorded(ctx, cluster, nil)
	if err != nil {
		return err
	}
	var flux *layout.Flux
	tree, err := m.push(ctx, remote, fmt.Sprintf("Cascade %s takes the place of Flux's controllers in %s", version(), m.path), func(files fs.FS) (layout.Changes, error) {
		taken, changes, err := m.takes(files)
		flux = taken
		return changes, err
	})
	if err != nil {
		return err
	}
	defer tree.Close()
	if err := m.keep(ctx, cluster, flux, l); err != nil {
		return err
	}
	if err := m.stopFlux(ctx, cluster, facts); err != nil {
		return fmt.Errorf("%w; the agent does not work yet. Try again, or go back: revert the commit of %s that names Cascade, and scale %s in namespace %s to 1",
			err, remote.URL, migration.Names(facts.Replaced), facts.Namespace)
	}
	if err := m.start(ctx, cluster, tree, flux); err != nil {
		return fmt.Errorf("%w; try again, or go back with cascade migrate to-flux", err)
	}
	return m.verify(ctx, cluster, record)
}

// stopFlux ends the controllers that an agent replaces, and returns when none is at work.
func (m *migrate) stopFlux(ctx context.Context, c client.Client, facts migration.Facts) error {
	for _, controller := range facts.Replaced {
		key := client.ObjectKey{Namespace: facts.Namespace, Name: controller.Name}
		m.say("scaling %s to zero", key)
		if err := migration.Scale(ctx, c, key, 0); err != nil {
			return err
		}
		if err := m.gone(ctx, "the pods of "+controller.Name+" to end", func(ctx context.Context) (string, error) { return migration.Pods(ctx, c, key) }); err != nil {
			return err
		}
	}
	return m.gone(ctx, "Flux's controllers to give back their leases", func(ctx context.Context) (string, error) {
		return installation.FluxHolder(ctx, c, m.now())
	})
}

// gone waits until nothing is left of something.
func (m *migrate) gone(ctx context.Context, what string, left func(context.Context) (string, error)) error {
	u := uninstall{cli: m.cli}
	return u.await(ctx, what, left)
}
