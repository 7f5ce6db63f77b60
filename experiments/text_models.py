"""Small models of the papers' tables on text: rows of Zoology's Tables 2 to 5, Based's Table 6 and CAT's Table 2."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from jaxzoo.layers.hyena_filter import HyenaFilterConfig
from jaxzoo.mixers import (
    AttentionConfig,
    BaseConvConfig,
    ConvolutionAugmentedAttentionConfig,
    H3Config,
    HyenaConfig,
    LiquidS4Config,
    LongConvConfig,
    MixerConfig,
    MultiHeadHyenaConfig,
    RetNetConfig,
    RWKV4TimeMixConfig,
    SelectiveAttentionConfig,
    SlidingWindowAttentionConfig,
)
from jaxzoo.models.presets.based import TABLE_6, based_360m_ablation
from jaxzoo.models.presets.preset_parts import spread

Layers = tuple[MixerConfig, ...]

ATTENTION, TRANSFORMER, BASE_CONV, HYENA = "attention", "transformer", "BaseConv", "Hyena"
CAT, CAT_BARE, MULTI, MULTI_BARE = "CAT, RoPE", "CAT, no PE", "MH-CAT, RoPE", "MH-CAT, no PE"
SELECTIONS = ("random", "programmatic", "learned")
ABLATIONS = {name: f"Based, {name}" for name in TABLE_6}
"""Rows of Based's Table 6, whose numbers are those of the paper's models: windows and features are scaled."""
FIRST_BASED = ABLATIONS["taylor-16"]
TABLES: Mapping[str, tuple[str, ...]] = {
    "Zoology, Table 2": (ATTENTION, BASE_CONV, *(f"BaseConv + {each}" for each in (*SELECTIONS, ATTENTION))),
    "Zoology, Table 3": (ATTENTION, "Liquid-S4"),
    "Zoology, Table 4": (
        ATTENTION, "long convolution", "H3", HYENA, "RWKV-4", "RetNet", "Hyena + window", "Hyena + window x 4",
    ),
    "Zoology, Table 5": (ATTENTION, HYENA, "Hyena, sine 2", "Hyena, heads"),
    "Based, Table 6": (ATTENTION, *ABLATIONS.values()),
    "CAT, Table 2": (TRANSFORMER, CAT, CAT_BARE, MULTI, MULTI_BARE),
}  # fmt: skip
"""Models by table; attention is the baseline of all but CAT's, which compares a transformer without convolutions."""
FEW = (
    *(*TABLES["Zoology, Table 2"], TRANSFORMER, CAT, FIRST_BASED, HYENA, "Hyena, sine 2"),
    *(ABLATIONS["no-window"], "Liquid-S4"),
    *("RetNet", ABLATIONS["no-convolutions"], "Hyena, heads", "RWKV-4", "H3", MULTI),
)
"""Some models of each table, for a laptop."""
OWN_CONVOLUTION = (*ABLATIONS.values(), *TABLES["CAT, Table 2"])
"""Models that get no short convolution as first layer."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sizes:
    n_layers: int
    """Layers, including the short convolution that most models begin with."""
    n_heads: int
    length: int
    """Tokens per window."""
    window: int
    """Tokens of Hyena's sliding window, and of Based's."""
    feature_dim: int
    """Taylor features of Based's first row; the paper has 16."""
    n_taps: int
    """Taps of CAT's filters; the paper has 21."""
    init_std: float = 0.1
    """Standard deviation of all projections but the output's at the start (docs/sweeps.md, "Recipe")."""

    def layers(self, name: str) -> Layers:
        """Returns the mixers of a model."""
        own = name in OWN_CONVOLUTION
        n = self.n_layers - (not own)
        pattern = self._pattern(name, n)
        found = (*[BaseConvConfig(n_taps=3)] * (not own), *(pattern * n)[:n])
        return tuple(dataclasses.replace(mixer, init_std=self.init_std) for mixer in found)

    def _pattern(self, name: str, n: int) -> Layers:
        """Returns the layers after the short convolution, repeated over the depth."""
        heads: dict[str, Any] = {"n_heads": self.n_heads, "positions": "rotary"}
        attention = AttentionConfig(**heads)
        convolutions = (BaseConvConfig(filter="implicit", filter_width=64), BaseConvConfig(n_taps=3))
        if name.startswith(f"{BASE_CONV} + "):
            return spread(self._selective(name.removeprefix(f"{BASE_CONV} + "), heads), convolutions, **_quarter(n))
        if name in ABLATIONS.values():
            return self._based(name)
        windows = {"Hyena + window": self.window, "Hyena + window x 4": 4 * self.window}
        if name in windows:
            sliding = SlidingWindowAttentionConfig(window=windows[name], **heads)
            return spread(sliding, (_hyena(14.0),), **_quarter(n))
        if name in (CAT, CAT_BARE, MULTI, MULTI_BARE):
            return (self._cat(name, heads),)
        return {
            ATTENTION: (attention,),
            TRANSFORMER: (attention,),
            BASE_CONV: convolutions,
            HYENA: (_hyena(14.0),),
            "Hyena, sine 2": (_hyena(2.0),),
            "Hyena, heads": (MultiHeadHyenaConfig(n_heads=4 * self.n_heads, filter_network=_network(2.0)),),
            "Liquid-S4": (LiquidS4Config(d_state=16, liquid="pb", order=2),),
            "long convolution": (LongConvConfig(squash=0.001, kernel_dropout=0.1),),
            "H3": (H3Config(d_state=16),),
            "RWKV-4": (RWKV4TimeMixConfig(),),
            "RetNet": (RetNetConfig(n_heads=self.n_heads),),
        }[name]

    def _selective(self, selection: Any, heads: dict[str, Any]) -> MixerConfig:
        if selection == ATTENTION:
            return AttentionConfig(**heads)
        return SelectiveAttentionConfig(selection=selection, n_selected=self.length // 8, **heads)

    def _based(self, name: str) -> Layers:
        """Returns the layers of a row of Based's Table 6, with features and windows of this size."""
        given = TABLE_6[name.removeprefix("Based, ")]
        features = self.feature_dim * given.get("feature_dim", 16) // 16
        window = self.window * given.get("window", 64) // 64
        pattern = based_360m_ablation(**{**given, "feature_dim": features, "window": window}).pattern
        period = pattern[: 5 if len(pattern) > 5 else len(pattern)]
        return tuple(
            dataclasses.replace(mixer, n_heads=self.n_heads) if hasattr(mixer, "n_heads") else mixer for mixer in period
        )

    def _cat(self, name: str, heads: dict[str, Any]) -> MixerConfig:
        positions = "none" if name in (CAT_BARE, MULTI_BARE) else "rotary"
        filters = "mixing" if name in (MULTI, MULTI_BARE) else "head"
        given: dict[str, Any] = {**heads, "positions": positions, "filters": filters}
        return ConvolutionAugmentedAttentionConfig(n_taps=self.n_taps, **given)


def _quarter(n: int) -> dict[str, int]:
    """A quarter of the layers, at least one, at equal distances; the paper replaces 3 of 30 and of 48."""
    return {"n_layers": n, "count": max(1, n // 4)}


def _network(frequency: float) -> HyenaFilterConfig:
    return HyenaFilterConfig(emb_dim=33, width=64, n_inner=2, sine_frequency=frequency, slow_decay=1.2)


def _hyena(frequency: float) -> HyenaConfig:
    return HyenaConfig(order=2, form="release", n_short_taps=3, filter_network=_network(frequency))
