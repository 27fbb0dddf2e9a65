"""Prometheus exporters of a storage or witness host."""
