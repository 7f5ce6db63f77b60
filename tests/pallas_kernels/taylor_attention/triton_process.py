"""The Triton kernel in a process of its own, for `test_triton.py`: interpreted, or compiled. Prints JSON.

TRITON_INTERPRET=1 python -m tests.pallas_kernels.taylor_attention.triton_process interpret
JAX_TRITON_DUMP_DIR=FOLDER python -m tests.pallas_kernels.taylor_attention.triton_process compile
"""

import functools
import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import SingleDeviceSharding

from pallas_kernels.compile_check.targets import TARGETS, cuda_tool
from pallas_kernels.taylor_attention import TaylorState, taylor_feature_count, triton_forward
from pallas_kernels.taylor_attention.features import full_to_symmetric
from pallas_kernels.taylor_attention.workloads import HEADLINE
from tests.pallas_kernels.shared import relative_l2
from tests.pallas_kernels.taylor_attention.cases import Call, truth

CALLS = {
    "one_token": Call(t=1),
    "ragged": Call(t=40, b=2, h=4, g=2, k=5, v=7, state=False),
    "grouped_decay": Call(t=33, k=16, v=64, h=2, g=1, decay=True),
    "wide_values": Call(t=17, k=4, v=70, decay=True, scale=0.3, eps=0.2),
    "numerator": Call(t=20, k=8, v=12, h=1, g=1, normalize=False),
    "narrow_dtype": Call(t=33, k=16, v=64, h=2, g=1, decay=True),
}


class HostArray:
    """What Triton's interpreter asks of a tensor, over NumPy's memory."""

    def __init__(self, x):
        self.x = np.ascontiguousarray(x)
        self.dtype = f"torch.{self.x.dtype}"

    def data_ptr(self):
        return self.x.ctypes.data

    def untyped_storage(self):
        return self

    cpu = untyped_storage

    def new_empty(self, *_, **__):
        return HostArray(self.x)

    def set_(self, storage, *_):
        self.x = storage.x

    def storage_offset(self):
        return 0

    size = stride = storage_offset

    def copy_(self, _):
        """Nothing: the kernel wrote to this memory."""


def errors(call: Call, dtype) -> list[float]:
    """Relative L2 of y, s, z against float64, outputs poisoned before."""
    arrays = [jnp.asarray(x, dtype if i < 3 else jnp.float32) for i, x in enumerate(call.arrays())]
    decay = None if call.rates is None else jnp.broadcast_to(jnp.asarray(call.rates), (call.b, call.h))
    launch = triton_forward.launch(
        *arrays[:3], TaylorState(*arrays[3:]) if call.state else None, decay, eps=call.eps,
        scale=call.k**-0.5 if call.scale is None else call.scale, normalize=call.normalize, return_state=True,
    )  # fmt: skip
    inputs = [HostArray(np.array(x)) for x in launch.inputs]
    outputs = [HostArray(np.full(x.shape, np.nan, x.dtype)) for x in launch.outputs]
    triton_forward.taylor_kernel[launch.grid](*inputs, *outputs, **launch.constants)
    y, _, s, z = (x.x for x in outputs)
    s, z = (full_to_symmetric(jnp.asarray(x), k=call.k, axis=2) for x in (s, z))
    expected, _ = truth(call, [np.asarray(x, np.float64) for x in arrays])
    return [relative_l2(x, e) for x, e in zip((y, s, z), expected, strict=True)]


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
    run = functools.partial(
        triton_forward.forward, scale=spec.k**-0.5, eps=1e-12, normalize=True, return_state=full,
        compute_capability=capability,
    )  # fmt: skip
    dump = Path(os.environ["JAX_TRITON_DUMP_DIR"])
    before = set(dump.glob("*/*.ptx"))
    jax.jit(run).trace(*sequences, state, array(*rows) if full else None).lower(lowering_platforms=("cuda",)).compile()
    (ptx,) = set(dump.glob("*/*.ptx")) - before
    arch = f"-arch=sm_{capability}{'a' if capability == 90 else ''}"
    command = [str(cuda_tool("ptxas")), "-v", arch, str(ptx), "-o", os.devnull]
    said = subprocess.run(command, capture_output=True, text=True)
    return said.stdout + said.stderr


if __name__ == "__main__":
    if sys.argv[1] == "interpret":
        # Triton's interpreter multiplies no matrices of bfloat16: float16 stands for it.
        dtypes = {name: jnp.float16 if name == "narrow_dtype" else jnp.float32 for name in CALLS}
        print(json.dumps({name: errors(call, dtypes[name]) for name, call in CALLS.items()}))
    else:
        cases = [(capability, full) for capability in (80, 89, 90) for full in (False, True)]
        print(
            json.dumps(
                {f"sm_{capability}, full={full}": assembled(capability, full=full) for capability, full in cases}
            )
        )
