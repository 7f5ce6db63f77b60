"""Folders that we write, read by the installed transformers, 4.56 or 5.

The older version needs an environment of its own: its tokenizers and hub are older.
"""

from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from jaxzoo.interop import load, save
from jaxzoo.interop.families.fla import KINDS
from jaxzoo.interop.runs import find_source
from tests.interop import published
from tests.interop.test_smollm2 import KNOWN, MISSING, REMEDY
from tests.parity.test_interop import logits_of

pytestmark = pytest.mark.parity
ELSEWHERE = ("based", "transformer_pp", "rwkv6", *KINDS)
NAMES = [name for name in published.NAMES if not name.startswith(ELSEWHERE)]
OLDER = {
    "qwen3_next": "transformers 4.56 has no Qwen3-Next",
    "qwen3_5": "transformers 4.56 has no Qwen3.5",
    "mamba2": "transformers 4.56 normalizes all groups of channels together",
}
WINDOW = 6  # in one pass transformers 4.56 lets RecurrentGemma's attention see all tokens


@pytest.mark.parametrize("name", NAMES)
def test_written_folder(name, tmp_path, torch, transformers):
    """Kills: a rotary base or scaling that only one of the two versions reads, and the other replaces by 10,000."""
    is_older = int(transformers.__version__.split(".")[0]) < 5
    if is_older and name in OLDER:
        pytest.skip(OLDER[name])
    published.make_folder(name, tmp_path / "theirs")
    model = load(tmp_path / "theirs").model
    save(model, tmp_path / "ours")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "ours", dtype=torch.float32).eval()
    tokens = np.asarray(published.TOKENS)
    n = WINDOW if is_older and name.startswith("recurrent_gemma") else tokens.shape[1]
    expected, found = np.asarray(model(jnp.asarray(tokens))), logits_of(theirs, tokens, torch)
    np.testing.assert_allclose(found[:, :n], expected[:, :n], rtol=0, atol=1e-4)


@pytest.mark.skipif(MISSING, reason=REMEDY)
def test_real_model(tmp_path, torch, transformers):
    """Kills: an exported real model that another library reads otherwise, does not stop, or whose text it cuts
    otherwise."""
    loaded = load(find_source(Path("smollm2")))
    save(loaded.model, tmp_path, tokenizer=loaded.tokenizer)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert "<|im_start|>user" in tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False)
    for prompt in KNOWN["prompts"]:
        assert tokenizer(prompt["prompt"])["input_ids"] == prompt["ids"]
        found = theirs.generate(torch.tensor([prompt["ids"]]), max_new_tokens=12, do_sample=False)
        assert found[0, len(prompt["ids"]) :].tolist() == prompt["greedy"]
    assert theirs.generation_config.eos_token_id == loaded.tokenizer.end_of_text
