# `make demo` shows the cascade; `make test` runs what must be green before anything
# lands, `make test-all` all tests. Each builds what is missing. See README.md and
# docs/testing.md.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := build

BIN := $(CURDIR)/bin
P ?= 2
# Twelve digits in each clone: how many Git takes by itself depends on what else is in one.
VERSION ?= $(shell git describe --tags --always --abbrev=12 --dirty 2>/dev/null || echo devel)
KUBE_VERSION := v1.36.3
KUBE := k8s.io/component-base/version
KUBE_LDFLAGS := -s -w -X $(KUBE).gitVersion=$(KUBE_VERSION) -X $(KUBE).gitMajor=1 -X $(KUBE).gitMinor=36
LDFLAGS := -s -w -X main.releaseVersion=$(VERSION)
# What is built from our modules without the race detector is built, and vetted, in one
# way: what it depends on is compiled once for all of it.
STATIC := CGO_ENABLED=0 GOFLAGS=-trimpath
# The library for buckets of Google Cloud can speak gRPC through a service mesh; we
# do not, and it costs a megabyte of memory.
TAGS := disable_grpc_modules

.PHONY: build
build: ## the cascade binary
	@mkdir -p $(BIN)
	$(STATIC) go build -p $(P) -tags $(TAGS) -ldflags "$(LDFLAGS)" -o $(BIN)/cascade ./cmd/cascade

# --- the surroundings of the demo and the e2e tests ---------------------------

.PHONY: build-demo
build-demo: prerequisites build $(BIN)/controlplane $(BIN)/cascade-local $(BIN)/capi-manager $(BIN)/components/local ## everything that the demo runs
	$(STATIC) go build -C e2e -p $(P) -o $(BIN)/ ./hello ./demo ./standin

.PHONY: build-landing
build-landing: build-demo $(BIN)/kubectl $(BIN)/providers/aws ## what the tests of make test run

.PHONY: build-e2e
build-e2e: build-landing mom-local $(BIN)/flux $(BIN)/capi-manager-next $(BIN)/helm $(BIN)/clusterctl $(BIN)/providers/webhooks $(BIN)/providers/webhooks-azure $(BIN)/components/published $(BIN)/vault ## everything that the tests run

$(BIN)/controlplane: $(shell git ls-files mom/controlplane 2>/dev/null | grep -v _test.go)
	@mkdir -p $(BIN)
	@echo "building the control plane (kube-apiserver, controller-manager, scheduler, etcd); the first time this takes 5 to 10 minutes"
	cd mom/controlplane && go build -p $(P) -ldflags "$(KUBE_LDFLAGS)" -o $@ .

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

# The next minor version, to which a test upgrades a management cluster.
$(BIN)/capi-manager-next: e2e/local/next/go.mod e2e/local/next/go.sum
	@mkdir -p $(BIN)
	@echo "building the core manager of the next minor of Cluster API, unmodified"
	cd e2e/local/next && go build -p $(P) -o $@ sigs.k8s.io/cluster-api/core
	module=$$(cd e2e/local/next && go list -m -f '{{.Dir}}' sigs.k8s.io/cluster-api) && \
		rm -rf $(BIN)/capi-next && mkdir -p $(BIN)/capi-next/crd $(BIN)/capi-next/webhook && \
		cp -r $$module/core/config/crd/bases $(BIN)/capi-next/crd/ && cp $$module/core/config/webhook/manifests.yaml $(BIN)/capi-next/webhook/ && \
		chmod -R u+w $(BIN)/capi-next

# Its module lacks what it embeds, the manifests of Flux's own installation, so it
# is built from a copy that has an empty one. All but install and bootstrap works.
$(BIN)/flux: e2e/fluxcli/go.mod e2e/fluxcli/go.sum
	@mkdir -p $(BIN)
	@echo "building the flux CLI; the first time this takes 3 minutes"
	cd e2e/fluxcli && go mod download github.com/fluxcd/flux2/v2 && \
		module=$$(go list -m -f '{{.Dir}}' github.com/fluxcd/flux2/v2) version=$$(go list -m -f '{{.Version}}' github.com/fluxcd/flux2/v2) && \
		copy=$$(mktemp -d) && trap 'rm -rf $$copy' EXIT && \
		cp -r $$module/go.mod $$module/go.sum $$module/cmd $$module/internal $$module/pkg $$copy/ && chmod -R u+w $$copy && \
		mkdir -p $$copy/cmd/flux/manifests && touch $$copy/cmd/flux/manifests/none.yaml && \
		cd $$copy && go build -p $(P) -trimpath -ldflags "-s -w -X main.VERSION=$${version#v}" -o $@ ./cmd/flux

# What the API server of a management cluster admits: definitions and webhooks of
# Cluster API and of the providers, from their modules.
$(BIN)/providers/aws: e2e/webhooks/go.mod e2e/webhooks/go.sum
	@mkdir -p $@
	cd e2e/webhooks && go mod download sigs.k8s.io/cluster-api sigs.k8s.io/cluster-api-provider-aws/v2 && \
		capi=$$(go list -m -f '{{.Dir}}' sigs.k8s.io/cluster-api) aws=$$(go list -m -f '{{.Dir}}' sigs.k8s.io/cluster-api-provider-aws/v2) && \
		for part in core:. bootstrap:bootstrap/kubeadm controlplane:controlplane/kubeadm; do \
			mkdir -p $(BIN)/providers/$${part%:*} && \
			cp $$capi/$${part#*:}/config/crd/bases/*.yaml $$capi/$${part#*:}/config/webhook/manifests.yaml $(BIN)/providers/$${part%:*}/; \
		done && \
		cp $$aws/config/crd/bases/*.yaml $$aws/config/webhook/manifests.yaml $@/ && \
		chmod -R u+w $(BIN)/providers
	@touch $@

$(BIN)/providers/webhooks: e2e/webhooks/main.go e2e/webhooks/go.mod e2e/webhooks/go.sum $(BIN)/providers/aws
	@echo "building the webhooks of Cluster API and its provider for AWS; the first time this takes 2 minutes"
	cd e2e/webhooks && go build -p $(P) -o $@ .

$(BIN)/providers/webhooks-azure: e2e/webhooks/azure/main.go e2e/webhooks/azure/go.mod e2e/webhooks/azure/go.sum
	@mkdir -p $(BIN)/providers/azure
	@echo "building the webhooks of the provider for Azure; the first time this takes 2 minutes"
	cd e2e/webhooks/azure && go build -p $(P) -o $@ . && \
		azure=$$(go list -m -f '{{.Dir}}' sigs.k8s.io/cluster-api-provider-azure) && \
		cp $$azure/config/crd/bases/*.yaml $$azure/config/aso/crds.yaml $$azure/config/webhook/manifests.yaml $(BIN)/providers/azure/ && \
		chmod -R u+w $(BIN)/providers

# clusterctl of the same Cluster API, with what its own go.mod says.
$(BIN)/clusterctl: e2e/local/go.mod e2e/local/go.sum
	@mkdir -p $(BIN)
	@echo "building clusterctl; the first time this takes 2 minutes"
	module=$$(cd e2e/local && go list -m -f '{{.Dir}}' sigs.k8s.io/cluster-api) && \
		copy=$$(mktemp -d) && trap 'chmod -R u+w $$copy; rm -rf $$copy' EXIT && \
		cp -r $$module/. $$copy/ && chmod -R u+w $$copy && \
		cd $$copy && go build -p $(P) -trimpath -ldflags "-s -w" -o $@ ./cmd/clusterctl

# Component manifests: those that the projects publish with their releases, built
# from the modules, and those of the example fleet.
COMPONENTS := $(wildcard e2e/components/*.go) $(wildcard e2e/local/config/*.yaml e2e/local/config/*/*.yaml)

$(BIN)/components/local: $(COMPONENTS) e2e/local/go.mod
	@mkdir -p $(BIN)/components
	capi=$$(cd e2e/local && go list -m -f '{{.Dir}}' sigs.k8s.io/cluster-api) && \
		$(STATIC) go run -C e2e -p $(P) ./components -out $(BIN)/components -cluster-api $$capi -local local/config
	@touch $@

$(BIN)/components/published: $(COMPONENTS) e2e/webhooks/go.mod e2e/webhooks/azure/go.mod
	@mkdir -p $(BIN)/components
	cd e2e/webhooks && go mod download sigs.k8s.io/cluster-api sigs.k8s.io/cluster-api-provider-aws/v2
	cd e2e/webhooks/azure && go mod download sigs.k8s.io/cluster-api-provider-azure
	module() { (cd "$$1" && go list -m -f '{{.Dir}}' "$$2"); } && \
		$(STATIC) go run -C e2e -p $(P) ./components -out $(BIN)/components -local local/config \
			-cluster-api $$(module e2e/webhooks sigs.k8s.io/cluster-api) \
			-aws $$(module e2e/webhooks sigs.k8s.io/cluster-api-provider-aws/v2) \
			-azure $$(module e2e/webhooks/azure sigs.k8s.io/cluster-api-provider-azure)
	@touch $@

$(BIN)/helm: e2e/helmcli/go.mod e2e/helmcli/go.sum
	@mkdir -p $(BIN)
	@echo "building the helm CLI"
	cd e2e/helmcli && go build -p $(P) -o $@ helm.sh/helm/v4/cmd/helm

# A server for tests, of which the tag leaves out what they do not use, and the engine for AWS as a plugin.
$(BIN)/vault: e2e/vault/go.mod e2e/vault/go.sum
	@mkdir -p $(BIN)/vault-plugins
	@echo "building Vault, unmodified; the first time this takes 10 minutes"
	$(STATIC) go build -C e2e/vault -p $(P) -ldflags "-s -w" -o $(BIN)/vault-plugins/aws github.com/hashicorp/vault/builtin/logical/aws/cmd/aws
	$(STATIC) go build -C e2e/vault -p $(P) -tags minimal -ldflags "-s -w" -o $@ github.com/hashicorp/vault

$(BIN)/kubectl: e2e/kubectlcli/main.go e2e/kubectlcli/go.mod e2e/kubectlcli/go.sum
	@mkdir -p $(BIN)
	@echo "building kubectl; the first time this takes 2 minutes"
	$(STATIC) go build -C e2e/kubectlcli -p $(P) -ldflags "-s -w" -o $@ .

# What the machines of make e2e-nodes run besides containerd, which is Debian's: a kubelet and a kube-proxy of the
# control plane's version, and what gives a cluster its network and its DNS.
$(BIN)/kubelet: e2e/kubelet/go.mod e2e/kubelet/go.sum
	@mkdir -p $(BIN)
	@echo "building the kubelet and kube-proxy, unmodified; the first time this takes 3 minutes"
	cd e2e/kubelet && go build -p $(P) -ldflags "$(KUBE_LDFLAGS)" -o $(BIN)/ tool

$(BIN)/coredns: e2e/network/coredns/main.go e2e/network/go.mod e2e/network/go.sum
	@mkdir -p $(BIN)
	@echo "building CoreDNS; the first time this takes 1 minute"
	$(STATIC) go build -C e2e/network -p $(P) -ldflags "-s -w" -o $@ ./coredns

$(BIN)/cni: e2e/network/go.mod e2e/network/go.sum
	@mkdir -p $@
	@echo "building plugins of the CNI project, unmodified"
	$(STATIC) go build -C e2e/network -p $(P) -ldflags "-s -w" -o $@/ tool
	@touch $@

# What is in the images of providers on these machines, without libraries of C as the projects build it. The
# last version of cert-manager whose programs are in a module: see e2e/certmanager/go.mod.
CERT_MANAGER := github.com/cert-manager/cert-manager

$(BIN)/images/cert-manager: e2e/certmanager/go.mod e2e/certmanager/go.sum
	@mkdir -p $@
	@echo "building cert-manager, unmodified; the first time this takes 2 minutes"
	cd e2e/certmanager && version=$$(go list -m -f '{{.Version}}' $(CERT_MANAGER)) && \
		$(STATIC) go build -p $(P) -ldflags "-s -w -X $(CERT_MANAGER)/pkg/util.AppVersion=$$version" -o $@/ tool
	@touch $@

$(BIN)/images/cluster-api: e2e/local/go.mod e2e/local/go.sum
	@mkdir -p $@
	@echo "building Cluster API's core manager for an image, unmodified; the first time this takes 2 minutes"
	$(STATIC) go build -C e2e/local -p $(P) -ldflags "-s -w" -o $@/manager sigs.k8s.io/cluster-api
	@touch $@

$(BIN)/components/nodes: $(wildcard e2e/components/*.go) e2e/local/go.mod e2e/certmanager/go.mod
	@mkdir -p $(BIN)/components
	cd e2e/certmanager && go mod download $(CERT_MANAGER)
	$(STATIC) go run -C e2e -p $(P) ./components -out $(BIN)/components \
		-cluster-api $$(cd e2e/local && go list -m -f '{{.Dir}}' sigs.k8s.io/cluster-api) \
		-cert-manager $$(cd e2e/certmanager && go list -m -f '{{.Dir}}' $(CERT_MANAGER))
	@touch $@

# --- the image and releases ------------------------------------------------------

# What is published is built by one toolchain, that of go.mod: the same commit makes the
# same bytes on each machine. Variables that choose instructions are set for the same reason.
TOOLCHAIN := $(shell sed -n 's/^toolchain //p' go.mod)
PUBLISHED := CGO_ENABLED=0 GOFLAGS="-trimpath -buildvcs=false" GOTOOLCHAIN=$(TOOLCHAIN) GOAMD64=v1 GOARM64=v8.0 GOEXPERIMENT= GOFIPS140=off
IMAGE_PLATFORMS := linux-amd64 linux-arm64
PLATFORMS := $(IMAGE_PLATFORMS) darwin-amd64 darwin-arm64 windows-amd64 windows-arm64
REVISION ?= $(shell git rev-parse HEAD 2>/dev/null || echo unknown)
export SOURCE_DATE_EPOCH ?= $(shell git log -1 --format=%ct 2>/dev/null || echo 0)
SOURCE := https://github.com/cascade-gitops/cascade
# Where images of releases are published. REGISTRY=host/path says where make push sends one.
PUBLIC := ghcr.io/cascade-gitops
REPOSITORY = $(REGISTRY)/cascade
TAG ?=
DOWNLOADS = $(SOURCE)/releases/download/$(VERSION)
RELEASE := $(BIN)/release-tool

$(RELEASE): FORCE
	@mkdir -p $(BIN)
	$(PUBLISHED) go build -C deploy/release -p $(P) -o $@ .

.PHONY: FORCE
FORCE:

.PHONY: $(PLATFORMS:%=platform-%)
$(PLATFORMS:%=platform-%): platform-%:
	@mkdir -p $(BIN)/platforms/$*
	$(PUBLISHED) GOOS=$(word 1,$(subst -, ,$*)) GOARCH=$(word 2,$(subst -, ,$*)) \
		go build -p $(P) -tags $(TAGS) -ldflags "$(LDFLAGS)" -o $(BIN)/platforms/$*/ ./cmd/cascade

.PHONY: image
image: $(IMAGE_PLATFORMS:%=platform-%) $(RELEASE) ## the agent's image for amd64 and arm64 in bin/image, an OCI layout, and its digest
	@$(RELEASE) image --version '$(VERSION)' --revision '$(REVISION)' --created $$SOURCE_DATE_EPOCH --source $(SOURCE) \
		--binary amd64=$(BIN)/platforms/linux-amd64/cascade --binary arm64=$(BIN)/platforms/linux-arm64/cascade $(if $(TAG),--tag '$(TAG)') --to $(BIN)/image

# For deploy/Dockerfile, which has what make image has from here.
PLATFORM ?= linux-amd64
.PHONY: rootfs
rootfs: platform-$(PLATFORM) $(RELEASE) ## what is in the image, as a directory
	$(RELEASE) rootfs --binary $(BIN)/platforms/$(PLATFORM)/cascade --to $(BIN)/rootfs

.PHONY: push
push: $(RELEASE) ## pushes bin/image to REGISTRY=host/path as cascade, with its version or TAG, and prints the reference by digest
	@test -n "$(REGISTRY)" || { echo "say where to: make push REGISTRY=host/path [TAG=tag]"; exit 1; }
	@$(RELEASE) push --layout $(BIN)/image --repository '$(REPOSITORY)' $(if $(TAG),--tag '$(TAG)')

.PHONY: sign
sign: $(RELEASE) ## signs what was pushed to REGISTRY=host/path with KEY=file, whose password is in COSIGN_PASSWORD
	@test -n "$(REGISTRY)" -a -n "$(KEY)" || { echo "say what and with which key: make sign REGISTRY=host/path KEY=cosign.key"; exit 1; }
	@$(RELEASE) sign --layout $(BIN)/image --repository '$(REPOSITORY)' --key '$(KEY)'

# Two clones in directories of different lengths, with other masks, zones and languages.
.PHONY: image-reproducible
image-reproducible: ## whether two clean clones of this commit make the same image
	@work=$$(mktemp -d) && trap 'rm -rf $$work' EXIT && mkdir -p $$work/another/directory && \
	git clone -q . $$work/one && git clone -q . $$work/another/directory/two && \
	env -u MAKEFLAGS -u SOURCE_DATE_EPOCH TZ=UTC $(MAKE) -s -C $$work/one image > $$work/first && \
	(umask 077 && env -u MAKEFLAGS -u SOURCE_DATE_EPOCH TZ=Asia/Tokyo LC_ALL=C $(MAKE) -s -C $$work/another/directory/two image > $$work/second) && \
	first=$$(tail -n 1 $$work/first) second=$$(tail -n 1 $$work/second) && echo "$$first" && echo "$$second" && \
	test -n "$$first" -a "$$first" = "$$second" || { echo "two clones of one commit make two images"; exit 1; }

# What is released has a version, and is of a commit: that of the tag, if there is one.
define releasable
@[[ "$(VERSION)" =~ ^v[0-9]+\.[0-9]+\.[0-9]+(-[0-9A-Za-z.-]+)?$$ && "$(origin VERSION)" != file ]] || \
		{ echo "say which version: make release VERSION=v1.2.3"; exit 1; }
@test -z "$$(git status --porcelain)" || { echo "commit first: a release is made from a commit"; git status --short; exit 1; }
@tagged=$$(git rev-parse -q --verify 'refs/tags/$(VERSION)^{commit}' || true); test -z "$$tagged" -o "$$tagged" = '$(REVISION)' || \
		{ echo "$(VERSION) is the tag of another commit, $$tagged: check that one out"; exit 1; }
endef

.PHONY: release
release: ## all files of VERSION=vX.Y.Z in bin/release, and its image in bin/image
	$(releasable)
	@$(MAKE) -s $(RELEASE) && $(RELEASE) notes --version $(VERSION) --sources $(CURDIR) > /dev/null
	rm -rf $(BIN)/platforms
	$(MAKE) image $(PLATFORMS:%=platform-%) TAG=
	$(PUBLISHED) go build -p $(P) -tags $(TAGS) -ldflags "$(LDFLAGS)" -o $(BIN)/cascade ./cmd/cascade
	$(RELEASE) assets --version $(VERSION) --created $$SOURCE_DATE_EPOCH --sources $(CURDIR) --program $(BIN)/cascade --platforms $(BIN)/platforms \
		--layout $(BIN)/image --repository $(PUBLIC)/cascade --source $(SOURCE) --downloads $(DOWNLOADS) $(if $(KEY),--key '$(KEY)') --to $(BIN)/release
	@cat $(BIN)/release/checksums.txt

# It takes an hour for each platform from nothing, so it is no part of make release. Programs
# within it are built from their modules by the toolchain that each asks for, ours at least.
MOM_PLATFORMS ?= linux-amd64 linux-arm64
MOM_RELEASE := $(BIN)/mom-release
mom-release-of = $(MOM_RELEASE)/$*/programs/controlplane $(addprefix $(MOM_RELEASE)/$*/programs/,$(call mom-programs,$(MOM_PROVIDERS))) \
	$(addprefix $(MOM_RELEASE)/$*/providers/,$(call mom-names,$(MOM_PROVIDERS)))

.PHONY: $(MOM_PLATFORMS:%=mom-platform-%)
$(MOM_PLATFORMS:%=mom-platform-%): mom-platform-%: platform-%
	GOOS=$(word 1,$(subst -, ,$*)) GOARCH=$(word 2,$(subst -, ,$*)) GOTOOLCHAIN=$(TOOLCHAIN)+auto GOAMD64=v1 GOARM64=v8.0 GOEXPERIMENT= GOFIPS140=off \
		$(MAKE) MOM=$(MOM_RELEASE)/$* $(mom-release-of)
	install $(BIN)/platforms/$*/cascade $(MOM_RELEASE)/$*/programs/cascade
	$(call mom-embed,$(MOM_PROVIDERS),$(MOM_RELEASE)/$*/programs/controlplane,$(MOM_RELEASE)/$*/programs,$(MOM_RELEASE)/$*/programs/cascade,$(MOM_RELEASE)/$*/providers)
	cp mom/payload/embedded/index.json $(MOM_RELEASE)/$*/
	$(PUBLISHED) GOOS=$(word 1,$(subst -, ,$*)) GOARCH=$(word 2,$(subst -, ,$*)) \
		go build -p $(P) -tags $(TAGS) -ldflags "$(LDFLAGS)" -o $(MOM_RELEASE)/$*/cascade-mom ./cmd/cascade-mom

.PHONY: release-mom
release-mom: ## cascade-mom of VERSION=vX.Y.Z for Linux, added to what make release wrote in bin/release; the first time this takes hours
	$(releasable)
	@test -f $(BIN)/release/checksums.txt || { echo "make the rest first: make release VERSION=$(VERSION)"; exit 1; }
	for platform in $(MOM_PLATFORMS); do rm -rf $(MOM_RELEASE)/$$platform/cascade-mom && $(MAKE) mom-platform-$$platform; done
	@$(MAKE) -s $(RELEASE)
	$(RELEASE) mom --version '$(VERSION)' --revision '$(REVISION)' --created $$SOURCE_DATE_EPOCH --sources $(CURDIR) --source $(SOURCE) \
		$(foreach platform,$(MOM_PLATFORMS),--built $(word 2,$(subst -, ,$(platform)))=$(MOM_RELEASE)/$(platform)) $(if $(KEY),--key '$(KEY)') --to $(BIN)/release
	@grep cascade-mom $(BIN)/release/checksums.txt

# DEMO=once ends when everything is ready.
DEMO ?=
.PHONY: demo
demo: build-demo ## the whole cascade on this machine
	$(BIN)/demo -bin $(BIN) $(if $(filter once,$(DEMO)),-once)

# --- a management cluster in one file ----------------------------------------

# What cascade-mom has within: managers of Cluster API and its providers, each unmodified and
# built from its module by itself, with what its own go.mod says.
MOM := $(BIN)/mom
mom-module = $$(cd mom/providers/$(1) && go mod download -json $(2) | sed -n 's/^\t"Dir": "\(.*\)",\{0,1\}$$/\1/p')

# 1: directory of the go.mod, 2: module, 3: package, 4: where the main module is in it
define mom-manager
@mkdir -p $(MOM)/programs
@echo "building $(3) of $(2)"
module=$(call mom-module,$(1),$(2)) && test -n "$$module" && copy=$$(mktemp -d) && trap 'chmod -R u+w $$copy; rm -rf $$copy' EXIT && \
	cp -r "$$module/." $$copy/ && chmod -R u+w $$copy && cd $$copy && \
	CGO_ENABLED=0 GOFLAGS="-trimpath -mod=mod" go build -p $(P) -ldflags "-s -w" -o $@ $(3)
endef

# 1: directory of the go.mod, 2: module, 3: files of it
define mom-manifests
@rm -rf $@ && mkdir -p $@
module=$(call mom-module,$(1),$(2)) && test -n "$$module" && for file in $(3); do cp $$module/$$file $@/; done && chmod -R u+w $@
@cp mom/providers/$(notdir $@)/provider.yaml $@/
endef

MOM_CAPI := mom/providers/cluster-api/go.mod mom/providers/cluster-api/go.sum
MOM_AWS := mom/providers/aws/go.mod mom/providers/aws/go.sum
MOM_AZURE := mom/providers/azure/go.mod mom/providers/azure/go.sum
MOM_ASO := mom/providers/aso/go.mod mom/providers/aso/go.sum

$(MOM)/programs/capi-manager: $(MOM_CAPI)
	$(call mom-manager,cluster-api,sigs.k8s.io/cluster-api,.)
$(MOM)/programs/kubeadm-bootstrap: $(MOM_CAPI)
	$(call mom-manager,cluster-api,sigs.k8s.io/cluster-api,./bootstrap/kubeadm)
$(MOM)/programs/kubeadm-control-plane: $(MOM_CAPI)
	$(call mom-manager,cluster-api,sigs.k8s.io/cluster-api,./controlplane/kubeadm)
$(MOM)/programs/capa-manager: $(MOM_AWS)
	$(call mom-manager,aws,sigs.k8s.io/cluster-api-provider-aws/v2,.)
$(MOM)/programs/capz-manager: $(MOM_AZURE)
	$(call mom-manager,azure,sigs.k8s.io/cluster-api-provider-azure,.)
# It has all of Azure's kinds in all of their versions: its source is 175 MB.
$(MOM)/programs/aso-controller: $(MOM_ASO)
	$(call mom-manager,aso,github.com/Azure/azure-service-operator/v2,./cmd/controller)
$(MOM)/programs/controlplane: $(shell git ls-files mom/controlplane 2>/dev/null | grep -v _test.go)
	@mkdir -p $(MOM)/programs
	cd mom/controlplane && $(STATIC) go build -p $(P) -ldflags "$(KUBE_LDFLAGS)" -o $@ .

$(MOM)/providers/cluster-api: $(MOM_CAPI) mom/providers/cluster-api/provider.yaml
	$(call mom-manifests,cluster-api,sigs.k8s.io/cluster-api,config/crd/bases/*.yaml config/webhook/manifests.yaml)
$(MOM)/providers/kubeadm-bootstrap: $(MOM_CAPI) mom/providers/kubeadm-bootstrap/provider.yaml
	$(call mom-manifests,cluster-api,sigs.k8s.io/cluster-api,bootstrap/kubeadm/config/crd/bases/*.yaml bootstrap/kubeadm/config/webhook/manifests.yaml)
$(MOM)/providers/kubeadm-control-plane: $(MOM_CAPI) mom/providers/kubeadm-control-plane/provider.yaml
	$(call mom-manifests,cluster-api,sigs.k8s.io/cluster-api,controlplane/kubeadm/config/crd/bases/*.yaml controlplane/kubeadm/config/webhook/manifests.yaml)
$(MOM)/providers/aws: $(MOM_AWS) mom/providers/aws/provider.yaml
	$(call mom-manifests,aws,sigs.k8s.io/cluster-api-provider-aws/v2,config/crd/bases/*.yaml config/webhook/manifests.yaml)
$(MOM)/providers/azure: $(MOM_AZURE) mom/providers/azure/provider.yaml
	$(call mom-manifests,azure,sigs.k8s.io/cluster-api-provider-azure,config/crd/bases/*.yaml config/webhook/manifests.yaml)
# The manifests of its webhooks are in no module, only the marks that they are made from. Of
# its groups, those of which the provider for Azure has definitions.
ASO_GROUPS := containerservice kubernetesconfiguration network resources
$(MOM)/providers/aso: $(MOM_AZURE) $(MOM_ASO) mom/providers/aso/provider.yaml | $(CONTROLLER_GEN)
	$(call mom-manifests,azure,sigs.k8s.io/cluster-api-provider-azure,config/aso/crds.yaml)
	module=$(call mom-module,aso,github.com/Azure/azure-service-operator/v2) && test -n "$$module" && copy=$$(mktemp -d) && trap 'chmod -R u+w $$copy; rm -rf $$copy' EXIT && \
		cp -r "$$module/." $$copy/ && chmod -R u+w $$copy && cd $$copy && \
		GOFLAGS=-mod=mod $(CONTROLLER_GEN) webhook $(ASO_GROUPS:%=paths=./api/%/...) output:webhook:dir=$@
$(MOM)/providers/local: $(wildcard e2e/local/config/crd/*.yaml) mom/providers/local/provider.yaml
	@rm -rf $@ && mkdir -p $@ && cp $^ $@/

# Providers of cascade-mom, each with its program; MOM_PROVIDERS leaves some out.
MOM_PROVIDERS ?= cluster-api:capi-manager kubeadm-bootstrap:kubeadm-bootstrap kubeadm-control-plane:kubeadm-control-plane aws:capa-manager azure:capz-manager aso:aso-controller
mom-names = $(foreach pair,$(1),$(firstword $(subst :, ,$(pair))))
mom-programs = $(foreach pair,$(1),$(lastword $(subst :, ,$(pair))))
# 1: pairs, 2: control plane, 3: where the programs are, 4: cascade, 5: where the manifests are
mom-embed = go run ./mom/pack -program controlplane=$(2) -program cascade=$(4) \
	$(foreach program,$(call mom-programs,$(1)),-program $(program)=$(3)/$(program)) $(foreach name,$(call mom-names,$(1)),-provider $(5)/$(name))
# 1: pairs, 2: control plane, 3: where the programs are, 4: what is built
mom-pack = $(call mom-embed,$(1),$(2),$(3),$(BIN)/cascade,$(MOM)/providers) && \
	$(STATIC) go build -p $(P) -tags $(TAGS) -ldflags "$(LDFLAGS)" -o $(4) ./cmd/cascade-mom

.PHONY: mom
mom: build $(MOM)/programs/controlplane $(addprefix $(MOM)/programs/,$(call mom-programs,$(MOM_PROVIDERS))) $(addprefix $(MOM)/providers/,$(call mom-names,$(MOM_PROVIDERS))) ## cascade-mom: a management cluster in one file, with the providers for AWS and Azure; the first time this takes an hour
	$(call mom-pack,$(MOM_PROVIDERS),$(MOM)/programs/controlplane,$(MOM)/programs,$(BIN)/cascade-mom)

LOCAL_PROVIDERS := cluster-api:capi-manager local:cascade-local
.PHONY: mom-local
mom-local: build $(BIN)/controlplane $(BIN)/cascade-local $(BIN)/capi-manager $(addprefix $(MOM)/providers/,$(call mom-names,$(LOCAL_PROVIDERS))) ## the same with the provider of the tests, small
	$(call mom-pack,$(LOCAL_PROVIDERS),$(BIN)/controlplane,$(BIN),$(BIN)/cascade-mom-local)

# --- checks -----------------------------------------------------------------

# The modules of the repository: the product's, that of the end-to-end tests, and that of
# releases. Those that only build other people's programs are below e2e/, too.
MODULES := . e2e deploy/release
PROGRAMS := mom/controlplane e2e/local
WEBHOOKS := e2e/webhooks e2e/webhooks/azure
NETWORK := e2e/network

# What is run besides Go: git with git-http-backend, an SSH client, a C compiler
# for the race detector.
.PHONY: prerequisites
prerequisites: ## installs what the tests need from Debian's packages, if it is missing
	@missing=""; \
	command -v cc >/dev/null || missing="$$missing gcc libc6-dev"; \
	command -v ssh >/dev/null || missing="$$missing openssh-client"; \
	test -x "$$(git --exec-path)/git-http-backend" || missing="$$missing git"; \
	test -z "$$missing" || { echo "installing$$missing"; apt-get update -q && apt-get install -qy --no-install-recommends $$missing; }

# In this order failures show early: what reads the sources, what runs without a
# control plane, and then the scenarios.
.PHONY: test
test: prerequisites ## what must be green before anything lands: lint, generated, units, and the scenarios that e2e/scenarios.txt marks
	$(MAKE) lint
	$(MAKE) generated
	$(MAKE) unit
	$(MAKE) landing

.PHONY: test-all
test-all: prerequisites ## everything but the long forms
	$(MAKE) lint
	$(MAKE) generated
	$(MAKE) unit
	for module in $(WEBHOOKS); do go vet -C $$module ./...; done
	$(STATIC) go vet -C $(NETWORK) ./...
	$(MAKE) test-controlplane
	$(MAKE) test-local
	$(MAKE) image-reproducible
	$(MAKE) e2e
	$(MAKE) e2e-nodes
	$(MAKE) e2e-mom-clouds

# go test does not see what the tests of the charts and of releases read outside of their
# module: their result is never taken from its cache.
.PHONY: unit
unit: ## tests without a control plane, those of the product and of e2e/ under the race detector
	go test -p $(P) -race -timeout 20m ./...
	go test -C e2e -p $(P) -race -timeout 20m $$(cd e2e && go list ./... | grep -v -e '/e2e/charts$$' -e '/e2e/nodes$$' -e '/e2e/momclouds$$' $(SUITES:%=-e '/e2e/%$$'))
	go test -C e2e -p $(P) -race -timeout 20m -count=1 ./charts
	$(STATIC) go test -C deploy/release -p $(P) -tags $(TAGS) -timeout 20m -count=1 ./...

# Each fuzz target runs for FUZZTIME. What they find is kept below testdata/fuzz.
FUZZTIME ?= 2m
.PHONY: fuzz
fuzz: ## all fuzz targets, FUZZTIME each
	@grep -lE '^func Fuzz' $$(git ls-files '*_test.go') | while read -r file; do \
		for target in $$(sed -nE 's/^func (Fuzz[A-Za-z0-9_]*)\(.*/\1/p' $$file); do \
			echo "$$(dirname $$file): $$target"; \
			(cd $$(dirname $$file) && go test -p $(P) . -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) -parallel $(P)); \
		done; \
	done

.PHONY: race
race: ## the agent with the race detector, for the e2e tests
	@mkdir -p $(BIN)/race
	go build -race -p $(P) -tags $(TAGS) -o $(BIN)/race/cascade ./cmd/cascade

# A suite is a directory with a file main_test.go. make e2e SUITES=flux RUN=TestSync
# runs one test.
SUITES ?= $(patsubst e2e/%/main_test.go,%,$(wildcard e2e/*/main_test.go))
RUN ?=
RUN_SUITES = $(STATIC) go build -C e2e -p $(P) -o $(BIN)/suites-runner ./suites && $(BIN)/suites-runner -p $(P)

.PHONY: landing
landing: build-landing race ## the scenarios of make test
	$(RUN_SUITES) -landing -names $(BIN)/landing.txt

# A real browser, and axe-core, which looks in it for what keeps people from using a page.
AXE_VERSION := 4.14.1
AXE_SHA512 := FHfa+lmNjQZfJz1q8wKqIDwC6DExcHt/pkjNQb09a3NPjCKg2rhu5qb2S4r76ASyFNNtuFooJpZe37OgudVGtQ==
.PHONY: prerequisites-browser
prerequisites-browser: prerequisites $(BIN)/axe.min.js ## installs what the browser's tests need from Debian's packages and npm, if it is missing
	@command -v chromium >/dev/null || { apt-get update -q && apt-get install -qy --no-install-recommends chromium fonts-dejavu-core; }

$(BIN)/axe.min.js:
	@mkdir -p $(BIN)
	@command -v npm >/dev/null || { apt-get update -q && apt-get install -qy --no-install-recommends npm; }
	@dir=$$(mktemp -d) && trap 'rm -rf "$$dir"' EXIT && (cd "$$dir" && npm pack --silent axe-core@$(AXE_VERSION) >/dev/null) && \
	test "$$(openssl dgst -sha512 -binary "$$dir/axe-core-$(AXE_VERSION).tgz" | base64 -w0)" = "$(AXE_SHA512)" || { echo "axe-core $(AXE_VERSION) is not what it should be"; exit 1; } && \
	tar -xzOf "$$dir/axe-core-$(AXE_VERSION).tgz" package/axe.min.js >$@.new && mv $@.new $@

.PHONY: e2e
e2e: build-e2e race prerequisites-prometheus prerequisites-browser ## all scenarios on real control planes, agents under the race detector
	$(RUN_SUITES) -names $(BIN)/tests.txt -run '$(RUN)' $(SUITES)

# Real nodes: kubelet, containerd and kube-proxy in namespaces of this machine, which they do not leave. It runs by itself,
# and nothing else makes or needs what it does.
.PHONY: prerequisites-nodes
prerequisites-nodes: prerequisites ## installs what real nodes need from Debian's packages, if it is missing
	@missing=""; \
	command -v containerd >/dev/null || missing="$$missing containerd"; \
	command -v runc >/dev/null || missing="$$missing runc"; \
	command -v iptables >/dev/null || missing="$$missing iptables"; \
	command -v ip >/dev/null || missing="$$missing iproute2"; \
	test -z "$$missing" || { echo "installing$$missing"; test "$$(id -u)" = 0 || { echo "e2e-nodes needs root"; exit 1; }; \
		apt-get update -q && apt-get install -qy --no-install-recommends $$missing; }

.PHONY: prerequisites-prometheus
prerequisites-prometheus: ## installs Debian's Prometheus, if it is missing; a scenario and the demo run it
	@command -v prometheus >/dev/null || { echo "installing prometheus"; test "$$(id -u)" = 0 || { echo "prerequisites-prometheus needs root"; exit 1; }; \
		apt-get update -q && apt-get install -qy --no-install-recommends prometheus; }

.PHONY: e2e-nodes
e2e-nodes: prerequisites-nodes build image $(BIN)/controlplane $(BIN)/kubelet $(BIN)/coredns $(BIN)/cni $(BIN)/images/cert-manager $(BIN)/images/cluster-api $(BIN)/components/nodes ## the image on real nodes: kubelet, containerd and a network for pods; needs root
	$(STATIC) go build -C e2e -p $(P) -o $(BIN)/ ./nodes/waiter
	$(STATIC) go test -C e2e -p $(P) -count=1 -timeout 20m -v ./nodes

.PHONY: e2e-mom-clouds
e2e-mom-clouds: mom ## the managers for AWS and Azure under cascade-mom, whose clouds are recorders on loopback
	$(STATIC) go test -C e2e -p $(P) -count=1 -timeout 20m -v ./momclouds

# The names of all tests, of the units as go test lists them, and of the scenarios as
# the last make test-all ran them. make test-names OLD=list compares them with a list
# of another commit: a test that is not there any more must be in the file of renames.
.PHONY: test-names
test-names: ## the names of all tests, in bin/test-names.txt
	@test -f $(BIN)/tests.txt || { echo "run: make test-all"; exit 1; }
	for module in $(MODULES); do go test -C $$module -p $(P) -race -list . ./...; done > $(BIN)/test-names.txt
	cat $(BIN)/tests.txt >> $(BIN)/test-names.txt
	$(if $(OLD),go run -C e2e ./suites compare -renamed testdata/renamed-tests.txt $(abspath $(OLD)) $(BIN)/test-names.txt)

# The long forms of tests that `make test-all` runs in short. How often they do what
# they do, a variable says: make rotation CASCADE_ROTATIONS=600.
LONG = go test -C e2e -race -count=1 -timeout 60m -v

.PHONY: rotation
rotation: export CASCADE_ROTATIONS ?= 60
rotation: build-e2e race ## a kubeconfig that is replaced every 10 s for 10 minutes, under load
	$(LONG) -run '^TestRemote$$/^Rotation$$' ./children

.PHONY: recreation
recreation: export CASCADE_RECREATIONS ?= 50
recreation: build-e2e race ## 50 clusters, one after the other, of one name
	$(LONG) -run '^TestRemote$$/^Recreation$$' ./children

.PHONY: deletion
deletion: export CASCADE_DELETIONS ?= 100
deletion: build-e2e race ## 100 clusters that are deleted in the middle of a push, half of them dead
	$(LONG) -run '^TestRemote$$/^Deletion$$' ./children

.PHONY: pivot
pivot: export CASCADE_PIVOT_KILLS ?= 320
pivot: build-e2e race ## Clusters that are moved there and back, killed at 320 requests, with controllers and without
	go test -count=1 -timeout 60m -v ./pivot
	$(LONG) -timeout 120m -run '^(TestPivot|TestKinds)$$' ./pivot

.PHONY: leak
leak: export CASCADE_LEAK_ROTATIONS ?= 1000
leak: build-e2e race ## the size of an agent before and after 1000 rotations
	$(LONG) -run '^TestRotationLeak$$' ./children

# A lease of a minute for half an hour: the first tier goes after five minutes, Vault is down for ten of the rest.
.PHONY: credentials
credentials: export CASCADE_CREDENTIALS_FOR ?= 30m
credentials: export CASCADE_CREDENTIAL_LEASE ?= 60s
credentials: export CASCADE_CREDENTIALS_DOWN ?= 10m
credentials: build-e2e race ## credentials that a real Vault leases for a minute, in three tiers, for half an hour
	$(LONG) -timeout 90m -run '^TestCredentials$$' ./credentials

.PHONY: lockdown
lockdown: export CASCADE_LOCKDOWN_FOR ?= 30m
lockdown: build-e2e race ## a fleet whose agents have the roles of a lockdown, under commits for 30 minutes; each request is held against the roles
	$(LONG) -run '^TestFleetUnderLockdown$$' ./fleet

# CASCADE_KILLS=N does N kills of each scenario.
.PHONY: kill
kill: export CASCADE_KILLS ?= all
kill: build-e2e race ## an agent, and a restore, that are killed before and after each of their requests; the table of docs/safety.md
	$(LONG) -timeout 90m -run '^TestKill$$' ./faults
	$(LONG) -timeout 60m -run '^TestSavedState$$' ./state

.PHONY: faults
faults: export CASCADE_FAULTS_FOR ?= 10m
faults: build-e2e race ## an API server that fails a fifth of all requests for 10 minutes
	$(LONG) -run '^TestFaultyServer$$' ./faults

# The agent is the one that is shipped, without the race detector. CASCADE_HOSTILE_ONLY
# takes those whose names begin as it says: chart,registry-realm. CASCADE_HOSTILE=all
# takes all, twice as many.
.PHONY: hostile
hostile: export CASCADE_HOSTILE ?= half
hostile: build-e2e ## hundreds of hostile tenants beside twenty good ones, and an agent with a limit of 1 GiB; the table of docs/security.md
	go test -C e2e -count=1 -timeout 60m -v -run '^TestHostileTenants$$' ./hostile

# The agent is the one that is shipped, without the race detector. The machine has to be quiet.
.PHONY: pushes
pushes: export CASCADE_PUSHES ?= 200
pushes: build-e2e ## from a webhook to the object, 200 times: beside a thousand Kustomizations, beside ten thousand forged requests, and through three tiers
	go test -C e2e -count=1 -timeout 30m -v -run '^TestPushes$$' ./notifications
	go test -C e2e -count=1 -timeout 30m -v -run '^TestFleet$$/^(EveryTierIsReady|PushReachesEveryTenant)$$' ./fleet

# CASCADE_ARMOUR_SEED repeats a walk.
OPERATIONS ?= 2000
.PHONY: armour
armour: build-e2e race ## a long random walk through what people and faults do to a fleet in Git
	CASCADE_ARMOUR_OPERATIONS=$(OPERATIONS) $(LONG) -timeout 120m -run '^TestArmour$$' ./safety

# CASCADE_HANDOVER_SEED repeats a walk.
.PHONY: handover
handover: build-e2e race ## a long random walk of objects between owners
	CASCADE_HANDOVER_OPERATIONS=$(OPERATIONS) $(LONG) -timeout 60m -run '^TestHandOverWalk$$' ./safety

.PHONY: rollouts
rollouts: export CASCADE_ROLLOUT_HISTORIES ?= 100000
rollouts: ## a hundred thousand random lives of Rollouts, each decision held against what must be
	go test -count=1 -timeout 60m -v -run '^TestHistories$$' ./remote/rollout

.PHONY: test-controlplane
test-controlplane: $(BIN)/controlplane ## the control plane of the tests
	cd mom/controlplane && CONTROLPLANE_BIN=$(BIN)/controlplane go test -p $(P) -timeout 15m ./...

.PHONY: test-local
test-local: build-demo ## the local provider and its nodes
	cd e2e/local && CONTROLPLANE_BIN=$(BIN)/controlplane go test -race -p $(P) -timeout 20m ./...

# Programs that check are built once, for their version.
STATICCHECK := $(BIN)/staticcheck-v0.8.2
CONTROLLER_GEN := $(BIN)/controller-gen-v0.21.0
GOVULNCHECK := $(BIN)/govulncheck-v1.9.0

$(STATICCHECK):
	GOBIN=$(BIN) go install honnef.co/go/tools/cmd/staticcheck@v0.8.2
	mv $(BIN)/staticcheck $@

$(CONTROLLER_GEN):
	GOBIN=$(BIN) go install sigs.k8s.io/controller-tools/cmd/controller-gen@v0.21.0
	mv $(BIN)/controller-gen $@

$(GOVULNCHECK):
	GOBIN=$(BIN) go install golang.org/x/vuln/cmd/govulncheck@v1.9.0
	mv $(BIN)/govulncheck $@

# Without a network this takes a few seconds, and nothing is built for it. GOVULNDB may
# name a copy of the database: file:///directory.
export GOVULNDB ?= https://vuln.go.dev
.PHONY: vulnerabilities
vulnerabilities: ## known vulnerabilities in what the product and its releases call
	@why=$$($(STATIC) go run -C deploy/release ./vulndb "$$GOVULNDB"); if [ -n "$$why" ]; then echo "$$why"; else \
		$(MAKE) $(GOVULNCHECK) && $(STATIC) $(GOVULNCHECK) -db "$$GOVULNDB" -tags $(TAGS) ./cmd/... && \
		$(STATIC) $(GOVULNCHECK) -db "$$GOVULNDB" -C deploy/release ./...; fi

.PHONY: lint
lint: vulnerabilities $(STATICCHECK) ## known vulnerabilities, formatting, vet and staticcheck
	@unformatted=$$(gofmt -l $$(git ls-files '*.go')); test -z "$$unformatted" || { echo "not formatted: $$unformatted"; exit 1; }
	for module in $(MODULES); do $(STATIC) go vet -C $$module ./... && (cd $$module && $(STATIC) $(STATICCHECK) ./...); done
	for module in $(PROGRAMS); do go vet -C $$module ./...; done

.PHONY: generate
generate: $(CONTROLLER_GEN) ## CRDs, deepcopy functions, and what the agent's chart and base have of the manifests
	$(CONTROLLER_GEN) object paths=./api/... crd paths=./api/... output:crd:dir=deploy/crds
	go test ./deploy -run '^TestCopies$$' -update

.PHONY: generated
generated: $(CONTROLLER_GEN) ## fails if what is checked in is not what generate makes
	@dir=$$(mktemp -d) && trap 'rm -rf $$dir' EXIT && \
		$(CONTROLLER_GEN) crd object paths=./api/... output:crd:dir=$$dir/crds output:object:dir=$$dir/api && \
		for f in $$dir/crds/*.yaml; do diff -u deploy/crds/$$(basename $$f) $$f || { echo "run: make generate"; exit 1; }; done && \
		diff -u api/v1alpha1/zz_generated.deepcopy.go $$dir/api/zz_generated.deepcopy.go || { echo "run: make generate"; exit 1; }

.PHONY: bench
bench: build $(BIN)/controlplane ## the cost of syncs, commits, drift, releases and idling; docs/performance.md explains the table
	$(STATIC) go build -C e2e -p $(P) -o $(BIN)/bench ./bench
	$(BIN)/bench -bin $(BIN) -json $(BIN)/bench.json

# CHILDREN and LARGE are sizes; with CHILDREN=100 LARGE=0 it takes a few minutes. ROLLOUT is that of
# a fleet over which a Rollout brings commits: CHILDREN=0 LARGE=0 ROLLOUT=1000 measures that alone.
# TOLD is that of a fleet that is told of a push, and then fails for one cause.
CHILDREN ?= 1000
LARGE ?= 5000
ROLLOUT ?= 0
TOLD ?= 0
.PHONY: bench-fleet
bench-fleet: build $(BIN)/controlplane $(BIN)/capi-manager $(BIN)/components/local ## what a tier with many children costs, simulated; docs/performance.md explains the table
	$(STATIC) go build -C e2e -p $(P) -o $(BIN)/fleetsim ./fleetsim/cmd
	$(STATIC) go build -C e2e -p $(P) -o $(BIN)/fleetbench ./fleetbench
	ulimit -n $$(ulimit -Hn) && $(BIN)/fleetbench -bin $(BIN) -children $(CHILDREN) -large $(LARGE) -rollout $(ROLLOUT) -told $(TOLD) -json $(BIN)/fleetbench.json

.PHONY: bench-demo
bench-demo: build-demo ## size and idle cost of the agents of the demo's fleet
	$(BIN)/demo -bin $(BIN) -once -measure 60s

.PHONY: help
help:
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | sort | column -t -s $$'\t'
