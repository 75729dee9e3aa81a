"""The Rivulet control plane."""
