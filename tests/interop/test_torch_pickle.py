"""The reader of pytorch_model.bin. Kills: code that runs from a pickle, numbers from a wrong offset."""

import os
import pickle
import zipfile

import ml_dtypes
import numpy as np
import pytest

from jaxzoo.interop.torch_pickle import read_torch_file
from tests.interop import torch_files as t

ARRAY = np.arange(12, dtype=np.float32).reshape(3, 4)


def test_honest_file(tmp_path):
    """Kills: numbers from another offset, strides of rows for columns, a dtype for another; a view shared by two."""
    file = tmp_path / "pytorch_model.bin"
    wide, narrow = np.arange(5, dtype=np.int64), ARRAY.astype(ml_dtypes.bfloat16)
    entries = {
        "a": t.tensor("0", ARRAY),
        "transposed": t.tensor("0", ARRAY, shape=(4, 3), strides=(1, 4)),
        "part": t.tensor("0", ARRAY, offset=5, shape=(2,), strides=(4,)),
        "scalar": t.tensor("1", wide, offset=3, shape=(), strides=()),
        "empty": t.tensor("1", wide, shape=(0, 7), strides=(7, 1)),
        "parameter": t.call("torch._utils _rebuild_parameter", t.tensor("2", narrow), pickle.NEWTRUE, pickle.NONE),
    }
    metadata = t.dict_of({"_metadata": t.call("collections OrderedDict")})
    records = {"data/0": ARRAY.tobytes(), "data/1": wide.tobytes(), "data/2": narrow.tobytes()}
    t.write(file, t.program(t.dict_of(entries) + metadata + pickle.BUILD), records)
    found = read_torch_file(file)
    np.testing.assert_array_equal(found["a"], ARRAY)
    np.testing.assert_array_equal(found["transposed"], ARRAY.T)
    np.testing.assert_array_equal(found["part"], [5, 9])
    assert (found["scalar"].shape, int(found["scalar"]), found["empty"].shape) == ((), 3, (0, 7))
    np.testing.assert_array_equal(found["parameter"].astype(np.float32), ARRAY)
    assert not any(array.flags.writeable for name, array in found.items() if name != "empty")

    nested = t.dict_of({"epoch": t.integer(3), "state_dict": t.dict_of({"w": t.tensor("0", ARRAY)})})
    t.write(file, t.program(nested), records)
    np.testing.assert_array_equal(read_torch_file(file)["w"], ARRAY)


class Evil:
    def __reduce__(self):
        return os.mkdir, ("owned",)


CALL = t.tuple_of(t.text("owned"))
DEEP = pickle.EMPTY_TUPLE + pickle.TUPLE1 * 100_000
"""A tuple whose hash recurses until the stack ends."""
WIDE = pickle.EMPTY_TUPLE + b"".join(
    pickle.BINPUT + bytes([i]) + pickle.BINGET + bytes([i]) + pickle.TUPLE2 for i in range(60)
)
"""A tuple of 61 objects whose hash takes 2^60 steps."""
HOSTILE = {
    "protocol 0": (pickle.dumps(Evil(), 0), "global posix.mkdir|global nt.mkdir|instruction"),
    "protocol 2": (pickle.dumps(Evil(), 2), "the global posix.mkdir"),
    "protocol 4": (pickle.dumps(Evil(), 4), "the global posix.mkdir"),
    "builtins": (t.program(t.name("builtins eval") + CALL + pickle.REDUCE), "the global builtins.eval"),
    "torch itself": (t.program(t.name("torch load") + CALL + pickle.REDUCE), "the global torch.load"),
    "other rebuild": (t.program(t.call("torch._utils _rebuild_tensor")), "the global torch._utils._rebuild_tensor"),
    "dotted": (
        t.program(t.name("collections OrderedDict.fromkeys.__class__")),
        "the global collections.OrderedDict.from",
    ),
    "stack global": (t.program(t.text("os") + t.text("system") + pickle.STACK_GLOBAL), "the global os.system"),
    "inst": (t.program(pickle.MARK + t.text("x") + pickle.INST + b"os\nsystem\n"), "instruction INST"),
    "obj": (t.program(pickle.MARK + t.name("collections OrderedDict") + pickle.OBJ), "instruction OBJ"),
    "newobj": (t.program(t.name("collections OrderedDict") + pickle.EMPTY_TUPLE + pickle.NEWOBJ), "instruction NEWOBJ"),
    "extension": (t.program(pickle.EXT1 + b"\x01"), "instruction EXT1"),
    "called storage": (t.program(t.call("torch FloatStorage", t.integer(9))), "a call of torch.FloatStorage"),
    "persistent": (t.program(t.tuple_of(*[t.text("m")] * 5) + pickle.BINPERSID), "a persistent object"),
    "build on a global": (t.program(t.name("collections OrderedDict") + t.dict_of({}) + pickle.BUILD), "damaged"),
    "unbalanced": (t.program(pickle.REDUCE), "damaged"),
    "no mark": (t.program(pickle.EMPTY_DICT + pickle.SETITEMS), "damaged"),
    "unknown memo": (t.program(pickle.BINGET + b"\x07"), "damaged"),
    "cut off": (t.program(t.dict_of({"w": t.tensor("0", ARRAY)}))[:-30], "damaged|cut off"),
    "no dict": (t.program(t.tensor("0", ARRAY)), "must hold a dict"),
    "number": (t.program(t.dict_of({"w": t.integer(3)})), "w is no tensor but int"),
    "itself": (
        t.program(pickle.EMPTY_DICT + pickle.BINPUT + b"\x00" + t.text("w") + pickle.BINGET + b"\x00" + pickle.SETITEM),
        "w is no",
    ),
    "beyond": (t.program(t.dict_of({"w": t.tensor("0", ARRAY, offset=1)})), "reaches beyond"),
    "far strides": (t.program(t.dict_of({"w": t.tensor("0", ARRAY, strides=(2**60, 1))})), "reaches beyond"),
    "negative": (t.program(t.dict_of({"w": t.tensor("0", ARRAY, strides=(-4, 1))})), "damaged"),
    "claims more": (t.program(t.dict_of({"w": t.tensor("0", ARRAY, size=10**12)})), "shorter"),
    "wider dtype": (t.program(t.dict_of({"w": t.tensor("0", ARRAY, kind="DoubleStorage")})), "shorter"),
    "deep key": (t.program(pickle.EMPTY_DICT + DEEP + pickle.NONE + pickle.SETITEM), "damaged"),
    "wide key": (t.program(pickle.EMPTY_DICT + WIDE + pickle.NONE + pickle.SETITEM), "damaged"),
    "wide key of pairs": (
        t.program(t.call("collections OrderedDict", t.tuple_of(t.tuple_of(WIDE, pickle.NONE)))),
        "damaged",
    ),
    "deep module": (t.program(DEEP + t.text("system") + pickle.STACK_GLOBAL), "damaged"),
    "other file": (t.program(t.dict_of({"w": t.tensor("../../x", ARRAY)})), "record data/../../x, which is missing"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_file(name, tmp_path, monkeypatch):
    """Kills: any global that is looked up, any instruction that is not needed, any read outside of a record."""
    monkeypatch.chdir(tmp_path)
    content, message = HOSTILE[name]
    t.write(tmp_path / "x.bin", content, {"data/0": ARRAY.tobytes()})
    with pytest.raises(ValueError, match=message) as raised:
        read_torch_file(tmp_path / "x.bin")
    assert str(tmp_path / "x.bin") in str(raised.value)
    assert not (tmp_path / "owned").exists()


def test_hostile_archive(tmp_path, monkeypatch):
    """Kills: a bomb that is unpacked, numbers of another byte order or from a wrong place, a file of another kind."""
    file, honest = tmp_path / "x.bin", t.program(t.dict_of({"w": t.tensor("0", ARRAY)}))
    records = {"data/0": ARRAY.tobytes()}
    t.write(file, honest, records, compression=zipfile.ZIP_DEFLATED)
    with pytest.raises(ValueError, match="is compressed"):
        read_torch_file(file)
    t.write(file, honest, records, more=[("byteorder", "big")])
    with pytest.raises(ValueError, match="little-endian"):
        read_torch_file(file)
    t.write(file, honest, records)
    with zipfile.ZipFile(file) as archive:
        (at,) = [info.header_offset for info in archive.infolist() if info.filename.endswith("data/0")]
    content = bytearray(file.read_bytes())
    content[at] ^= 1  # the header in front of the record, which the archive's table does not repeat
    file.write_bytes(content)
    with pytest.raises(ValueError, match="the file is damaged"):
        read_torch_file(file)
    monkeypatch.setattr("jaxzoo.interop.torch_pickle.LARGEST_PICKLE", 10)
    with pytest.raises(ValueError, match="above 10"):
        read_torch_file(file)
    file.write_bytes(pickle.dumps({"w": 1}))
    with pytest.raises(ValueError, match="no zip archive"):
        read_torch_file(file)
    whole = tmp_path / "whole.bin"
    t.write(whole, honest, records)
    file.write_bytes(whole.read_bytes()[:-40])
    with pytest.raises(ValueError, match="no zip archive"):
        read_torch_file(file)
