"""BaseConv with input-dependent filters solves MQAR with few interaction distances (Zoology, Thm 4.5 and H.38).

The problem is as in `attention_recall.py`: triples of a key, a value and a query, encoded by Remark H.26, here without
an empty triple. Keys are distinct, and there are at most t distances from a query's row back to its key's row.
With h^K, which has its taps at these distances, and h^V, with taps one earlier, the proof computes

    y = Q . (h^K * K)       1 at the query's token where a key at distance s is the same
    z = E . (h^V * V)       E = y 1 1^T: the value that stands after such a key

in two layers of `InputDependentConv`, `build`. Q, K and V are the blocks of the rows, where the paper sets rows of a
one-hot sequence to 0 by their place, which no linear map of a row does. The second layer has y in c channels of its own
after u; eq. 22 too reads both.

One filter with several taps would add up the values at all of them. So the proof works on t copies of the sequence,
each with the taps of one distance, and adds up the z of all. `InputDependentConv` gives the l distances of the
strongest autocorrelation one filter; the l-th alone is what n_shifts = l does less what n_shifts = l - 1 does, as a
layer is linear in its filter. Layers are as many as in the proof, two, t times side by side: `t (50 c^2 + 14 c)`
parameters at any length, where the paper's filters, which are parameters, have O(t N c).

| `filter` | distances | taps | solves |
| --- | --- | --- | --- |
| autocorrelation | the `n_shifts` strongest of keys and queries | `rho_s = r_s / r_0` | t <= n_shifts |
| programmatic | all of equal token ids | 1 | t = 1 |

The answer comes as `rho_s^2` times the one-hot value; in float32 it is clear of rounding for rho_s above 0.005, so for
distances that one query in a hundred has. The autocorrelation is one of blocks K and Q together (`correlate`), which is
why its taps are not 1 (see the config). The paper correlates all of u, and takes for granted that interaction distances
are its strongest lags. Equal values are lags as well, and here do not count. So are equal queries: a key that is asked
for twice may cost a place among the `n_shifts`, though no answer, as roles have their places modulo 3, and at any other
lag than that of a query from a key, queries meet zeros.
"""

from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from experiments.theory import attention_recall
from experiments.theory.attention_recall import NOTHING as NOTHING
from experiments.theory.parameters import write, zeros
from jaxzoo.mixers import Context, InputDependentConvConfig
from jaxzoo.mixers.conv.input_dependent_conv import InputDependentConv
from jaxzoo.utils.array_typing import Array, Float, Int

SMALLEST = 1e-5
"""Smallest output entry that is not rounding noise."""


class InputDependentRecall(nnx.Module):
    """`compare[l]` makes y, `fetch[l]` makes z, both with the l + 1 strongest distances."""

    def __init__(self, compare: list[InputDependentConv], fetch: list[InputDependentConv]) -> None:
        self.compare: nnx.List[InputDependentConv] = nnx.List(compare)
        self.fetch: nnx.List[InputDependentConv] = nnx.List(fetch)

    def __call__(self, u: Float[Array, "b t d"], context: Context) -> Float[Array, "b t v"]:
        """Returns a positive multiple of the one-hot value in a query's row, width c, or zeros."""
        c = u.shape[2] // 3
        z, before = jnp.zeros((*u.shape[:2], c), u.dtype), jnp.zeros((*u.shape[:2], c), u.dtype)
        for i, compare in enumerate(self.compare):
            found = compare(u, context)[..., :c]
            x = jnp.concatenate([u, found - before], axis=2)
            z = z + self.fetch[i](x, context)[..., c : 2 * c]
            if i:
                z = z - self.fetch[i - 1](x, context)[..., c : 2 * c]
            before = found
        return z


def build(
    n_tokens: int, *, n_shifts: int = 1, filter: Literal["programmatic", "autocorrelation"] = "autocorrelation"
) -> InputDependentRecall:
    """Builds the layers for `n_tokens` tokens c and up to `n_shifts` distances t. Raises `ValueError` for a
    programmatic filter, which does not order its distances, with more than one."""
    if filter == "programmatic" and n_shifts > 1:
        raise ValueError(f"build: n_shifts={n_shifts} must be 1 for a programmatic filter, which adds up all distances")
    c, counts = n_tokens, range(1, n_shifts + 1)
    compare, fetch = np.zeros((3, c, 3, c)), np.zeros((4, c, 4, c))
    compare[2, :, 0] = np.eye(c)  # queries are the gate of keys
    fetch[3, :, 1] = 1  # the sum of y, in every channel, is the gate of values
    return InputDependentRecall(
        [_layer(compare, n, "key", filter) for n in counts], [_layer(fetch, n, "value", filter) for n in counts]
    )


def encode(
    keys: Int[np.ndarray, "b n"], values: Int[np.ndarray, "b n"], queries: Int[np.ndarray, "b n"], n_tokens: int
) -> tuple[Float[Array, "b t d"], Context]:
    """Returns the rows of Remark H.26, `t = 3 n`, and token ids; ids of values start at c, after those of keys."""
    u = attention_recall.encode(keys, values, queries, n_tokens)[:, 3:]  # without the empty triple
    ids = np.stack([keys, values + n_tokens, queries], axis=2).reshape(len(keys), -1)
    return u, Context(tokens=jnp.asarray(ids, jnp.int32))


def answers(outputs: Float[Array, "b t v"]) -> Int[np.ndarray, "b n"]:
    """Reads the token of each query's row, or `NOTHING`."""
    rows = np.asarray(jax.device_get(outputs))[:, 2::3]
    return np.where(rows.max(-1) > SMALLEST, rows.argmax(-1), NOTHING)


def _layer(gate: np.ndarray, n_shifts: int, kernel: Literal["key", "value"], filter: str) -> InputDependentConv:
    """Makes a layer of this gate `(blocks, c, blocks, c)`; its distances are those of keys and queries."""
    blocks, c = gate.shape[:2]
    options: Any = {"pairs": "all"}
    if filter == "autocorrelation":
        options = {"filter": filter, "n_shifts": n_shifts, "taps": "correlations", "correlate": "projection"}
    layer = zeros(InputDependentConv, InputDependentConvConfig(d_model=blocks * c, kernel=kernel, **options))
    if filter == "autocorrelation":
        projection = np.zeros((blocks, c, blocks, c))
        projection[0, :, 0] = projection[2, :, 0] = np.eye(c)
        write(layer.correlated.kernel, projection.reshape(blocks * c, blocks * c))
    write(layer.projection.kernel, gate.reshape(blocks * c, blocks * c))
    return layer
