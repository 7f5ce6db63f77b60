"""Plan of a run: memory, traffic and time of its compiled train step."""

import dataclasses
import json
import math
from collections.abc import Mapping
from pathlib import Path

from jaxzoo.devices import DEVICES, Accelerator
from jaxzoo.plan.collectives import Traffic
from jaxzoo.plan.work import Work

VERSION = 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Memory:
    """Bytes of one device."""

    params: int
    """Parameters and buffers, float32."""
    optimizer: int
    """Optimizer state, and the few scalars beside it."""
    batch: int
    """A batch of tokens and targets."""
    peak: int
    """The most that is held at once, these included, as the compiler lays it out."""
    capacity: int
    """Memory of the device."""

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
    """Seconds of a step that nothing can undercut; each assumes its part of the machine at its peak."""

    compute: float
    """FLOPs over the peak of the matmul units."""
    memory: float
    """Bytes between instructions over the memory's bandwidth."""
    network: float
    """Bytes that a device sends over the bandwidth of all of its links."""

    @property
    def bound(self) -> float:
        """The longest of them: a step in which it hides all else."""
        return max(self.compute, self.memory, self.network)

    @property
    def in_turn(self) -> float:
        """Their sum: a step in which nothing is hidden."""
        return self.compute + self.memory + self.network

    @property
    def bottleneck(self) -> str:
        """Name of the longest."""
        return max(("compute", "memory", "network"), key=lambda name: getattr(self, name))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """One experiment on one topology, compiled."""

    name: str
    """Name of the config file."""
    topology: str
    """As it is written: `v5e:16x16`."""
    device: str
    """Name of the device in `jaxzoo.devices`."""
    mesh: Mapping[str, int]
    """Sizes of the axes."""
    remat: str
    """Remat policy."""
    dtype: str
    """Dtype of activations."""
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
    """Steps of the run."""
    n_params: int
    """Parameters."""
    memory: Memory
    """Bytes of one device."""
    work: Work
    """FLOPs of a step."""
    memory_bytes: int
    """Bytes that a device reads and writes in a step."""
    traffic: tuple[Traffic, ...]
    """Collectives of a step."""
    open_loops: int
    """Loops whose bodies count once, because nothing tells how often they run."""
    kernels: Mapping[str, int]
    """Pallas kernels of the program: calls in its text by implementation."""
    compile_seconds: float
    """Seconds of lowering and compiling."""
    refusal: str = ""
    """Message of the compiler where the program does not fit; `memory.peak` is then the memory that it would need."""

    @property
    def n_devices(self) -> int:
        """How many there are."""
        return math.prod(self.mesh.values())

    @property
    def fits(self) -> bool:
        """Whether a step fits into the memory of a device."""
        return not self.refusal and self.memory.peak <= self.memory.capacity

    @property
    def tokens(self) -> int:
        """Tokens of a step."""
        return self.batch_size * self.length

    @property
    def times(self) -> Times:
        """Lower bounds of the step time."""
        device, n = find(self.device), self.n_devices
        return Times(
            compute=sum(self.work) / (n * device.peak_flops),
            memory=self.memory_bytes / device.memory_bandwidth,
            network=sum(traffic.wire for traffic in self.traffic) / device.link_bandwidth,
        )

    @property
    def mfu(self) -> float:
        """FLOPs of the model, without what is computed again, over what the devices could do in the bound."""
        return self.work.model / (self.n_devices * find(self.device).peak_flops * self.times.bound)

    @property
    def hours(self) -> float:
        """Hours of all steps at the bound."""
        return self.steps * self.times.bound / 3600

    def save(self, path: Path) -> None:
        """Writes the plan as JSON."""
        entry = {"version": VERSION, **dataclasses.asdict(self), "work": self.work._asdict()}
        path.write_text(json.dumps(entry, indent=1) + "\n")

    @classmethod
    def load(cls, path: Path) -> "Plan":
        """Reads what `save` wrote.

        Raises:
          ValueError: it is no plan of this version.
        """
        try:
            entry = json.loads(path.read_text())
        except ValueError as error:
            raise ValueError(f"{path} is no plan: {error}") from error
        version = entry.pop("version", None) if isinstance(entry, dict) else None
        if version != VERSION:
            raise ValueError(f"{path} must be a plan of version {VERSION}, as --save writes it; received {version}")
        parts = {
            "memory": Memory(**entry["memory"]),
            "work": Work(**entry["work"]),
            "traffic": tuple(Traffic(**{**each, "axes": tuple(each["axes"])}) for each in entry["traffic"]),
        }
        return cls(**(entry | parts))


def find(name: str) -> Accelerator:
    """The device of a name in `jaxzoo.devices`."""
    return next(device for device in DEVICES if device.name == name)
