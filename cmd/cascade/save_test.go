package main

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/state/archive"
	"github.com/cascade-gitops/cascade/state/store"
	"github.com/cascade-gitops/cascade/syncer/firstsync"
)

// TestSaveKeeps: what was saved before goes only for what can be restored.
func TestSaveKeeps(t *testing.T) {
	broken := errors.New("it is not what was saved")
	for name, tc := range map[string]struct {
		reason string
		keep   int
		err    error
		want   int
	}{
		"Kept":      {"the new one is good: it replaces the one before", 1, nil, 1},
		"Broken":    {"the new one cannot be restored: the one before stays", 1, broken, 2},
		"Boundless": {"nobody said how many", 0, nil, 2},
	} {
		t.Run(name, func(t *testing.T) {
			at, err := store.Open(t.Context(), "file://"+t.TempDir(), store.Options{Now: time.Now})
			if err != nil {
				t.Fatal(err)
			}
			defer at.Close()
			s := &saving{cli: &cli{streams: genericiooptions.IOStreams{Out: &bytes.Buffer{}, ErrOut: &bytes.Buffer{}}, now: time.Now}, keep: tc.keep, timeout: time.Minute}
			good := func(store.Version) error { return nil }
			if err := s.keepVersion(t.Context(), at, []byte("yesterday"), good); err != nil {
				t.Fatal(err)
			}
			var seen []store.Version
			err = s.keepVersion(t.Context(), at, []byte("today"), func(v store.Version) error {
				var err error
				if seen, err = at.Versions(t.Context()); err != nil {
					return err
				}
				// Who saves, or takes the tier over, need not wait for a look.
				l, err := at.Lock(t.Context(), "another", time.Minute)
				if err != nil {
					return err
				}
				if err := at.Unlock(t.Context(), l); err != nil {
					return err
				}
				if !slices.Contains(seen, v) {
					t.Errorf("%s: version %s is told and is not there", tc.reason, v)
				}
				return tc.err
			})
			if !errors.Is(err, tc.err) {
				t.Errorf("%s: %v", tc.reason, err)
			}
			left, err := at.Versions(t.Context())
			if err != nil || len(seen) != 2 || len(left) != tc.want {
				t.Errorf("%s: %d versions while it is looked at, %d in the end, want %d: %v", tc.reason, len(seen), len(left), tc.want, err)
			}
		})
	}
}

// TestRecords: what a tier has on record is where its agent is, for a state that is saved and for one that is restored: a
// state without it brings nothing of it back, and who looks for it elsewhere finds a tier in which anything may be made.
func TestRecords(t *testing.T) {
	const usual = v1alpha1.AgentNamespace
	for name, tc := range map[string]struct {
		reason string
		// agents are the namespaces of those that are Deployments, and has those with records.
		agents, has, said string
		// approved are those with a record that a person's approval made.
		approved  string
		forbidden bool
		// saved is where the records of the state are that is restored.
		saved string
		// save and restore are where they are taken to be; refused is for both.
		save, restore string
		refused       string
	}{
		"Usual":       {reason: "most are", agents: usual, has: usual, saved: usual, save: usual, restore: usual},
		"Elsewhere":   {reason: "it was installed with -n", agents: "platform", has: "platform", saved: "platform", save: "platform", restore: "platform"},
		"Said":        {reason: "somebody says so", agents: "platform", said: "platform", saved: "platform", save: "platform", restore: "platform"},
		"Wrong":       {reason: "it has no records there", agents: "platform", said: usual, refused: "is in namespace platform"},
		"Mom":         {reason: "its agent is no Deployment", has: usual, saved: "platform", save: usual, restore: usual},
		"MomBeside":   {reason: "tenants have an agent of their own, or had", has: "platform " + usual, saved: "platform", save: usual, restore: usual},
		"Uninstalled": {reason: "its agent is gone, and what it had on record is there", has: "platform", saved: "platform", save: "platform", restore: "platform"},
		"Left":        {reason: "what is on record here counts, wherever the state has its own", has: "platform", saved: "gitops", save: "platform", restore: "platform"},
		"LeftSaid":    {reason: "nobody has to guess", has: "platform other", said: "platform", saved: "platform", save: "platform", restore: "platform"},
		"LeftSeveral": {reason: "nobody can tell which", has: "platform other", refused: "in namespace other and platform; say which with -n"},
		"LeftBeside":  {reason: "what a person approved is not on record of its agent", has: "platform", approved: usual, saved: "platform", save: "platform", restore: "platform"},
		"LeftTwice":   {reason: "wherever somebody approved", has: "platform", approved: "gitops other", save: "platform", restore: "platform"},
		"Approved":    {reason: "no agent ever was here, and what a person approved is there", approved: usual, saved: "platform", save: usual, restore: usual},
		"New":         {reason: "there is nothing yet: the state says where its agent was", saved: "platform", restore: "platform"},
		"NewSaid":     {reason: "it will be elsewhere", said: "gitops", saved: "platform", save: "gitops", restore: "gitops"},
		"Nothing":     {reason: "the state has no records either", restore: usual},
		"Several":     {reason: "tenants have one of their own", agents: "tenant " + usual, has: usual, saved: usual, save: usual, restore: usual},
		"SeveralSaid": {reason: "one of them is meant", agents: "tenant " + usual, said: "tenant", save: "tenant", restore: "tenant"},
		"Others":      {reason: "nobody can tell which", agents: "tenant other", refused: "say which with -n"},
		"Forbidden":   {reason: "who may not look for the agent saves as before", agents: "platform", forbidden: true, save: usual, restore: usual},
	} {
		t.Run(name, func(t *testing.T) {
			var objects []client.Object
			for _, namespace := range strings.Fields(tc.agents) {
				objects = append(objects, &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{
					Namespace: namespace, Name: v1alpha1.AgentName, Labels: map[string]string{"app.kubernetes.io/name": v1alpha1.AgentName},
				}})
			}
			for i, namespace := range strings.Fields(tc.has) {
				name := []string{v1alpha1.FirstSyncConfigMap, v1alpha1.EpochConfigMap}[i]
				objects = append(objects, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}})
			}
			for _, namespace := range strings.Fields(tc.approved) {
				record := firstsync.NewRecord(namespace)
				record.Data["fleet_alpha"] = "approved"
				objects = append(objects, record)
			}
			cl := fake.NewClientBuilder().WithScheme(newScheme()).WithObjects(objects...).WithIndex(&corev1.ConfigMap{}, "metadata.name", func(o client.Object) []string {
				return []string{o.GetName()}
			}).WithInterceptorFuncs(interceptor.Funcs{
				List: func(ctx context.Context, cl client.WithWatch, list client.ObjectList, o ...client.ListOption) error {
					if tc.forbidden {
						return apierrors.NewForbidden(schema.GroupResource{Group: "apps", Resource: "deployments"}, "", errors.New("no"))
					}
					return cl.List(ctx, list, o...)
				},
			}).Build()
			c := &cli{streams: genericiooptions.IOStreams{Out: &bytes.Buffer{}, ErrOut: &bytes.Buffer{}}, now: time.Now, flags: genericclioptions.NewConfigFlags(true)}
			c.flags.Namespace = &tc.said
			s := &archive.Snapshot{}
			if tc.saved != "" {
				s = snapshot("tier", "holder", 0)
				s.Objects[0].SetNamespace(tc.saved)
			}
			save, saveErr := c.recordsIn(t.Context(), cl, "")
			restore, restoreErr := (&restoring{cli: c}).into(t.Context(), cl, s)
			for _, err := range []error{saveErr, restoreErr} {
				if (err != nil) != (tc.refused != "") || err != nil && !strings.Contains(err.Error(), tc.refused) {
					t.Errorf("%s: %v", tc.reason, err)
				}
			}
			if save != tc.save || restore != tc.restore {
				t.Errorf("%s: it is saved from %q, and restored into %q", tc.reason, save, restore)
			}
		})
	}
}
