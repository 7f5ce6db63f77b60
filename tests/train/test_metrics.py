"""Metric rows on disk. Kills: rows lost or repeated by a resume."""

import json
import struct
import zlib
from pathlib import Path
from types import SimpleNamespace

import pytest
from tensorboardX.proto.event_pb2 import Event
from tensorboardX.proto.plugin_hparams_pb2 import HParamsPluginData

from jaxzoo.train.hooks import RunFiles
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
        row = '{"step": 1, "train/loss": 0.30000000000000004'
        assert path.read_text() == f'{row}, "crc": {zlib.crc32(f"{row}}}".encode())}}}\n'
        log.write(2, {"valid/loss": 3.0, "valid/accuracy": 0.5})
        assert read_rows(path)[1] == log.last("valid/loss")
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
        message = "line 2 holds no row of numbers, or a damaged one; left out"
        assert capsys.readouterr().err == f"warning: {path}: {message}\n"


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
    """Kills: a run that ends because its learning curve cannot be drawn."""
    run = SimpleNamespace(check_place=lambda: None, picture=tmp_path / "curve.png", path=tmp_path)
    files = RunFiles(run, SimpleNamespace(rows=[]), object(), None)

    def fail(*_, **__):
        raise ValueError("no such backend")

    monkeypatch.setattr("jaxzoo.train.hooks.draw_learning_curve", fail)
    files.draw()
    assert "curve.png is not drawn (ValueError: no such backend)" in capsys.readouterr().err


def test_half_a_row_is_cut(tmp_path):
    """Kills: half a row, to which the rows of the resumed run are appended."""
    path = tmp_path / "metrics.jsonl"
    with MetricsLog(path) as log:
        log.write(1, {"train/loss": 1.0})
        file = log._file._file

        class Full:
            truncate, close = file.truncate, file.close

            def write(self, line):
                return file.write(line[:5])

        log._file._file = Full()
        with pytest.raises(OSError, match="No space left on device"):
            log.write(2, {"train/loss": 0.5})
    assert [row["step"] for row in read_rows(path)] == [1]
    assert path.read_bytes().count(b"\n") == 1
    assert path.read_bytes().endswith(b"}\n")
