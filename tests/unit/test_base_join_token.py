"""Join tokens: what was made is read, and every damage to it is told without showing it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.base.join_token import JoinToken, JoinTokenError, parse_join_token

FINGERPRINT = "ab" * 32


def test_what_was_made_is_read() -> None:
    token = JoinToken.new(5001, FINGERPRINT)
    assert parse_join_token(f"  {token.text()}\n") == token
    assert JoinToken.new(5001, FINGERPRINT).secret != token.secret
    assert "secret" not in repr(token)


@given(st.integers(0, 139), st.integers(1, 140))
def test_a_token_that_lacks_a_piece_is_refused_and_not_shown(start: int, length: int) -> None:
    """Any piece cut out of it; the port has one digit here, since one that lost a digit is still a port."""
    text = JoinToken(9, "0123456789ab", b"\x5a" * 32, FINGERPRINT).text()
    first = min(start, len(text) - 1)
    with pytest.raises(JoinTokenError) as caught:
        parse_join_token(text[:first] + text[first + length :])
    assert text.split(".")[3] not in str(caught.value)


@pytest.mark.parametrize(
    "text", ["", "akv1", "akv2.5001.a.b.c", "akv1.5001.0123456789ab.AAAA." + FINGERPRINT]
)
def test_what_is_no_token(text: str) -> None:
    with pytest.raises(JoinTokenError, match="join token"):
        parse_join_token(text)
