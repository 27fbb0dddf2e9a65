"""What the doctor learns from a cluster's hosts: reachability both ways, names, clocks, serials in use."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator, Iterable
from urllib.parse import urlsplit

from akv.v1 import cluster_pb2 as pb

from controlplane.base.addresses import AddressError, HostPort, parse_host_port
from controlplane.base.card_cli import ListedCard
from controlplane.base.request_errors import InvalidRequest, RequestError
from controlplane.cluster import member_client
from controlplane.cluster.doctor_local import why_unreachable
from controlplane.cluster.doctor_report import Finding, failed, ok, skipped, warning
from controlplane.cluster.settings import ClusterSettings
from controlplane.cluster.trust import Trust

MAX_ENDPOINTS = 8
# What of a host's record is an endpoint; its data addresses and the like are not.
SERVED = ("api", "exporter", "ping", "etcd_client", "etcd_peer")
CLOCK_GOOD_SECONDS, CLOCK_BAD_SECONDS = 1.0, 30.0
RESOLVE_SECONDS = 2.0


async def check_peer(own_host: str, request: pb.CheckPeerRequest) -> pb.CheckPeerResponse:
    """How the host of the request looks from here. Raises InvalidRequest."""
    if len(request.endpoints) > MAX_ENDPOINTS:
        raise InvalidRequest(f"{len(request.endpoints)} endpoints are more than {MAX_ENDPOINTS}")
    for endpoint in request.endpoints:
        try:
            parse_host_port(endpoint)
        except AddressError as error:
            raise InvalidRequest(f"{endpoint[:80]!r} is no ADDRESS:PORT: {error}") from None
    reasons = await asyncio.gather(*(why_unreachable(endpoint) for endpoint in request.endpoints))
    return pb.CheckPeerResponse(
        host=own_host,
        resolved=await resolve(request.host),
        unreachable=[
            pb.UnreachableEndpoint(endpoint=endpoint, reason=reason)
            for endpoint, reason in zip(request.endpoints, reasons, strict=True)
            if reason
        ],
        time=time.time(),
    )


async def resolve(name: str) -> list[str]:
    """Addresses of a host name as this host's resolver gives them; empty when there are none."""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(RESOLVE_SECONDS):
            found = await loop.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError, TimeoutError):
        return []
    return sorted({str(info[4][0]) for info in found})


async def check_cluster(
    settings: ClusterSettings, trust: Trust, via: str, cards: Iterable[ListedCard], is_member: bool
) -> list[Finding]:
    """All that can be found out with the help of the cluster that `via` belongs to."""
    if trust.secure and not trust.ready:
        return await _check_strangers_way(settings, via)
    try:
        cluster = await member_client.cluster_of(trust, via)
    except RequestError as error:
        remedy = "name a host of the cluster that runs, and open port 5000 between the hosts"
        return [failed("cluster", f"{via} gives no picture of its cluster: {error}", remedy)]
    findings = [ok("cluster", f"{via} is in cluster {cluster.name} of {len(cluster.hosts)} hosts")]
    findings += _check_names(settings, cluster)
    findings += _check_serials(settings, cluster, cards)
    others = [host for host in cluster.hosts if host.enabled and host.host != settings.host]
    async with _listening(settings, is_member) as endpoints:
        for answers in await asyncio.gather(
            *(_check_host(settings, trust, host, endpoints) for host in others)
        ):
            findings += answers
    return findings


async def _check_strangers_way(settings: ClusterSettings, via: str) -> list[Finding]:
    """Before this host has a certificate, no host answers it: only the way there can be tried."""
    enroll = str(HostPort(parse_host_port(via).host, settings.enroll_port))
    remedy = "start awide-cluster there, and open ports 5000 and 5001 between the hosts"
    findings = [
        failed(f"to-{what}", f"{what} at {endpoint}: {reason}", remedy)
        if (reason := await why_unreachable(endpoint))
        else ok(f"to-{what}", f"this host reaches {what} at {endpoint}")
        for what, endpoint in (("api", via), ("enrollment", enroll))
    ]
    text = "this host has no certificate yet, so no host answers it: run doctor again after add_node"
    return [*findings, skipped("cluster", text)]


def _check_names(settings: ClusterSettings, cluster: pb.GetClusterResponse) -> list[Finding]:
    for host in cluster.hosts:
        address = host.addresses.get("etcd_peer", "")
        if host.host != settings.host and host.enabled and address == settings.peer_url:
            text = f"{address} is already that of {host.host}"
            return [failed("identity", text, "correct AWC_ADDRESS or the ports")]
        if host.host == settings.host and host.enabled and address not in {"", settings.peer_url}:
            text = f"the cluster has a host {host.host} at {address}"
            return [
                failed("identity", text, "choose another AWC_HOST, or remove that host first when it moved")
            ]
    return [ok("identity", f"name {settings.host} and address {settings.peer_url} are this host's alone")]


def _check_serials(
    settings: ClusterSettings, cluster: pb.GetClusterResponse, cards: Iterable[ListedCard]
) -> list[Finding]:
    findings = []
    for card in cards:
        serial = settings.xdp_serials.get(card.device, card.serial)
        for host in cluster.hosts:
            for other in host.cards:
                same = (other.xdp_serial == serial, other.nqn == card.nqn)
                if host.host != settings.host and any(same) and not all(same):
                    text = (
                        f"{card.device} ({serial}, {card.nqn}) and {other.device} of {host.host} "
                        f"({other.xdp_serial}, {other.nqn}) share a serial or an NQN"
                    )
                    remedy = "give one of the cards a serial and an NQN of its own"
                    findings.append(failed(f"duplicate-{card.device}", text, remedy))
    return findings


@contextlib.asynccontextmanager
async def _listening(settings: ClusterSettings, is_member: bool) -> AsyncIterator[list[str]]:
    """The endpoints that others must reach; where etcd does not run yet, we listen in its place.

    Exporters that are not there are told by a check of their own.
    """
    ports = [
        HostPort(settings.address, port) for port in (settings.etcd_client_port, settings.etcd_peer_port)
    ]
    async with contextlib.AsyncExitStack() as stack:
        if not is_member:
            for endpoint in ports:
                with contextlib.suppress(OSError):  # check_port tells that it is taken
                    server = await asyncio.start_server(_hang_up, endpoint.host, endpoint.port)
                    await stack.enter_async_context(server)
        exporters = [found for found in (settings.exporter_endpoint, settings.ping_endpoint) if found]
        reasons = await asyncio.gather(*map(why_unreachable, exporters))
        served = [found for found, reason in zip(exporters, reasons, strict=True) if not reason]
        yield [settings.api_endpoint, *map(str, ports), *served]


async def _hang_up(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.close()


async def _check_host(
    settings: ClusterSettings, trust: Trust, host: pb.ClusterHost, endpoints: list[str]
) -> list[Finding]:
    findings = [await _check_way_there(host)]
    request = pb.CheckPeerRequest(host=settings.host, endpoints=endpoints)
    asked = time.time()
    try:
        answer = await member_client.check_peer(trust, host.addresses["api"], request)
    except (RequestError, KeyError) as error:
        remedy = f"start awide-cluster on {host.host}, of this version, or remove the host"
        return [*findings, warning(f"from-{host.host}", f"{host.host} can't be asked: {error}", remedy)]
    got = time.time()
    findings.append(judge_clock(host.host, answer.time - got, got - asked))
    if answer.unreachable:
        ways = ", ".join(f"{entry.endpoint} ({entry.reason})" for entry in answer.unreachable)
        remedy = f"open these ports of this host towards {host.host}, and see that AWC_ADDRESS is not local"
        findings.append(failed(f"from-{host.host}", f"{host.host} does not reach {ways}", remedy))
    else:
        findings.append(ok(f"from-{host.host}", f"{host.host} reaches {', '.join(endpoints)}"))
    here = await resolve(host.host)
    findings.append(judge_names(settings.host, host.host, here, list(answer.resolved)))
    return findings


async def _check_way_there(host: pb.ClusterHost) -> Finding:
    """Whether this host reaches what the other says that it serves."""
    served = (host.addresses[name] for name in SERVED if name in host.addresses)
    endpoints = sorted({urlsplit(a).netloc if "://" in a else a for a in served})
    reasons = await asyncio.gather(*(why_unreachable(endpoint) for endpoint in endpoints))
    silent = [f"{e} ({reason})" for e, reason in zip(endpoints, reasons, strict=True) if reason]
    if silent:
        remedy = f"start what is missing on {host.host}, and open its ports towards this host"
        return warning(f"to-{host.host}", f"this host does not reach {', '.join(silent)}", remedy)
    return ok(f"to-{host.host}", f"this host reaches {', '.join(endpoints)}")


def judge_clock(host: str, difference: float, round_trip: float) -> Finding:
    """Whether two clocks are close enough for certificates and for the times in logs.

    `difference`: the other clock minus ours, seconds; it is known up to the round trip.
    """
    name, apart = f"clock-{host}", max(0.0, abs(difference) - round_trip)
    text = f"the clock of {host} differs by {abs(difference):.3f} s (within {round_trip:.3f} s)"
    remedy = "let both hosts follow the same time servers (chrony)"
    if apart > CLOCK_BAD_SECONDS:
        return failed(name, text + ": certificates may count as not yet valid", remedy)
    return warning(name, text, remedy) if apart > CLOCK_GOOD_SECONDS else ok(name, text)


def judge_names(own: str, other: str, here: list[str], there: list[str]) -> Finding:
    """Whether each finds the other by name: `here` are addresses of `other` on this host, `there` ours."""
    name = f"names-{other}"
    missing = [f"{other} on this host"] if not here else []
    missing += [f"{own} on {other}"] if not there else []
    if missing:
        text = f"no address is found for {' and '.join(missing)}"
        return warning(name, text, "add the names to DNS or to /etc/hosts: gateways ask hosts by name")
    return ok(name, f"{other} is {', '.join(here)} here, {own} is {', '.join(there)} there")
