"""`python -m jaxzoo.generate` from a run on tokens of BPE: text as it comes, stop strings, whose tokens they are."""

import json
import shutil
import textwrap
from pathlib import Path

import pytest

from jaxzoo.cli.generate import main
from jaxzoo.cli.train import main as train
from jaxzoo.data.corpus.built import BuiltData
from jaxzoo.data.tokens.tokenization import Tokenization
from jaxzoo.data.tokens.tokenizer_files import load_tokenizer, save_tokenizer
from jaxzoo.data.tokens.tokenizer_training import learn_tokenizer
from jaxzoo.generation import Sampling, generate
from jaxzoo.loading import load
from tests.data.built import build
from tests.train.conftest import use_one_device

CONFIG = """
    import dataclasses
    from pathlib import Path

    import jax.numpy as jnp
    import numpy as np

    from jaxzoo.train.config import RunConfig, TrainConfig
    from jaxzoo.data.base import Batch, DataConfig, ValidSet
    from jaxzoo.data.tokens.token_shards import TokenDirectory
    from jaxzoo.data.tokens.tokenizer_files import load_tokenizer
    from jaxzoo.mixers import BaseConvConfig
    from jaxzoo.models import LanguageModelConfig

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class BeginningConfig(DataConfig):
        \"\"\"The first window of the first shard, again and again.\"\"\"

        path: str
        length: int = 8

        def build(self, *, batch_size, valid_batch_size):
            return Beginning(self, batch_size)

        def tokenizer(self):
            return load_tokenizer(self.path)

    class Beginning:
        bytes_per_token, packed, summary = 2.0, False, "one window"

        def __init__(self, config, batch_size):
            self.config, self.batch_size, self.step = config, batch_size, 0
            self.directory = TokenDirectory(Path(config.path))
            self.vocab_size, self.max_length = self.directory.tokenizer.vocab_size, config.length

        def __next__(self):
            self.step += 1
            window = np.asarray(self.directory.shards("train")[0].tokens[: self.config.length + 1], np.int32)
            rows = jnp.asarray(np.tile(window, (self.batch_size, 1)))
            return Batch(tokens=rows[:, :-1], targets=rows[:, 1:])

        def get_state(self):
            return {"fingerprint": self.directory.fingerprint, "step": self.step}

        def set_state(self, state):
            self.step = state["step"]

        def train(self, rows=None):
            return Beginning(self.config, self.batch_size)

        def valid(self):
            return [ValidSet({}, 1, lambda i: next(self.train()))]

        def manifest(self):
            return None

        def baselines(self):
            return {}

    config = RunConfig(
        model=LanguageModelConfig(pattern=(BaseConvConfig(),), d_model=8, vocab_size=320, max_length=64, mlp="none",
                                  init_std=0.5),
        data=BeginningConfig(path=PATH),
        train=TrainConfig(steps=2, batch_size=8, valid_batch_size=8, eval_every=0),
    )
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """Holds `tokens`, `config.py` and `run`; nothing in it is written to."""
    path = tmp_path_factory.mktemp("bpe_run")
    text = "naïve 漢字 never odd or even; " * 9
    data = build(path / "data", {"train": [(text, "a")] * 3}, n_shards=1)
    tokenizer = learn_tokenizer(BuiltData(data), vocab_size=320, max_bytes=10**6).tokenizer
    Tokenization(data, tokenizer, path / "tokens").run()
    (path / "config.py").write_text(textwrap.dedent(CONFIG).replace("PATH", repr(str(path / "tokens"))))
    with pytest.MonkeyPatch.context() as patch:
        use_one_device(patch)
        patch.setattr("jaxzoo.train.hooks.draw_learning_curve", lambda *_, **__: None)
        assert train(["--config", str(path / "config.py"), "--run-dir", str(path / "run")]) == 0
    return path


def flags(place: Path, *more: str) -> list[str]:
    run, config = str(place / "run"), str(place / "config.py")
    return ["--run", run, "--config", config, "--prompt", "never odd", "--max-tokens", "60", *more]


@pytest.mark.slow
def test_text_of_bpe_tokens_comes_whole(place, capsys):
    """Kills: tokens decoded one by one, which breaks characters of several tokens; a prompt encoded as bytes; a stop
    string that is shown or run over."""
    loaded = load(place / "run", text=True)
    model, tokenizer = loaded.model, loaded.tokenizer
    assert tokenizer.fingerprint == load_tokenizer(place / "tokens").fingerprint
    prompts, known = [tokenizer.encode("never odd")], Sampling(n_ids=tokenizer.vocab_size)
    (ids,) = generate(model, prompts, max_tokens=60, sampling=known, stop_tokens=(tokenizer.end_of_text,))
    text = tokenizer.decode(ids[ids != tokenizer.end_of_text])
    assert main(flags(place)) == 0
    captured = capsys.readouterr()
    assert captured.out == text + "\n"
    n_tokens = len(tokenizer.encode("never odd"))
    assert n_tokens < len("never odd")
    assert f"read {n_tokens} prompt tokens" in captured.err
    stop = text[7:10]
    assert main(flags(place, "--stop", stop)) == 0
    assert capsys.readouterr().out == text[: text.index(stop)] + "\n"


def refused(capsys, words: list[str]) -> str:
    assert main(words) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    return line


@pytest.mark.slow
def test_a_tokenizer_in_another_place_must_be_the_run_s(place, tmp_path, capsys):
    """Kills: a run that cannot speak without its training data, and text by another tokenizer."""
    run, tokens = tmp_path / "run", str(tmp_path / "moved")
    shutil.copytree(place / "run", run)
    config = json.loads((run / "config.json").read_text())
    config["data"]["path"] = tokens
    (run / "config.json").write_text(json.dumps(config))
    words = ["--run", str(run), *flags(place)[2:]]
    line = refused(capsys, words)
    assert "moved does not exist" in line
    assert line.endswith("or name the run's tokenizer with --tokenizer PLACE")
    assert main(flags(place)) == 0
    expected = capsys.readouterr().out
    save_tokenizer(load_tokenizer(place / "tokens"), tmp_path)
    assert main([*words, "--tokenizer", str(tmp_path / "tokenizer.json")]) == 0
    assert capsys.readouterr().out == expected
    made_by = load_tokenizer(place / "tokens").fingerprint
    line = refused(capsys, [*words, "--tokenizer", "bytes"])
    assert f"was trained on tokens of '{made_by}:" in line
    assert "this tokenizer is 'bytes-257'" in line
