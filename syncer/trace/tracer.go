package trace

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/go-logr/logr"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	oteltrace "go.opentelemetry.io/otel/trace"
)

// digest of a revision: at its end, behind an algorithm. A trace's ID takes 32 digits of it.
var digest = regexp.MustCompile(`(?:^|[@:])(?:sha1|sha256|sha384|sha512):([0-9a-f]{32})[0-9a-f]*$`)

// IDOf is the ID of the trace of a revision, and false for a revision without a digest.
func IDOf(revision string) (oteltrace.TraceID, bool) {
	found := digest.FindStringSubmatch(revision)
	if found == nil {
		return oteltrace.TraceID{}, false
	}
	id, err := oteltrace.TraceIDFromHex(found[1])
	return id, err == nil
}

// Tracer records steps. A nil one records nothing. It is safe for concurrent use.
type Tracer struct {
	provider *sdktrace.TracerProvider
	tracer   oteltrace.Tracer
	cluster  string
}

// Wanted reports whether the environment names a collector, in the variables of the
// OpenTelemetry specification, and refuses what is asked of it but cannot be had.
func Wanted(env func(string) string) (bool, error) {
	if strings.EqualFold(env("OTEL_SDK_DISABLED"), "true") {
		return false, nil
	}
	switch exporter := env("OTEL_TRACES_EXPORTER"); exporter {
	case "", "otlp":
	case "none":
		return false, nil
	default:
		return false, fmt.Errorf("cannot send traces by OTEL_TRACES_EXPORTER=%s: only otlp is there", exporter)
	}
	if env("OTEL_EXPORTER_OTLP_ENDPOINT") == "" && env("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") == "" {
		return false, nil
	}
	for _, name := range []string{"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"} {
		if protocol := env(name); protocol != "" && protocol != "http/protobuf" {
			return false, fmt.Errorf("cannot send traces by %s=%s: only http/protobuf is there, which collectors take at port 4318", name, protocol)
		}
	}
	return true, nil
}

// Process is what the spans of a process say of it.
type Process struct {
	Version string
	// Instance is the name of the pod.
	Instance string
	// Cluster is the UID of the cluster's namespace kube-system.
	Cluster string
}

// Export returns a Tracer that sends what it records to the collector that the environment
// names. What goes wrong with that is logged. The caller calls Close.
func Export(ctx context.Context, p Process, log logr.Logger) (*Tracer, error) {
	exporter, err := otlptracehttp.New(ctx)
	if err != nil {
		return nil, fmt.Errorf("cannot send traces: %w", err)
	}
	// The SDK has no other place for this.
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { log.Error(err, "cannot send traces") }))
	otel.SetLogger(log)
	return newTracer(ctx, p, sdktrace.WithBatcher(exporter))
}

func newTracer(ctx context.Context, p Process, to sdktrace.TracerProviderOption) (*Tracer, error) {
	about, err := resource.New(ctx, resource.WithAttributes(
		attribute.String("service.name", "cascade"), attribute.String("service.version", p.Version),
		attribute.String("service.instance.id", p.Instance), attribute.String("k8s.cluster.uid", p.Cluster),
	), resource.WithFromEnv())
	if err != nil && !errors.Is(err, resource.ErrPartialResource) {
		return nil, fmt.Errorf("cannot read OTEL_RESOURCE_ATTRIBUTES: %w", err)
	}
	provider := sdktrace.NewTracerProvider(to, sdktrace.WithResource(about), sdktrace.WithIDGenerator(ids{}))
	return &Tracer{provider: provider, tracer: provider.Tracer("github.com/cascade-gitops/cascade"), cluster: p.Cluster}, nil
}

// Close sends what is left, within the deadline of ctx.
func (t *Tracer) Close(ctx context.Context) error {
	if t == nil {
		return nil
	}
	if err := t.provider.Shutdown(ctx); err != nil {
		return fmt.Errorf("cannot send the last traces: %w", err)
	}
	return nil
}

// Record tells of a step. It never waits.
func (t *Tracer) Record(s Step) {
	if t == nil {
		return
	}
	id, ok := IDOf(s.Revision)
	if !ok {
		return
	}
	ctx := context.WithValue(context.Background(), idsKey{}, pair{id, t.spanOf(&s)})
	if s.Source != nil {
		fetch := Step{Kind: s.Source.Kind, Name: s.Source.NamespacedName, Revision: s.Revision}
		ctx = oteltrace.ContextWithRemoteSpanContext(ctx, oteltrace.NewSpanContext(oteltrace.SpanContextConfig{
			TraceID: id, SpanID: t.spanOf(&fetch), TraceFlags: oteltrace.FlagsSampled, Remote: true,
		}))
	}
	attributes := []attribute.KeyValue{
		attribute.String("cascade.kind", s.Kind), attribute.String("cascade.namespace", s.Name.Namespace), attribute.String("cascade.name", s.Name.Name),
		attribute.String("cascade.revision", s.Revision), attribute.String("cascade.reason", s.Reason),
	}
	if s.Layer != "" {
		attributes = append(attributes, attribute.String("cascade.layer", s.Layer))
	}
	_, span := t.tracer.Start(ctx, s.title(), oteltrace.WithTimestamp(s.Began), oteltrace.WithAttributes(attributes...))
	if s.Failed {
		span.SetStatus(codes.Error, s.Reason)
	}
	span.End(oteltrace.WithTimestamp(s.Ended))
}

// title names the span of a step: few titles for many objects, as collectors group by them.
func (s *Step) title() string {
	switch {
	case s.Layer != "":
		return "push Layer"
	case s.Source == nil && s.Layer == "" && isSource(s.Kind):
		return "fetch " + s.Kind
	}
	return "apply " + s.Kind
}

func isSource(kind string) bool {
	switch kind {
	case "Kustomization", "HelmRelease":
		return false
	}
	return true
}

// spanOf is the ID of the span of a step: the same whoever asks, so that the span of a
// fetch is known to what is applied after it, by other processes too.
func (t *Tracer) spanOf(s *Step) oteltrace.SpanID {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s\n%s\n%s\n%s\n%s\n%t", t.cluster, s.Kind, s.Name, s.Layer, s.Revision, s.Failed))
	return oteltrace.SpanID(sum[:8])
}

// ids gives a span the IDs that its context has.
type (
	ids    struct{}
	idsKey struct{}
	pair   struct {
		trace oteltrace.TraceID
		span  oteltrace.SpanID
	}
)

var _ sdktrace.IDGenerator = ids{}

func (ids) NewIDs(ctx context.Context) (oteltrace.TraceID, oteltrace.SpanID) {
	p, _ := ctx.Value(idsKey{}).(pair)
	return p.trace, p.span
}

func (i ids) NewSpanID(ctx context.Context, _ oteltrace.TraceID) oteltrace.SpanID {
	_, span := i.NewIDs(ctx)
	return span
}
