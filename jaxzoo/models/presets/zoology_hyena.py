"""The Hyenas of Zoology (Arora et al. 2024): Tables 4, 5 and 11."""

from jaxzoo.mixers import MultiHeadHyenaConfig, SlidingWindowAttentionConfig
from jaxzoo.models.model_config import LanguageModelConfig
from jaxzoo.models.presets.preset_parts import spread, text_hyena, zoology_model


def zoology_hyena_72m(*, as_printed: bool = False) -> LanguageModelConfig:
    """Hyena, Zoology, Table 11: 71.6M parameters (paper: 72M); 8 layers of width 720.

    Args:
      as_printed: width 768, as in the table; 77.5M parameters. False: 720, the width of H3 at this size (Table 13),
        which gives the paper's count.
    """
    return _zoology_hyena(d_model=768 if as_printed else 720, n_layers=8)


def zoology_hyena_158m(*, sine_frequency: float = 14.0) -> LanguageModelConfig:
    """Hyena, Zoology, Table 11: 159.6M parameters (paper: 158M, in Table 4 160M); 18 layers of width 864.

    `sine_frequency` is w of the filter network: 14 in Table 11, 2 in Table 5.
    """
    return _zoology_hyena(d_model=864, n_layers=18, sine_frequency=sine_frequency)


def zoology_hyena_358m(*, sine_frequency: float = 14.0, as_printed: bool = False) -> LanguageModelConfig:
    """Hyena, Zoology, Table 11: 360.1M parameters (paper: 358M); 34 layers of width 1024.

    Args:
      as_printed: 24 layers, as in the table; 269.3M parameters. False: 34, which gives the count of Tables 1, 4, 5 and
        11 and the TFLOPs of Table 4.
    """
    return _zoology_hyena(d_model=1024, n_layers=24 if as_printed else 34, sine_frequency=sine_frequency)


def zoology_hyena_sliding_window_159m(*, window: int = 64) -> LanguageModelConfig:
    """Hyena + sliding window attention, Zoology, Table 4: 159.2M parameters (paper: 159M).

    `zoology_hyena_158m` with windowed attention (window 64 or 256) in three of its 18 layers, at equal distances. Their
    number is not printed; three as in Table 2. 12 heads, as in Table 7.
    """
    sliding = SlidingWindowAttentionConfig(n_heads=12, window=window, positions="rotary")
    pattern = spread(sliding, (text_hyena(),), n_layers=18, count=3)
    return zoology_model(pattern, d_model=864, n_layers=18)


def _zoology_hyena(*, d_model: int, n_layers: int, sine_frequency: float = 14.0) -> LanguageModelConfig:
    return zoology_model((text_hyena(sine_frequency),), d_model=d_model, n_layers=n_layers)


def zoology_multi_head_hyena_150m(*, as_printed: bool = False) -> LanguageModelConfig:
    """Multi-head Hyena, Zoology, Table 5: 158.9M parameters (paper: 150M).

    `zoology_hyena_158m` with heads and a sine frequency of 2. Heads change only the filters, by 0.8M; the paper does
    not explain its 8M fewer parameters.

    Args:
      as_printed: "4 heads", of 216 channels, whose outer products cost 216 times the convolutions. False: heads of 4
        channels, which give the TFLOPs of the table.
    """
    return _zoology_multi_head_hyena(d_model=864, n_layers=18, as_printed=as_printed)


def zoology_multi_head_hyena_358m(*, as_printed: bool = False) -> LanguageModelConfig:
    """Multi-head Hyena, Zoology, Table 5: 358.4M parameters (paper: 358M); as `zoology_multi_head_hyena_150m`.

    With `as_printed` there are 4 heads and the 24 layers of Table 11; 267.7M parameters.
    """
    return _zoology_multi_head_hyena(d_model=1024, n_layers=24 if as_printed else 34, as_printed=as_printed)


def _zoology_multi_head_hyena(*, d_model: int, n_layers: int, as_printed: bool) -> LanguageModelConfig:
    network = text_hyena(sine_frequency=2.0).filter_network
    heads = 4 if as_printed else d_model // 4
    hyena = MultiHeadHyenaConfig(n_heads=heads, filter_network=network)
    return zoology_model((hyena,), d_model=d_model, n_layers=n_layers)
