# LO|FA|MO: every target does its own set-up. Tools are built into .tools/, which git ignores.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := build

# -trimpath keeps the directory's path out of build results, so Go's cache also serves other clones: only changed packages are rebuilt.
export GOFLAGS := $(shell go env GOFLAGS) -trimpath

TOOLS := $(CURDIR)/.tools
GOLANGCI_LINT_VERSION := v2.15.0
GOVULNCHECK_VERSION := v1.8.0
PROTOC_GEN_GO_VERSION := v1.36.12
PROTOC_GEN_GO_GRPC_VERSION := v1.6.2
BUF_VERSION := 1.75.0
NFPM_VERSION := v2.43.0
HELM_VERSION := v4.3.1
KO_VERSION := v0.19.1
GRPCURL_VERSION := v1.9.3

VERSION := $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
LDFLAGS := -s -w -X github.com/lofamo/lofamo/internal/program.version=$(VERSION)
# Our programs. grpcnotrace leaves out gRPC's trace pages: their templates call methods by name, so the linker had to keep every method. Without
# a libc, one package runs on every distribution. Together, the three processes of a node take 5 MB less.
BUILD := CGO_ENABLED=0 go build -trimpath -tags grpcnotrace -ldflags '$(LDFLAGS)'
# A test that hangs is a failure with stacks, not a wait.
TEST_TIMEOUT := 30m
# The same at idle priority, where the other tests decide how long it takes.
IDLE_TIMEOUT := 90m

.PHONY: build
build: web ## binaries in bin/, with the page for browsers where there is npm
	rm -f bin/supervisor
	$(BUILD) -o bin/ ./cmd/...
	ln -s lofamo-supervisor bin/supervisor # its former name

# The page for browsers. Without npm, or with one that is too old, everything else is built, and the page says what is missing.
PAGE := internal/supervisor/web/dist/app
.PHONY: web
web: ## the page for browsers, into the folder that the supervisors embed
	@if ! command -v npm >/dev/null; then echo "no npm: built without the page for browsers"; \
	elif ! node web/engines.mjs; then echo "built without the page for browsers"; \
	else $(MAKE) --no-print-directory $(PAGE)/index.html; fi

web/node_modules/.package-lock.json: web/package.json web/package-lock.json
	cd web && npm ci --loglevel=error --fetch-retries=5
	@touch $@

$(PAGE)/index.html: web/node_modules/.package-lock.json web/index.html web/vite.config.ts web/tsconfig.json $(shell find web/src -type f 2>/dev/null)
	cd web && npm run --silent build

.PHONY: packages
packages: web $(TOOLS)/bin/nfpm-$(NFPM_VERSION) ## deb and rpm packages in bin/packages: see docs/install.md
	$(BUILD) -o bin/static/ ./cmd/...
	rm -rf bin/packages
	deploy/packages/build $(TOOLS)/bin/nfpm-$(NFPM_VERSION) bin/static bin/packages $(VERSION)

# Versions come from git: a release is a tag vX.Y.Z, with its section in CHANGELOG.md. docs/releases.md has the steps.
.PHONY: release
release: web $(TOOLS)/bin/nfpm-$(NFPM_VERSION) $(TOOLS)/bin/helm-$(HELM_VERSION) ## programs, packages, chart, bills of materials and checksums in dist/
	hack/release $(TOOLS)/bin/nfpm-$(NFPM_VERSION) $(TOOLS)/bin/helm-$(HELM_VERSION) dist $(VERSION)

# The chart's images, by ko: no container engine, no shell in them. REGISTRY is where they go, with the path before the name; BASE the image that they are made on: a static one
# that has certificates and users and nothing else. With TARBALL they go into that file in the place of a registry.
.PHONY: images
images: web $(TOOLS)/bin/ko-$(KO_VERSION) ## images of agent, supervisor, lofamoctl and executor: make images REGISTRY=registry.example.org/lofamo BASE=registry.example.org/static
	@test -n "$(REGISTRY)" -a -n "$(BASE)" || { echo "REGISTRY or BASE is missing: make images REGISTRY=registry.example.org/lofamo BASE=registry.example.org/static"; exit 1; }
	KO_DOCKER_REPO=$(REGISTRY) KO_DEFAULTBASEIMAGE=$(BASE) VERSION=$(VERSION) $(TOOLS)/bin/ko-$(KO_VERSION) build --base-import-paths --tags $(VERSION) --platform $${PLATFORM:-linux/amd64,linux/arm64} \
	  $(if $(TARBALL),--push=false --tarball=$(TARBALL)) ./cmd/lofamo-agent ./cmd/lofamo-supervisor ./cmd/supervisor ./cmd/lofamoctl ./cmd/lofamo-executor
	@echo "the chart's settings for these images: --set images.registry=$(REGISTRY) --set-string images.tag=$(VERSION)"

.PHONY: demo
demo: build ## a 2x2x2 cluster here: kill a host half, see it named, heal it, stop
	hack/demo

# Virtual machines without KVM, from Debian's kernel: hack/vm. They need qemu-system-x86, kmod, cpio, e2fsprogs, iproute2, gcc, make and
# smartmontools (hack/setup-tests).
VM := $(TOOLS)/vm
.PHONY: vm vm-test vm-sensors vm-campaign vm-ring
vm: ## the image of virtual machines in .tools/vm, and the programs that run in them: 1 minute
	hack/vm/build $(VM)/image
	$(BUILD) -o $(VM)/bin/ ./cmd/lofamo-agent ./cmd/lofamo-supervisor ./cmd/lofamoctl
vm-test: ## kernels of nodes panic, lock up, lose power, reboot and are cut off, in virtual machines, one node with two kernels: 5 minutes
	@hack/vm/able || { [ $$? = 1 ] && exit 0; exit 1; }; $(MAKE) --no-print-directory vm && \
	  { timeout --kill-after=20 600 hack/vm/test $(VM)/image $(VM)/bin || \
	    { code=$$?; [ $$code != 124 ] || echo "make vm-test: not within 600 s" >&2; exit $$code; }; }
vm-sensors: ## real parts of a node fail in virtual machines, row by row of Table II: 5 minutes
	@hack/vm/able || { [ $$? = 1 ] && exit 0; exit 1; }; $(MAKE) --no-print-directory vm && hack/vm/sensors $(VM)/image $(VM)/bin
vm-campaign: ## random deaths of kernels in virtual machines against ground truth, ROUNDS of them (20): make vm-campaign ROUNDS=200 SEED=1
	@hack/vm/able || { [ $$? = 1 ] && exit 0; exit 1; }; $(MAKE) --no-print-directory vm && cd bench && \
	  go run ./cmd/lofamo-deaths -image $(VM)/image -bin $(VM)/bin -rounds $${ROUNDS:-20} -seed $${SEED:-0} $(CAMPAIGN_FLAGS)
vm-ring: ## a ring of virtual machines on loopback for a person, until Ctrl-C: make vm-ring RING_FLAGS='-nodes 4 -cards'
	@hack/vm/able || { [ $$? = 1 ] && exit 0; exit 1; }; $(MAKE) --no-print-directory vm && cd bench && \
	  go run ./cmd/lofamo-deaths -play -image $(VM)/image -bin $(VM)/bin $(RING_FLAGS)

.PHONY: newcomer
newcomer: ## a fresh clone and the README's commands up to the map, timed
	hack/newcomer

# ALONE lists packages whose tests time real halves, supervisors and clusters; tests beside them would slow these down. e2e runs by itself,
# with E2E_PARALLEL clusters at a time. The others run two at a time, after the browser test and the benchmarks' module, which run together
# because both mostly wait. All other packages run two at a time, beside CHARTS and then the tests with tags. More at a time are no faster,
# and where system calls are slow they miss their deadlines.
ALONE := ./internal/supervisor ./cmd/lofamo-supervisor ./cmd/lofamo-agent \
  ./internal/agent/{actions,bundle,daemon,dnp,half,host,integration,local,mailbox} ./internal/sdnotify \
  ./internal/campaign/inject ./internal/e2e ./internal/cluster/... ./internal/testing/netlab
E2E := ./internal/e2e
E2E_PARALLEL := 2

# PURE are packages of thousands of virtual worlds, some of them played side by side: the race detector has little to find there,
# and makes them eight times slower. So it sees only -short of them, and without it they are tested whole.
PURE := ./internal/sim ./internal/sim/hostile ./internal/agent/storage ./pkg/servicenet ./pkg/torus/express
# WORLDS are the longest tests of PURE that play one world at a time, in one goroutine. The run with the race detector leaves them out.
WORLDS := ^Test(FaultsBeforeTheFirstReport|IncidentsEqualInjectedFaults|NextLeaderWaitsForLinkToAnotherPeer|DeathAfterMoveIsNamedInTime)$$

# SINGLE are packages of one goroutine, tests included, as internal/archtest checks: the race detector can find nothing there.
SINGLE := ./internal/agent/dnp/dnpcore ./internal/archtest ./pkg/awareness ./pkg/selftest ./pkg/torus/grid ./pkg/torus/procedure ./pkg/torus/routing

# SLOW lists slow packages among all other packages. test-rest starts them first, so that none of them still runs alone at the end.
SLOW := ./internal/executor/kubernetes ./internal/ctl

# CHARTS is the slowest of the other packages. It mostly waits: nine pods on real kubelets start, end and start again, one after the other, at
# preset relaxed.
CHARTS := ./internal/testing/charttest

# UNTAGGED are tests without failpoints, whose names are like those of tests with them: they are not run twice.
UNTAGGED := LeadersAreKilled|PausedServer|WindowOfOldLeaders

# The programs that tests run, besides Debian's. Where one cannot be built, its tests are skipped.
TEST_TOOLS := $(TOOLS)/bin/nfpm-$(NFPM_VERSION) $(TOOLS)/bin/helm-$(HELM_VERSION) $(TOOLS)/bin/govulncheck-$(GOVULNCHECK_VERSION) \
  $(TOOLS)/bin/grpcurl-$(GRPCURL_VERSION) kube
# SKIPPED lists the tests that this machine could not run.
SKIPPED := $(TOOLS)/skipped

.PHONY: setup-tests
setup-tests: ## what the tests want: Debian packages where root has apt, Helm, nfpm and Kubernetes from source: 10 to 20 minutes, once
	@hack/setup-tests
	@for tool in $(TEST_TOOLS); do \
	  $(MAKE) --no-print-directory $$tool || printf '\n*** %s cannot be built: the tests that want it are SKIPPED\n\n' $${tool##*/} >&2; done

# -trimpath keeps the source directory out of compiled packages, so another clone reuses them from the build cache.
test test-%: export GOFLAGS := $(GOFLAGS) -trimpath
# Without a value, every program with the race detector would wait a second before it ends. ?= keeps the value that hack/races exports.
test test-%: export GORACE ?= atexit_sleep_ms=50
test test-%: export LOFAMO_HELM := $(TOOLS)/bin/helm-$(HELM_VERSION)
test test-%: export LOFAMO_NFPM := $(TOOLS)/bin/nfpm-$(NFPM_VERSION)
test test-%: export LOFAMO_GOVULNCHECK := $(TOOLS)/bin/govulncheck-$(GOVULNCHECK_VERSION)
test test-%: export LOFAMO_GRPCURL := $(TOOLS)/bin/grpcurl-$(GRPCURL_VERSION)
test test-%: export LOFAMO_KUBE_DIR := $(TOOLS)/kube

# BESIDE are the targets that run on the time that tests with deadlines leave the cores.
BESIDE := test-pure
.PHONY: test
test: export LOFAMO_SKIPPED := $(SKIPPED)
test: setup-tests ## all tests, with the race detector and real processes
	@$(MAKE) --no-print-directory build # npm is here only now
	@mkdir -p $(TOOLS) && : >$(SKIPPED)
	@$(MAKE) --no-print-directory test-compile
	hack/races hack/beside "$(MAKE) --no-print-directory -j2 -O $(BESIDE)" -- $(MAKE) --no-print-directory test-others test-alone test-e2e
	@if [ -s $(SKIPPED) ]; then printf '\n*** %d tests SKIPPED, for want of:\n' $$(sort -u $(SKIPPED) | wc -l); \
	  sort -u $(SKIPPED) | sed 's/^[^:]*: //' | sort | uniq -c | sort -rn; printf '*** which tests: %s\n' $(SKIPPED); fi

.PHONY: test-compile test-pure test-others test-charts test-rest test-kubelet test-alone test-browser test-bench test-e2e test-tagged
test-compile: # all tests in advance: on a new machine, compilers would take processor time from tests with deadlines for minutes
	@echo "compiling the tests: up to 10 minutes on a new machine"
	@go list -race -test -export ./... >/dev/null
	@cd bench && go list -test -export ./... >/dev/null
test-pure:
	go test -race -short -count=1 -p 2 -timeout $(IDLE_TIMEOUT) -skip '$(WORLDS)' $(PURE)
	go test -count=1 -p 2 -timeout $(IDLE_TIMEOUT) $(PURE) $(SINGLE)
	cd papers && go test -count=1 -timeout $(IDLE_TIMEOUT) ./...
test-others: # all but ALONE and PURE
	@$(MAKE) --no-print-directory -j2 -O test-charts test-rest test-tagged
test-charts:
	LOFAMO_BIN_DIR=$(CURDIR)/bin go test -race -count=1 -timeout $(TEST_TIMEOUT) $(CHARTS)
test-rest:
	LOFAMO_BIN_DIR=$(CURDIR)/bin go test -race -count=1 -p 2 -timeout $(TEST_TIMEOUT) \
	  $(SLOW) $$(go list ./... | grep -vxFf <(go list $(ALONE) $(PURE) $(SINGLE) $(CHARTS) $(SLOW)))
test-kubelet: # the part of CHARTS that runs and upgrades the chart on kubelets
	LOFAMO_BIN_DIR=$(CURDIR)/bin go test -race -count=1 -timeout $(TEST_TIMEOUT) -run '^TestKubelets' $(CHARTS)
test-alone:
	@$(MAKE) --no-print-directory -j2 -O test-browser test-bench
	go test -count=1 -timeout $(TEST_TIMEOUT) -tags lofamo_failpoint -run SealCovers ./internal/agent/half
	LOFAMO_BIN_DIR=$(CURDIR)/bin go test -race -count=1 -p 2 -timeout $(TEST_TIMEOUT) $$(go list $(ALONE) | grep -vxFf <(go list $(E2E)))
test-browser:
	go test -count=1 -timeout $(TEST_TIMEOUT) -run TestBrowser ./internal/supervisor
test-bench:
	cd bench && LOFAMO_BIN_DIR=$(CURDIR)/bin go test -count=1 -p 2 -timeout $(TEST_TIMEOUT) ./...
test-e2e:
	LOFAMO_BIN_DIR=$(CURDIR)/bin go test -race -count=1 -parallel $(E2E_PARALLEL) -timeout $(TEST_TIMEOUT) $(E2E)
test-tagged: # failpoints
	go test -count=1 -timeout $(TEST_TIMEOUT) -tags lofamo_failpoint ./internal/failpoint
	go test -count=1 -p 2 -timeout $(TEST_TIMEOUT) -tags lofamo_failpoint -run 'Killed|Paused|Window|AtEveryStep' -skip '$(UNTAGGED)' ./internal/executor/{kubernetes,process,node,alertmanager,webhook}

# LONG are packages that test-short leaves out, besides ALONE: clusters of etcd, API servers, installed packages, thousands of virtual worlds.
LONG := ./internal/campaign ./internal/testing/charttest ./internal/inventory ./internal/testing/packagetest ./internal/sim/... ./internal/executor/kubernetes

.PHONY: test-short
test-short: ## the tests of a change while it grows: no root, no set-up, 3 minutes at most; unchanged packages have their results from Go's cache
	env -u CI go test -short -timeout 3m $$(go list ./... | grep -vxFf <(go list $(ALONE) $(LONG)))

# Kubernetes, for the tests and benchmarks that use a real one. Its version is in hack/kube/go.mod.
.PHONY: kube
kube: ## API server, controller manager, scheduler, kubelet and etcd in .tools/kube, from source: 7 to 10 minutes, once
	hack/kube/build $(TOOLS)/kube

.PHONY: check
check: check-format check-vet check-lint check-generate check-arch check-vuln ## everything but the tests

.PHONY: check-format
check-format:
	@out=$$(gofmt -l cmd internal pkg api bench papers examples); test -z "$$out" || { echo "not formatted:" $$out; exit 1; }
	@for module in . bench papers; do \
	  out=$$(cd $$module && go fix -diff ./...) && test -z "$$out" || { echo "$$out"; echo "go fix has something to say about $$module"; exit 1; }; done

.PHONY: check-vet
check-vet:
	go vet ./...
	go vet -tags lofamo_failpoint ./internal/failpoint ./internal/agent/... ./internal/executor/...
	go vet -tags lofamo_ordertest ./pkg/order/... ./cmd/lofamo-supervisor ./cmd/lofamo-agent
	cd bench && go vet ./...
	cd papers && go vet ./...

.PHONY: check-lint
check-lint: $(TOOLS)/bin/golangci-lint-$(GOLANGCI_LINT_VERSION)
	$(TOOLS)/bin/golangci-lint-$(GOLANGCI_LINT_VERSION) run ./...
	cd bench && $(TOOLS)/bin/golangci-lint-$(GOLANGCI_LINT_VERSION) run ./...
	cd papers && $(TOOLS)/bin/golangci-lint-$(GOLANGCI_LINT_VERSION) run ./...

GENERATED := api docs/api.md docs/metrics.md docs/configuration.md deploy/config deploy/grafana helm
.PHONY: check-generate
check-generate: generate
	@git diff --exit-code --stat -- $(GENERATED) || { echo "generated files are not current: run make generate and commit"; exit 1; }
	@new=$$(git ls-files --others --exclude-standard -- $(GENERATED)); test -z "$$new" || { echo "generated files are not in the repository:" $$new; exit 1; }

.PHONY: check-arch
check-arch:
	go test ./internal/archtest

.PHONY: check-vuln
check-vuln: $(TOOLS)/bin/govulncheck-$(GOVULNCHECK_VERSION)
	hack/vulncheck $(TOOLS)/bin/govulncheck-$(GOVULNCHECK_VERSION)

.PHONY: generate
generate: $(TOOLS)/bin/protoc-gen-go-$(PROTOC_GEN_GO_VERSION) $(TOOLS)/bin/protoc-gen-go-grpc-$(PROTOC_GEN_GO_GRPC_VERSION) $(TOOLS)/buf-$(BUF_VERSION)/buf ## code from the .proto files, configuration reference and default files from the structs, docs/metrics.md, docs/api.md, the chart's copies
	ln -sf protoc-gen-go-$(PROTOC_GEN_GO_VERSION) $(TOOLS)/bin/protoc-gen-go
	ln -sf protoc-gen-go-grpc-$(PROTOC_GEN_GO_GRPC_VERSION) $(TOOLS)/bin/protoc-gen-go-grpc
	$(TOOLS)/buf-$(BUF_VERSION)/buf lint
	PATH=$(TOOLS)/bin:$$PATH $(TOOLS)/buf-$(BUF_VERSION)/buf generate
	go run ./internal/metricsdoc/gen > $(TOOLS)/metrics.md
	cp $(TOOLS)/metrics.md docs/metrics.md
	go run ./internal/configdoc/generate
	go run ./internal/dashboards/generate
	$(TOOLS)/buf-$(BUF_VERSION)/buf build -o -#format=binpb | go run ./internal/apidoc/generate > $(TOOLS)/api.md
	cp $(TOOLS)/api.md docs/api.md
	hack/chart-files

# With GRAFANA=folder of an unpacked Grafana release, its dashboards too.
.PHONY: screenshots
screenshots: build ## pictures of the fault map in docs/images, of a live cluster with three faults: wants chromium
	hack/screenshots docs/images

.PHONY: bench
bench: build ## the published figures, on this machine: about 75 minutes; BENCH_FLAGS to narrow
	cd bench && LOFAMO_BIN_DIR=$(CURDIR)/bin go run ./cmd/lofamo-bench $(BENCH_FLAGS)

# The short form compares without consul unless its program exists, and leaves docs/compare.md alone.
.PHONY: compare
compare: export LOFAMO_BIN_DIR := $(CURDIR)/bin
compare: export LOFAMO_KUBE_DIR := $(TOOLS)/kube
compare: build kube $(if $(findstring -short,$(COMPARE)),,$(TOOLS)/consul) ## members killed in LO|FA|MO, memberlist, serf, consul and Kubernetes, with docs/compare.md made anew: hours, as root; COMPARE="-missing -time 25m": the next piece of it; COMPARE=-short: 3 minutes, without the page
	cd bench && go build -o $(TOOLS)/lofamo-compare ./cmd/lofamo-compare
	LOFAMO_CONSUL=$(wildcard $(TOOLS)/consul) $(TOOLS)/lofamo-compare $(if $(findstring -short,$(COMPARE)),,-consul $(TOOLS)/consul \
	  -out $(CURDIR)/docs/compare.md -record $(CURDIR)/bench/compare/testdata/compare.json) $(COMPARE)

$(TOOLS)/consul:
	@mkdir -p $(TOOLS); echo "=== building consul from source, once: 10 minutes ($$(date +%T))"
	cd hack/consul && go build -ldflags='-s -w' -o $@ github.com/hashicorp/consul

.PHONY: figures
figures: ## plots and tables of docs/papers/chaos.md and chaos-router.md; FIGURES_FLAGS to narrow (-only table3), SEED to change
	mkdir -p docs/papers/figures
	cd papers && go run ./cmd/lofamo-figures -out $(CURDIR)/docs/papers/figures -seed $${SEED:-1} $(FIGURES_FLAGS)

# The short form is among the tests. SEED chooses what is sampled.
.PHONY: campaign
campaign: ## the fault-injection campaign in full, with docs/campaign.md rewritten: about 45 minutes, on a quiet machine
	go test -count=1 -timeout 0 -v -run 'Page|Headers|Processes' ./internal/campaign/inject -campaign.full -campaign.seed $${SEED:-1} -campaign.out $(CURDIR)/docs/campaign.md -campaign.record testdata/campaign.json

# The short form is among the tests.
.PHONY: campaign-live
campaign-live: ## flip bits in the live data of running halves for FOR (12m; in three quarters of it halves only note them), and rewrite docs/campaign.md
	cd internal/campaign/inject && go test -count=1 -timeout 0 -v -run '^TestLive$$' . -campaign.live $${FOR:-12m} -campaign.seed $${SEED:-1} -campaign.record testdata/campaign.json
	go test -count=1 -run '^TestDocumentIs' ./internal/campaign/inject -campaign.render

.PHONY: campaign-code
campaign-code: ## flips in the code of running halves: each bit of the routine that sends frames, and FLIPS (400) in the lines that halves run, with docs/campaign.md rewritten: about 20 minutes, as root
	cd internal/campaign/inject && go test -count=1 -timeout 0 -v -run '^TestCode$$' . -campaign.code $${FLIPS:-400} -campaign.seed $${SEED:-1} -campaign.record testdata/campaign.json
	go test -count=1 -run '^TestDocumentIs' ./internal/campaign/inject -campaign.render

.PHONY: campaign-stream
campaign-stream: ## flip FLIPS (40) bits in the code with which a half sends its reports, and draw latency and throughput in docs/campaign.md: about 10 minutes, as root
	cd internal/campaign/inject && go test -count=1 -timeout 0 -v -run '^TestStream$$' . -campaign.stream $${FLIPS:-40} -campaign.seed $${SEED:-1} -campaign.record testdata/campaign.json
	go test -count=1 -run '^TestDocumentIs' ./internal/campaign/inject -campaign.render

.PHONY: fuzz
fuzz: ## every fuzz target with FUZZ inputs each, as in FUZZ=100000x
	hack/fuzz $${FUZZ:-100000x}

# The short form, 2,000 sequences, is among the tests. A sequence that breaks a promise is printed, cut short, and kept in testdata, where the tests play it.
HOSTILE_TESTED := pkg/awareness pkg/response pkg/servicenet pkg/fault internal/supervisor/respond
.PHONY: fuzz-semantics
fuzz-semantics: ## hostile but well-formed input, SEQUENCES (1000000) of it, through awareness, evidence, gates and responses, with docs/hostile-input.md rewritten: about 10 minutes on two quiet cores
	cd internal/sim/hostile && go test -count=1 -timeout 0 -v -run '^TestPromisesHold$$' . -hostile.sequences $${SEQUENCES:-1000000} -hostile.seed $${SEED:-1} -hostile.workers $$(nproc) \
	  -hostile.keep testdata $(HOSTILE_FLAGS) -hostile.out $(CURDIR)/docs/hostile-input.md -hostile.machine "$$(nproc) × $$(sed -n 's/^model name.*: //p' /proc/cpuinfo | head -1)" \
	  -hostile.sources "$$(for d in $(HOSTILE_TESTED); do printf '%s %s; ' $$d $$(git rev-parse --short=12 HEAD:$$d); done)"

# The short form, 50 rounds, is among the tests. Processes have theirs in `make trial`.
.PHONY: incidents
incidents: ## incidents of ROUNDS (1000) rounds of random faults in the simulator against ground truth, with docs/trials.md rewritten: about 15 minutes
	go test -count=1 -timeout 0 -v -run '^TestIncidentsEqualInjectedFaults$$' ./internal/sim -incidents $${ROUNDS:-1000} -incidents.seed $${SEED:-1} \
	  -incidents.record $(CURDIR)/internal/testing/trial/testdata/incidents.json; rc=$$?; \
	  go test -count=1 -run '^TestDocument' ./internal/testing/trial -trial.render && exit $$rc

# SOAK is for how long each of the two goes on. A story that fails is cut short and printed with its seed:
# go test ./internal/sim -run TestCampaign -seed SEED plays it again.
.PHONY: soak
soak: soak-sim build ## thousands of simulated stories of faults; then ten minutes with eight busy loops on each core beside a real cluster
	cd bench && LOFAMO_BIN_DIR=$(CURDIR)/bin go run ./cmd/lofamo-bench -soak $${SOAK:-10m}

# The short form, 60 stories, is among the tests.
.PHONY: moves
moves: ## MOVES (1000) joins and leaves at up to 10 a second in the simulator, with faults between them, and STORIES (200) shorter stories, also of moves to other places: minutes
	go test -count=1 -timeout 0 -v -run '^TestJoinsAndLeaves$$' ./internal/sim -moves.long $${MOVES:-1000} -moves.seed $${SEED:-1}
	go test -count=1 -timeout 0 -run '^(TestJoinsAndLeaves|TestNodesMoveToOtherPlaces)$$' ./internal/sim -moves.seeds $${STORIES:-200}

# The short form, 40 stories, is among the tests.
.PHONY: fences
fences: ## STORIES (500) stories of nodes that are cut off and fence themselves, in the simulator, with faults of all kinds beside: minutes
	go test -count=1 -timeout 0 -v -run '^TestSelfFencing$$' ./internal/sim -fences.seeds $${STORIES:-500} -fences.first $${SEED:-1}

# The short form is among the tests. SEED 0 means a new one, which is printed.
.PHONY: joins
joins: build ## MOVES (1000) joins and leaves of emulated nodes at up to 10 a second against three real supervisors, with faults between them: 4 minutes
	cd bench && LOFAMO_BIN_DIR=$(CURDIR)/bin go test -count=1 -timeout 0 -v -run '^TestNodesJoinAndLeaveRealSupervisors$$' ./fleet \
	  -joins $${MOVES:-1000} -joins.nodes $${NODES:-50} -joins.rate $${RATE:-10} -joins.seed $${SEED:-0}

.PHONY: soak-sim
soak-sim: ## the simulated stories alone, on all cores, for SOAK (10m)
	go test -count=1 -timeout 0 -v -run '^TestSoak$$' ./internal/sim -soak $${SOAK:-10m}

# The short form is among the tests. Without SEED one is chosen and printed. DIMS is the torus, LOAD the largest number of busy loops: 0, 4 or 16.
.PHONY: trial
trial: build ## random faults and load against ground truth for MINUTES (10): make trial MINUTES=60 DIMS=3x3x3 SEED=1 LOAD=16
	cd bench && LOFAMO_BIN_DIR=$(CURDIR)/bin go run ./cmd/lofamo-trial -minutes $${MINUTES:-10} -dims $${DIMS:-2x2x2} -load $${LOAD:-0} -seed $${SEED:-0} $(TRIAL_FLAGS)

.PHONY: clean
clean: ## removes what the targets made here
	rm -rf bin .tools .lofamo web/node_modules $(PAGE)

.PHONY: help
help:
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "%-12s %s\n", $$1, $$2}'

# go_tool NAME VERSION PACKAGE: one pinned tool, built once.
define go_tool
$(TOOLS)/bin/$(1)-$(2):
	@mkdir -p $(TOOLS)/bin; echo "=== building $(1) $(2) from source, once: seconds to 10 minutes ($$$$(date +%T))"
	GOBIN=$(TOOLS)/bin go install $(3)@$(2)
	mv $(TOOLS)/bin/$(1) $$@
endef
$(eval $(call go_tool,golangci-lint,$(GOLANGCI_LINT_VERSION),github.com/golangci/golangci-lint/v2/cmd/golangci-lint))
$(eval $(call go_tool,govulncheck,$(GOVULNCHECK_VERSION),golang.org/x/vuln/cmd/govulncheck))
$(eval $(call go_tool,protoc-gen-go,$(PROTOC_GEN_GO_VERSION),google.golang.org/protobuf/cmd/protoc-gen-go))
$(eval $(call go_tool,protoc-gen-go-grpc,$(PROTOC_GEN_GO_GRPC_VERSION),google.golang.org/grpc/cmd/protoc-gen-go-grpc))
$(eval $(call go_tool,helm,$(HELM_VERSION),helm.sh/helm/v4/cmd/helm))
$(eval $(call go_tool,ko,$(KO_VERSION),github.com/google/ko))
$(eval $(call go_tool,grpcurl,$(GRPCURL_VERSION),github.com/fullstorydev/grpcurl/cmd/grpcurl))
$(eval $(call go_tool,nfpm,$(NFPM_VERSION),github.com/goreleaser/nfpm/v2/cmd/nfpm))

# buf comes from npm where there is npm, else from source (some minutes).
$(TOOLS)/buf-$(BUF_VERSION)/buf:
	@mkdir -p $(dir $@)
	if command -v npm >/dev/null; then \
	  npm install --silent --no-save --no-fund --no-audit --prefix $(dir $@) @bufbuild/buf@$(BUF_VERSION) && \
	  ln -sf node_modules/.bin/buf $@; \
	else GOBIN=$(dir $@) go install github.com/bufbuild/buf/cmd/buf@v$(BUF_VERSION); fi
