package children

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	notificationv1 "github.com/fluxcd/notification-controller/api/v1"
	fluxmeta "github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/e2e/scenario"
)

// TestHints: a webhook at the parent is applied in a child that has no endpoint, and whose
// source has an interval of an hour. What the parent may write there for it is one ConfigMap.
func TestHints(t *testing.T) {
	scenario.Alongside(t)
	address := scenario.FreeAddress(t)
	h := startHub(t, "v1beta2", "--receiver-addr="+address)
	f := h.fleet(t, "hints", map[string]string{"armed/sync.yaml": "${sync}", "own/note.yaml": noteNamed("own", "k", "one")})
	username, password := h.Git.Login()
	f.commit(t, map[string]string{"armed/sync.yaml": fmt.Sprintf(armed, h.Git.HTTPURL("hints"))})
	f.define(t, fmt.Sprintf("{apiVersion: v1, kind: Secret, metadata: {name: for-child}, stringData: {username: %q, password: %q}}", username, password))
	f.define(t, `{apiVersion: v1, kind: Secret, metadata: {name: hook}, stringData: {token: hook}}
---
{apiVersion: notification.toolkit.fluxcd.io/v1, kind: Receiver, metadata: {name: hook}, spec: {type: generic, secretRef: {name: hook}, resources: [{kind: GitRepository, name: fleet}]}}`)
	child := h.plane(t, "armed", "--audit-reads", "--token-cache=0s")
	if err := child.StartNode(t.Context()); err != nil {
		t.Fatal(err)
	}
	f.layer(t, "armed", "armed", "interval: 24h", "agent: {}", "credentials: [{name: git-auth, secretRef: {name: for-child}}]", "wait: true")
	f.declare(t, "armed")
	f.report(t, "armed", initialized)
	f.handOver(t, "armed", child.issue(t).kubeconfig)
	f.ready(t, "armed", "")
	child.has(t, "own", "k", "one")

	post := func(t *testing.T) {
		t.Helper()
		scenario.Eventually(t, scenario.Converge, "the webhook is accepted", func(ctx context.Context) error {
			receiver := &notificationv1.Receiver{}
			if err := f.client.Get(ctx, client.ObjectKey{Namespace: f.name, Name: "hook"}, receiver); err != nil {
				return err
			}
			request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+address+receiver.Status.WebhookPath, nil)
			if err != nil {
				return err
			}
			response, err := http.DefaultClient.Do(request)
			if err != nil {
				return err
			}
			if err := response.Body.Close(); err != nil {
				return err
			}
			if response.StatusCode != http.StatusOK {
				return errors.New(response.Status)
			}
			return nil
		})
	}
	steps(t,
		step{"Passed", func(t *testing.T) {
			from := child.now(t)
			f.push(t, map[string]string{"own/note.yaml": noteNamed("own", "k", "two")})
			begun := time.Now()
			post(t)
			child.has(t, "own", "k", "two")
			t.Logf("from the webhook of the parent to the object in the child: %s", time.Since(begun))
			if n := hinted(t, child, from); n != 1 {
				t.Errorf("the child was told %d times of one push", n)
			}
		}},
		check{"OnlyAHint", func(t *testing.T) {
			cm := &corev1.ConfigMap{}
			if err := child.client.Get(t.Context(), client.ObjectKey{Namespace: v1alpha1.AgentNamespace, Name: v1alpha1.HintsConfigMap}, cm); err != nil {
				t.Fatal(err)
			}
			entry := cm.Data[v1alpha1.HintsOfParentKey]
			if entry == "" || strings.Contains(entry, "hints") || strings.Contains(entry, "http") {
				t.Errorf("the child learns more than a digest: %s", entry)
			}
			git := &sourcev1.GitRepository{}
			if err := child.client.Get(t.Context(), client.ObjectKey{Namespace: v1alpha1.AgentNamespace, Name: "fleet"}, git); err != nil {
				t.Fatal(err)
			}
			if git.Annotations[fluxmeta.ReconcileRequestAnnotation] == "" {
				t.Error("people do not see that the source was asked for a reconcile")
			}
		}},
		check{"Rights", func(t *testing.T) {
			for _, may := range []struct {
				reason, verb, namespace, name string
				want                          bool
			}{
				{"the ConfigMap of hints", "patch", v1alpha1.AgentNamespace, v1alpha1.HintsConfigMap, true},
				{"it is not read", "get", v1alpha1.AgentNamespace, v1alpha1.HintsConfigMap, false},
				{"it is not taken away", "delete", v1alpha1.AgentNamespace, v1alpha1.HintsConfigMap, false},
				{"the child's report is the child's", "patch", v1alpha1.AgentNamespace, v1alpha1.ReportConfigMap, false},
			} {
				review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
					User:               "system:serviceaccount:" + v1alpha1.AgentNamespace + ":" + v1alpha1.ParentServiceAccount,
					Groups:             []string{"system:serviceaccounts", "system:authenticated"},
					ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: may.verb, Resource: "configmaps", Namespace: may.namespace, Name: may.name},
				}}
				if err := child.client.Create(t.Context(), review); err != nil {
					t.Fatal(err)
				}
				if review.Status.Allowed != may.want {
					t.Errorf("%s: the parent may %s %s: %t", may.reason, may.verb, may.name, review.Status.Allowed)
				}
			}
		}},
		step{"SuspendedIsToldNothing", func(t *testing.T) {
			from := child.now(t)
			object := &v1alpha1.Child{ObjectMeta: metav1.ObjectMeta{Namespace: f.name, Name: "armed"}}
			f.patch(t, object, map[string]any{"spec": map[string]any{"suspend": true}})
			f.reconciled(t, "armed")
			// The parent sees the push while the child is suspended, and not after that.
			pushed := f.push(t, map[string]string{"own/note.yaml": noteNamed("own", "k", "three")})
			post(t)
			f.fetched(t, pushed)
			f.reconciled(t, "armed")
			if n := hinted(t, child, from); n != 0 {
				t.Errorf("the child was told %d times while it was suspended", n)
			}
			f.patch(t, object, map[string]any{"spec": map[string]any{"suspend": false}})
			f.reconciled(t, "armed")
			f.push(t, map[string]string{"own/note.yaml": noteNamed("own", "k", "four")})
			post(t)
			child.has(t, "own", "k", "four") // and of the push before, which is a hint for a minute
		}},
	)
}

// hinted counts the hints that the parent wrote in a child.
func hinted(t *testing.T, child *plane, from int64) int {
	t.Helper()
	n := 0
	for _, e := range child.byParent(t, from) {
		if e.ObjectRef.Resource == "configmaps" && e.ObjectRef.Name == v1alpha1.HintsConfigMap {
			if e.Verb != "patch" || e.ResponseStatus.Code >= 300 {
				t.Errorf("%s of the hints is answered with %d", e.Verb, e.ResponseStatus.Code)
				continue
			}
			n++
		}
	}
	return n
}
