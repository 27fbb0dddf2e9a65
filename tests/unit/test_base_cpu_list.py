"""Lists of CPU cores: what is read, and what is refused."""

from __future__ import annotations

import pytest

from controlplane.base.cpu_list import parse_cpu_list


@pytest.mark.parametrize(
    ("text", "cpus"),
    [("0", (0,)), ("0-2", (0, 1, 2)), ("5, 1-2", (5, 1, 2)), ("100-104", (100, 101, 102, 103, 104))],
)
def test_cpu_lists(text: str, cpus: tuple[int, ...]) -> None:
    assert parse_cpu_list(text) == cpus


@pytest.mark.parametrize("text", ["", ",", "1-", "-1", "1--2", "0x1", "9999", "1 2", "٣"])
def test_bad_cpu_lists_say_what_to_write(text: str) -> None:
    with pytest.raises(ValueError, match=";"):
        parse_cpu_list(text)
