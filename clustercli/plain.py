"""Protobuf messages as plain values for JSON: every field by its name, numbers as numbers, enums as words."""

from __future__ import annotations

from typing import Any

from google.protobuf.descriptor import EnumDescriptor
from google.protobuf.message import Message


def plain(message: Message) -> dict[str, Any]:
    """The message with all of its fields; a part that is absent, and may be, is null."""
    return {field.name: _value(message, field) for field in message.DESCRIPTOR.fields}


def _value(message: Message, field: Any) -> Any:
    value = getattr(message, field.name)
    if _is_map(field):
        return {key: value[key] for key in sorted(value)}
    if field.is_repeated:
        return [_single(field, item) for item in value]
    if field.has_presence and not message.HasField(field.name):
        return None
    return _single(field, value)


def _is_map(field: Any) -> bool:
    kind = field.message_type
    return kind is not None and bool(kind.GetOptions().map_entry)


def _single(field: Any, value: Any) -> Any:
    if isinstance(value, Message):
        return plain(value)
    if field.enum_type is not None:
        return enum_word(field.enum_type, value)
    return value


def enum_word(kind: EnumDescriptor, number: int) -> str:
    """A value's name without its enum's prefix, in small letters; a number that is not known stays one."""
    known = kind.values_by_number.get(number)
    if known is None:
        return str(number)
    names = [value.name for value in kind.values]
    prefix = names[0].removesuffix("UNSPECIFIED")
    return known.name.removeprefix(prefix).lower()
