"""Speed of a run, its share of the peak of the devices, and their memory."""

import contextlib
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from jaxzoo.config import RecallDataConfig
from jaxzoo.devices import find_device
from jaxzoo.train.flops import train_flops
from jaxzoo.train.session import Session


class StepWork(NamedTuple):
    """Size of an update, on all devices together."""

    unit: str
    """Unit that is counted: `tokens`, or `examples` of recall tasks."""
    amount: int
    """Number of units."""
    flops: float
    """`train_flops`, the mean over the lengths of a mixture."""
    peak_flops: float | None
    """Peak FLOP/s of all devices; None: unknown."""


def step_work(session: Session) -> StepWork:
    """Computes the size of an update of the session."""
    rows, length = session.config.train.batch_size, session.dataset.max_length
    devices = list(session.mesh.devices.flat)
    kind = find_device(devices[0].device_kind)
    peak = len(devices) * kind.peak_flops if kind else None
    flops = train_flops(session.config, 1, length=length)
    if isinstance(session.config.data, RecallDataConfig):
        return StepWork("examples", rows, flops, peak)
    return StepWork("tokens", rows * length, flops, peak)


class Speed:
    """The clock of a run.

    Model FLOPs utilization (Chowdhery et al. 2022, app. B) is `flops * steps/s / peak_flops`: the FLOPs of the
    model, forward and backward, whatever is computed again.

    Args:
      work: what an update is.
      devices: whose memory is watched, those of this process.
      start_step: step at which this process begins.
    """

    def __init__(self, work: StepWork, devices: Sequence[Any], start_step: int):
        self._work, self._devices = work, devices
        self._idle = 0.0
        self._start = self._row = start_step, time.monotonic()

    @contextlib.contextmanager
    def pause(self) -> Iterator[None]:
        """Leaves the time of the block out."""
        start = time.monotonic()
        yield
        self._idle += time.monotonic() - start

    def steps_per_second(self, step: int) -> float:
        """Mean over all steps up to this one."""
        return self._rate(step, self._start)

    def row(self, step: int) -> dict[str, float]:
        """Speed since the last row, and memory: `<unit>_per_second`; where known `mfu`, in [0, 1], and
        `peak_memory_bytes`, of the device that took most."""
        rate = self._rate(step, self._row)
        self._row = step, self._now()
        known = {"mfu": self._mfu(rate), "peak_memory_bytes": self._peak_memory()}
        named = {name: value for name, value in known.items() if value is not None}
        return {f"{self._work.unit}_per_second": rate * self._work.amount, **named}

    def describe(self, step: int) -> list[str]:
        """`31,250 tokens/s`, `41.2% MFU` and `12.3 GB`: means over all steps, and what is known."""
        rate, memory = self.steps_per_second(step), self._peak_memory()
        mfu = self._mfu(rate)
        return [
            f"{rate * self._work.amount:,.0f} {self._work.unit}/s",
            *([] if mfu is None else [f"{mfu:.1%} MFU"]),
            *([] if memory is None else [f"{memory / 1e9:.1f} GB"]),
        ]

    def _now(self) -> float:
        return time.monotonic() - self._idle

    def _rate(self, step: int, since: tuple[int, float]) -> float:
        return max(step - since[0], 1) / max(self._now() - since[1], 1e-9)

    def _mfu(self, rate: float) -> float | None:
        return None if self._work.peak_flops is None else rate * self._work.flops / self._work.peak_flops

    def _peak_memory(self) -> int | None:
        peaks = [(device.memory_stats() or {}).get("peak_bytes_in_use") for device in self._devices]
        return max((peak for peak in peaks if peak is not None), default=None)
