package fleetsim

import (
	"encoding/json"
	"net/http"
	"slices"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utiljson "k8s.io/apimachinery/pkg/util/json"
)

// review answers a question of a user about himself.
func (r *request) review() answer {
	body, status := asJSON(r.Header.Get("Content-Type"), r.body)
	if status != nil {
		return answer{err: status}
	}
	var reply any
	var err error
	switch r.kind.Kind {
	case "SelfSubjectReview":
		q := &authenticationv1.SelfSubjectReview{}
		err = utiljson.Unmarshal(body, q)
		q.TypeMeta = metav1.TypeMeta{Kind: r.kind.Kind, APIVersion: r.kind.apiVersion(r.version)}
		q.Status.UserInfo = authenticationv1.UserInfo{Username: r.user.name, UID: r.user.uid, Groups: r.user.groups}
		reply = q
	case "SelfSubjectAccessReview":
		q := &authorizationv1.SelfSubjectAccessReview{}
		err = utiljson.Unmarshal(body, q)
		q.TypeMeta = metav1.TypeMeta{Kind: r.kind.Kind, APIVersion: r.kind.apiVersion(r.version)}
		a := action{}
		if of := q.Spec.ResourceAttributes; of != nil {
			a = action{verb: of.Verb, group: of.Group, resource: of.Resource, sub: of.Subresource, namespace: of.Namespace, name: of.Name, resourceRequest: true}
		} else if of := q.Spec.NonResourceAttributes; of != nil {
			a = action{verb: of.Verb, path: of.Path}
		}
		q.Status.Allowed = r.cluster.allowed(r.user, a)
		reply = q
	case "SelfSubjectRulesReview":
		q := &authorizationv1.SelfSubjectRulesReview{}
		err = utiljson.Unmarshal(body, q)
		q.TypeMeta = metav1.TypeMeta{Kind: r.kind.Kind, APIVersion: r.kind.apiVersion(r.version)}
		q.Status.ResourceRules, q.Status.NonResourceRules = []authorizationv1.ResourceRule{}, []authorizationv1.NonResourceRule{}
		for _, g := range r.cluster.grants(r.user) {
			if g.namespace != "" && g.namespace != q.Spec.Namespace {
				continue
			}
			if len(g.rule.NonResourceURLs) > 0 {
				q.Status.NonResourceRules = append(q.Status.NonResourceRules, authorizationv1.NonResourceRule{Verbs: slices.Clone(g.rule.Verbs), NonResourceURLs: slices.Clone(g.rule.NonResourceURLs)})
			} else {
				q.Status.ResourceRules = append(q.Status.ResourceRules, authorizationv1.ResourceRule{
					Verbs: slices.Clone(g.rule.Verbs), APIGroups: slices.Clone(g.rule.APIGroups), Resources: slices.Clone(g.rule.Resources), ResourceNames: slices.Clone(g.rule.ResourceNames),
				})
			}
		}
		q.Spec = authorizationv1.SelfSubjectRulesReviewSpec{} // as in the answer of kube-apiserver
		reply = q
	}
	if err != nil {
		return answer{err: apierrors.NewBadRequest(err.Error())}
	}
	text, _ := json.Marshal(reply) // types of Kubernetes
	return answer{code: http.StatusCreated, body: text}
}
