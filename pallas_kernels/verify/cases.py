"""The kernels' cases by platform, in the order in which they run: smallest first, forward before backward.

Lengths: one chunk of 64; one token more; 72, 120 and 200, where copies end within a chunk; 8184, the same when long.
Of a long case only the last row is compared; a short case with two rows tells them apart.
"""

from pallas_kernels.registry import OPS, load

PLATFORMS = ("gpu", "tpu", "cpu")


def _cases(platform: str) -> list:
    found = [case for op in OPS for case in load(op, "workloads").CASES[platform]]
    return sorted(found, key=lambda case: (case.b * case.h * case.t, case.backward))


CASES = {platform: _cases(platform) for platform in PLATFORMS}
"""Lists of `KernelCase` by the platform that JAX finds; on a CPU the kernels are interpreted."""
