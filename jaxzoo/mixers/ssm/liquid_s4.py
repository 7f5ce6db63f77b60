"""Liquid-S4 (Hasani et al. 2022): a state space model whose state matrix depends on the input; here with a diagonal A.

For each channel u of the input, with S4D's discrete system a, b, c (`layers/s4d.py`: vectors of complex numbers):

    x_i = (a + b u_i) x_{i-1} + b u_i        y_i = 2 Re(c . x_i) + D u_i        out = GLU(gelu(y) W + bias)

Unrolled, y is a sum over products of p inputs with weights c a^l b^p, where l counts the later tokens that are not in
the product: the paper's liquid kernel, convolved with "input correlations". Its two modes use only products of
neighbouring inputs, at most `order` of them, r^p_i = u_i u_{i-1} .. u_{i-p+1}:

| `liquid`   | y_i - D u_i                                                          | source                          |
| ---------- | -------------------------------------------------------------------- | ------------------------------- |
| recurrence | the equation above: all products of all orders                       | the paper's discrete recurrence |
| kb         | sum over p, and l >= 0, of 2 Re(c . a^l b^p) r^p_{i-l}               | its KB mode                     |
| pb         | as kb for p = 1; for larger p, l = 0 only: 2 Re(c . b^p) r^p_i       | its PB mode, A = 1 for p > 1    |

`order=1` is plain S4D in both. The recurrence diverges if |a + b u| > 1 for many inputs; kb and pb cannot.

Deviations: A is diagonal, and b u acts elementwise on the state. The public code has S4's A, diagonal plus low rank,
and uses b^p for b (1^T b)^(p-1), as if b u were added to every column of A. Here the mixer is causal; the public code
reverses the products in time, and by default (`allcombs`) uses products of the last tokens of the sequence, so that
outputs depend on later inputs. Its smaller learning rate for A, b and dt is left out. Initialisation: projection
normal, its bias 0; D normal with variance 1; S4D as in `layers/s4d.py`.

Good at: Smooth signals; products of neighbouring inputs in a state space model.
Paper: Hasani et al. 2022, https://arxiv.org/abs/2209.12951
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Literal, NamedTuple, Self

import jax
import jax.numpy as jnp
from flax import nnx
from jax.tree_util import Partial
from jax.typing import DTypeLike

from jaxzoo.config.checked import PositiveFloat, PositiveInt
from jaxzoo.layers.causal_conv import conv_flops, empty_history, push_history
from jaxzoo.layers.linear import linear
from jaxzoo.layers.s4d import (
    S4D,
    Discrete,
    Discretization,
    Spectrum,
    as_complex,
    as_pair,
    s4d_conv,
    s4d_prefill,
    s4d_step,
)
from jaxzoo.layers.variables import along_last, parameter
from jaxzoo.mixers.base import NO_CONTEXT, Capabilities, Context, Mixer, MixerConfig
from jaxzoo.ops.diagonal_scan import diagonal_scan, diagonal_step
from jaxzoo.parallel.sequence_parallel import apply_with_halo
from jaxzoo.utils.array_typing import Array, Float, Int


@dataclasses.dataclass(frozen=True, kw_only=True)
class LiquidS4Config(MixerConfig):
    """Config of `LiquidS4`."""

    d_state: PositiveInt = 64
    """Real state numbers per channel; half as many complex ones."""
    liquid: Literal["recurrence", "kb", "pb"] = "recurrence"
    """Recurrence of the paper, or one of its two kernels."""
    order: PositiveInt = 2
    """Largest number of inputs in a product, for kb and pb."""
    discretization: Discretization = "bilinear"
    """Discretization of the system."""
    spectrum: Spectrum = "lin"
    """Initial frequencies: S4D-Lin or S4D-Inv."""
    dt_min: PositiveFloat = 0.001
    """Smallest initial step."""
    dt_max: PositiveFloat = 0.1
    """Largest initial step."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("d_state", self.d_state % 2 == 0, "must be even", "numbers of state come in conjugate pairs")
        self.require("dt_max", self.dt_max >= self.dt_min, f"must be at least dt_min={self.dt_min}")

    @property
    def n_products(self) -> int:
        """Number of orders with their own products."""
        return 1 if self.liquid == "recurrence" else self.order

    @property
    def capabilities(self) -> Capabilities:
        rounding = 0.0 if self.liquid == "recurrence" else 1e-5
        return Capabilities(segments=True, sequence_parallel=True, future_rounding=rounding)

    @classmethod
    def tiny(cls) -> Self:
        return cls(d_model=5, d_state=6, dt_min=0.1, dt_max=1.0)

    def flops_per_token(self, length: int) -> float:
        """FLOPs of the output projection, and 16 per complex state number: b u (2), a + b u (2), a x + b u (8), Re(c x)
        (4); or convolutions, one per order for kb, one for pb."""
        d, n = self.width, self.d_state // 2
        if self.liquid == "recurrence":
            return 4.0 * d**2 + 16.0 * d * n
        return 4.0 * d**2 + d * conv_flops(length, length) * (self.order if self.liquid == "kb" else 1)


class LiquidS4State(NamedTuple):
    """State per channel, and the inputs that later products need."""

    x: Float[Array, "b d n 2"]
    """Real and imaginary parts, float32; `d_state / 2` pairs."""
    history: Float[Array, "b w-1 d"]
    """The last `order - 1` inputs, oldest first, in the dtype given to `init_state`; empty for the recurrence."""


class LiquidS4(Mixer):
    """Linear liquid state space model and a gated projection; `step` costs O(d_state) per channel, and the projection.

    `s4d`; `skip` (d,), the paper's D; `out_proj` (d, 2 d) with bias: values, then their gates.
    """

    config: LiquidS4Config

    def __init__(self, config: LiquidS4Config, *, rngs: nnx.Rngs) -> None:
        d = config.width
        self.s4d: S4D = S4D(
            d, d_state=config.d_state, spectrum=config.spectrum, dt_min=config.dt_min, dt_max=config.dt_max, rngs=rngs
        )
        self.skip: nnx.Param[jax.Array] = parameter(jax.random.normal(rngs.params(), (d,)), ("channels",), decay=False)
        self.out_proj: nnx.Linear = linear(
            d, 2 * d, axes=("channels", "embed"), std=config.out_std, bias=True, rngs=rngs
        )
        self.config = config

    def __call__(self, x: Float[Array, "b t d"], context: Context = NO_CONTEXT) -> Float[Array, "b t d"]:
        system, ids = self.s4d(self.config.discretization), context.segment_ids
        state = self.init_state(x.shape[0], dtype=x.dtype)
        if self.config.liquid == "recurrence":
            y, _ = diagonal_scan(x, *_recurrence(system), as_complex(state.x), segment_ids=ids)
            return self._merge(x, y)
        first, *others = _products(x, state.history, ids)
        y = s4d_conv(first, system, segment_ids=ids)
        for p, product in enumerate(others, 2):
            if self.config.liquid == "kb":
                y = y + s4d_conv(product, _of_order(system, p), segment_ids=ids)
            else:
                y = y + product * _tap(system, p, product)
        return self._merge(x, y)

    def init_state(
        self, batch_size: int, *, capacity: int | None = None, dtype: DTypeLike = jnp.float32
    ) -> LiquidS4State:
        """Initial state: zeros; sums are float32 for any `dtype`."""
        config = self.config
        x = jnp.zeros((batch_size, config.width, config.d_state // 2, 2), jnp.float32)
        return LiquidS4State(x, empty_history(batch_size, config.n_products, config.width, dtype))

    def prefill(
        self, x: Float[Array, "b t d"], state: LiquidS4State, context: Context = NO_CONTEXT
    ) -> tuple[Float[Array, "b t d"], LiquidS4State]:
        system, history = self.s4d(self.config.discretization), push_history(state.history, x)
        if self.config.liquid == "recurrence":
            y, after = diagonal_scan(x, *_recurrence(system), as_complex(state.x))
            return self._merge(x, y), LiquidS4State(as_pair(after), history)
        first, *others = _products(x, state.history)
        y, after = s4d_prefill(first, system, state.x)
        for p, product in enumerate(others, 2):
            if self.config.liquid == "kb":
                term, added = s4d_prefill(product, _of_order(system, p), jnp.zeros_like(state.x))
                y, after = y + term, after + added
            else:
                y = y + product * _tap(system, p, product)
        return self._merge(x, y), LiquidS4State(after, history)

    def step(
        self, x_t: Float[Array, "b d"], state: LiquidS4State, context: Context = NO_CONTEXT
    ) -> tuple[Float[Array, "b d"], LiquidS4State]:
        system = self.s4d(self.config.discretization)
        if self.config.liquid == "recurrence":
            y, after = diagonal_step(x_t, *_recurrence(system), as_complex(state.x))
            return self._merge(x_t, y), LiquidS4State(as_pair(after), state.history)
        first, *others = (product[:, 0] for product in _products(x_t[:, None], state.history))
        if self.config.liquid == "kb":
            # All orders share a and c, so their inputs b^p r^p are summed.
            written = sum(
                (_of_order(system, p).b[None] * r[..., None].astype(system.b.dtype) for p, r in enumerate(others, 2)),
                system.b[None] * first[..., None].astype(system.b.dtype),
            )
            after = system.a[None] * as_complex(state.x) + written
            y, after = 2 * (system.c[None] * after).sum(-1).real.astype(x_t.dtype), as_pair(after)
        else:
            y, after = s4d_step(first, system, state.x)
            y = sum((r * _tap(system, p, r) for p, r in enumerate(others, 2)), y)
        return self._merge(x_t, y), LiquidS4State(after, push_history(state.history, x_t[:, None]))

    def _merge(self, x: Float[Array, "... d"], y: Float[Array, "... d"]) -> Float[Array, "... d"]:
        """Applies the skip, the nonlinearity and the gated projection."""
        y = y + x * along_last(self.skip[...], x)
        values, gates = jnp.split(self.out_proj(jax.nn.gelu(y, approximate=False)), 2, axis=-1)
        return values * jax.nn.sigmoid(gates)


def _recurrence(system: Discrete) -> tuple[Callable, Callable]:
    """Arguments `coefficients` and `readout` of `diagonal_scan`, for inputs `(..., d)`."""
    return Partial(_coefficients, system), Partial(_readout, system)


def _coefficients(system: Discrete, u: jax.Array) -> tuple[jax.Array, jax.Array]:
    written = _like(system.b, u) * u[..., None].astype(system.b.dtype)
    return _like(system.a, u) + written, written


def _readout(system: Discrete, x: jax.Array, u: jax.Array) -> jax.Array:
    return (2 * (_like(system.c, u) * x).sum(-1).real).astype(u.dtype)


def _like(y: jax.Array, u: jax.Array) -> jax.Array:
    """System parameters (d, n), reshaped to broadcast against inputs (..., d)."""
    return y.reshape((1,) * (u.ndim - 1) + y.shape)


def _products(
    u: Float[Array, "b t d"], history: Float[Array, "b w-1 d"], segment_ids: Int[Array, "b t"] | None = None
) -> list[jax.Array]:
    """`r^1 .. r^order`, products of neighbouring inputs of one document; `order - 1` inputs precede the first."""
    before = history.shape[1]
    return apply_with_halo(
        Partial(functools.partial(_multiplied, before)), before, u, old=history, segment_ids=segment_ids
    )


def _multiplied(before: int, inputs: jax.Array, segment_ids: jax.Array | None) -> list[jax.Array]:
    """`_products` of all but the first `before` inputs."""
    t = inputs.shape[1] - before
    ago = lambda x, a: x[:, before - a : before - a + t]  # noqa: E731
    products = [ago(inputs, 0)]
    for a in range(1, before + 1):
        earlier = ago(inputs, a)
        if segment_ids is not None:
            same = ago(segment_ids, a) == ago(segment_ids, 0)
            earlier = jnp.where(same[..., None], earlier, jnp.zeros_like(earlier))
        products.append(products[-1] * earlier)
    return products


def _of_order(system: Discrete, p: int) -> Discrete:
    """System for products of `p` inputs."""
    return system._replace(b=system.b**p)


def _tap(system: Discrete, p: int, like: jax.Array) -> jax.Array:
    """`2 Re(c . b^p)`, reshaped to broadcast against `like`, whose channels are last."""
    tap = 2 * (system.c * system.b**p).sum(-1).real
    return along_last(tap, like)
