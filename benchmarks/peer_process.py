"""Peers in another Python, which answer lines of standard input by lines of standard output."""

import contextlib
import os
import subprocess
from collections.abc import Mapping, Sequence
from typing import Self


class PeerProcess(contextlib.AbstractContextManager):
    """A running peer with one thread, and the first line that it printed; a context manager that ends it."""

    def __init__(self, words: Sequence[str], environment: Mapping[str, str]):
        environment = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
        self._process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        self.first_answer = self._answer()

    def ask(self, question: str) -> list[float]:
        """Returns the numbers of the answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{question}\n")
        self._process.stdin.flush()
        return [float(word) for word in self._answer().split()]

    def _answer(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the peer ended with status {self._process.wait()}; its message is above")
        return line.strip()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()
