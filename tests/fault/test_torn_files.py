"""Files that a crash or a failing disk has cut: read as what they were, or refused, never as something else.

The membership file, etcd's log and the card's store have their own tests beside this one.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from controlplane.agent.files import DocumentError, read_document
from controlplane.agent.incarnation import FILE, AgentState
from controlplane.base import pki
from controlplane.base.credentials import CredentialsError, read_private, write_file
from controlplane.base.ping_targets import PingTarget, PingTargetsError, encode_targets, parse_targets
from controlplane.base.ping_targets import ping_targets as targets_of
from controlplane.base.pki import Role
from controlplane.gateway.state import PIN_FILE, StateDir, StateError
from tests.support.addresses import LoopbackNet
from tests.support.pki import TestAuthority
from tests.support.softcard import Card, card_cli

UUID = "6f3c1fb0-6a8f-4b5e-9d62-0c1b0a5d7e11"


def test_every_prefix_of_a_pin_is_the_cluster_or_refused(tmp_path: Path) -> None:
    with StateDir(tmp_path) as state:
        state.pin(UUID)
        path = tmp_path / PIN_FILE
        whole = path.read_bytes()
        for kept in range(len(whole)):
            path.write_bytes(whole[:kept])
            if whole[:kept].decode().strip() == UUID:
                assert state.pinned_uuid() == UUID
                continue
            with pytest.raises(StateError, match=PIN_FILE):
                state.pinned_uuid()


def test_every_prefix_of_the_ping_targets_is_all_of_them_or_refused() -> None:
    targets = targets_of("storage-1", [PingTarget("storage-2", "127.0.0.2"), PingTarget("storage-3", "::1")])
    whole = encode_targets(targets)
    for kept in range(len(whole)):
        try:
            assert parse_targets(whole[:kept]) == targets
        except PingTargetsError:
            assert whole[:kept].strip() != whole.strip()


def test_every_prefix_of_a_cards_record_is_the_card_or_a_failed_list(
    tmp_path: Path, loopback_net: LoopbackNet
) -> None:
    """A list that fails is unknown; an empty one would take the card away."""
    with Card(tmp_path / "state", loopback_net.host(1)) as card:
        path = card.state_dir / f"{card.serial}.card.json"
        whole = path.read_bytes()
        for kept in range(len(whole)):
            path.write_bytes(whole[:kept])
            listed = card_cli("list", "--json", "--state-dir", str(card.state_dir))
            if listed.returncode == 0:
                assert [c["serial"] for c in json.loads(listed.stdout)["cards"]] == [card.serial]
            else:
                assert path.name in listed.stderr
                assert not listed.stdout
        path.write_bytes(whole)


@pytest.mark.parametrize("name", ["ca.pem", "cert.pem", "key.pem", "ca.key"])
def test_every_prefix_of_a_credentials_file_is_all_of_it_or_refused(tmp_path: Path, name: str) -> None:
    """Never another identity, another root of trust, or a program that ends without a word."""
    authority = TestAuthority(tmp_path)
    files = authority.issue(Role.HOST, "storage-1")
    ca_key = files.key.with_name("ca.key")
    write_file(ca_key, pki.key_pem(authority.authority.key), private=True)
    path = files.key.with_name(name)
    whole = path.read_bytes()
    good = files.load()
    for kept in range(len(whole)):
        path.write_bytes(whole[:kept])
        try:
            assert files.load() == good
            found = pki.load_authority(good.ca_pem, read_private(ca_key), pki.utc_now())
            assert found.certificate == authority.authority.certificate
        except (CredentialsError, pki.PkiError):
            assert whole[:kept].strip() != whole.strip(), name


def test_every_prefix_of_an_agents_record_is_refused_and_no_incarnation_comes_twice(tmp_path: Path) -> None:
    with AgentState(tmp_path) as state:
        first = state.next_incarnation(1000.0)
        path = tmp_path / FILE
        whole = path.read_bytes()
        for kept in range(len(whole)):
            path.write_bytes(whole[:kept])
            if whole[:kept].strip() != whole.strip():
                with pytest.raises(DocumentError):
                    read_document(path)
            assert state.next_incarnation(1001.0) > first
