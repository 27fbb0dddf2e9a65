"""The secrets of namespaces (`namespace_secrets` in gateway.yaml): a private YAML file of NAME: HEX lines."""

from __future__ import annotations

from pathlib import Path

from controlplane.base.config_errors import ConfigError
from controlplane.base.strict_yaml import YamlError, load_mapping

SECRET_BYTES = 32
MAX_NAME_BYTES = 128


def load_namespace_secrets(path: Path) -> dict[str, bytes]:
    """Read the 32-byte secret of each namespace. Raises ConfigError; no message holds a secret."""
    try:
        mode = path.stat().st_mode
        if mode & 0o077:
            raise ConfigError(path.name, [f"is open to others (mode {mode & 0o777:o}); chmod 600 it"])
        document = load_mapping(path)
    except OSError as error:
        raise ConfigError(
            str(path), [f"{error.strerror}; write the file or remove namespace_secrets"]
        ) from error
    except YamlError as error:
        raise ConfigError(path.name, [str(error)]) from error
    problems = [problem for name, value in document.items() if (problem := _problem(name, value))]
    if not document:
        problems = ["has no namespace; write NAME: SECRET lines or remove namespace_secrets"]
    if problems:
        raise ConfigError(path.name, problems)
    return {name: bytes.fromhex(value) for name, value in document.items()}


def _problem(name: str, value: object) -> str | None:
    """What is wrong with one line; the value itself is never shown."""
    if not 1 <= len(name.encode()) <= MAX_NAME_BYTES or "\0" in name:
        return f"{name[:40]!r}: a namespace has 1 to {MAX_NAME_BYTES} bytes; shorten it"
    remedy = (
        f"write {2 * SECRET_BYTES} hexadecimal digits in quotes, e.g. from `openssl rand -hex {SECRET_BYTES}`"
    )
    if not isinstance(value, str):
        return f"{name}: the secret is not text; {remedy}"
    try:
        length = len(bytes.fromhex(value))
    except ValueError:
        return f"{name}: the secret is not hexadecimal; {remedy}"
    if length != SECRET_BYTES:
        return f"{name}: the secret has {length} bytes; {remedy}"
    return None
