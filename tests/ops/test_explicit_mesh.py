"""Recurrent ops under a mesh with Explicit axes, rows and heads sharded."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec as P

from jaxzoo.ops.bonus_linear_attention import bonus_linear_attention
from jaxzoo.ops.delta_rule import delta_rule
from jaxzoo.ops.linear_attention import linear_attention
from jaxzoo.ops.wkv4 import wkv4
from tests.pallas_kernels.shared import assert_close, needs_eight_devices

pytestmark = needs_eight_devices
B, T, H, K = 4, 21, 2, 8


def draw(*shape):
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32)


TOKENS = [draw(B, T, H, K) * scale for scale in (1, 0.3, 1)]
DECAY = -np.abs(draw(B, T, H))
CASES = {
    "linear_attention": (linear_attention, TOKENS, {"log_decay": DECAY}),
    "delta_rule": (delta_rule, TOKENS, {"beta": np.exp(DECAY), "log_decay": DECAY}),
    "bonus_linear_attention": (
        functools.partial(bonus_linear_attention, bonus=draw(H, K)),
        TOKENS,
        {"log_decay": -np.abs(draw(B, T, H, K))},
    ),
    "wkv4": (functools.partial(wkv4, w=-np.abs(draw(H)), u=draw(H)), [draw(B, T, H), draw(B, T, H) + 1], {}),
}


@pytest.mark.full
@pytest.mark.parametrize("name", CASES)
def test_values_states_and_gradients(name):
    """Kills an op that asks for Auto axes, and a state that loses the sharding of rows and heads."""
    op, tokens, options = CASES[name]

    def run(tokens, options):
        (y, state), pull_back = jax.vjp(lambda *x: op(*x, **options), *tokens)
        again = op(*tokens, **options, initial_state=state)
        return y, state, pull_back((y, jax.tree.map(jnp.ones_like, state))), again

    expected = jax.jit(run)(tokens, options)
    mesh = jax.make_mesh((4, 2), ("data", "tensor"))
    place = functools.partial(jax.tree.map, lambda x: jax.device_put(x, NamedSharding(mesh, P("data", None, "tensor"))))
    with jax.set_mesh(mesh):
        y, state, *others = jax.jit(run)(place(tokens), place(options))
    assert_close([y, state, *others], expected, 1e-4)
    assert y.sharding.spec[:3] == ("data", None, "tensor")
    if name != "wkv4":
        assert jax.tree.leaves(state)[0].sharding.spec[:2] == ("data", "tensor")
