"""The steps of docs/add_a_mixer.md. Kills: a step of the page that no longer works."""

import json
import re
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxzoo.cli import generate, train
from jaxzoo.cli.config_file import load_config
from jaxzoo.layers.variables import Traits
from jaxzoo.mixers import Context
from jaxzoo.models.blueprint import make_blueprint

PAGE = (Path(__file__).parents[2] / "docs" / "add_a_mixer.md").read_text()
FLAGS = "--train.steps 4 --train.batch-size 8 --train.checkpoint-every 2 --train.eval-every 0 --model.d-model 8"


@pytest.fixture
def file(tmp_path, monkeypatch):
    """The page's file in an empty current folder."""
    code, *_ = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("jaxzoo.train.hooks.draw_learning_curve", lambda *_, **__: None)
    (tmp_path / "text").mkdir()
    for i in range(4):
        (tmp_path / "text" / f"{i}.txt").write_text(f"{i} never odd or even, {i} times a word; " * 40)
    Path("moving_average.py").write_text(code)
    return Path("moving_average.py")


def commands(name):
    """Command lines of a program on the page, split into words."""
    return [line.split()[2:] for line in PAGE.splitlines() if line.startswith(f"jaxzoo {name} ")]


@pytest.mark.slow
def test_the_page_s_commands(file, capsys):
    """Kills: a mixer of a user's file that does not train, resume bit for bit, show its fields or generate."""
    fresh, resumed, described, *_on_mqar = commands("train")
    (generated,) = commands("generate")
    quick = [*FLAGS.split(), "--data.path", "text", "--data.valid-tokens", "128"]
    assert train.main([*fresh, *quick]) == 0
    straight = Path("runs/moving_average/metrics.jsonl").read_text()
    shutil.rmtree("runs/moving_average/checkpoints/4")
    assert train.main([*resumed, *quick]) == 0
    assert Path("runs/moving_average/metrics.jsonl").read_text() == straight
    assert json.loads(Path("runs/moving_average/config.json").read_text())["model"]["pattern"][0] == {
        "type": "moving_average:MovingAverageConfig",
        "d_model": None,
        "init_std": None,
        "out_init_std": None,
        "fastest": 4.0,
    }
    capsys.readouterr()
    assert train.main(described) == 0
    assert "MovingAverage" in capsys.readouterr().out
    words = " ".join(generated).replace('"def "', "def").split()
    assert generate.main([*words, "--max-tokens", "5"]) == 0
    assert train.main([*fresh, "--overwrite", *quick, "--model.pattern.0.fastest", "nought"]) == 2


def test_the_page_s_mixer(file):
    """Kills: a page whose mixer breaks the contract."""
    config = load_config(file)
    mixer_config = config.model.layers[0]
    traits = make_blueprint(config.model).traits.params["stacks"][0]["blocks"][0]["mixer"]["rate"]
    assert traits == Traits(("channels",), decay=False)
    mixer = mixer_config.build(rngs=nnx.Rngs(0))
    x = jax.random.normal(jax.random.key(0), (2, 7, 64))

    @nnx.jit
    def in_both_ways(mixer):
        head, state = mixer.prefill(x[:, :4], mixer.init_state(2))
        tail, state = mixer.prefill(x[:, 4:6], state)
        last, _ = mixer.step(x[:, 6], state)
        return mixer(x), jnp.concatenate([head, tail, last[:, None]], axis=1)

    y, streamed = in_both_ways(mixer)
    np.testing.assert_allclose(streamed, y, atol=1e-5)
    with pytest.raises(ValueError, match="MovingAverage does not honour segment_ids"):
        mixer(x, Context(segment_ids=jnp.zeros((2, 7), jnp.int32)))
