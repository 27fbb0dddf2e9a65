"""What the doctor looks at on the host itself: ports, disk, etcd's program, the card CLI, serial numbers."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import socket
import tempfile
import time
from pathlib import Path

from controlplane.base.addresses import HostPort
from controlplane.base.card_cli import CardCli, CardCliError, ListedCard
from controlplane.base.card_identify import CardIdentify, Identified, IdentifyError
from controlplane.cluster.doctor_report import Finding, failed, ok, skipped, warning
from controlplane.cluster.etcd_binary import OLDEST, EtcdBinaryError, require_version
from controlplane.cluster.settings import DOCKER, ClusterSettings

# etcd wants the 99th percentile of an fdatasync below 10 ms; with its heartbeat of 100 ms, more is a leader
# that is lost now and then (etcd's documentation, "Hardware recommendations").
FSYNC_GOOD_MS, FSYNC_BAD_MS = 10.0, 100.0
FSYNC_BYTES, FSYNC_WRITES, FSYNC_SECONDS = 2300, 200, 3.0
LEAST_FREE_BYTES = 4 << 30
CONNECT_SECONDS = 2.0


def check_port(name: str, endpoint: HostPort, what: str) -> Finding:
    """Whether a port that the host's etcd will use is free."""
    family = socket.AF_INET6 if ":" in endpoint.host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((endpoint.host, endpoint.port))
        except OSError as error:
            remedy = f"end the program that has it (ss -ltnp), or choose another port for {what}"
            if error.errno == errno.EADDRNOTAVAIL:
                remedy = "correct AWC_ADDRESS: it must be an address of this host"
            return failed(name, f"{endpoint} can't be bound for {what}: {error.strerror}", remedy)
    return ok(name, f"{endpoint} is free for {what}")


async def check_answers(name: str, endpoint: str, what: str, remedy: str) -> Finding:
    """Whether something listens where the cluster expects it; a warning when not."""
    reason = await why_unreachable(endpoint)
    return (
        warning(name, f"{what} at {endpoint}: {reason}", remedy)
        if reason
        else ok(name, f"{what} answers at {endpoint}")
    )


async def why_unreachable(endpoint: str) -> str:
    """Why a TCP connection to ADDRESS:PORT fails; empty when it is taken."""
    host, _, port = endpoint.rpartition(":")
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            _, writer = await asyncio.open_connection(host.strip("[]"), int(port))
    except TimeoutError:
        return f"no answer within {CONNECT_SECONDS:g} s"
    except (OSError, ValueError) as error:
        return (error.strerror if isinstance(error, OSError) and error.strerror else str(error)) or "refused"
    writer.close()
    return ""


def check_disk(data_dir: Path) -> list[Finding]:
    """Room, and how long an fdatasync takes where etcd's log will lie. Blocks for up to 3 s."""
    place = _existing(data_dir)
    try:
        free = shutil.disk_usage(place).free
        slowest = _fsync_ms(place)
    except OSError as error:
        remedy = f"make {data_dir} a directory that this service may write"
        return [failed("disk-latency", f"{place} can't be written: {error}", remedy)]
    return [judge_room(place, free), judge_latency(place, slowest)]


def judge_room(place: Path, free: int) -> Finding:
    """Whether `free` bytes are enough for etcd and a copy of its data."""
    text = f"{free / 2**30:.1f} GiB are free below {place}"
    if free >= LEAST_FREE_BYTES:
        return ok("disk-space", text)
    return warning("disk-space", text, f"free {LEAST_FREE_BYTES >> 30} GiB, or move AWC_DATA_DIR")


def judge_latency(place: Path, milliseconds: float) -> Finding:
    """Whether etcd can live with a disk on which 99 % of the writes take at most so long."""
    text = f"99 % of the writes to {place} are on the disk within {milliseconds:.1f} ms"
    remedy = "put AWC_DATA_DIR on a local SSD that nothing else keeps busy"
    if milliseconds > FSYNC_BAD_MS:
        return failed("disk-latency", f"{text}, etcd needs {FSYNC_BAD_MS:g} ms at most", remedy)
    if milliseconds > FSYNC_GOOD_MS:
        return warning("disk-latency", f"{text}, {FSYNC_GOOD_MS:g} ms would be good", remedy)
    return ok("disk-latency", text)


def _existing(path: Path) -> Path:
    return next(place for place in (path, *path.parents) if place.is_dir())


def _fsync_ms(place: Path) -> float:
    """The 99th percentile of appending and syncing what one entry of etcd's log takes, in milliseconds."""
    taken: list[float] = []
    until = time.monotonic() + FSYNC_SECONDS
    with tempfile.TemporaryFile(dir=place, buffering=0) as file:
        while len(taken) < FSYNC_WRITES and time.monotonic() < until:
            began = time.monotonic()
            file.write(bytes(FSYNC_BYTES))
            os.fdatasync(file.fileno())
            taken.append((time.monotonic() - began) * 1000)
    return sorted(taken)[max(0, int(len(taken) * 0.99) - 1)]


def check_runner(settings: ClusterSettings) -> Finding:
    """What would run etcd: a program, or Docker where that is chosen. Blocks for a moment."""
    if settings.etcd_runner == DOCKER:
        from controlplane.cluster.doctor_docker import check_docker  # noqa: PLC0415 - a large SDK

        return check_docker(settings.docker_socket, settings.etcd_image)
    return check_etcd(settings.etcd_binary)


def check_etcd(configured: Path | None) -> Finding:
    """Which etcd server would be started. Nothing is downloaded. Blocks for a moment."""
    name, wanted = "etcd-binary", ".".join(map(str, OLDEST))
    found = configured or shutil.which("etcd")
    if found is None:
        text = f"no etcd on PATH: the service unpacks Debian's package (>= {wanted}) at its first start"
        remedy = "without access to a package mirror, install etcd and set AWC_ETCD_BINARY"
        return ok(name, text) if shutil.which("apt-get") else failed(name, text, remedy)
    try:
        binary = require_version(Path(found))
    except EtcdBinaryError as error:
        if configured is not None:
            return failed(
                name, str(error), f"set AWC_ETCD_BINARY to an etcd {wanted} or newer, or leave it empty"
            )
        return warning(name, f"{error}; it is passed over", f"install etcd {wanted} or newer")
    return ok(name, f"{binary.path} is etcd {binary.version_text}")


async def check_cards(settings: ClusterSettings, cli: CardCli) -> tuple[list[Finding], list[ListedCard]]:
    """Whether the card CLI lists cards, and whether each says the serial that would be registered."""
    try:
        cards = await cli.list_cards()
    except CardCliError as error:
        if settings.witness:
            return [skipped("card-cli", f"a witness host needs none ({error})")], []
        remedy = "correct AWC_CARD_CLI; until it answers, the cards of this host are unknown"
        return [failed("card-cli", str(error), remedy)], []
    findings = [ok("card-cli", f"it answers; cards: {len(cards)}")]
    if not cards and not settings.witness:
        findings = [warning("card-cli", "it lists no cards", "start the cards, or set AWC_WITNESS=1")]
    identify = CardIdentify(settings.card_check)
    checks = [_check_serial(card, settings.xdp_serials.get(card.device), identify) for card in cards]
    return findings + list(await asyncio.gather(*checks)), list(cards)


async def _check_serial(card: ListedCard, override: str | None, identify: CardIdentify) -> Finding:
    name, serial = f"serial-{card.device}", override or card.serial
    if card.state != "running" or not card.paths:
        return warning(name, f"{card.device} ({serial}) does not run", "start it: it can't be asked now")
    try:
        found: Identified = await identify.ask(card.paths[0], card.nqn)
    except IdentifyError as error:
        remedy = "see that this host reaches the card over NVMe-oF; it is registered unchecked after a while"
        return warning(name, f"{card.device} ({serial}) can't be asked for its serial: {error}", remedy)
    if found.serial != serial:
        text = f"{card.device} would be registered as {serial}, but says that it is {found.serial}"
        remedy = (
            f"set AWC_XDP_SERIALS={card.device}:{found.serial} in adpcli_compat.env and restart the service"
        )
        return failed(name, text, remedy)
    return ok(name, f"{card.device} says serial {serial}")
