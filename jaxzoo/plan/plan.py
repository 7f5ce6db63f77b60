"""Plan of a run: memory, traffic and time of its compiled train step; FLOPs by `jaxzoo.models.accounting`."""

import dataclasses
import math
from pathlib import Path
from typing import Literal, NamedTuple

from jaxzoo.config.checked import PositiveFloat, PositiveInt, shorten
from jaxzoo.config.json_files import read_json
from jaxzoo.data.base import Batch
from jaxzoo.models.accounting import flops_per_token, head_flops
from jaxzoo.plan.collectives import Traffic
from jaxzoo.plan.traffic_sources import SourceTraffic
from jaxzoo.train.config import RunConfig
from jaxzoo.utils.devices import DEVICES, Accelerator
from jaxzoo.utils.whole_files import write_json

FORWARD_AGAIN = {"nothing": 0, "projections": 0, "mixer_inputs": 1, "period": 1, "everything": 2}
"""Repeated forward passes of the layers in the backward pass, by remat policy."""


class Work(NamedTuple):
    """FLOPs of a step, summed over all devices."""

    model: PositiveFloat
    """Forward pass, and backward pass counted twice as much."""
    recomputed: float
    """Recomputed forward passes (remat); a chunked loss does not recompute the head."""


def step_work(config: RunConfig, batch: Batch) -> Work:
    """FLOPs of a step on a batch of this shape, without norms, activations, look-ups and the optimizer."""
    model = config.model
    rows, length = batch.tokens.shape
    targets = batch.targets.size
    head = head_flops(model) * targets
    layers = (flops_per_token(model, length) - head_flops(model)) * rows * length
    again = FORWARD_AGAIN[model.remat] * layers
    if model.remat == "mixer_inputs":  # sums after mixers and MLPs are kept: last projections are not recomputed
        again -= 2 * model.d_model * (model.d_model + model.hidden_width) * model.n_layers * rows * length
    return Work(3 * (layers + head), again)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Memory:
    """Bytes of one device."""

    params: int
    """Parameters and buffers, float32."""
    optimizer: int
    """Optimizer state, step and random key."""
    batch: int
    """A batch of tokens and targets."""
    peak: int
    """Largest memory at any time, including these, by the compiler."""
    capacity: int

    @property
    def held(self) -> int:
        """State and batch."""
        return self.params + self.optimizer + self.batch

    @property
    def temporaries(self) -> int:
        """The peak without state and batch: gradients, activations, gathered parameters."""
        return self.peak - self.held


@dataclasses.dataclass(frozen=True, kw_only=True)
class Times:
    """Lower bounds of the step time in seconds; each assumes its part of the machine at its peak."""

    compute: float
    """FLOPs over the peak of the matmul units."""
    memory: float
    """Bytes between instructions over the memory's bandwidth."""
    network: float
    """Bytes that a device sends over the bandwidth of all of its links."""

    @property
    def bound(self) -> float:
        """The longest of the three: the step time if everything overlaps."""
        return max(self.compute, self.memory, self.network)

    @property
    def in_turn(self) -> float:
        """The sum of the three: the step time if nothing overlaps."""
        return self.compute + self.memory + self.network

    @property
    def bottleneck(self) -> str:
        """Name of the longest."""
        return max(("compute", "memory", "network"), key=lambda name: getattr(self, name))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """One experiment on one topology, compiled."""

    version: Literal[1] = 1
    name: str
    """Name of the config file."""
    topology: str
    """Name, such as `v5e:16x16`."""
    device: str
    """Name of the device in `jaxzoo.utils.devices`."""
    mesh: dict[str, PositiveInt]
    """Sizes of the axes."""
    remat: str
    dtype: str
    batch_size: int
    """Rows of a step."""
    length: int
    """Tokens of a row."""
    accumulate: int
    """Parts of a batch, one after the other."""
    loss_chunk: int
    """Tokens of a row whose logits exist at once; 0: all."""
    logits: int
    """Bytes of the largest array of logits on one device, float32."""
    steps: int
    n_params: int
    memory: Memory
    """Bytes of one device."""
    work: Work
    """FLOPs of a step."""
    memory_bytes: int
    """Bytes that a device reads and writes in a step."""
    traffic: tuple[Traffic, ...]
    """Collectives of a step."""
    open_loops: int
    """Loops whose bodies count once, because their trip counts are unknown."""
    kernels: dict[str, int]
    """Pallas kernels of the program: number of calls by implementation."""
    compile_seconds: float
    """Seconds of lowering and compiling."""
    sources: tuple[SourceTraffic, ...] = ()
    """Source files by memory traffic, the largest first; () in plans of earlier versions."""
    scan_layers: bool = True
    """Whether equal layers are the body of a loop."""
    refusal: str = ""
    """Message of the compiler where the program does not fit; `memory.peak` is then the memory that it would need."""

    @property
    def n_devices(self) -> int:
        return math.prod(self.mesh.values())

    @property
    def fits(self) -> bool:
        """Whether a step fits into the memory of a device."""
        return not self.refusal and self.memory.peak <= self.memory.capacity

    @property
    def tokens(self) -> int:
        return self.batch_size * self.length

    @property
    def times(self) -> Times:
        """Lower bounds of the step time."""
        device = find(self.device)
        n = self.n_devices
        return Times(
            compute=sum(self.work) / (n * device.peak_flops),
            memory=self.memory_bytes / device.memory_bandwidth,
            network=sum(traffic.wire for traffic in self.traffic) / device.link_bandwidth,
        )

    @property
    def mfu(self) -> float:
        """FLOPs of the model, without recomputation, over the peak FLOPs of the devices in the shortest step time."""
        return self.work.model / (self.n_devices * find(self.device).peak_flops * self.times.bound)

    @property
    def hours(self) -> float:
        """Hours of all steps at the bound."""
        return self.steps * self.times.bound / 3600

    def save(self, path: Path) -> None:
        """Writes the plan as JSON, whole or not at all."""
        write_json(path, {**dataclasses.asdict(self), "work": self.work._asdict()})

    @classmethod
    def load(cls, path: Path) -> "Plan":
        """Reads a plan. Raises `ValueError` if the file is none of this version."""
        plan = read_json(path, cls, remedy="plan again, with --save")
        if plan.device not in (device.name for device in DEVICES):
            raise ValueError(f"{path}: device={shorten(plan.device)} is unknown; plan again, with --save")
        return plan


def find(name: str) -> Accelerator:
    """The device of a name in `jaxzoo.utils.devices`."""
    return next(device for device in DEVICES if device.name == name)
