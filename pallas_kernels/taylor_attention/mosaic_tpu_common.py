"""What the forward and backward TPU kernels share: geometry, pieces of kernel bodies, and the arrays around
them.

Layouts. Heads stay packed on the last axis, q, k: (b, t, h*k), v, y: (b, t, h*v), as projections produce
them: an array whose last dimension is 16 occupies 128 lanes a row on TPU, eight times its size. One grid step
(b, head group, chunk) reads the lanes of a group of heads, 8 x 16 = 128 for k=16, and walks over the heads of
the group:

  features   x with the lanes of the other heads zeroed, times `left` or `right`: (group*k, f), the one-hot
             matrices of `features.py` once per head; full-width MXU work, no lane shuffles. f: features
             padded to whole tiles of 128 lanes with features that are 0, 153 -> 256.
  operand    [v | 1 | 0]: (c, w), w = v + 1 padded to whole tiles. The ones make num and den one matmul.
  state      [S | z | 0]: (f, w) float32 a head, in VMEM over the whole scan.
  den        (b, h, t) float32: time on the lanes, for the reason above.
"""

import dataclasses
from typing import NamedTuple, NoReturn

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pallas_kernels.taylor_attention.features import n_features, query_coefficients, selection

LANES = 128
MAX_GROUP = 16  # heads unrolled in one grid step
WIDE_VMEM_BYTES = 32 * 2**20  # the compiler allows 16 MiB on v5e by itself
MIN_TOKENS = 16  # rows of a bfloat16 tile; shorter inputs are padded, because Mosaic refuses some of them


class State(NamedTuple):
    """s (b, h, features, v), z (b, h, features), float32, features as in `features.py`: the public state."""

    s: jax.Array
    z: jax.Array


@dataclasses.dataclass(frozen=True, kw_only=True)
class Geometry:
    """Everything static about one call. `chunk` need not divide `t`, nor `group` `h` (padded)."""

    b: int
    t: int
    h: int
    k: int
    v: int
    dtype: jnp.dtype
    scale: float
    eps: float
    normalize: bool
    group: int
    chunk: int

    @property
    def n_groups(self) -> int:
        return pl.cdiv(self.h, self.group)

    @property
    def extra_heads(self) -> int:
        return self.n_groups * self.group - self.h

    @property
    def n_chunks(self) -> int:
        return pl.cdiv(self.t, self.chunk)

    @property
    def ragged(self) -> bool:
        return self.t % self.chunk != 0

    @property
    def extra_tokens(self) -> int:
        return max(MIN_TOKENS - self.t, 0)

    @property
    def wide(self) -> bool:
        """More than 1024 lanes of v in a group, as k=24 with v > 64: too much for the default VMEM limit."""
        return self.group * self.v > 1024

    @property
    def feature_lanes(self) -> int:
        return _round_up(n_features(self.k), LANES)

    @property
    def operand_lanes(self) -> int:
        return _round_up(self.v + 1, LANES)

    @property
    def carry_shape(self) -> tuple[int, int, int]:
        return (self.group, self.feature_lanes, self.operand_lanes)

    @property
    def den_shape(self) -> tuple[int, int, int, int]:
        return (self.b, self.n_groups, _round_up(self.group, 8), self.n_chunks * self.chunk)


def head_group(h: int, k: int, v: int) -> int:
    """Heads per grid step: a divisor of h that fills lane tiles; else all h, up to 16; else padded."""
    tiled = [g for g in range(1, MAX_GROUP + 1) if g * k % LANES == 0 and g * v % LANES == 0]
    dividing = [g for g in tiled if h % g == 0]
    if dividing:
        return dividing[0]
    return h if h <= MAX_GROUP else tiled[0]


def make_geometry(q, k, v, *, h, scale, eps, normalize, chunk_size, default_chunk) -> Geometry:
    """Checks packed inputs against what the kernels cover; `default_chunk`: dtype name -> tokens.

    Raises:
      ValueError: arguments that contradict each other.
      NotImplementedError: a shape or dtype that the kernels do not cover.
    """
    if q.ndim != 3 or v.ndim != 3 or q.shape != k.shape or v.shape[:2] != q.shape[:2]:
        raise ValueError(f"q {q.shape}, k {k.shape}, v {v.shape} must be (b,t,h*k), (b,t,h*k), (b,t,h*v)")
    b, t, width = q.shape
    if h < 1 or width % h or v.shape[2] % h:
        raise ValueError(f"h={h} must divide the last dimensions of q {q.shape} and v {v.shape}")
    if t < 1:
        raise ValueError(f"t={t} must be at least 1: without tokens the final state is the initial state")
    key_dim, value_dim, dtype = width // h, v.shape[2] // h, jnp.dtype(q.dtype)
    if not q.dtype == k.dtype == v.dtype:
        raise ValueError(f"q, k, v have dtypes {q.dtype}, {k.dtype}, {v.dtype}; they must be equal")
    if dtype.name not in default_chunk:
        refuse(f"dtype={dtype.name} is neither bfloat16 nor float32")
    if key_dim not in (8, 16, 24, 32):
        refuse(f"key dim k={key_dim} is not one of 8, 16, 24, 32")
    if value_dim not in range(8, 129, 8):
        refuse(f"value dim v={value_dim} is not a multiple of 8 up to 128")
    chunk = default_chunk[dtype.name] if chunk_size is None else chunk_size
    if chunk < 16 or chunk % 16:
        raise ValueError(f"chunk_size={chunk} must be a positive multiple of 16")
    return Geometry(
        b=b, t=t, h=h, k=key_dim, v=value_dim, dtype=dtype, scale=float(scale), eps=float(eps),
        normalize=normalize, group=head_group(h, key_dim, value_dim),
        chunk=min(chunk, _round_up(t, MIN_TOKENS)),
    )  # fmt: skip


def refuse(reason: str) -> NoReturn:
    raise NotImplementedError(f"mosaic_tpu: {reason}; use implementation='xla'")


# Pieces of kernel bodies.


def matmul(spec: str, x, y):
    """A two-dimensional einsum over one axis; float32 accumulation, float32 operands at full precision."""
    left, right = spec.split("->")[0].split(",")
    (shared,) = set(left) & set(right)
    contract = (((left.index(shared),), (right.index(shared),)), ((), ()))
    exact = x.dtype == jnp.float32
    precision = lax.Precision.HIGHEST if exact else lax.Precision.DEFAULT
    return lax.dot_general(x, y, contract, precision=precision, preferred_element_type=jnp.float32)


class Features:
    """phi of one head, from the constants in VMEM: `left`, `right` (group*k, f), `rows` (8, f)."""

    def __init__(self, left_ref, right_ref, rows_ref):
        self.left, self.right, rows = left_ref[...], right_ref[...], rows_ref[...]
        self.left_offset, self.right_offset, self.coefficient = rows[0:1], rows[1:2], rows[2:3]

    def factors(self, x):
        """(c, group*k), one head's lanes non-zero -> first, second: float32 (c, f), phi = first * second."""
        first = matmul("id,df->if", x, self.left) + self.left_offset
        second = matmul("id,df->if", x, self.right) + self.right_offset
        return first, second

    def of_key(self, k):
        first, second = self.factors(k)
        return (first * second).astype(k.dtype)

    def of_query(self, q):
        first, second = self.factors(q)
        return (first * second * self.coefficient).astype(q.dtype)

    def pull_back(self, u, first, second):
        """J^T u for J = dphi/dx: (c, f) float32 -> (c, group*k), the same k numbers in every head's lanes."""
        dtype = self.left.dtype
        left = matmul("if,df->id", (u * second).astype(dtype), self.left)
        return left + matmul("if,df->id", (u * first).astype(dtype), self.right)


class Decay:
    """Multiplies by powers of one head's decay; every method returns its argument if there is no decay.

    The powers come from log decay. No exponent is negative, so that none overflows.
    """

    def __init__(self, log_decay_ref, head, chunk_id, geometry):
        self.active = log_decay_ref is not None
        if not self.active:
            return
        self.log_decay = log_decay_ref[pl.program_id(1) * geometry.group + head]
        self.chunk = geometry.chunk
        self.length = min(self.chunk, geometry.t)
        if geometry.ragged:
            self.length = jnp.minimum(self.chunk, geometry.t - chunk_id * self.chunk)

    def between(self, p):
        """p_ij decay^(i-j) for j <= i."""
        if not self.active:
            return p
        i, j = (lax.broadcasted_iota(jnp.int32, p.shape, axis) for axis in (0, 1))
        return p * self._power(jnp.maximum(i - j, 0))

    def since_start(self, x):
        """x_i decay^(i+1): from the state before the chunk to token i."""
        return self._rows(x, lambda row: row + 1)

    def to_end(self, x):
        """x_j decay^(length-1-j): from token j to the state after the chunk."""
        return self._rows(x, lambda row: jnp.maximum(self.length - 1 - row, 0))

    def whole_chunk(self, state):
        if not self.active:
            return state
        return state * self._power(jnp.full((1, 1), self.length, jnp.int32))

    def _rows(self, x, exponent):
        if not self.active:
            return x
        row = lax.broadcasted_iota(jnp.int32, (self.chunk, 1), 0)
        return (x.astype(jnp.float32) * self._power(exponent(row))).astype(x.dtype)

    def _power(self, n):
        return jnp.exp(n.astype(jnp.float32) * self.log_decay)


def lane_index(shape):
    return lax.broadcasted_iota(jnp.int32, shape, len(shape) - 1)


def causal(p):
    """p_ij for j <= i, else 0."""
    i, j = (lax.broadcasted_iota(jnp.int32, p.shape, axis) for axis in (0, 1))
    return jnp.where(i >= j, p, 0.0)


def real_rows(geometry, chunk_id):
    """(c, 1) mask of the tokens that exist, None if all do. Beyond its array, a block may read NaN."""
    if not geometry.ragged:
        return None
    row = lax.broadcasted_iota(jnp.int32, (geometry.chunk, 1), 0)
    return row < geometry.t - chunk_id * geometry.chunk


def keep_rows(x, real):
    return x if real is None else jnp.where(real, x, jnp.zeros_like(x))


def keep_head(x, head, geometry, others=None):
    """(c, group*k): the lanes of `head` from x, the others from `others` (default: zeros)."""
    lane = lane_index(x.shape)
    own = (lane >= head * geometry.k) & (lane < (head + 1) * geometry.k)
    return jnp.where(own, x, jnp.zeros_like(x) if others is None else others)


def value_lanes(head, geometry):
    return slice(head * geometry.v, (head + 1) * geometry.v)


def value_operand(v, head, geometry, real):
    """[v_h | 1 | 0]: (c, w). A token that does not exist has no 1, because z would count it."""
    first = lane_index((geometry.chunk, geometry.operand_lanes - geometry.v)) == 0
    one = jnp.where(first if real is None else first & real, 1.0, 0.0).astype(v.dtype)
    return jnp.concatenate([v[:, value_lanes(head, geometry)], one], axis=1)


# Arrays around the kernels.


class Blocks:
    """Block specs on the grid (b, head group, chunk); `backwards` visits the last chunk first."""

    def __init__(self, geometry, *, backwards=False):
        self.geometry = geometry
        last = geometry.n_chunks - 1
        self.chunk_id = (lambda n: last - n) if backwards else (lambda n: n)

    def tokens(self, head_dim):
        shape = (1, self.geometry.chunk, self.geometry.group * head_dim)
        return pl.BlockSpec(shape, lambda b, g, n: (b, self.chunk_id(n), g))

    def den(self):
        shape = (1, 1, self.geometry.den_shape[2], self.geometry.chunk)
        return pl.BlockSpec(shape, lambda b, g, n: (b, g, 0, self.chunk_id(n)))

    def state(self):
        return pl.BlockSpec((1, *self.geometry.carry_shape), lambda b, g, n: (b, g, 0, 0))

    def whole(self, shape):
        return pl.BlockSpec(shape, lambda b, g, n: (0,) * len(shape))


def constants(geometry, decay, blocks):
    """[(array, spec)]: left, right, rows (both offsets, query coefficients), and log decay in SMEM if any."""
    chosen = selection(geometry.k, geometry.feature_lanes)
    rows = np.zeros((8, geometry.feature_lanes), np.float32)
    rows[0], rows[1] = chosen.left_offset, chosen.right_offset
    rows[2, : n_features(geometry.k)] = query_coefficients(geometry.k, geometry.scale)
    left, right = (np.tile(x, (geometry.group, 1)) for x in (chosen.left, chosen.right))
    arrays = [jnp.asarray(left, geometry.dtype), jnp.asarray(right, geometry.dtype), jnp.asarray(rows)]
    result = [(x, blocks.whole(x.shape)) for x in arrays]
    if decay is not None:
        if decay.shape != (geometry.h,):
            raise ValueError(f"decay {decay.shape} must be (h,) = ({geometry.h},)")
        # log 0 = -inf would make decay^0 = exp(0 * -inf) = NaN.
        log_decay = jnp.log(jnp.maximum(decay.astype(jnp.float32), jnp.finfo(jnp.float32).tiny))
        log_decay = jnp.pad(log_decay, (0, geometry.extra_heads))
        result.append((log_decay, pl.BlockSpec(memory_space=pltpu.SMEM)))
    return result


def call(kernel, geometry, inputs, outputs, *, interpret, name):
    """pallas_call over (b, head group, chunk) with the carry; inputs, outputs: [(array or struct, spec)]."""
    if not interpret and geometry.n_chunks > 1 and geometry.chunk % LANES:
        rule = f"must be a multiple of {LANES} on a TPU for t={geometry.t}"
        raise ValueError(f"chunk_size={geometry.chunk} {rule}")
    return pl.pallas_call(
        kernel,
        grid=(geometry.b, geometry.n_groups, geometry.n_chunks),
        in_specs=[spec for _, spec in inputs],
        out_specs=[spec for _, spec in outputs],
        out_shape=[shape for shape, _ in outputs],
        scratch_shapes=[pltpu.VMEM(geometry.carry_shape, jnp.float32)],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel", "arbitrary"),
            vmem_limit_bytes=WIDE_VMEM_BYTES if geometry.wide else None,
        ),
        interpret=interpret,
        name=name,
    )(*[array for array, _ in inputs])


def tokens_struct(geometry, head_dim):
    g = geometry
    return jax.ShapeDtypeStruct((g.b, g.t + g.extra_tokens, (g.h + g.extra_heads) * head_dim), g.dtype)


def pad_tokens(x, geometry):
    """(b, t, h*.) -> `tokens_struct`, with zeros: heads that reach no output, tokens that are skipped."""
    head_dim = x.shape[-1] // geometry.h
    return jnp.pad(x, ((0, 0), (0, geometry.extra_tokens), (0, geometry.extra_heads * head_dim)))


def unpad_tokens(x, geometry):
    head_dim = x.shape[-1] // (geometry.h + geometry.extra_heads)
    return x[:, : geometry.t, : geometry.h * head_dim]


def den_struct(geometry):
    return jax.ShapeDtypeStruct(geometry.den_shape, jnp.float32)


def state_struct(geometry):
    g = geometry
    return jax.ShapeDtypeStruct((g.b, g.h + g.extra_heads, *g.carry_shape[1:]), jnp.float32)


def pack_state(state, geometry):
    """`State` -> [s | z | 0]: (b, heads, f, w). A copy, which only calls with a state pay for."""
    g, features = geometry, n_features(geometry.k)
    expected = (g.b, g.h, features, g.v)
    if state.s.shape != expected or state.z.shape != expected[:-1]:
        raise ValueError(f"state s {state.s.shape}, z {state.z.shape} must be {expected}, {expected[:-1]}")
    both = jnp.concatenate([state.s, state.z[..., None]], axis=-1).astype(jnp.float32)
    extra = (0, g.extra_heads, g.feature_lanes - features, g.operand_lanes - g.v - 1)
    return jnp.pad(both, [(0, n) for n in extra])


def unpack_state(packed, geometry):
    """The inverse of `pack_state`."""
    packed = packed[:, : geometry.h, : n_features(geometry.k)]
    return State(packed[..., : geometry.v], packed[..., geometry.v])


def pack_den(den, geometry):
    """(b, h, t) -> `den_shape`, padded with ones: a mere reshape when groups and chunks come out even."""
    g = geometry
    _, _, rows, time = g.den_shape
    den = jnp.pad(den, ((0, 0), (0, g.extra_heads), (0, time - g.t)), constant_values=1.0)
    den = den.reshape(g.b, g.n_groups, g.group, time)
    return jnp.pad(den, ((0, 0), (0, 0), (0, rows - g.group), (0, 0)), constant_values=1.0)


def unpack_den(packed, geometry):
    """The inverse of `pack_den`."""
    g = geometry
    heads = packed[:, :, : g.group].reshape(g.b, g.h + g.extra_heads, -1)
    return heads[:, : g.h, : g.t]


def _round_up(n: int, multiple: int) -> int:
    return -(-n // multiple) * multiple
