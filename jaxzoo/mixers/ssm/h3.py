"""H3 (Fu et al. 2023): two state space models, with products of their inputs and outputs.

With q = u W_q + b_q, also for k and v, and heads of `head_dim` channels (Algorithm 1, for one head):

    k' = SSM_shift(k) + skip_k * k
    s  = SSM_diag(k' v^T) + skip * (k' v^T)        one SSM per head, for all head_dim x head_dim products
    o  = q^T s                                     a sum over the channels of k
    y  = concat(o) W_out + b_out

The shift SSM (`layers/shift_ssm.py`) holds the last `d_state` keys per channel; its B starts as e_1 and is learned, or
stays e_1 (`learn_shift_b=False`). The diagonal SSM is S4D (`layers/s4d.py`), bilinear and S4D-Lin as in
the authors' code. With head_dim 1 the layer is q * SSM_diag(SSM_shift(k) * v).

| ours                                          | authors' code, and Zoology's                                  |
| --------------------------------------------- | ------------------------------------------------------------- |
| `q_proj`, `k_proj`, `v_proj`, `out_proj`      | the same, but `output_linear`; weights transposed             |
| `shift_b`, `shift_c` (d_state, d), `skip_k`   | `ssm_k_kernel.kernel.B` and `.C[0]`, transposed; `ssm_k_D`    |
| `s4d.log_dt`, `s4d.log_neg_real`, `s4d.imag`  | `kernel.kernel.log_dt`, `.inv_A_real`, `.A_imag`              |
| `s4d.b`, `s4d.c`, `skip`                      | `kernel.kernel.B`, `.C[0]`, neither conjugated; `D`           |

Channels are head-major, (h d), in both. For head_dim > 1 the authors' plain path joins o in the order (d h), by
mistake: for parameters trained with it, reorder the rows of `output_linear.weight.T` to (h d).

Zoology trains head_dim 2 with d_state = N, the length; Based, App. E.2, has d_state = d / 4. Initialisation:
projections normal, biases 0; `shift_c` uniform in +-1/sqrt(d_state), PyTorch's default; skips normal with variance 1.
Deviation: the filter of the diagonal SSM covers the whole sequence; the authors' code truncates it at l_max.

Good at: Recall of a few pairs, by a shift and a product; long memory without attention.
Paper: Fu et al. 2023, https://arxiv.org/abs/2212.14052
"""

import dataclasses
from typing import NamedTuple, Self

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from jaxzoo.config.checked import PositiveFloat, PositiveInt
from jaxzoo.layers.causal_conv import conv_flops, uniform_parameter
from jaxzoo.layers.linear import linear, split_heads
from jaxzoo.layers.s4d import S4D, Discretization, Spectrum, s4d_conv, s4d_prefill, s4d_step
from jaxzoo.layers.shift_ssm import shift_conv, shift_prefill, shift_step
from jaxzoo.layers.variables import along_last, parameter
from jaxzoo.mixers.base import Capabilities, Context, Mixer, MixerConfig
from jaxzoo.utils.array_typing import Array, Float


@dataclasses.dataclass(frozen=True, kw_only=True)
class H3Config(MixerConfig):
    """Config of `H3`; the defaults are those of the authors' code."""

    promises = Capabilities(segments=True, sequence_parallel=True, future_rounding=1e-5)

    d_state: PositiveInt = 64
    """Inputs per channel in the shift SSM, and real state numbers per product in the diagonal SSM."""
    head_dim: PositiveInt = 1
    """Channels per head; all pairs of keys and values in a head are multiplied."""
    discretization: Discretization = "bilinear"
    """Discretization of the diagonal SSM."""
    spectrum: Spectrum = "lin"
    """Initial frequencies of the diagonal SSM: S4D-Lin or S4D-Inv."""
    dt_min: PositiveFloat = 0.001
    """Smallest initial step of the diagonal SSM."""
    dt_max: PositiveFloat = 0.1
    """Largest initial step."""
    learn_shift_b: bool = True
    """Learns the input map of the shift SSM; otherwise it stays e_1, and `shift_c` is the filter."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("d_state", self.d_state % 2 == 0, "must be even", "numbers of state come in conjugate pairs")
        self.require("dt_max", self.dt_max >= self.dt_min, f"must be at least dt_min={self.dt_min}")
        self.require_divisible("d_model", by="head_dim")

    @property
    def heads(self) -> int:
        """Heads, each with a diagonal SSM."""
        return self.width // self.head_dim

    @classmethod
    def tiny(cls) -> Self:
        return cls(d_model=6, d_state=4, head_dim=2, dt_min=0.1, dt_max=1.0)

    def flops_per_token(self, length: int) -> float:
        """FLOPs of projections, both convolutions, and products with q; filters, computed once per batch, left out."""
        d, products = self.width, self.width * self.head_dim
        convolutions = d * conv_flops(self.d_state, length) + products * conv_flops(length, length)
        return 8.0 * d**2 + convolutions + 2.0 * products

    def papers_state_size(self, length: int) -> int:
        """Eq. 13, `d d_state`: counts one of the two SSMs, at head_dim 1."""
        return self.width * self.d_state


class H3State(NamedTuple):
    """The states of both SSMs."""

    register: Float[Array, "b w d"]
    """State of the shift SSM: if B is e_1, the last `d_state` keys, newest first, float32."""
    x: Float[Array, "b k v h n 2"]
    """State of the diagonal SSM per product, real and imaginary parts, float32; `d_state / 2` pairs."""


class H3(Mixer):
    """Shift SSM, products, diagonal SSM; `step` costs O(d_state head_dim) per channel.

    `q_proj`, `k_proj`, `v_proj`, `out_proj` (d, d) with biases, `shift_c` (d_state, d), `shift_b` likewise where it is
    learned, `skip_k` (d,), `s4d` and `skip` (heads,).
    """

    config: H3Config

    def __init__(self, config: H3Config, *, rngs: nnx.Rngs) -> None:
        d, n, std, axes = config.width, config.d_state, config.std, ("embed", "heads")
        self.q_proj: nnx.Linear = linear(d, d, axes=axes, std=std, bias=True, rngs=rngs)
        self.k_proj: nnx.Linear = linear(d, d, axes=axes, std=std, bias=True, rngs=rngs)
        self.v_proj: nnx.Linear = linear(d, d, axes=axes, std=std, bias=True, rngs=rngs)
        if config.learn_shift_b:
            self.shift_b: nnx.Param[jax.Array] = parameter(_first_basis_vector(n, d), (None, "heads"), decay=False)
        self.shift_c: nnx.Param[jax.Array] = uniform_parameter((n, d), n, (None, "heads"), rngs=rngs)
        self.skip_k: nnx.Param[jax.Array] = parameter(jax.random.normal(rngs.params(), (d,)), ("heads",), decay=False)
        self.s4d: S4D = S4D(
            config.heads,
            d_state=n,
            spectrum=config.spectrum,
            dt_min=config.dt_min,
            dt_max=config.dt_max,
            axes=("heads",),
            rngs=rngs,
        )
        self.skip: nnx.Param[jax.Array] = parameter(
            jax.random.normal(rngs.params(), (config.heads,)), ("heads",), decay=False
        )
        self.out_proj: nnx.Linear = linear(d, d, axes=("heads", "embed"), std=config.out_std, bias=True, rngs=rngs)
        self.config = config

    def init_state(self, batch_size: int, *, capacity: int | None = None, dtype: DTypeLike = jnp.float32) -> H3State:
        """Initial state: zeros, float32 for any `dtype`."""
        config = self.config
        products = (config.head_dim, config.head_dim, config.heads, config.d_state // 2, 2)
        register = jnp.zeros((batch_size, config.d_state, config.width), jnp.float32)
        return H3State(register, jnp.zeros((batch_size, *products), jnp.float32))

    def mix(self, x: Float[Array, "*b d"], state: H3State | None, context: Context) -> tuple[Array, H3State | None]:
        config, ids, k = self.config, context.segment_ids, self.k_proj(x)
        c = self.shift_c[...]
        b = self.shift_b[...] if config.learn_shift_b else _first_basis_vector(*c.shape)
        if state is None:
            shifted = shift_conv(k, b, c, segment_ids=ids)
        else:
            shifted, register = (shift_step if x.ndim == 2 else shift_prefill)(k, b, c, state.register)
            state = state._replace(register=register)
        v = self._by_head(self.v_proj(x))
        k = self._by_head(shifted + k * along_last(self.skip_k[...], k))
        products = k[:, :, None] * v[:, None]  # k' v^T per head, (b, k, v, ..., h)
        # Products of a head become rows of the batch, since they share the head's SSM.
        rows = products.reshape(x.shape[0] * config.head_dim**2, *products.shape[3:])
        system = self.s4d(config.discretization)
        if state is None:
            s = s4d_conv(rows, system, segment_ids=None if ids is None else jnp.repeat(ids, config.head_dim**2, axis=0))
        else:
            before = state.x.reshape(-1, *state.x.shape[3:])
            s, after = (s4d_step if x.ndim == 2 else s4d_prefill)(rows, system, before)
            state = state._replace(x=after.reshape(state.x.shape))
        s = s.reshape(products.shape) + products * along_last(self.skip[...], products)
        o = (self._by_head(self.q_proj(x))[:, :, None] * s).sum(1)
        return self.out_proj(jnp.moveaxis(o, 1, -1).reshape(x.shape)), state

    def _by_head(self, y: Float[Array, "b ... d"]) -> Float[Array, "b k ... h"]:
        """Moves the channels of a head after the batch axis, and the heads last."""
        return jnp.moveaxis(split_heads(y, self.config.heads), -1, 1)


def _first_basis_vector(w: int, d: int) -> jax.Array:
    """Initial B: e_1 per channel."""
    return jnp.zeros((w, d), jnp.float32).at[0].set(1.0)
