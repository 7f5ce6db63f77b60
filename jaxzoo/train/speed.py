"""FLOPs, speed, MFU and memory of a run."""

import contextlib
import functools
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxzoo.data.windows import WindowsConfig
from jaxzoo.models import LanguageModelConfig
from jaxzoo.models.accounting import head_flops, layer_flops_per_token, outer_flops
from jaxzoo.tasks.base import TaskConfig
from jaxzoo.train.config import RecallDataConfig, RunConfig
from jaxzoo.train.session import Session
from jaxzoo.utils.devices import find_device

PASSES = 3
"""Cost of forward and backward, in forward passes."""


def train_flops(config: RunConfig, steps: int | None = None, *, length: int | None = None) -> float:
    """FLOPs of `steps` updates (default: all): mixers, MLPs, and the head at labelled positions.

    Counted as in `flops_per_token`; a backward pass counts as two forward passes, recomputation (remat, chunked loss)
    does not count. Tasks have their own lengths, text the length of its training windows; other data have `length`
    tokens per row (default: the model's `max_length`), all with a label.
    """
    n = config.train.steps if steps is None else steps
    model = config.model
    data = config.data
    if not isinstance(data, RecallDataConfig):
        t = _row_length(config, model.max_length if length is None else length)
        mean = _example_flops(model, t, t)
    else:
        rows = sum(part.n_examples for part in data.train)
        of = {part: _example_flops(model, part.task.length, _n_labelled(part.task)) for part in data.train}
        mean = sum(part.n_examples / rows * of[part] for part in data.train)
    return PASSES * mean * config.train.batch_size * n


def _row_length(config: RunConfig, otherwise: int) -> int:
    """Tokens of a row of training, which are fewer than those of the longest validation window; `otherwise` if the data
    are no windows."""
    return config.data.length if isinstance(config.data, WindowsConfig) else otherwise


def _example_flops(model: LanguageModelConfig, length: int, n_labelled: int) -> float:
    """FLOPs of a forward pass of an example with this number of tokens and labels."""
    layers = sum(layer_flops_per_token(model, layer, length) for layer in model.layers)
    return length * (layers + outer_flops(model)) + n_labelled * head_flops(model)


@functools.cache
def _n_labelled(task: TaskConfig) -> int:
    """Number of labelled positions of an example."""
    try:
        batch = jax.eval_shape(lambda: task.labelled(0, np.zeros(1, np.uint32)))
    except jax.errors.JAXTypeError:  # the task is computed with NumPy
        batch = task.labelled(0, np.zeros(1, np.uint32))
    positions = batch.positions
    return task.length if positions is None else positions.shape[1]


class StepWork(NamedTuple):
    """Size of an update, summed over all devices."""

    unit: str
    """`tokens`, or `examples` of recall tasks."""
    amount: int
    """Number of units."""
    flops: float
    """`train_flops`, the mean over the lengths of a mixture."""
    peak_flops: float | None
    """Peak FLOP/s of all devices; None: unknown."""


def step_work(session: Session) -> StepWork:
    """Computes the size of an update of the session."""
    rows = session.config.train.batch_size
    length = _row_length(session.config, session.dataset.max_length)
    devices = list(session.mesh.devices.flat)
    kind = find_device(devices[0].device_kind)
    peak = len(devices) * kind.peak_flops if kind else None
    flops = train_flops(session.config, 1, length=length)
    if isinstance(session.config.data, RecallDataConfig):
        return StepWork("examples", rows, flops, peak)
    return StepWork("tokens", rows * length, flops, peak)


class Speed:
    """Clock of a run that begins at `start_step`, and memory of the `devices` of this process.

    Model FLOPs utilization (Chowdhery et al. 2022, app. B) is `flops * steps/s / peak_flops`, without recomputation.
    """

    def __init__(self, work: StepWork, devices: Sequence[Any], start_step: int):
        self._work = work
        self._devices = devices
        self._idle = 0.0
        self._start = self._row = start_step, time.monotonic()

    @contextlib.contextmanager
    def pause(self) -> Iterator[None]:
        """Context manager: excludes the time of the block."""
        start = time.monotonic()
        yield
        self._idle += time.monotonic() - start

    def steps_per_second(self, step: int) -> float:
        """Mean rate up to this step."""
        return self._rate(step, self._start)

    def row(self, step: int) -> dict[str, float]:
        """Speed since the last row and memory: `<unit>_per_second`; if known, `mfu` in [0, 1] and `peak_memory_bytes`
        (the maximum over devices)."""
        rate = self._rate(step, self._row)
        self._row = step, time.monotonic() - self._idle
        return {f"{self._work.unit}_per_second": rate * self._work.amount, **self._known(rate)}

    def describe(self, step: int) -> list[str]:
        """`31,250 tokens/s`, and if known `41.2% MFU` and `12.3 GB`; means over all steps."""
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
        """`mfu` and `peak_memory_bytes`, if the devices report them."""
        known: dict[str, float] = {}
        if self._work.peak_flops is not None:
            known["mfu"] = rate * self._work.flops / self._work.peak_flops
        peaks = [(device.memory_stats() or {}).get("peak_bytes_in_use") for device in self._devices]
        if found := [peak for peak in peaks if peak is not None]:
            known["peak_memory_bytes"] = max(found)
        return known
