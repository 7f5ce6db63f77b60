"""The index problem as a protocol between streaming mixers (Zoology, H.23, H.24; Based, Thm 3.1, F.9 to F.13).

Alice has a string of n bits, Bob an index i; Alice sends one message, and Bob answers with the i-th bit. Theorems H.23
and F.9 (Jayram et al. 2008, cited): if Bob is right with probability 2/3, the message has Omega(n) bits. Corollary H.24
and Theorem F.12, which is Theorem 3.1, make a protocol of a recurrent model that solves AR: Alice feeds it the pairs
`(j, x_j)`, sends its state, and Bob feeds it the query i. So its state has Omega(n) bits.

`alice` and `bob` run this with `prefill` and `step` of our mixers and models, whose weights `retention`, `taylor` and
`attention` set such that Bob is always right; the message is every entry of the state that depends on the string,
rounded to a given number of bits. `needed_bits` is the bound with its constant: by Fano's inequality the message of a
uniform string has at least `n (1 - H(e))` bits, if Bob is wrong with probability e; all n if he is never wrong.

| mixer | input width | entries of the state | bits per entry that are enough |
| --- | --- | --- | --- |
| RetNet, n = r^2 | d = 2 r | d^2 = 4 n, n of which are used | 1 |
| Taylor attention, n = r^2 | 2 r | (1 + 3 r / 2 + r^2 / 2) r | O(log r) |
| attention with a short convolution, from token ids | d = 16 up to 33 bits | 4 d n + 4 d | not rounded |

RetNet shows that the bound is tight: the index (a, b) has the key e_a and the value +-e_b, each bit has an entry of the
state of its own, and its sign is enough.

**H.24.** The proof sends d^2 numbers and concludes for `d <= sqrt(N)` that o(N) bits are sent. At d = sqrt(N) these are
N numbers, which is not o(N): nothing is contradicted, and `retention` solves AR there. What follows is `B d^2 =
Omega(N)` for entries of B bits, at any d: Omega(N) bits of state, thus `d = Omega(sqrt(N / B))`.

**F.13** says that Mamba with entries of O(1) bits needs `d + d' = Omega(N)`. Its state (eq. 21) is one vector of d'
numbers for each of d channels; what follows from F.12 is `d d' = Omega(N)`.

Each pair is one row here, where the proofs have two, except for `attention`, whose convolution joins them.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from experiments.theory import hybrid_recall
from experiments.theory.parameters import write, zeros
from jaxzoo.mixers import RetNetConfig, TaylorLinearAttentionConfig
from jaxzoo.mixers.base import Mixer
from jaxzoo.mixers.linear.ret_net import RetNet
from jaxzoo.mixers.linear.taylor_linear_attention import TaylorLinearAttention
from jaxzoo.utils.array_typing import Array, Float, Int

Bits = Int[np.ndarray, "b n"]


class Agents(NamedTuple):
    """Model that both know."""

    n: int
    """Number of bits of the string."""
    prefill: Callable[[Bits], Any]
    """State after the pairs of the strings."""
    step: Callable[[Any, Int[np.ndarray, "b"]], Int[np.ndarray, "b"]]
    """Bits that the model answers, from states and indices."""


def alice(agents: Agents, strings: Bits, *, precision: int | None = None) -> Float[np.ndarray, "b m"]:
    """Returns messages: the floating-point entries of the states, each rounded to 2^precision values, or as they are.
    Integers, which are positions, are the same for all strings."""
    leaves = [leaf for leaf in jax.tree.leaves(agents.prefill(strings)) if jnp.issubdtype(leaf.dtype, jnp.floating)]
    message = np.concatenate([np.asarray(leaf, np.float32).reshape(len(strings), -1) for leaf in leaves], axis=1)
    if precision is None:
        return message
    largest = np.abs(message).max()
    level = np.floor((message / largest + 1) * 2 ** (precision - 1)).clip(0, 2**precision - 1)
    return ((level + 0.5) / 2 ** (precision - 1) - 1) * largest


def bob(agents: Agents, messages: Float[np.ndarray, "b m"], index: Int[np.ndarray, "b"]) -> Int[np.ndarray, "b"]:
    """Returns answers, from the messages and what is known: the model, and the structure of its state."""
    known, structure = jax.tree.flatten(agents.prefill(np.zeros((len(messages), agents.n), int)))
    leaves, at = [], 0
    for leaf in known:
        if jnp.issubdtype(leaf.dtype, jnp.floating):
            size = leaf.size // len(messages)
            leaf = jnp.asarray(messages[:, at : at + size].reshape(leaf.shape), leaf.dtype)
            at += size
        leaves.append(leaf)
    return agents.step(jax.tree.unflatten(structure, leaves), index)


def needed_bits(n: int, error: float) -> float:
    """Returns `n (1 - H(error))`, the least bits of a message on average, for Bob to err with this probability."""
    if error in (0, 1):
        return n
    return n * (1 + error * math.log2(error) + (1 - error) * math.log2(1 - error))


def retention(r: int, *, gamma: float = 1.0, n: int | None = None) -> Agents:
    """Makes the protocol of RetNet (Algorithm 6) of width d = 2 r for n bits; None: r^2. With more bits than r^2,
    several share an entry of the state."""
    layer = zeros(RetNet, RetNetConfig.plain(gamma=gamma, d_model=2 * r))
    first = np.diag(np.arange(2 * r) < r).astype(float)
    write(layer.q_proj.kernel, first)
    write(layer.k_proj.kernel, first)
    write(layer.v_proj.kernel, np.eye(2 * r) - first)
    return _agents(layer, r, r**2 if n is None else n, read_from=r)


def taylor(r: int) -> Agents:
    """Makes the protocol of Taylor attention with r features for r^2 bits. Keys that differ have the weight 1, equal
    ones 1 + s + s^2 / 2, more than r together with s = 2 r^(1/2)."""
    config = TaylorLinearAttentionConfig(d_model=2 * r, feature_dim=r, head_dim=r)
    layer, score = zeros(TaylorLinearAttention, config), 2 * r**0.5
    read = np.eye(2 * r, r)
    write(layer.q_proj.kernel, score * r**0.5 * read)
    write(layer.k_proj.kernel, read)
    write(layer.v_proj.kernel, np.eye(2 * r, r, k=-r))
    write(layer.out_proj.kernel, np.eye(r, 2 * r))
    return _agents(layer, r, r**2, read_from=0)


def attention(n: int) -> Agents:
    """Makes the protocol of the language model of `hybrid_recall.py`, which reads `0 x_0 1 x_1 ..` as token ids."""
    length = 2 * n + 1
    model = hybrid_recall.build(n + 2, length)
    prefill, step = jax.jit(lambda tokens, state: model.prefill(tokens, state)[1]), jax.jit(model.step)

    def read(strings: Bits) -> Any:
        index = np.broadcast_to(np.arange(n), strings.shape)
        tokens = jnp.asarray(np.stack([index, n + strings], axis=2).reshape(len(strings), -1), jnp.int32)
        return prefill(tokens, model.init_state(len(strings), capacity=length))

    def ask(state: Any, index: Int[np.ndarray, "b"]) -> Int[np.ndarray, "b"]:
        logits, _ = step(jnp.asarray(index, jnp.int32), state)
        return np.asarray(logits[:, : n + 2].argmax(1)) - n

    return Agents(n, read, ask)


def _agents(layer: Mixer, r: int, n: int, *, read_from: int) -> Agents:
    """Makes the protocol of a mixer. The bit with index (a, b) is written as the row `[e_a, +-e_b]` and asked by
    `[e_a, 0]`; the answer is the sign of output channel `read_from + b`."""
    a, b = np.divmod(np.arange(n) % r**2, r)
    prefill = jax.jit(lambda u: layer.prefill(u, layer.init_state(len(u), capacity=n))[1])
    step = jax.jit(layer.step)

    def rows(index: Int[np.ndarray, "..."], sign: np.ndarray) -> Array:
        keys, values = np.eye(r)[a[index]], sign[..., None] * np.eye(r)[b[index]]
        return jnp.asarray(np.concatenate([keys, values], axis=-1), jnp.float32)

    def read(strings: Bits) -> Any:
        return prefill(rows(np.broadcast_to(np.arange(n), strings.shape), 2 * strings - 1))

    def ask(state: Any, index: Int[np.ndarray, "b"]) -> Int[np.ndarray, "b"]:
        y, _ = step(rows(index, np.zeros(len(index))), state)
        return (np.take_along_axis(np.asarray(y), read_from + b[index][:, None], axis=1)[:, 0] > 0).astype(int)

    return Agents(n, read, ask)
