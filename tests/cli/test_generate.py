"""`jaxzoo generate`. Kills: text from another checkpoint, tokenizer or model."""

import io
import json
import sys
from pathlib import Path

import jax
import orbax.checkpoint as ocp
import pytest

from jaxzoo.cli.generate import GenerateCommand, main
from jaxzoo.config.config_io import from_json
from jaxzoo.data.tokenizer import ByteTokenizer
from jaxzoo.generation import Generation, Sampling, generate
from jaxzoo.loading import load
from jaxzoo.models import LanguageModel
from jaxzoo.train.checkpoint import Checkpoints, restore
from jaxzoo.train.config import RunConfig
from jaxzoo.train.session import Session

TOKENIZER = ByteTokenizer()
PROMPTS = ("never odd", "a word; 3", "é", "x" * 90)


@pytest.fixture(scope="module")
def model(trained_run) -> LanguageModel:
    """Model of the newest checkpoint, restored by the trainer's functions."""
    config = from_json(json.loads((trained_run / "config.json").read_text()), RunConfig)
    session = Session(config)
    assert Checkpoints(trained_run / "checkpoints").newest == 4
    state = restore(trained_run / "checkpoints" / "4", session.abstract_state)[0]
    return session.blueprint.model(jax.device_put(jax.device_get(state.variables)))


def expected(model: LanguageModel, *prompts: str, max_tokens: int = 40, **options) -> list[str]:
    """Generates with the library and decodes the whole text at once."""
    stops = (TOKENIZER.end_of_text,)
    encoded = [TOKENIZER.encode(prompt) for prompt in prompts]
    new = generate(model, encoded, max_tokens=max_tokens, stop_tokens=stops, **options)
    return [TOKENIZER.decode(tokens[tokens != TOKENIZER.end_of_text]) for tokens in new]


def test_text_of_one_prompt_is_what_the_library_gives(trained_run, model, capsys):
    """Kills: another checkpoint, parameters restored from another mesh in the wrong order, an ignored flag, streamed
    text that differs from the whole text, other output on standard output."""
    flags = "--max-tokens 40 --temperature 0.9 --top-k 50 --top-p 0.95 --seed 7"
    assert main(["--run", str(trained_run), "--prompt", PROMPTS[0], *flags.split()]) == 0
    captured = capsys.readouterr()
    sampling = Sampling(temperature=0.9, top_k=50, top_p=0.95)
    assert captured.out == expected(model, PROMPTS[0], sampling=sampling, seed=7)[0] + "\n"
    for said in ("4", "checkpoint 4", "read 9 prompt tokens", "40 new tokens", "tokens/s"):
        assert said in captured.err


def test_prompt_from_standard_input_and_stop_strings(trained_run, model, capsys, monkeypatch):
    """Kills: a stop string that is shown or run over, a row that goes on after it."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"never odd")))
    (text,) = expected(model, "never odd", max_tokens=100)
    stop = text[20:23]
    steps = []
    plain = Generation.__next__
    monkeypatch.setattr(Generation, "__next__", lambda self: steps.append(plain(self)) or steps[-1])
    flags = ["--max-tokens", "100", "--prompt-file", "-", "--stop", stop, "--stop", "no such text"]
    assert main(["--run", str(trained_run), *flags]) == 0
    assert capsys.readouterr().out == text[: text.index(stop)] + "\n"
    assert sum(len(block[0]) for block in steps) < 60


def test_an_older_checkpoint_is_another_model(trained_run, capsys):
    """Kills: a --checkpoint that is ignored."""
    for flags in ([], ["--checkpoint", "3"]):
        assert main(["--run", str(trained_run), "--prompt", "a", "--max-tokens", "5", *flags]) == 0
    assert "checkpoint 4" in (err := capsys.readouterr().err)
    assert "checkpoint 3" in err


def files_of(directory: Path) -> dict:
    return {p: (p.stat().st_mtime_ns, p.read_bytes() if p.is_file() else b"") for p in directory.rglob("*")}


@pytest.mark.full
def test_a_checkpoint_under_way_is_neither_used_nor_touched(run_copy, capsys):
    """Kills: half a checkpoint taken for the newest one, and a reader that cleans up after a run that goes on."""
    run = run_copy()
    half = run / "checkpoints" / "9.orbax-checkpoint-tmp"
    (half / "state").mkdir(parents=True)
    (half / "state" / "manifest.ocdbt").write_bytes(b"half")
    before = files_of(run)
    assert main(["--run", str(run), "--prompt", "a", "--max-tokens", "5"]) == 0
    assert "checkpoint 4" in capsys.readouterr().err
    assert files_of(run) == before


@pytest.mark.full
def test_only_parameters_are_read(trained_run, monkeypatch):
    """Kills: the optimizer's state, twice the parameters, also read into memory."""
    seen, handler = [], ocp.PyTreeCheckpointHandler
    restore = handler.restore
    monkeypatch.setattr(handler, "restore", lambda *a, **k: seen.append(restore(*a, **k)) or seen[-1])
    loaded = load(trained_run, text=True)
    (restored,) = seen
    assert set(restored) == {"params"}
    assert loaded.step == 4
    assert all(leaf.device == jax.devices()[0] for leaf in jax.tree.leaves(restored))


def refused(capsys, *flags: str) -> str:
    assert main(flags) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    return line.removeprefix("error: ")


def test_one_line_for_a_mistake_on_the_command_line(trained_run, capsys):
    """Kills: a traceback, or text in spite of a mistake."""
    for flags, message in [
        ([], "nothing to continue: give --prompt TEXT, or --prompt-file FILE"),
        (["--prompt", ""], "--prompt '' is empty; give at least one character"),
        (["--prompt", "a", "--prompt", ""], "--prompt '' is empty"),
        (["--prompt", "\udcff"], "must be UTF-8 text, but byte 0 is not"),
        (["--prompt-file", "/no/such"], "--prompt-file /no/such cannot be read: No such file"),
        (["--prompt", "a", "--run", "/no/such"], "/no/such does not exist; it must be the directory of a run"),
        (["--prompt", "a", "--checkpoint", "7"], "checkpoint 7 must be one of 3, 4, those in"),
        (["--prompt", "a", "--checkpoint", "-1"], "--checkpoint -1 must not be negative"),
        (["--prompt", "a", "--temperature", "-1"], "--temperature -1.0 must not be negative"),
        (["--prompt", "a", "--top-p", "0"], "--top-p 0.0 must be in (0, 1]"),
        (["--prompt", "a", "--top-p", "1.1"], "--top-p 1.1 must be in (0, 1]"),
        (["--prompt", "a", "--top-k", "-2"], "--top-k -2 must not be negative"),
        (["--prompt", "a", "--top-k", "many"], "--top-k: invalid literal for int()"),
        (["--prompt", "a", "--max-tokens", "0"], "--max-tokens 0 must be positive"),
        (["--prompt", "a", "--seed", "-1"], "--seed -1 must be in [0, 2^32)"),
        (["--prompt", "a", "--stop", ""], "stop='' must not be empty"),
        (["--promt", "a"], "unknown option --promt; did you mean --prompt?"),
        (["stray"], "unexpected argument 'stray'"),
    ]:
        run = [] if "--run" in flags else ["--run", str(trained_run)]
        assert message in refused(capsys, *run, *flags)


@pytest.mark.full
@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"n_layers": 1}, "is of another model: variable stacks/0/blocks/0/"),
        ({"tie_embeddings": False}, "variable head has shape None there and (264, 8) by config.json"),
        ({"vocab_size": 300}, "variable embedding has shape (264, 8) there and (304, 8) by config.json"),
        ({"vocab_size": 40}, "LanguageModelConfig.vocab_size=40 must be at least the 257 ids of the tokenizer"),
        ({"d_modle": 8}, "LanguageModelConfig has no field 'd_modle'; did you mean 'd_model'?"),
        ({"max_positions": 16}, "variable position_embedding has shape None"),
        ({"norm_eps": 0.5}, "is of another model: model.norm_eps differs"),
    ],
)
def test_one_line_for_a_checkpoint_of_another_model(fields, message, run_copy, capsys):
    """Kills: layers that are silently left out or not restored (Orbax restores what it finds)."""
    assert message in refused(capsys, "--run", str(run_copy(**fields)), "--prompt", "a")


def test_one_line_for_other_tokens(run_copy, trained_run, capsys, monkeypatch):
    """Kills: text decoded by another tokenizer than the one that made the run's tokens, or by none."""
    monkeypatch.setattr(ByteTokenizer, "fingerprint", "bytes-v2")
    line = refused(capsys, "--run", str(trained_run), "--prompt", "a")
    assert "trained on tokens of 'bytes-257:" in line
    assert "this tokenizer is 'bytes-v2'" in line
    monkeypatch.undo()
    run = run_copy()
    config = json.loads((run / "config.json").read_text())
    task = {"type": "MQARConfig", "vocab_size": 40, "length": 16, "n_pairs": 2}
    examples = [{"task": task, "n_examples": 64}]
    config["data"] = {"type": "RecallDataConfig", "train": examples, "valid": examples}
    (run / "config.json").write_text(json.dumps(config))
    assert "its data, RecallDataConfig, have no tokenizer" in refused(capsys, "--run", str(run), "--prompt", "a")


def test_interruption_keeps_the_text_so_far(trained_run, capsys, monkeypatch):
    """Kills: a traceback after Ctrl-C, text that waits in a buffer."""
    plain, calls = Generation.__next__, []

    def interrupted(self):
        calls.append(0)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return plain(self)

    monkeypatch.setattr(Generation, "__next__", interrupted)
    assert main(["--run", str(trained_run), "--prompt", "a", "--max-tokens", "100"]) == 130
    captured = capsys.readouterr()
    assert 10 < len(captured.out) < 40
    assert captured.err.endswith("interrupted\n")


def test_sampling_has_the_library_s_defaults():
    """Kills: defaults of the command, which is parsed without JAX, that differ from those of `Sampling`."""
    command = GenerateCommand(run=Path())
    assert Sampling(temperature=command.temperature, top_k=command.top_k, top_p=command.top_p) == Sampling()
