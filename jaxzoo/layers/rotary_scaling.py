"""Scaling of rotary frequencies for texts longer than in training: linear interpolation, YaRN, and Llama 3.

With `f_i = base^(-2 i / n)` radians per token, original length L and factor s:

| `kind` | new frequency | source |
| --- | --- | --- |
| linear | `f / s` | position interpolation, Chen et al. 2023 |
| yarn | `f (1 - g) / s + f g`, with `g` from 0 for slow pairs to 1 for fast pairs | Peng et al. 2023, eqs. 17-22 |
| llama3 | as yarn, with `g` by the wavelength between `L / low` and `L / high` | Llama 3's public code |

A pair that turns r times in L tokens is fast from `beta_fast` turns on and slow below `beta_slow`. YaRN's `g` in
between is linear in r (`ramp="rotations"`, the paper's eq. 18) or in the channel, with the ends rounded outwards
(`ramp="channels"`, the public code, which checkpoints and libraries follow) or unrounded (`ramp="unrounded_channels"`,
`truncate: false` in checkpoints). YaRN also sharpens the softmax: cosines and sines are multiplied by `temperature`, by
default 0.1 ln s + 1, and so scores by its square. llama3 has `low = beta_slow = 1`, `high = beta_fast = 4` and no
temperature. A trained model can be evaluated with another scaling.
"""

import dataclasses
import math
from typing import Annotated, Literal, Self

import numpy as np

from jaxzoo.config.checked import Checked, PositiveFloat, PositiveInt, Rule


@dataclasses.dataclass(frozen=True, kw_only=True)
class RotaryScaling(Checked):
    """Scaling of rotary frequencies."""

    kind: Literal["none", "linear", "yarn", "llama3"] = "none"
    """Row of the table above; none: no scaling, and all other fields are ignored."""
    factor: Annotated[float, Rule("must be at least 1", 1)] = 1.0
    """New length divided by the original length."""
    original_length: PositiveInt = 2048
    """Length in training, in tokens."""
    beta_fast: PositiveFloat = 32.0
    """Pairs with at least this many turns in the original length keep their frequency; llama3: 4."""
    beta_slow: PositiveFloat = 1.0
    """Pairs with at most this many turns in the original length are slowed down by the whole factor."""
    ramp: Literal["channels", "unrounded_channels", "rotations"] = "channels"
    """Quantity in which YaRN's transition is linear; see above."""
    temperature: PositiveFloat | None = None
    """Factor of cosines and sines in yarn; None: 0.1 ln(factor) + 1."""

    @classmethod
    def llama3(cls, factor: float = 8.0, original_length: int = 8192) -> Self:
        """Scaling of Llama 3.1, by default with its factor."""
        return cls(kind="llama3", factor=factor, original_length=original_length, beta_fast=4.0)

    def __post_init__(self) -> None:
        faster = self.beta_fast > self.beta_slow
        self.require("beta_fast", faster, f"must be above beta_slow={self.beta_slow}")

    @property
    def amplitude(self) -> float:
        """Factor of cosines and sines."""
        if self.kind != "yarn":
            return 1.0
        return 0.1 * math.log(self.factor) + 1 if self.temperature is None else self.temperature

    def frequencies(self, n: int, base: float) -> np.ndarray:
        """Radians per token of the `n / 2` pairs of `n` rotated channels, float64."""
        f = base ** (-np.arange(0, n, 2) / n)
        if self.kind == "none":
            return f
        if self.kind == "linear":
            return f / self.factor
        kept = self._kept_by_yarn(f, base) if self.kind == "yarn" else self._kept_by_turns(f)
        return f * (1 - kept) / self.factor + f * kept

    def _kept_by_turns(self, f: np.ndarray) -> np.ndarray:
        """Weight from 0 to 1 of the original frequency, linear in the turns of a pair in the original length."""
        turns = self.original_length * f / (2 * math.pi)
        return np.clip((turns - self.beta_slow) / (self.beta_fast - self.beta_slow), 0, 1)

    def _kept_by_yarn(self, f: np.ndarray, base: float) -> np.ndarray:
        if self.ramp == "rotations":
            return self._kept_by_turns(f)
        n = 2 * f.size
        first, last = (
            n * math.log(self.original_length / (turns * 2 * math.pi)) / (2 * math.log(base))
            for turns in (self.beta_fast, self.beta_slow)
        )
        if self.ramp == "channels":
            first, last = math.floor(first), math.ceil(last)
        first, last = max(first, 0), min(last, n - 1)
        return 1 - np.clip((np.arange(f.size) - first) / max(last - first, 1e-3), 0, 1)


NO_SCALING = RotaryScaling()
