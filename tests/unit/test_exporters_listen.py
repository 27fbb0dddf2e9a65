"""Where an exporter serves: spellings of --listen, and what may be served without encryption."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer

from controlplane.exporters.serving import listen_address


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("127.0.0.2", "127.0.0.2:7891"),
        ("127.0.0.2:80", "127.0.0.2:80"),
        ("[::1]:80", "[::1]:80"),
        ("::1,80", "[::1]:80"),
        ("127.0.0.2,80", "127.0.0.2:80"),
    ],
)
def test_every_spelling_of_an_address(text: str, shown: str) -> None:
    assert str(listen_address(text, 7891, False, None)) == shown


def test_beyond_loopback_it_is_encrypted_or_said_by_name(tmp_path: Path) -> None:
    for words in ("2001:db8::1,80", "192.0.2.1"):
        with pytest.raises(typer.BadParameter, match="not encrypted: give --tls-dir"):
            listen_address(words, 7891, False, None)
        assert listen_address(words, 7891, False, tmp_path) == listen_address(words, 7891, True, None)
    with pytest.raises(typer.BadParameter, match="drop one of them"):
        listen_address("::1", 7891, True, tmp_path)


@pytest.mark.parametrize("text", ["::1,", "::1,x", "::1,70000", "1:2:3", "::1,80,81"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter):
        listen_address(text, 7891, False, None)
