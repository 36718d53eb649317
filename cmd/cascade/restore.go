package main

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	agekey "filippo.io/age"
	"github.com/spf13/cobra"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/cmd/cascade/statestore"
	"github.com/cascade-gitops/cascade/state"
	"github.com/cascade-gitops/cascade/state/archive"
	"github.com/cascade-gitops/cascade/state/key"
	"github.com/cascade-gitops/cascade/state/store"
	"github.com/cascade-gitops/cascade/syncer/source"
)

// restoring is one call of the verb.
type restoring struct {
	*cli
	place      placeFlags
	version    string
	identities []string
	dryRun     bool
	older      bool
	notRemoved bool
	timeout    time.Duration
}

func (c *cli) newRestore() *cobra.Command {
	r := &restoring{cli: c}
	cmd := &cobra.Command{
		Use:   "restore",
		Short: "Restore the saved state of a tier into this one: what is there is kept",
		Long: "Restore the saved state of a tier into this one. What is not there is made, Clusters paused until\n" +
			"everything of them is; what is there is kept, and nothing is deleted. The providers find what exists in\n" +
			"the cloud by the restored specs. The same command goes on where another one was ended.\n\n" +
			"Cluster API and its providers have to be installed. Make sure that the former tier is gone: two that\n" +
			"run the same Clusters work against each other.",
		Example: "  cascade restore --from s3://state/mom?region=eu-central-1 --identity key.txt --dry-run\n" +
			"  cascade restore --from s3://state/mom?region=eu-central-1 --identity key.txt",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, cancel := context.WithTimeout(cmd.Context(), r.timeout)
			defer cancel()
			return r.run(ctx)
		},
	}
	r.place.bind(cmd, "from", "where versions are kept")
	cmd.Flags().StringVar(&r.version, "version", "", "version, of those that `cascade save list` shows; the newest if it is not set")
	cmd.Flags().StringArrayVar(&r.identities, "identity", nil,
		"file with private keys of age, one SSH private key, or names of key services, a line each; or the name of a key service itself. May be repeated")
	cmd.Flags().BoolVar(&r.dryRun, "dry-run", false, "say what would be done, and change nothing")
	cmd.Flags().BoolVar(&r.older, "older", false,
		"restore although the tier went on since: what is there is adopted, and Clusters that are not there are not made")
	cmd.Flags().BoolVar(&r.notRemoved, "not-removed", false,
		"make Clusters that are not there although the tier, or a newer version, went on without them: they were not removed since, as after a rollback of etcd")
	cmd.MarkFlagsMutuallyExclusive("older", "not-removed")
	cmd.Flags().DurationVar(&r.timeout, "timeout", 30*time.Minute, "how long it may take")
	_ = cmd.MarkFlagRequired("identity") // it is there
	c.flags.AddFlags(cmd.Flags())
	return cmd
}

func (r *restoring) run(ctx context.Context) error {
	identities, err := r.keys(ctx)
	if err != nil {
		return err
	}
	at, err := r.place.open(ctx, r.now)
	if err != nil {
		return err
	}
	defer at.Close()
	versions, err := at.Versions(ctx)
	if err != nil {
		return err
	}
	load := func(v store.Version) (*archive.Snapshot, error) {
		sealed, err := at.Load(ctx, v)
		if err != nil {
			return nil, err
		}
		return archive.Open(sealed, identities...)
	}
	v, s, newer, err := r.choose(versions, load)
	if err != nil {
		return err
	}
	id, err := state.ID(s)
	if err != nil {
		return err
	}
	r.say("version %s of tier %s, state %s, taken at %s by %s: %d Clusters, %d objects", v, s.Tier, id, s.Taken.Format(time.RFC3339), s.Program, len(state.Clusters(s)), len(s.Objects))
	cl, err := r.client()
	if err != nil {
		return err
	}
	options := state.Options{DryRun: r.dryRun, Older: r.older, NotRemoved: r.notRemoved, Newer: newer, Inside: state.Inside}
	if options.Namespace, err = r.into(ctx, cl, s); err != nil {
		return err
	}
	options.Progress = func(step state.Step) {
		if step.Action == state.Create || step.Action == state.Update {
			fmt.Fprintf(r.streams.ErrOut, "► %s %s\n", strings.ToLower(string(step.Action)), step.Object)
		}
	}
	report, err := state.Restore(ctx, cl, s, options)
	r.tell(report)
	return err
}

// into is the namespace of what the tier has on record, by which is decided what of a state may be made: that of its
// agent. Without one, as in a mom or before there is any, it is where the tier has records, or else the state has them.
func (r *restoring) into(ctx context.Context, cl client.Client, s *archive.Snapshot) (string, error) {
	saved := state.RecordsIn(s)
	there, err := r.recordsIn(ctx, cl, saved)
	if err != nil {
		return "", err
	}
	there = cmp.Or(there, saved, v1alpha1.AgentNamespace)
	if saved != "" && saved != there {
		r.say("the records of the state are of an agent in namespace %s: one in namespace %s does not read them", saved, there)
	}
	return there, nil
}

// choose returns the version to restore, and the newest one that may follow it, nil if none does.
func (r *restoring) choose(versions []store.Version, load func(store.Version) (*archive.Snapshot, error)) (v store.Version, s, newer *archive.Snapshot, err error) {
	if v, err = store.Find(versions, r.version); err != nil {
		return v, nil, nil, err
	}
	if s, err = load(v); err != nil {
		return v, nil, nil, err
	}
	i := slices.Index(versions, v)
	switch {
	case r.version == "":
		return v, s, nil, stands(v, s, versions[:i], load)
	case r.notRemoved:
		return v, s, nil, nil
	}
	for _, after := range slices.Backward(versions[i+1:]) {
		if newer, err = load(after); err != nil {
			return v, nil, nil, fmt.Errorf("cannot compare version %s with version %s, which is newer: %w; if that is another tier's, or no Cluster was removed since, restore with --not-removed", v, after, err)
		}
		_, may, err := state.Follows(newer, s)
		if err != nil || may {
			return v, s, newer, err
		}
	}
	return v, s, nil, nil
}

// stands fails if the newest version is not known to go on from those before it: an agent may have saved a
// tier that was made anew before all was restored into it, or the tier may have gone on without what the
// former had. Which of them is to be restored, a person says. The versions of a tier lie together, so that
// each look goes twice as far back as the one before, until it is at those of another tier that had some.
func stands(newest store.Version, s *archive.Snapshot, below []store.Version, load func(store.Version) (*archive.Snapshot, error)) error {
	for back := 1; len(below) > 0; back *= 2 {
		v := below[max(len(below)-back, 0)]
		before, err := load(v)
		if err != nil {
			// Whose it is cannot be told, also if the tier saved others since: it may have been made anew, with another key.
			return fmt.Errorf("cannot compare version %s with version %s, which is older: %w; if it is for another key, give that as well with --identity, or name the version to restore with --version", newest, v, err)
		}
		known, _, err := state.Follows(s, before)
		if err == nil && !known {
			err = fmt.Errorf("cannot choose a version: the newest, %s, of tier %s, with %d Clusters, is not known to follow %s, of tier %s, with %d; name the one to restore with --version",
				newest, s.Tier, len(state.Clusters(s)), v, before.Tier, len(state.Clusters(before)))
		}
		if err != nil || back >= len(below) || before.Tier != s.Tier && len(state.Clusters(before)) > 0 {
			return err
		}
	}
	return nil
}

// keys reads --identity.
func (r *restoring) keys(ctx context.Context) ([]agekey.Identity, error) {
	ctx = source.AllowNetwork(ctx)
	var all []agekey.Identity
	for _, name := range r.identities {
		text := []byte(name)
		if !slices.ContainsFunc([]string{"awskms:", "gcpkms:", "azurekv:", "hcvault:"}, func(p string) bool { return strings.HasPrefix(name, p) }) {
			info, err := os.Stat(name)
			if err == nil && info.Size() > statestore.MostBytes {
				err = fmt.Errorf("%s has more than %d bytes", name, statestore.MostBytes)
			}
			if err == nil {
				text, err = os.ReadFile(name)
			}
			if err != nil {
				return nil, fmt.Errorf("cannot read --identity: %w", err)
			}
		}
		ids, err := key.Identities(ctx, text)
		if err != nil {
			return nil, err
		}
		all = append(all, ids...)
	}
	return all, nil
}

// tell prints what is of interest of a report.
func (r *restoring) tell(report state.Report) {
	for _, step := range report.Steps {
		switch {
		case step.Why != "":
			fmt.Fprintf(r.streams.Out, "%s %s: %s: %s\n", step.Action, step.Object, step.Reason, step.Why)
		case step.Action == state.Differ, r.dryRun && step.Action == state.Create:
			fmt.Fprintf(r.streams.Out, "%s %s\n", step.Action, step.Object)
		}
	}
	if len(report.Steps) == 0 {
		return
	}
	word := "made"
	if r.dryRun {
		word = "to be made"
	}
	fmt.Fprintf(r.streams.Out, "%d objects %s, %d kept, %d kept that differ, %d left out, %d Clusters resumed\n",
		report.Count(state.Create), word, report.Count(state.Keep)+report.Count(state.Update), report.Count(state.Differ), report.Count(state.Skip)+report.Count(state.Refuse), len(report.Resumed))
}
