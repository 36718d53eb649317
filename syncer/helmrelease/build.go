package helmrelease

import (
	"context"
	"errors"
	"fmt"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	helmchart "helm.sh/helm/v4/pkg/chart/v2"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/chartutil"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/cascade-gitops/cascade/syncer/chart"
	"github.com/cascade-gitops/cascade/syncer/mask"
	"github.com/cascade-gitops/cascade/syncer/release"
	"github.com/cascade-gitops/cascade/syncer/source"
	"github.com/cascade-gitops/cascade/syncer/status"
)

// build gathers what is released: the values, and the chart in the version that
// the source has.
func (r *Reconciler) build(ctx context.Context, run *run) *refusal {
	obj := run.Obj
	run.redact = mask.Texts(nil)
	if n := len(obj.Spec.ValuesFrom); n > mostReferences {
		return &refusal{reason: reasonValuesError, err: fmt.Errorf("spec.valuesFrom has %d references, the limit is %d; put several values into one ConfigMap or Secret", n, mostReferences), event: true}
	}
	secrets := &secretReader{Client: r.Client, reader: r.Targets.Local, refs: obj.Spec.ValuesFrom, memory: run.memory}
	values, err := chartutil.ChartValuesFromReferences(ctx, log.FromContext(ctx), secrets, obj.Namespace, obj.GetValues(), obj.Spec.ValuesFrom...)
	run.redact = mask.Texts(secrets.secret)
	if errors.Is(err, release.ErrNoRoom) {
		// What is there runs on as it is. Who asks is answered when something was looked at.
		run.outstanding = true
		status.SetCondition(obj, meta.ReconcilingCondition, metav1.ConditionTrue, meta.ProgressingReason, "Waiting for memory: %s", err)
		return &refusal{err: err, passing: true, wait: r.Jitter(roomPoll)}
	}
	if err != nil {
		return &refusal{reason: reasonValuesError, err: valuesError(err), event: true}
	}
	run.values = values
	about, err := chart.Describe(ctx, run.snapshot)
	if err != nil {
		return &refusal{reason: meta.ArtifactFailedReason, err: status.FluxMessage("Could not load chart: " + err.Error()), event: true}
	}
	if hasDigest(run.from) {
		tracked, digest, err := release.TrackedVersion(about.Version, run.snapshot.Revision)
		if err != nil {
			return &refusal{reason: reasonChartMutateError, err: err}
		}
		if run.ociDigest = digest; !r.Rules.NoDigestTracking {
			about.Version = tracked
		}
	}
	snapshot := run.snapshot
	run.chart = release.Chart{
		Name: about.Name, Version: about.Version, AppVersion: about.AppVersion,
		Load: func(ctx context.Context) (*helmchart.Chart, error) { return r.load(ctx, obj, snapshot) },
	}
	return nil
}

// load returns the chart for the action that is under way. It leaves out the
// schema of an action that does not validate values: a schema that cannot be used
// is no failure then.
func (r *Reconciler) load(ctx context.Context, obj *helmv2.HelmRelease, snapshot *source.Snapshot) (*helmchart.Chart, error) {
	options := []chart.Option{chart.WithFileMaxBytes(r.ChartFileBytes)}
	unchecked := obj.GetUpgrade().DisableSchemaValidation
	if obj.Status.LastAttemptedReleaseAction == helmv2.ReleaseActionInstall {
		unchecked = obj.GetInstall().DisableSchemaValidation
	}
	if unchecked {
		options = append(options, chart.WithoutSchemas())
	}
	return chart.Load(ctx, snapshot, options...)
}

// valuesError is an error about values that does not quote a Secret: what is
// wrong with its content is told by the parsers with a part of it.
func valuesError(err error) error {
	var ref *chartutil.ErrValuesReference
	if !errors.As(err, &ref) || ref.Kind != "Secret" || ref.Err == nil {
		return err
	}
	switch ref.Reason {
	case chartutil.ErrValuesDataRead:
		return fmt.Errorf("%w: it is not a map in YAML", withoutCause(ref))
	case chartutil.ErrValueMerge:
		return fmt.Errorf("%w: it is not in the syntax of helm's --set; set literal: true to take it as it is", withoutCause(ref))
	}
	return err
}

func withoutCause(ref *chartutil.ErrValuesReference) error {
	plain := *ref
	plain.Err = nil
	return &plain
}
