"""One etcd member under TLS with the flags that the cluster service gives it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
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
    address = LoopbackNet.pick().host(1)
    authority = TestAuthority(directory / "pki")
    files = authority.issue(Role.HOST, HOST, addresses=[address])
    client_url, peer_url = f"https://{address}:2379", f"https://{address}:2380"
    (directory / "data").mkdir(mode=0o700)
    start = EtcdStart(
        name=HOST,
        client_url=client_url,
        peer_url=peer_url,
        data_dir=directory / "data",
        log_dir=directory,
        initial_cluster=f"{HOST}={peer_url}",
        state="new",
        token="test",
        flags=etcd_tls_flags(files),
    )
    with Program([find_etcd().path, *etcd_arguments(start), "--unsafe-no-fsync"]) as program:
        yield TlsEtcd(authority, files, client_url, peer_url, program)
