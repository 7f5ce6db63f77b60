"""Targets of ahead-of-time compilation: absent devices, described by JAX's plugins."""

import dataclasses
import importlib.util
import os
import shutil
from pathlib import Path
from typing import Any, Literal

import jax
from jax.experimental import topologies

H100 = """
gpu_device_info {
  cuda_compute_capability { major: 9 minor: 0 feature_extension: ACCELERATED_FEATURES }
  core_count: 132
  fpus_per_core: 128
  clock_rate_ghz: 1.98
  device_memory_size: 84978434048
  memory_bandwidth: 3352320000000
  l2_cache_size: 52428800
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
  shared_memory_per_core: 233472
  shared_memory_per_block: 49152
  shared_memory_per_block_optin: 232448
  threads_per_warp: 32
  threads_per_block_limit: 1024
  threads_per_core_limit: 2048
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
}
platform_name: "CUDA"
dnn_version_info { major: 9 minor: 10 }
device_description_str: "NVIDIA H100 80GB HBM3"
"""
"""XLA's description of a GPU (GpuTargetConfigProto): limits of capability 9.0, sizes and rates of an H100 SXM.
ACCELERATED_FEATURES selects sm_90a, which wgmma needs."""


@dataclasses.dataclass(frozen=True)
class Target:
    """A kind of device, up to 8 per host."""

    name: str
    platform: Literal["cuda", "tpu"]
    bandwidth: float
    """Memory bandwidth in bytes/s."""
    peak_flops: float
    """Dense matmul FLOP/s, bfloat16 to float32."""
    clock: float
    """Cycles per second."""
    cores: int
    """Streaming multiprocessors of a GPU, cores of a TPU chip."""
    matrix_unit: int = 0
    """Rows and columns of a TPU's matrix unit."""
    shared_memory: int | None = None
    """Maximum shared memory of a thread block, in bytes."""

    def devices(self, count: int = 1) -> list[Any]:
        """Devices for compilation only."""
        if self.platform == "cuda":
            shape = f"1x1x{count}"  # slices x hosts x devices
            found = topologies.get_topology_desc(self.name, "cuda", target_config=H100, topology=shape).devices
        else:
            found = topologies.get_topology_desc(f"{self.name}:2x4", "tpu").devices
        return list(found[:count])


TARGETS = {
    target.name: target
    for target in (
        Target("h100", "cuda", bandwidth=3.35e12, peak_flops=989e12, clock=1.98e9, cores=132, shared_memory=232448),
        Target("v5e", "tpu", bandwidth=819e9, peak_flops=197e12, clock=1.5e9, cores=1, matrix_unit=128),
        Target("v6e", "tpu", bandwidth=1640e9, peak_flops=918e12, clock=1.75e9, cores=1, matrix_unit=256),
    )
}
"""Sources: NVIDIA's data sheet of the H100 SXM; cloud.google.com/tpu/docs, with clocks that reach the peaks."""


def missing(platform: str) -> str | None:
    """Missing requirement for `platform`, with the command that installs it, or None."""
    if platform == "tpu":
        return None if _installed("libtpu") else "libtpu is not installed; pip install libtpu"
    if not any(_installed(f"jax_plugins.xla_cuda{version}") for version in (12, 13)):
        return f"JAX's CUDA plugin is not installed; pip install jax-cuda13-plugin=={jax.__version__}"
    if not _installed("absl"):
        return "absl, which Mosaic GPU imports, is not installed; pip install absl-py"
    for tool, package in (("ptxas", "nvcc"), ("nvdisasm", "nvdisasm")):
        if cuda_tool(tool) is None:
            where = "or add the bin of a CUDA toolkit to the PATH"
            return f"{tool} is not on the PATH; pip install nvidia-cuda-{package}, {where}"
    return None


def cuda_tool(name: str) -> Path | None:
    """Path of ptxas or nvdisasm: on the PATH, from pip's nvidia-cuda-nvcc or -nvdisasm, or in /usr/local/cuda."""
    spec = importlib.util.find_spec("nvidia.cu13") if _installed("nvidia") else None
    roots = [*(spec.submodule_search_locations or () if spec else ()), os.environ.get("CUDA_ROOT"), "/usr/local/cuda"]
    candidates = [shutil.which(name), *(Path(root, "bin", name) for root in roots if root)]
    return next((Path(path) for path in candidates if path and Path(path).exists()), None)


def _installed(module: str) -> bool:
    parent = module.rpartition(".")[0]
    return (not parent or _installed(parent)) and importlib.util.find_spec(module) is not None
