// Package forecast renders what a tier and its children have, and what they would have at
// another commit, from the packages that the agent renders with.
//
// Invariants: it reads the tier with the rights of who asks, and writes nothing to any
// cluster. What the commit itself changes of Kustomizations, Layers, Rollouts, Clusters and
// of the ConfigMaps and Secrets that variables come from counts for what is rendered at it.
//
// Failure model: what cannot be rendered is a problem in the report, by its owner and
// cluster, and the rest is reported. An error says that there is no report.
package forecast
