"""A model as an operator writes it: a YAML file with the fields of the API's Model."""

from __future__ import annotations

from pathlib import Path

from akv.v1 import fleet_pb2
from google.protobuf.json_format import ParseDict, ParseError

from controlplane.base.strict_yaml import YamlError, load_mapping

# Set by the service.
_NOT_WRITTEN = "revision"


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
    try:
        return ParseDict(document, fleet_pb2.Model())
    except ParseError as error:
        raise ModelFileError(f"{path}: {error}") from None
