import functools
import inspect
import re
import time

import jax
import numpy as np
import pytest

from jaxzoo.mixers import GatedShortConvConfig
from jaxzoo.models.accounting import count_parameters, flops_per_token, state_bytes
from jaxzoo.models.describe import describe
from jaxzoo.models.presets import PRESETS
from tests.mixers.outside import AverageConfig
from tests.models.hybrids import hybrid_config


def numbers(line: str) -> list[int]:
    """The numeric columns of a row."""
    return [int(word.replace(",", "")) for word in re.findall(r"(?<=\s)[\d,]+(?=\s|$)", line)]


def block_rows(table: str) -> list[list[int]]:
    """Parameters, state bytes and FLOPs of every block's row."""
    body = re.split(r"^-+$", table, flags=re.M)[1]
    rows = [numbers(line) for line in body.splitlines() if not line.startswith("    ")]
    return [row[-3:] for row in rows if len(row) >= 3]


def row(table: str, name: str) -> list[int]:
    return numbers(next(line for line in table.splitlines() if line.startswith(name)))


@pytest.mark.parametrize(
    ("fields", "length"),
    [
        ({"max_positions": 12, "tie_embeddings": False}, 5),
        pytest.param({}, None, marks=pytest.mark.full),
        pytest.param({"n_layers": 1}, None, marks=pytest.mark.full),
    ],
)
def test_rows_add_up_to_the_model(fields, length):
    """Kills a row that counts one repeat of a scan, a head counted twice, and a length ignored."""
    config = hybrid_config(**fields)
    table = describe(config, length)
    length = length or config.max_length
    rows = block_rows(table)
    parameters, state, flops = np.sum(rows, axis=0)
    rounded = functools.partial(pytest.approx, abs=len(rows))
    names = ["all layers", "embedding", "final norm", "head"]
    assert row(table, "all layers") == [parameters, rounded(flops)]
    assert sum(row(table, name)[0] for name in names) == count_parameters(config) == row(table, "model")[0]
    assert state + 4 == state_bytes(config, length) == row(table, "model")[1], "the model's own position is 4 bytes"
    assert row(table, "all layers")[1] + row(table, "head")[1] == rounded(row(table, "model")[2])
    assert row(table, "model")[2] == round(flops_per_token(config, length))


@pytest.mark.slow
@pytest.mark.parametrize("name", PRESETS)
def test_presets_fit_on_a_page_and_need_no_memory(name):
    """Kills a preset that cannot be built or says nothing of itself, layers that differ by accident and so compile one
    by one, columns that run into each other, and a description that builds the model (1.3b: 5 GB, a minute)."""
    live = len(jax.live_arrays())
    start = time.process_time()
    table = describe(PRESETS[name]())
    assert time.process_time() - start < 20
    assert len(jax.live_arrays()) - live < 20
    assert sum(len(fold.period) for fold in PRESETS[name]().folds) <= 16
    assert inspect.getdoc(PRESETS[name])
    assert max(map(len, table.splitlines())) <= 100
    assert all(len(line) == 99 for line in table.splitlines() if line.startswith(("all layers", "model", "---")))


def test_based_360m_says_what_is_scanned():
    """Kills layers attributed to the wrong mixer, and a window or feature dimension that goes unsaid."""
    table = describe(PRESETS["based-360m"]())
    squeezed = re.sub(r"\s+", " ", re.sub(r"[\d,]{5,}", "", table))
    for text in (
        "0-24: 5 layers scanned 5 times",
        "1,6..21 TaylorLinearAttention n_heads=16 feature_dim=16",
        "2,7..22 SlidingWindowAttention n_heads=16 positions=rotary window=64",
        "25-26: 1 layer scanned 2 times",
    ):
        assert text in squeezed
    assert row(table, "model")[0] == 362_620_928
    assert "state by Based, App. E.2: 1,439,485 elements in 10 of 27 layers" in table
    assert 5 * (1025 * 153 + 2 * 1024 * 64) == 1_439_485


@pytest.mark.full
def test_the_parallel_residual_is_named_and_costs_nothing():
    """Kills two models that a reader cannot tell apart, and a norm or MLP that is counted otherwise."""
    beside, behind = (describe(hybrid_config(mlp="gelu", parallel_residual=value)) for value in (True, False))
    assert ", gelu 5 in parallel, " in beside
    assert beside.replace(" in parallel", "") == behind


def test_a_model_that_cannot_stream_is_described_too():
    """Kills a table that fails, or shows a state of 0 bytes, where a mixer has none."""
    table = describe(hybrid_config(pattern=(GatedShortConvConfig(), AverageConfig())))
    assert table.count("no stream") == 2


def test_length_must_be_positive():
    """Kills a table at length 0, whose averages divide by nothing."""
    with pytest.raises(ValueError, match="describe: length=0 must be positive"):
        describe(hybrid_config(), 0)
