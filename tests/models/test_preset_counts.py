"""Parameter counts of the papers' models of text, against the papers'; one preset runs."""

import jax
import numpy as np
import pytest

from jaxzoo.models import presets
from jaxzoo.models.accounting import count_parameters
from jaxzoo.models.presets import PRESETS
from tests.models.hybrids import initialised, run
from tests.pallas_kernels.shared import full, slow

COUNTS = [
    ("based-360m", 362_620_928, 363e6, 0.5 / 363),
    ("based-1.3b", 1_349_453_056, 1.35e9, 0.005 / 1.35),
    ("transformer++-360m", 359_810_048, 360e6, 0.01),
    ("transformer++-1.3b", 1_327_080_720, 1.33e9, 0.01),
    ("zoology-attention-73m", 73_270_208, 73e6, 0.01),
    ("zoology-attention-125m", 123_587_328, 125e6, 0.012),
    ("zoology-attention-360m", 359_842_816, 360e6, 0.01),
    ("gla-362m", 360_442_880, 362e6, 0.005),
    ("pythia-410m", 405_334_016, 405_334_016, 1e-12),
    ("pythia-356m", 353_789_952, 356e6, 0.007),
    ("pythia-370m", 367_847_424, 370e6, 0.006),
    ("cat-370m", 367_871_616, 370e6, 0.006),
    ("mh-cat-370m", 368_234_496, 370e6, 0.005),
    ("zoology-base-conv-168m", 163_762_500, 168e6, 0.026),
    ("zoology-base-conv-354m", 351_171_384, 354e6, 0.01),
    ("zoology-base-conv-attention-166m", 170_123_616, 166e6, 0.026),
    ("zoology-base-conv-attention-351m", 361_652_784, 351e6, 0.031),
    ("zoology-ret-net-152m", 151_918_080, 152e6, 0.001),
    ("mamba-360m", 358_173_696, 358e6, 0.001),
    ("mamba-1.3b", 1_319_278_592, 1.32e9, 0.001),
    ("h3-362m", 363_153_152, 362e6, 0.004),
    ("zoology-h3-72m", 72_398_160, 72e6, 0.006),
    ("zoology-h3-168m", 168_635_520, 168e6, 0.004),
    ("zoology-h3-357m", 356_755_456, 357e6, 0.001),
    ("hyena-355m", 360_297_536, 355e6, 0.015),
    ("zoology-hyena-72m", 71_606_352, 72e6, 0.006),
    ("zoology-hyena-158m", 159_628_320, 158e6, 0.011),
    ("zoology-hyena-358m", 360_097_408, 358e6, 0.006),
    ("zoology-hyena-sliding-window-159m", 159_183_936, 159e6, 0.002),
    ("zoology-rwkv-72m", 71_993_344, 72e6, 0.001),
    ("zoology-rwkv-169m", 169_382_400, 169e6, 0.003),
    ("zoology-rwkv-351m", 350_963_280, 351e6, 0.001),
    ("rwkv5-362m", 362_229_760, 362e6, 0.001),
    ("zoology-multi-head-hyena-150m", 158_870_160, 150e6, 0.06),
    ("zoology-multi-head-hyena-358m", 358_400_128, 358e6, 0.002),
    ("zoology-liquid-s4-145m", 143_100_000, 145e6, 0.014),
    ("zoology-long-conv-76m", 75_986_240, 76e6, 0.001),
    ("zoology-long-conv-128m", 128_333_568, 128e6, 0.003),
    ("zoology-long-conv-360m", 359_916_544, 360e6, 0.001),
    ("zoology-base-conv-selective-162m", 170_123_616, 162e6, 0.051),
    ("zoology-base-conv-selective-365m", 361_652_784, 365e6, 0.01),
    ("mamba2-370m", 368_346_624, 370e6, 0.005),
    ("mamba2-1.3b", 1_343_757_312, 1.34e9, 0.004),
    ("delta-net-340m", 374_362_112, 340e6, 0.11),
    ("delta-net-1.3b", 1_365_677_056, 1.3e9, 0.06),
    ("gated-delta-net-340m", 379_764_350, 340e6, 0.12),
    ("gated-delta-net-1.3b", 1_387_348_732, 1.3e9, 0.07),
    ("kimi-delta-attention-1.3b", 1_390_941_568, 1.3e9, 0.08),
    ("hgrn-1.3b", 1_364_346_880, 1.3e9, 0.06),
    ("comba-1.3b", 1_387_348_984, 1.3e9, 0.07),
    ("mesa-net-1.3b", 1_366_316_800, 1.3e9, 0.06),
    ("xlstm-7b", 6_865_424_896, 6_865_424_896, 1e-12),
    ("hgrn2-1.3b", 1_364_346_880, 1.3e9, 0.06),
    ("gsa-1.3b", 1_376_929_792, 1.3e9, 0.06),
    ("fox-760m", 834_848_832, 834_848_832, 1e-12),
    ("fox-pro-760m", 836_728_896, 836_728_896, 1e-12),
    ("path-1.4b", 1_369_164_544, 1_369_164_544, 1e-12),
    ("nsa-1.2b", 1_184_991_232, 1_184_991_232, 1e-12),
    ("moba-1.4b", 1_364_299_264, 1_364_299_264, 1e-12),
    ("youtu-llm-2b", 1_961_560_064, 1_961_560_064, 1e-12),
    ("mamba3-1.4b", 1_387_122_688, 1_387_122_688, 1e-12),
    ("gated-delta-product-1.6b", 1_586_174_716, 1_586_174_716, 1e-12),
    ("ttt-linear-1.3b", 1_284_852_864, 1_284_852_864, 1e-12),
    ("rwkv6-1.6b", 1_599_873_024, 1.6e9, 0.001),
    ("rwkv7-0.2b", 191_034_624, 191_034_624, 1e-12),
    ("rwkv7-0.4b", 450_767_872, 450_767_872, 1e-12),
    ("rwkv7-1.5b", 1_527_404_544, 1_527_404_544, 1e-12),
    ("griffin-400m", 404_309_504, 400e6, 0.011),
    ("griffin-1.3b", 1_308_116_992, 1.3e9, 0.007),
    ("samba-like-420m", 421_793_280, 421e6, 0.002),
    ("qwen3-next-like-400m", 408_047_424, 400e6, 0.03),
]
"""Name, parameters, the paper's number of them and how far that may be."""


SMALL = ("based-360m", "mamba-360m", "zoology-hyena-72m", "zoology-rwkv-72m", "rwkv7-0.2b", "gated-delta-net-340m")


@pytest.mark.parametrize("names", [full(SMALL), slow([name for name, *_ in COUNTS if name not in SMALL])], ids=len)
def test_parameter_counts(names):
    """Kills a preset with a wrong width, depth, bias or padding: the count is pinned, and within the given share of the
    number in its paper. The docstrings of presets explain larger shares."""
    rows = [row for row in COUNTS if row[0] in names]
    expected = {name: count for name, count, *_ in rows}
    assert {name: count_parameters(PRESETS[name]()) for name in expected} == expected
    assert [name for name, count, paper, tolerance in rows if abs(count / paper - 1) >= tolerance] == []


@pytest.mark.full
@pytest.mark.parametrize(
    ("preset", "count"),
    [
        (presets.gla_362m, 303_819_776),
        (presets.zoology_hyena_72m, 77_518_080),
        (presets.zoology_hyena_358m, 269_337_088),
        (presets.zoology_rwkv_72m, 93_193_152),
        (presets.zoology_multi_head_hyena_150m, 158_622_120),
        (presets.zoology_multi_head_hyena_358m, 267_745_888),
        (presets.zoology_long_conv_128m, 154_328_544),
    ],
)
def test_what_the_tables_print_can_be_had(preset, count):
    """Kills an `as_printed` that is ignored: the counts of the docstrings, which miss the papers' by far."""
    assert count_parameters(preset(as_printed=True)) == count


@pytest.mark.full
def test_a_preset_runs():
    """Kills sizes that do not fit together in a model that runs: at initialisation the loss is that of guessing."""
    config = presets.mqar_based(d_model=32, length=16)
    tokens = np.random.default_rng(0).integers(config.vocab_size, size=(2, 16))
    logits = run(initialised(config), tokens)
    assert logits.shape == (2, 16, config.padded_vocab_size)
    chosen = np.take_along_axis(np.asarray(jax.nn.log_softmax(logits)), tokens[..., None], axis=-1)
    assert -chosen.mean() == pytest.approx(np.log(config.vocab_size), rel=0.05)
