"""`--init-from`. Kills: parameters that are random or rounded."""

import json
import shutil
from pathlib import Path

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest

from jaxzoo.cli.config_file import load_config
from jaxzoo.cli.flags import override
from jaxzoo.config.config_io import from_json, to_json
from jaxzoo.train.checkpoint import Checkpoints, restore
from jaxzoo.train.config import RunConfig
from jaxzoo.train.loop import TrainingRun
from jaxzoo.train.run_dir import RunDirectory
from jaxzoo.train.session import Session

SHORT = ("--train.steps", "3", "--train.checkpoint-every", "2", "--train.eval-every", "0")


def saved_variables(directory, step) -> dict[str, np.ndarray]:
    """Parameters and buffers of a checkpoint, by name, read by Orbax alone."""
    place = directory / "checkpoints" / str(step) / "state"
    with ocp.PyTreeCheckpointer() as reader:
        names = reader.metadata(place).item_metadata.tree
        as_numpy = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), names)
        tree = reader.restore(place, restore_args=as_numpy)
    leaves = jax.tree.leaves_with_path({name: tree.get(name) for name in ("params", "buffers")})
    return {jax.tree_util.keystr(path, simple=True, separator="/"): np.asarray(leaf) for path, leaf in leaves}


def configured(file: Path, *flags: str) -> RunConfig:
    """The experiment of a config file."""
    return override(load_config(file), flags, prog="")


def make_run(config: RunConfig, directory: Path, steps=(2, 3)) -> RunDirectory:
    """A run with checkpoints of random numbers, others at each step."""
    session, run = Session(config), RunDirectory(directory)
    run.create(to_json(config), None)
    cursor = session.dataset.train().get_state()
    with jax.set_mesh(session.mesh), Checkpoints(run.checkpoints, keep=9, record=run.newest_checkpoint) as checkpoints:
        for step in steps:
            checkpoints.save(step, session.init_state(seed=70 + step), cursor=cursor, config=to_json(config))
    run.release()
    return run


@pytest.mark.slow
def test_begins_with_the_numbers_of_another_run(mqar_file, run, tmp_path, capfd):
    """Kills: parameters that are rounded, decayed or random; an optimizer, step or cursor that comes with them; a run
    that forgets where it began; another step than the one named."""
    make_run(configured(mqar_file), tmp_path / "old")
    flags = ("--init-from", f"{tmp_path / 'old'}:2", "--train.seed", "5", "--train.keep-checkpoints", "3")
    assert run(mqar_file, "new", *SHORT, *flags) == 0
    out, err = capfd.readouterr()
    assert f"begins with the parameters of step 2 of {tmp_path / 'old'}" in out
    assert err == ""
    old, new = saved_variables(tmp_path / "old", 2), saved_variables(tmp_path / "new", 0)
    assert old.keys() == new.keys()
    for name, array in old.items():
        assert array.tobytes() == new[name].tobytes(), name
    trained = saved_variables(tmp_path / "new", 2)
    assert any(array.tobytes() != trained[name].tobytes() for name, array in old.items())
    note = json.loads((tmp_path / "new" / "origin.json").read_text())
    assert (note["run"], note["step"], len(note["digest"])) == (str(tmp_path / "old"), 2, 64)
    config = from_json(json.loads((tmp_path / "new" / "config.json").read_text()), RunConfig)
    session = Session(config)
    with jax.set_mesh(session.mesh):
        state, seal = restore(tmp_path / "new" / "checkpoints" / "0", session.abstract_state)
        fresh = session.init_state()
        assert seal.cursor == session.dataset.train().get_state()
    jax.tree.map(np.testing.assert_array_equal, (state.opt_state, state.key), (fresh.opt_state, fresh.key))
    assert int(state.step) == 0


@pytest.mark.slow
def test_goes_on_without_its_source(mqar_file, run, rows, tmp_path, capfd):
    """Kills: a resume that needs the source again, or that begins with random numbers where no checkpoint was due."""
    make_run(configured(mqar_file), tmp_path / "old")
    flags = (*SHORT, "--train.checkpoint-every", "0")
    given = ("--init-from", str(tmp_path / "old"))
    assert run(mqar_file, "whole", *flags, *given) == 0

    def die(self, *_):
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TrainingRun, "advance", die)
        assert run(mqar_file, "broken", *flags, *given) == 130
    assert rows("broken") == []
    shutil.rmtree(tmp_path / "old")
    assert run(mqar_file, "broken", *flags, "--resume") == 0
    assert rows("broken") == rows("whole")
    shutil.rmtree(tmp_path / "broken" / "checkpoints")
    (tmp_path / "broken" / "newest_checkpoint.json").unlink()
    capfd.readouterr()
    assert run(mqar_file, "broken", *flags, "--resume") == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert "was stopped before it had saved the parameters that it begins with" in line
    directory = RunDirectory(tmp_path / "broken")
    directory.create({}, None)
    directory.release()
    assert not directory.origin.exists()


@pytest.mark.full
def test_refusals_write_nothing(mqar_file, run, tmp_path, capfd):
    """Kills: a traceback of the storage layer, variables that are left random, a directory that is in the way later, a
    run that is replaced while a new one begins with it."""
    old, new, link = make_run(configured(mqar_file), tmp_path / "old").path, tmp_path / "new", tmp_path / "link"
    link.symlink_to(tmp_path)
    capfd.readouterr()
    for flags, line in [
        ((f"{old}", "--model.d-model", "16"), "variable embedding has shape (264, 8) there and (264, 16)"),
        ((f"{old}:1",), f"checkpoint 1 must be one of 2, 3, those in {old}"),
        ((f"{old}x",), f"{old}x does not exist; --init-from takes the directory of a run"),
        ((f"{old}", "--resume"), "--resume and --init-from exclude each other"),
        (("",), "--init-from must name a run"),
        ((f"{new}",), "is the run that would be replaced"),
        ((f"{link}/new",), "is the run that would be replaced"),
        ((f"{new}/model.safetensors",), "is the run that would be replaced"),
    ]:
        assert run(mqar_file, "new", *SHORT, "--init-from", *flags) == 2
        (said,) = capfd.readouterr().err.splitlines()
        assert line in said
        assert not new.exists()
