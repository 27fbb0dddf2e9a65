"""Composition roots: one module per program."""
