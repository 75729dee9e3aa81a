# The ToR program. Included by the Makefile of the repository.
.PHONY: p4 p4-tofino test-p4

p4: ## compile the P4 programs into p4src/build and the build folders in mininet (needs p4c)
	python3 p4src/tools/artifact.py build
	python3 mininet/programs.py build

p4-tofino: ## the program for Tofino through p4c's front end (needs p4test, TNA_INCLUDE=folder of tna.p4)
	TNA_INCLUDE="$(TNA_INCLUDE)" python3 p4src/tools/tofino.py build

test-p4: ## the P4Info keeps the rules, and the packet tests' own library
	$(TEST) setup p4
