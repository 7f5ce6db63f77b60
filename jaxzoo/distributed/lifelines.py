"""How the processes of a run notice that one of them has ended, and end with one line instead of waiting for it.

Every process holds a TCP connection to process 0. Where a process is killed, the kernel of its host closes the
connection, and process 0 knows at once; where a whole host vanishes, it knows after `SILENCE_SECONDS`. It prints one
line and tells the others, and all end with status 1. (JAX's own service notices after its heartbeat timeout, 100 s, and
then aborts every process with a stack trace.) A process that fails with an error sends its text before it ends.
"""

import contextlib
import json
import os
import secrets
import selectors
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import Any, Self

import jax

from jaxzoo.distributed.agreement import gathered

BEAT_SECONDS = 5.0
"""Between two signs of life on a connection."""
SILENCE_SECONDS = 60.0
"""A process that was silent for so long has vanished."""
CONNECT_SECONDS = 60.0
"""Time for all connections to be made; processes without one are not watched."""
GRACE_SECONDS = 5.0
"""Time for a process to end by itself with an error that others have too."""

Ends = Callable[[int], Any]


class Lifelines:
    """Inside the block this process ends soon after any other has ended. All processes must enter it together.

    Args:
      process: number of this process.
      n_processes: how many there are.
      say: prints a line for the user.
      before_end: called before this process ends because of another one.
      end: ends the process at once, whatever its main thread is waiting for.
    """

    def __init__(
        self,
        process: int,
        n_processes: int,
        *,
        say: Callable[[str], None],
        before_end: Callable[[], None] = lambda: None,
        end: Ends = os._exit,
    ):
        self._process, self._n_processes = process, n_processes
        self._say, self._before_end, self._end = say, before_end, end
        self._lines: dict[int, _Line] = {}
        self._leaving = threading.Event()
        self._watcher = threading.Thread(target=self._watch, name="lifelines", daemon=True)

    def __enter__(self) -> Self:
        self._lines = _listen(self._n_processes) if self._process == 0 else _connect(self._process)
        missing = self._n_processes - 1 - len(self._lines) if self._process == 0 else 1 - len(self._lines)
        if missing:
            self._say(
                f"warning: process {self._process} is not connected to {missing} others; where one of them is killed, "
                "the run ends only after JAX's heartbeat timeout"
            )
        self._watcher.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None):
        """Parts in good order, or tells the others what this process has failed with; process 0 outlives them then, for
        JAX aborts who loses the connection to it."""
        if isinstance(error, jax.errors.JaxRuntimeError):  # so a collective fails where another process has died
            self._watcher.join(GRACE_SECONDS)
        self._leaving.set()
        news = {"failed": " ".join(str(error).split()) or type(error).__name__} if error else {"parted": True}
        for line in list(self._lines.values()):
            line.send(news)
        if error and self._process == 0:
            self._outlive(2 * GRACE_SECONDS)

    def _watch(self) -> None:
        """The thread: sends signs of life and waits for those of the others."""
        sent = time.monotonic()
        while not self._leaving.is_set():
            _receive(self._lines.values(), BEAT_SECONDS / 5)
            if time.monotonic() - sent > BEAT_SECONDS:
                sent = time.monotonic()
                for line in self._lines.values():
                    line.send({"alive": True})
            if any(self._follow(process, line) for process, line in self._lines.items()):
                return

    def _follow(self, process: int, line: "_Line") -> bool:
        """Ends this process where that one has ended."""
        if line.parted or not (line.news or line.ended or line.silence > SILENCE_SECONDS):
            return False
        if "failed" in line.news:
            if self._leaving.wait(GRACE_SECONDS):  # it fails too: every process says so itself
                return True
            text = f"process {process} on {line.host} has failed: {line.news['failed']}"
        elif "lost" in line.news:
            text = line.news["lost"]
        else:
            how = "has ended without a word (killed?)" if line.ended else f"is silent for {SILENCE_SECONDS:.0f} s"
            text = f"process {process} on {line.host} {how}; the other processes end, too; continue with --resume"
        if self._leaving.is_set():
            return True
        if self._process == 0 or not line.news:
            self._say(f"error: {text}")
        for other in self._lines.values():
            other.send({"lost": text})
        with contextlib.suppress(Exception):  # whatever it is, this process must end
            self._before_end()
        if self._process == 0:
            self._outlive(GRACE_SECONDS)
        self._end(1)
        return True

    def _outlive(self, seconds: float) -> None:
        """Waits until all others have ended."""
        until = time.monotonic() + seconds
        while time.monotonic() < until and not all(line.ended for line in self._lines.values()):
            _receive(self._lines.values(), 0.05)


class _Line:
    """One connection.

    Attributes:
      host: where the other process runs.
      news: what it said of its end, or of that of another one.
      parted: it has ended in good order.
      ended: the connection is closed.
    """

    def __init__(self, connection: socket.socket, host: str):
        self.connection, self.host = connection, host
        self.news: Mapping[str, str] = {}
        self.parted = self.ended = False
        self._heard, self._text, self._sending = time.monotonic(), b"", threading.Lock()
        connection.settimeout(GRACE_SECONDS)

    @property
    def silence(self) -> float:
        """Seconds since it was heard."""
        return time.monotonic() - self._heard

    def send(self, news: Mapping[str, Any]) -> None:
        """Says something, if anybody is there."""
        with self._sending, contextlib.suppress(OSError):
            self.connection.sendall(json.dumps(news).encode() + b"\n")

    def receive(self) -> None:
        """Takes what has come."""
        try:
            text = self.connection.recv(65536)
        except OSError:
            text = b""
        self.ended = not text
        self._heard = time.monotonic()
        *lines, self._text = (self._text + text).split(b"\n")
        for line in lines:
            news = json.loads(line)
            self.parted = self.parted or "parted" in news
            if "failed" in news or "lost" in news:
                self.news = news


def _receive(lines: "Iterator[_Line] | Any", seconds: float) -> None:
    """Takes what comes on any connection; waits so long for something to come."""
    with selectors.DefaultSelector() as selector:
        open_lines = [line for line in lines if not line.ended]
        for line in open_lines:
            selector.register(line.connection, selectors.EVENT_READ, line)
        if not open_lines:
            time.sleep(seconds)
        for key, _ in selector.select(seconds) if open_lines else ():
            key.data.receive()


def _listen(n_processes: int) -> dict[int, _Line]:
    """Process 0: tells all where it listens, and takes the connections of those who know its secret."""
    secret, lines = secrets.token_hex(16), {}
    with _server() as server:
        gathered({"hosts": _addresses(), "port": server.getsockname()[1], "secret": secret})
        until = time.monotonic() + CONNECT_SECONDS
        while len(lines) < n_processes - 1 and time.monotonic() < until:
            server.settimeout(max(until - time.monotonic(), 0.01))
            with contextlib.suppress(OSError, ValueError, LookupError, TypeError):  # strangers knock at ports
                connection, _ = server.accept()
                connection.settimeout(GRACE_SECONDS)
                hello = json.loads(_line_of(connection))
                if secrets.compare_digest(hello["secret"], secret):
                    lines[hello["process"]] = _Line(connection, hello["host"])
                    connection.sendall(json.dumps({"secret": secret}).encode() + b"\n")
    return lines


def _connect(process: int) -> dict[int, _Line]:
    """Any other process: connects to process 0, under the first of its addresses that answers."""
    where = gathered(None)[0]
    until = time.monotonic() + CONNECT_SECONDS / 2
    while time.monotonic() < until:
        for host in where["hosts"]:
            with contextlib.suppress(OSError, ValueError, LookupError, TypeError):  # another host may answer
                connection = socket.create_connection((host, where["port"]), timeout=GRACE_SECONDS)
                line = _Line(connection, where["hosts"][0])
                line.send({"secret": where["secret"], "process": process, "host": socket.gethostname()})
                if json.loads(_line_of(connection))["secret"] == where["secret"]:
                    return {0: line}
        time.sleep(1)
    return {}


def _server() -> socket.socket:
    """Listens on all addresses of this host."""
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True, backlog=4096)
    return socket.create_server(("", 0), backlog=4096)


def _addresses() -> list[str]:
    """Under which names others may reach this host, the likeliest first; the first is what users know it by."""
    names = [socket.gethostname(), socket.getfqdn()]
    for family, beyond in ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1")):
        with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((beyond, 9))  # sends nothing: the kernel chooses the address that it would send from
            names.append(probe.getsockname()[0])
    return list(dict.fromkeys([*names, "127.0.0.1"]))


def _line_of(connection: socket.socket) -> bytes:
    text = b""
    while not text.endswith(b"\n") and len(text) < 4096:
        text += connection.recv(1) or b"\n"
    return text
