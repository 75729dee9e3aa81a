"""The scenarios, one folder each, all alike: `WORDS` says what happens, `run` does it."""
