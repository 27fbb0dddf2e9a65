"""What all clients show of their engine, and which implementations there are."""

from __future__ import annotations

import importlib
import math
import os
from typing import Any, Literal

from integration.client.config import ClientConfig
from integration.client.engine import Engine
from integration.client.errors import ClientError, GatewayUnavailableError

Implementation = Literal["native", "python"]
_VARIABLE = "AKV_CLIENT_IMPLEMENTATION"


class ClientView:
    """The state of a client's session, read at any moment and from any thread."""

    implementation: Implementation = "python"
    _engine: Engine

    @property
    def connected(self) -> bool:
        """There is a session whose gateway answers."""
        return self._engine.ready

    @property
    def shared_memory(self) -> bool:
        """`alloc` leases shared memory in the present session."""
        return self._engine.shared_memory

    @property
    def borrowing(self) -> bool:
        """`borrow` can give blocks in the present session."""
        return self._engine.borrowing

    @property
    def last_error(self) -> ClientError | None:
        """The last thing that went wrong."""
        return self._engine.last_error

    @property
    def counters(self) -> dict[str, int]:
        """Calls that met no gateway (`unavailable`), a deadline or a refusal; sessions made and lost."""
        return dict(self._engine.counters)

    def _seconds(self, timeout: float | None) -> float:
        """How long a call may take, or ValueError: every call has a deadline."""
        seconds = self._engine.config.timeout if timeout is None else timeout
        if not 0 < seconds < math.inf:
            raise ValueError(f"timeout is {seconds}: it must be more than 0 seconds, and not for ever")
        return seconds

    def _no_session(self, config: ClientConfig) -> ClientError:
        """Why a strict client has no session."""
        return self.last_error or GatewayUnavailableError(f"no answer from the gateway at {config.address}")


def find_native(implementation: Implementation | None) -> Any:
    """The module of the native clients, or None where the Python ones are to be used.

    `implementation` None is what AKV_CLIENT_IMPLEMENTATION says; without it, native if it is there.

    Raises:
        ValueError: there is no such implementation.
        ImportError: "native" is not installed.
    """
    wanted = implementation or os.environ.get(_VARIABLE)
    if wanted not in {None, "native", "python"}:
        raise ValueError(f"client implementation {wanted!r}: it must be 'native' or 'python'")
    if wanted == "python":
        return None
    try:
        return importlib.import_module("integration.client.fast")
    except ModuleNotFoundError as error:
        if wanted is not None or error.name != "integration.client._native":
            raise
        return None
