"""The Triton kernel: values by Triton's interpreter, machine code for Ampere, Ada and Hopper, and what it refuses."""

import importlib.util
import json
import os
import re
import subprocess
import sys
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.taylor_attention import TaylorState, api, taylor_attention, triton
from tests.pallas_kernels.aot import needs
from tests.pallas_kernels.shared import assert_close
from tests.pallas_kernels.taylor_attention.cases import Call, measured, truth


def run_process(mode, **environment):
    needs("h100")
    absent = [name for name in triton.PACKAGES if importlib.util.find_spec(name) is None]
    if absent and os.environ.get("JAXZOO_REQUIRE_AOT") != "1":
        pytest.skip(f"needs the extra triton: {absent} not installed")
    command = [sys.executable, "-m", "tests.pallas_kernels.taylor_attention.triton_process", mode]
    done = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
def test_values_and_states():
    """Kills wrong masks, decay, head sharing, state layouts, blocks of values: one token to several ragged chunks."""
    found = run_process("interpret", TRITON_INTERPRET="1")
    narrow = found.pop("narrow_dtype")
    # float32 sums of 40 products; 2^-11 of float16 in features, state and weights.
    assert {name: errors for name, errors in found.items() if not max(errors) < 1e-6} == {}
    assert max(narrow) < 1e-3


@pytest.mark.full
def test_compiles_without_spills(tmp_path):
    """Kills a program that needs more than 255 registers a thread, and one that Triton or ptxas refuses."""
    found = run_process("compile", JAX_TRITON_DUMP_DIR=str(tmp_path))
    assert len(found) == 6
    for name, said in found.items():
        assert "0 bytes spill stores, 0 bytes spill loads" in said, (name, said)
        assert re.search(r"Used \d+ registers", said), (name, said)


def objection(monkeypatch, *, installed=True, dtype=jnp.bfloat16, k_dim=16):
    monkeypatch.setattr(triton.importlib.util, "find_spec", lambda name: installed or None)
    x = jnp.zeros((1, 4, 2, k_dim), dtype)
    with pytest.raises(NotImplementedError) as error:
        taylor_attention(x, x, x, implementation="triton")
    return str(error.value)


def test_refusals_say_why(monkeypatch):
    """Kills a named implementation that falls back, or that fails inside jax-triton."""
    assert "triton: jax_triton and triton not installed; pip install 'jax-triton==0.3.1'" in objection(
        monkeypatch, installed=False
    )
    assert "runs on cuda, and this is compiled for cpu" in objection(monkeypatch)
    assert "dtypes of q, k, v are ('float32', " in objection(monkeypatch, dtype=jnp.float32)
    assert "feature_dim=17 is more than 16" in objection(monkeypatch, k_dim=17)


@pytest.mark.slow
@pytest.mark.parametrize("decay", [False, True])
def test_vmap_is_one_call_with_more_rows(monkeypatch, decay):
    """Kills a batching rule that mixes up rows, or that batches what is shared; XLA stands for the kernel."""
    calls = []

    def forward(q, k, v, state, rates, *, compute_capability, **options):
        calls.append(q.shape)
        one = api.Options(chunk_size=None, save_states=True, **options)
        run = jax.vmap(lambda q, k, v, state, rate: api.BACKENDS["xla"].forward(q, k, v, state, rate, None, one))
        rows = jax.tree.map(lambda x: x[:, None], (q, k, v, state))
        return jax.tree.map(lambda x: x[:, 0], run(*rows, rates))

    module = "pallas_kernels.taylor_attention.triton_forward"
    monkeypatch.setitem(sys.modules, module, types.SimpleNamespace(forward=forward))
    monkeypatch.setattr(
        sys.modules["pallas_kernels.taylor_attention"], "triton_forward", sys.modules[module], raising=False
    )
    call = Call(t=6, b=2, decay=decay)
    q, k, v, s, z = (jnp.asarray(x, jnp.float32) for x in call.arrays())
    queries = jnp.stack([q, 2 * q, q - 1])
    options = api.Options(scale=0.5, eps=0.1, normalize=True, return_state=True, save_states=True, chunk_size=None)
    rates = None if call.rates is None else jnp.asarray(call.rates)

    def attend(name, q):
        return tuple(api.BACKENDS[name].forward(q, k, v, TaylorState(s, z), rates, None, options))

    found = jax.vmap(lambda q: attend("triton", q))(queries)
    assert_close(found, jax.tree.map(lambda *x: jnp.stack(x), *[attend("xla", q) for q in queries]), 1e-6)
    assert calls[-1] == (6, *q.shape[1:])


@pytest.mark.gpu
@pytest.mark.parametrize("t", [1, 15, 16, 17, 200])
def test_on_a_gpu(t):
    """Kills what neither interpreter nor compiler shows; bfloat16 rounds features, state and weights by 2^-9."""
    call = Call(t=t, b=2, k=16, v=64, h=4, g=2, decay=True)
    arrays = [
        np.asarray(jnp.asarray(x, jnp.bfloat16 if i < 3 else jnp.float32), np.float64)
        for i, x in enumerate(call.arrays())
    ]
    found = measured(call, dtype=jnp.bfloat16, arrays=arrays, implementation="triton")
    assert_close(found, truth(call, arrays), 2e-2)
