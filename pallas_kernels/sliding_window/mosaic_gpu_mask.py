"""Inside the Hopper kernels: which entries of a tile of scores are visible, and the folding of two tiles into one.

Geometry and legend: `mosaic_gpu_layout`.
"""

import dataclasses
import functools
import operator
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels.mosaic_gpu_tiles import PER_COLUMN, PER_ROW, columns_to, iota, rows_to
from pallas_kernels.sliding_window.mosaic_gpu_blocks import rows
from pallas_kernels.sliding_window.mosaic_gpu_layout import BLOCK
from pallas_kernels.sliding_window.mosaic_gpu_ring import Partners

LOG2_E = np.float32(np.log2(np.e))
LN_2 = np.float32(np.log(2))
HIDDEN = np.float32(-1e30)  # exponent of a key that is not visible
LOWEST = np.float32(-1e20)  # floor of a row's maximum: exp2(HIDDEN - LOWEST) = 0 where nothing is visible


@dataclasses.dataclass(frozen=True)
class Mask:
    """Stationary blocks are the rows of a tile, partners the columns: queries are rows where partners are
    before them in time, and columns where they are after them."""

    partners: Partners
    start: Any | None  # first visible key
    ids: Any | None  # (t padded,) segment ids in global memory

    @property
    def query_axis(self):
        return 0 if self.partners.direction < 0 else 1

    def index(self, axis):
        """Row or column numbers, (64, 64). Spread from vectors: 2 or 16 registers of a thread, not 32."""
        layout, spread = ((PER_ROW, rows_to), (PER_COLUMN, columns_to))[axis]
        return spread(iota((BLOCK,), 0, layout))

    @property
    def query_and_key(self):
        return self.index(self.query_axis), self.index(1 - self.query_axis)

    def exponents(self, scores, scale, n, u, less=None):
        """scale * scores - less for stationary block n and partner u, HIDDEN where the query does not see the key.

        less: (64,) by query, or None for 0. A partner that does not exist is hidden by the factor and the addend: the
        multiplier has room where comparisons and selections have not.
        """
        i, j = self.query_and_key
        own = isinstance(u, int) and u == 0
        distance, partner = self.partners.distance(u), self.partners.partner(n, u)
        if not own or self.partners.shift < 0:
            exists = (partner >= 0) & (partner < self.partners.limit)
            scale = jnp.where(exists, scale, 0.0)
            less = jnp.where(exists, 0.0 if less is None else less, -HIDDEN)
        exponents = scores * scale
        if less is not None:
            exponents = exponents - (less if less.ndim == 0 else (rows_to, columns_to)[self.query_axis](less))
        checks = [j <= i] if own else []
        if isinstance(u, int) and self.partners.block_window.cuts(distance):
            checks.append(j - i > BLOCK * distance - self.partners.block_window.window)
        if self.start is not None:
            checks.append(j >= self.start - BLOCK * (partner if self.query_axis == 0 else n))
        if self.ids is not None:
            checks.append(self.load_ids(n, 0) == self.load_ids(self.partners.partner(n, u), 1))
        return jnp.where(functools.reduce(operator.and_, checks), exponents, HIDDEN) if checks else exponents

    def load_ids(self, block, axis):
        """Loads the ids of a block, or of the nearest one where it does not exist."""
        layout, spread = ((PER_ROW, rows_to), (PER_COLUMN, columns_to))[axis]
        block = jnp.clip(block, 0, self.ids.shape[0] // BLOCK - 1)
        return spread(plgpu.load(self.ids.at[rows(block)], layout=layout, optimized=False))

    def grouped(self, units):
        """Partners by tile of scores: the diagonal and the farthest may share one."""
        folded = 2 if self.partners.block_window.folds and len(units) > 1 else 1
        return [units[:folded], *((u,) for u in units[folded:])]

    def fold(self, parts):
        """The tiles of a group as one."""
        if len(parts) == 1:
            return parts[0]
        i, j = self.query_and_key
        return jnp.where(j <= i, *parts)

    def unfold(self, x, group):
        """The part of a tile that belongs to each partner of its group, zero elsewhere, bf16."""
        if len(group) == 1:
            return [x.astype(jnp.bfloat16)]
        i, j = self.query_and_key
        near = jnp.where(j <= i, x, 0.0)
        # Not a second `where`: the compiler would then select halves of packed pairs, at four times the instructions.
        return [near.astype(jnp.bfloat16), (x - near).astype(jnp.bfloat16)]


def make_mask(refs, partners: Partners, batch) -> Mask:
    """Mask of a batch row, from refs.start and refs.segment_ids, which may be None."""
    start = None if refs.start is None else refs.start[batch]
    ids = None if refs.segment_ids is None else refs.segment_ids.at[batch]
    return Mask(partners, start, ids)
