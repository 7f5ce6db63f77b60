"""Compiles a function for an H100 on a machine without one, and reports what the assembler says of its kernels."""

import jax
from jax.experimental import topologies

H100 = """
gpu_device_info {
  threads_per_block_limit: 1024
  threads_per_warp: 32
  shared_memory_per_block: 49152
  shared_memory_per_core: 233472
  shared_memory_per_block_optin: 232448
  threads_per_core_limit: 2048
  core_count: 132
  fpus_per_core: 128
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  memory_bandwidth: 3352320000000
  l2_cache_size: 52428800
  clock_rate_ghz: 1.98
  device_memory_size: 84978434048
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
  cuda_compute_capability { major: 9 minor: 0 feature_extension: ACCELERATED_FEATURES }
}
platform_name: "CUDA"
dnn_version_info { major: 9 minor: 10 }
device_description_str: "NVIDIA H100 80GB HBM3"
"""


def compile_for_hopper(function, *shapes, capfd, monkeypatch) -> str:
    """The output of ptxas -v for every Mosaic kernel in function(*shapes).

    Needs jax-cuda13-plugin and jax-cuda13-pjrt of jax's version, and ptxas on the PATH or nvidia-cuda-nvcc.
    """
    monkeypatch.setenv("MOSAIC_GPU_DUMP_PTXAS", "1")
    topology = topologies.get_topology_desc("h100", platform="cuda", target_config=H100, topology="1x1x1")
    sharding = jax.sharding.SingleDeviceSharding(topology.devices[0])
    arguments = [jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding) for x in shapes]
    capfd.readouterr()
    jax.jit(function).trace(*arguments).lower(lowering_platforms=("cuda",)).compile()
    printed = capfd.readouterr()
    return printed.out + printed.err
