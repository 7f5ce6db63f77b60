"""The list of mixers: one line each makes a mixer known to models, command line and the contract tests."""

from flax import nnx

from jaxzoo.mixers.attention import Attention, AttentionConfig, AttentionState
from jaxzoo.mixers.base import Mixer, MixerConfig, state_bytes
from jaxzoo.mixers.base_conv import BaseConv, BaseConvConfig, BaseConvState
from jaxzoo.mixers.gated_short_conv import GatedShortConv, GatedShortConvConfig, GatedShortConvState
from jaxzoo.mixers.sliding_window_attention import (
    SlidingWindowAttention,
    SlidingWindowAttentionConfig,
    SlidingWindowAttentionState,
)
from jaxzoo.mixers.taylor_linear_attention import (
    TaylorLinearAttention,
    TaylorLinearAttentionConfig,
    TaylorLinearAttentionState,
)

MIXERS: dict[type[MixerConfig], type[Mixer]] = {
    AttentionConfig: Attention,
    BaseConvConfig: BaseConv,
    GatedShortConvConfig: GatedShortConv,
    SlidingWindowAttentionConfig: SlidingWindowAttention,
    TaylorLinearAttentionConfig: TaylorLinearAttention,
}


def make_mixer(config: MixerConfig, *, rngs: nnx.Rngs) -> Mixer:
    """The mixer that `config` describes.

    Raises:
      ValueError: the class of `config` is not in `MIXERS`.
    """
    if type(config) not in MIXERS:
        known = ", ".join(sorted(known.__name__ for known in MIXERS))
        raise ValueError(f"pattern: {type(config).__name__} is not a known mixer config; known are {known}")
    return MIXERS[type(config)](config, rngs=rngs)


__all__ = [
    "MIXERS",
    "Attention",
    "AttentionConfig",
    "AttentionState",
    "BaseConv",
    "BaseConvConfig",
    "BaseConvState",
    "GatedShortConv",
    "GatedShortConvConfig",
    "GatedShortConvState",
    "Mixer",
    "MixerConfig",
    "SlidingWindowAttention",
    "SlidingWindowAttentionConfig",
    "SlidingWindowAttentionState",
    "TaylorLinearAttention",
    "TaylorLinearAttentionConfig",
    "TaylorLinearAttentionState",
    "make_mixer",
    "state_bytes",
]
