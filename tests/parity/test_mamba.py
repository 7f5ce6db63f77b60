"""Mamba against Hugging Face's MambaModel, which discretises B by Euler's rule."""

import pytest
from flax import nnx

from jaxzoo.mixers import Mamba, MambaConfig
from tests.parity.carry import compare, inputs, randomize

pytestmark = pytest.mark.parity

FIELDS = {"d_state": 5, "dt_rank": 3, "n_taps": 4}
PROJECTIONS = ("in_proj", "x_proj", "dt_proj", "out_proj")


def small(transformers):
    return transformers.MambaConfig(
        vocab_size=48, hidden_size=24, num_hidden_layers=2, state_size=5, time_step_rank=3, conv_kernel=4, expand=2
    )


def carry_mixer(get):
    values = {f"{name}.kernel": get(f"{name}.weight").T for name in PROJECTIONS}
    values |= {"taps": get("conv1d.weight")[:, 0, ::-1].T, "conv_bias": get("conv1d.bias")}
    return values | {"dt_bias": get("dt_proj.bias"), "a_log": get("A_log"), "skip": get("D")}


def test_mixer(torch, transformers):
    """Kills: taps in the other order, branches or B and C swapped, another discretisation; values and all gradients."""
    from transformers.models.mamba.modeling_mamba import MambaMixer

    theirs = MambaMixer(small(transformers), layer_idx=0).eval()
    randomize(theirs, torch)
    ours = Mamba(MambaConfig(d_model=24, **FIELDS), rngs=nnx.Rngs(0))
    compare(ours, theirs, carry_mixer, inputs(), run=lambda layer, x: layer(x), torch=torch)
