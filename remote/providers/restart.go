package providers

// reading is how a provider reads its credentials.
type reading struct {
	// watches: it reads what it needs anew when that changes, or each time.
	watches bool
	// atStart names Secrets that it reads only when it starts all the same.
	atStart []string
}

// readings are those of providers that are known, by what clusterctl calls them. One that is
// not here is taken to read its credentials only when it starts: most mount them as files or
// as variables of their processes, and a restart too many costs little.
//
// Cluster API's provider for AWS mounts its credentials. That for Azure follows the identities
// that its clusters name and the Secrets of theirs, and the operator that comes with it those
// of its resources; the credentials for all of its resources are variables of its process.
// That for OpenStack reads the cloud of each cluster when it works on it, and so does that for
// vSphere with the identities of clusters, but not with its own login.
func readings() map[string]reading {
	return map[string]reading{
		"infrastructure-aws":       {},
		"infrastructure-gcp":       {},
		"infrastructure-azure":     {watches: true, atStart: []string{"aso-controller-settings"}},
		"infrastructure-openstack": {watches: true},
		"infrastructure-vsphere":   {watches: true, atStart: []string{"capv-manager-bootstrap-credentials"}},
	}
}

// ReadsAtStart reports whether a provider reads a Secret only when it starts, as far as that
// is known.
func (w Wanted) ReadsAtStart(secret string) bool {
	r, known := readings()[w.Label]
	if !known || !r.watches {
		return true
	}
	for _, name := range r.atStart {
		if name == secret {
			return true
		}
	}
	return false
}
