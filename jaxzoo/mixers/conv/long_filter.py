"""Shared config of long convolutions: the filter is by default as long as the model's sequences."""

import dataclasses
from typing import Self

from jaxzoo.config.checked import PositiveInt
from jaxzoo.layers.causal_conv import MAX_DIRECT_TAPS
from jaxzoo.mixers.base import Capabilities, Inherited, MixerConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class LongFilterConfig(MixerConfig):
    """Config of a mixer with a long filter."""

    n_taps: PositiveInt | None = None
    """Taps of the filter, including the current token's; None: the model's length."""

    @property
    def filter_length(self) -> int:
        """`n_taps`, which must be known.

        Raises:
          ValueError: it is None.
        """
        self.require("n_taps", self.n_taps is not None, "must be known to build the mixer", "set it")
        assert self.n_taps is not None
        return self.n_taps

    def inherit(self, model: Inherited) -> Self:
        config = super().inherit(model)
        return config if config.n_taps else dataclasses.replace(config, n_taps=model.max_length)

    @property
    def capabilities(self) -> Capabilities:
        exact = self.n_taps is not None and self.n_taps <= MAX_DIRECT_TAPS
        return Capabilities(segments=True, sequence_parallel=True, future_rounding=0.0 if exact else 1e-5)
