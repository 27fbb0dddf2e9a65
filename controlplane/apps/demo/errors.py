"""How the demo can fail."""

from __future__ import annotations


class DemoError(Exception):
    """The story can't go on: a process ended, or did not do in time what it has to do."""


class NotInTimeError(DemoError):
    """Something was waited for and did not come within its deadline."""
