"""Addresses: one spelling each, and clear refusals."""

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.base.addresses import (
    AddressError,
    HostPort,
    canonical_address,
    canonical_host,
    canonical_port,
    is_loopback,
    parse_host_port,
)


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("::FFFF:C000:0201", "192.0.2.1"),
        ("2001:DB8:0:0:0:0:0:1", "2001:db8::1"),
        ("[2001:db8::1]", "2001:db8::1"),
        ("fe80::1%eth0", "fe80::1%eth0"),
    ],
)
def test_spellings_of_one_address_are_equal(text: str, canonical: str) -> None:
    assert canonical_address(text) == canonical


@given(st.ip_addresses(v=6))
def test_canonical_is_stable_and_the_exploded_form_is_equal(address: ipaddress.IPv6Address) -> None:
    once = canonical_address(str(address))
    assert canonical_address(once) == once
    assert canonical_address(address.exploded.upper()) == once


@pytest.mark.parametrize(
    ("text", "default", "expected"),
    [
        ("Storage-1", 5000, HostPort("storage-1", 5000)),
        ("storage-1.example.:80", None, HostPort("storage-1.example", 80)),
        ("127.0.0.1:2379", None, HostPort("127.0.0.1", 2379)),
        ("[::1]:2379", None, HostPort("::1", 2379)),
        ("[::ffff:127.0.0.1]:1", None, HostPort("127.0.0.1", 1)),
        ("[::1]", 7, HostPort("::1", 7)),
        ("2001:db8::2", 7, HostPort("2001:db8::2", 7)),
    ],
)
def test_host_and_port(text: str, default: int | None, expected: HostPort) -> None:
    parsed = parse_host_port(text, default)
    assert parsed == expected
    assert parse_host_port(str(parsed)) == expected


@pytest.mark.parametrize(
    ("text", "default", "message"),
    [
        ("storage-1", None, "write HOST:PORT"),
        ("::1", None, "write HOST:PORT"),
        ("10.0.0.1:2379:1", 5, r"\[ADDRESS\]:PORT"),
        ("[::1", 5, r"\[ADDRESS\]:PORT"),
        ("[::1]x", 5, r"\[ADDRESS\]:PORT"),
        ("[host]:5", None, "brackets"),
        ("host:", 5, "not a number"),
        ("host:65536", None, "65535"),
        ("host:+5", None, "not a number"),
        ("host:٣", None, "not a number"),
        ("", 5, "neither"),
        ("a_b c:5", None, "neither"),
        ("300.1.1.1:5", None, "looks like an IPv4"),
        ("-x:5", None, "neither"),
        ("a..b:5", None, "neither"),
    ],
)
def test_refused_with_what_to_write(text: str, default: int | None, message: str) -> None:
    with pytest.raises(AddressError, match=message):
        parse_host_port(text, default)


def test_canonical_host_keeps_names_and_urls_are_bracketed() -> None:
    assert canonical_host("GPU-1.Example.") == "gpu-1.example"
    assert HostPort("::1", 80).url("http") == "http://[::1]:80"


def test_a_port_that_is_reached_has_one_spelling() -> None:
    assert canonical_port("4420") == canonical_port("04420") == "4420"
    assert [canonical_port(text) for text in ("1", "65535")] == ["1", "65535"]
    for text in ("", "0", "00", "65536", "-1", "+1", "1.0", "٣", " 1", "1" * 5000):
        with pytest.raises(AddressError):
            canonical_port(text)


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.9.8.7", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("localhost.", True),
        ("10.0.0.1", False),
        ("0.0.0.0", False),
        ("::", False),
        ("localhost.example", False),
    ],
)
def test_loopback(host: str, loopback: bool) -> None:
    assert is_loopback(host) is loopback
