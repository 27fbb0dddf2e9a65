"""What the doctor learns from a cluster's hosts: reachability both ways, names, clocks, serials in use."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from urllib.parse import urlsplit

from akv.v1 import cluster_pb2 as pb

from controlplane.base.addresses import AddressError, HostPort, parse_host_port
from controlplane.base.card_cli import ListedCard
from controlplane.base.join_token import JoinToken
from controlplane.base.request_errors import InvalidRequest, RequestError
from controlplane.cluster import member_client
from controlplane.cluster.doctor_local import why_unreachable
from controlplane.cluster.doctor_report import Finding, failed, ok, skipped, warning
from controlplane.cluster.enrollment import be_looked_at
from controlplane.cluster.settings import ClusterSettings
from controlplane.cluster.trust import Trust

MAX_ENDPOINTS = 8
# What of a host's record is an endpoint; its data addresses and the like are not.
SERVED = ("api", "exporter", "ping", "etcd_client", "etcd_peer")
CLOCK_GOOD_SECONDS, CLOCK_BAD_SECONDS = 1.0, 30.0
RESOLVE_SECONDS = 2.0


async def check_peer(own_host: str, request: pb.CheckPeerRequest) -> pb.CheckPeerResponse:
    """How the host of the request looks from here. Raises InvalidRequest."""
    _check_endpoints(request)
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


def _check_endpoints(request: pb.CheckPeerRequest) -> None:
    if len(request.endpoints) > MAX_ENDPOINTS:
        raise InvalidRequest(f"{len(request.endpoints)} endpoints are more than {MAX_ENDPOINTS}")
    for endpoint in request.endpoints:
        try:
            parse_host_port(endpoint)
        except AddressError as error:
            raise InvalidRequest(f"{endpoint[:80]!r} is no ADDRESS:PORT: {error}") from None


async def look_at_newcomer(
    trust: Trust,
    get_cluster: Callable[[], Awaitable[pb.GetClusterResponse]],
    request: pb.CheckPeerRequest,
) -> pb.NewcomerReport:
    """What every host of the cluster sees of a host that is to join. Raises RequestError."""
    _check_endpoints(request)
    began = time.time()
    cluster = await get_cluster()
    others = [host for host in cluster.hosts if host.enabled and host.host != request.host]
    looks = await asyncio.gather(*(_look(trust, host, request) for host in others))
    return pb.NewcomerReport(cluster=cluster, looks=looks, began=began, ended=time.time())


async def _look(trust: Trust, host: pb.ClusterHost, request: pb.CheckPeerRequest) -> pb.PeerLook:
    """Ask one host how another looks from there; that it can't be asked is an answer too."""
    asked = time.time()
    try:
        answer = await member_client.check_peer(trust, host.addresses["api"], request)
    except (RequestError, KeyError) as error:
        return pb.PeerLook(host=host.host, problem=str(error) or "no reason is given")
    got = time.time()
    return pb.PeerLook(
        host=host.host, answer=answer, clock_difference=answer.time - got, round_trip=got - asked
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
    settings: ClusterSettings, trust: Trust, via: str, cards: Sequence[ListedCard], is_member: bool
) -> list[Finding]:
    """All that can be found out with the help of the cluster that `via` belongs to."""
    try:
        cluster = await member_client.cluster_of(trust, via)
    except RequestError as error:
        remedy = "name a host of the cluster that runs, and open port 5000 between the hosts"
        return [failed("cluster", f"{via} gives no picture of its cluster: {error}", remedy)]
    findings = _check_picture(settings, via, cluster, cards)
    own = HostPort(settings.address, settings.api_port)
    etcd = [] if is_member else _etcd_places(settings)
    async with _listening(etcd):
        endpoints = [*map(str, (own, *_etcd_places(settings))), *await _served(_exporter_places(settings))]
        request = pb.CheckPeerRequest(host=settings.host, endpoints=endpoints)
        others = _others(settings, cluster)
        looks = await asyncio.gather(*(_look(trust, host, request) for host in others))
    return findings + await _judge_looks(settings, others, looks, endpoints)


async def check_before_joining(
    settings: ClusterSettings, via: str, token: JoinToken | None, cards: Sequence[ListedCard]
) -> list[Finding]:
    """Before this host has a certificate, no host answers it: without a token only the way there can be
    tried; one that it shows a token to has all hosts look at it.
    """
    findings = await _check_strangers_way(settings, via)
    if token is None:
        text = (
            "this host has no certificate yet, so no host answers it: give doctor the --token too, and the "
            "cluster's hosts look at this one (the token stays good)"
        )
        return [*findings, skipped("cluster", text)]
    places = [HostPort(settings.address, settings.api_port), *_etcd_places(settings)]
    places += [HostPort(settings.address, settings.enroll_port), *_exporter_places(settings)]
    endpoints = list(map(str, places))
    try:
        async with _listening(places):
            looked = await be_looked_at(parse_host_port(via).host, token, settings.host, endpoints)
    except RequestError as error:
        remedy = "name a host of the cluster that runs, and give a token that is open (clustercli pki token)"
        return [*findings, failed("cluster", f"{via} gives no picture of its cluster: {error}", remedy)]
    report = looked.report
    others = _others(settings, report.cluster)
    # As time servers do it: half of what the way took is each way's.
    ahead = ((report.began - looked.asked) + (report.ended - looked.got)) / 2
    way = max(0.0, (looked.got - looked.asked) - (report.ended - report.began))
    findings += _check_picture(settings, via, report.cluster, cards)
    return findings + await _judge_looks(settings, others, report.looks, endpoints, ahead, way)


async def _check_strangers_way(settings: ClusterSettings, via: str) -> list[Finding]:
    enroll = str(HostPort(parse_host_port(via).host, settings.enroll_port))
    remedy = "start awide-cluster there, and open ports 5000 and 5001 between the hosts"
    return [
        failed(f"to-{what}", f"{what} at {endpoint}: {reason}", remedy)
        if (reason := await why_unreachable(endpoint))
        else ok(f"to-{what}", f"this host reaches {what} at {endpoint}")
        for what, endpoint in (("api", via), ("enrollment", enroll))
    ]


def _check_picture(
    settings: ClusterSettings, via: str, cluster: pb.GetClusterResponse, cards: Sequence[ListedCard]
) -> list[Finding]:
    findings = [ok("cluster", f"{via} is in cluster {cluster.name} of {len(cluster.hosts)} hosts")]
    return findings + _check_names(settings, cluster) + _check_serials(settings, cluster, cards)


def _others(settings: ClusterSettings, cluster: pb.GetClusterResponse) -> list[pb.ClusterHost]:
    return [host for host in cluster.hosts if host.enabled and host.host != settings.host]


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


def _etcd_places(settings: ClusterSettings) -> list[HostPort]:
    ports = (settings.etcd_client_port, settings.etcd_peer_port)
    return [HostPort(settings.address, port) for port in ports]


def _exporter_places(settings: ClusterSettings) -> list[HostPort]:
    return [parse_host_port(found) for found in (settings.exporter_endpoint, settings.ping_endpoint) if found]


async def _served(places: Iterable[HostPort]) -> list[str]:
    """Those of them that something answers at: what is not there is told by a check of its own."""
    endpoints = list(map(str, places))
    reasons = await asyncio.gather(*map(why_unreachable, endpoints))
    return [endpoint for endpoint, reason in zip(endpoints, reasons, strict=True) if not reason]


@contextlib.asynccontextmanager
async def _listening(places: Iterable[HostPort]) -> AsyncIterator[None]:
    """Listen in the place of what does not run yet, so that others can try the way."""
    async with contextlib.AsyncExitStack() as stack:
        for place in places:
            with contextlib.suppress(OSError):  # it runs, or check_port tells who has the port
                server = await asyncio.start_server(_hang_up, place.host, place.port)
                await stack.enter_async_context(server)
        yield


async def _hang_up(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.close()


async def _judge_looks(
    settings: ClusterSettings,
    others: Iterable[pb.ClusterHost],
    looks: Iterable[pb.PeerLook],
    endpoints: list[str],
    ahead: float = 0.0,
    way: float = 0.0,
) -> list[Finding]:
    """What the other hosts see of this one, and this one of them.

    `ahead` is how far the clock of who asked them is ahead of ours, known up to `way`; 0 when we did.
    """
    seen = {look.host: look for look in looks}
    findings: list[Finding] = []
    others = list(others)
    ways = await asyncio.gather(*map(_check_way_there, others))
    for host, there in zip(others, ways, strict=True):
        findings.append(there)
        look = seen.get(host.host, pb.PeerLook(host=host.host, problem="it was not asked"))
        if look.problem:
            remedy = f"start awide-cluster on {host.host}, of this version, or remove the host"
            text = f"{host.host} can't be asked: {look.problem}"
            findings.append(warning(f"from-{host.host}", text, remedy))
            continue
        findings.append(judge_clock(host.host, look.clock_difference + ahead, look.round_trip + way))
        findings.append(_judge_reach(host.host, look.answer, endpoints))
        here = await resolve(host.host)
        findings.append(judge_names(settings.host, host.host, here, list(look.answer.resolved)))
    return findings


def _judge_reach(host: str, answer: pb.CheckPeerResponse, endpoints: list[str]) -> Finding:
    if not answer.unreachable:
        return ok(f"from-{host}", f"{host} reaches {', '.join(endpoints)}")
    ways = ", ".join(f"{entry.endpoint} ({entry.reason})" for entry in answer.unreachable)
    remedy = f"open these ports of this host towards {host}, and see that AWC_ADDRESS is not local"
    return failed(f"from-{host}", f"{host} does not reach {ways}", remedy)


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
