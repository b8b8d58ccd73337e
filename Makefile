# Targets of the project. `make help` lists them.

SHELL   := /bin/bash
GO      ?= go
BIN     := bin
TOOLS   := $(GO) tool -modfile=.ci/go.mod
SEEDS   ?= 200
FIRST   ?= 1
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
BINARIES := bivouac bivouac-server bivouac-broker bivouac-edge bivouac-worker

.DEFAULT_GOAL := help

.PHONY: help
help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 20

.PHONY: build
build: ## build the binaries into bin/, statically: sandbox A holds nothing else
	@mkdir -p $(BIN)
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags "-X main.version=$(VERSION) -X bivouac/cmd/bivouac/cli.version=$(VERSION)" -o $(BIN)/ $(addprefix ./cmd/,$(BINARIES))

.PHONY: deps
deps: # Debian's bubblewrap and git, when they are missing
	@.ci/deps

.PHONY: demo
demo: deps build ## the two main jobs on this machine, nothing else needed
	$(GO) run ./test/demo -bin $(BIN)

.PHONY: dev
dev: deps build ## server, broker and one runner in the foreground, until Ctrl-C
	$(BIN)/bivouac dev

.PHONY: test
test: deps ## all tests, the long ones in their short form
	$(GO) test -short -shuffle=on -timeout 30m ./...

.PHONY: e2e
e2e: deps ## the long ones whole: kill -9 at every step and 1 000 at random, 200 moves of the link, 10 000 reconnects, planted bugs, scripts of the CLI
	$(GO) test -count=1 -timeout 90m ./test/e2e ./test/harness ./cmd/bivouac/cli
	$(GO) test -count=1 -timeout 20m -run LeakNo ./edge ./edge/link

.PHONY: kills
KILLS ?= 1000
SEED  ?= 0
kills: deps ## kill -9 of random processes under load, on SQLite and PostgreSQL, one a second (KILLS=1000 SEED=…)
	$(GO) test ./test/e2e -run 'Storm|GrowthOverLives' -kills $(KILLS) -storm-seed $(SEED) -count=1 -v -timeout 3h

.PHONY: vm
vm: ## the sandbox suites on emulated machines with other control groups than this one
	@.ci/vm
	$(GO) test -count=1 -timeout 30m -v ./edge/sandbox/vmtest

# SQLite is C translated to Go. The detector finds nothing of ours in it, and would
# take four fifths of the time: its loads and stores are not watched, ours all are.
RACE := -race -vet=off -gcflags='modernc.org/sqlite/lib=-race=false' -gcflags='modernc.org/libc=-race=false'

# Go 1.26 runs the timers of one synctest bubble on several processors with one context
# of the detector, which sometimes crashes it. A package with bubbles gets one processor.
BUBBLES = $(shell grep -rl '"testing/synctest"' --include='*_test.go' edge server consul | xargs -n 1 dirname | sort -u | sed 's,^,./,')

.PHONY: race
race: deps ## the race detector over pure packages, engine, link, broker and edge
	$(GO) test $(RACE) -exec 'env GOMAXPROCS=1' -short -shuffle=on -timeout 25m $(BUBBLES)
	$(GO) test $(RACE) -short -shuffle=on -timeout 25m $(filter-out $(patsubst ./%,bivouac/%,$(BUBBLES)),$(shell $(GO) list ./edge/... ./server/... ./consul/...))

.PHONY: sim
sim: ## the seeded simulation: make sim SEEDS=200 FIRST=1
	$(GO) test ./test/sim -run TestSeeds -seeds $(SEEDS) -first $(FIRST) -all -count=1 -v -timeout 6h

.PHONY: planted
planted: ## one planted bug for each invariant that the simulation holds; it finds each
	$(GO) test ./test/sim -run TestPlanted -count=1 -v -timeout 30m

.PHONY: soak
SOAK ?= 168h
soak: ## seven days of virtual time: memory, goroutines, descriptors and files stay flat (SOAK=24h: one)
	$(GO) test ./test/harness -run TestSoak -soak $(SOAK) -count=1 -timeout 4h -v

.PHONY: engines
ENGINES ?=
engines: deps ## adapters against real servers: Vault and Consul (on PATH, or built once), OpenBao (on PATH); ENGINES=vault, bao or consul for one
	$(GO) run ./test/engines $(ENGINES)

.PHONY: engines-record
engines-record: ## record what a real Nomad (on PATH) answers into jobs/testdata/recorded, for tests where there is none
	$(GO) test ./jobs -run '^(TestWatch|TestRoster|TestAllocation(Life|States))$$' -count=1 -v -record

.PHONY: check
check: ## format, vet, staticcheck, layering, generated code, vulnerabilities
	@.ci/check

.PHONY: bench
bench: deps build ## measure against the targets; prints one line a figure
	$(GO) run ./test/bench -bin $(BIN)
	@command -v nomad >/dev/null || echo "NOT MEASURED: starts under Nomad: nomad is not on PATH"
	$(GO) test -count=1 -run TestNomadFigures ./test/e2e -figures 20 -v

.PHONY: generate
generate: ## protobuf code and the diagrams of ARCHITECTURE.md
	$(TOOLS) buf generate
	$(GO) run ./test/diagrams

.PHONY: clean
clean: ## remove what the build and the demo made
	rm -rf $(BIN) .demo
