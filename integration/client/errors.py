"""What can go wrong for a client of the gateway.

Only a `strict` client raises `ClientError`s from calls (but for LoanLostError); the default client answers
"miss" or "not stored" and keeps the last error in `last_error`. Arguments that can never be right raise
`ValueError` or `TypeError` in both modes.
"""

from __future__ import annotations

from integration.client.wire import FrameStatus


class ClientError(Exception):
    """Base of every error of the client."""


class GatewayUnavailableError(ClientError):
    """There is no session with the gateway now; the client reconnects in the background."""


class DeadlineExceededError(ClientError):
    """The gateway did not answer within the call's deadline. Blocks of the call stay busy until it does."""


class ProtocolError(ClientError):
    """The gateway sent something that docs/protocol.md does not allow; the connection is closed."""


class AuthenticationError(ClientError):
    """The gateway refused the namespace's secret, or could not prove that it knows it."""


class LoanLostError(ClientError):
    """A session was lost while its blocks were read in place. Not only of strict clients: no miss could tell
    it."""


class RequestRefusedError(ClientError):
    """The gateway answered a request with a frame status other than OK."""

    def __init__(self, status: FrameStatus, text: str) -> None:
        super().__init__(f"the gateway refused the request: {status.name}" + (f": {text}" if text else ""))
        self.status = status
