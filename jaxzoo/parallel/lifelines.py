"""Watch over the processes of a run: where one has ended, the others end with one line instead of waiting for it.

Every process has a TCP connection to process 0. The kernel of a killed process closes its connection: process 0 knows
at once. Where a whole host vanishes, TCP's keepalive closes it after `SILENCE_SECONDS`. Process 0 prints one line and
tells the others, and all end with status 1. (JAX's own service notices after its heartbeat timeout, 100 s, and then
aborts every process with a stack trace.) A process that fails with an error sends its text before it ends.
"""

import contextlib
import errno
import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from types import TracebackType
from typing import Any, Self

import jax

from jaxzoo.parallel.agreement import gathered

CONNECT_SECONDS = 60.0
"""Time for all connections to be made; processes without one are not watched."""
GRACE_SECONDS = 5.0
"""Time for a process to end by itself with an error that others have too."""

SILENCE_SECONDS = 60
"""A process whose host did not answer for so long has vanished."""

LEFT, FAILED, LOST, ENDED = "left", "failed", "lost", "ended"
"""Kinds of messages: a process has ended in good order; has failed with an error; process 0 has lost another one; the
connection is closed, which nobody sends."""


class Lifelines:
    """Inside the block this process ends soon after any other has ended. All processes must enter it together.

    `say` prints a line for the user; `end` ends the process at once, whatever its main thread is waiting for.
    """

    def __init__(
        self, process: int, n_processes: int, *, say: Callable[[str], None], end: Callable[[int], Any] = os._exit
    ):
        self._process, self._n_processes, self._say, self._end = process, n_processes, say, end
        self._peers: dict[Connection, str] = {}
        self._ended: set[Connection] = set()
        self._leaving = threading.Event()
        self._watcher = threading.Thread(target=self._watch, name="lifelines", daemon=True)

    def __enter__(self) -> Self:
        self._peers = _listen(self._n_processes) if self._process == 0 else _connect(self._process)
        missing = (self._n_processes - 1 if self._process == 0 else 1) - len(self._peers)
        if missing:
            self._say(
                f"warning: process {self._process} is not connected to {missing} others; where one of them is killed, "
                "the run ends only after JAX's heartbeat timeout"
            )
        self._watcher.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        """Leaves in good order, or tells the others the error of this process; process 0 waits until they have ended,
        for JAX aborts a process that loses the connection to it."""
        if isinstance(error, jax.errors.JaxRuntimeError):  # so a collective fails where another process has died
            self._watcher.join(GRACE_SECONDS)
        self._leaving.set()
        self._tell(*((FAILED, " ".join(str(error).split()) or type(error).__name__) if error else (LEFT, "")))
        if error and self._process == 0:
            self._watcher.join(GRACE_SECONDS)  # of two readers of a connection one would wait for a second message
            self._wait_for_others(2 * GRACE_SECONDS)

    def _watch(self) -> None:
        """Waits in a thread for the first other process that ends, and then ends this one."""
        left: set[Connection] = set()
        while not self._leaving.is_set():
            ready: list[Any] = wait([peer for peer in self._peers if peer not in left], timeout=0.2)
            for peer in ready:
                kind, text = self._receive(peer)
                if kind == LEFT:
                    left.add(peer)
                elif not (kind == FAILED and self._leaving.wait(GRACE_SECONDS)) and not self._leaving.is_set():
                    self._end_with(kind, text, self._peers[peer])
                    return
            if len(left) == len(self._peers):
                return

    def _end_with(self, kind: str, text: str, name: str) -> None:
        """Ends this process because of another one; process 0 says so, or whoever has lost process 0."""
        if kind == FAILED:
            text = f"{name} has failed: {text}"
        elif kind == ENDED:
            text = f"{name} {text}; the other processes end, too; continue with --resume"
        if self._process == 0 or kind != LOST:
            self._say(f"error: {text}")
        self._tell(LOST, text)
        if self._process == 0:
            self._wait_for_others(GRACE_SECONDS)
        self._end(1)

    def _tell(self, kind: str, text: str) -> None:
        for peer in self._peers:
            with contextlib.suppress(OSError):
                peer.send_bytes(json.dumps([kind, text]).encode())

    def _receive(self, peer: Connection) -> tuple[str, str]:
        """Kind and text of the next message of a process."""
        try:
            kind, text = json.loads(peer.recv_bytes())
        except (EOFError, OSError) as error:
            self._ended.add(peer)
            is_silent = getattr(error, "errno", None) in (errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH)
            return ENDED, f"is silent for {SILENCE_SECONDS} s" if is_silent else "has ended without a word (killed?)"
        return kind, text

    def _wait_for_others(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while (rest := self._peers.keys() - self._ended) and time.monotonic() < until:
            ready: list[Any] = wait(list(rest), timeout=0.05)
            for peer in ready:
                self._receive(peer)


def _listen(n_processes: int) -> dict[Connection, str]:
    """The connections of process 0, with names of the others, which learn its addresses and key from a collective."""
    key, peers = secrets.token_bytes(16), {}
    dual = socket.has_dualstack_ipv6()
    with socket.create_server(
        ("", 0), family=socket.AF_INET6 if dual else socket.AF_INET, dualstack_ipv6=dual, backlog=4096
    ) as server:
        gathered({"hosts": _addresses(), "port": server.getsockname()[1], "key": key.hex()})
        until = time.monotonic() + CONNECT_SECONDS
        while len(peers) < n_processes - 1 and (left := until - time.monotonic()) > 0:
            server.settimeout(left)
            with (
                contextlib.suppress(OSError, EOFError, ValueError),
                server.accept()[0] as accepted,
            ):  # strangers knock at ports
                accepted.settimeout(GRACE_SECONDS)
                if secrets.compare_digest(accepted.recv(len(key), socket.MSG_WAITALL), key):
                    connection = _connection(accepted)
                    connection.send_bytes(key)
                    process, host = json.loads(connection.recv_bytes())
                    peers[connection] = f"process {process} on {host}"
    return peers


def _connect(process: int) -> dict[Connection, str]:
    """The connection to process 0, under the first of its addresses that answers with the key."""
    where = gathered(None)[0]
    key = bytes.fromhex(where["key"])
    until = time.monotonic() + CONNECT_SECONDS / 2
    while time.monotonic() < until:
        for host in where["hosts"]:
            address = host, where["port"]
            with (
                contextlib.suppress(OSError, EOFError),  # another host may answer
                socket.create_connection(address, timeout=GRACE_SECONDS) as connected,
            ):
                connected.sendall(key)
                connection = _connection(connected)
                if connection.poll(GRACE_SECONDS) and connection.recv_bytes(len(key)) == key:
                    connection.send_bytes(json.dumps([process, socket.gethostname()]).encode())
                    return {connection: f"process 0 on {where['hosts'][0]}"}
        time.sleep(1)
    return {}


def _connection(connected: socket.socket) -> Connection:
    """A socket that sends and receives whole messages, and fails after `SILENCE_SECONDS` without a sign of its host."""
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", SILENCE_SECONDS // 2),
        ("TCP_KEEPINTVL", SILENCE_SECONDS // 12),
        ("TCP_KEEPCNT", 6),
    ):
        if hasattr(socket, name):
            connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    connected.setblocking(True)
    return Connection(connected.detach())


def _addresses() -> list[str]:
    """Names and addresses of this host, the likeliest first; the first is what users know it by."""
    names = [socket.gethostname(), socket.getfqdn()]
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))  # sends nothing: the kernel chooses the address that it would send from
        names.append(probe.getsockname()[0])
    return list(dict.fromkeys([*names, "127.0.0.1"]))
