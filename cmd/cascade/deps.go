package main

import (
	_ "github.com/fluxcd/kustomize-controller/api/v1"
	_ "github.com/fluxcd/pkg/kustomize"
	_ "github.com/fluxcd/pkg/ssa"
	_ "github.com/fluxcd/source-controller/api/v1"
	_ "github.com/gliderlabs/ssh"
	_ "github.com/go-git/go-git/v5"
	_ "github.com/google/cel-go/cel"
	_ "github.com/prometheus/client_golang/prometheus"
	_ "github.com/spf13/cobra"
	_ "golang.org/x/crypto/ssh"
	_ "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	_ "k8s.io/cli-runtime/pkg/genericclioptions"
	_ "k8s.io/cli-runtime/pkg/printers"
	_ "sigs.k8s.io/controller-runtime"
)

func main() {}
