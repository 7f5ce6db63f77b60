"""Models whose norms add the branch before them by one kernel, against the plain model: values and gradients.

Kills: a branch that is added twice or lost, at the end of a layer, a period or a stack; a norm of another layer; a
gradient of the residual that leaves out one of its two uses; dropout that is lost.
"""

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxzoo.layers import residual_norm as layer
from jaxzoo.mixers import AttentionConfig, GatedShortConvConfig
from jaxzoo.models import LanguageModel
from pallas_kernels import triton_packages
from pallas_kernels.residual_norm import residual_norm
from tests.models.hybrids import hybrid_config, make_model, random_tokens
from tests.pallas_kernels.shared import full

CONV, ATTENTION = GatedShortConvConfig(), AttentionConfig(n_heads=2)
MODELS = {
    "scanned": {"n_layers": 3},
    "projections": {"pattern": (CONV, ATTENTION), "n_layers": 7, "norm": "rms", "remat": "projections"},
    "mixer_inputs": {"n_layers": 3, "norm": "rms", "remat": "mixer_inputs"},
    "period": {"pattern": (CONV, ATTENTION), "n_layers": 6, "remat": "period"},
    "everything": {"n_layers": 4, "remat": "everything"},
    "no MLP": {"n_layers": 2, "mlp": "none"},
    "norm as MLP": {"n_layers": 2, "mlp": "identity", "scan_layers": False},
    "parallel": {"n_layers": 2, "parallel_residual": True},
    "post-norm": {"pattern": (CONV, ATTENTION), "n_layers": 4, "attention_post_norm": True},
    "dropout": {"n_layers": 3, "residual_dropout": 0.3},
}
CORE = ("projections", "mixer_inputs")


def outputs(model: LanguageModel, tokens, key=None) -> list:
    """Logits, and gradients of all parameters for a random cotangent."""
    graph, params, rest = nnx.split(model, nnx.Param, ...)
    cotangent = jnp.asarray(np.random.default_rng(1).normal(size=(*tokens.shape, 5)), jnp.float32)

    def loss(params):
        logits = nnx.merge(graph, params, rest)(tokens, key=key)
        return jnp.sum(jax.nn.softmax(logits[..., :5]) * cotangent), logits

    (_, logits), gradients = jax.jit(jax.value_and_grad(loss, has_aux=True))(params)
    return [logits, *jax.tree.leaves(gradients)]


def compare(name: str, implementation: str) -> tuple[int, int]:
    """Compares a model by the op with the plain one; returns the number of calls of the op, and of those that add."""
    config = hybrid_config(**{"pattern": (CONV,), "mlp": "swiglu", **MODELS[name]})
    model, tokens = make_model(config), random_tokens(config)
    key = jax.random.key(0) if config.residual_dropout else None
    expected, calls = outputs(model, tokens, key), []

    def form(residual, dtype):
        def call(*arrays, **options):
            calls.append(arrays[1] is not None)
            return residual_norm(*arrays, implementation=implementation, **options)

        return call if residual.ndim == 3 else None

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layer, "_kernel_form", form)
        found = outputs(model, tokens, key)
    largest = max(float(np.abs(x).max()) for x in expected[1:])
    for got, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=0, atol=2e-5 * max(np.abs(wanted).max(), 0.01 * largest))
    return len(calls), sum(calls)


@pytest.mark.parametrize("name", [x if x in CORE else full(x) for x in MODELS])
def test_the_op_in_models(name):
    called, with_branch = compare(name, "xla")
    assert called >= 1
    assert bool(with_branch) == (name not in ("mixer_inputs", "parallel", "dropout"))


@pytest.mark.full
def test_interpreted_kernels_in_models():
    """Kills: a kernel that is wrong only in a scan, under remat, or for the widths of a model."""
    reason = triton_packages.missing()
    if reason is not None and os.environ.get("JAXZOO_REQUIRE_AOT") != "1":
        pytest.skip(f"needs the extra triton: {reason}")
    environment = os.environ | {"TRITON_INTERPRET": "1", "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-m", "tests.models.test_residual_kernels", *CORE, "period"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]


if __name__ == "__main__":
    from tests.pallas_kernels.triton_on_cpu import interpret_in_programs

    interpret_in_programs()
    for name in sys.argv[1:]:
        print(name, compare(name, "triton"), flush=True)
