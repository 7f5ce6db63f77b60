"""Writes that fail. Kills: a run that ends at one failed write, half a row that stays."""

import errno
import os

import pytest

from jaxzoo.train.checkpoint import folders
from jaxzoo.train.metrics import MetricsLog, read_rows
from jaxzoo.utils.whole_files import write_json


class Disk:
    """A file system call that fails for its first calls."""

    def __init__(self, call, failures, number=errno.EIO):
        self.call, self.failures, self.number = call, failures, number

    def __call__(self, *args, **options):
        if self.failures > 0:
            self.failures -= 1
            raise OSError(self.number, os.strerror(self.number))
        return self.call(*args, **options)


@pytest.fixture
def disk(monkeypatch):
    """`disk(failures)`: so many saves fail, in the thread that writes them, when all but the last name is written."""

    def disk(failures, number=errno.EIO):
        monkeypatch.setattr("jaxzoo.train.checkpoint.write_json", Disk(write_json, failures, number))

    return disk


@pytest.mark.slow
@pytest.mark.parametrize("every", [3, 0])
def test_a_disk_that_recovers(every, disk, mqar_file, run, rows, tmp_path, capfd):
    """Kills: a run of days that ends with one bad moment of its file system, half a checkpoint that stays on disk, a
    last checkpoint (every=0: the only one) that is not tried again, numbers that depend on it."""
    flags = ("--train.checkpoint-every", str(every), "--train.steps", "7")
    assert run(mqar_file, "whole", *flags) == 0
    capfd.readouterr()
    disk(1, errno.ESTALE)
    assert run(mqar_file, "r", *flags) == 0
    lines = capfd.readouterr().err.splitlines()
    told = (
        f"warning: checkpoint in {tmp_path / 'r' / 'checkpoints'}: [Errno {errno.ESTALE}] {os.strerror(errno.ESTALE)}"
    )
    assert lines == [f"{told}; not written, trying once more"]
    assert rows("r") == rows("whole")
    found = folders(tmp_path / "r" / "checkpoints")
    assert max(found) == 7
    assert sorted(map(str, found)) == sorted(p.name for p in (tmp_path / "r" / "checkpoints").iterdir())
    assert run(mqar_file, "r", *flags, "--resume") == 0
    assert rows("r") == rows("whole")


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
