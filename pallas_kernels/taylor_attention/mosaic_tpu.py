"""Taylor linear attention on TPU, forward: a Pallas Mosaic kernel on packed heads.

For each head, with p_ij = 1 + s_ij + s_ij^2/2, s_ij = scale * q_i.k_j, and an optional decay in [0, 1]:

    num_i = sum_{j<=i} decay^(i-j) p_ij v_j + decay^(i+1) S^T phi'(q_i)       y_i = num_i / (den_i + eps)
    den_i = sum_{j<=i} decay^(i-j) p_ij     + decay^(i+1) z.phi'(q_i)         (y_i = num_i if not normalize)
    S <- decay^t S + sum_j decay^(t-1-j) phi(k_j) v_j^T                       z <- the same with 1 for v_j

(Based, sec. 3.1 and Alg. 1; decay: App. C.) phi, and phi' = coefficients * phi: `features.py`. The kernel applies them
to chunks of c tokens, and carries (S, z) in VMEM.

Features are rotations, and weights are 2 a^2 p = (q.k + a)^2 + a^2 with a = 1 / scale (`mosaic_tpu_layout.py`). Arrays
are transposed, tokens on the lanes. With w = v + 1 padded to whole tiles, the matmuls of a chunk and head stream

    p^T = (K Q^T + a)^2 + a^2           c rows    Q^T stays in the MXU: in K the lanes of other heads are zeroed
    [V|1 ; S|z]^T [p | W phi(Q)]^T      w rows    2 a^2 num and 2 a^2 den
    [S|z]^T += [V|1]^T phi(K)           w rows    phi(K)^T is taken transposed

Matmuls are issued in program order, so each is written for eight heads before the next one, and the scores of a chunk
before the state update of the previous chunk. bfloat16: p, phi and the state are rounded as operands, sums are float32.
"""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from pallas_kernels.taylor_attention import mosaic_tpu_layout as layout
from pallas_kernels.taylor_attention.mosaic_tpu_layout import SUBLANES, Geometry, round_up
from pallas_kernels.taylor_attention.problem import Problem
from pallas_kernels.tpu.lanes import LANES, matmul, matmul_nt, only_lanes


def transposed(x, head_dim: int):
    """x^T; in float32 if heads do not fill tiles of bfloat16."""
    return x.T if head_dim % (2 * SUBLANES) == 0 else x.astype(jnp.float32).T


def head_rows(xt, head: int, head_dim: int):
    """(heads*head_dim, c) -> (head_dim, c)."""
    return xt[head * head_dim : (head + 1) * head_dim]


def tile(head: int, head_dim: int, width: int) -> slice:
    """The whole tiles of lanes that hold a head."""
    return slice(head * head_dim // LANES * LANES, min(round_up((head + 1) * head_dim, LANES), width))


def own_lanes(x, head: int, head_dim: int):
    """The head's `tile` of x (c, heads*head_dim), with zeros in the lanes of other heads."""
    part = tile(head, head_dim, x.shape[1])
    first = head * head_dim - part.start
    return only_lanes(x[:, part], first, head_dim)


class Chunk:
    """Chunk `n` of a block."""

    def __init__(self, refs, geometry: Geometry, block_id, n: int):
        g = self.geometry = geometry
        self.refs, self.lanes = refs, slice(n * g.chunk, (n + 1) * g.chunk)
        self.length = g.chunk
        if g.ragged:
            self.length = jnp.clip(g.t - block_id * g.block - n * g.chunk, 0, g.chunk)
        self.q_rows, self.k_rows = (refs[name].at[n % 2] for name in ("q_rows", "k_rows"))

    def load(self, name: str):
        """Loads (c, heads*.); zeros after the end of the array, where a block may contain NaN."""
        x = self.refs[name][0, self.lanes, :]
        if not self.geometry.ragged:
            return x
        row = lax.broadcasted_iota(jnp.int32, (len(x), 1), 0)
        return jnp.where(row < self.length, x, jnp.zeros_like(x))

    def spread(self, qt, k):
        layout.spread(qt, self.q_rows, self.geometry.k)
        layout.spread(k.T, self.k_rows, self.geometry.k)

    def key_features(self, head: int):
        return layout.features(self.k_rows, head, self.geometry.k, self.geometry.dtype)

    def query_features(self, head: int):
        return layout.features(self.q_rows, head, self.geometry.k, self.geometry.dtype, self.geometry.a)

    def shifted_scores(self, k, qt, head: int):
        """q.k + a, (c, c), from k and q^T of all heads."""
        k_dim = self.geometry.k
        return matmul(own_lanes(k, head, k_dim), qt[tile(head, k_dim, len(qt))]) + self.geometry.a

    def value_operand(self, vt, head: int):
        """[v | 1 | 0]^T: (value rows, c); padding tokens have no 1."""
        g = self.geometry
        shape = (g.value_rows - g.v, g.chunk)
        row, lane = (lax.broadcasted_iota(jnp.int32, shape, axis) for axis in (0, 1))
        ones = jnp.where((row == 0) & (lane < self.length) if g.ragged else row == 0, 1.0, 0.0)
        own = head_rows(vt, head, g.v)
        return jnp.concatenate([own, ones.astype(own.dtype)]).astype(g.dtype)

    def add_to_state(self, decay: "Decay", head: int, values):
        """carry = decay^length carry + [v | 1]^T phi(K), decayed from each token to the end."""
        carry = self.refs["carry"]
        added = matmul_nt(decay.to_end(head, values, self.length), self.key_features(head))
        carry[head] = decay.whole_chunk(head, carry[head], self.length) + added


def in_turn(chunks, start, finish):
    """Interleaves `start(chunk)` with `finish(chunk, started)` of the previous chunk, which waits for the state."""
    pending = None
    for chunk in chunks:
        started = chunk, start(chunk)
        if pending is not None:
            finish(*pending)
        pending = started
    finish(*pending)


class Decay:
    """Multiplies by powers of each head's decay, with nonnegative exponents. Without decay, all methods but `between`
    return their argument."""

    def __init__(self, refs, geometry: Geometry):
        self.geometry, self.powers, self.active = geometry, refs.get("between"), "log_decay" in refs
        if self.active:
            first = pl.program_id(1) * geometry.group
            self.logs = [refs["log_decay"][first + head] for head in range(geometry.group)]
        key, query = (lax.broadcasted_iota(jnp.int32, (geometry.chunk,) * 2, axis) for axis in (0, 1))
        self.distance = query - key

    def prepare(self):
        """Fills the scratch of `between`, once per row and head group."""
        if self.active:
            for head in range(self.geometry.group):
                power = self._power(head, jnp.maximum(self.distance, 0))
                self.powers[head] = jnp.where(self.distance >= 0, power, 0.0)

    def between(self, head: int, p):
        """p_ji decay^(i-j) for j <= i, else 0: (c, c)."""
        return p * self.powers[head] if self.active else jnp.where(self.distance >= 0, p, 0.0)

    def since_start(self, head: int, x):
        """x_i decay^(i+1): from the state before the chunk to token i; tokens on the lanes."""
        return self._lanes(head, x, lambda lane: lane + 1)

    def to_end(self, head: int, x, length):
        """x_j decay^(length-1-j): from token j to the state after the chunk."""
        return self._lanes(head, x, lambda lane: jnp.maximum(length - 1 - lane, 0))

    def whole_chunk(self, head: int, state, length):
        return state * self._power(head, jnp.full((1, 1), length, jnp.int32)) if self.active else state

    def _lanes(self, head, x, exponent):
        if not self.active:
            return x
        lane = lax.broadcasted_iota(jnp.int32, (1, x.shape[1]), 1)
        return (x.astype(jnp.float32) * self._power(head, exponent(lane))).astype(x.dtype)

    def _power(self, head, n):
        return jnp.exp(n.astype(jnp.float32) * self.logs[head])


def write_heads(ref, lanes: slice, heads: list, geometry: Geometry):
    """Values (head_dim, c) of each head of the group -> ref (1, block, heads*head_dim), a tile of lanes at a time."""
    head_dim = len(heads[0])
    for first in range(0, len(heads), per_tile := LANES // math.gcd(LANES, head_dim)):
        part = heads[first : first + per_tile]
        out = jnp.concatenate(part) if len(part) > 1 else part[0]
        out = out.astype(geometry.dtype).T
        ref[0, lanes, first * head_dim : first * head_dim + out.shape[1]] = out


BLOCK = 1024
"""Tokens of a grid step."""


def objection(p: Problem) -> str | None:
    """Why these kernels cannot serve a call, or None."""
    if len(set(p.dtypes)) > 1 or p.dtypes[0] not in ("bfloat16", "float32"):
        return f"dtypes of q, k, v are {p.dtypes}, not all bfloat16 or all float32"
    if p.k not in (8, 16, 24, 32):
        return f"feature_dim={p.k} is not one of 8, 16, 24, 32"
    return None if p.v in range(8, 129, 8) else f"head_dim={p.v} is not a multiple of 8 up to 128"


def forward(
    q, k, v, *, h, scale, eps=1e-6, normalize=True, initial_state=None, decay=None, return_state=False,
    return_den=False, chunk_size=layout.CHUNK, block_size=BLOCK, interpret=False,
) -> tuple[jax.Array, Any, Any]:  # fmt: skip
    """Packed forward pass on one device; on a mesh, call it inside `jax.shard_map` over batch and heads.

    q, k: (b, t, h*k), bfloat16 or float32, t >= 1; v: (b, t, h*v); decay: (h,) in [0, 1], or None; chunk_size: a
    multiple of 128 (of 16 if interpreted); block_size: most tokens of a grid step. Returns y (b, t, h*v), `TaylorState`
    or None, and den (b, h, t) float32 without eps, or None.
    """
    q, scale, _ = layout.within_range(q, scale)
    g = layout.make_geometry(
        q, v, h=h, scale=scale, eps=eps, normalize=normalize, chunk_size=chunk_size, block_size=block_size
    )
    blocks = layout.Blocks(g)
    inputs = {
        name: (layout.pad_tokens(x, g), blocks.tokens(x.shape[-1] // h)) for name, x in {"q": q, "k": k, "v": v}.items()
    }
    inputs |= layout.decay_input(decay, g)
    outputs = {"y": (layout.tokens_struct(g, g.v), blocks.tokens(g.v))}
    if initial_state is not None:
        inputs["initial"] = (layout.pack_state(initial_state, g), blocks.state())
    if return_den:
        outputs["den"] = (layout.den_struct(g), blocks.den())
    if return_state:
        outputs["final"] = (layout.state_struct(g), blocks.state())
    kernel = functools.partial(_kernel, geometry=g)
    found = layout.call(kernel, g, inputs, outputs, interpret=interpret, name="taylor_attention_forward")
    den = layout.unpack_den(found["den"], g) if return_den else None
    state = layout.unpack_state(found["final"], g) if return_state else None
    return layout.unpad_tokens(found["y"], g), state, den


def _kernel(refs, *, geometry):
    """One grid step. refs: q k v [log_decay] [initial], y [den] [final], and the scratch of `layout.call`."""
    g, step, decay, carry = geometry, pl.program_id(2), Decay(refs, geometry), refs["carry"]

    @pl.when(step == 0)
    def _():
        carry[...] = refs["initial"][0] if "initial" in refs else jnp.zeros_like(carry)
        decay.prepare()

    chunks = [Chunk(refs, g, step, n) for n in range(g.block // g.chunk)]
    in_turn(chunks, functools.partial(_weigh, decay=decay), functools.partial(_attend, decay=decay))
    if "final" in refs:

        @pl.when(step == g.n_blocks - 1)
        def _():
            refs["final"][0] = carry[...]


def _weigh(chunk: Chunk, *, decay: Decay):
    """2 a^2 p^T of each head, and v^T: work that does not need the state."""
    g = chunk.geometry
    q, k, v = (chunk.load(name) for name in ("q", "k", "v"))
    qt = q.T
    chunk.spread(qt, k)
    p = {}
    for heads in g.stages:
        scores = {h: chunk.shifted_scores(k, qt, h) for h in heads}
        p |= {h: decay.between(h, x * x + g.a * g.a).astype(g.dtype) for h, x in scores.items()}
    return p, transposed(v, g.v)


def _attend(chunk: Chunk, weighed, *, decay: Decay):
    """y, den, and the state after the chunk."""
    g, refs, (p, vt), y = chunk.geometry, chunk.refs, weighed, []
    for heads in g.stages:
        values = {h: chunk.value_operand(vt, h) for h in heads}
        total = {}
        for h in heads:
            left = [values[h], refs["carry"][h].astype(g.dtype)]
            right = [p[h], decay.since_start(h, chunk.query_features(h))]
            total[h] = matmul(jnp.concatenate(left, axis=1), jnp.concatenate(right))
        for h in heads:
            chunk.add_to_state(decay, h, values[h])
        y += [_output(total[h], g) for h in heads]
        if "den" in refs:
            for h in heads:
                refs["den"][0, 0, h : h + 1, chunk.lanes] = total[h][g.v : g.v + 1] * (0.5 / (g.a * g.a))
    write_heads(refs["y"], chunk.lanes, y, g)


def _output(total, g):
    """2 a^2 [num | den | 0]^T -> y^T, (v, c)."""
    twice = 2 * g.a * g.a
    factor = 1.0 / (total[g.v : g.v + 1] + twice * g.eps) if g.normalize else 1.0 / twice
    return total[: g.v] * factor
