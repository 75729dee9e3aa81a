# The ToR program. Included by the Makefile of the repository.
.PHONY: p4 test-p4

p4: ## compile the P4 programs into p4src/build and the build folders in mininet (needs p4c)
	python3 p4src/tools/artifact.py build
	python3 mininet/programs.py build

test-p4: ## the P4Info keeps the rules, and the packet tests' own library
	$(TEST) setup p4
