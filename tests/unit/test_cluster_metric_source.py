"""Reading exporters: whatever goes wrong is a sample with an error or a missing metric, never a 0."""

from __future__ import annotations

import asyncio
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.cluster.evidence import HostEndpoints, PathLoss
from controlplane.cluster.metric_source import ExporterSource, parse_loss, parse_sample
from tests.support.addresses import LoopbackNet
from tests.support.http_exporter import HttpExporter, ping_loss


def test_the_metric_is_read_by_serial() -> None:
    body = (
        b'xdp_service_status{xdp="xdp0",serial="L0P0"} 1\nxdp_service_status{xdp="x",serial="S"} 0\nother 5\n'
    )
    sample = parse_sample(body)
    assert (sample.status, sample.error) == ({"L0P0": 1.0, "S": 0.0}, "")


def test_a_serial_with_two_values_or_nan_is_left_out() -> None:
    lines = ('{serial="A"} 1', '{serial="A"} 0', '{serial="B"} NaN')
    assert parse_sample("".join(f"xdp_service_status{line}\n" for line in lines).encode()).status == {}


def loss_line(source: str, destination: str, address: str, value: str) -> str:
    labels = f'source="{source}",destination="{destination}",address="{address}"'
    return f"ping_loss_percent{{{labels}}} {value}\n"


def test_loss_is_read_by_source_and_address() -> None:
    body = loss_line("a", "b", "192.0.2.2", "12.5") + loss_line("a", "c", "2001:DB8:0::3", "100")
    assert parse_loss("a", body.encode()) == (
        PathLoss("a", "b", "192.0.2.2", 12.5),
        PathLoss("a", "c", "2001:db8::3", 100.0),
    )


@pytest.mark.parametrize(
    "line",
    [
        loss_line("another-host", "b", "192.0.2.2", "100"),
        loss_line("a", "", "192.0.2.2", "100"),
        loss_line("a", "b", "storage-2", "100"),
        loss_line("a", "b", "192.0.2.2", "NaN"),
        loss_line("a", "b", "192.0.2.2", "101"),
        loss_line("a", "b", "192.0.2.2", "-1"),
        "ping_loss_percent 100\n",
        "ping_loss_percent{{{\n",
    ],
)
def test_loss_that_makes_no_sense_says_nothing(line: str) -> None:
    assert parse_loss("a", line.encode()) == ()


@given(st.binary())
def test_no_bytes_break_the_reader_or_make_a_card_sick(body: bytes) -> None:
    assert parse_sample(body).status == {}
    assert parse_loss("a", body) == ()


async def answer_with(net: LoopbackNet, text: bytes) -> tuple[asyncio.Server, str]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(text)
        await writer.drain()
        if text:
            writer.close()

    server = await asyncio.start_server(serve, net.host(1), 0)
    return server, f"{net.host(1)}:{server.sockets[0].getsockname()[1]}"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"HTTP/1.1 500 no\r\nContent-Length: 0\r\n\r\n", "HTTP 500"),
        (b"HTTP/1.1 302 no\r\nLocation: http://192.0.2.1/\r\nContent-Length: 0\r\n\r\n", "HTTP 302"),
        (b"garbage\r\n\r\n", "does not answer"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\nxdp_service", "does not answer"),
        (b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 2_000_000, "answered more than 1048576 bytes"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n{{{{{{", "can't be read"),
        (b"", "no answer within"),
    ],
)
async def test_a_bad_exporter_is_a_sample_with_an_error(
    loopback_net: LoopbackNet, text: bytes, words: str
) -> None:
    server, endpoint = await answer_with(loopback_net, text)
    source = ExporterSource(0.5)
    try:
        samples = (await source.read({"h1": HostEndpoints(endpoint)})).samples
        assert words in samples["h1"].error
        assert samples["h1"].status == {}
    finally:
        await source.close()
        server.close()


async def test_loss_is_read_from_the_ping_exporters_and_one_that_is_away_says_nothing(
    loopback_net: LoopbackNet,
) -> None:
    ping = ping_loss("s1", s2=("192.0.2.2", 100))
    with HttpExporter(loopback_net.host(1), 9427, ping) as exporter:
        source = ExporterSource(5.0)
        try:
            away = f"{loopback_net.host(2)}:9427"
            evidence = await source.read(
                {"s1": HostEndpoints("", exporter.endpoint), "s2": HostEndpoints("", away)}
            )
        finally:
            await source.close()
    assert evidence.loss == (PathLoss("s1", "s2", "192.0.2.2", 100.0),)
    assert (dict(evidence.samples), evidence.problem) == ({}, "")


async def test_one_silent_exporter_does_not_delay_the_others_beyond_its_deadline(
    loopback_net: LoopbackNet,
) -> None:
    silent, silent_at = await answer_with(loopback_net, b"")
    body = b'xdp_service_status{serial="A"} 1\n'
    head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body)
    good, good_at = await answer_with(loopback_net, head + body)
    source = ExporterSource(0.5)
    began = time.monotonic()
    try:
        hosts = {f"s{n}": silent_at for n in range(10)} | {"good": good_at, "none": "127.0.0.1:1"}
        samples = (await source.read({host: HostEndpoints(at, at) for host, at in hosts.items()})).samples
        assert time.monotonic() - began < 3
        assert samples["good"].status == {"A": 1.0}
        assert samples["none"].error
        assert all(samples[f"s{n}"].error for n in range(10))
    finally:
        await source.close()
        silent.close()
        good.close()
