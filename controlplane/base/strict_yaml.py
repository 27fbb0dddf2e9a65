"""YAML files that an operator writes: bounded, safe, and with a key at most once in a mapping."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

MAX_BYTES = 1 << 20


class YamlError(ValueError):
    """The file can't be read as one mapping; the message is one line with place and remedy."""


class _UniqueKeyLoader(yaml.SafeLoader):
    """SafeLoader that refuses a repeated key, where YAML lets the last one win silently."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Build the mapping after a look for keys that come twice."""
        seen: dict[str, int] = {}
        for key_node, _ in node.value:
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode) or key_node.tag != "tag:yaml.org,2002:str":
                raise YamlError(f"line {line}: a key must be a plain word; write KEY: VALUE")
            if key_node.value in seen:
                raise YamlError(
                    f"{key_node.value}: the key is there twice, in lines {seen[key_node.value]} and {line}; "
                    "remove one"
                )
            seen[key_node.value] = line
        return super().construct_mapping(node, deep)


def load_mapping(path: Path) -> dict[str, Any]:
    """Read the file's one mapping; an empty file is an empty mapping. Raises YamlError."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise YamlError(f"cannot be read: {error.strerror}; check path and permissions") from error
    if len(data) > MAX_BYTES:
        raise YamlError(f"has {len(data)} bytes; at most {MAX_BYTES} are read: is it the right file?")
    try:
        document = yaml.load(data.decode("utf-8"), Loader=_UniqueKeyLoader)  # noqa: S506 (it is a SafeLoader)
    except UnicodeDecodeError as error:
        raise YamlError(f"is not UTF-8 text (byte {error.start}); save it as UTF-8") from error
    except yaml.MarkedYAMLError as error:
        raise YamlError(_syntax_line(error)) from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        if isinstance(error, YamlError):
            raise
        raise YamlError(f"is not YAML: {' '.join(str(error).split())}; correct the syntax") from error
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise YamlError(f"is a {type(document).__name__}, not lines of KEY: VALUE; write one mapping")
    return document


def _syntax_line(error: yaml.MarkedYAMLError) -> str:
    mark = error.problem_mark
    where = f"line {mark.line + 1}, column {mark.column + 1}" if mark else "somewhere"
    return f"{where}: {error.problem or error.context}; correct the YAML syntax there"
