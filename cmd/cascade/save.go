package main

import (
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	agekey "filippo.io/age"
	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/cmd/cascade/installation"
	"github.com/cascade-gitops/cascade/cmd/cascade/statestore"
	"github.com/cascade-gitops/cascade/state"
	"github.com/cascade-gitops/cascade/state/archive"
	"github.com/cascade-gitops/cascade/state/key"
	"github.com/cascade-gitops/cascade/state/store"
	"github.com/cascade-gitops/cascade/syncer/answer"
	"github.com/cascade-gitops/cascade/syncer/firstsync"
	"github.com/cascade-gitops/cascade/syncer/source"
)

// placeFlags say where a state is kept.
type placeFlags struct {
	address, credentials string
}

func (f *placeFlags) bind(cmd *cobra.Command, name, means string) {
	cmd.Flags().StringVar(&f.address, name, "", means+": a directory, s3://bucket/prefix?region=R&endpoint=URL, azblob://container/prefix?account=NAME,\n"+
		"gs://bucket/prefix, git+https://host/repository?branch=B or git+ssh://git@host/repository?branch=B")
	cmd.Flags().StringVar(&f.credentials, "credentials", "", statestore.CredentialsMean)
	_ = cmd.MarkFlagRequired(name) // it is there
}

// open opens the place.
func (f *placeFlags) open(ctx context.Context, now func() time.Time) (store.Store, error) {
	return statestore.Place{Address: f.address, Credentials: f.credentials, Flag: "--credentials"}.Open(ctx, now)
}

// saving is one call of the verb.
type saving struct {
	*cli
	place            placeFlags
	recipients       []string
	keep             int
	verify           bool
	verifyKubeconfig string
	timeout          time.Duration
	// records is the namespace of what the tier has on record.
	records string
}

func (c *cli) newSave() *cobra.Command {
	s := &saving{cli: c}
	cmd := &cobra.Command{
		Use:   "save",
		Short: "Save the state of this tier, encrypted: what Git does not have",
		Long: "Save the state of this tier: the objects of Cluster API and its providers, their Secrets, and what the\n" +
			"tier has on record. It is encrypted for the recipients, and kept as a new version. Nothing is paused.\n\n" +
			"--verify loads the version again, restores it into an empty control plane, and compares each object.\n" +
			"The control plane is that of --verify-kubeconfig, or one that the program cascade-mom runs meanwhile.",
		Example: "  cascade save --to s3://state/mom?region=eu-central-1 --recipient age1...\n" +
			"  cascade save --to git+https://git.example.com/state.git --recipient age1... --recipient awskms:arn:aws:kms:... --verify",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, cancel := context.WithTimeout(cmd.Context(), s.timeout)
			defer cancel()
			return s.run(ctx)
		},
	}
	s.place.bind(cmd, "to", "where it is kept")
	cmd.Flags().StringArrayVar(&s.recipients, "recipient", nil,
		"who can open it: a public key of age or SSH, awskms:<ARN>, gcpkms:<name>, azurekv:<URL> or hcvault:<URL>; may be repeated")
	cmd.Flags().IntVar(&s.keep, "keep", 0, "delete the oldest versions until so many are left; 0 deletes none")
	cmd.Flags().BoolVar(&s.verify, "verify", false, "restore it into an empty control plane, and compare")
	cmd.Flags().StringVar(&s.verifyKubeconfig, "verify-kubeconfig", "", "kubeconfig of an empty control plane for --verify, which is not empty any more after that")
	cmd.Flags().DurationVar(&s.timeout, "timeout", 15*time.Minute, "how long it may take")
	_ = cmd.MarkFlagRequired("recipient") // it is there
	c.flags.AddFlags(cmd.Flags())
	cmd.AddCommand(c.newSaveList())
	return cmd
}

func (s *saving) run(ctx context.Context) error {
	recipients, err := key.Recipients(source.AllowNetwork(ctx), s.recipients...)
	if err != nil {
		return err
	}
	var check agekey.Identity
	if s.verify {
		// A key of this process is one more recipient: it can be verified without the key of
		// any other, which need not be at hand where a state is saved.
		own, to, err := ownKey(s.recipients)
		if err != nil {
			return err
		}
		check, recipients = own, append(recipients, to)
	}
	cl, err := s.client()
	if err != nil {
		return err
	}
	if s.records, err = s.recordsIn(ctx, cl, ""); err != nil {
		return err
	}
	at, err := s.place.open(ctx, s.now)
	if err != nil {
		return err
	}
	defer at.Close()
	taken, err := state.Take(ctx, cl, state.TakeOptions{Program: version(), Namespace: s.records, Now: s.now, Warn: func(text string) { s.say("%s", text) }})
	if err != nil {
		return err
	}
	sealed, err := archive.Seal(taken, recipients...)
	if err != nil {
		return err
	}
	return s.keepVersion(ctx, at, sealed, func(v store.Version) error {
		fmt.Fprintf(s.streams.Out, "✔ saved version %s: %d Clusters, %d objects, %d bytes\n", v, len(state.Clusters(taken)), len(taken.Objects), len(sealed))
		if !s.verify {
			return nil
		}
		return s.verified(ctx, cl, at, v, check)
	})
}

// recordsIn is the namespace of what the tier has on record, which is that of its agent; empty if nobody says one, no
// agent is a Deployment and nothing is on record. saved is that of a state that is restored, empty if none is.
func (c *cli) recordsIn(ctx context.Context, cl client.Client, saved string) (string, error) {
	said := c.saidNamespace()
	agents, err := installation.All(ctx, cl)
	if err == nil && said == "" && len(agents) == 0 {
		said, err = recordsLeft(ctx, cl, saved)
	}
	switch {
	case apierrors.IsForbidden(err): // who may read just what is saved
		c.say("%v; its records are taken to be in namespace %s", err, c.namespace())
		return c.namespace(), nil
	case err != nil:
		return "", err
	case said == "" && len(agents) > 1 && slices.ContainsFunc(agents, func(a installation.Found) bool { return a.Namespace == v1alpha1.AgentNamespace }):
		return v1alpha1.AgentNamespace, nil // tenants have an agent of their own
	}
	return namespaceOf(agents, "this tier", said, "-n")
}

// recordsLeft is where a tier has records whose agent is no Deployment, or none any more: it may have been uninstalled before
// its state is saved. It is empty if there are none. A record that has only what a person approved, which earlier versions had
// made in the usual namespace beside that of an agent elsewhere, counts where there is no other: it has neither who led the
// tier nor what it gave away.
func recordsLeft(ctx context.Context, cl client.Client, saved string) (string, error) {
	found, kept := map[string]bool{}, map[string]bool{}
	for _, name := range []string{v1alpha1.FirstSyncConfigMap, v1alpha1.EpochConfigMap} {
		list := &corev1.ConfigMapList{}
		if err := cl.List(ctx, list, client.MatchingFields{"metadata.name": name}); err != nil {
			return "", fmt.Errorf("cannot look for the records of this tier, ConfigMaps %s: %w", name, err)
		}
		for i := range list.Items {
			found[list.Items[i].Namespace] = true
			if name == v1alpha1.EpochConfigMap || !firstsync.OnlyApproved(&list.Items[i]) {
				kept[list.Items[i].Namespace] = true
			}
		}
	}
	if len(kept) > 0 {
		found = kept
	}
	namespaces := slices.Sorted(maps.Keys(found))
	switch {
	case found[v1alpha1.AgentNamespace]:
		return v1alpha1.AgentNamespace, nil
	case found[saved]:
		return saved, nil
	case len(namespaces) > 1:
		return "", fmt.Errorf("cannot tell which records are those of this tier: there are some in namespace %s; say which with -n", strings.Join(namespaces, " and "))
	case len(namespaces) == 1:
		return namespaces[0], nil
	}
	return "", nil
}

// ownKey is one that goes with the others: keys that resist quantum computers are not mixed
// with those that do not.
func ownKey(recipients []string) (agekey.Identity, agekey.Recipient, error) {
	hybrid := true
	for _, r := range recipients {
		hybrid = hybrid && strings.HasPrefix(strings.TrimSpace(r), "age1pq1")
	}
	if hybrid {
		id, err := agekey.GenerateHybridIdentity()
		if err != nil {
			return nil, nil, fmt.Errorf("cannot make a key: %w", err)
		}
		return id, id.Recipient(), nil
	}
	id, err := agekey.GenerateX25519Identity()
	if err != nil {
		return nil, nil, fmt.Errorf("cannot make a key: %w", err)
	}
	return id, id.Recipient(), nil
}

// keepVersion saves, has the version looked at, and deletes old ones for it only if that finds
// nothing: they may be all that can be restored. The lock is held for the writes alone, as a look
// may take long.
func (s *saving) keepVersion(ctx context.Context, at store.Store, sealed []byte, look func(store.Version) error) error {
	var v store.Version
	err := s.locked(ctx, at, func(l store.Lock) (err error) {
		v, err = at.Save(ctx, l, sealed)
		return err
	})
	if err != nil {
		return err
	}
	if err := look(v); err != nil || s.keep == 0 {
		return err
	}
	err = s.locked(ctx, at, func(l store.Lock) error {
		all, err := at.Versions(ctx)
		if err != nil {
			return err
		}
		if n := len(all); n > 0 && all[n-1].String() != v.String() {
			s.say("somebody saved since: old versions stay")
			return nil
		}
		old, err := at.Prune(ctx, l, store.Version{}, s.keep)
		if len(old) > 0 {
			s.say("deleted %d old versions", len(old))
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("version %s is saved: %w", v, err)
	}
	return nil
}

// locked calls f under the lock.
func (s *saving) locked(ctx context.Context, at store.Store, f func(store.Lock) error) error {
	host, err := os.Hostname()
	if err != nil {
		return fmt.Errorf("cannot read host name: %w", err)
	}
	l, err := at.Lock(ctx, "cascade save on "+host+", process "+strconv.Itoa(os.Getpid()), s.timeout)
	if err != nil {
		return err
	}
	defer func() {
		release, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
		defer cancel()
		if err := at.Unlock(release, l); err != nil {
			fmt.Fprintf(s.streams.ErrOut, "✗ %v: others wait until %s\n", err, l.Until.Format(time.RFC3339))
		}
	}()
	return f(l)
}

// verified loads what was saved, and restores it elsewhere.
func (s *saving) verified(ctx context.Context, tier client.Client, at store.Store, v store.Version, id agekey.Identity) error {
	sealed, err := at.Load(ctx, v)
	if err != nil {
		return err
	}
	loaded, err := archive.Open(sealed, id)
	if err != nil {
		return err
	}
	kubeconfig := s.verifyKubeconfig
	if kubeconfig == "" {
		started, stop, err := s.startEmpty(ctx)
		if err != nil {
			return err
		}
		defer stop()
		kubeconfig = started
	}
	empty, err := clientOf(kubeconfig)
	if err != nil {
		return err
	}
	s.say("restoring it into an empty control plane")
	differences, err := state.Verify(ctx, tier, empty, loaded, state.Options{Namespace: s.records})
	if err != nil {
		return err
	}
	if len(differences) > 0 {
		for _, d := range differences[:min(len(differences), 50)] {
			fmt.Fprintln(s.streams.ErrOut, "✗ "+d)
		}
		return fmt.Errorf("cannot verify version %s: %d objects did not come back as they were saved", v, len(differences))
	}
	fmt.Fprintf(s.streams.Out, "✔ verified version %s: all %d objects came back as they were saved\n", v, len(loaded.Objects))
	return nil
}

// clientOf connects by a file.
func clientOf(kubeconfig string) (client.Client, error) {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("cannot load %s: %w", kubeconfig, err)
	}
	config.QPS = -1
	answer.Guard(config)
	cl, err := client.New(config, client.Options{Scheme: newScheme()})
	if err != nil {
		return nil, fmt.Errorf("cannot connect to the control plane of %s: %w", kubeconfig, err)
	}
	return cl, nil
}

// startEmpty runs a control plane in a directory of its own until stop is called.
func (s *saving) startEmpty(ctx context.Context) (kubeconfig string, stop func(), err error) {
	self, err := os.Executable()
	if err != nil {
		return "", nil, fmt.Errorf("cannot find own program: %w", err)
	}
	program, err := findMom(filepath.Dir(self))
	if err != nil {
		return "", nil, fmt.Errorf("cannot verify the state; --verify-kubeconfig names an empty control plane instead: %w", err)
	}
	dir, err := os.MkdirTemp("", "cascade-verify-")
	if err != nil {
		return "", nil, fmt.Errorf("cannot make a directory: %w", err)
	}
	s.say("starting a control plane")
	run := func(ctx context.Context, args ...string) error {
		cmd := exec.CommandContext(ctx, program, append([]string{"controlplane"}, args...)...)
		cmd.Stdout, cmd.Stderr = s.streams.ErrOut, s.streams.ErrOut
		return cmd.Run()
	}
	stop = func() {
		within, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		if err := run(within, "stop", "--dir", dir); err != nil {
			fmt.Fprintf(s.streams.ErrOut, "✗ cannot stop the control plane in %s: %v\n", dir, err)
			return
		}
		_ = os.RemoveAll(dir)
	}
	if err := run(ctx, "start", "--dir", dir, "--api-only", "--owner-pid", strconv.Itoa(os.Getpid())); err != nil {
		stop()
		return "", nil, fmt.Errorf("cannot start a control plane with %s: %w", momProgram, err)
	}
	return filepath.Join(dir, "kubeconfig"), stop, nil
}

func (c *cli) newSaveList() *cobra.Command {
	from := &placeFlags{}
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List the saved versions of a state, the oldest first",
		Example: "  cascade save list --from s3://state/mom?region=eu-central-1",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
			defer cancel()
			at, err := from.open(ctx, c.now)
			if err != nil {
				return err
			}
			defer at.Close()
			versions, err := at.Versions(ctx)
			if err != nil {
				return err
			}
			var rows [][]string
			for _, v := range versions {
				when, size := "", ""
				if !v.Saved.IsZero() {
					when = v.Saved.UTC().Format(time.RFC3339)
				}
				if v.Bytes > 0 {
					size = strconv.FormatInt(v.Bytes, 10)
				}
				rows = append(rows, []string{v.String(), when, size})
			}
			return table(c.streams.Out, []string{"VERSION", "SAVED", "BYTES"}, rows)
		},
	}
	from.bind(cmd, "from", "where versions are kept")
	cmd.Flags().DurationVar(&timeout, "timeout", time.Minute, "how long it may take")
	return cmd
}
