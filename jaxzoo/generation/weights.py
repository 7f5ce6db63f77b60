"""Weights of generation: parameters that every program casts to the compute dtype, cast once."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Jaxpr, Literal

from jaxzoo.models.blueprint import Variables, make_blueprint
from jaxzoo.models.language_model import LanguageModelConfig

_CALLS = ("jit", "pjit", "closed_call", "checkpoint", "custom_jvp_call", "custom_vjp_call")
"""Primitives whose operands are the arguments of their inner jaxpr."""


def cast_weights(config: LanguageModelConfig, variables: Variables) -> tuple[LanguageModelConfig, Variables]:
    """Returns the model with parameters in the compute dtype, so that a decode step reads them as they are.

    Parameters that some operation reads in float32 (norms, taps, decay rates, the embedding) stay float32: outputs do
    not change. A tied head becomes a cast copy of the embedding. `variables`: of `LanguageModel.unstacked`.
    """
    dtype = config.compute_dtype
    if dtype == jnp.float32:
        return config, variables
    if config.tie_embeddings:
        config = dataclasses.replace(config, tie_embeddings=False)
        variables = variables._replace(params=variables.params | {"head": variables.params["embedding"]})
    leaves, tree = jax.tree.flatten(variables)
    cast = [x.astype(dtype) if yes else x for x, yes in zip(leaves, only_cast(config), strict=True)]
    return config, jax.tree.unflatten(tree, cast)


@functools.cache
def only_cast(config: LanguageModelConfig) -> tuple[bool, ...]:
    """Whether prefill and decode step of the model do nothing with a leaf of its variables but cast it to the compute
    dtype."""
    blueprint = make_blueprint(config, scanned=False)

    def both(variables: Variables) -> Any:
        model = blueprint.model(variables)
        tokens = jnp.zeros((1, 8), jnp.int32)
        _, state = model.prefill(tokens, model.init_state(1, capacity=16))
        return model.step(tokens[:, 0], state)

    return tuple(_only_cast(jax.make_jaxpr(both)(blueprint.shapes).jaxpr, config.compute_dtype))


def _only_cast(jaxpr: Jaxpr, dtype: jnp.dtype) -> list[bool]:
    """Whether all uses of an argument cast it to `dtype`, in the order of the arguments."""
    others = {x for x in jaxpr.outvars if not isinstance(x, Literal)}
    for equation in jaxpr.eqns:
        inner = equation.params.get("jaxpr", equation.params.get("call_jaxpr"))
        if equation.primitive.name == "convert_element_type":
            casts = [equation.params["new_dtype"] == dtype]
        elif equation.primitive.name in _CALLS and inner is not None:
            casts = _only_cast(getattr(inner, "jaxpr", inner), dtype)
        else:
            casts = [False] * len(equation.invars)
        others |= {x for x, yes in zip(equation.invars, casts, strict=True) if not yes and not isinstance(x, Literal)}
    return [x not in others for x in jaxpr.invars]
