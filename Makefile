# Rivulet: every command of the project. `make help` lists them.
SHELL := /bin/bash
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

CARGO ?= cargo
# Folder into which rustup installs cargo, in case the login shell's PATH lacks it.
export PATH := $(PATH):$(or $(CARGO_HOME),$(HOME)/.cargo)/bin
PY := .venv/bin/python
PYTHON_DIRS := controller mininet bench $(wildcard host/removal*.py) host/wireshark packaging ptf-tests p4src switch scripts host/plain/examples host/trods/tests
BINARIES := rivulet rivulet-switch rivulet-link rivulet-shim rivulet-cm-apps
packages = $(addprefix -p ,$(1))

# Network namespaces need root; everything else runs as the user of make.
ROOT := $(if $(filter 0,$(shell id -u)),,sudo)

.PHONY: help
help: ## list the commands
	@echo "Rivulet. The two to know: make demo, make test."
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-18s %s\n", $$1, $$2}'
	@printf '  make %-18s %s\n' demo-NAME 'one of: $(SCENARIOS); RATE=, RTT=, SIZE=, REPLICAS=, SWITCH=embedded or bmv2, CHECKS=tor or host, OUT=' \
	  bench-NAME 'one of: $(BENCHES); BENCH_FLAGS=--help lists its own'

# Setting up and building

.PHONY: setup protos build
setup: ## install what the other commands need (Debian packages, Python environment), once
	@scripts/setup.sh

.PHONY: setup-test
setup-test: setup ## and the packages that only tests need (chromium, etcd, tshark); without one its tests are skipped and listed
	@scripts/setup.sh --test

build/protos/.complete: switch/p4rt-proto/protos.txt switch/p4rt-proto/fetch_protos.py
	python3 switch/p4rt-proto/fetch_protos.py build/protos
	touch $@

protos: build/protos/.complete ## fetch the P4Runtime definitions, from which the switch is built

build: setup protos ## build the binaries (target/release)
	@echo "building the binaries; the first time takes some minutes"
	$(CARGO) build --release --locked $(call packages,$(BINARIES))

.PHONY: tiny
tiny: setup ## build rivulet-tiny, the server of 64 KiB without the standard library, and print its sizes
	@CARGO="$(CARGO)" scripts/tiny.sh

# Tests: scripts/test.py builds once, in the profile `ci`, and runs parts with those binaries; CONTRIBUTING.md says when.

# The release of Rust in rust-toolchain.toml. Its warnings are errors; another release, where that one could not be
# installed, only prints its own.
PINNED := $(shell sed -n 's/^channel = "\(.*\)"/\1/p' rust-toolchain.toml)

TEST := CARGO="$(CARGO)" python3 scripts/test.py

.PHONY: check test test-long test-rust test-controller
check: setup protos ## format, lint, types, words, long files, files in circles, links of pages, tests that docs/security.md names, drawings; committed P4 program matches; removals find their text
	$(CARGO) fmt --all --check
	$(PY) -m ruff format --check $(PYTHON_DIRS)
	$(PY) -m ruff check $(PYTHON_DIRS)
	$(PY) -m mypy controller/rivulet_controller mininet/rivulet_lab mininet/rivulet_demo bench/rivulet_bench
	python3 p4src/tools/artifact.py check
	python3 p4src/tools/tofino.py check
	python3 mininet/programs.py check
	python3 host/removal.py --check
	python3 ptf-tests/removal.py --check
	python3 scripts/words.py
	python3 scripts/circles.py
	python3 scripts/lines.py
	python3 scripts/links.py
	python3 scripts/security.py
	python3 scripts/pictures --check
	$(PY) -m rivulet_bench.results --check
	$(CARGO) clippy --workspace --all-targets --profile ci --locked -- \
	  $$([ "$$(rustc --version | cut -d' ' -f2)" != "$(PINNED)" ] || echo -D warnings)
	CARGO="$(CARGO)" scripts/tiny.sh clippy

.PHONY: lint-newest
lint-newest: protos ## warnings of the newest stable Rust (installed with rustup; builds in build/newest)
	rustup -q toolchain install stable --no-self-update --profile minimal --component clippy
	CARGO_TARGET_DIR=build/newest $(CARGO) +stable clippy --workspace --all-targets --profile ci --locked -- -D warnings

# Parts that find most mistakes in the least time come first.
test: ## all tests except the long ones, with their times
	$(TEST) setup check p4 build rust racks packages demos python ptf ptf-host

test-long: ## long tests: the tutorial, second switch, key rotation, large windows, fuzzing, removal of each defence (needs p4c, BMv2)
	$(TEST) --long setup build rust racks packages python ptf ptf-host ptf-bmv2 ptf-bmv2-host ptf-workers removal fuzz

test-rust: ## the Rust tests: CRATES=host/sim for one folder
	$(TEST) setup build rust $(if $(CRATES),--only $(CRATES))

test-controller: ## the control plane, alone and with the embedded switch, and the demo's helpers: TESTS=name
	$(TEST) setup build racks python $(if $(TESTS),--only "$(TESTS)")

.PHONY: fuzz-switch
fuzz-switch: build ## the embedded switch beside simple_switch_grpc: random packets and entries, PACKETS=100000 SEED=1
	$(ROOT) $(PY) switch/switchd/tests/compare/fuzz.py --packets $(or $(PACKETS),100000) --seed $(or $(SEED),1)

.PHONY: e2e
e2e: ## short demos: kills, stalled replicas, an attacker, a new ToR, plain clients; every download must finish
	$(TEST) setup build demos

# The documentation site, of the pages of docs/ and beside it

.PHONY: reference docs
reference: build ## pages and manual pages of rack.yaml and all programs, and completions of shells (build/reference)
	$(PY) scripts/reference build/reference

docs: build ## the documentation as a site that needs no network (build/site/html); a link that leads nowhere fails
	python3 scripts/site/build.py

# Packages and their contents

.PHONY: deb audit
deb: build ## Debian packages of the binaries and of the controller (build/deb), checked with lintian
	scripts/setup.sh --deb
	scripts/deb.sh

audit: setup ## licences, sources and known vulnerabilities of all dependencies; Error 3: lists could not be fetched
	CARGO="$(CARGO)" scripts/audit.sh

include p4src/p4.mk ptf-tests/ptf.mk host/sim/sim.mk host/capi/capi.mk host/libcm/libcm.mk

# Demos: `make demo RATE=100 RTT=10 SIZE=200 REPLICAS=3 SWITCH=embedded`

DEMO_FLAGS := $(if $(RATE),--rate $(RATE)) $(if $(RTT),--rtt $(RTT)) $(if $(SIZE),--size $(SIZE)) \
	$(if $(REPLICAS),--replicas $(REPLICAS)) $(if $(SWITCH),--switch $(SWITCH)) $(if $(CHECKS),--checks $(CHECKS)) $(if $(OUT),--out $(OUT))
SCENARIOS := $(subst _,-,$(notdir $(patsubst %/,%,$(dir $(wildcard mininet/rivulet_demo/scenarios/*/__init__.py)))))

.PHONY: demo $(addprefix demo-,$(SCENARIOS))
demo: demo-failover ## kill replicas in the middle of a download; the same connection finishes

.PHONY: setup-browser setup-trods
setup-browser: setup
	@scripts/setup.sh --browser

setup-trods: setup-browser # nginx, memcached and sshd, which are not started
	@scripts/setup.sh --trods

.PHONY: setup-audio
setup-audio: setup # ffmpeg
	@scripts/setup.sh --audio

demo-stateless: setup-browser
demo-tls demo-trods: setup-trods
demo-upgrade: setup-trods
demo-cm: setup-audio
.PHONY: demo-tiny
demo-tiny: tiny build ## 50 clients of a server with 64 KiB of memory, which is killed in the middle of a download
	$(ROOT) env RIVULET=target/release/rivulet host/tiny/demo.sh

$(addprefix demo-,$(SCENARIOS)): demo-%: build
	@$(if $(ROOT),echo "root is needed once: the demo makes network namespaces")
	$(ROOT) $(PY) -m rivulet_demo $* $(DEMO_FLAGS)

# Figures: kernel TCP and Rivulet in the same run; JSON and plots in bench/results/

BENCHES := $(subst _,-,$(patsubst bench/rivulet_bench/%.py,%,$(wildcard $(addprefix bench/rivulet_bench/,figure*.py soak.py chaos.py switch.py host.py stateless.py stateless_large.py tls.py tls_kills.py trods.py trods_hangs.py cm.py watermark.py wide.py))))

.PHONY: bench $(addprefix bench-,$(BENCHES))
bench: $(addprefix bench-,$(BENCHES)) ## every figure, one after the other; `make bench-NAME` for one

$(addprefix bench-,$(BENCHES)): bench-%: build
	$(CARGO) build --release --locked -p rivulet-load
	$(ROOT) $(PY) -m rivulet_bench.$(subst -,_,$*) $(BENCH_FLAGS)

bench-stateless: bench-servers
.PHONY: bench-servers
bench-servers: setup # knot and nsd, which are not started
	@scripts/setup.sh --bench

.PHONY: results
results: setup ## write docs/results.md from bench/results; marks sections that are older than the code they measure
	$(PY) -m rivulet_bench.results

.PHONY: rotation
rotation: build ## seal keys every second, nonce keys every ten, under load for two minutes: no connection breaks, no request is refused
	$(ROOT) env RIVULET_ROTATION_S=$(or $(SECONDS_OF_ROTATION),120) $(PY) -m pytest -q -s -rs -m long controller/tests/test_system.py -k "rotate and $(or $(SWITCH),embedded)"

.PHONY: bench-transport
bench-transport: ## cost of a step of the transport: time, instructions, allocations, header bytes
	CARGO="$(CARGO)" $(PY) host/transport/benches/report.py
