"""Capture and replacement of values inside a model, as pure functions: they can be jitted, vmapped and differentiated.

Names of values in a `LanguageModel`, for layer 0, 1, ... (`shown` lists them with shapes):

| name | value |
| --- | --- |
| `embedded` | residual stream before layer 0, (b, t, d) |
| `layers.I.mixer.in`, `.mixer.out` | normed input and output of the mixer, (b, t, d) |
| `layers.I.mixer.scores` | weight of the value of token s in the output of token t, (b, h, t, s); of attention,
  linear attention and delta rules |
| `layers.I.mixer.influence` | Frobenius norm of the derivative of the output of token t by the input of token s,
  (b, t, s); any mixer |
| `layers.I.mixer.state` | state after each token, its leaves (b, t, ...); mixers that stream |
| `layers.I.mixer.NAME` | values specific to a mixer: `log_decay` and `beta` of linear attention and delta rules,
  `delta` of Mamba, the gates of RG-LRU |
| `layers.I.mlp.out` | output of the second branch, (b, t, d) |
| `layers.I.out` | residual stream after the layer, (b, t, d) |
| `decoded` | output of the decoder of an autoencoder (`decode_last`), (b, t, d) |
| `features` | output of the final norm, (b, t, d) |

Scores, influence and states are computed only if they are asked for, and cannot be replaced.
"""

from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from typing import Any

import jax
from flax import nnx

from jaxzoo.layers.probe import Recording, Replacement, recording
from jaxzoo.models.language_model import LanguageModel, LanguageModelConfig


def capture(
    target: Callable[..., Any], *names: str, replace: Mapping[str, Replacement | jax.Array] | None = None
) -> Callable[..., tuple[Any, dict[str, Any]]]:
    """Runs a model, or a function of one, and returns its result together with inner values.

        logits, seen = jaxzoo.capture(model, "layers.*.mixer.scores", "layers.1.out")(tokens)
        ablated, _ = jaxzoo.capture(model, replace={"layers.0.mixer.out": jnp.zeros_like})(tokens)

    Args:
      target: a `LanguageModel`, which runs layer by layer; or a function that calls
        `jaxzoo.inspection.laid_open(model)`.
      *names: names to capture, with wildcards `*`, `?`, `[...]`.
      replace: by name or pattern, an array or a function of the computed value, of the same shape and dtype. For causal
        tracing, capture a value on one input and pass it here on another.

    Returns a function of the target's arguments that returns (result, values by full name). It raises `ValueError` for
    a name or pattern that matches nothing, or a replacement of another shape.
    """
    function = laid_open(target) if isinstance(target, LanguageModel) else target
    changes: dict[str, Replacement] = {
        name: new if callable(new) else lambda _, new=new: new for name, new in (replace or {}).items()
    }

    def captured(*args: Any, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        into = Recording(names, changes)
        with recording(into):
            result = function(*args, **kwargs)
        missing = [p for p in into.patterns if not any(fnmatchcase(name, p) for name in into.seen)]
        missing += [p for p in into.replace if p not in into.replaced]
        if missing:
            raise ValueError(
                f"capture: nothing is shown as {missing[0]!r}; jaxzoo.inspection.shown(model) lists the names, and "
                "what is computed for a capture alone (scores, influence, state) cannot be replaced"
            )
        return result, into.seen

    return captured


def shown(model: LanguageModel | LanguageModelConfig, batch_size: int = 1, length: int = 8) -> dict[str, Any]:
    """Returns the names that `capture` accepts, with shapes and dtypes of their values, without computing anything."""
    config = model.config if isinstance(model, LanguageModel) else model

    def run(tokens: jax.Array) -> dict[str, Any]:
        return capture(LanguageModel(config, rngs=nnx.Rngs(0)), "*")(tokens)[1]

    return jax.eval_shape(run, jax.ShapeDtypeStruct((batch_size, length), "int32"))


def laid_open(model: LanguageModel) -> LanguageModel:
    """Returns the model layer by layer and without rematerialization, so that values can leave every layer."""
    flat = model.unstacked()
    for stack in flat.stacks:
        stack.remat = "nothing"
    return flat
