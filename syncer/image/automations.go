package image

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	autov1 "github.com/fluxcd/image-automation-controller/api/v1"
	imagev1 "github.com/fluxcd/image-reflector-controller/api/v1"
	"github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/cascade-gitops/cascade/syncer/fetch"
	"github.com/cascade-gitops/cascade/syncer/image/message"
	"github.com/cascade-gitops/cascade/syncer/image/setter"
	"github.com/cascade-gitops/cascade/syncer/source"
	"github.com/cascade-gitops/cascade/syncer/stall"
	"github.com/cascade-gitops/cascade/syncer/status"
	"github.com/cascade-gitops/cascade/syncer/wake"
	"github.com/cascade-gitops/cascade/syncer/worker"
)

// Writer writes commits with the credential of a GitRepository.
type Writer interface {
	Write(ctx context.Context, repository types.NamespacedName, draft source.Draft) (source.Written, error)
}

// Automations reconciles ImageUpdateAutomations: it commits what policies chose.
type Automations struct {
	*Shared
	Writer  Writer
	Workers worker.Runner
	Commits *prometheus.CounterVec

	store *status.Store[*autov1.ImageUpdateAutomation]
	// reading has a place for each automation that has files in memory.
	reading chan struct{}
	// tips has for each automation the commit of its branch at which nothing was to be done, empty for no branch. Before
	// it is known, what was pushed last stands for it.
	tips sync.Map
}

// mostReading automations have files with markers in memory at a time: each of them may have
// as many as a repository has.
const mostReading = 2

// NewCommits registers the metric of commits.
func NewCommits(registry prometheus.Registerer) *prometheus.CounterVec {
	commits := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "cascade_image_commits_total",
		Help: "Commits of ImageUpdateAutomations, by outcome: pushed, made again as somebody else was faster (raced), or failed.",
	}, []string{"outcome"})
	registry.MustRegister(commits)
	return commits
}

// SetupWithManager registers the reconciler.
func (r *Automations) SetupWithManager(ctx context.Context, mgr ctrl.Manager, concurrent int) error {
	r.store = r.records()
	r.reading = make(chan struct{}, mostReading)
	err := wake.AddIndexes(ctx, mgr, &autov1.ImageUpdateAutomation{}, map[string]func(*autov1.ImageUpdateAutomation) []string{
		wake.SourceIndex: func(o *autov1.ImageUpdateAutomation) []string {
			return []string{wake.SourceKey(source.Key{Kind: sourcev1.GitRepositoryKind, NamespacedName: sourceOf(o)})}
		},
	})
	if err != nil {
		return err
	}
	index := wake.Index{Client: r.Client, List: func() client.ObjectList { return &autov1.ImageUpdateAutomationList{} }}
	b, complete := r.setup(mgr, autov1.ImageUpdateAutomationKind, &autov1.ImageUpdateAutomation{}, r, concurrent)
	// Another URL, reference or credential: nothing else would tell before the interval has passed.
	b.Watches(&sourcev1.GitRepository{}, index.UsersOf(sourcev1.GitRepositoryKind), builder.WithPredicates(predicate.GenerationChangedPredicate{}))
	b.Watches(&imagev1.ImagePolicy{}, handler.EnqueueRequestsFromMapFunc(r.ofPolicy), builder.WithPredicates(newImage()))
	return complete()
}

func (r *Automations) records() *status.Store[*autov1.ImageUpdateAutomation] {
	return &status.Store[*autov1.ImageUpdateAutomation]{
		Client: r.Client, Live: r.Reader, Manager: AutomationController, New: func() *autov1.ImageUpdateAutomation { return &autov1.ImageUpdateAutomation{} },
		Meta:       func(o *autov1.ImageUpdateAutomation) *metav1.ObjectMeta { return &o.ObjectMeta },
		CopyStatus: func(to, from *autov1.ImageUpdateAutomation) { from.Status.DeepCopyInto(&to.Status) },
	}
}

// newImage passes policies that chose another image.
func newImage() predicate.Predicate {
	return predicate.Funcs{
		CreateFunc: func(event.CreateEvent) bool { return false }, // the automation is looked at itself
		DeleteFunc: func(event.DeleteEvent) bool { return false },
		UpdateFunc: func(e event.UpdateEvent) bool {
			before, ok1 := e.ObjectOld.(*imagev1.ImagePolicy)
			after, ok2 := e.ObjectNew.(*imagev1.ImagePolicy)
			if !ok1 || !ok2 || after.Status.LatestRef == nil {
				return false
			}
			return before.Status.LatestRef == nil || *before.Status.LatestRef != *after.Status.LatestRef
		},
	}
}

// ofPolicy finds the automations that a policy is for.
func (r *Automations) ofPolicy(ctx context.Context, o client.Object) []reconcile.Request {
	list := &autov1.ImageUpdateAutomationList{}
	if err := r.Client.List(ctx, list, client.InNamespace(o.GetNamespace()), client.UnsafeDisableDeepCopy); err != nil {
		log.FromContext(ctx).Error(err, "cannot list ImageUpdateAutomations", "namespace", o.GetNamespace())
		return nil
	}
	var requests []reconcile.Request
	for i := range list.Items {
		selector, err := selectorOf(&list.Items[i])
		if err == nil && selector.Matches(labels.Set(o.GetLabels())) {
			requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&list.Items[i])})
		}
	}
	return requests
}

// Reconcile runs one automation.
func (r *Automations) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	return reconcileKind(ctx, r.Shared, r, r.store, req.NamespacedName)
}

func (r *Automations) describe(obj *autov1.ImageUpdateAutomation) fields {
	return fields{
		kind: autov1.ImageUpdateAutomationKind, suspend: obj.Spec.Suspend,
		observed: &obj.Status.ObservedGeneration, handled: &obj.Status.LastHandledReconcileAt,
	}
}

// forget drops what is known of a branch. What was pushed belongs to the repository.
func (r *Automations) forget(name types.NamespacedName) { r.tips.Delete(name) }

func (r *Automations) rest(context.Context, *autov1.ImageUpdateAutomation) {}

func selectorOf(obj *autov1.ImageUpdateAutomation) (labels.Selector, error) {
	if obj.Spec.PolicySelector == nil {
		return labels.Everything(), nil
	}
	return metav1.LabelSelectorAsSelector(obj.Spec.PolicySelector)
}

// chosen are the images of the policies that an automation is for, as Flux's status has them.
func (r *Automations) chosen(ctx context.Context, obj *autov1.ImageUpdateAutomation, selector labels.Selector) (autov1.ObservedPolicies, error) {
	list := &imagev1.ImagePolicyList{}
	if err := r.Client.List(ctx, list, client.InNamespace(obj.Namespace), client.MatchingLabelsSelector{Selector: selector}, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("cannot list ImagePolicies: %w", err)
	}
	observed := autov1.ObservedPolicies{}
	for i := range list.Items {
		if latest := list.Items[i].Status.LatestRef; latest != nil && list.Items[i].DeletionTimestamp.IsZero() {
			observed[list.Items[i].Name] = autov1.ImageRef{Name: latest.Name, Tag: latest.Tag, Digest: latest.Digest}
		}
	}
	return observed, nil
}

// writeTimeout bounds one run; GitRepository.spec.timeout bounds its calls.
const writeTimeout = 5 * time.Minute

func (r *Automations) run(ctx context.Context, obj *autov1.ImageUpdateAutomation) outcome {
	stall.Allow(ctx, writeTimeout)
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	repository, out := r.repository(ctx, obj)
	if out != nil {
		return *out
	}
	selector, err := selectorOf(obj)
	if err != nil {
		return stalled(autov1.InvalidPolicySelectorReason, fmt.Errorf("cannot use spec.policySelector: %w", err))
	}
	observed, err := r.chosen(ctx, obj, selector)
	if err != nil {
		return failed(reasonFailure, err)
	}
	draft, out := r.draft(ctx, obj, repository, observed)
	if out != nil {
		return *out
	}
	written, err := r.Writer.Write(ctx, client.ObjectKeyFromObject(repository), *draft)
	if written.Tries > 1 {
		r.Commits.WithLabelValues("raced").Add(float64(written.Tries - 1))
	}
	var done outcome
	if written.Commit != "" {
		r.Commits.WithLabelValues("pushed").Inc()
		now := metav1.NewTime(r.Now())
		// The revision is what the commit was made of, also if the second reference fails.
		obj.Status.LastPushCommit, obj.Status.LastPushTime, obj.Status.ObservedSourceRevision = written.Commit, &now, written.Revision
		setBasis(obj, draft.Branch, written.Basis)
		done.event = fmt.Sprintf("pushed commit '%.7s' to branch '%s'", written.Commit, draft.Branch)
		if draft.Refspec != "" && err == nil {
			done.event += fmt.Sprintf(" and with refspec '%s'", draft.Refspec)
		}
		done.event += "\n" + written.Message
		done.annotations = map[string]string{autov1.GroupVersion.Group + "/" + eventRevision: draft.Branch + "@sha1:" + written.Commit}
		r.wake(ctx, repository, draft.Branch)
	} else if written.Basis == source.BasisBranch && basisOf(obj) == source.BasisCheckout {
		// The checkout went back. The revision on record will be that by the next run, which does not say what the branch was made of.
		setBasis(obj, draft.Branch, written.Basis)
	}
	now := metav1.NewTime(r.Now())
	if err != nil {
		r.Commits.WithLabelValues("failed").Inc()
		obj.Status.LastAutomationRunTime = &now
		f := r.failure(err)
		f.event, f.annotations = done.event, done.annotations
		return f
	}
	if draft.Refspec == "" {
		status.RemoveCondition(obj, refspecPushed)
	} else if owed := owedBy(obj); owed != "" {
		status.SetCondition(obj, refspecPushed, metav1.ConditionTrue, meta.SucceededReason, "commit %s is not to be pushed with refspec '%s' any more", owed, draft.Refspec)
	}
	r.tips.Store(client.ObjectKeyFromObject(obj), written.Tip)
	obj.Status.ObservedPolicies, obj.Status.ObservedSourceRevision = observed, written.Revision
	done.message, done.next = "repository up-to-date", obj.GetRequeueAfter()
	if written.Same || written.Commit == "" && written.Revision == draft.Known {
		done.trace = "no change since last reconciliation"
		// An interval without news leaves the status as it is, but for who asked.
		if !asked(obj, obj.Status.LastHandledReconcileAt) && obj.Status.LastAutomationRunTime != nil {
			return done
		}
	} else if done.event == "" {
		done.trace = done.message
	}
	obj.Status.LastAutomationRunTime = &now
	return done
}

// followsCheckout is a condition of an automation with a branch of its own: whether the branch has the files of the checkout with the
// changes, or what others pushed there as well, or what an earlier checkout had. It is on record, since a later run cannot tell from the commits.
const followsCheckout = "FollowsCheckout"

// setBasis records of the commit that was pushed just now what it was made of.
func setBasis(obj *autov1.ImageUpdateAutomation, branch string, basis source.Basis) {
	switch basis {
	case source.BasisCheckout:
		status.SetCondition(obj, followsCheckout, metav1.ConditionTrue, string(basis), "branch '%s' has the files of the checkout with the changes", branch)
	case source.BasisBranch:
		status.SetCondition(obj, followsCheckout, metav1.ConditionFalse, string(basis), "branch '%s' has what the checkout does not have: changes go on top of that until it is merged or deleted", branch)
	default:
		status.RemoveCondition(obj, followsCheckout)
		return
	}
	// Its time is that of the push: where somebody who does not know of the condition pushed later, it says nothing of that.
	apimeta.FindStatusCondition(obj.Status.Conditions, followsCheckout).LastTransitionTime = *obj.Status.LastPushTime
}

// basisOf is what the commit that was pushed last was made of, empty if it is not on record.
func basisOf(obj *autov1.ImageUpdateAutomation) source.Basis {
	c := apimeta.FindStatusCondition(obj.Status.Conditions, followsCheckout)
	if c == nil || !c.LastTransitionTime.Equal(obj.Status.LastPushTime) {
		return ""
	}
	if c.Status == metav1.ConditionTrue {
		return source.BasisCheckout
	}
	return source.BasisBranch
}

// refspecPushed is a condition of an automation with a second reference: whether that has what the branch got. It is False from before the
// branch is pushed, so that it is known whatever fails, or ends, before the second reference has the commit too; and it stays
// there as True, with the commit, since only what differs from what a run began with is written at its end.
const refspecPushed = "RefspecPushed"

// owe records that a commit is to be pushed with a refspec.
func owe(obj *autov1.ImageUpdateAutomation, commit, branch, refspec string) {
	status.SetCondition(obj, refspecPushed, metav1.ConditionFalse, "Pending", "commit %s is pushed to branch '%s', and then with refspec '%s'", commit, branch, refspec)
}

// owedBy is the commit that may not have been pushed with a refspec yet, empty for none.
func owedBy(obj *autov1.ImageUpdateAutomation) string {
	if c := apimeta.FindStatusCondition(obj.Status.Conditions, refspecPushed); c != nil {
		if words := strings.Fields(c.Message); c.Status == metav1.ConditionFalse && len(words) > 1 {
			return words[1]
		}
		return ""
	}
	// Before there was this condition, only that told of it.
	if ready := apimeta.FindStatusCondition(obj.Status.Conditions, meta.ReadyCondition); ready != nil && ready.Reason == source.ReasonRefspecFailed {
		return obj.Status.LastPushCommit
	}
	return ""
}

// eventRevision is a key of an event's metadata.
const eventRevision = "revision"

// failure is an error of a commit as an outcome.
func (r *Automations) failure(err error) outcome {
	switch {
	case errors.Is(err, message.ErrRemoved):
		return stalled(autov1.RemovedTemplateFieldReason, err)
	case errors.As(err, new(*messageError)) && (errors.As(err, new(*message.Invalid)) || worker.Lasting(err)):
		return stalled(autov1.UpdateFailedReason, err)
	case errors.As(err, new(*messageError)), errors.As(err, new(*updateError)):
		return failed(autov1.UpdateFailedReason, err)
	}
	switch reason := source.ReasonOf(err); reason {
	case source.ReasonInvalidDraft:
		// The directory of spec.update.path may come with a commit.
		return failed(autov1.InvalidSourceConfigReason, err)
	default:
		return failed(reason, err)
	}
}

// updateError is of a file that cannot be changed.
type updateError struct{ err error }

func (e *updateError) Error() string { return e.err.Error() }
func (e *updateError) Unwrap() error { return e.err }

// messageError is of a template that makes no message.
type messageError struct{ err error }

func (e *messageError) Error() string {
	return "cannot use spec.git.commit.messageTemplate: " + e.err.Error()
}
func (e *messageError) Unwrap() error { return e.err }

// sourceOf names the GitRepository of an automation.
func sourceOf(obj *autov1.ImageUpdateAutomation) types.NamespacedName {
	return types.NamespacedName{Namespace: cmp.Or(obj.Spec.SourceRef.Namespace, obj.Namespace), Name: obj.Spec.SourceRef.Name}
}

// repository is the GitRepository that an automation writes to. It returns the outcome if it may not be used.
func (r *Automations) repository(ctx context.Context, obj *autov1.ImageUpdateAutomation) (*sourcev1.GitRepository, *outcome) {
	refuse := func(o outcome) (*sourcev1.GitRepository, *outcome) { return nil, &o }
	ref := obj.Spec.SourceRef
	if kind := cmp.Or(ref.Kind, sourcev1.GitRepositoryKind); kind != sourcev1.GitRepositoryKind {
		return refuse(stalled(autov1.InvalidSourceConfigReason, fmt.Errorf("cannot use a source of kind %q: name a GitRepository", kind)))
	}
	if obj.Spec.GitSpec == nil {
		return refuse(stalled(autov1.InvalidSourceConfigReason, errors.New("cannot commit: spec.git is missing")))
	}
	if update := obj.Spec.Update; update != nil && cmp.Or(update.Strategy, autov1.UpdateStrategySetters) != autov1.UpdateStrategySetters {
		return refuse(stalled(autov1.InvalidUpdateStrategyReason, fmt.Errorf("cannot use the strategy %q: it is %s", update.Strategy, autov1.UpdateStrategySetters)))
	}
	name := sourceOf(obj)
	if r.NoCrossNamespaceRefs && name.Namespace != obj.Namespace {
		return refuse(stalled(reasonAccessDenied, fmt.Errorf("cannot access GitRepository %s: references to other namespaces are forbidden by --no-cross-namespace-refs", name)))
	}
	repository := &sourcev1.GitRepository{}
	if err := r.Client.Get(ctx, name, repository); err != nil {
		if apierrors.IsNotFound(err) {
			err = fmt.Errorf("referenced GitRepository %s does not exist", name)
		}
		return refuse(failed(autov1.SourceManagerFailedReason, err))
	}
	return repository, nil
}

// draft is the commit that an automation asks for.
func (r *Automations) draft(ctx context.Context, obj *autov1.ImageUpdateAutomation, repository *sourcev1.GitRepository, observed autov1.ObservedPolicies) (*source.Draft, *outcome) {
	git := obj.Spec.GitSpec
	checkout := repository.Spec.Reference
	if git.Checkout != nil {
		checkout = &git.Checkout.Reference
	}
	d := &source.Draft{
		Checkout: fetch.ReferenceOf(checkout), Name: git.Commit.Author.Name, Address: git.Commit.Author.Email, At: r.Now(), Own: obj.Status.LastPushCommit, OwnBasis: basisOf(obj),
		Made: obj.Status.ObservedSourceRevision,
	}
	if push := git.Push; push != nil {
		d.Branch, d.Refspec, d.Options = push.Branch, push.Refspec, push.Options
	}
	// As in Flux: the branch of the checkout, or else that of the GitRepository.
	for _, ref := range []*sourcev1.GitRepositoryRef{checkout, repository.Spec.Reference} {
		if d.Branch == "" && ref != nil {
			d.Branch = ref.Branch
		}
	}
	if d.Branch == "" && checkout == nil {
		d.Branch = defaultBranch
	}
	d.Owed = owedBy(obj)
	d.Ahead = func(ctx context.Context, commit string) error {
		record := r.store.Record(obj)
		owe(obj, commit, d.Branch, d.Refspec)
		return record.WriteAhead(ctx)
	}
	ready := apimeta.FindStatusCondition(obj.Status.Conditions, meta.ReadyCondition)
	if ready != nil && ready.Status == metav1.ConditionTrue && d.Owed == "" && obj.Status.ObservedGeneration == obj.Generation &&
		!asked(obj, obj.Status.LastHandledReconcileAt) && maps.Equal(obj.Status.ObservedPolicies, observed) {
		d.Known, d.Tip = obj.Status.ObservedSourceRevision, obj.Status.LastPushCommit
		if tip, known := r.tips.Load(client.ObjectKeyFromObject(obj)); known {
			d.Tip = tip.(string)
		}
	}
	if key := git.Commit.SigningKey; key != nil {
		secret := &corev1.Secret{}
		name := types.NamespacedName{Namespace: obj.Namespace, Name: key.SecretRef.Name}
		if err := r.Reader.Get(ctx, name, secret); err != nil {
			out := failed(autov1.SourceManagerFailedReason, fmt.Errorf("cannot read Secret %s of spec.git.commit.signingKey: %w", name, err))
			return nil, &out
		}
		sign, err := source.NewSigner(string(key.Type), secret.Data)
		if err != nil {
			out := failed(autov1.SourceManagerFailedReason, err)
			return nil, &out
		}
		d.Sign = sign
	}
	d.Decide = func(ctx context.Context, files *source.Files) (map[string][]byte, string, error) {
		return r.decide(ctx, obj, observed, files)
	}
	return d, nil
}

// defaultBranch is what a GitRepository without a reference follows.
const defaultBranch = "master"

// decide changes files and writes the message.
func (r *Automations) decide(ctx context.Context, obj *autov1.ImageUpdateAutomation, observed autov1.ObservedPolicies, files *source.Files) (map[string][]byte, string, error) {
	changed, facts, err := r.set(ctx, obj, observed, files)
	if err != nil || len(changed) == 0 {
		return nil, "", err
	}
	text, err := message.Of(ctx, worker.For(r.Workers, autov1.ImageUpdateAutomationKind+"/"+facts.Automation.String()), obj.Spec.GitSpec.Commit.MessageTemplate, facts)
	if err != nil {
		return nil, "", &messageError{err}
	}
	return changed, text, nil
}

// set sets the marked values of files, and returns what changed.
func (r *Automations) set(ctx context.Context, obj *autov1.ImageUpdateAutomation, observed autov1.ObservedPolicies, files *source.Files) (map[string][]byte, message.Facts, error) {
	facts := message.Facts{Automation: client.ObjectKeyFromObject(obj), Values: obj.Spec.GitSpec.Commit.MessageTemplateValues}
	select {
	case r.reading <- struct{}{}:
		defer func() { <-r.reading }()
	case <-ctx.Done():
		return nil, facts, fmt.Errorf("cannot read files with markers: those of others are read: %w", ctx.Err())
	}
	dir := ""
	if obj.Spec.Update != nil {
		dir = obj.Spec.Update.Path
	}
	marked, err := files.With(ctx, dir, setter.Token, ".yaml", ".yml")
	if err != nil {
		return nil, facts, err
	}
	policies := setter.Policies{}
	for name, ref := range observed {
		policies[obj.Namespace+":"+name] = setter.Image{Name: ref.Name, Tag: ref.Tag, Digest: ref.Digest}
	}
	changed := map[string][]byte{}
	for _, name := range slices.Sorted(maps.Keys(marked)) {
		if err := ctx.Err(); err != nil {
			return nil, facts, err
		}
		content, changes, err := setter.Set(marked[name], policies)
		if err != nil {
			return nil, facts, &updateError{fmt.Errorf("cannot update %s: %w", name, err)}
		}
		if len(changes) == 0 {
			continue
		}
		changed[name] = content
		// As in Flux, names of files are relative to spec.update.path.
		shown := strings.TrimPrefix(strings.TrimPrefix(name, strings.TrimPrefix(path.Clean("/"+dir), "/")), "/")
		for _, change := range changes {
			facts.Changes = append(facts.Changes, message.Change{File: shown, Change: change})
		}
	}
	return changed, facts, nil
}

// wake asks for a fetch of a GitRepository that follows a branch which was written.
func (r *Automations) wake(ctx context.Context, repository *sourcev1.GitRepository, branch string) {
	follows := fetch.ReferenceOf(repository.Spec.Reference)
	if follows != (source.Reference{Branch: branch}) && (follows != source.Reference{} || branch != defaultBranch) {
		return
	}
	after := repository.DeepCopy()
	if after.Annotations == nil {
		after.Annotations = map[string]string{}
	}
	after.Annotations[meta.ReconcileRequestAnnotation] = r.Now().Format(time.RFC3339Nano)
	if err := r.Client.Patch(ctx, after, client.MergeFrom(repository), client.FieldOwner(AutomationController)); err != nil {
		// It is fetched at its interval.
		log.FromContext(ctx).Error(err, "cannot ask for a fetch of the repository that was pushed to", "repository", client.ObjectKeyFromObject(repository).String())
	}
}
