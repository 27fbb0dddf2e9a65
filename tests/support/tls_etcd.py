"""One etcd member under TLS with the flags that the cluster service gives it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from controlplane.base.credentials import CredentialFiles
from controlplane.base.pki import Role
from controlplane.base.tls import channel_credentials
from controlplane.cluster.etcd_binary import find_etcd
from controlplane.cluster.etcd_runner import EtcdStart, etcd_arguments
from controlplane.cluster.trust import etcd_tls_flags
from controlplane.store.client import EtcdClient
from tests.support.addresses import LoopbackNet
from tests.support.pki import TestAuthority
from tests.support.procs import Program

HOST = "storage-1"


@dataclass(frozen=True)
class TlsEtcd:
    """The member's addresses and the CA that it trusts."""

    authority: TestAuthority
    host_files: CredentialFiles
    client_url: str
    peer_url: str
    program: Program

    def client(self, files: CredentialFiles, seconds: float = 5.0) -> EtcdClient:
        """A client that shows these credentials."""
        loaded = files.load()
        return EtcdClient(
            [self.client_url], call_seconds=seconds, credentials=lambda: channel_credentials(loaded)
        )


@contextlib.contextmanager
def run_tls_etcd(directory: Path) -> Iterator[TlsEtcd]:
    """A member of host storage-1 that is about to serve; always ended."""
    authority = TestAuthority(directory / "pki")
    with run_tls_member(directory, authority, HOST, LoopbackNet.pick().host(1)) as member:
        yield member


@contextlib.contextmanager
def run_tls_member(
    directory: Path, authority: TestAuthority, name: str, address: str, others: Sequence[str] = ()
) -> Iterator[TlsEtcd]:
    """One member that is about to serve; with `others` (NAME=URL) it was added to their cluster before."""
    files = authority.issue(Role.HOST, name, addresses=[address])
    client_url, peer_url = f"https://{address}:2379", f"https://{address}:2380"
    start = EtcdStart(
        name=name,
        client_url=client_url,
        peer_url=peer_url,
        data_dir=directory / f"{name}.data",
        log_dir=directory / f"{name}.log",
        initial_cluster=",".join([*others, f"{name}={peer_url}"]),
        state="existing" if others else "new",
        token="test",
        flags=etcd_tls_flags(files),
    )
    start.data_dir.mkdir(mode=0o700)
    start.log_dir.mkdir()
    with Program([find_etcd().path, *etcd_arguments(start), "--unsafe-no-fsync"]) as program:
        yield TlsEtcd(authority, files, client_url, peer_url, program)
