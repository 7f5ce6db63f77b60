"""Sliding-window attention: public functions.

    y_i = sum_j softmax_j(scale q_i.k_j) v_j,    j = i - window + 1 .. i

(Based, Arora et al. 2024, sec. 4.2 and App. B.2.2; one token: Alg. 3.) `window=w` counts the token itself. Other
libraries count differently: flash-attention's `(w, 0)`, Zoology's `block_size=w` and `jax.nn`'s `local_window_size=(w,
0)` see `w + 1` keys; flash-linear-attention's `window_size=w` sees `w`, as here.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import AbstractMesh, Mesh, PartitionSpec as P

from pallas_kernels import op as base
from pallas_kernels.halo import with_halo
from pallas_kernels.layout import make_layout, of_last_part, on_shares
from pallas_kernels.op import Op, check_dtypes, check_segment_ids
from pallas_kernels.sliding_window import cudnn, mosaic_gpu_layout, mosaic_tpu, reference, splash_tpu, xla
from pallas_kernels.sliding_window.cache import SlidingWindowCache, append, append_one, empty_cache, history, rounded
from pallas_kernels.sliding_window.problem import Problem


def kernels(op: Op, p: Problem) -> tuple[str, ...]:
    """Implementations in order of preference: cuDNN before our kernel only if no token leaves the window. Which of the
    two is faster for which narrower window has not been measured."""
    del op
    on_gpu = ("cudnn", "mosaic_gpu") if p.window >= p.past + p.t else ("mosaic_gpu", "cudnn")
    return (*on_gpu, "mosaic_tpu", "splash_tpu")


def _hopper():
    from pallas_kernels.sliding_window import mosaic_gpu, mosaic_gpu_vjp

    return mosaic_gpu.forward, mosaic_gpu_vjp.backward


OP = Op(
    "sliding_window_attention",
    {
        "xla": base.xla(xla.forward, xla.backward),
        "mosaic_gpu": base.hopper(_hopper, mosaic_gpu_layout.objection),
        "cudnn": base.vendor("cuda", cudnn, target_objection=cudnn.target_objection),
        "mosaic_tpu": base.tpu(mosaic_tpu.forward, mosaic_tpu.backward, mosaic_tpu.objection),
        "splash_tpu": base.vendor("tpu", splash_tpu),
    },
    operands=("q", "k", "v", "start", "segment_ids"),
    fixed=("start", "segment_ids"),
    outputs=1,
    kept=base.first_output,
    kernels=kernels,
)
"""Contract (`op.py`):

    forward(q, k, v, start, segment_ids, *, window, scale) -> y, lse
    backward(q, k, v, start, segment_ids, y, lse, dy, *, window, scale) -> dq, dk, dv

t >= 1; q (b, t, h, k), k (b, s, g, k), v (b, s, g, v) of the same dtype; y and dy (b, t, h, v); dk and dv are summed
over the query heads that share a head. Keys start `past = s - t` tokens before the queries, 0 <= past < window <= s.
Query i sees key j if

    i + past - window < j <= i + past,    j >= start[row],    segment_ids[row, j] = segment_ids[row, i + past]

start (b,) int32 <= past, or None: all keys exist. segment_ids (b, s) int32, or None. lse (b, h, t) float32 is the
natural logarithm of sum_j exp(scale q_i.k_j) over the keys that i sees.
"""
BACKENDS = OP.backends
IMPLEMENTATIONS = OP.implementations


def sliding_window_attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    *,
    window: int,
    scale: float | None = None,
    segment_ids: jax.Array | None = None,
    initial_cache: SlidingWindowCache | None = None,
    return_cache: bool = False,
    implementation: str | None = None,
) -> Any:
    """Causal softmax attention of t >= 0 tokens, each to itself and the `window - 1` before it.

    Scores and softmax are float32; new keys and values are rounded to the dtype of `initial_cache`, so outputs do not
    depend on how a sequence is split into calls. Differentiable in q, k, v and the cache's k and v, through the output
    and the returned cache. O(t window) time and memory.

    Args:
      q: (b, t, h, k); h is a multiple of g, and key/value head i serves the query heads i h/g .. (i+1) h/g - 1.
      k: (b, t, g, k), dtype of q.
      v: (b, t, g, v), dtype of q.
      window: keys that a token sees, itself included, at least 1; may exceed t.
      scale: factor of the scores, a Python number; None: k^-1/2.
      segment_ids: (b, t) int32 for packed documents: tokens attend only to tokens with the same id. Not with a cache.
      initial_cache: earlier tokens in `window` slots; rows may be at different positions. None: no earlier tokens.
      return_cache: whether to return the cache after the last token too; float32 if `initial_cache` is None.
      implementation: one of `IMPLEMENTATIONS`; None: chosen for the device (`pallas_kernels.op`). cuDNN's and splash
        attention need no certificate.

    Returns:
      y (b, t, h, v) in the dtype of v, or (y, cache).
    """
    check(q, k, v, window, segment_ids, initial_cache, return_cache)
    b, _, g, k_dim = k.shape
    cache = initial_cache
    if cache is None and return_cache:
        cache = empty_cache(b, window, g, k_dim, v.shape[3])
    keys, values, start = k, v, None
    if initial_cache is not None:
        k, v = rounded(initial_cache, k, v)
        old_k, old_v = history(initial_cache, q.dtype)
        keys, values = jnp.concatenate([old_k, k], axis=1), jnp.concatenate([old_v, v], axis=1)
        start = jnp.maximum(window - 1 - initial_cache.position, 0)
    y = attend(q, keys, values, start, segment_ids, window=window, scale=scale, implementation=implementation)
    return (y, append(cache, k, v)) if cache is not None and return_cache else y


def sliding_window_step(
    cache: SlidingWindowCache, q: jax.Array, k: jax.Array, v: jax.Array, *, scale: float | None = None
) -> tuple[jax.Array, SlidingWindowCache]:
    """One token (Based, Alg. 3): writes one slot of the ring and attends to all.

    Equals `sliding_window_attention` with t = 1 and window = the number of slots; q (b, h, k), k (b, g, k), v (b, g,
    v). XLA on every platform; reads the cache once. Donate the cache (`jax.jit(..., donate_argnums=0)`) to update it in
    place. Returns y (b, h, v) in the dtype of v, and the cache.
    """
    check(q[:, None], k[:, None], v[:, None], cache.window, None, cache)
    after = append_one(cache, k, v)
    (b, h, k_dim), g = q.shape, k.shape[1]
    factor = k_dim**-0.5 if scale is None else float(scale)
    # Matrix products would copy the ring with heads before slots.
    ring_k, ring_v = (x.astype(jnp.float32)[:, :, :, None] for x in after[:2])
    scores = (factor * q.astype(jnp.float32).reshape(b, 1, g, h // g, k_dim) * ring_k).sum(-1)
    written = jnp.arange(cache.window, dtype=jnp.int32)[None, :] <= cache.position[:, None]
    weights = jax.nn.softmax(jnp.where(written[:, :, None, None], scores, -jnp.inf), axis=1)
    y = (weights[..., None] * ring_v).sum(1)
    return y.reshape(b, h, v.shape[-1]).astype(v.dtype), after


def sharded_sliding_window_attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    *,
    window: int,
    mesh: Mesh | AbstractMesh | None = None,
    batch_axes: tuple[str, ...] = (),
    head_axes: tuple[str, ...] = (),
    sequence_axis: str | None = None,
    segment_ids: jax.Array | None = None,
    initial_cache: SlidingWindowCache | None = None,
    return_cache: bool = False,
    **options: Any,
) -> Any:
    """`sliding_window_attention` on a mesh; `pallas_kernels.layout` describes mesh and axes.

    A part of a sequence receives the keys and values of the `window - 1` tokens before it, one exchange per part that
    holds them. A single key/value head is copied to all devices. Caches are sharded over batch and heads and replicated
    over `sequence_axis`; returning one takes an all-reduce.
    """
    check(q, k, v, window, segment_ids, initial_cache, return_cache)
    axes = {"batch_axes": batch_axes, "head_axes": head_axes, "sequence_axis": sequence_axis}
    layout = make_layout("sharded_sliding_window_attention", mesh, q, k, **axes)
    rings: Any = P(layout.batch, None, layout.kv_heads)
    positions: Any = P(layout.batch)
    caches = SlidingWindowCache(rings, rings, positions)
    options = {"window": window, "return_cache": return_cache, **options}
    run = functools.partial(sliding_window_attention, **options)
    if sequence_axis is not None and q.shape[1] > 0:
        run = functools.partial(_sequence_part, axis=sequence_axis, n=layout.mesh.shape[sequence_axis], **options)

    def local(q, k, v, segment_ids, initial_cache):
        return run(q, k, v, segment_ids=segment_ids, initial_cache=initial_cache)

    given = P() if initial_cache is None else caches
    specs = layout.queries, layout.keys, layout.keys, P(layout.batch, layout.time), given
    arrays = q, k, v, segment_ids, initial_cache
    return on_shares(local, layout.mesh, arrays, specs, (layout.queries, caches) if return_cache else layout.queries)


def _sequence_part(
    q, k, v, *, axis, n, window, segment_ids, initial_cache, return_cache, scale=None, implementation=None
):
    """The part of a sequence on this device, of n along `axis`; the returned cache is the last part's."""
    t, index, cache = q.shape[1], lax.axis_index(axis), initial_cache
    if initial_cache is not None:
        k, v = rounded(initial_cache, k, v)
    seen = jnp.zeros((q.shape[0],), jnp.int32) if initial_cache is None else initial_cache.position
    before = jnp.asarray(index, jnp.int32) * t
    old_k, old_v = (None, None) if initial_cache is None else history(initial_cache, q.dtype)
    keys, values = (with_halo(x, window - 1, old, axis=axis, parts=n) for x, old in ((k, old_k), (v, old_v)))
    if segment_ids is not None:
        segment_ids = with_halo(segment_ids, window - 1, None, axis=axis, parts=n)
    start = jnp.maximum(window - 1 - before - seen, 0)
    y = attend(q, keys, values, start, segment_ids, window=window, scale=scale, implementation=implementation)
    if not return_cache:
        return y
    if cache is None:
        cache = empty_cache(q.shape[0], window, k.shape[2], k.shape[3], v.shape[3])
    return y, of_last_part(append(cache, keys, values, count=n * t), axis=axis, parts=n)


def attend(q, keys, values, start, segment_ids, *, window, scale, implementation) -> jax.Array:
    """y of the contract of `OP`, by the named or chosen implementation; any window, t >= 0."""
    OP.check(implementation)
    (b, t, h, k_dim), (s, g, v_dim) = q.shape, values.shape[1:]
    operands = q, keys, values, start, segment_ids
    options: dict[str, Any] = {"window": min(window, s), "scale": k_dim**-0.5 if scale is None else float(scale)}
    if implementation == "reference":
        return reference.attention(*operands, **options)
    problem = Problem(
        b=b, t=t, past=s - t, h=h, g=g, k=k_dim, v=v_dim, window=options["window"], dtype=q.dtype.name,
        start=start is not None, segments=segment_ids is not None,
    )  # fmt: skip
    names = OP.choose(problem, implementation)
    if t == 0:
        return jnp.zeros((b, 0, h, v_dim), values.dtype)
    return OP.run(names, problem, *operands, **options)[0]


def check(q, k, v, window: int, segment_ids, cache: SlidingWindowCache | None, return_cache: bool = False) -> None:
    """Raises ValueError unless the arguments of `sliding_window_attention` fit together."""
    shapes = q.shape, k.shape, v.shape
    if window < 1:
        raise ValueError(f"sliding_window_attention: window={window} must be at least 1 (it counts the token itself)")
    if not q.ndim == k.ndim == v.ndim == 4:
        raise ValueError(f"sliding_window_attention: q, k, v of shapes {shapes} must be (b, t, heads, width)")
    if k.shape[:2] != q.shape[:2] or k.shape[3] != q.shape[3] or v.shape[:3] != k.shape[:3]:
        raise ValueError(
            f"sliding_window_attention: q, k, v of shapes {shapes} must share batch and time, q and k their width, "
            "k and v their heads"
        )
    h, g = q.shape[2], k.shape[2]
    if g == 0 or h % g:
        raise ValueError(f"sliding_window_attention: {h} query heads must be a multiple of {g} key/value heads")
    check_dtypes("sliding_window_attention", q=q, k=k, v=v)
    if cache is not None:
        expected = [(k.shape[0], window, *x.shape[2:]) for x in (k, v)]
        if [cache.k.shape, cache.v.shape] != expected:
            raise ValueError(
                f"sliding_window_attention: initial_cache of {cache.window} slots and shapes k={cache.k.shape}, "
                f"v={cache.v.shape} must be k={expected[0]}, v={expected[1]} for window={window}; make it with "
                "empty_cache"
            )
    if segment_ids is not None:
        if cache is not None or return_cache:
            raise ValueError(
                "sliding_window_attention: segment_ids with a cache, which does not say whose its tokens are; "
                "prefill one document at a time"
            )
        check_segment_ids("sliding_window_attention", segment_ids, q.shape[:2])
