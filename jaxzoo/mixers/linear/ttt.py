"""TTT-Linear and TTT-MLP (Sun et al. 2024, arXiv 2407.04620): a state of weights that learns from each token.

For every head of width n, with q and k turned to their place i in a mini-batch of `mini_batch` tokens (adjacent pairs
of channels), lr = base_lr sigmoid(x . w + c) / n, and tok_i = max(1 / (i + 1) + tau_i, 0):

    f_W(u) = u W_1 + b_1        TTT-MLP: gelu(u W_1 + b_1) W_2 + b_2, of 4 n hidden units
    loss_s(W) = |LN(f_W(k_s)) - (v_s - k_s)|^2 / 2
    W_t = W_0 - tok_t sum_{s <= t} lr_s grad loss_s(W_0)        z_t = q_t + LN(f_{W_t}(q_t))
    y = (LN'(concat(z_h)) [. gelu(x W_G)]) W_O

with W_0 the weights after the last mini-batch, gelu by tanh, a LayerNorm LN with scale and shift for each head, and LN'
over all heads, eps 1e-6. All gradients of a mini-batch are taken at W_0, so that it is computed at once (the dual
form).

The layer is that of the authors' PyTorch code (`ttt.py`) and of Zoology, without the convolutions of its Mamba backbone
(`share_qk`, `pre_conv`). base_lr is 1 for TTT-Linear and 0.1 for TTT-MLP; that code has 1 unless it is told. fla's op
is another one: it scales q, adds LN(y) to y in place of q, and multiplies the learning rate by the query's place.

Names: `learnable_token_idx` is `place_scale`; `learnable_ttt_lr_weight` (transposed) and `_bias` are `lr_proj`;
`ttt_norm_weight`, `ttt_norm_bias` are `inner_scale`, `inner_shift`; `W1`, `b1`, `W2`, `b2` are `weights`, in this
order; `g_proj` is `gate_proj`, `o_proj` is `out_proj`. Initialisation: W normal with 0.02, b, tau and c 0.

A document begins a mini-batch. Packed documents are taken token by token, which is slow.

State: changes of the weights and sums of gradients, 2 (n^2 + n) numbers per head; of the MLP 2 (8 n^2 + 5 n).

Good at: Long contexts: a state that is trained on them, linear or with a hidden layer.
Paper: Sun et al. 2024, https://arxiv.org/abs/2407.04620
"""

import dataclasses
from typing import Literal, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike

from jaxzoo.config.checked import NonNegativeFloat, PositiveFloat, PositiveInt
from jaxzoo.layers.linear import linear, split_heads
from jaxzoo.layers.norm import norm
from jaxzoo.layers.rotary import rotary
from jaxzoo.layers.variables import parameter
from jaxzoo.mixers.base import Capabilities, Context, Mixer, MixerConfig
from jaxzoo.ops.segments import document_starts, position_in_segment
from jaxzoo.utils.array_typing import Array, Bool, Float, Int

Weights = tuple[Array, ...]
"""W_1, b_1 (and W_2, b_2) of all heads, `(b, h, i, o)` and `(b, h, 1, o)`, float32."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TTTConfig(MixerConfig):
    """Config of `TTT`."""

    promises = Capabilities(segments=True)

    n_heads: PositiveInt = 1
    """Heads; the paper's have 64 channels each."""
    inner: Literal["linear", "mlp"] = "linear"
    """Inner model: TTT-Linear or TTT-MLP."""
    mini_batch: PositiveInt = 16
    """Tokens whose gradients are taken at the same weights."""
    base_lr: PositiveFloat | None = None
    """Factor of the inner learning rate; None: 1 for the linear model, 0.1 for the MLP."""
    gate: bool = False
    """Multiplies by gelu(x W_G)."""
    rotary_base: PositiveFloat = 10000.0
    """Base of the rotary frequencies."""
    norm_eps: NonNegativeFloat = 1e-6
    """Added to the variances."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_divisible("d_model", by="n_heads")
        if self.d_model is not None:
            self.require("n_heads", self.head_width % 2 == 0, f"leaves heads of odd width {self.head_width}")

    @property
    def head_width(self) -> int:
        """Channels of a head."""
        return self.width // self.n_heads

    @property
    def shapes(self) -> tuple[tuple[int, int], ...]:
        """Shapes of the weights of a head."""
        n = self.head_width
        return ((n, n), (1, n)) if self.inner == "linear" else ((n, 4 * n), (1, 4 * n), (4 * n, n), (1, n))

    @classmethod
    def tiny(cls) -> Self:
        return cls(d_model=8, n_heads=2, inner="mlp", mini_batch=4, gate=True)

    def flops_per_token(self, length: int) -> float:
        """Projections; per layer of the inner model two products with its weights, two with sums of gradients and two
        of a mini-batch's scores, and one more for the gradient of the hidden layer."""
        d, n, c = self.width, self.head_width, min(self.mini_batch, length)
        projections = 2.0 * d * ((4 + self.gate) * d + self.n_heads)
        per_layer = (8.0 * n * n + 4.0 * c * n) if self.inner == "linear" else (72.0 * n * n + 20.0 * c * n)
        return projections + self.n_heads * per_layer


class TTTState(NamedTuple):
    """The inner model."""

    change: Float[Array, "b h p"]
    """Weights of each head after the last whole mini-batch, minus those that a document begins with, which are
    parameters; W_1, b_1 (and W_2, b_2) flattened one after the other, float32."""
    sums: Float[Array, "b h p"]
    """Sums of lr grad loss over the tokens since, likewise."""
    position: Int[Array, "b"]
    """Tokens seen, int32."""


class TTT(Mixer):
    """Test-time training; the state has a fixed size, and `step` costs O(n^2) per head.

    `q_proj`, `k_proj`, `v_proj` (d, d), `lr_proj` (d, heads) with bias, `place_scale` (mini_batch,), `inner_scale`,
    `inner_shift` (heads, n), `weights` (heads, i, o) each, `post_norm`, `gate_proj` (d, d) with a gate, `out_proj`.
    """

    config: TTTConfig

    def __init__(self, config: TTTConfig, *, rngs: nnx.Rngs) -> None:
        d, h, n, axes = config.width, config.n_heads, config.head_width, ("embed", "heads")
        self.q_proj: nnx.Linear = linear(d, d, axes=axes, std=config.std, rngs=rngs)
        self.k_proj: nnx.Linear = linear(d, d, axes=axes, std=config.std, rngs=rngs)
        self.v_proj: nnx.Linear = linear(d, d, axes=axes, std=config.std, rngs=rngs)
        self.lr_proj: nnx.Linear = linear(d, h, axes=axes, std=config.std, bias=True, rngs=rngs)
        self.place_scale: nnx.Param[jax.Array] = parameter(jnp.zeros((config.mini_batch,)), (None,), decay=False)
        self.inner_scale: nnx.Param[jax.Array] = parameter(jnp.ones((h, n)), ("heads", None), decay=False)
        self.inner_shift: nnx.Param[jax.Array] = parameter(jnp.zeros((h, n)), ("heads", None), decay=False)
        starts = [0.02 * (i > 1) * jax.random.normal(rngs.params(), (h, i, o)) for i, o in config.shapes]
        self.weights = nnx.List([parameter(w, ("heads", None, None), decay=w.shape[1] > 1) for w in starts])
        self.post_norm = norm("layer", d, eps=config.norm_eps, rngs=rngs)
        if config.gate:
            self.gate_proj: nnx.Linear = linear(d, d, axes=axes, std=config.std, rngs=rngs)
        self.out_proj: nnx.Linear = linear(d, d, axes=("heads", "embed"), std=config.out_std, rngs=rngs)
        self.config = config

    def init_state(self, batch_size: int, *, capacity: int | None = None, dtype: DTypeLike = jnp.float32) -> TTTState:
        """Zeros, float32 whatever `dtype` says."""
        n_weights = sum(i * o for i, o in self.config.shapes)
        zeros = jnp.zeros((batch_size, self.config.n_heads, n_weights), jnp.float32)
        return TTTState(zeros, zeros, jnp.zeros((batch_size,), jnp.int32))

    def mix(self, x: Float[Array, "*b d"], state: TTTState | None, context: Context) -> tuple[Array, TTTState]:
        config, ids, u = self.config, context.segment_ids, x[:, None] if x.ndim == 2 else x
        before = self.init_state(x.shape[0]) if state is None else state
        places = before.position[:, None] + jnp.arange(u.shape[1], dtype=jnp.int32)[None]
        places = (places if ids is None else position_in_segment(ids)) % config.mini_batch
        q, k, v = (
            split_heads(f(u), config.n_heads).astype(jnp.float32) for f in (self.q_proj, self.k_proj, self.v_proj)
        )
        q, k = (rotary(y, places, base=config.rotary_base, interleaved=True) for y in (q, k))
        base = config.base_lr or {"linear": 1.0, "mlp": 0.1}[config.inner]
        lr = base / config.head_width * jax.nn.sigmoid(self.lr_proj(u).astype(jnp.float32))
        tokens = tuple(y.swapaxes(1, 2) for y in (q, k, v, lr[..., None]))
        if (starts := document_starts(ids)) is not None:
            z, after = self._one_by_one(before, tokens, places, starts)
        elif u.shape[1] == 1:
            z, after = self._mini_batch(before, tokens, places, places[:, 0] == config.mini_batch - 1)
        else:
            z, after = self._by_mini_batches(before, tokens, 0 if state is None else config.mini_batch - 1)
        y = z.swapaxes(1, 2).reshape(u.shape).astype(x.dtype)
        y = self.post_norm(y.astype(jnp.float32)).astype(x.dtype)
        if config.gate:
            y = jax.nn.gelu(self.gate_proj(u), approximate=True) * y
        y = self.out_proj(y)
        return y[:, 0] if x.ndim == 2 else y, after._replace(position=before.position + u.shape[1])

    def _place_factors(self, places: Int[Array, "b c"]) -> Float[Array, "b 1 c 1"]:
        """tok of the module docstring at places in a mini-batch."""
        scale = 1 / jnp.arange(1, self.config.mini_batch + 1, dtype=jnp.float32) + self.place_scale[...]
        return jnp.maximum(scale, 0.0)[places][:, None, :, None]

    def _mini_batch(
        self, state: TTTState, tokens: tuple[Array, ...], places: Int[Array, "b c"], ends: Bool[Array, "b"]
    ) -> tuple[Float[Array, "b h c n"], TTTState]:
        """z of tokens of one mini-batch at these places, which for rows of `ends` is over after them."""
        q, k, v, lr = tokens
        tok, c = self._place_factors(places), q.shape[2]
        causal = jnp.asarray(np.tri(c, dtype=np.float32))[None, None]
        normed = self._inner_norm
        changes, sums, taken = self._unpacked(state.change), self._unpacked(state.sums), []
        weights = [w[...].astype(jnp.float32)[None] + y for w, y in zip(self.weights, changes, strict=True)]

        def read(u: Array, inputs: Array, d_out: Array, layer: int) -> Array:
            """A layer's outputs for u at the weights W_t of each token; notes what its sums become."""
            w, bias, w_sum, bias_sum = (y[layer + i] for y in (weights, sums) for i in (0, 1))
            step = _dot(_dot(u, inputs.swapaxes(2, 3)) * causal + causal, d_out) + _dot(u, w_sum) + bias_sum
            taken.extend([w_sum + _dot(inputs.swapaxes(2, 3), d_out), bias_sum + d_out.sum(2, keepdims=True)])
            return _dot(u, w) + bias - tok * step

        def gradient(out: Array) -> Array:
            target, pull_back = jax.vjp(normed, out)
            return pull_back(target - (v - k))[0]

        hidden = _dot(k, weights[0]) + weights[1]
        if self.config.inner == "linear":
            out = read(q, k, lr * gradient(hidden), 0)
        else:
            active, pull_back = jax.vjp(_gelu, hidden)
            d_out = gradient(_dot(active, weights[2]) + weights[3])
            d_hidden = pull_back(_dot(d_out, weights[2].swapaxes(2, 3)))[0]
            out = read(_gelu(read(q, k, lr * d_hidden, 0)), active, lr * d_out, 2)
        over = ends[:, None, None, None]
        last = self._place_factors(jnp.full((1, 1), self.config.mini_batch - 1))
        change = [jnp.where(over, y - last * s, y) for y, s in zip(changes, taken, strict=True)]
        sums = [jnp.where(over, 0.0, s) for s in taken]
        return q + normed(out), TTTState(_packed(change), _packed(sums), state.position)

    def _unpacked(self, flat: Float[Array, "b h p"]) -> Weights:
        """The arrays of `Weights` in one of the state."""
        ends = np.cumsum([i * o for i, o in self.config.shapes])
        parts = jnp.split(flat, ends[:-1], axis=2)
        return tuple(x.reshape(*x.shape[:2], *shape) for x, shape in zip(parts, self.config.shapes, strict=True))

    def _inner_norm(self, x: Float[Array, "b h c n"]) -> Float[Array, "b h c n"]:
        """LN of the module docstring."""
        x = x - x.mean(-1, keepdims=True)
        x = x * jax.lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + np.float32(self.config.norm_eps))
        return x * self.inner_scale[...][None, :, None] + self.inner_shift[...][None, :, None]

    def _by_mini_batches(
        self, state: TTTState, tokens: tuple[Array, ...], furthest: int
    ) -> tuple[Float[Array, "b h t n"], TTTState]:
        """z of all tokens, whose first is at place `state.position` modulo mini_batch, at most `furthest`.

        Rows are moved to the right by it, so that mini-batches are aligned; places without a token have lr = 0.
        """
        size, t = self.config.mini_batch, tokens[0].shape[2]
        if t == 0:
            return tokens[0], state
        n = -(-(t + furthest) // size)
        first = state.position % size
        source = jnp.arange(n * size, dtype=jnp.int32)[None] - first[:, None]
        there = (source >= 0) & (source < t)
        source = jnp.clip(source, 0, t - 1)[:, None, :, None]
        q, k, v, lr = (jnp.take_along_axis(y, source, axis=2) for y in tokens)
        lr = jnp.where(there[:, None, :, None], lr, 0.0)
        chunks = tuple(jnp.moveaxis(y.reshape(*y.shape[:2], n, size, y.shape[3]), 2, 0) for y in (q, k, v, lr))
        ends = (jnp.arange(1, n + 1, dtype=jnp.int32) * size)[:, None] <= (first + t)[None]
        places = jnp.arange(size, dtype=jnp.int32)[None]

        def body(state: TTTState, now: tuple) -> tuple[TTTState, Array]:
            z, state = self._mini_batch(state, now[0], places, now[1])
            return state, z

        after, z = jax.lax.scan(jax.checkpoint(body, prevent_cse=False), state, (chunks, ends))
        z = jnp.moveaxis(z, 0, 2).reshape(*q.shape)
        back = jnp.arange(t, dtype=jnp.int32)[None] + first[:, None]
        return jnp.take_along_axis(z, back[:, None, :, None], axis=2), after

    def _one_by_one(
        self, empty: TTTState, tokens: tuple[Array, ...], places: Int[Array, "b t"], starts: Bool[Array, "b t"]
    ) -> tuple[Float[Array, "b h t n"], TTTState]:
        """z of packed documents, each from the state `empty`."""

        def body(state: TTTState, now: tuple) -> tuple[TTTState, Array]:
            token, place, start = now
            fresh = start.reshape(-1, 1, 1)
            change, sums = (jnp.where(fresh, old, new) for old, new in zip(empty[:2], state[:2], strict=True))
            state = TTTState(change, sums, state.position)
            z, state = self._mini_batch(state, token, place[:, None], place == self.config.mini_batch - 1)
            return state, z[:, :, 0]

        in_turn = (tuple(jnp.moveaxis(y, 2, 0)[:, :, :, None] for y in tokens), places.T, starts.T)
        after, z = jax.lax.scan(jax.checkpoint(body, prevent_cse=False), empty, in_turn)
        return jnp.moveaxis(z, 0, 2), after


def _packed(weights: list[Array]) -> Float[Array, "b h p"]:
    return jnp.concatenate([x.reshape(*x.shape[:2], -1) for x in weights], axis=2)


def _gelu(x: Array) -> Array:
    return jax.nn.gelu(x, approximate=True)


def _dot(a: Array, b: Array) -> Array:
    return jnp.matmul(a, b, precision=jax.lax.Precision.HIGHEST)
