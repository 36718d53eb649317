# `make demo` shows the cascade; `make test` runs all tests. Both build what is
# missing. See README.md.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := build

BIN := $(CURDIR)/bin
P ?= 2
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo devel)
KUBE_VERSION := v1.36.3
KUBE := k8s.io/component-base/version
KUBE_LDFLAGS := -s -w -X $(KUBE).gitVersion=$(KUBE_VERSION) -X $(KUBE).gitMajor=1 -X $(KUBE).gitMinor=36
LDFLAGS := -s -w -X main.releaseVersion=$(VERSION)
CONTROLLER_GEN := go run sigs.k8s.io/controller-tools/cmd/controller-gen@v0.21.0
STATICCHECK := go run honnef.co/go/tools/cmd/staticcheck@2026.1

# Go decides by itself what is out of date; these are for make's own order.
own := $(shell git ls-files '*.go' '*.yaml' 'go.mod' 'go.sum' 2>/dev/null | grep -v -e '^e2e/controlplane/' -e '^e2e/local/' -e _test.go)

.PHONY: build
build: ## the cascade binary
	@mkdir -p $(BIN)
	go build -p $(P) -trimpath -ldflags "$(LDFLAGS)" -o $(BIN)/cascade ./cmd/cascade

# --- the surroundings of the demo and the e2e tests ---------------------------

.PHONY: build-e2e
build-e2e: build $(BIN)/controlplane $(BIN)/cascade-local $(BIN)/capi-manager ## everything that the demo runs
	go build -p $(P) -o $(BIN)/hello ./e2e/hello
	go build -p $(P) -o $(BIN)/demo ./e2e/demo

$(BIN)/controlplane: $(shell git ls-files e2e/controlplane 2>/dev/null | grep -v _test.go)
	@mkdir -p $(BIN)
	@echo "building the control plane (kube-apiserver, controller-manager, scheduler, etcd); the first time this takes 5 to 10 minutes"
	cd e2e/controlplane && go build -p $(P) -ldflags "$(KUBE_LDFLAGS)" -o $@ .

$(BIN)/cascade-local: $(shell git ls-files e2e/local 2>/dev/null | grep -v _test.go)
	@mkdir -p $(BIN)
	@echo "building the local provider and the process kubelet; the first time this takes 2 minutes"
	cd e2e/local && go build -p $(P) -o $@ .

$(BIN)/capi-manager: e2e/local/go.mod e2e/local/go.sum
	@mkdir -p $(BIN)/capi
	@echo "building Cluster API's core manager, unmodified"
	cd e2e/local && go build -p $(P) -o $@ sigs.k8s.io/cluster-api
	module=$$(cd e2e/local && go list -m -f '{{.Dir}}' sigs.k8s.io/cluster-api) && \
		rm -rf $(BIN)/capi && mkdir -p $(BIN)/capi/crd $(BIN)/capi/webhook && \
		cp -r $$module/config/crd/bases $(BIN)/capi/crd/ && cp $$module/config/webhook/manifests.yaml $(BIN)/capi/webhook/ && \
		chmod -R u+w $(BIN)/capi

# DEMO=once ends when everything is ready.
DEMO ?=
.PHONY: demo
demo: build-e2e ## the whole cascade on this machine
	$(BIN)/demo -bin $(BIN) $(if $(filter once,$(DEMO)),-once)
