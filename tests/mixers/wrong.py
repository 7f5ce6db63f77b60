"""Mixers that break the contract, one by each fault."""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxzoo.layers.linear import linear
from jaxzoo.mixers import Capabilities, Mixer, MixerConfig
from jaxzoo.mixers.base import NO_CONTEXT

PROMISES = {
    "leak of tokens": Capabilities(streams=False, needs_tokens=True),
    "leak of a choice": Capabilities(streams=False),
    "documents of both sides": Capabilities(causal=False, streams=False, segments=True),
    "capacity": Capabilities(growing_state=True),
    "values": Capabilities(makes_values=True),
}
FAULTS = {
    "": "",
    "leak of tokens": "outputs before another future",
    "leak of a choice": "outputs before another future",
    "documents of both sides": "document 0",
    "capacity": "the capacity is ignored",
    "values": "values of prefill",
    "nan": "outputs of step are not finite",
    "count": "state after 1 tokens",
    "gradient": "gradients of steps",
    "dtype": "dtype=bfloat16",
}
"""Faults, and the words by which `check_mixer` names them; without one it is content."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class WrongConfig(MixerConfig):
    """Config of `Wrong`."""

    fault: str = ""
    """One of `FAULTS`."""

    @property
    def capabilities(self):
        return PROMISES.get(self.fault, Capabilities())

    @classmethod
    def tiny(cls):
        return cls(d_model=5)

    def flops_per_token(self, length):
        return 2.0 * self.width**2


class WrongState(NamedTuple):
    """Number of tokens read."""

    mean: jax.Array
    """(b, d)."""
    counts: jax.Array
    """(b, 2): tokens, and a place that is never written."""


@jax.custom_vjp
def square(x):
    """`x^2`; its gradient is half too large."""
    return x * x


square.defvjp(lambda x: (x * x, x), lambda x, dy: (3 * x * dy,))


class Wrong(Mixer):
    """`y = m + m^2` of the moving average `m_t = (m_{t-1} + x_t W) / 2`."""

    config: WrongConfig

    def __init__(self, config, *, rngs):
        self.proj = linear(config.width, config.width, axes=("embed", "heads"), std=config.std, rngs=rngs)
        self.config = config

    def __call__(self, x, context=NO_CONTEXT):
        y, fault = self._run(x, self.init_state(x.shape[0]))[0], self.config.fault
        if fault == "leak of tokens":
            y += (context.tokens[:, -1:, None] % 2).astype(y.dtype)
        if fault == "leak of a choice":
            y += jnp.argmax(x[:, -1:], axis=-1, keepdims=True).astype(y.dtype)
        if fault == "documents of both sides":
            y += y.mean(1, keepdims=True)
        return y

    def init_state(self, batch_size, *, capacity=None, dtype=jnp.float32):
        never = -jnp.inf if self.config.fault == "count" else 0.0
        counts = jnp.tile(jnp.array([[0.0, never]]), (batch_size, 1))
        return WrongState(jnp.zeros((batch_size, self.config.width)), counts)

    def prefill(self, x, state, context=NO_CONTEXT):
        return self._run(x, state)

    def step(self, x_t, state, context=NO_CONTEXT):
        mean = (state.mean + self.proj(x_t).astype(jnp.float32)) / 2
        y = mean + mean * mean
        if self.config.fault == "nan":
            y = jnp.where(state.counts[:, :1] < 15, y, jnp.nan)
        return y.astype(x_t.dtype), WrongState(mean, state.counts.at[:, 0].add(1))

    def values(self, x, state=None, context=NO_CONTEXT):
        """Sums of neighbours, which forget the state."""
        return x + jnp.pad(x, ((0, 0), (1, 0), (0, 0)))[:, :-1] if x.ndim == 3 else x

    def _run(self, x, state):
        def token(mean, u_t):
            mean = (mean + u_t) / 2
            return mean, mean

        mean, means = jax.lax.scan(token, state.mean, self.proj(x).astype(jnp.float32).swapaxes(0, 1))
        m, fault, t = means.swapaxes(0, 1), self.config.fault, x.shape[1]
        y = m + (square(m) if fault == "gradient" else m * m)
        if fault == "nan":
            y = jnp.where(state.counts[:, None, :1] + jnp.arange(t, dtype=jnp.float32)[None, :, None] < 15, y, jnp.nan)
        counts = state.counts.at[:, 0].add(2 * t if fault == "count" else t)
        return y if fault == "dtype" else y.astype(x.dtype), WrongState(mean, counts)
