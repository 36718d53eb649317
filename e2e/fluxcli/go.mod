// Pins the flux CLI, which the e2e tests run unmodified against the agent. Only its
// version and checksum are kept here: what it needs is in its own go.mod.
module github.com/cascade-gitops/cascade/e2e/fluxcli

go 1.26.0

require github.com/fluxcd/flux2/v2 v2.9.5
