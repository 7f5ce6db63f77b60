"""Files as `torch.save` writes them, made without PyTorch, honest and hostile."""

import pickle
import zipfile

import numpy as np

STORAGES = {
    "float32": "FloatStorage",
    "float64": "DoubleStorage",
    "int64": "LongStorage",
    "bfloat16": "BFloat16Storage",
}
REBUILD = "torch._utils _rebuild_tensor_v2"


def text(value):
    data = value.encode()
    return pickle.BINUNICODE + len(data).to_bytes(4, "little") + data


def integer(value):
    return pickle.LONG1 + b"\x09" + value.to_bytes(9, "little", signed=True)


def tuple_of(*parts):
    return pickle.MARK + b"".join(parts) + pickle.TUPLE


def name(dotted):
    module, _, attribute = dotted.partition(" ")
    return pickle.GLOBAL + f"{module}\n{attribute}\n".encode()


def call(function, *arguments):
    return name(function) + tuple_of(*arguments) + pickle.REDUCE


def tensor(key, array, *, offset=0, shape=None, strides=None, size=None, kind=None):
    """A tensor of the storage `key`; strides are counted in numbers."""
    shape = array.shape if shape is None else shape
    strides = [n // array.itemsize for n in array.strides] if strides is None else strides
    kind = STORAGES[str(array.dtype)] if kind is None else kind
    size = array.size if size is None else size
    storage = tuple_of(text("storage"), name(f"torch {kind}"), text(key), text("cpu"), integer(size)) + pickle.BINPERSID
    numbers = [tuple_of(*map(integer, each)) for each in (shape, strides)]
    hooks = call("collections OrderedDict")
    return call(REBUILD, storage, integer(offset), *numbers, pickle.NEWFALSE, hooks)


def dict_of(entries):
    items = b"".join(text(key) + value for key, value in entries.items())
    return pickle.EMPTY_DICT + pickle.MARK + items + pickle.SETITEMS


def program(content):
    return pickle.PROTO + b"\x02" + content + pickle.STOP


def write(file, content, records, *, compression=zipfile.ZIP_STORED, prefix="archive", more=()):
    """The zip archive of a pickle and its records."""
    with zipfile.ZipFile(file, "w", compression) as archive:
        archive.writestr(f"{prefix}/data.pkl", content)
        for key, data in (*records.items(), *more):
            archive.writestr(f"{prefix}/{key}", data)


def write_tensors(file, arrays):
    """Writes a valid file of the arrays."""
    arrays = {key: np.ascontiguousarray(array) for key, array in arrays.items()}
    keys = {key: str(i) for i, key in enumerate(arrays)}
    content = program(dict_of({key: tensor(keys[key], array) for key, array in arrays.items()}))
    write(
        file,
        content,
        {f"data/{keys[key]}": array.tobytes() for key, array in arrays.items()},
        more=[("byteorder", "little")],
    )
