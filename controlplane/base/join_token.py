"""The one-time token with which a host joins: whom to ask, a secret, and by what to know the right cluster.

`akv1.PORT.ID.SECRET.FINGERPRINT`: the port where hosts get certificates, the token's id, 32 random bytes in
base64url, and the SHA-256 of the CA's certificate. The last one is what makes the first connection safe.
"""

from __future__ import annotations

import base64
import binascii
import re
import secrets
from dataclasses import dataclass, field

from controlplane.base.addresses import AddressError, parse_port

SECRET_BYTES = 32
_PREFIX = "akv1"
_ID = re.compile(r"[0-9a-f]{12}", re.ASCII)
_FINGERPRINT = re.compile(r"[0-9a-f]{64}", re.ASCII)


class JoinTokenError(ValueError):
    """A text that is no token; the message never shows it."""


@dataclass(frozen=True, slots=True)
class JoinToken:
    """A token in its parts; its secret is not shown when it is printed for debugging."""

    port: int
    token_id: str
    secret: bytes = field(repr=False)
    ca_fingerprint: str

    @classmethod
    def new(cls, port: int, ca_fingerprint: str) -> JoinToken:
        """A fresh token."""
        return cls(port, secrets.token_hex(6), secrets.token_bytes(SECRET_BYTES), ca_fingerprint)

    def text(self) -> str:
        """The token as an operator carries it: whoever has it can join a host."""
        secret = base64.urlsafe_b64encode(self.secret).rstrip(b"=").decode("ascii")
        return ".".join([_PREFIX, str(self.port), self.token_id, secret, self.ca_fingerprint])


def parse_join_token(text: str) -> JoinToken:
    """Read a token. Raises JoinTokenError."""
    parts = text.strip().split(".")
    if len(parts) != 5 or parts[0] != _PREFIX:
        raise JoinTokenError(
            f"not a join token, which has five parts and begins with {_PREFIX}.: copy it whole, or make one "
            "with clustercli pki token"
        )
    _, port, token_id, secret, fingerprint = parts
    if not _ID.fullmatch(token_id) or not _FINGERPRINT.fullmatch(fingerprint):
        raise JoinTokenError("a join token that was not copied whole: its id or its fingerprint is damaged")
    try:
        decoded = base64.b64decode(secret + "=", altchars=b"-_", validate=True)
        number = parse_port(port)
    except (binascii.Error, AddressError, ValueError) as error:
        raise JoinTokenError(
            "a join token that was not copied whole: its secret or port is damaged"
        ) from error
    if len(decoded) != SECRET_BYTES:
        raise JoinTokenError("a join token that was not copied whole: its secret is too short or too long")
    return JoinToken(number, token_id, decoded, fingerprint)
