"""Files that bring a reader down: links, pipes, entries that unpack without end, ids near 2^32, panics of libraries."""

import contextlib
import json
import os
import pickle
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
import safetensors.numpy

from jaxzoo.cli.data_build import main as build
from jaxzoo.config.json_files import read_json, read_json_lines
from jaxzoo.data.resumable import ResumableDirectory
from jaxzoo.data.tokens.tokenizer_files import load_tokenizer
from jaxzoo.interop import load
from jaxzoo.interop.loading import find_tokenizer, open_folder
from jaxzoo.interop.safetensors_file import read_safetensors
from jaxzoo.interop.torch_pickle import read_torch_file
from jaxzoo.sweep.directory import About, SweepDirectory
from jaxzoo.train.metrics import read_rows
from jaxzoo.utils.whole_files import write_whole
from tests.interop import published, torch_files

FLAGS = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
GPT2 = {
    "added_tokens": [{"id": 3, "content": "</s>", "special": True, **FLAGS}],
    "normalizer": None,
    "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True},
    "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True},
    "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "c": 2}, "merges": []},
}


@pytest.mark.parametrize("name", ["parts", ".queue", "parts/p-1.json"])
def test_links_in_unfinished_work_are_not_followed(name, tmp_path):
    """Kills: notes that are written to, and locks that are deleted from, a directory of somebody else."""
    target = tmp_path / "target"
    target.mkdir()
    (target / "kept.lock").touch()
    work = ResumableDirectory(tmp_path / "out", {"a": 1})
    with work._begun():
        pass
    link = work.path / name
    if link.is_dir():
        link.rmdir()
    link.symlink_to(target)
    with pytest.raises(ValueError, match=f"{name} is a symbolic link"):
        ResumableDirectory(work.path, {"a": 1})
    assert (target / "kept.lock").exists()


@pytest.mark.parametrize("name", ["results", "running/x.lock", "results.jsonl"])
def test_links_in_a_sweep_are_not_followed(name, tmp_path):
    """Kills: claims and results of a sweep that go elsewhere."""
    directory = SweepDirectory(tmp_path / "sweep")
    directory.create(About("e.py", "small"))
    link = directory.path / name
    if link.is_dir():
        link.rmdir()
    link.symlink_to(tmp_path)
    with pytest.raises(ValueError, match=f"{name} is a symbolic link"):
        directory.create(About("e.py", "small"))


READERS = [
    lambda file: read_json(file, dict),
    lambda file: list(read_json_lines(file, dict)),
    read_rows,
    lambda file: load_tokenizer(file.parent),
]


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize("kind", ["pipe", "zeros"])
def test_a_pipe_or_a_device_is_refused(read, kind, tmp_path):
    """Kills: a command that waits for ever, or reads until the memory is full."""
    file = tmp_path / "rwkv_vocab.txt"
    os.mkfifo(file) if kind == "pipe" else file.symlink_to("/dev/zero")
    with pytest.raises(ValueError, match="is no regular file"):
        read(file)


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_one_entry_of_many_rows_is_unpacked_row_by_row(kind, tmp_path):
    """Kills: 256 rows that share an entry of a dictionary and take 256 times its memory (8 GB for 2.4 KB)."""
    table = pa.table({"text": pa.DictionaryArray.from_arrays(pa.array([0] * 256, pa.int32()), ["a" * 2_000_000])})
    file = tmp_path / f"rows.{kind}"
    if kind == "parquet":
        parquet.write_table(table, file, compression="zstd")
    else:
        with pa.ipc.new_stream(file, table.schema) as stream:
            stream.write_table(table)
    program = (
        "import resource, sys; from pathlib import Path; from jaxzoo.data.corpus.lines import read_rows; "
        "import pyarrow.parquet; before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss; "
        "n = sum(len(row['text']) for _, row in read_rows(Path(sys.argv[1]), ['text'])); "
        "print(n, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)"
    )
    words = [sys.executable, "-c", program, str(file)]
    done = subprocess.run(words, check=True, capture_output=True, text=True, timeout=100)
    n, grown = map(int, done.stdout.split())
    assert n == 256 * 2_000_000
    assert grown < 200_000  # KiB; all at once take 500,000


def test_ids_that_tables_cannot_hold_are_refused(tmp_path):
    """Kills: a tokenizer of five tokens for which 17 GB are allocated."""
    for place, change in (
        ("vocabulary", {"model": {**GPT2["model"], "vocab": {"a": 0, "b": 2**32 - 2}}}),
        ("added", {"added_tokens": [{"id": 2**31, "content": "</s>", "special": True}]}),
        ("negative", {"model": {**GPT2["model"], "vocab": {"a": -1}}}),
    ):
        (tmp_path / place).mkdir()
        (tmp_path / place / "tokenizer.json").write_text(json.dumps({**GPT2, **change}))
        with pytest.raises(ValueError, match=r"ids of its vocabulary must be integers in \[0, 16,777,216\)"):
            load_tokenizer(tmp_path / place, lossless=False)
    world = tmp_path / "rwkv_vocab.txt"
    lines = [f"{i} {bytes([i])!r} 1" for i in range(256)]
    world.write_text("\n".join([*lines, "4000000000 'ab' 2"]))
    with pytest.raises(ValueError, match=r"rwkv_vocab\.txt:257: must be an id below 65,536"):
        load_tokenizer(world)


@pytest.mark.parametrize("field", ["num_hidden_layers", "intermediate_size", "vocab_size"])
def test_absurd_sizes_are_refused_before_they_are_allocated(field, tmp_path):
    """Kills: config.json with 10^9 layers, for which the memory is gone before any check."""
    published.make_folder("llama-yarn-tied", tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, field: 10**9}))
    with pytest.raises(ValueError, match=str(tmp_path)):
        open_folder(tmp_path)


@pytest.mark.parametrize(
    "part",
    [
        {"normalizer": {"type": "Replace", "pattern": {"String": ""}, "content": "x"}},
        {"normalizer": {"type": "Replace", "pattern": {"Regex": ""}, "content": "x"}},
        {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAA"}},
        {"model": {**GPT2["model"], "merges": [["a", "b"]]}},
    ],
)
def test_a_panic_of_the_library_is_one_line(part, tmp_path):
    """Kills: a PanicException, which no handler of exceptions catches."""
    (tmp_path / "tokenizer.json").write_text(json.dumps({**GPT2, **part}))
    with pytest.raises(ValueError, match=r"is no tokenizer\.json that can be used: ") as raised:
        load_tokenizer(tmp_path, lossless=False).encode("abc")
    assert type(raised.value.__cause__).__name__ == "PanicException"
    with contextlib.suppress(ValueError):
        find_tokenizer(tmp_path)


def nested_tuples(n):
    return pickle.EMPTY_TUPLE + pickle.TUPLE1 * n


PAIR = torch_files.text("a") + pickle.NONE + pickle.TUPLE2

PROGRAMS = {
    "tuple as a key": pickle.EMPTY_DICT + nested_tuples(300_000) + pickle.NONE + pickle.SETITEM,
    "tuples in a value": pickle.EMPTY_DICT + torch_files.text("a") + nested_tuples(300_000) + pickle.SETITEM,
    "shared tuples": pickle.EMPTY_DICT + b")" + (b"q\x00h\x00" + pickle.TUPLE2) * 60 + pickle.NONE + pickle.SETITEM,
    "a key that is a list of itself": pickle.EMPTY_DICT + b"]q\x01h\x01a" + pickle.NONE + pickle.SETITEM,
    "numbers as keys": pickle.EMPTY_DICT + torch_files.integer(2**62) + pickle.NONE + pickle.SETITEM,
    "deep lists": pickle.EMPTY_DICT + torch_files.text("a") + b"]" * 10**6 + b"a" * (10**6 - 1) + pickle.SETITEM,
    "wide calls": b"(" + b"K\x01" * 10**6 + b"tq\x00" + (torch_files.name(torch_files.REBUILD) + b"h\x00R") * 10**5,
    "wide dicts": b"(" + PAIR * 10**5 + b"tq\0" + (torch_files.name("collections OrderedDict") + b"h\x00\x85R") * 9**5,
}  # fmt: skip


@pytest.mark.parametrize("case", PROGRAMS)
def test_nested_keys_are_refused(case, tmp_path):
    """Kills: SIGSEGV, or a loop without end, in the hash of a tuple of tuples or in calls of a million arguments."""
    file = tmp_path / "pytorch_model.bin"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("m/data.pkl", b"\x80\x02" + PROGRAMS[case] + pickle.STOP)
    began = time.monotonic()
    with pytest.raises(ValueError, match=r"pytorch_model\.bin"):
        read_torch_file(file)
    assert time.monotonic() - began < 20


@pytest.mark.parametrize("dtype", [np.int32, np.uint8, bool])
def test_weights_that_are_no_floats_are_refused(dtype, tmp_path):
    """Kills: numbers of another type taken for the weights of a model."""
    published.make_folder("llama-yarn-tied", tmp_path)
    file = tmp_path / "model.safetensors"
    tensors = safetensors.numpy.load_file(file)
    name = min(tensors)
    safetensors.numpy.save_file({**tensors, name: tensors[name].astype(dtype)}, file)
    with pytest.raises(
        ValueError, match=f"tensor {name} holds numbers of type {np.dtype(dtype)}, and must hold floats"
    ):
        load(tmp_path)


@pytest.mark.parametrize("second", [(0, 8), (4, 12), (2, 6)])
def test_tensors_that_share_bytes_are_refused(second, tmp_path):
    """Kills: two tensors of the same bytes, or of some of them, taken for a model."""
    entries = {"a": (0, 8), "b": second}
    header = json.dumps(
        {
            name: {"dtype": "F32", "shape": [(end - begin) // 4], "data_offsets": [begin, end]}
            for name, (begin, end) in entries.items()
        }
    ).encode()
    file = tmp_path / "model.safetensors"
    file.write_bytes(len(header).to_bytes(8, "little") + header + bytes(max(8, second[1])))
    with pytest.raises(ValueError, match="is damaged"):
        read_safetensors(file)


@pytest.mark.parametrize("content", [None, "{}", '{"subsets": {}}'])
def test_a_finished_build_without_its_counts_is_refused(content, tmp_path, monkeypatch, capsys):
    """Kills: KeyError 'subsets' where metadata.json of a finished build is missing, or of other software."""
    monkeypatch.chdir(tmp_path)
    Path("in").mkdir()
    Path("in/a.txt").write_text("one two three")
    words = ["--source", "text", "--paths", "in", "--out", "out"]
    assert build(words) == 0
    (file,) = Path("out").rglob("metadata.json")
    file.unlink() if content is None else file.write_text(content)
    capsys.readouterr()
    assert build(words) == 2
    assert "metadata.json is missing, or lacks its counts" in capsys.readouterr().err


def test_unfinished_files_of_killed_processes_go_away(tmp_path, monkeypatch):
    """Kills: NAME.xxxxxxxx.tmp of a killed export that stays for ever, and one that another process still writes."""
    old, new, other = (tmp_path / name for name in ("a.12345678.tmp", "a.87654321.tmp", "b.12345678.tmp"))
    for file in (old, new, other):
        file.touch()
    for file in (old, other):
        os.utime(file, times=(0, 0))
    write_whole(tmp_path / "a", "text")
    assert not old.exists()
    assert new.exists()
    assert other.exists()
