"""Fetching one file of weights over HTTP: resumed where it broke off, verified, in place only when whole."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO
from urllib.parse import unquote, urlsplit

import aiohttp

from controlplane.agent.weights.roots import PRIVATE_PREFIX
from controlplane.base.addresses import is_loopback
from controlplane.base.backoff import Backoff

TRIES = 8
FIRST_RETRY, LONGEST_RETRY = 0.5, 30.0
READ_SECONDS = 60.0
_BLOCK = 1 << 20
_DIGEST = re.compile(r"sha256=([0-9a-f]{64})", re.ASCII)
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}", re.ASCII)
_NO_SPACE = {errno.ENOSPC, errno.EDQUOT}
_PARTIAL, _WHOLE, _PAST_END = 206, 200, 416


class FetchError(Exception):
    """Weights that can't be had; the message says why."""


@dataclass(frozen=True, slots=True)
class Source:
    """A file's address, its place below a root, and the SHA-256 that it must have (empty: none was given)."""

    url: str
    path: Path
    sha256: str

    @property
    def partial(self) -> Path:
        """What has arrived so far."""
        return self.path.with_name(f"{PRIVATE_PREFIX}part-{self.path.name}")


def parse_source(text: str, root: Path) -> Source:
    """Read `https://HOST/PATH/NAME[#sha256=HEX]`; http:// is taken from loopback only. Raises FetchError."""
    parts = urlsplit(text)
    name = unquote(parts.path.rpartition("/")[2])
    if parts.scheme not in {"https", "http"} or not parts.hostname:
        raise FetchError(f"weights {text[:200]!r}: write a path, or https://HOST/…/NAME#sha256=…")
    if parts.scheme == "http" and not is_loopback(parts.hostname):
        raise FetchError(f"weights {text[:200]!r} would come unprotected; use https")
    digest = _DIGEST.fullmatch(parts.fragment)
    if parts.fragment and digest is None:
        raise FetchError(f"weights {text[:200]!r}: after # stands sha256= and 64 hexadecimal digits")
    if not _NAME.fullmatch(name):
        raise FetchError(f"weights {text[:200]!r} end in no file name")
    url = parts._replace(fragment="").geturl()
    folder = hashlib.sha256(url.encode()).hexdigest()[:16]
    return Source(url, root / f"fetched-{folder}" / name, digest[1] if digest else "")


async def fetch(source: Source, progress: Callable[[int, int], None]) -> None:
    """Fetch, verify, put in place. `progress` gets bytes done and in all (0 = unknown). Raises FetchError."""
    backoff = Backoff(FIRST_RETRY, LONGEST_RETRY)
    try:
        source.path.parent.mkdir(mode=0o755, exist_ok=True)
        for left in reversed(range(TRIES)):
            try:
                await _transfer(source, progress)
                break
            except (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError, TimeoutError) as error:
                if not left:
                    raise FetchError(f"{source.url}: {error or 'no answer'}, {TRIES} times") from error
            await asyncio.sleep(backoff.next())
        await asyncio.to_thread(_finish, source)
    except OSError as error:
        if error.errno in _NO_SPACE:  # what has arrived would keep the disk full for everyone else
            source.partial.unlink(missing_ok=True)
        raise FetchError(f"{source.path}: {error.strerror or error}") from error
    except aiohttp.ClientError as error:
        raise FetchError(f"{source.url}: {error}") from error


async def _transfer(source: Source, progress: Callable[[int, int], None]) -> None:
    """Get what is missing after the bytes that are there; all where no digest could tell a mixture."""
    done = source.partial.stat().st_size if source.sha256 and source.partial.exists() else 0
    headers = {"Range": f"bytes={done}-", "Accept-Encoding": "identity"} if done else {}
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=READ_SECONDS, sock_read=READ_SECONDS)
    async with (
        aiohttp.ClientSession(timeout=timeout) as session,
        session.get(source.url, headers=headers) as got,
    ):
        if done and got.status == _PAST_END:
            return
        if got.status not in {_WHOLE, _PARTIAL}:
            raise FetchError(f"{source.url}: HTTP status {got.status}")
        if got.url.scheme != urlsplit(source.url).scheme:
            raise FetchError(f"{source.url} leads to {got.url.scheme}://{got.url.host}")
        if got.status == _WHOLE:
            done = 0
        total = done + got.content_length if got.content_length is not None else 0
        with await asyncio.to_thread(_open_at, source.partial, done) as file:
            async for block in got.content.iter_chunked(_BLOCK):
                await asyncio.to_thread(file.write, block)
                done += len(block)
                progress(done, total)


def _open_at(path: Path, offset: int) -> BinaryIO:
    """The file, cut to `offset` bytes, for what follows them."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    file = os.fdopen(os.open(path, flags, 0o644), "wb")
    file.truncate(offset)
    file.seek(offset)
    return file


def _finish(source: Source) -> None:
    """Verify and rename. Raises FetchError; what does not match is thrown away."""
    if source.sha256:
        sha = hashlib.sha256()
        with source.partial.open("rb") as file:
            while block := file.read(_BLOCK):
                sha.update(block)
        if sha.hexdigest() != source.sha256:
            source.partial.unlink()
            raise FetchError(f"{source.url}: what came has SHA-256 {sha.hexdigest()}, not {source.sha256}")
    with source.partial.open("rb") as file:
        os.fsync(file.fileno())
    os.replace(source.partial, source.path)
