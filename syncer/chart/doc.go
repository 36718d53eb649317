// Package chart finds, fetches, packages and loads Helm charts.
//
// Indexes has the indexes of http(s) repositories, of which it keeps only what it
// takes to find a chart. Charts packages charts: from such a repository, from a
// registry, or from a directory of another source with its dependencies. A packaged
// chart is a source.Snapshot. Load turns such a snapshot into what Helm renders.
//
// Revisions, artifacts, reasons and versions are those of Flux's source-controller.
// There are two differences. A chart in a directory counts as changed only when
// its inputs changed, at whatever commit. And packaging is reproducible: the same
// content is the same file.
//
// What several objects need at the same time is fetched, parsed and packaged once,
// and freed with the last of them. Everything is safe for concurrent use.
//
// Failure model: a failure leaves what was there before as it was. Errors are
// source.Errors with a stable reason, and have no credential, no query of a URL and
// no value of a chart. What a server or a chart chooses is limited: bytes, files,
// versions, nodes of YAML and JSON, and how deep things nest. A credential goes to the
// repository's own server and nowhere else. Nothing is read from the host's file
// system or, while a chart is loaded, from the network.
package chart
