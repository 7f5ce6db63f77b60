"""Butterfly and kaleidoscope matrices as layers of BaseConv (Zoology, App. H.4, H.14 to H.19).

A butterfly factor of size k has blocks of k rows, with diagonal halves `[[D_1, D_2], [D_3, D_4]]` (H.14). By H.15 it is
`D_1 u + D_2 (u moved up by k / 2) + D_3 (u moved down by k / 2)`, a `Factor` of `routed_circuits.py`, which
`FactorProduct` computes in two layers (H.16, 1). A butterfly matrix is the product of factors of the sizes 2, 4, .., n:
`2 log n` layers, and one that adds the last terms (H.16, 2). A kaleidoscope matrix, in `(BB*)^w_e` (H.17), is the upper
left corner of w products of a butterfly matrix and a transposed one, of e n rows: `4 w log(e n) + 1` layers (H.18).

Theorem H.19 (Dao et al. 2020, cited): the matrix of a linear circuit of depth Delta and width w is in `(BB*)^O(Delta)`,
expanded to O(w) rows. The case that H.21 needs is constructed: `permute` writes a permutation as a Benes network, whose
`2 log n - 1` factors have the sizes n, n / 2, .., 2, .., n: the two factors of size 2 of a matrix in BB* are one here.
Copies, which H.21 needs too, are factors whose rows are not in blocks of twice their shift, and so not butterfly.

Here d = 1, a wire per row, where the paper has n rows of d channels. H.15 prints two shifts, by k / 2 and by n / 2,
which are the same only for k = n, the case that it states. H.17 has the product `M_w .. M_1`, H.18 `E_1 .. E_w`.
"""

import numpy as np

from experiments.theory.routed_circuits import Factor
from jaxzoo.utils.array_typing import Float


def butterfly_factor(k: int, blocks: Float[np.ndarray, "4 m"]) -> Factor:
    """Makes the factor of size k on n = 2 m rows; `blocks` are the diagonals of D_1 to D_4, block after block."""
    shape = (-1, k // 2)
    first, up, down, last = (part.reshape(shape) for part in blocks)
    none = np.zeros_like(first)
    rows = [np.stack(halves, axis=1).reshape(-1) for halves in ((first, last), (up, none), (none, down))]
    return Factor(k // 2, *rows)


def butterfly(factors: Float[np.ndarray, "log_n 4 m"]) -> list[Factor]:
    """Returns the factors of a butterfly matrix on n = 2 m rows, of the sizes 2 to n, the first one first."""
    return [butterfly_factor(2 ** (i + 1), blocks) for i, blocks in enumerate(factors)]


def transposed(factors: list[Factor]) -> list[Factor]:
    """Returns the factors of the transposed matrix."""

    def one(factor: Factor) -> Factor:
        s = factor.s
        return factor._replace(up=np.roll(factor.down, -s), down=np.roll(factor.up, s))

    return [one(factor) for factor in reversed(factors)]


def dense(factors: list[Factor]) -> Float[np.ndarray, "n n"]:
    """Returns the matrix of factors."""
    n = len(factors[0].same)
    product = np.eye(n)
    for s, same, up, down in factors:
        product = (np.diag(same) + np.diag(up[: n - s], s) + np.diag(down[s:], -s)) @ product
    return product
