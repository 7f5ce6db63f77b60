"""Config fields of published models, in tiny sizes.

`published_configs.json` holds the fields of public copies of config.json, each with its source; only their sizes change
here. Tensors are made by a rule, with the names and shapes that the family's table gives.
"""

import json
import re
from pathlib import Path

from jaxzoo.interop.families import FAMILIES
from jaxzoo.interop.fields import Fields
from jaxzoo.interop.mapping import slots, their_shapes
from jaxzoo.models.blueprint import make_blueprint
from tests.interop import published

PUBLISHED = json.loads((Path(__file__).parent / "published_configs.json").read_text())
MODELS = {entry["model"]: entry["config"] for entry in PUBLISHED}
D, LAYERS, VOCAB = 32, 3, 61


def tiny(config):
    """Scales the sizes down and keeps their ratios."""
    if "text_config" in config:
        return config | {"text_config": tiny(config["text_config"])}
    heads, groups = config.get("num_attention_heads"), config.get("num_key_value_heads")
    small = {"hidden_size": D, "d_model": D, "d_inner": 2 * D, "vocab_size": VOCAB, "max_window_layers": 2}
    small |= {"num_hidden_layers": LAYERS, "n_layer": LAYERS, "lru_width": D, "attention_hidden_size": D}
    small |= {"intermediate_size": 2 * D, "num_attention_heads": 4, "time_step_rank": 2, "n_groups": 2, "num_heads": 8}
    small |= {"block_ff_dim": 2 * D, "expand_ratio": 8, "linear_num_key_heads": 2, "linear_num_value_heads": 4}
    small |= {"linear_key_head_dim": 8, "linear_value_head_dim": 8}
    small["num_key_value_heads"] = groups if groups == 1 else 4 if groups == heads else 2
    if heads and "head_dim" in config:
        small["head_dim"] = 8 if config["head_dim"] * heads == config["hidden_size"] else 16
    elif "head_dim" in config:
        small["head_dim"] = 8  # of Mamba-2 and Gated DeltaNet
    found = {name: value if value is None else small.get(name, value) for name, value in config.items()}
    if (config.get("pad_token_id") or 0) >= VOCAB:
        found["pad_token_id"] = None
    if "layer_types" in config:
        found["layer_types"] = config["layer_types"][-LAYERS:]
    if "attention_window_size" in config:
        found["attention_window_size"] = 6
    if config.get("expand", 2) > 2:
        found["expand"] = 2  # the fields of Falcon-Mamba-7B say 16, and its tensors 2
    if config.get("sliding_window"):
        found["sliding_window"] = 6
    return found


def write_folder(model, directory):
    """Writes a folder of tiny sizes; returns its fields."""
    config = tiny(MODELS[model])
    rows = -(-VOCAB // config.get("pad_vocab_size_multiple", 1)) * config.get("pad_vocab_size_multiple", 1)
    is_ours = "model_type" not in config  # the authors' library pads the vocabulary
    names = ["backbone.embedding.weight"] if is_ours else []
    family = next(each for each in FAMILIES.values() if each.matches(config, names))
    shapes = dict.fromkeys(names, (rows, D))
    read = family.read(Fields(config, "config.json"), shapes)
    places = slots(read, make_blueprint(read))
    arrays = {
        name: published.numbers(name, shape)
        for move in family.moves(read)
        for name, shape in their_shapes(move, places).items()
    }
    if "text_config" in config:  # next to the part of pictures
        arrays = {re.sub("^model", "model.language_model", name): array for name, array in arrays.items()}
    published.write_folder(directory, config, arrays)
    return config
