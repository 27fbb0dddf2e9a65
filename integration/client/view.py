"""What all clients show of their engine, and which implementations there are."""

from __future__ import annotations

import importlib
from typing import Any, Literal

from integration.client.config import ClientConfig
from integration.client.engine import Engine
from integration.client.errors import ClientError, GatewayUnavailableError

Implementation = Literal["native", "python"]


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
    def last_error(self) -> ClientError | None:
        """The last thing that went wrong."""
        return self._engine.last_error

    @property
    def counters(self) -> dict[str, int]:
        """Calls that met no gateway (`unavailable`), a deadline or a refusal; sessions made and lost."""
        return dict(self._engine.counters)

    def _no_session(self, config: ClientConfig) -> ClientError:
        """Why a strict client has no session."""
        return self.last_error or GatewayUnavailableError(f"no answer from the gateway at {config.address}")


def find_native(needed: bool) -> Any:
    """The module of the native clients. None where it is not installed; ImportError where it is `needed`."""
    try:
        return importlib.import_module("integration.client.fast")
    except ModuleNotFoundError as error:
        if needed or error.name != "integration.client._native":
            raise
        return None
