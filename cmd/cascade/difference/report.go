package difference

import "strings"

// Schema of a Report. It changes when a field gets another meaning or goes.
const Schema = "cascade.dev/plan/v1"

// Report is what a commit would change in a tier and in the clusters below it.
type Report struct {
	Schema string `json:"schema"`
	// Source is the GitRepository, as <namespace>/<name>. Commit is what it would be at.
	Source string `json:"source"`
	Commit string `json:"commit"`
	// Owners are the Kustomizations and Layers by which something would change.
	Owners []Owner `json:"owners"`
	// Problems are what could not be found out, so that the report is not complete.
	Problems []Problem `json:"problems,omitempty"`
	// Notes are what the report does not tell about, and a person may want to know.
	Notes   []string `json:"notes,omitempty"`
	Summary Summary  `json:"summary"`
}

// Owner is a Kustomization of the tier, or a Layer.
type Owner struct {
	Kind      string `json:"kind"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// New: the commit brings the owner. Gone: the commit takes it away.
	New  bool `json:"new,omitempty"`
	Gone bool `json:"gone,omitempty"`
	// Groups of clusters in which the same changes. The one of a Kustomization names no
	// cluster: it is the tier itself.
	Groups []Group `json:"groups"`
	// Rollout that would take the clusters through Waves; empty without one, and then the
	// change reaches all at once. It is the first one where there are several.
	Rollout string `json:"rollout,omitempty"`
	Waves   []Wave `json:"waves,omitempty"`
	// Ways in which the change would reach clusters, where they are not all of one Rollout, or
	// all of none.
	Ways []Way `json:"ways,omitempty"`
	// Suspended: nothing changes before the owner is resumed.
	Suspended bool `json:"suspended,omitempty"`
}

// Group is a set of clusters with the same changes.
type Group struct {
	Clusters []string `json:"clusters,omitempty"`
	// From is the revision that they have now.
	From    string   `json:"from,omitempty"`
	Changes []Change `json:"changes"`
	// Guard says why the deletes marked Held would wait for an approval.
	Guard string `json:"guard,omitempty"`
}

// Result is what changes in one cluster; an empty name is the tier itself.
type Result struct {
	Cluster, From, Guard string
	Changes              []Change
}

// Way is how the change would reach some of the clusters: through the Waves of a Rollout; not
// at all, while several that are in Conflict move the same; at once without any of both.
type Way struct {
	Rollout  string   `json:"rollout,omitempty"`
	Conflict []string `json:"conflict,omitempty"`
	Clusters int      `json:"clusters"`
	Waves    []Wave   `json:"waves,omitempty"`
}

// Wave of a Rollout, and how many of the changed clusters are in it.
type Wave struct {
	Name          string `json:"name"`
	Clusters      int    `json:"clusters"`
	MaxConcurrent string `json:"maxConcurrent,omitempty"`
	Approval      bool   `json:"approval,omitempty"`
	// None: no wave selects these clusters, and they keep what they have.
	None bool `json:"none,omitempty"`
}

// Problem is what could not be found out about an owner, or about it in one cluster.
type Problem struct {
	Owner   string `json:"owner"`
	Cluster string `json:"cluster,omitempty"`
	Message string `json:"message"`
}

// Summary counts. An object counts once for each cluster.
type Summary struct {
	Added     int `json:"added"`
	Changed   int `json:"changed"`
	Moved     int `json:"moved"`
	Deleted   int `json:"deleted"`
	Protected int `json:"protected"`
	Held      int `json:"held"`
	Kept      int `json:"kept"`
	// Clusters below that would change.
	Clusters int `json:"clusters"`
}

// Action is what would become of an object.
type Action string

const (
	// Added: it is declared, and was not.
	Added Action = "Added"
	// Changed: it is declared in another way.
	Changed Action = "Changed"
	// Moved: another owner declares it now.
	Moved Action = "Moved"
	// Deleted: it is not declared any more.
	Deleted Action = "Deleted"
	// Protected: it would be deleted if its deletion were confirmed, and stays.
	Protected Action = "Protected"
	// Held: too much would be deleted, so that it stays until a person approves that.
	Held Action = "Held"
	// Kept: it is not declared any more, and its owner or itself says that it stays.
	Kept Action = "Kept"
)

func (a Action) order() int {
	for i, o := range []Action{Added, Changed, Moved, Deleted, Held, Protected, Kept} {
		if a == o {
			return i
		}
	}
	return -1
}

// Change of one object.
type Change struct {
	Action     Action `json:"action"`
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Namespace  string `json:"namespace,omitempty"`
	Name       string `json:"name"`
	// Fields are the paths that change, without values.
	Fields []string `json:"fields,omitempty"`
}

// String is Kind/namespace/name.
func (c Change) String() string {
	if c.Namespace == "" {
		return c.Kind + "/" + c.Name
	}
	return c.Kind + "/" + c.Namespace + "/" + c.Name
}

// Identity of the object.
func (c Change) Identity() Identity {
	group, _, found := strings.Cut(c.APIVersion, "/")
	if !found {
		group = ""
	}
	return Identity{group, c.Kind, c.Namespace, c.Name}
}

// Changes reports whether anything would change.
func (r *Report) Changes() bool { return len(r.Owners) > 0 }

// Sum fills the summary in.
func (r *Report) Sum() {
	r.Summary = Summary{}
	clusters := map[string]bool{}
	for _, o := range r.Owners {
		for _, g := range o.Groups {
			for _, c := range g.Clusters {
				clusters[o.Namespace+"/"+c] = true
			}
			r.Summary.add(g.Changes, max(len(g.Clusters), 1))
		}
	}
	r.Summary.Clusters = len(clusters)
}

func (s *Summary) add(changes []Change, times int) {
	for _, c := range changes {
		switch c.Action {
		case Added:
			s.Added += times
		case Changed:
			s.Changed += times
		case Moved:
			s.Moved += times
		case Deleted:
			s.Deleted += times
		case Protected:
			s.Protected += times
		case Held:
			s.Held += times
		case Kept:
			s.Kept += times
		}
	}
}
