"""Adapters as a safetensors file, for the model on which they were trained.

Names are the adapted matrices' with the suffix `a` or `b`, such as `stacks.0.blocks.1.mixer.q_proj.kernel.a`.
The metadata are strings: `lora` (rank, targets and alpha, JSON), `base` (digest of the adapted model's variables),
`step` and `jaxzoo_version`.
"""

import json
from pathlib import Path

import jax
import jax.numpy as jnp

from jaxzoo import __version__
from jaxzoo.config.json_files import parse_json
from jaxzoo.loading.trained import Which, on_device, read_run, read_stored
from jaxzoo.models.adapters import AdaptedBlueprint, Lora, adapt, merge, stored_lora, with_adapters
from jaxzoo.models.blueprint import Variables, make_blueprint, names_of
from jaxzoo.models.model_config import LanguageModelConfig
from jaxzoo.train.export import opened, save_arrays
from jaxzoo.utils.checksums import variables_digest


def write_adapters(directory: Path, file: Path, step: Which = None) -> tuple[int, int]:
    """Writes the adapters of a run's checkpoint; returns the number of their parameters and the step.

    Raises `ValueError` if the run has no adapters, or no such checkpoint.
    """
    run, config = read_run(directory)
    lora = stored_lora(run.read_config())
    if lora is None:
        raise ValueError(f"{run.path} was trained without adapters; export it without --adapters")
    blueprint = adapt(make_blueprint(config.model), lora)
    own = Variables(*on_device(blueprint.base.shapes, jax.devices("cpu")[0]))
    variables, seal = read_stored(run, step, with_adapters(blueprint, own), str(run.path), "by its config")
    metadata = {
        "jaxzoo_version": __version__,
        "lora": json.dumps((stored_lora(seal.config) or lora)._asdict()),
        "base": variables_digest(blueprint.own(variables)),
        "step": str(seal.step),
    }
    save_arrays(file, names_of(variables.params, "."), metadata)
    return blueprint.n_params, seal.step


def apply_adapters(file: Path, model: LanguageModelConfig, own: Variables) -> Variables:
    """Merges the adapters of a file into the variables of a model.

    Raises `ValueError` if the file has no adapters, or adapters of other variables.
    """
    with opened(file) as content:
        metadata = content.metadata() or {}
        if "lora" not in metadata or "base" not in metadata:
            raise ValueError(f"{file} holds no adapters; make it by jaxzoo export --adapters")
        if metadata["base"] != variables_digest(own):
            raise ValueError(f"{file}: its adapters were trained on another model; load the run that they adapt")
        lora = parse_json(metadata["lora"], Lora, where=f"{file}: lora")
        blueprint: AdaptedBlueprint = adapt(make_blueprint(model), lora)

        def read(path, _: jax.ShapeDtypeStruct) -> jax.Array:
            return jnp.asarray(content.get_tensor(jax.tree_util.keystr(path, simple=True, separator=".")))

        adapters = jax.tree.map_with_path(read, blueprint.shapes.params)
    return merge(blueprint, with_adapters(blueprint, own)._replace(params=adapters))
