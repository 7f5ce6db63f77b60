"""Operands and results of the TPU kernels of Taylor attention, and the call itself."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pallas_kernels.mosaic_tpu_lanes import LANES, Specs, call_by_name
from pallas_kernels.taylor_attention import mosaic_tpu_rotations as rotations
from pallas_kernels.taylor_attention.features import n_features
from pallas_kernels.taylor_attention.mosaic_tpu_layout import Geometry
from pallas_kernels.taylor_attention.state import TaylorState


def call(kernel, geometry: Geometry, inputs: Specs, outputs: Specs, *, interpret, name: str) -> dict[str, jax.Array]:
    """pallas_call over (b, head group, block).

    Args:
      kernel: of a mapping from names to refs: those of inputs and outputs, `carry`, and the scratch `q_rows`, `k_rows`
        (one entry for each parity of a chunk) and, with decay, `between` (heads, c, c).
      inputs, outputs: name -> (array or struct, spec).
    """
    g = geometry
    if not interpret and g.chunk % LANES:
        raise ValueError(f"chunk_size={g.chunk} must be a multiple of {LANES} on a TPU")
    scratch = {"carry": g.state_shape, "q_rows": (2, *g.head_scratch), "k_rows": (2, *g.head_scratch)}
    if "log_decay" in inputs:
        scratch["between"] = (g.group, g.chunk, g.chunk)
    grid = (g.b, g.n_groups, g.n_blocks)
    return call_by_name(kernel, grid, inputs, outputs, scratch, interpret=interpret, name=name)


def decay_input(decay, geometry: Geometry) -> dict[str, tuple[Any, pl.BlockSpec]]:
    """Log decay (heads,) in SMEM; empty without decay."""
    if decay is None:
        return {}
    if decay.shape != (geometry.h,):
        raise ValueError(f"decay {decay.shape} must be (h,) = ({geometry.h},)")
    # log 0 = -inf would make decay^0 = exp(0 * -inf) = NaN.
    log_decay = jnp.log(jnp.maximum(decay.astype(jnp.float32), jnp.finfo(jnp.float32).tiny))
    return {"log_decay": (jnp.pad(log_decay, (0, geometry.extra_heads)), pl.BlockSpec(memory_space=pltpu.SMEM))}


def tokens_struct(geometry: Geometry, head_dim: int) -> jax.ShapeDtypeStruct:
    g = geometry
    return jax.ShapeDtypeStruct((g.b, g.t, (g.h + g.extra_heads) * head_dim), g.dtype)


def pad_tokens(x, geometry: Geometry):
    """(b, t, h*.) -> `tokens_struct`, with heads of zeros that reach no output."""
    return jnp.pad(x, ((0, 0), (0, 0), (0, geometry.extra_heads * (x.shape[-1] // geometry.h))))


def unpad_tokens(x, geometry: Geometry):
    return x[:, :, : x.shape[-1] // (geometry.h + geometry.extra_heads) * geometry.h]


def den_struct(geometry: Geometry) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(geometry.den_shape, jnp.float32)


def state_struct(geometry: Geometry) -> jax.ShapeDtypeStruct:
    g = geometry
    return jax.ShapeDtypeStruct((g.b, g.h + g.extra_heads, *g.state_shape[1:]), jnp.float32)


def pack_state(state: TaylorState, geometry: Geometry):
    """`TaylorState` -> `state_struct`: a copy, which only calls with a state pay for."""
    g, features = geometry, n_features(geometry.k)
    expected = (g.b, g.h, features, g.v)
    if state.s.shape != expected or state.z.shape != expected[:-1]:
        raise ValueError(f"state s {state.s.shape}, z {state.z.shape} must be {expected}, {expected[:-1]}")
    both = jnp.concatenate([state.s.mT, state.z[..., None, :]], axis=2).astype(jnp.float32)
    both = jnp.pad(both, ((0, 0), (0, g.extra_heads), (0, g.value_rows - g.v - 1), (0, 1)))
    source = np.full(g.state_shape[2], features)  # the padding
    source[rotations.public_rows(g.k)] = np.arange(features)
    return jnp.take(both, source, axis=3)


def unpack_state(packed, geometry: Geometry) -> TaylorState:
    """The inverse of `pack_state`."""
    packed = jnp.take(packed[:, : geometry.h, : geometry.v + 1], rotations.public_rows(geometry.k), axis=3)
    return TaylorState(packed[:, :, : geometry.v].mT, packed[:, :, geometry.v])


def pack_den(den, geometry: Geometry):
    """(b, h, t) -> `den_shape`, padded with ones: a mere reshape when groups and blocks come out even."""
    g = geometry
    _, _, rows, time = g.den_shape
    den = jnp.pad(den, ((0, 0), (0, g.extra_heads), (0, time - g.t)), constant_values=1.0)
    den = den.reshape(g.b, g.n_groups, g.group, time)
    return jnp.pad(den, ((0, 0), (0, 0), (0, rows - g.group), (0, 0)), constant_values=1.0)


def unpack_den(packed, geometry: Geometry):
    """The inverse of `pack_den`."""
    g = geometry
    heads = packed[:, :, : g.group].reshape(g.b, g.h + g.extra_heads, -1)
    return heads[:, : g.h, : g.t]
