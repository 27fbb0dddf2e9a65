"""What the doctor asks of Docker, where it runs etcd. Apart, so that only those who need it load its SDK."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import docker
from docker.errors import DockerException, ImageNotFound

from controlplane.cluster.doctor_report import Finding, failed, ok

DOCKER_SECONDS = 10


def check_docker(docker_socket: Path, image: str) -> Finding:
    """Whether the Docker engine answers and has etcd's image. Nothing is pulled."""
    try:
        with contextlib.closing(
            docker.APIClient(f"unix://{docker_socket}", timeout=DOCKER_SECONDS, version="auto")
        ) as client:
            version = client.version()["Version"]
            inspect: Callable[[str], object] = client.inspect_image  # without types in its stubs
            inspect(image)
    except ImageNotFound:
        remedy = f"docker pull {image}, or copy it here with docker save and docker load"
        return failed("docker", f"Docker at {docker_socket} has no image {image}", remedy)
    except (DockerException, OSError, ValueError, KeyError) as error:
        remedy = "start Docker and let this service use its socket, or set AWC_ETCD_RUNNER=process"
        return failed("docker", f"Docker at {docker_socket} does not answer: {error}", remedy)
    return ok("docker", f"Docker {version} at {docker_socket} has {image}")
