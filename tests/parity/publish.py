"""Writes `tests/interop/published`: `TRITON_INTERPRET=1 python -m tests.parity.publish [NAME ...]`, in the parity
environment, after a new family; Qwen3-Next and 3.5 in one without flash-linear-attention, whose kernels they would run.
"""

import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch

from jaxzoo.interop.loading import read_tensors
from tests.interop.published import DIRECTORY, TOKENS, numbers, write_folder
from tests.parity import based_model
from tests.parity.folders import FOLDERS, make_model

REST = ("llama-linear", "llama-yarn-unrounded", "mistral-full", "gpt_neox-plain", "olmo_hybrid-rotary")
PUBLISHED = sys.argv[1:] or [name for name in FOLDERS if name not in REST]


def store(name, config, model, shapes):
    """One file: the model's logits with the numbers of the rule."""
    with torch.no_grad():
        for key, value in model.state_dict().items():
            if shapes[0].get(key, key) not in shapes[1]:
                model = read_again(config, model, shapes[1])
                break
            value.copy_(torch.tensor(numbers(shapes[0].get(key, key), tuple(value.shape))))
        found = model(torch.tensor(TOKENS.astype(np.int64)))
    logits = (found if isinstance(found, torch.Tensor) else found.logits).numpy()[:, -2:, :5]
    content = {"config": config, "shapes": shapes[1], "logits": np.round(logits.astype(float), 6).tolist()}
    (DIRECTORY / f"{name}.json").write_text(json.dumps(content, indent=1) + "\n")


def read_again(config, model, saved):
    """The model as transformers loads it, if the tensors that it saves are others than those that it computes with."""
    with tempfile.TemporaryDirectory() as place:
        write_folder(Path(place), config, {key: numbers(key, tuple(shape)) for key, shape in saved.items()})
        found = type(model).from_pretrained(place, dtype=torch.float32).eval()
    found.config.use_cache = False
    return found


def main():
    DIRECTORY.mkdir(exist_ok=True)
    for name in PUBLISHED:
        model = make_model(name)
        with tempfile.TemporaryDirectory() as place:
            model.save_pretrained(place)
            config = json.loads((Path(place) / "config.json").read_text())
            saved = {key: list(array.shape) for key, array in read_tensors(Path(place)).items()}
        for field in ("transformers_version", "architectures"):
            config.pop(field, None)
        model.config.use_cache = False
        renamed = {"lm_head.weight": "embed_out.weight"} if "embed_out.weight" in saved else {}
        if "lm_head.weight" not in saved and not renamed:  # tied: the embedding's numbers are written last, in both
            renamed = {"lm_head.weight": next(key for key in saved if "embed" in key)}
        store(name, config, model, (renamed, saved))
    for name in () if sys.argv[1:] else ("BASED", "TRANSFORMER_PP", "ODD"):
        config = getattr(based_model, name)
        model = based_model.Based(config)
        saved = {key: list(value.shape) for key, value in model.state_dict().items() if key != "lm_head.weight"}
        store(
            name.lower().replace("odd", "transformer_pp-odd"),
            config,
            model,
            ({"lm_head.weight": "transformer.embeddings.word_embeddings.weight"}, saved),
        )


if __name__ == "__main__":
    main()
