"""Taylor attention for users: one function for sequences, one for a token.

With s_ij = scale * q_i.k_j and weights w_ij = decay^(i-j) (1 + s_ij + s_ij^2/2) for j <= i:

    y_i = sum_j w_ij v_j / (sum_j w_ij + eps)

(Based, Arora et al. 2024, sec. 3.1 and 4.1, eqs. 2-4; decay: App. C.) 1 + s + s^2/2 = ((1 + s)^2 + 1) / 2, so
that a weight is at least 1/2 and a denominator never near 0. The weights factor into features (`features.py`),
so that the past is a sum, `TaylorState`, whose size does not grow.

Deviations: eq. 4 prints no factor of the scores; k^-1/2, the default here, is that of the authors' code. The authors
keep all k^2 products, we the distinct ones. Their fixed decay also divides a row of its mask by the root of the
row's sum, unless told otherwise, and leaves the denominator as it is; ours is the plain power, in numerator and
denominator alike.
"""

import dataclasses
import functools
from typing import Literal, overload

import jax
import jax.numpy as jnp

from pallas_kernels.dispatch import choose, may_run_by_default, may_run_on, run
from pallas_kernels.taylor_attention import mosaic_gpu_split, reference
from pallas_kernels.taylor_attention.backends import BACKENDS, KERNELS, Options
from pallas_kernels.taylor_attention.features import feature_map, n_features, query_feature_map
from pallas_kernels.taylor_attention.problem import Problem
from pallas_kernels.taylor_attention.state import TaylorState, empty_state

IMPLEMENTATIONS = ("reference", *BACKENDS)


@overload
def taylor_attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    *,
    scale: float | None = None,
    eps: float = 1e-12,
    normalize: bool = True,
    decay: jax.Array | None = None,
    segment_ids: jax.Array | None = None,
    initial_state: TaylorState | None = None,
    return_state: Literal[False] = False,
    chunk_size: int | None = None,
    implementation: str | None = None,
) -> jax.Array: ...
@overload
def taylor_attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    *,
    scale: float | None = None,
    eps: float = 1e-12,
    normalize: bool = True,
    decay: jax.Array | None = None,
    segment_ids: jax.Array | None = None,
    initial_state: TaylorState | None = None,
    return_state: Literal[True],
    chunk_size: int | None = None,
    implementation: str | None = None,
) -> tuple[jax.Array, TaylorState]: ...
def taylor_attention(
    q,
    k,
    v,
    *,
    scale=None,
    eps=1e-12,
    normalize=True,
    decay=None,
    segment_ids=None,
    initial_state=None,
    return_state=False,
    chunk_size=None,
    implementation=None,
):
    """Causal Taylor attention over t >= 0 tokens; the equation is in the module docstring.

    Sums and states are float32, whatever the inputs. Reverse-mode differentiable in q, k, v and the initial
    state, through the output and the final state; forward mode only with "reference". vmap, scan, checkpoint
    and jit compose. On a mesh, kernels want `sharded_taylor_attention`.

    Args:
      q: (b, t, h, k); h is a multiple of g, and key/value head i serves the query heads i h/g .. (i+1) h/g - 1.
      k: (b, t, g, k).
      v: (b, t, g, v).
      scale: factor of the scores, a Python number; None: k^-1/2.
      eps: added to the sum of weights. 1e-12 is the authors'; flash-linear-attention takes 1e-6.
      normalize: divide by the sum of weights; False: y_i = sum_j w_ij v_j.
      decay: (h,) in (0, 1], what a weight keeps a token; None: 1. A constant: no gradient flows into it.
      segment_ids: (b, t) int32; tokens meet only where theirs are equal, as for packed documents. A document is one
        run of equal ids in a row: an id that returns after others is a new document. Not with a state.
      initial_state: the sums over the tokens before; None: there are none.
      return_state: return the sums after the last token too.
      chunk_size: chunk length of "xla", any positive number; None: by length. The
        kernels have chunks of their own and refuse it.
      implementation: "reference", "xla", "mosaic_gpu", "mosaic_tpu" or "triton", which runs or raises; None: the
        Mosaic kernel of the platform that the program is lowered for, where it serves this call and was verified on
        that kind of device (`pallas_kernels.certificates`), else "xla". float32 and k > 16 take "mosaic_gpu" only
        by its name.
        "mosaic_gpu" multiplies float32 as pairs of bfloat16: 1e-5 of relative error, where "xla" keeps float32 whole.

    Returns:
      y (b, t, h, v) in the dtype of v, or (y, state).

    Raises:
      ValueError: arguments that contradict each other.
      NotImplementedError: the implementation asked for does not serve this call.
    """
    check_segments(q.shape, segment_ids, stateful=initial_state is not None or return_state)
    return attend(
        q, k, v, scale=scale, eps=eps, normalize=normalize, decay=decay, segment_ids=segment_ids,
        initial_state=initial_state, return_state=return_state, chunk_size=chunk_size, implementation=implementation,
    )  # fmt: skip


def attend(
    q, k, v, *, scale=None, eps=1e-12, normalize=True, decay=None, segment_ids=None, initial_state=None,
    return_state=False, chunk_size=None, implementation=None,
):  # fmt: skip
    """`taylor_attention`, which with "xla" also takes segment_ids with a state: it is of the first document."""
    _check(q.shape, k.shape, v.shape, decay, initial_state)
    if chunk_size is not None and chunk_size < 1:
        raise ValueError(f"taylor_attention: chunk_size={chunk_size} must be positive; None chooses")
    if implementation is not None and implementation not in IMPLEMENTATIONS:
        raise ValueError(f"taylor_attention: implementation={implementation!r} must be one of {IMPLEMENTATIONS}")
    (b, t, h, k_dim), (g, v_dim) = q.shape, v.shape[2:]
    scale = k_dim**-0.5 if scale is None else float(scale)
    decay = None if decay is None else jax.lax.stop_gradient(jnp.asarray(decay))
    if implementation == "reference":
        y, state = reference.quadratic(
            q, k, v, scale=scale, eps=eps, normalize=normalize, initial_state=initial_state, decay=decay,
            segment_ids=segment_ids,
        )  # fmt: skip
        return (y, state) if return_state else y
    problem = Problem(
        b=b, t=t, h=h, g=g, k=k_dim, v=v_dim, dtype=q.dtype.name, kv_dtypes=(k.dtype.name, v.dtype.name),
        chunk_size=chunk_size, segments=segment_ids is not None,
    )  # fmt: skip
    names = choose(BACKENDS, problem, implementation, kernels=KERNELS)
    if t == 0:
        y, state = jnp.zeros((b, 0, h, v_dim), v.dtype), initial_state
        if state is None and return_state:
            state = empty_state(b, h, k_dim, v_dim)
    else:
        options = Options(
            scale=scale, eps=float(eps), normalize=normalize, return_state=return_state, return_den=True,
            chunk_size=chunk_size,
            kernel_segments=mosaic_gpu_split.kernel_segments(problem, mosaic_gpu_split.TRAINING)
            if "mosaic_gpu" in names and (may_run_on("cuda") if implementation else may_run_by_default("cuda"))
            else 1,
        )  # fmt: skip
        y, state = _attend(q, k, v, initial_state, decay, segment_ids, names, problem, options)
    return (y, state) if return_state else y


def taylor_attention_step(
    state: TaylorState,
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    *,
    scale: float | None = None,
    eps: float = 1e-12,
    normalize: bool = True,
    decay: jax.Array | None = None,
) -> tuple[jax.Array, TaylorState]:
    """One token (Based, eq. 3 and Alg. 2): 4 features v operations per head, whatever the position.

    Equals `taylor_attention` with t = 1; q (b, h, k), k (b, g, k), v (b, g, v), the rest as there. XLA on every
    platform, reading and writing the state once; donate it (`jax.jit(..., donate_argnums=0)`) to update it in
    place. Returns y (b, h, v) in the dtype of v, and the state.
    """
    q_shape, k_shape, v_shape = ((x.shape[0], 1, *x.shape[1:]) for x in (q, k, v))
    _check(q_shape, k_shape, v_shape, decay, state)
    factor = q.shape[-1] ** -0.5 if scale is None else float(scale)
    group = q.shape[1] // k.shape[1]
    k, v_heads = (jnp.repeat(x.astype(jnp.float32), group, axis=1) for x in (k, v))
    features, (s, z) = feature_map(k), state
    if decay is not None:
        kept = jax.lax.stop_gradient(jnp.asarray(decay, jnp.float32))
        s, z = s * kept[None, :, None, None], z * kept[None, :, None]
    s = s + features[..., :, None] * v_heads[..., None, :]
    z = z + features
    # Sums of products, not matrix products, which could round float32 to tf32 or bfloat16.
    read = query_feature_map(q.astype(jnp.float32), factor)
    y = (read[..., :, None] * s).sum(2)
    if normalize:
        y = y / ((read * z).sum(2) + eps)[..., None]
    return y.astype(v.dtype), TaylorState(s, z)


@functools.partial(jax.custom_vjp, nondiff_argnums=(6, 7, 8))
def _attend(q, k, v, state, decay, segment_ids, names, problem, options):
    segments = mosaic_gpu_split.kernel_segments(problem, mosaic_gpu_split.FORWARD) if "mosaic_gpu" in names else 1
    options = dataclasses.replace(options, return_den=False, kernel_segments=segments)
    y, last, _ = run(BACKENDS, "forward", names, problem, q, k, v, state, decay, segment_ids, options=options)
    return y, last


def _attend_forward(q, k, v, state, decay, segment_ids, names, problem, options):
    operands = q, k, v, state, decay, segment_ids
    y, last, saved = run(BACKENDS, "forward", names, problem, *operands, options=options)
    return (y, last), (*operands, y if options.normalize else None, saved)


def _attend_backward(names, problem, options, residuals, cotangents):
    decay = residuals[4]
    gradients = run(BACKENDS, "backward", names, problem, *residuals, *cotangents, options=options)
    return (*gradients, None if decay is None else jnp.zeros_like(decay), None)


_attend.defvjp(_attend_forward, _attend_backward)


def _check(q: tuple, k: tuple, v: tuple, decay, state: TaylorState | None) -> None:
    if not len(q) == len(k) == len(v) == 4:
        raise ValueError(f"taylor_attention: q, k, v of shapes {q}, {k}, {v} must be (b, t, heads, width)")
    (b, t, h, k_dim), g = q, k[2]
    if k != (b, t, g, k_dim) or v[:3] != (b, t, g):
        raise ValueError(
            f"taylor_attention: q, k, v of shapes {q}, {k}, {v} must share batch and "
            "time, q and k their width, k and v their heads"
        )
    if g == 0 or h % g:
        raise ValueError(f"taylor_attention: {h} query heads must be a multiple of {g} key/value heads")
    if decay is not None and decay.shape != (h,):
        raise ValueError(f"taylor_attention: decay of shape {decay.shape} must have one entry a query head, ({h},)")
    expected = (b, h, n_features(k_dim))
    if state is not None and (state.z.shape != expected or state.s.shape != (*expected, v[3])):
        raise ValueError(
            f"taylor_attention: state of shapes s={state.s.shape}, z={state.z.shape} "
            f"must be s={(*expected, v[3])}, z={expected}; make it with empty_state"
        )


def check_segments(q: tuple, segment_ids, *, stateful: bool) -> None:
    """Whether `segment_ids` fit q of shape `q` and a call with or without states.

    Raises:
      ValueError: they do not.
    """
    if segment_ids is None:
        return
    if stateful:
        raise ValueError(
            "taylor_attention: segment_ids with a state, which does not say whose its tokens are; prefill one document "
            "at a time"
        )
    if segment_ids.shape != q[:2] or segment_ids.dtype != jnp.int32:
        raise ValueError(
            f"taylor_attention: segment_ids {segment_ids.dtype.name}{list(segment_ids.shape)} must be "
            f"int32{list(q[:2])}, one for each token"
        )
