"""Environment files: KEY=VALUE lines as systemd's EnvironmentFile= reads them."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from controlplane.base.text_file import NotReadableError, read_bounded

MAX_BYTES = 1 << 16

_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)


class SettingsError(ValueError):
    """A setting that can't be used: the message names key, value and remedy."""


def read_env_file(path: Path) -> dict[str, str]:
    """Read a file of `KEY=VALUE` lines, with blank lines, `#` and `;` comments, `export` and quotes.

    A missing file has no settings. Raises SettingsError with file and line; a key given twice is an error,
    since no reader can know which one was meant.
    """
    try:
        text = read_bounded(path, MAX_BYTES).decode("utf-8")
    except FileNotFoundError:
        return {}
    except NotReadableError as error:
        raise SettingsError(f"{path} {error}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path} can't be read ({error}): make it a readable UTF-8 file") from error
    values: dict[str, str] = {}
    for number, line in enumerate(map(str.strip, text.splitlines()), start=1):
        if not line or line[0] in "#;":
            continue
        key, value = _assignment(line, f"{path}:{number}")
        if key in values:
            raise SettingsError(f"{path}:{number}: {key} is set twice; keep one of the lines")
        values[key] = value
    return values


def _assignment(line: str, where: str) -> tuple[str, str]:
    key, equals, raw = line.removeprefix("export ").partition("=")
    key, value = key.strip(), raw.strip()
    if not equals or not _KEY.fullmatch(key):
        raise SettingsError(f"{where}: {line[:60]!r} is not a KEY=VALUE line; correct or remove it")
    if value[:1] not in {'"', "'"}:
        return key, value
    try:
        words = shlex.split(value)
    except ValueError as error:
        raise SettingsError(f"{where}: the value of {key} has unbalanced quotes ({error})") from error
    if len(words) != 1:
        raise SettingsError(
            f"{where}: the value of {key} goes on after its closing quote; quote it as a whole"
        )
    return key, words[0]
