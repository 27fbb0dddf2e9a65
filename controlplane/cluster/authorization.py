"""Who may call what, by the role in the caller's certificate, and the record of administrative calls.

A method that is not listed is for administrators. Hosts forward administrators' calls of the fleet's API to
the leader, so they may call it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Container
from contextlib import aclosing
from typing import Any

import grpc

from controlplane.base.backoff import Clock
from controlplane.base.logging import get_logger
from controlplane.base.pki import Identity, Role
from controlplane.base.tls import LOCAL_ADMIN, NoPeerError, peer_identity
from controlplane.cluster.record_limit import RecordLimit, repeated
from controlplane.cluster.rpc import HOST_METADATA

MAX_SUMMARY = 400
# How long a stream may last that is not an agent's: a watch of health, or reflection.
STREAM_SECONDS = 600.0

_EVERYONE = frozenset(Role)
_ADMIN = frozenset({Role.ADMIN})
_HOSTS = frozenset({Role.ADMIN, Role.HOST})
_READERS = frozenset({Role.ADMIN, Role.HOST, Role.GATEWAY})
_CLUSTER, _OPERATOR = "/akv.v1.ClusterService/", "/akv.v1.OperatorService/"
_FLEET, _PKI = "/akv.v1.FleetService/", "/akv.v1.PkiService/"
JOIN = f"{_CLUSTER}JoinCluster"
# It lasts as long as the agent; its own heartbeats tell when it is dead.
_AGENTS_STREAM = "/akv.v1.AgentService/Connect"

_METHODS: dict[str, frozenset[Role]] = {
    f"{_CLUSTER}GetMembers": _READERS,
    f"{_CLUSTER}GetCluster": _READERS,
    JOIN: _HOSTS,
    f"{_OPERATOR}ListCards": _READERS,
    f"{_OPERATOR}ShowPlan": _READERS,
    f"{_OPERATOR}ListEvents": _HOSTS,
    f"{_OPERATOR}CheckPeer": _HOSTS,
    f"{_PKI}RenewCertificate": _EVERYONE,
    _AGENTS_STREAM: frozenset({Role.AGENT}),
}
_SERVICES: dict[str, frozenset[Role]] = {
    _FLEET: _HOSTS,
    "/grpc.health.v1.Health/": _EVERYONE,
}
# What changes nothing, or is repeated by programs, leaves no record when it is allowed.
_NOT_RECORDED = frozenset(
    {
        f"{_CLUSTER}GetMembers",
        f"{_CLUSTER}GetCluster",
        JOIN,
        f"{_OPERATOR}ListCards",
        f"{_OPERATOR}ShowPlan",
        f"{_OPERATOR}ListEvents",
        f"{_OPERATOR}CheckHost",
        f"{_OPERATOR}CheckPeer",
        f"{_PKI}GetPki",
        f"{_FLEET}ListNodes",
        f"{_FLEET}GetNode",
        f"{_FLEET}GetLogs",
        f"{_FLEET}ListShards",
        f"{_FLEET}GetModels",
        f"{_FLEET}ListFabricMaps",
        f"{_FLEET}PairRails",
        _AGENTS_STREAM,
    }
)
_SECRET_FIELDS = frozenset({"token", "request_pem"})

log = get_logger("audit")


def allowed_roles(method: str) -> frozenset[Role]:
    """Who may call `/SERVICE/METHOD`."""
    service = method[: method.rfind("/") + 1]
    return _METHODS.get(method, _SERVICES.get(service, _ADMIN))


def is_recorded(method: str) -> bool:
    """Whether a call that was allowed leaves a record: every call of our services that changes something."""
    return method.startswith("/akv.v1.") and method not in _NOT_RECORDED


def refusal_of(method: str, identity: Identity, request: Any) -> str:
    """Why this caller may not do this; empty when it may."""
    roles = allowed_roles(method)
    if identity.role not in roles:
        wanted = " or ".join(sorted(roles))
        return (
            f"{method[1:]} is for the role {wanted}, and the certificate is that of {identity}: show one of "
            "the right role (clustercli pki issue)"
        )
    if method == JOIN and identity.role is Role.HOST and request.host != identity.name:
        return f"{identity} can't join as {request.host[:80]!r}: AWC_HOST and its certificate must agree"
    return ""


def summary_of(request: Any) -> str:
    """What was asked, in short; secrets are left out."""
    fields: list[tuple[Any, Any]] = getattr(request, "ListFields", list)()
    parts = [
        f"{field.name}={'(hidden)' if field.name in _SECRET_FIELDS else repr(value)}"
        for field, value in fields
    ]
    text = " ".join(" ".join(parts).split())
    return text if len(text) <= MAX_SUMMARY else text[: MAX_SUMMARY - 1] + "…"


class Gatekeeper(grpc.aio.ServerInterceptor):
    """Lets each call through or refuses it, and writes the `audit` log events.

    With `secure` false anyone may do anything (insecure-loopback), and the record says from where it came.
    `revoked` are the names that are refused with each of their certificates. A stream ends after
    `stream_seconds`; calls that are none have deadlines of their own.
    """

    def __init__(
        self,
        host: str,
        revoked: Container[str],
        *,
        secure: bool,
        clock: Clock = time.monotonic,
        stream_seconds: float = STREAM_SECONDS,
    ) -> None:
        self._host = host
        self._revoked = revoked
        self._secure = secure
        self._stream_seconds = stream_seconds
        self._refusals = RecordLimit(clock)

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """Put ourselves in front of the handler."""
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        method = str(handler_call_details.method)
        wrap = self._streaming if handler.response_streaming else self._unary
        make = {
            (False, False): grpc.unary_unary_rpc_method_handler,
            (False, True): grpc.unary_stream_rpc_method_handler,
            (True, False): grpc.stream_unary_rpc_method_handler,
            (True, True): grpc.stream_stream_rpc_method_handler,
        }[handler.request_streaming, handler.response_streaming]
        inner = handler.unary_unary or handler.unary_stream or handler.stream_unary or handler.stream_stream
        return make(wrap(method, inner), handler.request_deserializer, handler.response_serializer)

    def _unary(self, method: str, inner: Callable[[Any, Any], Awaitable[Any]]) -> Callable[[Any, Any], Any]:
        async def call(request: Any, context: Any) -> Any:
            who = await self._admit(method, request, context)
            if not is_recorded(method):
                return await inner(request, context)
            result = "FAILED"
            try:
                answer = await inner(request, context)
                result = "OK"
                return answer
            finally:
                self._record(method, request, who, result if result == "OK" else _code(context), context)

        return call

    def _streaming(self, method: str, inner: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        limit = None if method == _AGENTS_STREAM else self._stream_seconds

        async def call(request: Any, context: Any) -> AsyncIterator[Any]:
            await self._admit(method, request, context)
            try:
                async with asyncio.timeout(limit) as whole:
                    answers = inner(request, context)
                    if not hasattr(answers, "__aiter__"):
                        await answers  # it writes by itself
                        return
                    async with aclosing(answers) as stream:
                        async for answer in stream:
                            yield answer
            except TimeoutError:
                if not whole.expired():
                    raise
                await self._end_stream(context)

        return call

    async def _end_stream(self, context: Any) -> None:
        reason = f"a stream lasts {self._stream_seconds:g} s at most: begin a new one"
        await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, reason, ((HOST_METADATA, self._host),))

    async def _admit(self, method: str, request: Any, context: Any) -> str:
        if not self._secure:
            return "anyone (insecure-loopback)"
        try:
            identity = peer_identity(context)
        except NoPeerError as error:
            return await self._refuse(
                method, request, "unknown", grpc.StatusCode.UNAUTHENTICATED, str(error), context
            )
        reason = refusal_of(method, identity, request)
        if identity != LOCAL_ADMIN and identity.name in self._revoked:
            reason = f"the certificates of {identity} were revoked: have one issued for another name"
        if reason:
            code = grpc.StatusCode.PERMISSION_DENIED
            return await self._refuse(method, request, str(identity), code, reason, context)
        return str(identity)

    async def _refuse(
        self, method: str, request: Any, who: str, code: grpc.StatusCode, reason: str, context: Any
    ) -> str:
        """Refuse, and record it, for one caller and method once a minute."""
        held = self._refusals.admit((who, method))
        if held is not None:
            self._record(method, request, who, code.name, context, held)
        await context.abort(code, reason, ((HOST_METADATA, self._host),))
        raise AssertionError("abort always raises")

    def _record(self, method: str, request: Any, who: str, result: str, context: Any, held: int = 0) -> None:
        what = summary_of(request)
        log.info(
            "audit",
            who=who,
            call=method[1:],
            what=what,
            result=result,
            peer=context.peer(),
            **repeated(held),
        )


def _code(context: Any) -> str:
    """The status that a handler ended with; a call that was cancelled has none."""
    code = context.code()
    if isinstance(code, grpc.StatusCode):
        return code.name
    return next((known.name for known in grpc.StatusCode if known.value[0] == code and code), "CANCELLED")
