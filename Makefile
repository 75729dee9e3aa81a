# Rivulet: every command of the project. `make help` lists them.
SHELL := /bin/bash
.DEFAULT_GOAL := help
CARGO ?= cargo

.PHONY: help check test test-host
help: ## list the commands
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-18s %s\n", $$1, $$2}'

check: ## format and lint, the quick part
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings

test-host: ## unit, property and simulation tests of the Rust workspace
	$(CARGO) test --workspace --locked

test: check test-host ## every test of the project
