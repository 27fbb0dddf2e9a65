"""Which cluster host to ask next. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from controlplane.base.addresses import AddressError, HostPort, is_loopback, parse_host_port


class Hosts:
    """The configured hosts in turn; a host that named the leader is believed once for each time it says so.

    A standby names a leader that died until another is chosen: such hints must not use up the ones after it.

    With `only_loopback` (insecure mode) a leader elsewhere is not gone to.
    """

    def __init__(self, hosts: Sequence[HostPort], *, only_loopback: bool = False) -> None:
        self._hosts = list(hosts)
        self._only_loopback = only_loopback
        self._turn = 0
        self._leader: HostPort | None = None
        self._hints = 0

    def next(self) -> HostPort:
        """The leader that was named, else the next of the list."""
        leader, self._leader = self._leader, None
        if leader is not None:
            return leader
        host = self._hosts[self._turn % len(self._hosts)]
        self._turn += 1
        return host

    def hint(self, text: str) -> bool:
        """Take the leader's address from a host that does not lead; True when it is to be called at once.

        Hosts that send an agent round and round are not followed more often than there are hosts.
        """
        try:
            leader = parse_host_port(text)
        except AddressError:
            return False
        if leader.port == 0 or (self._only_loopback and not is_loopback(leader.host)):
            return False
        self._leader = leader
        self._hints += 1
        return self._hints <= len(self._hosts)

    def rested(self) -> None:
        """There was a pause: the next hints are the first of a new row."""
        self._hints = 0

    def arrived(self, host: HostPort) -> None:
        """This host leads. When its stream is lost, another one is asked first: this one may have died."""
        self._hints = 0
        if host in self._hosts:
            self._turn = self._hosts.index(host) + 1
