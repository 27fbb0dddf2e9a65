"""How a new host gets its certificate: HTTPS on AWC_ENROLL_PORT, where the caller has a token instead of one.
Before that it can have the cluster's hosts look at it (`clustercli doctor`), which does not spend the token.

The caller first takes the CA's certificate from a connection that it can't trust yet, holds it against the
fingerprint in its token, and then sends the secret over a connection that this CA vouches for.
"""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp
import grpc
from aiohttp import web
from akv.v1 import cluster_pb2
from google.protobuf.message import DecodeError

from controlplane.base import pki
from controlplane.base.addresses import HostPort
from controlplane.base.join_token import JoinToken
from controlplane.base.logging import get_logger
from controlplane.base.pki import HOST_DNS_NAME, Identity, PkiError, Role
from controlplane.base.request_errors import InvalidRequest, RequestError, Unavailable
from controlplane.cluster.issuer import Issuer
from controlplane.cluster.record_limit import RecordLimit, repeated
from controlplane.cluster.trust import Trust

CA_PATH, ENROLL_PATH, LOOK_PATH = "/v1/ca", "/v1/enroll", "/v1/look"
CALL_SECONDS = 10.0
HANDSHAKE_SECONDS = 10.0
# A listener that anyone can reach holds no more than this, and nothing for longer.
MAX_CONNECTIONS, CONNECTION_SECONDS = 64, 30.0
MAX_BYTES, MAX_REPORT_BYTES = 16 << 10, 1 << 20
_FIELDS = ("token_id", "secret", "host", "address", "request_pem")
_LOOK_FIELDS = ("token_id", "secret", "host", "endpoints")
_STATUS = {
    grpc.StatusCode.INVALID_ARGUMENT: 400,
    grpc.StatusCode.PERMISSION_DENIED: 403,
    grpc.StatusCode.FAILED_PRECONDITION: 409,
    grpc.StatusCode.UNAVAILABLE: 503,
    grpc.StatusCode.DEADLINE_EXCEEDED: 503,
}

# Lets the hosts of the cluster look at one that has a token. Raises RequestError.
Look = Callable[[cluster_pb2.CheckPeerRequest], Awaitable[cluster_pb2.NewcomerReport]]

log = get_logger("enrollment")


class EnrollServer:
    """The listener of one host. A secret is 32 random bytes, so guessing it is no way in."""

    def __init__(self, endpoint: HostPort, trust: Trust, issuer: Issuer, look: Look) -> None:
        self._endpoint = endpoint
        self._trust = trust
        self._issuer = issuer
        self._look = look
        self._runner: web.AppRunner | None = None
        self._listener: asyncio.Server | None = None
        self._context: ssl.SSLContext | None = None
        self._slots: list[_Slot] = []
        self._refusals = RecordLimit()

    async def start(self) -> None:
        """Serve. OSError when the address is taken."""
        app = web.Application(client_max_size=MAX_BYTES)
        app.router.add_get(CA_PATH, self._give_ca)
        app.router.add_post(ENROLL_PATH, self._enroll)
        app.router.add_post(LOOK_PATH, self._look_at)
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.minimum_version = ssl.TLSVersion.TLSv1_3
        self.renew()
        self._runner = web.AppRunner(app, access_log=None, keepalive_timeout=5.0, shutdown_timeout=1.0)
        await self._runner.setup()
        try:
            self._listener = await asyncio.get_running_loop().create_server(
                self._accept,
                self._endpoint.host,
                self._endpoint.port,
                ssl=self._context,
                ssl_handshake_timeout=HANDSHAKE_SECONDS,
            )
        except OSError:
            await self.stop()
            raise
        log.info("certificates for new hosts served", listen=str(self._endpoint))

    def _accept(self) -> asyncio.BaseProtocol:
        """One connection: bounded in number and in time, since anyone may open one."""
        assert self._runner is not None, "start makes it"
        server = self._runner.server
        assert server is not None, "its setup makes it"
        loop = asyncio.get_running_loop()
        self._slots = [slot for slot in self._slots if slot.is_taken(loop.time())]
        if len(self._slots) >= MAX_CONNECTIONS:
            return _HangUp()
        handler = server()
        self._slots.append(_Slot(handler, loop.time()))
        loop.call_later(CONNECTION_SECONDS, handler.force_close)
        return handler

    def renew(self) -> None:
        """Show the certificate that is in the files now. OSError (ssl.SSLError too) when it can't be read."""
        if self._context is not None:
            self._context.load_cert_chain(self._trust.files.certificate, self._trust.files.key)

    async def stop(self) -> None:
        """Close."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _give_ca(self, _request: web.Request) -> web.Response:
        try:
            return web.Response(text=self._trust.load().ca_pem.decode())
        except RequestError as error:
            return web.Response(text=str(error), status=503)

    async def _enroll(self, request: web.Request) -> web.Response:
        async def work(fields: dict[str, str]) -> web.Response:
            certificate, ca_key = await self._issuer.enroll(**fields)
            log.info(
                "audit",
                who=f"token {fields['token_id'][:12]}",
                call="enroll",
                what=f"host={fields['host'][:80]!r}",
                result="OK",
                peer=_peer(request),
            )
            return web.json_response({"certificate_pem": certificate, "ca_key_pem": ca_key})

        return await self._answer(request, _FIELDS, work)

    async def _look_at(self, request: web.Request) -> web.Response:
        """What the hosts of the cluster see of the caller; only for who has a token."""

        async def work(fields: dict[str, str]) -> web.Response:
            await self._issuer.prove(fields["token_id"], fields["secret"])
            endpoints = filter(None, fields["endpoints"].split(","))
            report = await self._look(cluster_pb2.CheckPeerRequest(host=fields["host"], endpoints=endpoints))
            return web.Response(body=report.SerializeToString())

        return await self._answer(request, _LOOK_FIELDS, work)

    async def _answer(
        self,
        request: web.Request,
        names: Sequence[str],
        work: Callable[[dict[str, str]], Awaitable[web.Response]],
    ) -> web.Response:
        """The work's answer within CALL_SECONDS, or a refusal with its sentence."""
        host = "unknown"
        try:
            async with asyncio.timeout(CALL_SECONDS):
                fields = _fields(await request.read(), names)
                host = fields["host"][:80]
                return await work(fields)
        except RequestError as error:
            code, sentence = error.code, str(error)
        except TimeoutError:
            code = grpc.StatusCode.DEADLINE_EXCEEDED
            sentence = f"not done within {CALL_SECONDS:g} s; ask again"
        self._record_refusal(request, host, code)
        return web.json_response({"error": sentence}, status=_STATUS.get(code, 500))

    def _record_refusal(self, request: web.Request, host: str, code: grpc.StatusCode) -> None:
        """Once a minute for each address and kind: anyone can have any number of requests refused."""
        peer, call = _peer(request), request.path.rpartition("/")[2]
        held = self._refusals.admit((peer, call, code))
        if held is not None:
            who = f"token, as host {host}"
            log.warning("audit", who=who, call=call, result=code.name, peer=peer, **repeated(held))


def _peer(request: web.Request) -> str:
    return request.remote or "unknown"


@dataclass(slots=True)
class _Slot:
    """One connection, which is there for its handler only once TLS is set up, and until it ends."""

    handler: web.RequestHandler
    began: float
    was_set_up: bool = False

    def is_taken(self, now: float) -> bool:
        """Whether the connection may be there: one that is not set up in time is given up."""
        is_set_up = self.handler.transport is not None
        self.was_set_up = self.was_set_up or is_set_up
        return is_set_up or (not self.was_set_up and now - self.began < HANDSHAKE_SECONDS)


class _HangUp(asyncio.Protocol):
    """Closes the connection at once."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()


def _fields(body: bytes, names: Sequence[str]) -> dict[str, str]:
    try:
        document = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest("the request is not JSON") from error
    if not isinstance(document, dict) or not all(map(_is_text, map(document.get, names))):
        raise InvalidRequest(f"the request is not an object with the texts {', '.join(names)}")
    return {name: document[name] for name in names}


def _is_text(value: Any) -> bool:
    """Whether it is a text of whole characters: JSON can hold half a surrogate pair, which no record can."""
    return isinstance(value, str) and not any("\ud800" <= character <= "\udfff" for character in value)


@dataclass(frozen=True, slots=True)
class Enrolled:
    """What a new host gets, in PEM; `key_pem` was made by it and never left it."""

    ca_pem: bytes
    certificate_pem: bytes
    key_pem: bytes
    ca_key_pem: bytes


async def enroll(via_host: str, token: JoinToken, host: str, address: str) -> Enrolled:
    """Get this host's certificate from another one. Raises RequestError; Unavailable when nobody answers."""
    via = HostPort(via_host, token.port)
    key = pki.new_key()
    identity = Identity(Role.HOST, host)
    try:
        request_pem = pki.make_request(key, identity).decode()
        ca_pem = await _fetch_ca(via, token.ca_fingerprint)
        body = {**_shown(token), "host": host, "address": address, "request_pem": request_pem}
        answer = await _post(via, ca_pem, ENROLL_PATH, body, MAX_BYTES)
        return _checked(_document(answer), ca_pem, key, identity)
    except PkiError as error:
        raise RequestError(f"{via} gives no certificate that can be used: {error}") from error
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        raise _away(via, error) from error


@dataclass(frozen=True, slots=True)
class Looked:
    """What the cluster's hosts saw of this one, and by our clock when it was asked for and when it came."""

    report: cluster_pb2.NewcomerReport
    asked: float
    got: float


async def be_looked_at(via_host: str, token: JoinToken, host: str, endpoints: Sequence[str]) -> Looked:
    """Have the hosts of a cluster look at this one. Raises as `enroll`."""
    via = HostPort(via_host, token.port)
    try:
        ca_pem = await _fetch_ca(via, token.ca_fingerprint)
        body = {**_shown(token), "host": host, "endpoints": ",".join(endpoints)}
        asked = time.time()
        answer = await _post(via, ca_pem, LOOK_PATH, body, MAX_REPORT_BYTES)
        return Looked(cluster_pb2.NewcomerReport.FromString(answer), asked, time.time())
    except PkiError as error:
        raise RequestError(f"{via} can't be trusted: {error}") from error
    except DecodeError as error:
        raise Unavailable(f"{via} gives no report that can be read: is it of this version?") from error
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        raise _away(via, error) from error


def _shown(token: JoinToken) -> dict[str, str]:
    return {"token_id": token.token_id, "secret": base64.b64encode(token.secret).decode()}


def _away(via: HostPort, error: Exception) -> Unavailable:
    return Unavailable(
        f"{via} gives no certificates ({str(error) or type(error).__name__}): name a host that is in the "
        "cluster, and see that its AWC_ENROLL_PORT can be reached"
    )


async def _fetch_ca(via: HostPort, fingerprint: str) -> bytes:
    """The CA's certificate, proven by the token. Raises RequestError."""
    unproven = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    unproven.check_hostname = False
    unproven.verify_mode = ssl.CERT_NONE
    async with (
        _session() as session,
        session.get(_url(via, CA_PATH), ssl=unproven, allow_redirects=False) as answer,
    ):
        ca_pem = await _bounded(answer, MAX_BYTES)
    certificate = pki.load_authority_certificate(ca_pem, pki.utc_now())
    found = pki.fingerprint(certificate)
    if found != fingerprint:
        raise RequestError(
            f"{via} is not of the cluster that made the token: its CA has the fingerprint {found[:16]}…, the "
            f"token says {fingerprint[:16]}…; name the right host, and find out who answers there"
        )
    return pki.to_pem(certificate)


async def _post(via: HostPort, ca_pem: bytes, path: str, body: dict[str, str], limit: int) -> bytes:
    """The answer of a host that this CA vouches for. Raises RequestError when it refuses."""
    proven = ssl.create_default_context(cadata=ca_pem.decode())
    async with (
        _session() as session,
        session.post(
            _url(via, path), json=body, ssl=proven, server_hostname=HOST_DNS_NAME, allow_redirects=False
        ) as answer,
    ):
        data = await _bounded(answer, limit)
        status = answer.status
    if status == 200:
        return data
    document = _document(data)
    if "error" not in document:
        raise Unavailable(f"{via} answered HTTP {status} without an explanation")
    reason = f"{via} refuses: {document['error']}"
    raise Unavailable(reason) if status == 503 else RequestError(reason)


def _document(data: bytes) -> dict[str, Any]:
    """An answer in JSON; empty for what is none."""
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


def _checked(answer: dict[str, Any], ca_pem: bytes, key: pki.PrivateKey, identity: Identity) -> Enrolled:
    """What was given is ours and of this CA. Raises PkiError."""
    certificate_pem = str(answer.get("certificate_pem", "")).encode()
    ca_key_pem = str(answer.get("ca_key_pem", "")).encode()
    certificate = pki.load_certificate(certificate_pem)
    pki.load_authority(ca_pem, ca_key_pem, pki.utc_now())
    if pki.identity_of(certificate_pem) != identity or certificate.public_key() != key.public_key():
        raise PkiError("a certificate of someone else")
    return Enrolled(ca_pem, certificate_pem, pki.key_pem(key), ca_key_pem)


def _session() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        timeout=aiohttp.ClientTimeout(total=CALL_SECONDS), auto_decompress=False, trust_env=False
    )


async def _bounded(answer: aiohttp.ClientResponse, limit: int) -> bytes:
    data = await answer.content.read(limit + 1)
    while len(data) <= limit and (more := await answer.content.read(limit + 1)):
        data += more
    if len(data) > limit:
        raise OSError(f"it sends more than {limit} bytes")
    return data


def _url(via: HostPort, path: str) -> str:
    return via.url("https") + path
