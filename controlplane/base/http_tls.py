"""TLS for HTTP between hosts, as the exporters speak it: both sides show certificates of the cluster's CA.

Only hosts have the name that a client asks a server for, so no other certificate of the CA can stand in for
an exporter. The files may be replaced while a program runs.
"""

from __future__ import annotations

import ssl

from controlplane.base.credentials import CredentialFiles, CredentialsError

State = tuple[tuple[int, int], ...]


class HttpTls:
    """A context for connections, made anew when its files have changed; `server`: for the serving side."""

    def __init__(self, files: CredentialFiles, *, server: bool) -> None:
        self.files = files
        self._server = server
        self._state: State = ()
        self._context: ssl.SSLContext | None = None

    def context(self) -> ssl.SSLContext:
        """The newest that can be used. Raises CredentialsError when there was never one."""
        state = self._read_state()
        if self._context is None or state != self._state:
            try:
                self.files.load()
                self._context, self._state = self._make(), state
            except (CredentialsError, OSError) as error:
                if self._context is None:
                    raise CredentialsError(str(error)) from error
        return self._context

    def changed(self) -> bool:
        """Whether the files are others than those of the context in use."""
        return self._read_state() != self._state

    def _make(self) -> ssl.SSLContext:
        side = ssl.PROTOCOL_TLS_SERVER if self._server else ssl.PROTOCOL_TLS_CLIENT
        context = ssl.SSLContext(side)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(self.files.ca)
        context.load_cert_chain(self.files.certificate, self.files.key)
        return context

    def _read_state(self) -> State:
        try:
            stats = [path.stat() for path in (self.files.ca, self.files.certificate, self.files.key)]
        except OSError:
            return ()
        return tuple((found.st_mtime_ns, found.st_ino) for found in stats)
