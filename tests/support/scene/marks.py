"""Marks of tests that need hosts of their own."""

from __future__ import annotations

import pytest

from tests.hosts import why_no_namespaces

NEEDS_HOSTS = (
    pytest.mark.slow,
    pytest.mark.root,
    pytest.mark.skipif(bool(why_no_namespaces()), reason=why_no_namespaces()),
)
