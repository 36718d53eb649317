//go:build linux

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/cascade-gitops/cascade/mom"
)

func newDown(p *place) *cobra.Command {
	timeout := 5 * time.Minute
	cmd := &cobra.Command{
		Use:   "down",
		Short: "Save the state of a management cluster and stop it; nothing is deleted",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			folder, err := p.folder()
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
			defer cancel()
			ran, err := folder.Down(ctx)
			if err != nil {
				return err
			}
			status, _, err := folder.ReadStatus()
			if err != nil {
				return err
			}
			status = asItIs(status, 0, time.Now())
			switch {
			case !ran:
				return fmt.Errorf("cannot stop the management cluster: none runs in %s", folder)
			case status.Message != "":
				return fmt.Errorf("cannot stop as asked: %s", status.Message)
			}
			text := "✔ stopped; nothing was deleted"
			if s := status.State; s != nil && s.Version != "" {
				text += fmt.Sprintf("; saved as version %s at %s", s.Version, s.Address)
			}
			fmt.Fprintln(cmd.OutOrStdout(), text) // it has stopped, too, if nobody reads that
			return nil
		},
	}
	cmd.Flags().DurationVar(&timeout, "timeout", timeout, "how long to wait until it has saved and stopped")
	return cmd
}

func newStatus(p *place) *cobra.Command {
	output := ""
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show how a management cluster is, and whether it may go",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			folder, err := p.folder()
			if err != nil {
				return err
			}
			status, known, err := folder.ReadStatus()
			if err != nil {
				return err
			}
			if !known {
				return fmt.Errorf("cannot show a management cluster: there never was one in %s", folder)
			}
			pid, err := folder.Holder()
			if err != nil {
				return err
			}
			status = asItIs(status, pid, time.Now())
			switch output {
			case "":
				_, err = fmt.Fprint(cmd.OutOrStdout(), printed(status))
				return err
			case "json":
				encoder := json.NewEncoder(cmd.OutOrStdout())
				encoder.SetIndent("", "  ")
				return encoder.Encode(status)
			}
			return fmt.Errorf("cannot print as %q: use json", output)
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "", "json prints all that is known")
	return cmd
}

// silence is how long a run that is up may say nothing before what it said is old. It looks every few seconds.
const silence = time.Minute

// asItIs is a status with what the run itself could not say any more: that it ended, as it was killed or the machine went
// down, or that it stands still, or can write nothing. pid is that of the run, 0 if none runs.
func asItIs(s mom.Status, pid int, now time.Time) mom.Status {
	switch {
	case pid == 0 && s.Phase != mom.PhaseStopped:
		s.Phase, s.Message = mom.PhaseStopped, "it ended without saving; cascade mom up goes on with it here"
	case pid != 0 && s.Phase == mom.PhaseRunning && !s.Looked.IsZero() && now.Sub(s.Looked) > silence: // earlier programs do not say when
		s.Message = fmt.Sprintf("it says nothing since %s, and what follows is of then: see whether the disk of its folder is full, and whether process %d goes on", s.Looked.UTC().Format(time.RFC3339), s.PID)
		s.Verdict.Ready = false
	}
	return s
}

// printed is a status for people.
func printed(s mom.Status) string {
	var out strings.Builder
	fmt.Fprintf(&out, "%s since %s\n", s.Phase, s.Since.UTC().Format(time.RFC3339))
	if s.Message != "" {
		fmt.Fprintf(&out, "message: %s\n", s.Message)
	}
	fmt.Fprintf(&out, "repository: %s, ", s.Repository)
	if s.Branch != "" { // an earlier program did not say it
		fmt.Fprintf(&out, "branch %s, ", s.Branch)
	}
	fmt.Fprintf(&out, "path %s\nkubeconfig: %s\n", s.Path, s.Kubeconfig)
	if st := s.State; st != nil {
		fmt.Fprintf(&out, "state: %s", st.Address)
		if st.Version != "" {
			fmt.Fprintf(&out, ", version %s", st.Version)
		}
		if !st.SavedAt.IsZero() {
			fmt.Fprintf(&out, " of %s", st.SavedAt.UTC().Format(time.RFC3339))
		}
		if st.Unsaved {
			out.WriteString(", changed since")
		}
		if st.Error != "" {
			fmt.Fprintf(&out, "\nnot saved: %s", st.Error)
		}
		out.WriteString("\n")
	}
	switch {
	case s.Phase == mom.PhaseStopped && s.Verdict.Ready:
		out.WriteString("it was ready when it stopped\n")
	case s.Phase == mom.PhaseStopped:
		out.WriteString("it was not ready when it stopped\n")
	case s.Verdict.Ready:
		out.WriteString("ready: it may go\n")
	default:
		out.WriteString("not ready\n")
	}
	for _, list := range []struct {
		title string
		lines []string
	}{{"waiting for", s.Verdict.Waiting}, {"held", s.Verdict.Held}, {"but", s.Verdict.Depends}} {
		for _, line := range list.lines {
			fmt.Fprintf(&out, "%s: %s\n", list.title, line)
		}
	}
	if s.Phase == mom.PhaseStopped {
		return out.String()
	}
	table := tabwriter.NewWriter(&out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "PROGRAM\tPID\tSINCE\tRESTARTS\tENDED")
	for _, p := range s.Programs {
		ended := p.Ended
		if ended == "" {
			ended = "-"
		}
		fmt.Fprintf(table, "%s\t%d\t%s\t%d\t%s\n", p.Name, p.PID, p.Since.UTC().Format(time.RFC3339), p.Restarts, ended)
	}
	_ = table.Flush() // a string takes everything
	return out.String()
}

func newKubeconfig(p *place) *cobra.Command {
	return &cobra.Command{
		Use:   "kubeconfig",
		Short: "Print the administrator's kubeconfig of a management cluster that runs",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			folder, err := p.folder()
			if err != nil {
				return err
			}
			pid, err := folder.Holder()
			if err != nil {
				return err
			}
			if pid == 0 {
				return fmt.Errorf("cannot print a kubeconfig: no management cluster runs in %s", folder)
			}
			text, err := os.ReadFile(folder.Kubeconfig())
			if err != nil {
				return fmt.Errorf("cannot read kubeconfig: %w", err)
			}
			_, err = cmd.OutOrStdout().Write(text)
			return err
		},
	}
}
