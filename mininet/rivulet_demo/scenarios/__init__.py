"""The scenarios, one folder each, all alike: `WORDS` describes the scenario, `run` runs it."""
