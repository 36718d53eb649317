package main

import (
	"bytes"
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	fluxmeta "github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/cmd/cascade/cause"
)

// TestTreeOfFaults: a tier whose credentials are not renewed, or whose state is not saved, says
// so whether it is ready or not, at any depth.
func TestTreeOfFaults(t *testing.T) {
	own, err := json.Marshal(v1alpha1.Report{Revision: shaOne, Ready: true, Reason: "Succeeded", Since: ago(3 * time.Hour), Faults: &v1alpha1.ReportFaults{BackupsStale: 1}})
	if err != nil {
		t.Fatal(err)
	}
	heard := ago(17 * time.Minute)
	lost := child("masters", "lost", conditions("Ready", metav1.ConditionFalse, "Unreachable", "no answer", 17*time.Minute), &v1alpha1.Report{Faults: &v1alpha1.ReportFaults{CredentialsLapsed: 3}})
	lost.Status.HeardAt = &heard
	cl := fake.NewClientBuilder().WithScheme(newScheme()).WithObjects(
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.AgentNamespace, Name: v1alpha1.ReportConfigMap}, Data: map[string]string{v1alpha1.ReportKey: string(own)}},
		child("masters", "aws", conditions("Ready", metav1.ConditionTrue, "Succeeded", "", 2*time.Hour), &v1alpha1.Report{
			Faults: &v1alpha1.ReportFaults{CredentialsFailing: 2}, Tiers: []v1alpha1.TierRow{
				{Path: "tenants/shop", Ready: true, Reason: "Succeeded", Since: ago(time.Hour), Faults: &v1alpha1.ReportFaults{CredentialsLapsed: 1, BackupsFailing: 1}},
				{Path: "tenants/bank", Reason: "BuildFailed", Message: "no file", Since: ago(time.Hour), Faults: &v1alpha1.ReportFaults{CredentialsLapsed: 1}},
			}}), lost, beat(v1alpha1.AgentNamespace, 0)).Build()
	root, err := loadTree(t.Context(), cl, v1alpha1.AgentNamespace, noon)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := printTree(&out, root, noon, false); err != nil {
		t.Fatal(err)
	}
	golden(t, "tree-faults.txt", out.String())
	out.Reset()
	if err := printAs(&out, "json", root); err != nil {
		t.Fatal(err)
	}
	golden(t, "tree-faults.json", out.String())
}

// TestWhyOfLaterKinds: Credentials and StateBackups are asked for by the words of get.
func TestWhyOfLaterKinds(t *testing.T) {
	f := &cause.Facts{}
	c := v1alpha1.Credential{ObjectMeta: metav1.ObjectMeta{Namespace: "capa-system", Name: "keys"}}
	c.Status.Conditions = conditions("Ready", metav1.ConditionFalse, v1alpha1.ReasonVaultRefused, "permission denied", time.Hour)
	b := v1alpha1.StateBackup{ObjectMeta: metav1.ObjectMeta{Namespace: "cascade-system", Name: "tier"}}
	b.Status.Conditions = conditions("Ready", metav1.ConditionTrue, v1alpha1.ReasonSucceeded, "", time.Hour)
	f.Credentials, f.Backups = []v1alpha1.Credential{c}, []v1alpha1.StateBackup{b}
	for arg, want := range map[string]string{
		"Credential/capa-system/keys": "✗ Credential/capa-system/keys: VaultRefused", "cred/capa-system/keys": "✗ Credential/capa-system/keys: VaultRefused",
		"statebackups/cascade-system/tier": "✔ StateBackup/cascade-system/tier is as it should be",
	} {
		var out bytes.Buffer
		c := &cli{streams: genericiooptions.IOStreams{Out: &out}, flags: genericclioptions.NewConfigFlags(true), now: func() time.Time { return noon }}
		if _ = c.why(f, []string{arg}, "text"); !strings.Contains(out.String(), want) {
			t.Errorf("%s: %q is not in\n%s", arg, want, out.String())
		}
	}
}

// TestReconcileCredential: what was asked for is told, also of a Credential that is valid while
// its source fails, and of a backup that fails.
func TestReconcileCredential(t *testing.T) {
	ends := metav1.NewTime(noon.Add(time.Hour))
	for name, tc := range map[string]struct {
		reason, kind string
		conditions   []metav1.Condition
		want, fails  string
	}{
		"Valid":          {"it says until when", "credential", conditions("Ready", metav1.ConditionTrue, "Succeeded", "", 0), "✔ it lapses: 2026-", ""},
		"Failing":        {"its source fails while it is valid", "cred", append(conditions("Ready", metav1.ConditionTrue, "Succeeded", "", 0), conditions("SourceFailing", metav1.ConditionTrue, "VaultUnreachable", "no route", 0)...), "", "VaultUnreachable: no route"},
		"Lapsed":         {"it is not valid", "credential", conditions("Ready", metav1.ConditionFalse, "CredentialLapsed", "at noon", 0), "", "CredentialLapsed: at noon"},
		"Saved":          {"the version is told", "statebackup", conditions("Ready", metav1.ConditionTrue, "Succeeded", "", 0), "✔ saved version 3-17", ""},
		"Unsaved":        {"why not is told", "statebackup", conditions("Ready", metav1.ConditionFalse, "DestinationFailed", "503", 0), "", "DestinationFailed: 503"},
		"RolloutRefused": {"nothing is decided about it", "rollout", append(conditions("Ready", metav1.ConditionFalse, "InvalidSpec", "there is no Layer", 0), conditions("Stalled", metav1.ConditionTrue, "InvalidSpec", "", 0)...), "", "InvalidSpec: there is no Layer"},
		"RolloutHalted":  {"it was looked at", "rollout", append(conditions("Ready", metav1.ConditionFalse, "RolloutHalted", "too many failed", 0), conditions("Stalled", metav1.ConditionTrue, "RolloutHalted", "", 0)...), "✔ newest revision c7", ""},
	} {
		t.Run(name, func(t *testing.T) {
			credential := &v1alpha1.Credential{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "b"}}
			credential.Status.ExpiresAt, credential.Status.Conditions = &ends, tc.conditions
			backup := &v1alpha1.StateBackup{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "b"}}
			backup.Status.LastVersion, backup.Status.Conditions = "3-17", tc.conditions
			rollout := &v1alpha1.Rollout{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "b"}}
			rollout.Status.Candidate, rollout.Status.Conditions = &v1alpha1.RolloutRevision{Revision: "c7"}, tc.conditions
			cl := fake.NewClientBuilder().WithScheme(newScheme()).WithObjects(credential, backup, rollout).WithInterceptorFuncs(interceptor.Funcs{
				// The agent handles what is asked for at once.
				Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
					err := c.Get(ctx, key, o, opts...)
					switch o := o.(type) {
					case *v1alpha1.Credential:
						o.Status.LastHandledReconcileAt = o.Annotations[fluxmeta.ReconcileRequestAnnotation]
					case *v1alpha1.Rollout:
						o.Status.LastHandledReconcileAt = o.Annotations[fluxmeta.ReconcileRequestAnnotation]
					case *v1alpha1.StateBackup:
						o.Status.LastHandledReconcileAt = o.Annotations[fluxmeta.ReconcileRequestAnnotation]
					}
					return err
				},
			}).Build()
			s, err := newSubject(tc.kind, client.ObjectKey{Namespace: "a", Name: "b"})
			if err != nil {
				t.Fatal(err)
			}
			var out bytes.Buffer
			c := &cli{streams: genericiooptions.IOStreams{Out: &out, ErrOut: &bytes.Buffer{}}, now: func() time.Time { return noon }}
			err = c.reconcile(t.Context(), cl, tc.kind, s, s.done())
			if tc.fails == "" && (err != nil || !strings.Contains(out.String(), tc.want)) || tc.fails != "" && (err == nil || !strings.Contains(err.Error(), tc.fails)) {
				t.Errorf("%s: %v\n%s", tc.reason, err, out.String())
			}
		})
	}
}

// TestReconcileAskedAgain: an object has room for one request. Who asks after us takes the
// place of ours, and has what is handled then answer both.
func TestReconcileAskedAgain(t *testing.T) {
	const earlier, later = "2026-08-01", "2026-10-01"
	ours := noon.Format(time.RFC3339Nano)
	for name, tc := range map[string]struct {
		reason string
		// asked is what the object asks for after our patch, handled what was handled by then.
		asked, handled string
		answered       bool
	}{
		"Ours":     {"nobody else asks", ours, ours, true},
		"Later":    {"somebody asked after us, and ours was never seen", later, later, true},
		"Both":     {"ours was handled before the later one came", later, ours, true},
		"Between":  {"what was under way when we asked has ended", ours, "2026-09-01", false},
		"Overlaid": {"somebody asked after us, and what was under way before us has ended", later, "2026-09-01", false},
		"None":     {"nobody is there", ours, earlier, false},
		"Taken":    {"somebody asked after us, and nobody is there", later, earlier, false},
		"Removed":  {"somebody took the annotation off, and nobody is there", "", earlier, false},
	} {
		t.Run(name, func(t *testing.T) {
			git := &sourcev1.GitRepository{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "b"}}
			k := &kustomizev1.Kustomization{ObjectMeta: git.ObjectMeta}
			git.Status.LastHandledReconcileAt, git.Status.Conditions = earlier, conditions("Ready", metav1.ConditionTrue, "Succeeded", "", 0)
			git.Status.Artifact = &fluxmeta.Artifact{Revision: "main@sha1:1"}
			k.Status.LastAppliedRevision, k.Status.Conditions = "main@sha1:1", git.Status.Conditions
			var giveUp func()
			cl := fake.NewClientBuilder().WithScheme(newScheme()).WithObjects(git, k).WithInterceptorFuncs(interceptor.Funcs{
				Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
					err := c.Get(ctx, key, o, opts...)
					if g, ok := o.(*sourcev1.GitRepository); ok {
						g.Annotations, g.Status.LastHandledReconcileAt = map[string]string{fluxmeta.ReconcileRequestAnnotation: tc.asked}, tc.handled
						if !tc.answered {
							giveUp() // after this look
						}
					}
					return err
				},
			}).Build()
			s, err := newSubject("source", client.ObjectKeyFromObject(git))
			if err != nil {
				t.Fatal(err)
			}
			c := &cli{streams: genericiooptions.IOStreams{Out: &bytes.Buffer{}, ErrOut: &bytes.Buffer{}}, now: func() time.Time { return noon }}
			for verb, ask := range map[string]func(context.Context) error{
				"reconcile": func(ctx context.Context) error { return c.reconcile(ctx, cl, "source", s, s.done()) },
				"bootstrap": func(ctx context.Context) error {
					_, err := c.awaitSync(ctx, cl, synced{client.ObjectKeyFromObject(git), client.ObjectKeyFromObject(k)}, history{})
					return err
				},
			} {
				ctx, cancel := context.WithCancel(t.Context())
				giveUp = cancel
				if err := ask(ctx); (err == nil) != tc.answered {
					t.Errorf("%s: %s: %v", tc.reason, verb, err)
				}
				cancel()
			}
		})
	}
}
