# The ToR program. Included by the Makefile of the repository.
.PHONY: p4 test-p4

p4: ## compile the P4 program into p4src/build (needs p4c)
	python3 p4src/tools/artifact.py build

test-p4: ## the committed P4 program is that of its sources, and its P4Info keeps the rules
	python3 p4src/tools/artifact.py check
	python3 -m unittest discover -q -s p4src/tests -t p4src/tests
