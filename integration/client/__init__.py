"""The client of a gateway: KV blocks over a local socket and shared memory (docs/client.md).

    from integration.client import connect, dialog_id

    client = connect(socket="/run/akv/gateway.sock", namespace="llama-70b")

Standard library only; blocks are memoryviews, usable in place by numpy and torch.
"""

from integration.client.aio import AsyncClient
from integration.client.config import ClientConfig
from integration.client.errors import (
    AuthenticationError,
    ClientError,
    DeadlineExceededError,
    GatewayUnavailableError,
    LoanLostError,
    ProtocolError,
    RequestRefusedError,
)
from integration.client.keys import default_affinity, dialog_id, engine_key
from integration.client.loans import Views
from integration.client.memory import Block
from integration.client.regions import Region
from integration.client.sync import Client, client_class, connect
from integration.client.transfers import Got
from integration.client.wire import Status

__all__ = [
    "AsyncClient",
    "AuthenticationError",
    "Block",
    "Client",
    "ClientConfig",
    "ClientError",
    "DeadlineExceededError",
    "GatewayUnavailableError",
    "Got",
    "LoanLostError",
    "ProtocolError",
    "Region",
    "RequestRefusedError",
    "Status",
    "Views",
    "client_class",
    "connect",
    "default_affinity",
    "dialog_id",
    "engine_key",
]
