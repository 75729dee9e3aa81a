"""The benches: each measures a figure of the papers for Rivulet and for kernel TCP in one run (docs/results.md)."""
