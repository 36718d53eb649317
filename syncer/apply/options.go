package apply

import (
	"context"

	"github.com/fluxcd/pkg/ssa"
	"github.com/fluxcd/pkg/ssa/jsondiff"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/inventory"
)

// Options of Sync.
type Options struct {
	// Owned is the owner's inventory as it is recorded now.
	Owned []inventory.Entry
	// Record writes the inventory down durably. It is called before the first
	// write of an object.
	Record func(ctx context.Context, entries []inventory.Entry) error
	// AlwaysRecord: Record writes down more than the inventory, and is called even if
	// the inventory stays as it is.
	AlwaysRecord bool
	// MigrateAPIVersion rewrites the entries of field managers that have another
	// API version than the declared one (Flux's gate of that name).
	MigrateAPIVersion bool
	// KeepNewer leaves definitions of Flux that are of a later release than the declared ones
	// as they are. They stay in the inventory.
	KeepNewer bool
	// Force re-creates objects whose immutable fields changed.
	Force bool
	// Ignore has fields that others may change without it being drift.
	Ignore []jsondiff.IgnoreRule
	// Stages are kinds that are applied after definitions and classes and before
	// everything else.
	Stages map[schema.GroupKind]struct{}
	// Report: objects that were applied before and have drifted are reported in the
	// result, not corrected. Applied: the whole rendering was applied before.
	Report  bool
	Applied bool
	// Ran reports whether an object that is gone, or going, ran and is not to be created
	// again by this call. Nil: none did.
	Ran func(*unstructured.Unstructured) bool
	// Secretive: any declared object may hold values of Secrets, so that reports
	// name fields only.
	Secretive bool
	// Moved: Remove is called because the owner moved to another cluster, and not
	// because a person deleted the owner. The shrink guard applies then.
	Moved bool
	// FirstSync is what the tier knows of the Clusters of the rendering. Nil: any
	// may be created.
	FirstSync *inventory.FirstSync
	// Slow is called once if it takes long to apply, or before anything is deleted, while no request is
	// under way. It may be nil.
	Slow func(ctx context.Context)
	// Prune removes what the rendering no longer declares. Without it such
	// objects are forgotten.
	Prune bool
	// Keep are entries of Owned that the rendering does not declare and that stay in the
	// cluster and in the inventory, as they are: it is not known yet what is to become of
	// them.
	Keep []inventory.Entry
	// Defer leaves what the rendering no longer declares as it is, in the cluster and in
	// the inventory, for a later Sync: other owners have to be applied first, which may
	// take some of it over.
	Defer bool
	// Target, LowerTier, Approved and Undecided are passed on to the prune
	// plan.
	Target    string
	LowerTier bool
	Approved  string
	Undecided bool
	// HandOver is the record of the objects that the owner's last plan kept for other
	// owners, nil if it kept none. Decided is that of what its last plans put last, or did not get to delete.
	HandOver *v1alpha1.HandOver
	Decided  string
	// Ignored finds, among entries that are no longer declared, those that files declare
	// which the source ignores, with the files. It may be nil.
	Ignored func(gone []inventory.Entry) (map[inventory.Entry]string, error)
	// Sent are objects as they were applied before. They are not applied again, unless
	// there is a Sweep that shows them otherwise. It is for connections that make one call
	// at a time.
	Sent Sent
	// Sweep shows the owner's objects; nil to go by Sent alone. Healthy: with Sent they
	// were all healthy, so that those in the state of then still are.
	Sweep   *Sweep
	Healthy bool
	// Seal asks for a Seal without a Sweep, too.
	Seal bool
	// Ownership is that of the objects after an earlier process applied them. With it, the
	// Sweep tells which of those in Sent are as they were applied.
	Ownership Ownership
	// Survey is what there was in the cluster a moment ago; nil if no survey was
	// made.
	Survey *Survey
	// Claimed is asked about objects that would be deleted; nil knows of no other
	// owner.
	Claimed Claims
}

// Claims tells how another owner answers for an object. An owner does not count if it
// is the one that asks, or except.
type Claims func(ctx context.Context, e, except inventory.Entry) (Claim, error)

// Claim is how an owner answers for an object. Without an Owner there is none.
type Claim struct {
	// Owner is written as Kind/namespace/name.
	Owner string
	Kind  ClaimKind
	// Unsure: it is not known whether the owner has or declares it in this cluster, which counts
	// as Declared.
	Unsure bool
	// Ahead: the owner has what it declares once a Rollout lets it, which may take days.
	Ahead bool
	// Perhaps are owners that have the object in their inventories, and of which it is not
	// known whether they applied it in this cluster. One whose labels it has did.
	Perhaps []string
	// Form is what declares it Again: the one that asks, as it is to be. Nil if only a revision is newer.
	Form client.Object
}

// ClaimKind is how far an owner has come.
type ClaimKind int

const (
	// Recorded: the object is in the owner's inventory.
	Recorded ClaimKind = iota
	// Declared: the owner declares the object, or may do so, and its inventory does
	// not have it yet.
	Declared
	// Again: the one that asks declares the object itself, by a newer revision or spec
	// than the one it asks for, or will when it is created again.
	Again
)

// Result of Sync.
type Result struct {
	// Sent are all objects that are as they were applied, by this call or before.
	Sent Sent
	// Touched are objects that are not in the state in which they were seen before.
	Touched []inventory.Entry
	// Ownership is that of all objects.
	Ownership Ownership
	// Seal is that of the Sweep, broken unless it shows each object as it was applied; without
	// one it is that of the answers, if Options.Seal is set and each object was sent.
	Seal Seal
	// Changes that were made, in order.
	Changes *ssa.ChangeSet
	// Drifted objects that are left as they are, each with what differs.
	Drifted []Drift
	// Remembered is how many objects the memo has from now on. Complete: these are
	// all objects that have to be watched, so that Memo.Clean tells whether another
	// Sync of the same rendering would do anything.
	Remembered int
	Complete   bool
	// Inventory that is to be recorded from now on. Recorded: it has all that is declared, as it was written
	// ahead of the first write of an object. A call that ended before that, or withholds something, leaves it
	// without what is new.
	Inventory []inventory.Entry
	Recorded  bool
	// Plan of the prune, and the objects that were deleted.
	Plan    inventory.Plan
	Deleted []inventory.Entry
	// Pending: deletes have begun and are not confirmed yet, or wait for something.
	Pending bool
	// HandOver is the record of the objects that are kept for other owners, for the
	// next Sync or Remove; nil if there are none. Decided is that of what is put last, or
	// could not be deleted.
	HandOver *v1alpha1.HandOver
	Decided  string
	// Creation says what was not applied because it might build a cluster twice.
	// While it is blocked, nothing is pruned. It is nil if FirstSync was.
	Creation *inventory.Creation
	// Done is how many phases are in place, with all that was waited for;
	// Applied is how many of them were sent completely, at most one more.
	Done, Applied int
}

// RecordError: Options.Record failed. Nothing was written to the cluster.
type RecordError struct{ Err error }

func (e *RecordError) Error() string {
	return "cannot record inventory ahead of apply: " + e.Err.Error()
}
func (e *RecordError) Unwrap() error { return e.Err }

// PruneError: everything was applied, but the prune could not be completed.
// The inventory of the result still holds what is left.
type PruneError struct{ Err error }

func (e *PruneError) Error() string { return e.Err.Error() }
func (e *PruneError) Unwrap() error { return e.Err }
