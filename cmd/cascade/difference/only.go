package difference

import "slices"

// Only is what a report says of one owner, or of one cluster, or of one owner in one cluster:
// what is empty narrows nothing. An owner is as in Problem, a cluster is <namespace>/<name>.
func (r *Report) Only(owner, cluster string) *Report {
	only := &Report{Schema: r.Schema, Source: r.Source, Commit: r.Commit, Owners: []Owner{}, Notes: r.Notes}
	for _, o := range r.Owners {
		if owner != "" && o.String() != owner {
			continue
		}
		if cluster != "" {
			var groups []Group
			for _, g := range o.Groups {
				if slices.ContainsFunc(g.Clusters, func(name string) bool { return o.Namespace+"/"+name == cluster }) {
					g.Clusters = []string{cluster[len(o.Namespace)+1:]}
					groups = append(groups, g)
				}
			}
			if len(groups) == 0 {
				continue
			}
			o.Groups = groups
		}
		only.Owners = append(only.Owners, o)
	}
	for _, p := range r.Problems {
		if owner == "" || p.Owner == owner {
			only.Problems = append(only.Problems, p)
		}
	}
	only.Sum()
	return only
}

// String is Kind/namespace/name.
func (o Owner) String() string { return o.Kind + "/" + o.Namespace + "/" + o.Name }
