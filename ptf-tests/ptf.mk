# Packet tests of the P4 program. Included by the Makefile of the repository.
SWITCH ?= embedded

.PHONY: ptf
ptf: setup ## packet tests of the P4 program: SWITCH=embedded (default) or SWITCH=bmv2, TESTS="names"
	$(if $(filter embedded,$(SWITCH)),$(CARGO) build --release --locked -p rivulet-switch)
	$(ROOT) $(PY) ptf-tests/run.py --switch $(SWITCH) $(TESTS)

.PHONY: ptf-removal
ptf-removal: setup ## each defence taken out of a copy of the P4 program must fail a test (needs p4c)
	$(if $(filter embedded,$(SWITCH)),$(CARGO) build --release --locked -p rivulet-switch)
	$(ROOT) $(PY) ptf-tests/removal.py --switch $(SWITCH) $(REMOVALS)
