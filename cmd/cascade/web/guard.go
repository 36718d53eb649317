package web

import (
	"context"
	"fmt"
	"net/http"

	authzv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	"k8s.io/apimachinery/pkg/runtime"
)

// May returns the HTTP status for whether the user of a request may do something: 200, 401
// or 403. With an error nobody can tell.
type May func(context.Context, authzv1.ResourceAttributes) (int, error)

// guarded reads with another's rights than its own: nothing comes out of it that the user
// may not read.
type guarded struct {
	client.Reader
	scheme *runtime.Scheme
	may    May
}

// Guard returns a reader that asks before each read whether the user may have it. It refuses
// as the API server does.
func Guard(r client.Reader, scheme *runtime.Scheme, may May) client.Reader {
	return guarded{r, scheme, may}
}

// Get implements client.Reader.
func (g guarded) Get(ctx context.Context, key client.ObjectKey, o client.Object, options ...client.GetOption) error {
	if err := g.ask(ctx, "get", o, key); err != nil {
		return err
	}
	return g.Reader.Get(ctx, key, o, options...)
}

// List implements client.Reader.
func (g guarded) List(ctx context.Context, list client.ObjectList, options ...client.ListOption) error {
	o := client.ListOptions{}
	o.ApplyOptions(options)
	if err := g.ask(ctx, "list", list, client.ObjectKey{Namespace: o.Namespace}); err != nil {
		return err
	}
	return g.Reader.List(ctx, list, options...)
}

func (g guarded) ask(ctx context.Context, verb string, o runtime.Object, key client.ObjectKey) error {
	gvk, err := apiutil.GVKForObject(o, g.scheme)
	if err != nil {
		return err
	}
	resource, err := resourceOf(gvk)
	if err != nil {
		return err
	}
	status, err := g.may(ctx, authzv1.ResourceAttributes{
		Verb: verb, Group: gvk.Group, Version: gvk.Version, Resource: resource, Namespace: key.Namespace, Name: key.Name,
	})
	switch {
	case err != nil:
		return fmt.Errorf("cannot tell who may read %s: %w", resource, err)
	case status == http.StatusOK:
		return nil
	case status == http.StatusUnauthorized:
		return &Refusal{http.StatusUnauthorized}
	}
	return apierrors.NewForbidden(schema.GroupResource{Group: gvk.Group, Resource: resource}, "", &Refusal{http.StatusForbidden})
}

// resourceOf is the resource of a kind that pages are made of. All of them but the Child
// have the plural that is guessed.
func resourceOf(gvk schema.GroupVersionKind) (string, error) {
	if len(gvk.Kind) > 4 && gvk.Kind[len(gvk.Kind)-4:] == "List" {
		gvk.Kind = gvk.Kind[:len(gvk.Kind)-4]
	}
	switch gvk.Kind {
	case "Child":
		return "children", nil
	case "Layer", "Rollout", "Kustomization", "HelmRelease", "ConfigMap", "Event", "GitRepository", "OCIRepository", "Bucket", "HelmRepository", "HelmChart", "Lease", "Cluster",
		"ExternalArtifact", "ArtifactGenerator", "ImageRepository", "ImagePolicy", "ImageUpdateAutomation", "Receiver", "Alert", "Provider", "Credential", "StateBackup":
		resource, _ := meta.UnsafeGuessKindToResource(gvk)
		return resource.Resource, nil
	}
	return "", fmt.Errorf("cannot read %s: no page is made of it", gvk.Kind)
}
