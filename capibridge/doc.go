// Package capibridge turns objects of Cluster API into facts about clusters: whether
// layers may be pushed to a cluster, where its kubeconfig is, which variables it gives,
// and what its provider reports about it.
//
// It reads Clusters without their Go types, in whichever version is served, so
// that a tier runs without Cluster API and with any version of the contract. The
// objects of providers are read by adapters: one for any provider that keeps the
// contract, one for AWS and one for Azure. An adapter is pure; Providers reads
// for it. A fact that cannot be read is Unknown, never absent, and stops nothing: the
// gate and the probe of the API server decide about a push, facts explain.
//
// Facts it builds on (Cluster API v1.13):
//
//   - phase Provisioned comes before any API server exists; the fields of
//     status.initialization are sticky, and with our own probe they are the gate;
//   - Available comes late and stays False for minutes after a short outage, so
//     it is a gate only where a Layer asks for it, and never a reason to delete;
//   - the kubeconfig is the Secret <cluster>-kubeconfig, key value, and nothing
//     else: prefixes and types differ between providers;
//   - providers of contract v1beta1, such as those of EKS and AKS, cannot make a Cluster
//     unavailable again: they report failures in fields and conditions of their own;
//   - controlPlaneEndpoint may hold a URL (EKS), so addresses come from the
//     kubeconfig.
//
// A kubeconfig is hostile input. Kubeconfig accepts a list of fields and refuses the
// rest before it passes the text to client-go, which reads files while it parses.
package capibridge
