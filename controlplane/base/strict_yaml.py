"""YAML files that an operator writes: bounded, safe, and with a key at most once in a mapping."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from controlplane.base.text_file import NotReadableError, read_bounded

MAX_BYTES = 1 << 20


class YamlError(ValueError):
    """The file can't be read as one mapping; the message is one line with place and remedy."""


class _StrictLoader(yaml.SafeLoader):
    """SafeLoader without YAML 1.1's traps: the last of two equal keys wins, 0100 is 64, and 1:30 is 90."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """Build a value; one that its type can't hold is told by its line, as it may be secret."""
        try:
            return super().construct_object(node, deep)
        except YamlError:
            raise
        except (ValueError, OverflowError) as error:
            line = node.start_mark.line + 1
            raise YamlError(
                f"line {line}: the value can't be read; write it in quotes or correct it"
            ) from error

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


def _plain_scalars(loader: type[yaml.SafeLoader]) -> None:
    """Whole numbers are decimal digits and dates are text; everything else is read as YAML 1.1 says."""
    left_out = {"tag:yaml.org,2002:int", "tag:yaml.org,2002:timestamp"}
    loader.yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in resolvers if tag not in left_out]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    loader.add_implicit_resolver(
        "tag:yaml.org,2002:int", re.compile(r"[-+]?(?:0|[1-9][0-9_]*)$", re.ASCII), list("-+0123456789")
    )


_plain_scalars(_StrictLoader)


def load_mapping(path: Path) -> dict[str, Any]:
    """Read the file's one mapping; an empty file is an empty mapping. Raises YamlError."""
    try:
        data = read_bounded(path, MAX_BYTES)
    except OSError as error:
        raise YamlError(f"cannot be read: {error.strerror}; check path and permissions") from error
    except NotReadableError as error:
        raise YamlError(str(error)) from error
    try:
        document = yaml.load(data.decode("utf-8"), Loader=_StrictLoader)  # noqa: S506 (it is a SafeLoader)
    except UnicodeDecodeError as error:
        raise YamlError(f"is not UTF-8 text (byte {error.start}); save it as UTF-8") from error
    except yaml.MarkedYAMLError as error:
        raise YamlError(_syntax_line(error)) from error
    except YamlError:
        raise
    except RecursionError as error:
        raise YamlError("is nested too deeply for a configuration: is it the right file?") from error
    except yaml.YAMLError as error:
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
