"""Products that an accelerator must not round: those of states, of scales and of positions."""

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from jaxzoo.layers.causal_conv import causal_conv_step
from jaxzoo.layers.hyena_filter import HyenaFilter, HyenaFilterConfig
from jaxzoo.layers.implicit_filter import ImplicitFilter
from jaxzoo.ops.log_linear_attention import empty_log_linear_state, log_linear_attention


def precisions(function, *arguments):
    """Precisions of all products of a function, loops included."""

    def inside(jaxpr):
        for equation in jaxpr.eqns:
            if equation.primitive.name == "dot_general":
                yield equation.params["precision"]
            for value in jax.tree.leaves(list(equation.params.values()), is_leaf=lambda x: hasattr(x, "eqns")):
                if hasattr(getattr(value, "jaxpr", value), "eqns"):
                    yield from inside(getattr(value, "jaxpr", value))

    return list(inside(jax.make_jaxpr(function)(*arguments).jaxpr))


def _log_linear(q):
    state = empty_log_linear_state(1, 4, 2, 4, 4)
    return log_linear_attention(q, q, q, log_decay=-q[..., 0], scales=q, state=state)[0]


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        (causal_conv_step, (jnp.ones((2, 3)), jnp.ones((4, 3)), jnp.ones((2, 3, 3)))),
        (lambda x: ImplicitFilter(3, n_taps=9, axes=(None,), rngs=nnx.Rngs(0))(9) * x, (1.0,)),
        (lambda x: HyenaFilter(HyenaFilterConfig(), 3, n_taps=9, std=0.02, rngs=nnx.Rngs(0))(9) * x, (1.0,)),
        (_log_linear, (jnp.ones((1, 9, 2, 4)),)),
    ],
    ids=["step of a convolution", "implicit filter", "filter of Hyena", "log-linear attention"],
)
def test_no_product_is_rounded(function, arguments):
    """Kills: a step that differs from the call by the 8 bits of a TPU's product, taps of a long filter that read the
    same position."""
    found = precisions(function, *arguments)
    assert found
    assert all(each is not None and set(each) == {jax.lax.Precision.HIGHEST} for each in found)
