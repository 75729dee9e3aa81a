# The ToR program. Included by the Makefile of the repository.
.PHONY: p4 test-p4

p4: ## compile the P4 program into p4src/build (needs p4c)
	python3 p4src/tools/artifact.py build

P4_PYTHON := p4src/tools p4src/tests ptf-tests

test-p4: setup ## the committed P4 program is that of its sources, and its P4Info keeps the rules
	python3 p4src/tools/artifact.py check
	python3 -m unittest discover -q -s p4src/tests -t p4src/tests
	$(PY) -m pytest -q ptf-tests/test_rivulet_scapy.py
	$(PY) -m ruff check $(P4_PYTHON)
	$(PY) -m ruff format --check $(P4_PYTHON)
