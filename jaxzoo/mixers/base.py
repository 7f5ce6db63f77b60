"""The contract that every sequence mixer obeys.

A mixer is a Flax NNX module that is used functionally: parameters live in the module, activations and recurrent
states never do. Three ways to run it give the same numbers:

- `y = mixer(x)`: all tokens at once, for training;
- `y, state = mixer.prefill(x, state)`: any number of tokens from any state, for prompts, chunks and streams;
- `y_t, state = mixer.step(x_t, state)`: one token.

The output has the dtype of the input; parameters are float32. A state is a NamedTuple of arrays, and **every leaf has
the batch as its leading axis**: rows are independent sequences that may stand at different positions. Recurrent sums
are float32; cached activations (keys, values, convolution inputs) have the dtype given to `init_state`.
"""

import abc
import dataclasses
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
from flax import nnx

from jaxzoo.array_typing import Array, Float
from jaxzoo.checked import Checked

State = Any
"""A NamedTuple of arrays, batch leading; each mixer defines its own."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class MixerConfig(Checked, abc.ABC):
    """What every mixer's config says. Zero means: taken from the model around it (see `resolve`)."""

    d_model: int = 0
    """Model width; 0: that of the model around the mixer."""
    init_std: float = 0.0
    """Standard deviation of the normal initialisation of the projections; 0: the model's, 0.02 outside a model."""
    out_init_std: float = 0.0
    """The same for the output projection; 0: the model's over sqrt(2 n_layers), or `init_std` outside a model."""

    causal: ClassVar[bool] = True
    """False: the mixer sees the future and cannot stream; a language model refuses to generate with it."""

    def __post_init__(self) -> None:
        """Subclasses check their own fields and call this."""
        self.require("d_model", self.d_model >= 0, "must be positive", "set it, or leave 0 inside a model")

    def require_divisible(self, field: str, by: str) -> None:
        """Raises `ValueError` unless the value of `field` is a multiple of the value of `by`."""
        divisor = getattr(self, by)
        self.require(by, divisor > 0, "must be positive")
        self.require(field, getattr(self, field) % divisor == 0, f"must be divisible by {by}={divisor}")

    def resolve(self, **defaults: float) -> Self:
        """Fills the fields that are 0 with the values of the model around the mixer; others stay."""
        names = {field.name for field in dataclasses.fields(self)}
        gaps = {k: v for k, v in defaults.items() if k in names and not getattr(self, k)}
        return dataclasses.replace(self, **gaps)

    def with_capacity(self, n_tokens: int) -> Self:
        """The same mixer with a state that holds `n_tokens`; `self` where the state's size is fixed.

        Parameters and outputs do not depend on the capacity, so the state of the one serves the other.
        """
        del n_tokens
        return self

    @property
    def std(self) -> float:
        """`init_std`, with the default filled in."""
        return self.init_std or 0.02

    @property
    def out_std(self) -> float:
        """`out_init_std`, with the default filled in."""
        return self.out_init_std or self.std

    @classmethod
    @abc.abstractmethod
    def tiny(cls) -> Self:
        """A config for tests: every mechanism on, widths at most 16, odd where nothing forbids it."""

    @abc.abstractmethod
    def flops_per_token(self, length: int) -> float:
        """Forward floating-point operations a token at sequence length `length`: 2 a multiply-add, matmuls,
        convolutions and recurrences only, averaged over the positions, as the parallel form computes them."""


class Mixer(nnx.Module):
    """Base of all mixers; see the module docstring. Subclasses are final: wrap one, never subclass it."""

    def __init__(self, config: Any, *, rngs: nnx.Rngs):
        raise NotImplementedError

    def __call__(self, x: Float[Array, "b t d"]) -> Float[Array, "b t d"]:
        """Mixes all tokens at once: equals `prefill` from `init_state` with the state dropped."""
        raise NotImplementedError

    def init_state(self, batch_size: int, dtype: jnp.dtype = jnp.float32) -> State:  # type: ignore[assignment]
        """The state before the first token. `dtype` is that of cached activations."""
        raise NotImplementedError

    def prefill(self, x: Float[Array, "b t d"], state: State) -> tuple[Float[Array, "b t d"], State]:
        """Mixes `t >= 0` more tokens from any state; returns outputs and the state after them."""
        raise NotImplementedError

    def step(self, x_t: Float[Array, "b d"], state: State) -> tuple[Float[Array, "b d"], State]:
        """Mixes one more token, at the cost that its paper promises."""
        raise NotImplementedError


def state_bytes(mixer: Mixer, batch_size: int = 1, dtype: Any = jnp.float32) -> int:
    """Bytes of the mixer's state, read off the arrays themselves (`jax.eval_shape`), never from a formula."""
    state = jax.eval_shape(lambda: mixer.init_state(batch_size, dtype))
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state))
