package remote

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/inventory"
	"github.com/cascade-gitops/cascade/remote/reason"
	"github.com/cascade-gitops/cascade/syncer/apply"
	"github.com/cascade-gitops/cascade/syncer/keep"
	"github.com/cascade-gitops/cascade/syncer/mask"
	"github.com/cascade-gitops/cascade/syncer/render"
	"github.com/cascade-gitops/cascade/syncer/source"
	"github.com/cascade-gitops/cascade/syncer/worker"
)

// What Git declares for a layer is built once for all of its children: only the variables
// differ, which are substituted after the build. An object that mentions none of them is
// labelled and encoded once, too.

// mostTemplates bounds the bytes of the templates that are kept. One of a layer of a
// hundred objects takes some megabytes.
const mostTemplates = 64 << 20

// template is the build of a layer.
type template = render.Template[*apply.Frozen]

// templates are the builds of layers, by what they depend on. A build that fails is kept
// as well: it fails for each child alike.
type templates struct{ made keep.Once[*template] }

// of is the build of the layer of a seeding, which is under way once for all of its
// children.
func (t *templates) of(ctx context.Context, s *seeding) (*template, error) {
	// A request builds it again: what failed for want of time or memory may not now.
	return t.build(ctx, s.Workers, s.layer, s.snapshot, s.content, s.requested())
}

// build is that of a layer from a snapshot, of which content identifies what the layer reads.
func (t *templates) build(ctx context.Context, workers worker.Runner, layer *v1alpha1.Layer, snapshot *source.Snapshot, content, requested string) (*template, error) {
	key := strings.Join([]string{
		string(layer.UID), layer.Namespace, layer.Name, layer.Spec.Path, strconv.FormatInt(layer.Generation, 10), content, requested,
	}, "\x00")
	return t.made.Do(ctx, key, mostTemplates, func(err error) bool { return permanent(err) != nil }, func() (*template, int, error) {
		owner := ownerOf(layer.Namespace, layer.Name)
		made, err := render.Prepare(ctx, snapshot, render.Build{
			Path: layer.Spec.Path, Workers: layerWorkers(workers, layer),
		}, func(u *unstructured.Unstructured) (*apply.Frozen, int, error) {
			f, err := apply.Freeze(owner, u)
			if err != nil {
				return nil, 0, err
			}
			return f, f.Size(), nil
		})
		if err != nil {
			return nil, 0, err
		}
		return made, made.Size(), nil
	})
}

// layerWorkers work for a layer.
func layerWorkers(workers worker.Runner, layer *v1alpha1.Layer) worker.Runner {
	return worker.For(workers, "Layer/"+layer.Namespace+"/"+layer.Name)
}

// permanent is the failure of a build that comes again with the same files.
func permanent(err error) *render.Error {
	var failed *render.Error
	if errors.As(err, &failed) {
		return failed
	}
	return nil
}

// fromGit are the phases of what Git declares: sources come before the objects that refer
// to them. Their objects are shared by the children.
func (s *seeding) fromGit(ctx context.Context) ([]apply.Phase, error) {
	build, err := s.templates.of(ctx, s)
	if err != nil {
		if failed := permanent(err); failed != nil {
			// A commit that does not touch what was read does not mend it.
			s.contents.note(s.layer, s.snapshot, s.content, failed.Reads)
		}
		return nil, reason.Because(v1alpha1.ReasonBuildFailed, mask.Error(err, s.sensitive))
	}
	s.read = s.contents.note(s.layer, s.snapshot, s.content, build.Reads())
	objects, err := build.Render(s.vars, s.sensitive)
	if err != nil {
		return nil, reason.Because(v1alpha1.ReasonBuildFailed, err)
	}
	if objects, err = s.pinObjects(objects); err != nil {
		return nil, err
	}
	if len(s.handed) > 0 {
		objects = slices.DeleteFunc(slices.Clone(objects), func(f *apply.Frozen) bool { return slices.Contains(s.handed, inventory.Of(f.Object())) })
	}
	var first, then []*apply.Frozen
	for _, f := range objects {
		switch f.Object().GroupVersionKind().Group {
		case kustomizev1.GroupVersion.Group, helmv2.GroupVersion.Group:
			then = append(then, f)
		default:
			first = append(first, f)
		}
	}
	return []apply.Phase{apply.PhaseOf(first), apply.PhaseOf(then)}, nil
}
