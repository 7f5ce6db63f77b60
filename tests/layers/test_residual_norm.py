"""The kernel that adds and norms is taken where it is verified and serves a mesh, and nowhere else."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxzoo.layers import residual_norm as layer
from jaxzoo.layers.norm import norm
from jaxzoo.layers.probe import Recording, recording
from jaxzoo.layers.residual_norm import ResidualStream, add_and_norm, has_kernel, settled
from jaxzoo.parallel.sharding import MeshConfig, make_mesh
from pallas_kernels import certificates, triton_packages
from pallas_kernels.dispatch import lowering_for
from pallas_kernels.residual_norm import residual_norm

X = jax.ShapeDtypeStruct((4, 8, 16), jnp.float32)


def test_where_the_kernel_is_taken(monkeypatch):
    """Kills: a kernel that nobody verified; one in a decode step, in a recording, or that a mesh would partition."""
    monkeypatch.setattr(triton_packages, "missing", lambda: None)
    assert not has_kernel(X, jnp.bfloat16)
    with certificates.using(""):
        for capability in ("8.0", "9.0"):
            with lowering_for("cuda", capability=capability):
                assert not has_kernel(X, jnp.bfloat16)
    with lowering_for("cuda"), certificates.using("all"):
        assert has_kernel(X, jnp.bfloat16)
        assert not has_kernel(jax.ShapeDtypeStruct((4, 16), jnp.float32), jnp.bfloat16)
        with recording(Recording((), {})):
            assert not has_kernel(X, jnp.bfloat16)
        for sizes in ({"data": 2, "fsdp": 2, "sequence": 2}, {"data": 4, "tensor": 2}, {"data": 8}):
            with jax.set_mesh(make_mesh(MeshConfig(**sizes))):
                assert has_kernel(X, jnp.bfloat16) == ("sequence" in sizes)


@pytest.mark.parametrize("kind", ["rms", "layer"])
def test_arguments_of_the_kernel(kind, monkeypatch):
    """Kills: a bias, an eps or a mean that the kernel does not get, and an output in another dtype."""
    monkeypatch.setattr(
        layer, "_kernel_form", lambda *_: lambda *x, **options: residual_norm(*x, **options, implementation="reference")
    )
    rng = np.random.default_rng(0)
    module: Any = norm(kind, 16, eps=0.3, rngs=nnx.Rngs(0))
    for variable in (module.scale, *((module.bias,) if kind == "layer" else ())):
        variable[...] = jnp.asarray(rng.normal(size=16), jnp.float32)
    stream = ResidualStream(*(jnp.asarray(rng.normal(size=X.shape) + 1, jnp.float32) for _ in range(2)))
    r, n = add_and_norm(stream, module, jnp.float16)
    np.testing.assert_allclose(r, settled(stream))
    assert n.dtype == jnp.float16
    np.testing.assert_allclose(n, module(settled(stream)), rtol=1e-3, atol=2e-3)
