"""Every figure of the papers, ours and kernel TCP's side by side in one run (docs/results.md)."""
