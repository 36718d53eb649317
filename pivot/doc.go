// Package pivot moves Clusters from one management cluster to another, such that at any
// moment at most one of the two acts on them.
//
// clusterctl's move pauses, copies and deletes in one go. What is half moved when it ends
// has to be put together by hand, and a GitOps engine at the source creates again what it
// took away. A pivot is a journal instead. Each step is written down before it is begun, and
// each can be begun again: what it has to do is worked out from what both sides have (plan),
// not remembered. Whoever comes after a crash reads the journal and goes on, or turns back.
//
// The steps:
//
//	freeze    the source's record says that the Clusters are managed elsewhere, so that no
//	          sync touches or creates them; they are paused, and come to rest
//	copy      namespaces and objects are made in the target, owners first, Clusters paused
//	verify    each object of the source is in the target, field by field
//	switch    the point of no return: the target's record takes the Clusters
//	unpause   objects get the field owners that they had; Clusters are let go in the target
//	release   objects of the source lose their finalizers and are deleted, the owned first
//	done      what is left is the source's record
//
// and, before switch only, undo: copies are deleted in the target, the source goes on. A pivot
// comes to it by itself if something of the source is being deleted, which no controller ends
// while the Cluster is paused.
//
// Invariants:
//   - A Cluster is unpaused in the target only after the journal says switch, and in the
//     source only by undo, which a journal that says switch never comes to. So one side at
//     most has it unpaused.
//   - Nothing is deleted that the journal does not name by UID, and nothing in the source
//     before its copy was verified. A delete carries the UID as a precondition. Finalizers go
//     first: no controller sees an object of the source as one that is being deleted, so
//     that none takes down what it stands for.
//   - One process drives a pivot. It holds the journal for a time, renews it before it
//     writes, and each holder has a greater epoch than the one before.
//   - A program that does not know the format of a journal leaves it alone.
//
// Failure model: a call that fails ends the run, and the same command goes on. While either
// side does not answer, nothing goes on, and the Clusters stay paused: what they consist of
// runs, and is not repaired. A Cluster that somebody unpauses in the source is paused again
// before anything goes on.
package pivot
