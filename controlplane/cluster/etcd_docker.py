"""The host's etcd member as a container, by Docker's engine.

The container outlives this service when it is killed: etcd serves on, and the restarted service replaces the
container. It never touches a container that it did not make. All calls of the SDK block, so they run one
after the other in a thread, each with a deadline.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import docker
import requests
from docker.errors import DockerException, ImageNotFound, NotFound

from controlplane.base.logging import get_logger
from controlplane.cluster.cycles import OnChange
from controlplane.cluster.etcd_binary import require_new_enough
from controlplane.cluster.etcd_ends import last_words, log_size
from controlplane.cluster.etcd_runner import (
    LOG_FILE,
    OUTPUT_FILE,
    STOP_SECONDS,
    EtcdExit,
    EtcdRunnerError,
    EtcdStart,
    etcd_arguments,
    etcdctl_environment,
    prepare_directories,
)

CALL_SECONDS = 10
POLL_SECONDS = 0.5
OUTPUT_LINES = 100
OWNER_LABEL = "akv.owner"
_FAULTS = (DockerException, requests.exceptions.RequestException)

T = TypeVar("T")
log = get_logger("etcd-runner")


class DockerEtcd:
    """Runs etcd as the container `name` of `image`. `owner` marks it as this service's own."""

    def __init__(self, socket: Path, image: str, name: str, owner: str) -> None:
        self._socket = socket
        self._image = image
        self._name = name
        self._owner = owner
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="docker")
        self._client: docker.APIClient | None = None
        self._checked = False
        self._container = ""
        self._log_dir = Path(os.devnull)
        self._log_start = 0
        self._said = OnChange()

    @property
    def running(self) -> bool:
        """Whether a container was started and is not known to have ended."""
        return bool(self._container)

    async def start(self, start: EtcdStart) -> None:
        """Replace a container that an earlier run left, and start a new one."""
        prepare_directories(start)
        self._log_dir, self._log_start = start.log_dir, log_size(start.log_dir / LOG_FILE)
        self._container = await self._call("start etcd", lambda client: self._start(client, start))
        log.info("etcd started", container=self._container[:12], image=self._image, state=start.state)

    async def wait(self) -> EtcdExit:
        """Look at the container until it has ended; an engine that does not answer tells nothing."""
        while True:
            try:
                ended = await self._call("look at etcd", self._look)
            except EtcdRunnerError as error:
                if self._said.changed(str(error)):
                    log.warning("etcd container not seen", reason=str(error))
            else:
                self._said.changed("")
                if ended is not None:
                    self._container = ""
                    return ended
            await asyncio.sleep(POLL_SECONDS)

    async def stop(self) -> None:
        """Stop and remove our container, also one that an earlier run left."""
        try:
            await self._call("stop etcd", self._remove)
        except EtcdRunnerError as error:
            log.warning("etcd container not stopped", reason=str(error))
            return
        self._container = ""

    async def _call(self, what: str, work: Callable[[docker.APIClient], T]) -> T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, self._guarded, what, work)

    def _guarded(self, what: str, work: Callable[[docker.APIClient], T]) -> T:
        try:
            if self._client is None:
                self._client = docker.APIClient(
                    f"unix://{self._socket}", timeout=CALL_SECONDS, version="auto"
                )
            return work(self._client)
        except ImageNotFound as error:
            raise EtcdRunnerError(
                f"image {self._image} is not on this host: `docker pull` it, or copy it with `docker save` "
                "and `docker load`"
            ) from error
        except _FAULTS as error:
            raise EtcdRunnerError(
                f"Docker at {self._socket} can't {what}: {_sentence(error)}; see to the Docker service, or "
                "set AWC_ETCD_RUNNER=process"
            ) from error

    def _start(self, client: docker.APIClient, start: EtcdStart) -> str:
        self._remove(client)
        if not self._checked:
            require_new_enough(self._image, self._version(client))
            self._checked = True
        created = client.create_container(
            self._image,
            command=etcd_arguments(start),
            entrypoint=["etcd"],
            name=self._name,
            user=f"{os.getuid()}:{os.getgid()}",
            labels={OWNER_LABEL: self._owner},
            environment=etcdctl_environment(start),
            host_config=_host_config(client, start),
        )
        client.start(created["Id"])
        return str(created["Id"])

    def _version(self, client: docker.APIClient) -> str:
        created = client.create_container(
            self._image, command=["--version"], entrypoint=["etcd"], labels={OWNER_LABEL: self._owner}
        )
        try:
            client.start(created["Id"])
            client.wait(created["Id"], timeout=CALL_SECONDS)
            return client.logs(created["Id"], tail=OUTPUT_LINES).decode("utf-8", "replace")
        finally:
            client.remove_container(created["Id"], force=True)

    def _look(self, client: docker.APIClient) -> EtcdExit | None:
        try:
            state = client.inspect_container(self._container)["State"]
        except NotFound:
            return EtcdExit(-9, "its container was removed")
        if state["Running"] or state["Status"] == "created":
            return None
        output = self._log_dir / OUTPUT_FILE
        output.write_bytes(client.logs(self._container, tail=OUTPUT_LINES))
        return EtcdExit(
            _code(int(state["ExitCode"])), last_words(self._log_dir / LOG_FILE, self._log_start, output)
        )

    def _remove(self, client: docker.APIClient) -> None:
        try:
            found = client.inspect_container(self._name)
        except NotFound:
            return
        if (found["Config"].get("Labels") or {}).get(OWNER_LABEL) != self._owner:
            raise EtcdRunnerError(
                f"a container {self._name} is there that is not of this service: remove it with `docker rm "
                f"-f {self._name}`, or set AWC_ETCD_CONTAINER to another name"
            )
        client.stop(found["Id"], timeout=int(STOP_SECONDS))
        client.remove_container(found["Id"], force=True)


def _host_config(client: docker.APIClient, start: EtcdStart) -> dict[str, Any]:
    """The host's network, its directories at the same paths, no privileges, and a bound on what is logged."""
    binds = [f"{path}:{path}:rw" for path in (start.data_dir, start.log_dir)]
    binds += [f"{path}:{path}:ro" for path in start.reads]
    return client.create_host_config(
        network_mode="host",
        binds=binds,
        cap_drop=["ALL"],
        security_opt=["no-new-privileges"],
        restart_policy={"Name": "no"},
        log_config=docker.types.LogConfig(type="json-file", config={"max-size": "10m", "max-file": "2"}),
    )


def _code(status: int) -> int:
    """An exit status as a process gives it: 128 + n is the signal n."""
    return 128 - status if status > 128 else status


def _sentence(error: Exception) -> str:
    """One line of an error of the SDK, whose own texts have addresses of objects in them."""
    explanation = getattr(error, "explanation", None)
    return str(explanation) if explanation else type(error).__name__
