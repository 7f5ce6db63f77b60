"""Taylor linear attention on TPU, forward: a Pallas Mosaic kernel on packed heads.

For each head, with p_ij = 1 + s_ij + s_ij^2/2, s_ij = scale * q_i.k_j, and an optional decay in [0, 1]:

    num_i = sum_{j<=i} decay^(i-j) p_ij v_j + decay^(i+1) S^T phi'(q_i)       y_i = num_i / (den_i + eps)
    den_i = sum_{j<=i} decay^(i-j) p_ij     + decay^(i+1) z.phi'(q_i)         (y_i = num_i if not normalize)
    S <- decay^t S + sum_j decay^(t-1-j) phi(k_j) v_j^T                       z <- the same with 1 for v_j

(Based, sec. 3.1 and Alg. 1; decay: App. C.) phi, and phi' = coefficients * phi, are in `features.py`. The
equations hold for a chunk of c tokens and the state before it just as well, so the kernel scans chunks and
carries (S, z) in VMEM; the state reaches HBM once, at the end, and only if it is asked for. Layouts:
`mosaic_tpu_common.py`.

Precision. bfloat16: one MXU pass, float32 accumulation; p, phi and the state are rounded to bfloat16 as
operands, the carried state itself is float32. float32: precision HIGHEST, products exact to float32.

Cost a chunk and head in multiply-adds, with d = group*k lanes: 4 c d f (selection) + c^2 (d + w) + 2 c f w.
"""

import functools

import jax.numpy as jnp
from jax.experimental import pallas as pl

from pallas_kernels.taylor_attention import mosaic_tpu_common as common
from pallas_kernels.taylor_attention.problem import Problem

# Not measured: no TPU was at hand. 512 leaves less VMEM for the pipeline, 128 more steps to fill and drain.
_CHUNK = {"bfloat16": 256, "float32": 128}


def objection(p: Problem) -> str | None:
    """Why these kernels cannot serve a call, or None."""
    if len(set(p.dtypes)) > 1 or p.dtypes[0] not in ("bfloat16", "float32"):
        return f"dtypes of q, k, v are {p.dtypes}, not all bfloat16 or all float32"
    if p.k not in (8, 16, 24, 32):
        return f"feature_dim={p.k} is not one of 8, 16, 24, 32"
    return None if p.v in range(8, 129, 8) else f"head_dim={p.v} is not a multiple of 8 up to 128"


def forward(q, k, v, *, h, scale, eps=1e-6, normalize=True, initial_state=None, decay=None,
            return_state=False, return_den=False, chunk_size=None, interpret=False):  # fmt: skip
    """Packed forward pass on one device; on a mesh, call it inside `jax.shard_map` over batch and heads.

    Args:
      q, k: (b, t, h*k), bfloat16 or float32, t >= 1; k in 8, 16, 24, 32.
      v: (b, t, h*v), dtype of q; v a multiple of 8 up to 128.
      h: number of heads. Groups of 8 fill the lanes for k=16; others run on partial tiles or padded.
      scale, eps: Python floats.
      initial_state: `State` before the first token, or None for zeros.
      decay: (h,) float32 decay per token in [0, 1], or None for 1.
      return_state, return_den: whether the final state and the denominator are written.
      chunk_size: tokens per grid step, a multiple of 128 (of 16 if interpreted or if t fits in one chunk).
      interpret: False, True or `pltpu.InterpretParams()`.

    Returns:
      y (b, t, h*v) in v.dtype; `State` or None; den (b, h, t) float32 without eps, or None.

    Raises:
      ValueError: arguments that contradict each other.
      NotImplementedError: a shape or dtype that the kernel does not cover.
    """
    geometry = common.make_geometry(
        q, k, v, h=h, scale=scale, eps=eps, normalize=normalize, chunk_size=chunk_size, default_chunk=_CHUNK
    )
    blocks = common.Blocks(geometry)
    inputs = [(common.pad_tokens(x, geometry), blocks.tokens(x.shape[-1] // h)) for x in (q, k, v)]
    inputs += common.constants(geometry, decay, blocks)
    outputs = [(common.tokens_struct(geometry, geometry.v), blocks.tokens(geometry.v))]
    if initial_state is not None:
        inputs.append((common.pack_state(initial_state, geometry), blocks.state()))
    if return_den:
        outputs.append((common.den_struct(geometry), blocks.den()))
    if return_state:
        outputs.append((common.state_struct(geometry), blocks.state()))
    kernel = functools.partial(
        _kernel, geometry=geometry, has_decay=decay is not None, has_initial=initial_state is not None,
        writes_den=return_den, writes_state=return_state,
    )  # fmt: skip
    y, *rest = common.call(kernel, geometry, inputs, outputs, interpret=interpret, name="taylor_attention_forward")
    den = common.unpack_den(rest.pop(0), geometry) if return_den else None
    state = common.unpack_state(rest.pop(0), geometry) if return_state else None
    return common.unpad_tokens(y, geometry), state, den


def _kernel(*refs, geometry, has_decay, has_initial, writes_den, writes_state):
    """One grid step. refs: q k v left right rows [log_decay] [initial] | y [den] [state] | carry."""
    g, chunk_id, queue = geometry, pl.program_id(2), iter(refs)
    q_ref, k_ref, v_ref = next(queue), next(queue), next(queue)
    phi = common.Features(next(queue), next(queue), next(queue))
    log_decay_ref = next(queue) if has_decay else None
    initial_ref = next(queue) if has_initial else None
    y_ref = next(queue)
    den_ref = next(queue) if writes_den else None
    state_ref = next(queue) if writes_state else None
    carry = next(queue)

    @pl.when(chunk_id == 0)
    def _():
        carry[...] = jnp.zeros_like(carry) if initial_ref is None else initial_ref[0]

    real = common.real_rows(g, chunk_id)
    q, k, v = q_ref[0], common.keep_rows(k_ref[0], real), common.keep_rows(v_ref[0], real)
    den = jnp.zeros((g.chunk, common.LANES), jnp.float32)
    for head in range(g.group):
        q_h, k_h = common.keep_head(q, head, g), common.keep_head(k, head, g)
        v_h = common.value_operand(v, head, g, real)
        decay = common.Decay(log_decay_ref, head, chunk_id, g)
        s = g.scale * common.matmul("id,jd->ij", q_h, k)
        p = decay.between(common.causal(1.0 + s + 0.5 * s * s))
        within = common.matmul("ij,jw->iw", p.astype(g.dtype), v_h)
        before = common.matmul("if,fw->iw", phi.of_query(q_h), carry[head].astype(g.dtype))
        total = within + decay.since_start(before)
        num_h, den_h = total[:, : g.v], total[:, g.v : g.v + 1]
        y_h = num_h / (den_h + g.eps) if g.normalize else num_h
        y_ref[0, :, common.value_lanes(head, g)] = y_h.astype(y_ref.dtype)
        den = jnp.where(common.lane_index(den.shape) == head, den_h, den)
        added = common.matmul("jf,jw->fw", phi.of_key(k_h), decay.to_end(v_h))
        carry[head] = decay.whole_chunk(carry[head]) + added

    if den_ref is not None:
        den_ref[0, 0] = den.T[: g.den_shape[2]]
    if state_ref is not None:

        @pl.when(chunk_id == g.n_chunks - 1)
        def _():
            state_ref[0] = carry[...]
