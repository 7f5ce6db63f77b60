"""Files written atomically. Kills: half a file after a failure."""

import os

import numpy as np
import pytest

from jaxzoo.data.array_files import writing_arrays
from jaxzoo.utils.whole_files import replacing, unfinished, write_whole


@pytest.mark.parametrize("owned", [False, True])
def test_a_failure_leaves_the_old_file(tmp_path, owned):
    """Kills: half a file, and a temporary file that stays."""
    file = tmp_path / "file"
    write_whole(file, "old", owned=owned)
    with pytest.raises(KeyError), replacing(file, owned=owned) as place:  # noqa: PT012
        place.write_text("half of the n")
        raise KeyError
    assert file.read_text() == "old"
    assert os.listdir(tmp_path) == ["file"]


def test_drafts_of_several_writers_are_apart(tmp_path):
    """Kills: two processes that write into one draft."""
    file = tmp_path / "file"
    assert unfinished(file, owned=True) == tmp_path / "file.tmp"
    with replacing(file) as one, replacing(file) as other:
        assert one != other
        one.write_text("one")
        other.write_text("other")
    assert file.read_text() == "one"


def test_an_array_that_cannot_be_finished_is_not_there(tmp_path, monkeypatch):
    """Kills: an array whose header says that it is empty, because the disk was full at the end."""
    kinds = {"one": "int64", "two": "uint16"}

    def full(*_):
        raise OSError("no space left")

    with pytest.raises(OSError, match="no space left"), writing_arrays(tmp_path, "a", kinds) as arrays:  # noqa: PT012
        arrays["one"].append(np.arange(3))
        monkeypatch.setattr(arrays["two"], "finish", full)
    assert os.listdir(tmp_path) == []
    with writing_arrays(tmp_path, "a", kinds) as arrays:
        arrays["one"].append(np.arange(3))
        arrays["one"].append(np.arange(2))
    np.testing.assert_array_equal(np.load(tmp_path / "a.one.npy"), [0, 1, 2, 0, 1])
    assert np.load(tmp_path / "a.two.npy").shape == (0,)
