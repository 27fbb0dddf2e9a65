"""The agent's own files: small JSON documents, private, replaced in whole."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from controlplane.base.text_file import NotReadableError, read_bounded

MAX_DOCUMENT_BYTES = 1 << 20


class DocumentError(Exception):
    """A file of the agent's that can't be read as what it should be; the message names it."""


def write_document(path: Path, document: dict[str, Any]) -> None:
    """Replace `path` (0600, durable); a reader sees the old or the new document. Raises OSError."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with open(descriptor, "w", encoding="utf-8") as file:
            json.dump(document, file, indent=1, sort_keys=True)
            file.flush()
            os.fsync(descriptor)
        os.replace(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)  # on a full disk it would keep the last blocks
        raise


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
