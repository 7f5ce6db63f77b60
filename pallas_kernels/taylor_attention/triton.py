"""The `triton` implementation, for GPUs without wgmma; the kernels are in `triton_kernels.py`."""

import jax
import jax.numpy as jnp

from pallas_kernels.taylor_attention.features import full_to_symmetric, n_full_features, symmetric_to_full
from pallas_kernels.taylor_attention.problem import Problem
from pallas_kernels.taylor_attention.state import TaylorState
from pallas_kernels.triton_call import Launch, as_rows, run

DTYPES = ("bfloat16", "float16")


def objection(p: Problem) -> str | None:
    """Why the kernels cannot serve a call, or None."""
    if len(set(p.dtypes)) > 1 or p.dtypes[0] not in DTYPES:
        return f"dtypes of q, k, v are {p.dtypes}, not all one of {', '.join(DTYPES)}"
    return f"feature_dim={p.k} is more than 16" if p.k > 16 else None


def forward(q, k, v, state, decay, segment_ids, options):
    """Forward pass (contract in `api.py`); a batch of calls is one call with more rows."""
    rates = None if decay is None else jnp.broadcast_to(decay, (q.shape[0], q.shape[2]))

    @as_rows
    def call(q, k, v, state, rates):
        y, den, s, z = run(_forward_launch(q, k, v, state, rates, options))
        last = None
        if options.return_state:
            last = TaylorState(*(full_to_symmetric(x, k=q.shape[3], axis=2) for x in (s, z)))
        return y, last, den if options.normalize else None

    y, last, den = call(q, k, v, state, rates)
    return y, last, den if options.save_states else None


def _forward_launch(q, k, v, state, decay, options) -> Launch:
    """Launch of the forward pass: y, den, and s and z of full features, of size 1 if not requested."""
    from pallas_kernels.taylor_attention import triton_kernels as kernels

    (b, t, h, k_dim), (g, v_dim) = q.shape, v.shape[2:]
    log_decay = s = z = jnp.zeros((1,), jnp.float32)
    if decay is not None:
        log_decay = jnp.log2(jnp.maximum(decay.astype(jnp.float32), jnp.finfo(jnp.float32).tiny))
    if state is not None:
        s, z = (symmetric_to_full(x, k=k_dim, axis=2) for x in state)
    full = (b, h, n_full_features(k_dim))
    outputs = (
        jax.ShapeDtypeStruct((b, t, h, v_dim), v.dtype),
        jax.ShapeDtypeStruct((b, h, t) if options.normalize else (1,), jnp.float32),
        jax.ShapeDtypeStruct((*full, v_dim) if options.return_state else (1,), jnp.float32),
        jax.ShapeDtypeStruct(full if options.return_state else (1,), jnp.float32),
    )
    constants = {
        "T": t, "H": h, "G": g, "KD": k_dim, "VD": v_dim, "K": kernels.MAX_KEY_DIM, "V": kernels.VALUES,
        "C": kernels.CHUNK, "SCALE": options.scale, "EPS": options.eps, "NORMALIZE": options.normalize,
        "DECAY": decay is not None, "STATE_IN": state is not None, "STATE_OUT": options.return_state,
    }  # fmt: skip
    grid = (b * h, -(-v_dim // kernels.VALUES))
    return Launch(kernels.taylor_kernel, (q, k, v, log_decay, s, z), outputs, grid, constants, warps=kernels.WARPS)
