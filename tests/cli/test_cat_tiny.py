"""The flags of configs/lm/cat_tiny.py. Kills: a baseline of another shape than CAT."""

from pathlib import Path

from jaxzoo.mixers import AttentionConfig, ConvolutionAugmentedAttentionConfig, RetNetConfig
from tests.cli.conftest import parse_command

FILE = Path(__file__).parents[2] / "configs" / "lm" / "cat_tiny.py"
SMALL = (
    "--model.d-model 32 --model.n-layers 2 --model.max-length 32 --train.steps 2 --train.batch-size 8 "
    "--train.eval-every 0 --data.length 16 --data.valid-lengths 16 32 --data.valid-tokens 64 --data.valid-fraction 0.3"
)


def parsed(*flags):
    return parse_command(["--config", str(FILE), *flags])[1].model


def test_all_rows_have_the_same_frame():
    """Kills: a baseline with other heads, positions or layers than CAT's, and a flag without effect."""
    cat, attention = parsed(), parsed("--model.mixer", "attention")
    (own,), (plain,) = cat.pattern, attention.pattern
    assert isinstance(own, ConvolutionAugmentedAttentionConfig)
    assert isinstance(plain, AttentionConfig)
    assert (own.n_taps, own.filters) == (21, "head")
    shared = ("n_heads", "positions", "rotary_fraction", "qkv_bias", "out_bias")
    assert [getattr(own, name) for name in shared] == [getattr(plain, name) for name in shared]
    assert (own.n_heads, own.positions, own.rotary_fraction) == (4, "rotary", 0.25)
    frame = [(m.parallel_residual, m.tie_embeddings, m.mlp, m.mlp_bias, m.norm) for m in (cat, attention)]
    assert frame == [(True, False, "gelu", True, "layer")] * 2
    assert parsed("--model.pattern.0.positions", "none").pattern[0].positions == "none"
    assert parsed("--model.mixer", "ret_net").pattern == (RetNetConfig(),)
