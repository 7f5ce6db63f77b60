"""The Triton kernel compiled in a process of its own, for `test_triton.py`. Prints JSON.

JAX_TRITON_DUMP_DIR=FOLDER python -m tests.pallas_kernels.taylor_attention.triton_process
"""

import functools
import json
import os
import subprocess
from pathlib import Path

import jax
import jax.numpy as jnp
from jax.sharding import SingleDeviceSharding

from pallas_kernels.compile_check.targets import TARGETS, cuda_tool
from pallas_kernels.dispatch import lowering_for
from pallas_kernels.taylor_attention import TaylorState, taylor_feature_count, triton
from pallas_kernels.taylor_attention.api import Options
from pallas_kernels.taylor_attention.workloads import HEADLINE


def assembled(capability: int, *, full: bool) -> str:
    """What ptxas says of the headline shape for a compute capability; `full`: with decay, states in and out."""
    spec = HEADLINE
    sharding = SingleDeviceSharding(TARGETS["h100"].devices()[0])

    def array(*shape, dtype=jnp.float32):
        return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)

    rows, tokens = (spec.b, spec.h), (spec.b, spec.t, spec.h)
    f = taylor_feature_count(spec.k)
    state = TaylorState(array(*rows, f, spec.v), array(*rows, f)) if full else None
    sequences = [array(*tokens, width, dtype=spec.dtype) for width in (spec.k, spec.k, spec.v)]
    options = Options(spec.k**-0.5, 1e-12, normalize=True, return_state=full, save_states=True, chunk_size=None)
    run = functools.partial(triton.forward, segment_ids=None, options=options)
    dump = Path(os.environ["JAX_TRITON_DUMP_DIR"])
    before = set(dump.glob("*/*.ptx"))
    with lowering_for("cuda", capability=f"{capability // 10}.{capability % 10}"):
        traced = jax.jit(run).trace(*sequences, state, array(spec.h) if full else None)
        traced.lower(lowering_platforms=("cuda",)).compile()
    (ptx,) = set(dump.glob("*/*.ptx")) - before
    arch = f"-arch=sm_{capability}{'a' if capability == 90 else ''}"
    command = [str(cuda_tool("ptxas")), "-v", arch, str(ptx), "-o", os.devnull]
    said = subprocess.run(command, capture_output=True, text=True)
    return said.stdout + said.stderr


if __name__ == "__main__":
    cases = [(capability, full) for capability in (80, 89, 90) for full in (False, True)]
    print(json.dumps({f"sm_{one[0]}, full={one[1]}": assembled(one[0], full=one[1]) for one in cases}))
