package remote

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/Masterminds/semver/v3"
	appsv1 "k8s.io/api/apps/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/deploy"
	"github.com/cascade-gitops/cascade/remote/reason"
)

// pinImage writes down which image the agents of a layer have: the one that the layer names,
// and otherwise the one that they had, so that the parent's next version moves no child. Of a
// layer that is new it is the parent's own.
func pinImage(layer *v1alpha1.Layer, own string) {
	status, agent := &layer.Status, layer.Spec.Agent
	switch {
	case agent == nil:
		status.AgentImage = ""
	case agent.Image != "":
		status.AgentImage = agent.Image
	case status.AgentImage == "":
		status.AgentImage = own
	}
}

// imageOf is the image of a layer's agents, an error while that is not on record.
func imageOf(layer *v1alpha1.Layer) (string, error) {
	switch agent := layer.Spec.Agent; {
	case agent == nil:
		return "", nil
	case agent.Image != "":
		return agent.Image, nil
	case layer.Status.AgentImage != "":
		return layer.Status.AgentImage, nil
	}
	return "", reason.Because(v1alpha1.ReasonProgressing, errNoImage)
}

// agentImage is the image of the agent in the child, empty if there is none.
func (p *push) agentImage(ctx context.Context) (string, error) {
	if p.installed == nil {
		agent := &appsv1.Deployment{}
		if err := p.readOwn(ctx, "/apis/apps/v1", "deployments", v1alpha1.AgentName, agent); client.IgnoreNotFound(err) != nil {
			return "", cannotReach(fmt.Errorf("cannot read the Deployment of the child's agent: %w", err))
		}
		image := deploy.ImageOf(agent)
		p.installed = &image
	}
	return *p.installed, nil
}

// noteImage has the Child's status say which image the agent of a layer has in the child that waits for a Rollout, where
// nobody noted that: before the Rollout came, or past it. Where there is no agent, any will do.
func (s *seeding) noteImage(ctx context.Context, entry *v1alpha1.ChildLayer) error {
	if s.layer.Spec.Agent == nil || entry.Digest == "" || entry.AgentImage != "" || !s.governing.Layer(s.layer.Name).Moves() || s.postponed() != nil {
		return nil
	}
	image, err := s.agentImage(ctx)
	if err != nil {
		return err
	}
	if image == "" {
		image, _ = s.imageOf() // of a layer that is seen for the first time it is known a moment later
	}
	entry.AgentImage = image
	return nil
}

// errNoImage: the layer was seen for the first time a moment ago.
var errNoImage = errors.New("the image of the layer's agent is not on record yet: see status.agentImage of the Layer, or name it in spec.agent.image")

// parentBefore refuses an image of agents whose version is later than this program's own: a
// parent is upgraded before its children. It judges releases only: without a tag that is a
// version, or without a version of its own, nothing is known.
func parentBefore(image, own string) error {
	tag, err := semver.StrictNewVersion(strings.TrimPrefix(tagOf(image), "v"))
	if err != nil {
		return nil
	}
	mine, err := semver.StrictNewVersion(strings.TrimPrefix(own, "v"))
	if err != nil || isUnreleased(mine) || !tag.GreaterThan(mine) {
		return nil
	}
	return reason.Because(v1alpha1.ReasonParentOlder, fmt.Errorf("cannot bring agent %s to clusters: this tier's own agent is %s, and a parent is upgraded before its children; upgrade this tier to %s first", image, own, tagOf(image)))
}

// isUnreleased reports whether a version is the one that Go gives to a build of a commit that
// has no release before it: it is before all releases, whatever the program can do.
func isUnreleased(v *semver.Version) bool {
	return v.Major() == 0 && v.Minor() == 0 && v.Patch() == 0 && v.Prerelease() != ""
}

// tagOf is the tag of an image; empty if it has none.
func tagOf(image string) string {
	name, _, _ := strings.Cut(image, "@")
	_, tag, _ := strings.Cut(name[strings.LastIndex(name, "/")+1:], ":")
	return tag
}

// imageNoted passes the change of a layer by which the image of its agents is known.
func imageNoted() predicate.Predicate {
	return predicate.Funcs{
		CreateFunc: func(event.CreateEvent) bool { return false }, DeleteFunc: func(event.DeleteEvent) bool { return false },
		GenericFunc: func(event.GenericEvent) bool { return false },
		UpdateFunc:  func(e event.UpdateEvent) bool { return notedIn(e.ObjectOld) != notedIn(e.ObjectNew) },
	}
}

func notedIn(o client.Object) string {
	layer, ok := o.(*v1alpha1.Layer)
	if !ok {
		return ""
	}
	return layer.Status.AgentImage
}
