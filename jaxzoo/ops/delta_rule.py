"""Delta rules in chunks: DeltaNet, Gated DeltaNet, Kimi Delta Attention, RWKV-7.

The delta rule replaces the value that is stored for a key, instead of adding to it (Yang et al. 2024, arXiv 2406.06484;
with decay arXiv 2412.06464; per channel arXiv 2510.26692):

    S_t = D_t S_{t-1} + beta_t k_t (v_t - k_t^T D_t S_{t-1})^T        y_t = S_t^T q_t

with a decay D_t = Diag(a_t) that is absent, one number per token and head, or one per channel of the keys. The decay
acts before the state is read. The generalized form (RWKV-7, arXiv 2503.14456, its state transposed) has two separate
vectors for the removal, and reads the state before the decay:

    S_t = D_t S_{t-1} + z_t (u_t^T S_{t-1}) + k_t v_t^T               y_t = S_t^T q_t

Within a chunk with initial state S_0, the written values U solve a unit lower triangular system (the UT form):

    (I + strict(R Z^T)) U = V - R S_0        y = Q S_0 + lower(Q Z^T) U        S = D S_0 + Z^T U

with R = K, Z = beta K and products decayed by `decayed_scores`, without positive exponents; the generalized form has
the same system with other signs. Each chunk needs one triangular solve, by substitution. No inverse is formed, so
repeated or unnormalized keys lose no precision.

On CPUs and TPUs a scan processes the chunks in order. On GPUs the systems of many chunks are solved at once, for an
arbitrary initial state, and the resulting affine maps of states are composed (`states_before_affine`). For an H100 (b4
t8192 h16 k64 v64, bfloat16, decay per token) this takes 52 launches forward and 113 with backward, at 1.7 and 1.3 times
the bytes of the scan, which takes 2,184 and 8,337. (A TPU's compiler would need minutes for so many systems.) Where the
Pallas kernels of `delta_chunks`, `gated_linear_attention` and `ut_transform` are verified, they serve both forms in
bfloat16 (`delta_kernels.py`): 7 and 22 launches, 0.1 times the bytes; for the generalized form, with heads of 64, 4 and
10 launches instead of 61 and 152, 0.09 and 0.08 times the bytes. Without decay the kernels of the generalized form
serve too: 6 and 13 launches instead of 45 and 96, 0.21 and 0.24 times the bytes.

Memory: the scan keeps its inputs and one state per chunk, and the backward pass computes each chunk again, with one
more solve. On a GPU, as many chunks exist at once as have `STATES_AT_ONCE` numbers in their states
(`pallas_kernels.xla_chunks`). States and sums are float32.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.tree_util import Partial

from jaxzoo.layers.probe import show, show_scores
from jaxzoo.ops.delta_kernels import kernel_form
from jaxzoo.ops.naive import scan_tokens
from jaxzoo.ops.segments import document_starts
from jaxzoo.parallel.sequence_parallel import Composition, scan_in_parts
from jaxzoo.utils.array_typing import Array, Float, Int
from jaxzoo.utils.explicit_mesh import recurrence_on_any_mesh
from pallas_kernels.dispatch import may_run_on
from pallas_kernels.gated_linear_attention.decayed_scores import PIECE, decayed_scores, sums_to_borders
from pallas_kernels.gated_linear_attention.xla import cut
from pallas_kernels.xla_chunks import chunks_at_once, product, states_before_affine

CHUNK = 64
"""Default tokens per chunk."""
CHANNEL_CHUNK = 32
"""Default tokens per chunk with a decay per channel, except on a GPU. Forward and backward pass on two CPU cores at
2048 tokens and 4 heads of 64, in ms of CPU time: 212 with 32 tokens, 303 with 64."""


class Removal(NamedTuple):
    """Removal vectors of the generalized form: `z (u^T S)` is added to the state."""

    u: Float[Array, "b t h k"]
    """Vector that reads the state, before its decay."""
    z: Float[Array, "b t h k"]
    """Key under which the result is added; opposite to `u` for a removal."""


def naive_delta_rule(
    q: Float[Array, "b t h k"],
    k: Float[Array, "b t h k"],
    v: Float[Array, "b t h v"],
    *,
    beta: Float[Array, "b t h"] | None = None,
    removal: Removal | None = None,
    log_decay: Float[Array, "b t h"] | Float[Array, "b t h k"] | None = None,
    segment_ids: Int[Array, "b t"] | None = None,
    initial_state: Float[Array, "b h k v"],
) -> tuple[Float[Array, "b t h v"], Float[Array, "b h k v"]]:
    """Token-by-token form of `delta_rule`."""

    def token(s: Array, x: tuple) -> tuple[Array, Array]:
        q, k, v, beta, removal, a = x
        decayed = a[..., None] * s
        if removal is None:
            missing = v - jnp.einsum("bhk,bhkv->bhv", k, decayed)
            s = decayed + jnp.einsum("bh,bhk,bhv->bhkv", beta, k, missing)
        else:
            read = jnp.einsum("bhk,bhkv->bhv", removal.u, s)
            s = decayed + removal.z[..., None] * read[:, :, None] + k[..., None] * v[:, :, None]
        return s, jnp.einsum("bhk,bhkv->bhv", q, s)

    a = jnp.ones(()) if log_decay is None else jnp.exp(log_decay)
    a = jnp.broadcast_to(a[..., None] if a.ndim == 3 else a, k.shape)
    return scan_tokens(token, initial_state, (q, k, v, beta, removal, a), segment_ids)


class _Tokens(NamedTuple):
    """Arrays (b, t, h, .); exactly one of beta and removal is None."""

    q: Array
    k: Array
    v: Array
    beta: Array | None
    removal: Removal | None
    log_decay: Array | None
    """(b or 1, t, h, k or 1)."""


@recurrence_on_any_mesh
def delta_rule(
    q: Float[Array, "b t h k"],
    k: Float[Array, "b t h k"],
    v: Float[Array, "b t h v"],
    *,
    beta: Float[Array, "b t h"] | None = None,
    removal: Removal | None = None,
    log_decay: Float[Array, "b t h"] | Float[Array, "b t h k"] | None = None,
    segment_ids: Int[Array, "b t"] | None = None,
    initial_state: Float[Array, "b h k v"] | None = None,
    chunk_size: int | None = None,
) -> tuple[Float[Array, "b t h v"], Float[Array, "b h k v"]]:
    """Applies the equations of the module docstring to `t >= 0` tokens, from any state.

    Differentiable in all float arguments, through the output and the final state.

    Args:
      q: queries, scaled by the caller.
      k: keys, normalized by the caller where the mixer does so.
      beta: strength of the replacement in the delta rule; with keys of length 1 stable in [0, 2].
      removal: vectors of the generalized form, instead of `beta`.
      log_decay: logarithm of `a`, at most 0, finite; None: no decay.
      segment_ids: ids of packed documents, int32; each document is one contiguous run of equal ids and sees no other.
        The returned state is the last document's.
      initial_state: S before the first token, float32; None: zeros.
      chunk_size: tokens per triangular solve; affects only the speed. None: `CHUNK`, or `CHANNEL_CHUNK`.

    Returns:
      y in the dtype of `v`, and S after the last token, float32. O(t (chunk_size (k + v) + k v)) time per head, and
      memory for the inputs and t / chunk_size states. If time is sharded, devices exchange states and a (k, k)
      transition matrix per head.

    Raises:
      ValueError: both or neither of `beta` and `removal` are given.
    """
    if (beta is None) == (removal is None):
        raise ValueError("delta_rule: exactly one of beta (delta rule) and removal (generalized form) must be given")
    if chunk_size is None:
        by_channel = log_decay is not None and log_decay.ndim == 4
        chunk_size = CHANNEL_CHUNK if by_channel and not may_run_on("cuda") else CHUNK
    b, _, h, k_dim = k.shape
    empty = jnp.zeros((b, h, k_dim, v.shape[3]), jnp.float32)
    if log_decay is not None:
        log_decay = log_decay.astype(jnp.float32)
        log_decay = log_decay if log_decay.ndim == 4 else log_decay[..., None]
    if initial_state is None:
        log_decay = None if log_decay is None else show("log_decay", log_decay)
        beta = None if beta is None else show("beta", beta)
        again = functools.partial(delta_rule, q, k, beta=beta, removal=removal, log_decay=log_decay)
        show_scores(lambda unit: again(unit, segment_ids=segment_ids)[0], v)
    channel = log_decay is not None and log_decay.shape[3] > 1
    kernels = kernel_form(q, k, v, channel=channel, general=removal is not None, decayed=log_decay is not None)
    if kernels is not None:
        rule = (beta,) if removal is None else removal
        return kernels(q, k, v, *rule, log_decay, segment_ids, initial_state)
    state = empty if initial_state is None else initial_state
    run = Partial(functools.partial(_scan, chunk_size=chunk_size))
    factor = Partial(functools.partial(_transition, chunk_size=chunk_size))
    eye = np.eye(k_dim, dtype=np.float32)[None, None]
    parts = Composition(_after, _matmul_states, eye, 0.0)
    return scan_in_parts(run, factor, _Tokens(q, k, v, beta, removal, log_decay), segment_ids, state, empty, parts)


def delta_rule_step(
    state: Float[Array, "b h k v"],
    q: Float[Array, "b h k"],
    k: Float[Array, "b h k"],
    v: Float[Array, "b h v"],
    *,
    beta: Float[Array, "b h"] | None = None,
    removal: Removal | None = None,
    log_decay: Float[Array, "b h"] | Float[Array, "b h k"] | None = None,
) -> tuple[Float[Array, "b h v"], Float[Array, "b h k v"]]:
    """One token: `delta_rule` with t = 1, at O(k v) per head."""
    q, k, values = (x.astype(jnp.float32) for x in (q, k, v))
    decayed = state
    if log_decay is not None:
        a = jnp.exp(log_decay.astype(jnp.float32))
        decayed = (a if a.ndim == 3 else a[..., None])[..., None] * state
    # Sums of products, not matrix products, which could round float32 to tf32 or bfloat16.
    if beta is not None:
        values = values - (k[..., None] * decayed).sum(2)
        decayed = decayed + (beta.astype(jnp.float32)[..., None] * k)[..., None] * values[:, :, None]
    if removal is not None:
        u, z = (x.astype(jnp.float32) for x in removal)
        read = (u[..., None] * state).sum(2)
        decayed = decayed + z[..., None] * read[:, :, None] + k[..., None] * values[:, :, None]
    return (q[..., None] * decayed).sum(2).astype(v.dtype), decayed


def _matmul_states(first: Array, then: Array) -> Array:
    """`then @ first`: transition over two consecutive parts of a sequence."""
    return jnp.einsum("bhij,bhjk->bhik", then, first, precision=lax.Precision.HIGHEST)


def _after(transition: Array, before: Array, own: Array) -> Array:
    """State after a part of a sequence: the transition applied to the state before, plus the part's own sums."""
    return _matmul_states(before, transition) + own


def _transition(tokens: _Tokens, *, chunk_size: int) -> Float[Array, "b h k k"]:
    """Transition matrix of all tokens: the final state from the identity, without values."""
    b, _, h, k_dim = tokens.k.shape
    eye = jnp.broadcast_to(jnp.eye(k_dim, dtype=jnp.float32)[None, None], (b, h, k_dim, k_dim))
    nothing = jnp.zeros(tokens.k.shape, jnp.float32)
    return _scan(tokens._replace(v=nothing), None, eye, chunk_size=chunk_size)[1]


def _scan(tokens: _Tokens, segment_ids: Array | None, state: Array, *, chunk_size: int) -> tuple[Array, Array]:
    """Computes `delta_rule` in chunks; many at once on a GPU, where each step of a scan is a dozen launches."""
    v = tokens.v
    b, t, h, v_dim = v.shape
    precision = lax.Precision.HIGHEST if v.dtype == jnp.float32 else lax.Precision.DEFAULT
    starts = document_starts(segment_ids)
    size = min(chunk_size, max(-(-t // PIECE), 1) * PIECE)
    at_once = 1
    if may_run_on("cuda"):
        numbers = state.size * (v_dim + state.shape[2]) // v_dim
        if tokens.log_decay is not None and tokens.log_decay.shape[-1] > 1:
            numbers *= 2  # scores with a decay per channel take twice the memory
        at_once = chunks_at_once(-(-t // size), numbers)

    @functools.partial(jax.checkpoint, prevent_cse=False)
    def body(state: Array, chunks: tuple) -> tuple[Array, Array]:
        if at_once == 1:
            # Without the barrier XLA's CPU compiler (jax 0.12.0) may fuse later operations into the matmuls, with
            # wrong results; see `linear_attention`.
            y, state = lax.optimization_barrier(_chunk(state, *chunks, precision=precision))
        else:
            y, state = _chunks(state, *chunks, precision=precision)
        return state, y.swapaxes(1, 2).astype(v.dtype)

    state, y = lax.scan(body, state, jax.tree.map(lambda x: cut(x, size, at_once), (tokens, starts)))
    y = y.reshape(-1, b, at_once * size, h, v_dim).swapaxes(0, 1)
    return y.reshape(b, -1, h, v_dim)[:, :t], state


class _System(NamedTuple):
    """Coefficients of a chunk as a function of its initial state S: with `(I + lower) X = known + reads S`,

        y = own + queries S + scores X        S' = kept S + added + writes^T X

    Arrays (b, h, c, .), float32.
    """

    lower: Array
    """(b, h, c, c), strictly lower triangular."""
    known: Array
    reads: Array
    queries: Array
    scores: Array
    writes: Array
    kept: Array
    """(b or 1, h or 1, k or 1)."""
    own: Array | None
    """None: zeros."""
    added: Array | None
    """(b, h, k, v); None: zeros."""


def _chunk(state: Array, tokens: _Tokens, starts: Array | None, *, precision: lax.Precision) -> tuple[Array, Array]:
    """Outputs (b, h, c, v) of one chunk of tokens (b, c, h, .), and the state after it."""
    system = _system(tokens, starts, precision)
    x = _solve(system.lower, system.known + _rows(system.reads, state, precision))
    after = system.kept[..., None] * state + _columns(system.writes, x, precision)
    return _outputs(system, state, x, precision), after if system.added is None else after + system.added


def _chunks(state: Array, tokens: _Tokens, starts: Array | None, *, precision: lax.Precision) -> tuple[Array, Array]:
    """Applies `_chunk` to n chunks per row at once; tokens are (b n, c, h, .).

    Each chunk is solved for an arbitrary initial state, with one more right-hand side per channel of the keys. An
    associative scan composes the chunks' maps of states.
    """
    b, rows = len(state), len(tokens.v)
    tokens = jax.tree.map(lambda x: x if len(x) == rows else jnp.tile(x, (b,) + (1,) * (x.ndim - 1)), tokens)
    system = _system(tokens, starts, precision)
    k_dim, v_dim = state.shape[2:]
    x = _solve(system.lower, jnp.concatenate([system.known, system.reads], axis=-1))
    made = _columns(system.writes, x, precision)
    if system.added is not None:
        made = made + jnp.pad(system.added, [(0, 0)] * 3 + [(0, k_dim)])
    kept = jnp.broadcast_to(system.kept, made.shape[:3])
    kept, made = (x.reshape(b, -1, *x.shape[1:]) for x in (kept, made))
    before, after = states_before_affine(kept, made[..., v_dim:], made[..., :v_dim], state)
    before = before.reshape(rows, *state.shape[1:])
    x = x[..., :v_dim] + _rows(x[..., v_dim:], before, precision)
    return _outputs(system, before, x, precision), after


def _rows(x: Array, state: Array, precision: lax.Precision) -> Array:
    return product("bhik,bhkv->bhiv", x, state, precision=precision)


def _columns(x: Array, values: Array, precision: lax.Precision) -> Array:
    return product("bhjk,bhjv->bhkv", x, values, precision=precision)


def _outputs(system: _System, state: Array, x: Array, precision: lax.Precision) -> Array:
    y = _rows(system.queries, state, precision) + _rows(system.scores, x, precision)
    return y if system.own is None else y + system.own


def _system(tokens: _Tokens, starts: Array | None, precision: lax.Precision) -> _System:
    """Builds the system of a chunk of tokens (b, c, h, .)."""
    heads_first = jax.tree.map(lambda x: x.astype(jnp.float32).swapaxes(1, 2), tokens)
    q, k, v, beta, removal, log_decay = heads_first
    c = q.shape[2]
    begun = None if starts is None else jnp.cumsum(starts.astype(jnp.int32), axis=1)[:, None]

    meet = jnp.asarray(np.tri(c, dtype=bool))[None, None]
    if begun is not None:
        meet = meet & (begun[..., :, None] == begun[..., None, :])
    strict = meet & jnp.asarray(np.tri(c, k=-1, dtype=bool))[None, None]

    def scores(rows: tuple[Array, ...], columns: Array) -> Array | list[Array]:
        """Scores of several arrays of rows; decays per channel, which fill an accelerator's memory, are computed
        once."""
        one = lambda x: decayed_scores(x, columns, log_decay, precision=precision)  # noqa: E731
        by_channel = log_decay is not None and log_decay.shape[-1] > 1
        return jax.vmap(one)(jnp.stack(rows)) if by_channel and not may_run_on("cpu") else [one(x) for x in rows]

    masked = lambda x, mask: jnp.where(mask, x, 0.0)  # noqa: E731

    no_decay = jnp.zeros((1, 1, c, 1)) if log_decay is None else log_decay
    reads, writes = (jnp.exp(x) for x in sums_to_borders(no_decay))
    kept = reads[:, :, -1]
    earlier = jnp.concatenate([jnp.ones_like(reads[:, :, :1]), reads[:, :, :-1]], axis=2)
    if begun is not None:
        of_state = (begun == 0)[..., None]
        reads, earlier = jnp.where(of_state, reads, 0.0), jnp.where(of_state, earlier, 0.0)
        writes = jnp.where((begun == begun[..., -1:])[..., None], writes, 0.0)
        kept = jnp.where(begun[..., -1:] == 0, kept, 0.0)

    if beta is not None:
        z = beta[..., None] * k
        replaced, read = scores((k, q), z)
        lower, within = masked(replaced, strict), masked(read, meet)
        return _System(lower, v, -k * reads, q * reads, within, z * writes, kept, None, None)

    u, z = removal
    # u reads the state before the decay of its own token, so its scores are those of a row one token earlier.
    row_ago = jnp.concatenate([u[:, :, 1:], jnp.zeros_like(u[:, :, :1])], axis=2)
    shifted = lambda x: masked(jnp.pad(x, ((0, 0), (0, 0), (1, 0), (0, 0)))[:, :, :-1], strict)  # noqa: E731
    removed, read = scores((row_ago, q), z)
    lower, within = -shifted(removed), masked(read, meet)
    removed, read = scores((row_ago, q), k)
    known, own = (_rows(x, v, precision) for x in (shifted(removed), masked(read, meet)))
    added = _columns(k * writes, v, precision)
    return _System(lower, known, u * earlier, q * reads, within, z * writes, kept, own, added)


@jax.custom_vjp
def _solve(strictly_lower: Array, right: Array) -> Array:
    """Solves `(I + strictly_lower) x = right` (b, h, c, v) by substitution."""
    return lax.platform_dependent(strictly_lower, right, cpu=_row_by_row, default=_triangular_solve)


def _solve_forward(strictly_lower: Array, right: Array) -> tuple[Array, tuple[Array, Array]]:
    x = _solve(strictly_lower, right)
    return x, (strictly_lower, x)


def _solve_backward(kept: tuple[Array, Array], dx: Array) -> tuple[Array, Array]:
    """VJP: `d right` solves the transposed system, lower triangular in reverse order; `d L = -d right x^T`."""
    strictly_lower, x = kept
    reverse = lambda y, *axes: lax.rev(y, axes)  # noqa: E731
    d_right = reverse(_solve(reverse(strictly_lower, 2, 3).swapaxes(2, 3), reverse(dx, 2)), 2)
    return -jnp.einsum("bhiv,bhjv->bhij", d_right, x, precision=lax.Precision.HIGHEST), d_right


_solve.defvjp(_solve_forward, _solve_backward)


def _row_by_row(strictly_lower: Array, right: Array) -> Array:
    """Substitution for all heads at once. On two CPU cores, 128 systems of 64 tokens and 64 values: 2 ms of CPU time,
    compared with 11 ms of the BLAS routine, whose threads also wait for each other."""

    def row(i: Array, x: Array) -> Array:
        line = lax.dynamic_index_in_dim(strictly_lower, i, 2, keepdims=False)
        known = jnp.einsum("bhj,bhjv->bhv", line, x, precision=lax.Precision.HIGHEST)
        own = lax.dynamic_index_in_dim(right, i, 2, keepdims=False)
        return lax.dynamic_update_index_in_dim(x, own - known, i, 2)

    return lax.fori_loop(0, right.shape[2], row, jnp.zeros_like(right))


def _triangular_solve(strictly_lower: Array, right: Array) -> Array:
    return lax.linalg.triangular_solve(strictly_lower, right, left_side=True, lower=True, unit_diagonal=True)
