# Rivulet: every command of the project. `make help` lists them.
SHELL := /bin/bash
.DEFAULT_GOAL := help
CARGO ?= cargo

.PHONY: help check test test-host protos
help: ## list the commands
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-18s %s\n", $$1, $$2}'

build/protos/.complete: switch/p4rt/protos.txt switch/p4rt/fetch_protos.py
	python3 switch/p4rt/fetch_protos.py build/protos
	touch $@

protos: build/protos/.complete ## fetch the P4Runtime definitions that the switch is built from

check: protos ## format and lint, the quick part
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings

test-host: protos ## unit, property and simulation tests of the Rust workspace
	$(CARGO) test --workspace --locked

test: check test-host ## every test of the project
