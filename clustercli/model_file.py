"""A model as an operator writes it: a YAML file with the fields of the API's Model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from akv.v1 import fleet_pb2
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.json_format import ParseDict, ParseError

from controlplane.base.strict_yaml import YamlError, load_mapping

# Set by the service.
_NOT_WRITTEN = "revision"
_KINDS: dict[int, tuple[str, tuple[type, ...]]] = {
    FieldDescriptor.CPPTYPE_STRING: ("text; numbers stand in quotes", (str,)),
    FieldDescriptor.CPPTYPE_BOOL: ("true or false", (bool,)),
    FieldDescriptor.CPPTYPE_DOUBLE: ("a number", (int, float)),
    FieldDescriptor.CPPTYPE_MESSAGE: ("a mapping", (dict,)),
}
_WHOLE = ("a whole number", (int,))


class ModelFileError(Exception):
    """The file is no model: which file, what is wrong."""


def read_model(path: Path) -> fleet_pb2.Model:
    """Read a model. Raises ModelFileError; what its values may be, the service says."""
    try:
        document = load_mapping(path)
    except YamlError as error:
        raise ModelFileError(f"{path}: {error}") from None
    if _NOT_WRITTEN in document:
        raise ModelFileError(f"{path}: {_NOT_WRITTEN} is counted by the service; remove the line")
    if problem := next(_problems(document, fleet_pb2.Model.DESCRIPTOR, ""), None):
        raise ModelFileError(f"{path}: {problem}")
    try:
        return ParseDict(document, fleet_pb2.Model())
    except ParseError as error:
        raise ModelFileError(f"{path}: {error}") from None


def _problems(document: dict[Any, Any], kind: Descriptor, where: str) -> Iterator[str]:
    """What in a mapping is no field of the message, or not of its kind; `where` is the way to it."""
    for key, value in document.items():
        field = kind.fields_by_name.get(key)
        if field is None:
            known = ", ".join(name for name in kind.fields_by_name if name != _NOT_WRITTEN)
            yield f"{where}{key} is no key of a {kind.name.lower()}: there are {known}"
        elif value is None:
            continue  # a key without a value, as it is in the JSON of `models get`: the default
        elif field.message_type is not None and field.message_type.GetOptions().map_entry:
            yield from _map_problems(value, f"{where}{key}")
        elif field.is_repeated:
            yield from _list_problems(value, field, f"{where}{key}")
        else:
            yield from _value_problems(value, field, f"{where}{key}")


def _map_problems(value: Any, name: str) -> Iterator[str]:
    if not isinstance(value, dict) or not all(isinstance(v, str) for pair in value.items() for v in pair):
        yield f"{name} is {value!r}, not lines of NAME: text; numbers stand in quotes"


def _list_problems(value: Any, field: FieldDescriptor, name: str) -> Iterator[str]:
    if not isinstance(value, list):
        yield f"{name} is {value!r}, not a list"
        return
    for number, entry in enumerate(value):
        yield from _value_problems(entry, field, f"{name}[{number}]")


def _value_problems(value: Any, field: FieldDescriptor, name: str) -> Iterator[str]:
    what, kinds = _KINDS.get(field.cpp_type, _WHOLE)
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        yield f"{name} is {value!r}, not {what}"
    elif isinstance(value, dict) and field.message_type is not None:
        yield from _problems(value, field.message_type, f"{name}.")
