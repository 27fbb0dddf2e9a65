"""What a host does with its certificate: it makes the CA, and signs itself anew in time."""

from __future__ import annotations

import stat
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from controlplane.base import pki
from controlplane.base.pki import Identity, Role
from controlplane.base.request_errors import RequestError
from controlplane.cluster.settings import load_settings
from controlplane.cluster.trust import CA_KEY_FILE, Trust

START = pki.utc_now()


class Clock:
    """A wall clock that the test sets."""

    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> datetime:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def trust(tmp_path: Path, clock: Clock) -> Trust:
    settings = load_settings(tmp_path, {"AWC_HOST": "storage-1", "AWC_ADDRESS": "192.0.2.7"})
    return Trust(settings, clock)


async def test_a_new_host_has_no_certificate_and_says_how_to_get_one(trust: Trust) -> None:
    assert not trust.ready
    with pytest.raises(RequestError, match=r"create_cluster on the first host.*add_node -n HOST --token"):
        trust.load()
    with pytest.raises(RequestError):
        trust.channel("192.0.2.8:5000")


async def test_the_first_host_makes_the_authority(trust: Trust) -> None:
    trust.create_authority("kv-cache", "4f8d0e1c-0000-4000-8000-000000000001")
    assert trust.ready
    assert trust.generation == 1
    assert trust.load().identity == Identity(Role.HOST, "storage-1")
    assert trust.load_authority().certificate_pem == trust.load().ca_pem
    private = [trust.files.key, trust.files.key.with_name(CA_KEY_FILE)]
    assert [stat.S_IMODE(path.stat().st_mode) for path in private] == [0o600, 0o600]
    assert stat.S_IMODE(trust.files.key.parent.stat().st_mode) == 0o700


async def test_a_certificate_is_renewed_in_its_last_third(trust: Trust, clock: Clock) -> None:
    trust.create_authority("kv-cache", "4f8d0e1c-0000-4000-8000-000000000001")
    first = trust.load()
    clock.now = START + timedelta(days=200)
    trust.renew_when_due()
    assert trust.load().certificate == first.certificate
    clock.now = START + timedelta(days=300)
    trust.renew_when_due()
    renewed = trust.load()
    assert renewed.certificate.not_valid_after_utc > first.certificate.not_valid_after_utc
    assert (renewed.identity, renewed.key_pem) == (first.identity, first.key_pem)
    assert trust.generation == 2


async def test_a_host_that_moved_signs_itself_for_its_new_address(
    trust: Trust, clock: Clock, tmp_path: Path
) -> None:
    trust.create_authority("kv-cache", "4f8d0e1c-0000-4000-8000-000000000001")
    assert pki.addresses_of(trust.load().certificate) == {"192.0.2.7"}
    settings = load_settings(tmp_path, {"AWC_HOST": "storage-1", "AWC_ADDRESS": "2001:DB8:0::9"})
    moved = Trust(settings, clock)
    moved.renew_when_due()
    assert pki.addresses_of(moved.load().certificate) == {"2001:db8::9"}
    assert moved.load().identity == trust.load().identity
    assert moved.generation == 1
    moved.renew_when_due()
    assert moved.generation == 1, "once is enough"


async def test_without_the_authoritys_key_the_host_keeps_what_it_has(trust: Trust, clock: Clock) -> None:
    trust.create_authority("kv-cache", "4f8d0e1c-0000-4000-8000-000000000001")
    trust.files.key.with_name(CA_KEY_FILE).unlink()
    clock.now = START + timedelta(days=300)
    trust.renew_when_due()
    assert trust.load().identity.name == "storage-1"
    with pytest.raises(RequestError, match=r"storage-1 can't sign: .*ca\.key.*ask another host"):
        trust.load_authority()


async def test_an_expired_certificate_is_told(trust: Trust, clock: Clock) -> None:
    trust.create_authority("kv-cache", "4f8d0e1c-0000-4000-8000-000000000001")
    clock.now = START + timedelta(days=400)
    with pytest.raises(RequestError, match=r"cert\.pem: expired at"):
        trust.load()


async def test_a_host_that_was_off_for_long_signs_itself_anew(trust: Trust, clock: Clock) -> None:
    trust.create_authority("kv-cache", "4f8d0e1c-0000-4000-8000-000000000001")
    clock.now = START + timedelta(days=400)
    trust.renew_when_due()
    assert trust.load().identity == Identity(Role.HOST, "storage-1")


async def test_a_certificate_that_was_signed_while_the_clock_was_ahead_is_signed_anew(
    trust: Trust, clock: Clock
) -> None:
    trust.create_authority("kv-cache", "4f8d0e1c-0000-4000-8000-000000000001")
    clock.now = START + timedelta(days=400)
    trust.renew_when_due()
    clock.now = START + timedelta(days=1)
    with pytest.raises(RequestError, match="is the clock of this machine right"):
        trust.load()
    trust.renew_when_due()
    assert trust.load().certificate.not_valid_before_utc < clock.now
    generation = trust.generation
    trust.renew_when_due()
    assert trust.generation == generation


async def test_a_clock_before_the_authoritys_time_is_told_once(
    trust: Trust, clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    trust.create_authority("kv-cache", "4f8d0e1c-0000-4000-8000-000000000001")
    capsys.readouterr()
    clock.now = START - timedelta(days=3)
    for _ in range(3):
        trust.renew_when_due()
    captured = capsys.readouterr()
    assert (captured.out + captured.err).count("certificate not renewed") == 1


async def test_etcds_peers_are_hosts_only(trust: Trust) -> None:
    flags = trust.etcd_flags()
    assert flags["client-cert-auth"] == flags["peer-client-cert-auth"] == "true"
    assert flags["peer-cert-allowed-hostname"] == pki.HOST_DNS_NAME
    assert flags["enable-grpc-gateway"] == "false"


async def test_insecure_loopback_has_none_of_it(tmp_path: Path) -> None:
    trust = Trust(load_settings(tmp_path, {"AWC_HOST": "h", "AWC_SECURITY": "insecure-loopback"}))
    assert trust.ready
    assert trust.etcd_flags() == {}
    assert trust.etcd_credentials() is None
    trust.renew_when_due()
