"""GET over HTTP from a service that may be away, hang, or answer anything: bounded, and with a deadline."""

from __future__ import annotations

from collections.abc import Mapping

import aiohttp


class HttpProblem(Exception):
    """No usable answer; the text says why, and is the same while the cause is the same."""


class HttpReader:
    """Connections kept between reads; `timeout` is the deadline of one read in seconds."""

    def __init__(self, timeout: float, max_bytes: int) -> None:
        self._timeout = timeout
        self._max_bytes = max_bytes
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
            async with self._session.get(url, params=parameters, allow_redirects=False) as answer:
                if answer.status != 200:
                    raise HttpProblem(f"answered HTTP {answer.status}")
                return await self._read_bounded(answer.content)
        except TimeoutError:
            raise HttpProblem(f"gave no answer within {self._timeout:g} s") from None
        except (aiohttp.ClientError, ValueError, OSError):
            raise HttpProblem("does not answer") from None

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
