"""Rows on disk: exact, cut where a resumed run begins, whole or refused."""

import json
import struct
from pathlib import Path
from types import SimpleNamespace

import pytest
from tensorboardX.proto.event_pb2 import Event
from tensorboardX.proto.plugin_hparams_pb2 import HParamsPluginData

from jaxzoo.train.hooks import RunFiles
from jaxzoo.train.learning_curve import draw_learning_curve
from jaxzoo.train.metrics import MetricsLog, read_rows


def events(path: Path) -> list:
    """All events of a TensorBoard file: length (8 bytes), checksum (4), event, checksum (4)."""
    data, found = path.read_bytes(), []
    while data:
        size = struct.unpack("<Q", data[:8])[0]
        found.append(Event.FromString(data[12 : 12 + size]))
        data = data[16 + size :]
    return found


def test_rows_are_exact_and_at_once_on_disk(tmp_path):
    """Kills: rounding, buffered rows that a kill takes along, another spelling of a row."""
    path = tmp_path / "metrics.jsonl"
    with MetricsLog(path) as log:
        log.write(1, {"train/loss": 0.1 + 0.2})
        assert path.read_text() == '{"step": 1, "train/loss": 0.30000000000000004}\n'
        log.write(2, {"valid/loss": 3.0, "valid/accuracy": 0.5})
        assert json.loads(path.read_text().splitlines()[1]) == log.last("valid/loss")
        assert log.last("train/loss") == log.rows[0]
        assert log.last("nothing") is None
        log.rows = None  # type: ignore[assignment]  # asked at every step: it must not go through them
        assert log.last("train/loss") == {"step": 1, "train/loss": 0.1 + 0.2}
    (file,) = tmp_path.glob("events.out.tfevents.*")
    values = [(e.step, v.tag, v.simple_value) for e in events(file) for v in e.summary.value]
    assert values == [
        (1, "train/loss", pytest.approx(0.3)),
        (2, "valid/loss", 3.0),
        (2, "valid/accuracy", 0.5),
    ]


def test_resume_cuts_later_rows_and_half_a_line(tmp_path):
    """Kills: rows twice after a resume, half a line that makes the file unreadable, a TensorBoard curve that
    runs back and forth."""
    path = tmp_path / "metrics.jsonl"
    with MetricsLog(path) as log:
        for step in (0, 2, 4, 6):
            log.write(step, {"train/loss": step / 7})
    with path.open("a") as file:
        file.write('{"step": 7, "train/lo')
    before = set(tmp_path.glob("events*"))
    for file in before:
        file.rename(file.with_name(file.name + ".first"))
    with MetricsLog(path, keep_until=4) as log:
        assert [row["step"] for row in log.rows] == [0, 2, 4]
        log.write(5, {"train/loss": 1.0})
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [0, 2, 4, 5]
    (file,) = set(tmp_path.glob("events*")) - {f.with_name(f.name + ".first") for f in before}
    assert [e.step for e in events(file) if e.HasField("session_log")] == [5]


def test_new_run_keeps_no_row(tmp_path):
    """Kills: baselines (step 0) twice, when a run is killed before its first checkpoint and started again."""
    path = tmp_path / "metrics.jsonl"
    for _ in range(2):
        with MetricsLog(path) as log:
            log.write(0, {"baseline/unigram/bits_per_byte": 4.0})
    assert len(path.read_text().splitlines()) == 1


BAD_LINES = (
    "{",
    "[1]",
    "7",
    '{"train/loss": 1.0}',
    '{"step": 1.5}',
    '{"step": 2, "train/loss": "x"}',
    '{"step": true}',
    "\x00",
    "",
)


def test_a_bad_line_costs_one_row_and_a_warning(tmp_path, capsys):
    """Kills: a traceback on resume or at the picture, all rows after the bad one lost."""
    path = tmp_path / "metrics.jsonl"
    for line in BAD_LINES:
        path.write_text(f'{{"step": 1, "train/loss": 1.0}}\n{line}\n{{"step": 3, "train/loss": NaN}}\n')
        assert [row["step"] for row in read_rows(path)] == [1, 3], line
        assert capsys.readouterr().err == f"warning: {path}: line 2 holds no row of numbers; left out\n"


def test_a_hole_is_named(tmp_path, capsys):
    """Kills: rows that are cut off at the end or in the middle, or a whole file that is gone, without a word; a gap
    that is none."""
    path = tmp_path / "metrics.jsonl"
    for kept, message in [
        ([1, 2, 3], "holds 3 of the 6 rows up to step 6; the learning curve has a gap, the widest from step 3 to 6"),
        (
            [1, 4, 5, 6, 7],
            "holds 4 of the 6 rows up to step 6; the learning curve has a gap, the widest from step 1 to 4",
        ),
        ([], "holds 0 of the 6 rows up to step 6; the learning curve has a gap, the widest from step 0 to 6"),
    ]:
        path.write_text("".join(f'{{"step": {step}, "train/loss": 1.0}}\n' for step in kept))
        if not kept:
            path.unlink()
        with MetricsLog(path, 6, n_rows=6) as log:
            assert [row["step"] for row in log.rows] == [step for step in kept if step <= 6]
        assert capsys.readouterr().err == f"warning: {path} {message}\n"
    path.write_text('{"step": 1, "train/loss": 1.0}\n')
    with MetricsLog(path, 6, n_rows=1) as log:
        assert len(log.rows) == 1
    path.write_text('{"step": 0, "baseline/unigram/perplexity": 9.0}\n')
    with MetricsLog(path, -1, n_rows=1) as log:  # goes on from step 0, and writes that row again
        assert log.rows == []
    assert capsys.readouterr().err == ""


def test_full_disk_is_an_oserror(tmp_path):
    """Kills: rows that are lost in silence."""
    with MetricsLog(tmp_path / "metrics.jsonl") as log, open("/dev/full", "ab", buffering=0) as full:
        log._file._file.close()
        log._file._file = full
        with pytest.raises(OSError, match="No space left"):
            log.write(1, {"train/loss": 1.0})
    assert log.rows == []


@pytest.mark.full
def test_picture_of_every_kind_of_run(tmp_path):
    """Kills: a crash on a run without pairs, without baselines or without any row; a file that is no PNG."""
    valid = {"step": 2, "valid/loss": 1.0, "valid/accuracy": 0.5}
    cases = [
        [],
        [{"step": 1, "train/loss": 2.0}, valid],
        [{**valid, "valid/accuracy/pairs=8": 0.5, "valid/accuracy/pairs=16": 0.4}],
        [{"step": 0, "baseline/unigram/bits_per_byte": 4.0}, {**valid, "valid/bits_per_byte": 3.0}],
    ]
    sizes = set()
    for rows in cases:
        path = tmp_path / "curve.png"
        draw_learning_curve(rows, path, title="run")
        assert path.read_bytes().startswith(b"\x89PNG")
        sizes.add(path.stat().st_size)
    assert len(sizes) == len(cases)
    assert [p.name for p in tmp_path.iterdir()] == ["curve.png"]


@pytest.mark.full
def test_accuracy_by_length_has_a_panel_of_its_own(tmp_path, monkeypatch):
    """Kills: lengths in the order of text, an early validation for the last, a panel of one or two points."""
    figures = []
    monkeypatch.setattr("jaxzoo.train.learning_curve.save", lambda figure, path: figures.append(figure))
    early, last = ({"step": step, "valid/loss": 1.0, "valid/accuracy": 0.5} for step in (1, 2))
    for i, length in enumerate((128, 32, 1024)):
        early[f"valid/accuracy/length={length}"], last[f"valid/accuracy/length={length}"] = 0.0, 0.1 * i
    draw_learning_curve([early, last, {"step": 2, "train/loss": 1.0}], tmp_path / "c.png", title="run")
    (line,) = figures[0].axes[2].get_lines()
    assert list(line.get_xdata()) == [32, 128, 1024]
    assert list(line.get_ydata()) == [0.1, 0.0, 0.2]
    del last["valid/accuracy/length=32"]
    draw_learning_curve([last], tmp_path / "c.png", title="run")
    assert len(figures[1].axes) == 2


@pytest.mark.full
def test_training_and_validation_differ_without_colour(tmp_path, monkeypatch):
    """Kills: two loss curves that only colour tells apart, and one legend that gives two series the same look."""
    figures = []
    monkeypatch.setattr("jaxzoo.train.learning_curve.save", lambda figure, path: figures.append(figure))
    row = {"step": 1, "train/loss": 2.0, "valid/loss": 1.0, "valid/accuracy/pairs=8": 0.5}
    row["valid/accuracy/pairs=9"] = 0.4
    draw_learning_curve([row], tmp_path / "curve.png", title="run")
    lines = {line.get_label(): line.get_marker() for axes in figures[0].axes for line in axes.get_lines()}
    assert set(lines) == {"training loss", "validation loss", "8 pairs", "9 pairs"}
    assert len(set(lines.values())) == 4


def test_tensorboard_gets_the_config_by_dotted_names(tmp_path):
    """Kills: a field that TensorBoard cannot compare: left out, of another type, or of a name that no flag has."""
    config = {"model": {"pattern": [{"type": "AttentionConfig", "n_heads": 4, "bias": True}], "max_positions": None}}
    with MetricsLog(tmp_path / "metrics.jsonl", config=config):
        pass
    (file,) = tmp_path.glob("events.out.tfevents.*")
    content = [v.metadata.plugin_data.content for e in events(file) for v in e.summary.value]
    (start,) = (HParamsPluginData.FromString(each) for each in content)
    given = {name: value.WhichOneof("kind") for name, value in start.session_start_info.hparams.items()}
    pattern = "model.pattern.0"
    assert given == {
        f"{pattern}.type": "string_value",
        f"{pattern}.n_heads": "number_value",
        f"{pattern}.bias": "bool_value",
    }
    assert start.session_start_info.hparams[f"{pattern}.n_heads"].number_value == 4


def test_a_picture_that_fails_does_not_end_a_run(tmp_path, monkeypatch, capsys):
    """Kills a run that ends because its learning curve cannot be drawn."""
    run = SimpleNamespace(check_place=lambda: None, picture=tmp_path / "curve.png", path=tmp_path)
    files = RunFiles(run, SimpleNamespace(rows=[]), object(), None)

    def fail(*_, **__):
        raise ValueError("no such backend")

    monkeypatch.setattr("jaxzoo.train.hooks.draw_learning_curve", fail)
    files.draw()
    assert "curve.png is not drawn (ValueError: no such backend)" in capsys.readouterr().err
