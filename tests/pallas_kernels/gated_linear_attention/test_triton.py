"""Triton kernels of gated linear attention in Triton's interpreter, against float64."""

import json
import os
import subprocess
import sys

import jax.numpy as jnp
import pytest

from pallas_kernels import triton_call
from pallas_kernels.gated_linear_attention import gated_linear_attention
from tests.pallas_kernels.triton_cases import check_interpreted


@pytest.mark.slow
def test_verified_cases():
    """Kills wrong carries between chunks, masks, levels of pairs, head sharing, and terms of gradients."""
    check_interpreted("gated_linear_attention")


@pytest.mark.full
def test_gradients_of_channel_decays():
    """Kills what the slow test kills, for one chunk and one token."""
    check_interpreted("gated_linear_attention", "backward t65_h2_g2_k64_v64_float32_channel")


@pytest.mark.slow
def test_other_calls():
    """Kills a decode step of another rule, values outside their blocks, absent states that are read, mixed-up rows."""
    command = [sys.executable, "-m", "tests.pallas_kernels.gated_linear_attention.triton_process"]
    if triton_call.missing() is not None and os.environ.get("JAXZOO_REQUIRE_AOT") != "1":
        pytest.skip("needs the extra triton")
    environment = os.environ | {"TRITON_INTERPRET": "1", "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert {name: errors for name, errors in found.items() if not max(errors) < 1e-5} == {}


def test_refusals_say_why():
    """Kills a named implementation that falls back, or that fails inside jax-triton."""
    x = jnp.zeros((1, 4, 2, 48), jnp.float32)
    with pytest.raises(NotImplementedError, match="triton: key width 48 is not one of 16, 32, 64, 128"):
        gated_linear_attention(x, x, x, x[..., 0], implementation="triton")
