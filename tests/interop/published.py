"""Tiny folders in the layouts that transformers publishes, without PyTorch: stored configs, numbers by a rule.

`published/NAME.json` holds a config.json that transformers wrote, the shapes of its tensors, and logits that it
computed; `python -m tests.parity.publish` writes these files.
"""

import hashlib
import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

DIRECTORY = Path(__file__).parent / "published"
NAMES = sorted(file.stem for file in DIRECTORY.glob("*.json"))
TOKENS = (np.arange(2 * 19).reshape(2, 19) * 7919 % 61).astype(np.int32)
"""Prompts of the stored logits."""


def read(name):
    """Config, shapes and logits of a folder."""
    content = json.loads((DIRECTORY / f"{name}.json").read_text())
    return (
        content["config"],
        {key: tuple(shape) for key, shape in content["shapes"].items()},
        np.array(content["logits"]),
    )


def numbers(name, shape):
    """Tensor determined by its name: normal around 0, or around 1 for the scale of a norm."""
    seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "little")
    return np.random.default_rng(seed).normal(0.0, 0.3, shape).astype(np.float32)


def write_folder(directory, config, arrays):
    """Writes config.json and model.safetensors."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config))
    save_file(
        {key: np.ascontiguousarray(array, np.float32) for key, array in arrays.items()}, directory / "model.safetensors"
    )


def make_folder(name, directory):
    """Writes the folder of a stored file; returns its logits at `TOKENS`."""
    config, shapes, logits = read(name)
    write_folder(directory, config, {key: numbers(key, shape) for key, shape in shapes.items()})
    return logits
