"""Peak rates of accelerators, by the names that JAX gives them; plans and MFU read this table."""

import contextlib
import math
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple


class Accelerator(NamedTuple):
    """A kind of accelerator; a chip, or a GPU."""

    name: str
    """Short product name."""
    kinds: tuple[str, ...]
    """`device_kind` of JAX."""
    peak_flops: float
    """Matmul FLOP/s, bfloat16 in, float32 out, dense; a multiply-add counts 2."""
    memory: int
    """Bytes of high-bandwidth memory."""
    memory_bandwidth: float
    """Bytes/s between the chip and that memory."""
    link_bandwidth: float
    """Bytes/s that it can send to others of its slice or host over all of its links, and receive meanwhile."""


GIB = 2**30

DEVICES = (
    Accelerator("v4", ("TPU v4",), 275e12, 32 * GIB, 1200e9, 300e9),
    Accelerator("v5e", ("TPU v5 lite", "TPU v5e"), 197e12, 16 * GIB, 819e9, 200e9),
    Accelerator("v5p", ("TPU v5", "TPU v5p"), 459e12, 95 * GIB, 2765e9, 600e9),
    Accelerator("v6e", ("TPU v6 lite", "TPU v6e"), 918e12, 32 * GIB, 1640e9, 400e9),
    Accelerator("a100-40gb", ("NVIDIA A100-SXM4-40GB",), 312e12, 40 * GIB, 1555e9, 300e9),
    Accelerator("a100-80gb", ("NVIDIA A100-SXM4-80GB",), 312e12, 80 * GIB, 2039e9, 300e9),
    Accelerator("h100", ("NVIDIA H100 80GB HBM3",), 989e12, 84_978_434_048, 3.35e12, 450e9),
    Accelerator("h200", ("NVIDIA H200",), 989e12, 141_000_000_000, 4.8e12, 450e9),
)
"""Sources. TPUs: docs.cloud.google.com/tpu/docs/v4, /v5e, /v5p, /v6e. Their "bidirectional ICI bandwidth per chip"
counts both directions, so half of it is here: v5e 400 GB/s (1600 Gbps each way), v5p 1200, v6e 800; v4's 300 GB/s are
six links of 50 GB/s (Jouppi et al. 2023, table 4). GPUs: NVIDIA's data sheets of A100, H100 and H200 (SXM), NVLink
halved likewise (600 and 900 GB/s both ways); an H100's memory is what XLA describes it with."""


def find_device(kind: str) -> Accelerator | None:
    """The device that JAX calls `kind`, or None where this table has no such kind."""
    return next((device for device in DEVICES if kind in device.kinds), None)


def memory_of_each(devices: Sequence[Any]) -> float:
    """Bytes that each of these devices has for itself; the CPUs of a process share those of the host."""
    limit = (devices[0].memory_stats() or {}).get("bytes_limit")
    if limit:
        return limit
    if devices[0].platform != "cpu":
        return math.inf
    return min(host_limits(Path("/proc/self/cgroup"), Path("/sys/fs/cgroup"))) / len(devices)


def host_limits(groups: Path, root: Path) -> list[int]:
    """Bytes of the host, and those that a container, a job of a cluster, or `ulimit -v` leaves to this process."""
    import resource  # not on Windows

    limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    limits += [n // 2 for n in resource.getrlimit(resource.RLIMIT_AS)[:1] if n >= 0]  # libraries and threads take space
    found = re.findall(r"^(?:0:|[0-9]+:memory):/(.*)$", groups.read_text(), re.MULTILINE) if groups.exists() else []
    for path in (root / name for group in found for name in (group, f"memory/{group}")):
        for folder in (path, *path.parents):
            for name in ("memory.max", "memory.limit_in_bytes"):  # of control groups, versions 2 and 1
                with contextlib.suppress(OSError, ValueError):  # absent; "max": none
                    limits.append(int((folder / name).read_text()))
    return limits
