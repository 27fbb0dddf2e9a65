"""The agent's own files: small JSON documents, private, replaced in whole."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from controlplane.base.text_file import NotReadableError, read_bounded, write_atomically

MAX_DOCUMENT_BYTES = 1 << 20


class DocumentError(Exception):
    """A file of the agent's that can't be read as what it should be; the message names it."""


def write_document(path: Path, document: dict[str, Any]) -> None:
    """Replace `path` (0600, durable); a reader sees the old or the new document. Raises OSError."""
    text = json.dumps(document, indent=1, sort_keys=True)
    # The agent and the holders of its shards write beside one another.
    write_atomically(path, text, 0o600, durable=True, writer=str(os.getpid()))


def set_aside(path: Path, size: int) -> None:
    """Take `size` bytes of the disk for `write_set_aside`. Raises OSError."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    with open(descriptor, "wb") as file:
        file.write(b" " * size)


def write_set_aside(path: Path, aside: Path, document: dict[str, Any]) -> None:
    """Replace `path`, as `write_document`, out of what was set aside at `aside`, once: on a full disk too.

    What is left of that space follows the document as blanks. Raises OSError.
    """
    text = json.dumps(document, sort_keys=True).encode()
    descriptor = os.open(aside, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    with open(descriptor, "wb") as file:
        file.write(text.ljust(os.fstat(descriptor).st_size))
        file.flush()
        os.fsync(descriptor)
    os.replace(aside, path)


def read_document(path: Path) -> dict[str, Any] | None:
    """The document, or None where there is no file. Raises DocumentError."""
    try:
        value = json.loads(read_bounded(path, MAX_DOCUMENT_BYTES))
    except FileNotFoundError:
        return None
    except (OSError, NotReadableError, ValueError, RecursionError) as error:
        raise DocumentError(f"{path} can't be read: {error}") from error
    if not isinstance(value, dict):
        raise DocumentError(f"{path} holds a {type(value).__name__}, not an object")
    return value
