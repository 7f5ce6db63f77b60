"""Rotary frequencies for texts longer than those of training: linear interpolation, YaRN, and the scaling of Llama 3.

With `f_i = base^(-2 i / n)` radians per token, original length L and factor s:

| `kind` | new frequency | source |
| --- | --- | --- |
| linear | `f / s` | position interpolation, Chen et al. 2023 |
| yarn | `f (1 - g) / s + f g`, with `g` from 0 at slow pairs to 1 at fast ones | Peng et al. 2023, eqs. 17-22 |
| llama3 | the same, `g` by the wavelength between `L / low` and `L / high` | Llama 3's public code |

A pair that turns r times in L tokens is fast from `beta_fast` turns on and slow below `beta_slow`. YaRN's `g` in
between is linear in r (`ramp="rotations"`, the paper's eq. 18) or in the channel, with its ends rounded outwards
(`ramp="channels"`, the public code, which checkpoints and libraries follow) or as they are
(`ramp="unrounded_channels"`, `truncate: false` in checkpoints). YaRN also sharpens the softmax: cosines
and sines are multiplied by `temperature`, 0.1 ln s + 1 unless given, and so scores by its square. llama3 has
`low = beta_slow = 1` and `high = beta_fast = 4` and no temperature.

All of it acts on the frequencies alone: a trained model can be evaluated with another scaling, without training.
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
    """The table above; none: as trained, and all other fields are ignored."""
    factor: Annotated[float, Rule("must be at least 1", 1)] = 1.0
    """Length to be reached over the original length."""
    original_length: PositiveInt = 2048
    """Tokens of the texts of training."""
    beta_fast: PositiveFloat = 32.0
    """Turns in the original length from which on a pair keeps its frequency; llama3: 4."""
    beta_slow: PositiveFloat = 1.0
    """Turns in the original length below which a pair is slowed down by the whole factor."""
    ramp: Literal["channels", "unrounded_channels", "rotations"] = "channels"
    """Quantity in which the transition of yarn is linear; see above."""
    temperature: PositiveFloat | None = None
    """Factor of cosines and sines in yarn; None: 0.1 ln(factor) + 1."""

    @classmethod
    def llama3(cls, factor: float = 8.0, original_length: int = 8192) -> Self:
        """The scaling of Llama 3.1, or another with its transition."""
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
        """0 to 1, linear in the turns that a pair makes in the original length."""
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
