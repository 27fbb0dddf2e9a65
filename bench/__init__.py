"""Benchmarks and trace replay of the card cluster (the akv-bench program)."""
