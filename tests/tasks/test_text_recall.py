"""Tasks as text of subword tokens."""

import numpy as np
import pytest

from jaxzoo.tasks.contract import check_disjoint, check_oracle, check_pure, check_shapes
from jaxzoo.tasks.text_recall import NeedleConfig, PhoneBookConfig, VariableTrackingConfig, oracle
from tests.data.gpt2 import gpt2_directory

BPE = {"vocab_size": 50257, "tokenizer_path": str(gpt2_directory())}
N = 40


@pytest.mark.slow
@pytest.mark.parametrize(
    "config",
    [
        PhoneBookConfig(length=300, **BPE),
        NeedleConfig(length=400, num_needle_k=3, num_needle_q=2, **BPE),
        VariableTrackingConfig(length=400, num_chains=2, **BPE),
    ],
    ids=lambda config: type(config).__name__,
)
def test_any_tokenizer_will_do(config):
    """Kills: an answer that is joined to the last token of its question, a haystack that is counted in bytes."""
    check_oracle(config, oracle, N)
    check_shapes(config, N)
    check_pure(config, N)
    check_disjoint(config, N)
    used = (config.labelled(0, np.arange(N)).tokens != config.padding).sum(1)
    assert used.min() > config.length - 40


def test_refuses_in_one_line():
    """Kills: more questions than needles, a text that cannot fit, a vocabulary without the tokenizer's ids."""
    for fields, message in (
        ({"num_needle_q": 2}, "num_needle_q=2 must be at most num_needle_k=1"),
        ({"length": 100}, "length=100 must be at least .*, for an example without haystack"),
        ({"vocab_size": 256}, "vocab_size=256 must be at least 257, the ids of the tokenizer"),
    ):
        with pytest.raises(ValueError, match=f"^NeedleConfig.{message}"):
            NeedleConfig(**fields)
