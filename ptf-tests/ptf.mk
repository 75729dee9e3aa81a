# Packet tests of the P4 program. Included by the Makefile of the repository.
SWITCH ?= embedded

.PHONY: ptf ptf-removal
ptf: ## packet tests of the P4 program: SWITCH=embedded (default) or SWITCH=bmv2, PROGRAM=host, TESTS="names"
	$(TEST) setup $(if $(filter embedded,$(SWITCH)),build ptf,ptf-bmv2)$(if $(PROGRAM),-$(PROGRAM)) $(if $(TESTS),--only "$(TESTS)")

ptf-removal: ## remove each defence from a copy of the P4 program; a test must fail (needs p4c): REMOVALS="names"
	$(TEST) setup build removal $(if $(REMOVALS),--only "$(REMOVALS)")
