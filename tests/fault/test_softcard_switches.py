"""The card's fault switches: what each of them does to its command, and to nothing else."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support import nvme_tcp as nvme
from tests.support.addresses import LoopbackNet
from tests.support.nvme_tcp import Host, Queue
from tests.support.nvme_wire import Options, ProtocolError
from tests.support.procs import wait_until
from tests.support.softcard import Card, card_cli

VALUE = bytes(range(256)) * 40


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Card]:
    with Card(tmp_path_factory.mktemp("cards"), LoopbackNet.pick().host(1)) as card:
        yield card


@pytest.fixture
def card(running: Card) -> Iterator[Card]:
    yield running
    running.fault("clear")


@pytest.fixture
def host(card: Card) -> Iterator[Host]:
    with card.host() as host:
        assert host.queue().store(b"key", VALUE).status == 0
        yield host


class TestSwitches:
    def test_delay_holds_back_its_own_commands_alone(self, card: Card, host: Host) -> None:
        slow, well = host.queue(), host.queue()
        card.fault("retrieve", "delay", "ms=86400000", "count=1")
        late = slow.submit(nvme.kv(0x02, b"key", len(VALUE)))
        wait_until(lambda: card.hits() == 1, "the fault struck")
        assert slow.retrieve(b"key", len(VALUE)).data == VALUE, "the next on the same queue overtakes it"
        assert well.exist(b"key") == 0
        assert late not in slow.answered
        card.fault("clear")
        card.fault("exist", "delay", "ms=1")
        assert well.exist(b"key") == 0, "late is not never"

    def test_hang_swallows_the_command(self, card: Card, host: Host) -> None:
        queue = host.queue()
        card.fault("exist", "hang", "count=1")
        lost = queue.submit(nvme.kv(0x14, b"key"))
        assert queue.exist(b"key") == 0
        assert lost not in queue.answered

    def test_error_answers_with_the_status_asked_for(self, card: Card, host: Host) -> None:
        queue = host.queue()
        card.fault("store", "error", "status=0x281", "count=1")
        assert queue.store(b"new", VALUE).code == 0x281
        assert queue.exist(b"new") == nvme.KEY_ABSENT
        assert queue.store(b"new", VALUE).status == 0

    def test_corrupt_changes_one_byte(self, card: Card, host: Host) -> None:
        queue = host.queue()
        card.fault("retrieve", "corrupt", "count=1")
        answer = queue.retrieve(b"key", len(VALUE))
        assert (answer.status, answer.result) == (0, len(VALUE))
        assert sum(a != b for a, b in zip(answer.data, VALUE, strict=True)) == 1
        assert queue.retrieve(b"key", len(VALUE)).data == VALUE

    def test_short_sends_half_and_tells_the_whole(self, card: Card, host: Host) -> None:
        queue = host.queue()
        card.fault("retrieve", "short", "count=1")
        answer = queue.retrieve(b"key", len(VALUE))
        assert (answer.result, answer.data) == (len(VALUE), VALUE[: len(VALUE) // 2])

    def test_wrong_id_answers_nobodys_command(self, card: Card, host: Host) -> None:
        queue = host.queue()
        card.fault("exist", "wrong-id", "count=1")
        asked = queue.submit(nvme.kv(0x14, b"key"))
        assert queue.complete()[0] == asked ^ 0x8000

    def test_bad_digest(self, card: Card, host: Host) -> None:
        with card.host(Options(header_digest=True, data_digest=True)) as checking:
            queue = checking.queue()
            card.fault("retrieve", "bad-digest", "count=1")
            with pytest.raises(ProtocolError, match="data digest"):
                queue.retrieve(b"key", len(VALUE))

    def test_drop_resets_the_connection(self, card: Card, host: Host) -> None:
        doomed, well = host.queue(), host.queue()
        card.fault("retrieve", "drop", "count=1")
        with pytest.raises(ConnectionResetError):
            doomed.retrieve(b"key", len(VALUE))
        assert well.retrieve(b"key", len(VALUE)).data == VALUE

    def test_half_close_ends_one_direction(self, card: Card, host: Host) -> None:
        queue = host.queue()
        card.fault("retrieve", "half-close", "count=1")
        queue.submit(nvme.kv(0x02, b"key", len(VALUE)))
        with pytest.raises(EOFError):
            queue.wire.receive()
        queue.submit(nvme.kv(0x14, b"key"))  # the other direction still takes bytes

    def test_after_lets_the_first_pass(self, card: Card, host: Host) -> None:
        queue = host.queue()
        card.fault("io", "error", "after=2", "count=2")
        codes = [queue.exist(b"key") for _ in range(6)]
        assert codes == [0, 0, 6, 6, 0, 0]
        assert card.hits() == 2

    def test_admin_commands_can_fail_too(self, card: Card, host: Host) -> None:
        card.fault("identify", "error", "status=6", "count=1")
        assert host.admin.identify(0x01).code == 6
        card.fault("connect", "error", "status=0x181", "count=1")
        with Queue(card.address) as queue:
            assert queue.connect(card.nqn).code == 0x181

    def test_a_connection_that_ends_takes_its_delayed_commands_with_it(self, card: Card) -> None:
        before = card.stats()["connections"]
        card.fault("exist", "delay", "ms=86400000")
        with card.host() as host:
            host.queue().submit(nvme.kv(0x14, b"key"))
            wait_until(lambda: card.hits() == 1, "the fault struck")
        card.wait_connections(before)


class TestCommandLine:
    def test_faults_are_listed_and_cleared(self, card: Card) -> None:
        card.fault("retrieve", "delay", "ms=5", "count=3", "after=7")
        (fault,) = card.fault("list")["faults"]
        fault.pop("fault")
        assert fault == {
            **{"op": "retrieve", "kind": "delay", "after": 7, "count": 3, "hits": 0},
            "ms": 5,
        }
        assert card.fault("clear") == {"cleared": 1}
        assert card.fault("list") == {"faults": []}
        assert card.events("fault_set")
        assert card.events("faults_cleared")

    @pytest.mark.parametrize(
        ("words", "message"),
        [
            ((), "say what and how"),
            (("retrieve",), "say what and how"),
            (("read", "hang"), "operation 'read' must be one of store, retrieve"),
            (("retrieve", "explode"), "kind 'explode' must be one of delay, hang"),
            (("store", "corrupt"), "corrupt can't strike store"),
            (("retrieve", "torn"), "torn can't strike retrieve"),
            (("retrieve", "delay"), "a delay needs ms=N"),
            (("retrieve", "hang", "ms=5"), "'ms=5' must be"),
            (("retrieve", "hang", "count=x"), "count 'x' must be a number"),
            (("retrieve", "error", "error=EIO"), "'error=EIO' must be"),
            (("file-read", "error", "error=EPERM"), "error 'EPERM' must be EIO, ENOSPC or ENOMEM"),
        ],
    )
    def test_bad_words_name_value_and_remedy(self, card: Card, words: tuple[str, ...], message: str) -> None:
        done = card_cli("ctl", "--state-dir", str(card.state_dir), "--id", card.card_id, "fault", *words)
        assert done.returncode == 2
        assert message in done.stderr

    def test_a_bound_of_faults(self, card: Card) -> None:
        for _ in range(64):
            card.fault("retrieve", "hang")
        done = card_cli(
            "ctl", "--state-dir", str(card.state_dir), "--id", card.card_id, "fault", "retrieve", "hang"
        )
        assert (done.returncode, "64 are on already" in done.stderr) == (1, True)
