"""The mLSTM of xLSTM (Beck et al. 2024, arXiv 2405.04517): linear attention with an exponential input gate.

For every head, with gates i, f of logits i~, f~:

    C_t = sigmoid(f~_t) C_{t-1} + exp(i~_t) k_t v_t^T        n_t = sigmoid(f~_t) n_{t-1} + exp(i~_t) k_t
    h_t = C_t^T q'_t / (max(|n_t . q'_t|, 1) + eps exp(m_t))        q' = q / sqrt(k)

Only m, C exp(-m) and n exp(-m) are stored, with the running maximum m_t = max(log sigmoid(f~_t) + m_{t-1}, i~_t),
m_0 = 0: linear attention whose decays and input gates are at most 1. `input_gate="sigmoid"` (mlstm_kernels' `siging`)
has sigmoid(i~) for exp(i~), and m = 0. The two layers, with a LayerNorm over each head, without bias:

    form "v1" (xLSTM, the paper's block)                     form "7b" (xLSTM 7B, arXiv 2503.13427)
    u, z = x W_up        c = silu(conv(u))                   q, k, v = x W_q, x W_k, x W_v
    q, k, v = c B_q, c B_k, u B_v  (block-diagonal)          i~, f~ = 15 tanh((x W_i,f + b) / 15)
    i~, f~ = concat(q, k, v) W_i,f + b                       y = (sigmoid(x W_z) . scale . norm(h)) W_O
    y = ((scale . norm(h) + skip . c) . silu(z)) W_O

| ours                         | xlstm's mLSTMLayer (v1)                     | xlstm's xLSTM-large (7b)            |
| ---------------------------- | ------------------------------------------- | ----------------------------------- |
| `in_proj`, `conv`, `skip`    | `proj_up`, `conv1d`, `learnable_skip`       |                                     |
| `q_proj`, `k_proj`, `v_proj` | the same, [block, output, input]            | `q`, `k`, `v`                       |
| `gates`                      | `mlstm_cell.igate`, then `mlstm_cell.fgate` | `igate_preact`, then `fgate_preact` |
| `gate_proj`                  | the second half of `proj_up`                | `ogate_preact`                      |
| `norm_scale`, `out_proj`     | 1 + `mlstm_cell.outnorm.weight`, `proj_down` | `multihead_norm.weight`, `out_proj` |

Where public code differs: the state holds unscaled keys (mlstm_kernels; xlstm's step divides them by sqrt(k), not q);
the parallel forms there start from m = -infinity, which changes eps exp(m) alone.

Initialisation: W_i,f 0 in v1; b_f from 3 to 6 over the heads; b_i normal with 0.1 (v1) or -10 (7b). Deviations: other
projections start as everywhere in this library; v1's inner width is not rounded up to a multiple of 64.

State: C, n and m, k v + k + 1 numbers per head; in v1 also the last n_taps - 1 inputs of the convolution.

Good at: Recall with sharp writes: an exponential gate lets one token outweigh everything before it.
Paper: Beck et al. 2024, https://arxiv.org/abs/2405.04517
"""

import dataclasses
from typing import Literal, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike

from jaxzoo.config.checked import NonNegativeFloat, PositiveFloat, PositiveInt
from jaxzoo.layers.causal_conv import conv_flops, empty_history
from jaxzoo.layers.head_norm import head_norm
from jaxzoo.layers.linear import branches, linear, split_heads
from jaxzoo.layers.probe import show_scores
from jaxzoo.layers.short_conv import ShortConv
from jaxzoo.layers.variables import along_last, parameter
from jaxzoo.mixers.base import Capabilities, Context, Mixer, MixerConfig
from jaxzoo.ops.linear_attention import CHUNK, LinearState, linear_attention_from
from jaxzoo.ops.segments import document_starts
from jaxzoo.utils.array_typing import Array, Float, Int


@dataclasses.dataclass(frozen=True, kw_only=True)
class MLSTMConfig(MixerConfig):
    """Config of `MLSTM`."""

    promises = Capabilities(segments=True)

    form: Literal["v1", "7b"] = "v1"
    """Layer of xLSTM, or of xLSTM 7B."""
    n_heads: PositiveInt = 1
    """Heads; the public default of v1 is 4, xLSTM 7B has 8."""
    key_width: PositiveInt | None = None
    """Width of the queries, and of the keys, of all heads; None: d_model / 2 in 7b, value_width in v1 (no other)."""
    value_width: PositiveInt | None = None
    """Width of the values of all heads; None: d_model in 7b, 2 d_model in v1."""
    block_width: PositiveInt = 4
    """Channels of a block of v1's projections."""
    n_taps: PositiveInt = 4
    """Taps of v1's convolution, the current token's included."""
    input_gate: Literal["exp", "sigmoid"] = "exp"
    """Activation of the input gate."""
    gate_cap: PositiveFloat | None = 15.0
    """Soft cap of the logits of both gates in 7b; None: none."""
    eps: NonNegativeFloat = 1e-6
    """Added to the denominator of the stored sums."""
    norm_eps: NonNegativeFloat | None = None
    """Added to the variance in the norm of each head; None: 1e-5 in v1, 1e-6 in 7b."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.d_model is None:
            return
        for field, width in (("key_width", self.keys), ("value_width", self.values)):
            self.require(field, width % self.n_heads == 0, f"gives {width}, which must be a multiple of {self.n_heads}")
        if self.form == "v1":
            self.require("key_width", self.keys == self.values, f"must be value_width={self.values} in form v1")
            rule = f"must divide value_width={self.values} in form v1"
            self.require("block_width", self.values % self.block_width == 0, rule)

    @property
    def values(self) -> int:
        """`value_width`, with the default filled in."""
        return self.value_width or (2 * self.width if self.form == "v1" else self.width)

    @property
    def keys(self) -> int:
        """`key_width`, with the default filled in."""
        return self.key_width or (self.values if self.form == "v1" else self.width // 2)

    @classmethod
    def tiny(cls) -> Self:
        return cls(d_model=7, n_heads=2, value_width=12, block_width=3, n_taps=3)

    def flops_per_token(self, length: int) -> float:
        """Projections, gates and convolution, scores of a chunk with their values, and the state."""
        d, k, v = self.width, self.keys, self.values
        projections = 2.0 * d * (2 * k + 2 * v + 2 * self.n_heads) + 2.0 * d * v
        if self.form == "v1":
            projections = 6.0 * d * v + 6.0 * v * (self.block_width + 2 * self.n_heads)
            projections += v * conv_flops(self.n_taps, length)
        return projections + 2.0 * min(CHUNK, length) * (k + v) + 4.0 * k * v / self.n_heads


class MLSTMState(NamedTuple):
    """The sums over the past divided by exp(m), float32, and the last inputs of the convolution."""

    history: Float[Array, "b w-1 d"]
    """The last `n_taps - 1` inputs of the convolution, oldest first; no channels in form 7b."""
    c: Float[Array, "b h k v"]
    """C exp(-m)."""
    n: Float[Array, "b h k"]
    """n exp(-m)."""
    m: Float[Array, "b h"]
    """The running maximum of the logarithm of the gates."""


class MLSTM(Mixer):
    """The mLSTM layers; the state has a fixed size, and `step` costs O(k v) per head.

    v1: `in_proj` (d, 2 value_width), `conv`, `q_proj`, `k_proj`, `v_proj` (blocks, input, output), `gates` (3
    value_width, 2 heads), `skip` (value_width,). 7b: `q_proj`, `k_proj` (d, key_width), `v_proj`, `gate_proj` (d,
    value_width), `gates` (d, 2 heads). Both: `norm_scale` (value_width,), `out_proj` (value_width, d).
    """

    config: MLSTMConfig

    def __init__(self, config: MLSTMConfig, *, rngs: nnx.Rngs) -> None:
        d, keys, values, std, h = config.width, config.keys, config.values, config.std, config.n_heads
        axes = ("embed", "heads")
        if config.form == "v1":
            self.in_proj: nnx.Linear = linear(d, 2 * values, axes=axes, std=std, rngs=rngs)
            self.conv: ShortConv = ShortConv(values, config.n_taps, n_plain=0, axis="heads", rngs=rngs)
            shape = (values // config.block_width, config.block_width, config.block_width)
            for name in ("q_proj", "k_proj", "v_proj"):
                blocks = std * jax.random.normal(rngs.params(), shape)
                setattr(self, name, parameter(blocks, ("heads", None, None)))
            self.skip: nnx.Param[jax.Array] = parameter(jnp.ones((values,)), ("heads",), decay=False)
        else:
            for name, width in (("q_proj", keys), ("k_proj", keys), ("v_proj", values), ("gate_proj", values)):
                setattr(self, name, linear(d, width, axes=axes, std=std, rngs=rngs))
        gates_in, gates_std = (3 * values, 0.0) if config.form == "v1" else (d, std)
        self.gates: nnx.Linear = linear(gates_in, 2 * h, axes=("embed", None), std=gates_std, bias=True, rngs=rngs)
        input_bias = 0.1 * jax.random.normal(rngs.params(), (h,)) if config.form == "v1" else jnp.full((h,), -10.0)
        assert self.gates.bias is not None
        self.gates.bias[...] = jnp.concatenate([input_bias, jnp.linspace(3.0, 6.0, h)])
        self.norm_scale: nnx.Param[jax.Array] = parameter(jnp.ones((values,)), ("heads",), decay=False)
        self.out_proj: nnx.Linear = linear(values, d, axes=("heads", "embed"), std=config.out_std, rngs=rngs)
        self.config = config

    def init_state(self, batch_size: int, *, capacity: int | None = None, dtype: DTypeLike = jnp.float32) -> MLSTMState:
        """Zeros. The sums are float32 whatever `dtype` says."""
        config, h = self.config, self.config.n_heads
        c = jnp.zeros((batch_size, h, config.keys // h, config.values // h), jnp.float32)
        history = empty_history(batch_size, config.n_taps, config.values if config.form == "v1" else 0, dtype)
        return MLSTMState(history, c, jnp.zeros(c.shape[:3], jnp.float32), jnp.zeros(c.shape[:2], jnp.float32))

    def mix(self, x: Float[Array, "*b d"], state: MLSTMState | None, context: Context) -> tuple[Array, MLSTMState]:
        config, ids = self.config, context.segment_ids
        history = self.init_state(x.shape[0], dtype=x.dtype).history if state is None else state.history
        if config.form == "v1":
            u, z = branches(x, self.in_proj, 2)
            c, history = self.conv(u, None if state is None else history, segment_ids=ids)
            q, k, v = (_by_blocks(y, getattr(self, f"{name}_proj")[...]) for y, name in ((c, "q"), (c, "k"), (u, "v")))
            logits = self.gates(jnp.concatenate([q, k, v], axis=-1)).astype(jnp.float32)
        else:
            q, k, v, z = (getattr(self, f"{name}_proj")(x) for name in ("q", "k", "v", "gate"))
            c, logits = None, self.gates(x).astype(jnp.float32)
            if config.gate_cap is not None:
                logits = config.gate_cap * jnp.tanh(logits / config.gate_cap)
        q, k, v = (split_heads(y, config.n_heads) for y in (q, k, v))
        h, after = self._recurrence(state, q, k, v, logits, ids)
        eps = {"v1": 1e-5, "7b": 1e-6}[config.form] if config.norm_eps is None else config.norm_eps
        y = head_norm(h, "layer", eps=eps).reshape(z.shape) * along_last(self.norm_scale[...], z)
        y = y * jax.nn.sigmoid(z) if c is None else (y + along_last(self.skip[...], z) * c) * jax.nn.silu(z)
        return self.out_proj(y), MLSTMState(history, *after)

    def _recurrence(
        self,
        state: MLSTMState | None,
        q: Float[Array, "*b h k"],
        k: Float[Array, "*b h k"],
        v: Float[Array, "*b h v"],
        logits: Float[Array, "*b 2h"],
        ids: Int[Array, "b t"] | None,
    ) -> tuple[Array, tuple[Array, Array, Array]]:
        """h of the module docstring, and C, n and m after the last token."""
        i, log_f = jnp.split(logits, 2, axis=-1)
        log_f, one_token = jax.nn.log_sigmoid(log_f), q.ndim == 3
        start = jnp.zeros((log_f.shape[0], log_f.shape[-1]), log_f.dtype) if state is None else state.m
        if self.config.input_gate == "sigmoid":
            i, m, before_m, last = jax.nn.log_sigmoid(i), jnp.zeros_like(i), jnp.zeros_like(i), start
        elif one_token:
            before_m, m = start, jnp.maximum(log_f + start, i)
            last = m
        else:
            m = _running_maximum(log_f, i, start, document_starts(ids))
            all_m = jnp.concatenate([start[:, None], m], axis=1)
            before_m, last = all_m[:, :-1], all_m[:, -1]
        # At most 0 but for rounding, and for the first token of a document, before which nothing is kept.
        log_decay = jnp.minimum(log_f + before_m - m, 0.0)
        k = k * jnp.exp(i - m)[..., None].astype(k.dtype)
        q = q * q.shape[-1] ** -0.5
        before = None
        if state is not None:
            before = LinearState(jnp.concatenate([state.c, state.n[..., None]], axis=-1), None)

        def read(v: Float[Array, "*b h v"]) -> tuple[Array, LinearState]:
            with_one = jnp.concatenate([v, jnp.ones_like(v[..., :1])], axis=-1)
            y, after = linear_attention_from(before, q, k, with_one, log_decay=log_decay, segment_ids=ids)
            weight = jnp.abs(y[..., -1:].astype(jnp.float32))
            weight = jnp.maximum(weight, jnp.exp(-m)[..., None]) + np.float32(self.config.eps)
            return y[..., :-1] / weight.astype(y.dtype), after

        if state is None:
            show_scores(lambda unit: read(unit)[0], v)
        h, after = read(v)
        return h, (after.s[..., :-1], after.s[..., -1], last)


def _by_blocks(x: Float[Array, "... d"], blocks: Float[Array, "n i o"]) -> Float[Array, "... d"]:
    """`x` times a block-diagonal matrix."""
    y = jnp.einsum("...ni,nio->...no", split_heads(x, blocks.shape[0]), blocks.astype(x.dtype))
    return y.reshape(x.shape)


def _running_maximum(
    log_f: Float[Array, "b t h"], i: Float[Array, "b t h"], start: Float[Array, "b h"], starts: Array | None
) -> Float[Array, "b t h"]:
    """m_t = max(log_f_t + m_{t-1}, i_t) from m_0 = `start`; a document after the first starts from 0."""
    if i.shape[1] == 0:
        return i
    if starts is not None:
        i = jnp.where(starts[..., None], jnp.maximum(log_f, i), i)
        log_f = jnp.where(starts[..., None], -np.inf, log_f)

    def compose(first: tuple[Array, Array], then: tuple[Array, Array]) -> tuple[Array, Array]:
        return first[0] + then[0], jnp.maximum(first[1] + then[0], then[1])

    kept, own = jax.lax.associative_scan(compose, (log_f, i), axis=1)
    return jnp.maximum(kept + start[:, None], own)
