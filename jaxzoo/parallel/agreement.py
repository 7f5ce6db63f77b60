"""Agreement between the processes of a run.

All processes of JAX run the same program: if one raises, or takes another branch, the others wait for it in their next
collective. They therefore agree on everything that only one of them sees (a file, a signal, a lock). Every process must
make these calls in the same order. In a run of one process they cost nothing.
"""

import contextlib
import json
import signal
import threading
from collections.abc import Callable, Collection, Iterator
from types import FrameType
from typing import Any, Self

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxzoo.utils.array_typing import Array, Bool

SHARED = "raised in all processes of the run"
"""Note of an error that only process 0 prints."""


def is_leader() -> bool:
    """Whether this is process 0, which alone writes files and prints. Starts no devices."""
    return not is_one_of_many() or jax.process_index() == 0


def is_one_of_many() -> bool:
    """Whether there are other processes. Starts no devices if there cannot be any."""
    return jax.distributed.is_initialized() and jax.process_count() > 1


def gathered(value: Any) -> list[Any]:
    """The JSON values of all processes, in their order; also a barrier."""
    if not is_one_of_many():
        return [value]
    text = np.frombuffer(json.dumps(value).encode(), np.uint8)
    lengths = multihost_utils.process_allgather(np.int32(len(text)))
    width = 1 << int(lengths.max()).bit_length()  # few widths, few compilations
    texts = multihost_utils.process_allgather(np.pad(text, (0, width - len(text))))
    return [json.loads(bytes(row[:length])) for row, length in zip(texts, lengths, strict=True)]


def leaders(value: Callable[[], Any]) -> Any:
    """Returns the function's JSON value from process 0; other processes do not call it. Also a barrier."""
    return gathered(value() if is_leader() else None)[0]


def is_shared(error: BaseException) -> bool:
    """Whether all processes have raised this error or its cause. An error of a file that `together` has not shared was
    raised in one process alone."""
    cause = error.__cause__ or error
    return not isinstance(cause, OSError) or SHARED in getattr(cause, "__notes__", ())


@contextlib.contextmanager
def together(*kinds: type[Exception]) -> Iterator[None]:
    """Context manager: raises in all processes the exception of the first process that raises one in the block.

    The block must not contain a collective; it ends with a barrier. `kinds` are the shared exceptions, subclasses
    first; each is constructed from one string. Any other exception is a defect and raised in its process alone.
    """
    error = None
    try:
        yield
    except kinds as raised:
        error = raised
    kind = next((i for i, each in enumerate(kinds) if isinstance(error, each)), None)
    said = gathered(error and [kind, " ".join(str(error).split())])
    if error:
        error.add_note(SHARED)
        raise error
    for process, failure in enumerate(said):
        if failure:
            kind, text = failure
            shared = kinds[kind](f"process {process}: {text}")
            shared.add_note(SHARED)
            raise shared


class StopSignals:
    """Context manager: the first SIGTERM, SIGHUP or Ctrl-C sets `requested`; a second one kills the process.

    An ignored SIGHUP, as under nohup, stays ignored. `more` are further such signals. `patient`: later signals have no
    effect, for jobs of a scheduler that repeats its signals.
    """

    def __init__(self, more: Collection[signal.Signals] = (), *, patient: bool = False) -> None:
        self.requested = False
        self._numbers = [signal.SIGTERM, signal.SIGINT, *more]
        self._patient = patient
        hangup = getattr(signal, "SIGHUP", None)
        if hangup is not None and signal.getsignal(hangup) is not signal.SIG_IGN:
            self._numbers.append(hangup)
        self._before: dict[int, object] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in self._numbers:
                self._before[number] = signal.signal(number, self._receive)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _receive(self, number: int, frame: FrameType | None) -> None:
        self.requested: bool = True
        for each in () if self._patient else self._before:
            signal.signal(each, signal.SIG_DFL)


class AgreedStop:
    """Agreement of all processes, at the same step, that one of them was told to stop.

    `requested` is set at once in a run of one process, otherwise two calls of `ask` later: the answer is fetched at the
    next call, so that no device waits for it. Cost: a sum of one integer per device at every step.
    """

    def __init__(self, request: StopSignals, mesh: Mesh):
        self._wish = request
        self._alone = not is_one_of_many()
        self._agreed = False
        self._asked: Bool[Array, ""] | None = None
        self._shares = NamedSharding(mesh, PartitionSpec(mesh.axis_names))
        self._any = jax.jit(lambda x: x.any(), out_shardings=NamedSharding(mesh, PartitionSpec()))

    @property
    def requested(self) -> bool:
        return self._wish.requested if self._alone else self._agreed

    def ask(self) -> None:
        """Exchanges the request; to be called once per step."""
        if self._alone:
            return
        if self._asked is not None:
            self._agreed = self._agreed or bool(self._asked)
        request = np.array([self._wish.requested])
        n = self._shares.mesh.size
        self._asked = self._any(jax.make_array_from_callback((n,), self._shares, lambda _: request))
