// Package capibridge turns what Cluster API says into facts about clusters:
// whether one may be pushed to, how it is reached, which variables it gives, and
// what its provider says of it.
//
// It reads Clusters without their Go types, in whichever version is served, so
// that a tier runs without Cluster API and with any version of the contract. The
// objects of providers are read by adapters: one for any provider that keeps the
// contract, one for AWS and one for Azure. An adapter is pure; Providers reads
// for it. What cannot be read is Unknown, never gone, and hinders nothing else:
// facts explain, the gate and the probe of the API server decide.
//
// Facts it builds on (Cluster API v1.13):
//
//   - phase Provisioned comes before any API server exists; the fields of
//     status.initialization are sticky, and with our own probe they are the gate;
//   - Available comes late and stays False for minutes after a short outage, so
//     it is a gate only where a Layer asks for it, and never a reason to delete;
//   - the kubeconfig is the Secret <cluster>-kubeconfig, key value, and nothing
//     else: prefixes and types differ between providers;
//   - providers of contract v1beta1, as those of EKS and AKS are, have nothing that
//     would make a Cluster unavailable again: their failures are in fields and
//     conditions of their own;
//   - controlPlaneEndpoint may hold a URL (EKS), so addresses come from the
//     kubeconfig.
//
// A kubeconfig is hostile input: Kubeconfig accepts a list of fields and
// refuses the rest before client-go, which reads files while it parses, sees
// it.
package capibridge
