package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
)

// mostLine bounds a line of a log; the rest of a longer one is left out.
const mostLine = 64 << 10

// agentContainer is the container of the agent in its pods.
const agentContainer = "manager"

// logOptions say which lines are printed.
type logOptions struct {
	of, level, output string
	follow            bool
	since             time.Duration
	tail              int64
}

func (c *cli) newLogs() *cobra.Command {
	var o logOptions
	cmd := &cobra.Command{
		Use:   "logs [kind name]",
		Short: "Print what the agent of this tier logs, of all or of one object",
		Long: "Print what the agent of this tier logs, of all or of one object. An object of another namespace than the\n" +
			"agent's is named with it: --for child/fleet/shop.",
		Example: "  cascade logs --level error --since 10m\n" +
			"  cascade logs --for layer/fleet/tenants --follow\n" +
			"  cascade logs -o json | jq 'select(.controllerKind==\"Child\")'",
		Args:              cobra.MatchAll(cobra.MaximumNArgs(2), notOne),
		ValidArgsFunction: c.completeKindAndName(kinds),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 2 {
				if o.of != "" {
					return fmt.Errorf("cannot print logs: say the object once, as %s/%s or with --for", args[0], args[1])
				}
				o.of = args[0] + "/" + args[1]
			}
			filter, err := o.filter()
			if err != nil {
				return err
			}
			return c.logs(cmd.Context(), o, filter)
		},
	}
	cmd.Flags().StringVar(&o.of, "for", "", "only lines about this object: kind/name or kind/namespace/name")
	cmd.Flags().StringVar(&o.level, "level", "", "only lines of this level and above: debug, info, error")
	cmd.Flags().BoolVarP(&o.follow, "follow", "f", false, "go on to print lines as they come")
	cmd.Flags().DurationVar(&o.since, "since", 0, "only lines of so long, as 10m")
	cmd.Flags().Int64Var(&o.tail, "tail", -1, "only so many of the last lines of each pod, before they are chosen")
	cmd.Flags().StringVarP(&o.output, "output", "o", "", "json for lines as the agent wrote them")
	c.flags.AddFlags(cmd.Flags())
	return cmd
}

// logLine is what the agent logs, and Flux's controllers do.
type logLine struct {
	At        string `json:"ts"`
	Level     string `json:"level"`
	Message   string `json:"msg"`
	Error     string `json:"error"`
	Kind      string `json:"controllerKind"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
}

func (l logLine) String() string {
	text := l.At + " " + l.Level
	if l.Kind != "" || l.Name != "" {
		text += " " + l.Kind + "/" + l.Namespace + "/" + l.Name
	}
	text += ": " + l.Message
	if l.Error != "" {
		text += ": " + l.Error
	}
	return text
}

// logLevels from the least to the most urgent.
func logLevels() []string { return []string{"debug", "info", "warn", "error"} }

// logFilter chooses lines.
type logFilter struct {
	kind, namespace, name string
	level                 int
}

func (o *logOptions) filter() (logFilter, error) {
	f := logFilter{}
	if o.level != "" {
		if f.level = slices.Index(logLevels(), strings.ToLower(o.level)); f.level < 0 {
			return f, fmt.Errorf("cannot use --level %q: use debug, info or error", o.level)
		}
	}
	if o.output != "" && o.output != "json" {
		return f, fmt.Errorf("cannot print as %q: use json", o.output)
	}
	if o.of == "" {
		return f, nil
	}
	parts := strings.Split(o.of, "/")
	if len(parts) < 2 || len(parts) > 3 || slices.Contains(parts, "") {
		return f, fmt.Errorf("cannot read %q: use kind/name or kind/namespace/name", o.of)
	}
	if f.kind, f.name = parts[0], parts[len(parts)-1]; len(parts) == 3 {
		f.namespace = parts[1]
	}
	if g, ok := kindOf(f.kind); ok {
		f.kind = g.single
	}
	return f, nil
}

// passes reports whether a line is chosen. What is not of the agent's form passes unless a
// filter says something: it is a library's, or the last words of a process that died.
func (f logFilter) passes(l logLine, parsed bool) bool {
	if !parsed {
		return f == logFilter{}
	}
	level := slices.Index(logLevels(), strings.ToLower(l.Level))
	return (level < 0 || level >= f.level) &&
		(f.kind == "" || strings.EqualFold(f.kind, l.Kind)) &&
		(f.name == "" || f.name == l.Name) && (f.namespace == "" || f.namespace == l.Namespace)
}

func (c *cli) logs(ctx context.Context, o logOptions, filter logFilter) error {
	config, err := c.flags.ToRESTConfig()
	if err != nil {
		return fmt.Errorf("cannot load kubeconfig: %w", err)
	}
	api, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("cannot connect to the cluster: %w", err)
	}
	cl, err := c.client()
	if err != nil {
		return err
	}
	pods := &corev1.PodList{}
	if err := cl.List(ctx, pods, client.InNamespace(c.namespace()), client.MatchingLabels{"app.kubernetes.io/name": v1alpha1.AgentName}); err != nil {
		return fmt.Errorf("cannot list pods of the agent: %w", err)
	}
	if len(pods.Items) == 0 {
		return fmt.Errorf("found no pod of an agent in namespace %s: say where it is with -n", c.namespace())
	}
	names := make([]string, 0, len(pods.Items))
	for i := range pods.Items {
		names = append(names, pods.Items[i].Name)
	}
	return c.logsOf(ctx, api.CoreV1().Pods(c.namespace()), names, o, filter)
}

// logsOf prints the logs of some pods. One that cannot be read, as it has not begun yet, is told
// of, and keeps nobody from the others: what they say is what a person looks for then.
func (c *cli) logsOf(ctx context.Context, api typedcorev1.PodInterface, pods []string, o logOptions, filter logFilter) error {
	options := &corev1.PodLogOptions{Container: agentContainer, Follow: o.follow}
	if o.since > 0 {
		seconds := int64(max(o.since/time.Second, 1))
		options.SinceSeconds = &seconds
	}
	if o.tail >= 0 {
		options.TailLines = &o.tail
	}
	lines := &logPrinter{to: c.streams.Out, filter: filter, raw: o.output == "json", withPod: len(pods) > 1}
	group := errgroup.Group{}
	if !o.follow {
		group.SetLimit(1) // one pod after the other
	}
	failed := make([]error, len(pods))
	for i, pod := range pods {
		group.Go(func() error {
			if failed[i] = lines.read(ctx, api, pod, options); failed[i] != nil && len(pods) > 1 {
				lines.tell(c.streams.ErrOut, failed[i])
			}
			return nil
		})
	}
	_ = group.Wait() // what failed is kept by pod
	switch {
	case slices.Contains(failed, nil):
		return nil
	case len(pods) > 1:
		return fmt.Errorf("cannot read the log of any of %d pods", len(pods))
	}
	return failed[0]
}

// logPrinter prints chosen lines of several logs, each as a whole.
type logPrinter struct {
	filter       logFilter
	raw, withPod bool

	mu sync.Mutex
	to io.Writer
}

// read prints the log of a pod, until it ends or a person ends it.
func (p *logPrinter) read(ctx context.Context, api typedcorev1.PodInterface, pod string, options *corev1.PodLogOptions) error {
	stream, err := api.GetLogs(pod, options).Stream(ctx)
	if err != nil {
		return fmt.Errorf("cannot read the log of pod %s: %w", pod, err)
	}
	defer stream.Close()
	err = p.copy(pod, stream)
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// tell says what failed, between two lines.
func (p *logPrinter) tell(to io.Writer, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	fmt.Fprintf(to, "✗ %v\n", err)
}

func (p *logPrinter) copy(pod string, from io.Reader) error {
	in := bufio.NewReaderSize(from, mostLine)
	for {
		text, long, err := in.ReadLine()
		if err == nil {
			if werr := p.print(pod, text); werr != nil {
				return werr
			}
		}
		for long && err == nil {
			_, long, err = in.ReadLine()
		}
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return fmt.Errorf("cannot read the log of pod %s: %w", pod, err)
		}
	}
}

func (p *logPrinter) print(pod string, text []byte) error {
	var line logLine
	parsed := json.Unmarshal(text, &line) == nil
	if len(text) == 0 || !p.filter.passes(line, parsed) {
		return nil
	}
	out := string(text)
	if parsed && !p.raw {
		out = line.String()
		if p.withPod {
			out = pod + " " + out
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	_, err := fmt.Fprintln(p.to, out)
	return err
}
