"""configs/dna against Based, Table 3. Kills: another number of layers or parameters."""

from pathlib import Path

import pytest

from jaxzoo.cli.config_file import load_config
from jaxzoo.models.accounting import count_parameters

FOLDER = Path(__file__).parents[2] / "configs" / "dna"
D = 512
CONV, LINEAR, WINDOW, MLP = 6 * D * D + 11 * D, 2 * D * D + 512 * D, 4 * D * D, 6 * D * D + 2 * D
MAMBA = 6 * D * D + 2 * D * (32 + 32) + 32 * 2 * D + 2 * D + 5 * 2 * D + 16 * 2 * D + 2 * D + D
SIZES = {
    "transformer_pp": (11 * (4 * D * D + 12 * D * D + 2 * D), 46.2e6),
    "mamba": (27 * MAMBA, 46.1e6),
    "based": (10 * CONV + 4 * LINEAR + 3 * WINDOW + 17 * MLP, 48.8e6),
}
"""Parameters of the layers, and the paper's size."""


@pytest.mark.parametrize("name", SIZES)
def test_sizes(name):
    """Kills: another number of layers, a size that is not the paper's to 1 %, steps that do not come to 10B bases."""
    for length in (1, 4, 8):
        config = load_config(FOLDER / "based.py", name=f"{name}_{length}k")
        layers, printed = SIZES[name]
        n = count_parameters(config.model)
        assert n == layers + 8 * D + D
        assert abs(n - printed) < 0.01 * printed
        assert config.data.length == config.model.max_length == 1024 * length
        assert abs(config.train.steps * config.train.batch_size * config.data.length - 1e10) < 1e7
