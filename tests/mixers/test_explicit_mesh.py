"""Every mixer under a mesh with Explicit axes, which `jax.make_mesh` makes by default."""

import jax
import numpy as np
import pytest
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec as P

from jaxzoo.mixers import MIXERS, Context
from tests.mixers.moved import abstract_mixer, quick_rngs
from tests.pallas_kernels.shared import assert_close, needs_eight_devices, slow

pytestmark = needs_eight_devices
ROWS, LENGTH, HEAD = 4, 12, 5


def arrays(config):
    rng = np.random.default_rng(0)
    x, dy = (rng.standard_normal((ROWS, LENGTH, config.d_model)).astype(np.float32) for _ in range(2))
    tokens = rng.integers(0, 7, (ROWS, LENGTH)).astype(np.int32)
    return x, dy, tokens


def every_form(mixer, x, dy, tokens, first_values):
    """Output, gradients of parameters and input, and where it streams a prefill and steps under `lax.scan`."""
    graph, params, others = nnx.split(mixer, nnx.Param, ...)

    def output(params, x):
        return nnx.merge(graph, params, others)(x, Context(tokens=tokens, first_values=first_values))

    y, pull_back = jax.vjp(output, params, x)
    found = [y, pull_back(dy)]
    if mixer.config.capabilities.streams:
        part = (lambda i: None) if first_values is None else lambda i: first_values[:, i]
        state = mixer.init_state(ROWS, capacity=LENGTH)
        first = Context(tokens=tokens[:, :HEAD], first_values=part(slice(HEAD)))
        head, state = mixer.prefill(x[:, :HEAD], state, first)

        def step(state, i):
            context = Context(tokens=tokens[:, i], first_values=part(i))
            y, state = mixer.step(x[:, i], state, context)
            return state, y

        found += [head, jax.lax.scan(step, state, np.arange(HEAD, LENGTH))]
    return found


def by_columns(mesh, parameter):
    """The last axis of matrices over `tensor`, where it can be."""
    spec = P(None, "tensor") if parameter.ndim == 2 and parameter.shape[1] % 2 == 0 else P()
    return NamedSharding(mesh, spec)


def mesh_of_eight():
    return jax.make_mesh((4, 2), ("data", "tensor"))


CORE = ("gated_delta_net", "hyena", "mamba", "taylor_linear_attention")
"""One of each way to fail; the values of the others run with the slow tier."""


@pytest.mark.full
@pytest.mark.parametrize("name", [name for name in sorted(MIXERS) if name not in CORE])
def test_types_of_all_arrays(name):
    """Kills a mixer that asks for Auto axes, and a state whose sharding changes in a scan: shardings are part of the
    types that tracing checks. The output is sharded as the input. Nothing is compiled."""
    config, mesh = MIXERS[name].tiny(), mesh_of_eight()

    def sharded(array):
        return jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=NamedSharding(mesh, P("data")))

    def parameter(leaf):
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=by_columns(mesh, leaf))

    x, dy, tokens = (sharded(array) for array in arrays(config))
    mixer = jax.tree.map(parameter, abstract_mixer(config))
    with jax.set_mesh(mesh):
        found = jax.eval_shape(every_form, mixer, x, dy, tokens, x if config.capabilities.needs_values else None)
    assert found[0].sharding.spec[0] == "data"


@pytest.mark.full
@pytest.mark.parametrize("name", [name if name in CORE else slow(name) for name in sorted(MIXERS)])
def test_forms_and_gradients(name):
    """Kills a mixer whose values change on a mesh: rows and parameters are sharded; values stay as they were without
    one, the output is sharded as the input, and the state can be carried by a scan."""
    config = MIXERS[name].tiny()
    mixer = config.build(rngs=quick_rngs())
    x, dy, tokens = arrays(config)
    first_values = x[..., ::-1].copy() if config.capabilities.needs_values else None
    run = jax.jit(every_form)
    expected = run(mixer, x, dy, tokens, first_values)
    mesh = mesh_of_eight()
    rows = NamedSharding(mesh, P("data"))
    x, dy, tokens = (jax.device_put(array, rows) for array in (x, dy, tokens))
    if first_values is not None:
        first_values = jax.device_put(first_values, rows)
    mixer = jax.tree.map(lambda leaf: jax.device_put(leaf, by_columns(mesh, leaf)), mixer)
    with jax.set_mesh(mesh):
        found = run(mixer, x, dy, tokens, first_values)
        assert_close(found, expected, 1e-4)
        assert found[0].sharding.spec[0] == "data"
