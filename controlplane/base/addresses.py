"""Addresses in one canonical spelling, so that two spellings of one address compare equal.

IPv6 is lower case and compressed, an IPv4-mapped IPv6 address is the IPv4 address, a zone id (`%eth0`) stays,
and a host name is lower case without its trailing dot.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass

_LABEL = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)", re.ASCII)
_DECIMAL_PORT = re.compile(r"[0-9]{1,5}", re.ASCII)
_NUMERIC_TLD = re.compile(r"(0x[0-9a-f]*|[0-9]+)", re.ASCII)


class AddressError(ValueError):
    """Text that is not an address; the message says what is wrong and what is right."""


@dataclass(frozen=True, slots=True, order=True)
class HostPort:
    """A host (canonical name or literal, no brackets) and a TCP port. `str()` puts brackets around IPv6."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{bracketed(self.host)}:{self.port}"

    def url(self, scheme: str) -> str:
        """`scheme://host:port`."""
        return f"{scheme}://{self}"


def canonical_address(text: str) -> str:
    """The one spelling of a literal IP address, with or without brackets. Raises AddressError."""
    bare = _without_brackets(text)
    try:
        address = ipaddress.ip_address(bare)
    except ValueError:
        raise AddressError(f"{text!r} is not an IPv4 or IPv6 address") from None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped if mapped is not None else address)


def canonical_host(text: str) -> str:
    """The one spelling of a literal address or a host name. Raises AddressError."""
    bare = _without_brackets(text)
    try:
        return canonical_address(bare)
    except AddressError:
        name = bare.lower().removesuffix(".")
    labels = name.split(".")
    if len(name) > 253 or not all(_LABEL.fullmatch(label) for label in labels):
        raise AddressError(f"{text!r} is neither an IP address nor a host name")
    if _NUMERIC_TLD.fullmatch(labels[-1]):
        raise AddressError(f"{text!r} looks like an IPv4 address but is not one")
    return name


def parse_host_port(text: str, default_port: int | None = None) -> HostPort:
    """Read `host:port`, `[v6]:port`, or, with a default port, also `host`, `[v6]` and a bare IPv6 literal.

    Raises AddressError with what to write instead.
    """
    stripped = text.strip()
    host, port = _split(stripped)
    if port is None:
        if default_port is None:
            raise AddressError(f"{text!r} has no port: write HOST:PORT, or [IPV6]:PORT")
        return HostPort(canonical_host(host), default_port)
    return HostPort(canonical_host(host), parse_port(port, text))


def parse_port(port: str, where: str | None = None) -> int:
    """A TCP port, 0 to 65535 (0 = any free one). `where` is the whole text for the message."""
    if not _DECIMAL_PORT.fullmatch(port) or int(port) > 65535:
        raise AddressError(f"port {port!r} in {where or port!r} is not a number from 0 to 65535")
    return int(port)


def canonical_port(text: str) -> str:
    """The one spelling of a TCP port at which something is reached, 1 to 65535. Raises AddressError."""
    port = parse_port(text)
    if port == 0:
        raise AddressError("port 0 reaches nothing: write a number from 1 to 65535")
    return str(port)


def bracketed(host: str) -> str:
    """`host` as it goes into a URL or before a port."""
    return f"[{host}]" if ":" in host else host


def is_loopback(host: str) -> bool:
    """Whether `host` is a loopback literal or `localhost`; other names are not, whatever they resolve to."""
    try:
        return ipaddress.ip_address(canonical_address(host)).is_loopback
    except AddressError:
        return host.lower().removesuffix(".") == "localhost"


def _without_brackets(text: str) -> str:
    if not text.startswith("["):
        return text
    inner = text[1:-1]
    if not text.endswith("]") or ":" not in inner:
        raise AddressError(f"{text!r} has brackets that are not around an IPv6 address")
    return inner


def _split(text: str) -> tuple[str, str | None]:
    """Host and port text; the port is None where there is none."""
    if text.startswith("["):
        head, closing, tail = text.partition("]")
        if not closing or (tail and not tail.startswith(":")):
            raise AddressError(f"{text!r}: write an IPv6 address as [ADDRESS]:PORT")
        return head + closing, tail[1:] if tail else None
    if text.count(":") > 1:
        return _bare_ipv6(text), None
    host, colon, port = text.partition(":")
    return host, port if colon else None


def _bare_ipv6(text: str) -> str:
    """`text` when it is an IPv6 literal without brackets, which can carry no port."""
    try:
        return canonical_address(text)
    except AddressError:
        raise AddressError(f"{text!r} has more than one colon: write IPv6 as [ADDRESS]:PORT") from None
