"""Lifelines between threads that stand for processes."""

import contextlib
import errno
import os
import queue
import socket
import threading
import time

import jax
import pytest

from jaxzoo.parallel import lifelines
from jaxzoo.parallel.lifelines import Lifelines


class Process(threading.Thread):
    """Waits inside its lifelines until it is told how to end."""

    def __init__(self, number, n):
        super().__init__(daemon=True)
        self.said, self.status, self.error, self.orders = [], None, None, queue.Queue()
        self.lines = Lifelines(number, n, say=self.said.append, end=self.end)

    def end(self, status):
        self.status = status
        self.vanish()

    def run(self):
        try:
            with self.lines:
                order = self.orders.get()
                if order:
                    raise order
        except RuntimeError as error:
            self.error = error

    def vanish(self):
        """What the kernel does for a process that ends."""
        self.lines._leaving.set()
        if threading.current_thread() is not self.lines._watcher:
            self.lines._watcher.join()
        for peer in self.lines._peers:
            with contextlib.suppress(OSError), socket.socket(fileno=os.dup(peer.fileno())) as connected:
                connected.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def processes(monkeypatch):
    """Three that know each other."""
    board = queue.Queue()

    def gathered(value):
        if value is not None:
            for _ in range(2):
                board.put(value)
            return [value]
        return [board.get(timeout=30)]

    monkeypatch.setattr(lifelines, "gathered", gathered)
    monkeypatch.setattr(lifelines, "GRACE_SECONDS", 0.3)
    found = [Process(i, 3) for i in range(3)]
    for process in found:
        process.start()
    until = time.monotonic() + 30
    while not all(process.lines._watcher.is_alive() for process in found):
        assert time.monotonic() < until
        time.sleep(0.01)
    yield found
    for process in found:
        process.orders.put(None)
        process.join(10)
        process.lines._watcher.join(10)
        for peer in process.lines._peers:
            peer.close()


def wait(condition):
    until = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.01)


def test_a_process_that_vanishes_ends_the_others_with_one_line(processes):
    """Kills: others that wait for a killed process, or each print the news of it."""
    processes[1].vanish()
    wait(lambda: processes[0].status == processes[2].status == 1)
    assert len(processes[0].said) == 1
    assert processes[0].said[0].startswith("error: process 1 on ")
    assert "has ended without a word (killed?)" in processes[0].said[0]
    assert processes[2].said == []


@pytest.mark.full
def test_process_0_that_vanishes_ends_the_others(processes):
    """Kills: a star whose middle nobody watches."""
    processes[0].vanish()
    wait(lambda: processes[1].status == processes[2].status == 1)
    assert processes[2].said[0].startswith("error: process 0 on ")


@pytest.mark.full
def test_silence_is_an_end_too(processes, monkeypatch):
    """Kills: a host without power, whose kernel closes no connection; here the keepalive of TCP has given it up."""
    (silent,) = (peer for peer, name in processes[0].lines._peers.items() if name.startswith("process 2 on "))

    def fail():
        raise OSError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))

    monkeypatch.setattr(silent, "recv_bytes", fail)
    with socket.socket(fileno=os.dup(silent.fileno())) as connected:
        assert connected.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    processes[2].lines._tell("", "")
    wait(lambda: processes[0].status == 1)
    assert processes[0].said[0].startswith("error: process 2 on ")
    assert "is silent for 60 s; the other processes end, too; continue with --resume" in processes[0].said[0]


@pytest.mark.full
def test_a_stranger_is_not_taken_for_a_process(monkeypatch):
    """Kills: a run that waits for ever for what a port scanner does not say, or that takes it for one of its own."""
    where, said = queue.Queue(), []
    monkeypatch.setattr(lifelines, "gathered", lambda value: [where.put(value) or value])
    monkeypatch.setattr(lifelines, "CONNECT_SECONDS", 2.0)
    monkeypatch.setattr(lifelines, "GRACE_SECONDS", 0.2)
    lines = Lifelines(0, 2, say=said.append)
    entering = threading.Thread(target=lines.__enter__)
    entering.start()
    port = where.get(timeout=30)["port"]
    with socket.create_connection(("127.0.0.1", port)), socket.create_connection(("127.0.0.1", port)) as other:
        other.sendall(bytes(16))
        entering.join(20)
    assert not entering.is_alive()
    assert said[0].startswith("warning: process 0 is not connected to 1 others")


@pytest.mark.full
def test_an_error_of_one_process_is_said_by_process_0(processes):
    """Kills: an error that only the log of some other machine holds."""
    processes[2].orders.put(RuntimeError("no space\nleft"))
    wait(lambda: processes[0].status == processes[1].status == 1)
    assert [line.partition(" has ")[2] for line in processes[0].said] == ["failed: no space left"]
    assert processes[1].said == []


@pytest.mark.full
def test_an_error_of_all_processes_is_left_to_each(processes):
    """Kills: process 0 ended by the error of another one before it can say its own."""
    for process in processes:
        process.orders.put(RuntimeError("loss is nan"))
    wait(lambda: all(process.error for process in processes))
    assert [process.status for process in processes] == [None] * 3
    assert [process.said for process in processes] == [[]] * 3


@pytest.mark.full
def test_who_leaves_in_good_order_ends_nobody(processes):
    """Kills: the first process to finish taken for a dead one."""
    processes[1].orders.put(None)
    time.sleep(0.5)
    assert [process.status for process in processes] == [None] * 3


@pytest.mark.full
def test_a_collective_that_fails_with_a_process_is_not_the_news(processes, monkeypatch):
    """Kills: the stack trace of a collective, which fails when a process dies, in place of the line that says so."""
    monkeypatch.setattr(lifelines, "GRACE_SECONDS", 30.0)  # on a busy machine the news takes longer than the collective
    processes[0].orders.put(jax.errors.JaxRuntimeError("UNKNOWN: Gloo all-reduce failed: Connection reset by peer"))
    processes[1].vanish()
    wait(lambda: processes[0].status == 1)
    assert "process 1 on " in processes[0].said[0]
