"""Names of cards: what may be one, and what may not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.base.card_names import is_nqn, is_serial, is_service_id, is_uuid

UUID = "0f6f1b8e-3d0a-4c7e-9a53-5f3f6ad1c0de"


@pytest.mark.parametrize("text", ["L0P0", "!", "~" * 20, "S/N-7"])
def test_serials(text: str) -> None:
    assert is_serial(text)


@pytest.mark.parametrize("text", ["", "x" * 21, "L0 P0", "L0P0\n", "é"])
def test_no_serials(text: str) -> None:
    assert not is_serial(text)


def test_qualified_names() -> None:
    assert is_nqn("nqn.2024-01.io.akv:a")
    assert is_nqn("nqn." + "x" * 219)
    for text in ("", "nqn.", "iqn.a", "nqn.a b", "nqn.a\n", "nqn." + "x" * 220):
        assert not is_nqn(text)


def test_uuids_are_in_the_canonical_form() -> None:
    assert is_uuid(UUID)
    assert is_uuid(UUID.upper())
    for text in ("", "x", UUID.replace("-", ""), f"{{{UUID}}}", f"urn:uuid:{UUID}", f" {UUID}"):
        assert not is_uuid(text)


@given(st.integers(1, 65535))
def test_a_service_id_is_a_port_without_leading_zeros(port: int) -> None:
    assert is_service_id(str(port))
    assert not is_service_id(f"0{port}")


@pytest.mark.parametrize("text", ["", "0", "65536", "x", "1\n", "٣", "1" * 5000])
def test_no_service_ids(text: str) -> None:
    assert not is_service_id(text)
