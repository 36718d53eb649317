// Package capibridge turns what Cluster API says into facts about clusters:
// whether one may be pushed to, how it is reached, and which variables it
// gives.
//
// It reads Clusters without their Go types, in whichever version is served, so
// that a tier runs without Cluster API and with any version of the contract.
//
// Facts it builds on (Cluster API v1.13):
//
//   - phase Provisioned comes before any API server exists; the fields of
//     status.initialization are sticky, and with our own probe they are the gate;
//   - Available comes late and stays False for minutes after a short outage, so
//     it is a gate only where a Layer asks for it, and never a reason to delete;
//   - the kubeconfig is the Secret <cluster>-kubeconfig, key value, and nothing
//     else: prefixes and types differ between providers;
//   - controlPlaneEndpoint may hold a URL (EKS), so addresses come from the
//     kubeconfig.
//
// A kubeconfig is hostile input: Kubeconfig accepts a list of fields and
// refuses the rest before client-go, which reads files while it parses, sees
// it.
package capibridge
