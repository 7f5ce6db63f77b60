"""Hopper kernel: gradients of all pairs of chunks at once, with decays per token and head.

For the 128 tokens of a pair of chunks, their sums a of log decays, S before the pair and dS after it,

    dq_i = sum_{j<=i} H_ij k_j + exp(a_i) S dy_i              H_ij = exp(a_i - a_j) dy_i.v_j
    dk_j = sum_{i>=j} H_ij q_i + exp(a_c - a_j) dS v_j        P_ij = exp(a_i - a_j) q_i.k_j
    dv_j = sum_{i>=j} P_ij dy_i + exp(a_c - a_j) dS^T k_j

Each of two warpgroups has 64 of the tokens; a weight across the middle is the product of the weights to and from it.
All products read shared memory, H and P also transposed.

The gradient of the log decay of token t is the sum of X_ij = H_ij q_i.k_j over j < t <= i, of exp(a_i) q_i.(S dy_i)
over i >= t, of exp(a_c - a_j) k_j.(dS v_j) over j < t, and exp(a_c) <S, dS>. The first sum is computed as row i minus
column i of X, summed over i >= t. Common terms cancel exactly: both are float32 sums of products of the same rounded H.
"""

import itertools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels.gated_linear_attention.mosaic_gpu_channel_layout import PIECE, WARPGROUPS, Geometry, state_row
from pallas_kernels.hopper.levels import CHUNK, load, tile
from pallas_kernels.hopper.tiles import PER_COLUMN, PER_ROW, Mma, columns_to, launch, meet, products, rows_to

PAIR = WARPGROUPS
"""Chunks between saved states."""
SAME = 0, 2
"""Tiles of P and H of pairs within a chunk."""
ACROSS = 1


def gradients(q, k, v, dy, log2, states, dstates, g: Geometry, *, interpret=None):
    """Gradients, and sums for the gradient of log decays.

    q, k, v, dy: tiles, (b, n 128, heads width / 64, 64), of n pairs of chunks; log2: (b, h, n 128), `log2_from_start`
    of chunks; states, dstates: (b h n k/64 v/64 64, 64) bfloat16.

    Returns:
      dq, dk, dv: tiles, h heads each.
      slopes: (b, h, 2, n 128) float32: q_i.dq_i - k_i.dk_i without states, and k_i.dk_i from states.
      around: (b, h, n 64) float32, whose sums over 64 are exp(a_c) <S, dS>.
    """
    arrays = {"q": g.rows, "k": g.rows, "v": g.columns, "dy": g.columns}

    def body(r):
        batch, head, piece, warpgroup = (lax.axis_index(x) for x in ("b", "h", "piece", "warpgroup"))
        first = piece * PIECE
        count = jnp.minimum(PIECE, g.n - first)
        for turn in range(2):
            r.index_s[warpgroup, turn] = plgpu.broadcasted_iota(jnp.int32, (CHUNK,), 0, layout=PER_ROW)
        plgpu.commit_smem()

        def run(w):
            half = _Half(r, w, g, interpret)

            def step(position, _):
                half.position = position
                load_all(w, half, position)
                plgpu.barrier_wait(r.full)
                half.run()
                store_all(w, half, position)
                plgpu.wait_smem_to_gmem(0, wait_read_only=True)

            lax.fori_loop(0, count, step, None)
            plgpu.wait_smem_to_gmem(0)

        def rows(w, pair):
            return pl.ds((pair * PAIR + w) * CHUNK, CHUNK)

        def load_all(w, half, position):
            zero = half.zero()
            head_, pair = head + zero, first + position + zero
            for name, width in arrays.items():
                at = (g.of_keys(head_) if name in ("q", "k") else head_) * width
                for i, slot in enumerate(half.tiles(name)):
                    plgpu.copy_gmem_to_smem(getattr(r, name).at[batch, rows(w, pair), at + i], slot, r.full)
            plgpu.copy_gmem_to_smem(r.log2.at[batch, head_, rows(w, pair)], r.log2_s.at[w], r.full)
            for i in range(g.rows * g.columns * w):
                row = pl.ds(state_row(g, batch, head_, pair) + i * CHUNK, CHUNK)
                for name in ("states", "dstates"):
                    plgpu.copy_gmem_to_smem(getattr(r, name).at[row], half.tile(name, i), r.full)

        def store_all(w, half, position):
            zero = half.zero()
            head_, pair = head + zero, first + position + zero
            for name, like in (("dq", "q"), ("dk", "k"), ("dv", "v")):
                slots = half.tiles(like)
                for i, slot in enumerate(slots):
                    target = getattr(r, name).at[batch, rows(w, pair), head_ * len(slots) + i]
                    plgpu.copy_smem_to_gmem(slot, target)
            for i in range(2):
                plgpu.copy_smem_to_gmem(r.slopes_s.at[w, i], r.slopes.at[batch, head_, i, rows(w, pair)])
            if w == 1:
                plgpu.copy_smem_to_gmem(r.around_s, r.around.at[batch, head_, pl.ds(pair * CHUNK, CHUNK)])

        for w in range(WARPGROUPS):
            pl.when(warpgroup == w)(lambda w=w: run(w))

    scratch: dict[str, Any] = {"tiles_s": tile(PAIR * sum(arrays.values()) + 2 * g.rows * g.columns + 3)}
    floats = {"log2_s": (PAIR, CHUNK), "slopes_s": (PAIR, 2, CHUNK), "around_s": (CHUNK,)}
    scratch |= {name: plgpu.SMEM(shape, jnp.float32) for name, shape in floats.items()}
    scratch["index_s"] = plgpu.SMEM((PAIR, 2, CHUNK), jnp.int32)
    copies = PAIR * (1 + sum(arrays.values()) + g.rows * g.columns)
    scratch |= {"full": plgpu.Barrier(num_arrivals=copies), "met": plgpu.Barrier(num_arrivals=WARPGROUPS)}
    of_keys = jax.ShapeDtypeStruct((*q.shape[:2], g.h * g.rows, CHUNK), q.dtype)

    def sums(*shape):
        return jax.ShapeDtypeStruct((g.b, g.h, *shape), jnp.float32)

    return launch(
        "gated_linear_gradients", body,
        {"q": q, "k": k, "v": v, "dy": dy, "log2": log2, "states": states, "dstates": dstates},
        {"dq": of_keys, "dk": of_keys, "dv": jax.ShapeDtypeStruct(v.shape, v.dtype),
         "slopes": sums(2, log2.shape[2]), "around": sums(g.n * CHUNK)}, scratch,
        grid={"b": g.b, "h": g.h, "piece": -(-g.n // PIECE)}, warpgroups=WARPGROUPS,
        approx_math=True, interpret=interpret,
    )  # fmt: skip


class _Half:
    """Work of warpgroup w on the 64 tokens of its chunk.

    All tiles are in one array of shared memory, which saves registers for addresses. `commit_smem` within loops keeps
    the compiler from moving loads into the previous product.
    """

    def __init__(self, r, w: int, g: Geometry, interpret):
        self.r, self.w, self.g = r, w, g
        self.mma = Mma(None if interpret is None else (), w)
        widths = {name: PAIR * (g.rows if name in ("q", "k") else g.columns) for name in ("q", "k", "v", "dy")}
        widths |= {"states": g.rows * g.columns, "dstates": g.rows * g.columns, "weights": 3}
        self.places = dict(zip(widths, itertools.accumulate((0, *widths.values())), strict=False))
        self.position: Any = jnp.int32(0)

    @property
    def index(self):
        """0 .. 63 from alternating buffers, so the compiler does not compute masks before the loop."""
        return self.r.index_s.at[self.w, lax.rem(self.position, jnp.int32(2))]

    def zero(self):
        """0 that the compiler does not know, so it computes descriptors and addresses late."""
        return self.index[0]

    def tile(self, name: str, i):
        """One of the tiles of an array in shared memory."""
        return self.r.tiles_s.at[self.places[name] + i + self.zero()]

    def tiles(self, name: str, w: int | None = None):
        """Tiles of an array and a chunk."""
        width, w = self.g.rows if name in ("q", "k") else self.g.columns, self.w if w is None else w
        return [self.tile(name, w * width + i) for i in range(width)]

    def run(self):
        """Writes dq, dk and dv over q, k and v, and the sums."""
        r, w, g = self.r, self.w, self.g
        sums, (first, second) = plgpu.load(r.log2_s.at[w], layout=PER_ROW), (r.log2_s[i, CHUNK - 1] for i in range(2))
        since = rows_to(jnp.exp2(sums + first if w else sums))
        until = rows_to(jnp.exp2(second - sums if w else first - sums + second))

        def cotangents(i, j):
            """Tile (i, j) of the cotangent of the state."""
            return self.tile("dstates", i * g.columns + j)

        self.weigh("q", "k", across=w == 0)
        dv, dk, slope, written = [], [], 0.0, 0.0
        for j in range(g.columns):
            plgpu.commit_smem()
            keys, dout = self.tiles("k"), self.tiles("dy")[j]
            past = products(*((x, cotangents(i, j)) for i, x in enumerate(keys))) * until
            dv.append(self.add(past, self.later(dout, self.tiles("dy", 1)[j])).astype(jnp.bfloat16))
        meet(self.r.met)
        same = rows_to(self.weigh("dy", "v", across=w == 1))
        for i in range(g.rows):
            plgpu.commit_smem()
            query, key = self.tiles("q")[i], self.tiles("k")[i]
            pairs = [(x, cotangents(i, j).transpose((1, 0))) for j, x in enumerate(self.tiles("v"))]
            state = products(*pairs) * until
            written += (state * load(key)).sum(1)
            plgpu.commit_smem()
            x = products(*self.later(query, self.tiles("q", 1)[i]))
            slope -= (x * load(key)).sum(1)
            dk.append((x + state + same * load(query)).astype(jnp.bfloat16))
        meet(self.r.met)
        for slot, x in zip(self.tiles("v"), dv, strict=True):
            slot[...] = x
        for i in range(g.rows):
            plgpu.commit_smem()
            query, key = self.tiles("q")[i], self.tiles("k")[i]
            states = [self.tile("states", i * g.columns + j).transpose((1, 0)) for j in range(g.columns)]
            past = products(*zip(self.tiles("dy"), states, strict=True))
            x = self.add(past * since, self.earlier(key, self.tiles("k", 0)[i]))
            slope += (x * load(query)).sum(1)
            query[...] = (x + same * load(key)).astype(jnp.bfloat16)
        plgpu.commit_smem()
        meet(self.r.met)
        r.slopes_s[w, 0], r.slopes_s[w, 1] = slope, written
        for slot, x in zip(self.tiles("k"), dk, strict=True):
            slot[...] = x
        if w == 1:
            around = [load(self.tile("states", i)) * load(self.tile("dstates", i)) for i in range(g.rows * g.columns)]
            r.around_s[...] = sum(x.sum(1) for x in around) * jnp.exp2(first + second)
        plgpu.commit_smem()

    def weigh(self, rows: str, columns: str, across: bool):
        """Writes weighted products of rows and columns, within the chunk and optionally across.

        For dy and v (H) the diagonal is left out and returned.
        """
        r, w, strict = self.r, self.w, rows == "dy"

        def score(i, j):
            return products(
                *((x, y.transpose((1, 0))) for x, y in zip(self.tiles(rows, i), self.tiles(columns, j), strict=True))
            )

        x, index = score(w, w), self.index
        self.tile("weights", SAME[w])[...] = (x * between(r.log2_s.at[w], index, strict=strict)).astype(jnp.bfloat16)
        i, j = rows_to(plgpu.load(index, layout=PER_ROW)), columns_to(plgpu.load(index, layout=PER_COLUMN))
        same = jnp.where(i == j, x, 0.0).sum(1) if strict else None
        if across:
            plgpu.commit_smem()
            since = jnp.exp2(plgpu.load(r.log2_s.at[1], layout=PER_ROW))
            until = jnp.exp2(r.log2_s[0, CHUNK - 1] - plgpu.load(r.log2_s.at[0], layout=PER_COLUMN))
            self.tile("weights", ACROSS)[...] = (score(1, 0) * rows_to(since) * columns_to(until)).astype(jnp.bfloat16)
        plgpu.commit_smem()
        meet(self.r.met)
        return same

    def add(self, start, pairs):
        """Returns start + the sum of x y over pairs."""

        def run(acc):
            for x, y in pairs:
                plgpu.wgmma(acc, x, y)

        return self.mma.update((start,), run)[0]

    def earlier(self, same, first):
        """Pairs whose products sum to H times tiles of the own and the first chunk."""
        weights = [self.tile("weights", i) for i in (SAME[self.w], ACROSS)]
        return [(weights[0], same)] + [(weights[1], first)] * (self.w == 1)

    def later(self, same, second):
        """Pairs whose products sum to H^T or P^T times tiles of the own and the second chunk."""
        weights = [self.tile("weights", i).transpose((1, 0)) for i in (SAME[self.w], ACROSS)]
        return [(weights[0], same)] + [(weights[1], second)] * (self.w == 0)


def between(log2, index, *, strict: bool = False):
    """exp(a_i - a_j) for rows i and columns j <= i (strict: j < i), else 0.

    Indices come from shared memory: computed ones would hold registers through the loop.
    """
    row, i = (rows_to(plgpu.load(x, layout=PER_ROW)) for x in (log2, index))
    column, j = (columns_to(plgpu.load(x, layout=PER_COLUMN)) for x in (log2, index))
    return jnp.exp2(jnp.where(i > j if strict else i >= j, row - column, -jnp.inf))
