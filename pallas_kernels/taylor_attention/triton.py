"""The `triton` implementation, for GPUs without wgmma (Ampere, Ada); chosen by name only, as it was never timed.

The kernel is in `triton_forward.py`, imported on use because it needs jax-triton.
"""

import importlib.util

import jax
import jax.numpy as jnp

from pallas_kernels.taylor_attention.problem import Problem

PACKAGES = ("jax_triton", "triton")
DTYPES = ("bfloat16", "float16")


def objection(p: Problem) -> str | None:
    """Why the kernel cannot serve a call, or None."""
    absent = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if absent:
        return f"{' and '.join(absent)} not installed; pip install 'jax-triton==0.3.1' 'triton==3.6.*'"
    if len(set(p.dtypes)) > 1 or p.dtypes[0] not in DTYPES:
        return f"dtypes of q, k, v are {p.dtypes}, not all one of {', '.join(DTYPES)}"
    return f"feature_dim={p.k} is more than 16" if p.k > 16 else None


def forward(q, k, v, state, decay, options, *, compute_capability: int | None = None):
    """Forward pass (contract in `api.py`); a batch of calls is one call with more rows."""

    @jax.custom_batching.custom_vmap
    def run(q, k, v, state, decay):
        from pallas_kernels.taylor_attention import triton_forward

        return triton_forward.forward(
            q, k, v, state, decay, scale=options.scale, eps=options.eps, normalize=options.normalize,
            return_state=options.return_state, compute_capability=compute_capability,
        )  # fmt: skip

    @run.def_vmap
    def _batched(size, is_batched, *operands):
        def rows(x, batched):
            x = x if batched else jnp.broadcast_to(x, (size, *x.shape))
            return x.reshape(-1, *x.shape[2:])

        outputs = run(*jax.tree.map(rows, operands, tuple(is_batched)))
        outputs = jax.tree.map(lambda x: x.reshape(size, -1, *x.shape[1:]), outputs)
        return outputs, jax.tree.map(lambda _: True, outputs)

    rates = None if decay is None else jnp.broadcast_to(decay, (q.shape[0], q.shape[2]))
    return run(q, k, v, state, rates)
