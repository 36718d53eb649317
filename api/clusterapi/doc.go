// Package clusterapi has the vocabulary of Cluster API: group names, kinds, labels and
// annotations. It tells which object belongs to which Cluster.
//
// It is the only package that spells Cluster API's names. It reads objects
// without their Go types, in whichever version of the contract (v1beta1 or
// v1beta2) they were written, because a tier runs with any version of Cluster
// API and without it.
//
// Every function is pure: it looks at the object that it is given and asks no
// API server. A field that is missing, or that has another type than the contract
// says, counts as not set. What to make of an answer is up to the caller; in
// particular, that nothing ties an object to a Cluster does not prove that no
// Cluster needs it.
package clusterapi
