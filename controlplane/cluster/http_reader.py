"""GET over HTTP from a service that may be away, hang, or answer anything: bounded, and with a deadline."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Any

import aiohttp

from controlplane.base.credentials import CredentialsError
from controlplane.base.http_tls import HttpTls
from controlplane.base.pki import HOST_DNS_NAME


class HttpProblem(Exception):
    """No usable answer; the text says why, and is the same while the cause is the same."""


class HttpReader:
    """Connections kept between reads; `timeout` is the deadline of one read in seconds.

    `tls` is for https:// URLs, whose servers must be hosts of the cluster.
    """

    def __init__(self, timeout: float, max_bytes: int, tls: HttpTls | None = None) -> None:
        self._timeout = timeout
        self._max_bytes = max_bytes
        self._tls = tls
        self._session: aiohttp.ClientSession | None = None

    async def get(self, url: str, parameters: Mapping[str, str] | None = None) -> bytes:
        """The body of a 200 answer. Raises HttpProblem."""
        if self._session is None:
            timeout = aiohttp.ClientTimeout(total=self._timeout)
            # Not compressed: what a few bytes unpack to has no bound.
            self._session = aiohttp.ClientSession(
                timeout=timeout, headers={"Accept-Encoding": "identity"}, auto_decompress=False
            )
        try:
            async with self._session.get(
                url, params=parameters, allow_redirects=False, **self._trust_of(url)
            ) as answer:
                if answer.status != 200:
                    raise HttpProblem(f"answered HTTP {answer.status}")
                return await self._read_bounded(answer.content)
        except TimeoutError:
            raise HttpProblem(f"gave no answer within {self._timeout:g} s") from None
        except (aiohttp.ClientSSLError, ssl.SSLError):
            raise HttpProblem("is no host of this cluster, or does not take our certificate") from None
        except CredentialsError:
            raise HttpProblem("can't be asked: this host has no certificate") from None
        except (aiohttp.ClientError, ValueError, OSError):
            raise HttpProblem("does not answer") from None

    def _trust_of(self, url: str) -> dict[str, Any]:
        if self._tls is None or not url.startswith("https:"):
            return {}
        return {"ssl": self._tls.context(), "server_hostname": HOST_DNS_NAME}

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()

    async def _read_bounded(self, content: aiohttp.StreamReader) -> bytes:
        body = bytearray()
        async for chunk in content.iter_any():
            body += chunk
            if len(body) > self._max_bytes:
                raise HttpProblem(f"answered more than {self._max_bytes} bytes")
        return bytes(body)
