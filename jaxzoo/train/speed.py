"""Speed of a run, its share of the peak of the devices, and their memory."""

import contextlib
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from jaxzoo.train.config import RecallDataConfig
from jaxzoo.train.flops import train_flops
from jaxzoo.train.session import Session
from jaxzoo.utils.devices import find_device


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
    model, forward and backward, whatever is computed again. The memory is that of `devices`, those of this process,
    which begins at `start_step`.
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
        self._row = step, time.monotonic() - self._idle
        return {f"{self._work.unit}_per_second": rate * self._work.amount, **self._known(rate)}

    def describe(self, step: int) -> list[str]:
        """`31,250 tokens/s`, `41.2% MFU` and `12.3 GB`: means over all steps, and what is known."""
        rate = self.steps_per_second(step)
        known = self._known(rate)
        parts = [f"{rate * self._work.amount:,.0f} {self._work.unit}/s"]
        if "mfu" in known:
            parts.append(f"{known['mfu']:.1%} MFU")
        if "peak_memory_bytes" in known:
            parts.append(f"{known['peak_memory_bytes'] / 1e9:.1f} GB")
        return parts

    def _rate(self, step: int, since: tuple[int, float]) -> float:
        return max(step - since[0], 1) / max(time.monotonic() - self._idle - since[1], 1e-9)

    def _known(self, rate: float) -> dict[str, float]:
        """`mfu` at so many steps/s and `peak_memory_bytes`, where the devices tell their peak and their memory."""
        known: dict[str, float] = {}
        if self._work.peak_flops is not None:
            known["mfu"] = rate * self._work.flops / self._work.peak_flops
        peaks = [(device.memory_stats() or {}).get("peak_bytes_in_use") for device in self._devices]
        if found := [peak for peak in peaks if peak is not None]:
            known["peak_memory_bytes"] = max(found)
        return known
