"""Reader of `pytorch_model.bin` without PyTorch that executes no code of the file.

`torch.save` writes a zip archive: `data.pkl`, a pickle of the state dict, and one raw record for every storage. A
pickle is a program for a stack machine that may call any function by its name. Here `pickletools` splits it into
instructions, and our own machine supports those of a state dict: containers, numbers, strings, and calls of the three
globals of `_CALLS`. Nothing is imported or looked up; other globals and instructions are refused by name.

Tensors are views of the mapped file: pages are read on use.
"""

import pickletools
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

LARGEST_PICKLE = 16 * 2**20
"""Largest `data.pkl` in bytes; that of a state dict of a thousand tensors has some 0.1 MB."""

MOST_ARGUMENTS = 8
"""Most arguments of a call, and dimensions: a million calls with a million of them would never end."""

_STORAGES: Mapping[str, Any] = {
    "DoubleStorage": np.float64,
    "FloatStorage": np.float32,
    "HalfStorage": np.float16,
    "BFloat16Storage": ml_dtypes.bfloat16,
    "LongStorage": np.int64,
    "IntStorage": np.int32,
    "ShortStorage": np.int16,
    "CharStorage": np.int8,
    "ByteStorage": np.uint8,
    "BoolStorage": np.bool_,
}


class _Global(NamedTuple):
    """Name in a pickle; it stands for nothing but its entry in `_CALLS` or `_STORAGES`."""

    module: str
    name: str


class _Storage(NamedTuple):
    """Record of raw numbers."""

    dtype: Any
    key: str
    size: int


class _Tensor(NamedTuple):
    """View of a storage."""

    storage: _Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


_MARK = object()


def read_torch_file(file: Path) -> dict[str, np.ndarray]:
    """Returns the tensors of a file as read-only views. If its dict holds a dict `state_dict` (PyTorch Lightning), that
    one is read. Raises `ValueError` if the file is damaged, not written by `torch.save`, or holds anything but tensors,
    storages and dicts; `OSError` if it cannot be read."""
    try:
        with zipfile.ZipFile(file) as archive:
            records = {info.filename.partition("/")[2]: info for info in archive.infolist()}
            if "data.pkl" not in records:
                raise ValueError(f"{file} holds no data.pkl; only files of torch.save are read")
            if records["data.pkl"].file_size > LARGEST_PICKLE:
                raise ValueError(
                    f"{file}: data.pkl has {records['data.pkl'].file_size:,} bytes, above {LARGEST_PICKLE:,}"
                )
            for name, info in records.items():
                if info.compress_type != zipfile.ZIP_STORED:
                    raise ValueError(f"{file}: its record {name} is compressed, which torch.save never does")
            if "byteorder" in records and archive.read(records["byteorder"]).strip() != b"little":
                raise ValueError(f"{file}: its numbers are not little-endian")
            program = archive.read(records["data.pkl"])
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError) as error:
        remedy = "save it with PyTorch 1.6 or later, or as safetensors"
        raise ValueError(f"{file} is damaged, or no zip archive of torch.save ({error}); {remedy}") from None
    found = _run(program, str(file))
    if isinstance(found, dict) and isinstance(found.get("state_dict"), dict):
        found = found["state_dict"]
    if not isinstance(found, dict) or not all(isinstance(name, str) for name in found):
        raise ValueError(f"{file} must hold a dict of tensors by name")
    for name, value in found.items():
        if not isinstance(value, _Tensor):
            raise ValueError(f"{file}: {name} is no tensor but {type(value).__name__}")
    content = np.memmap(file, np.uint8, mode="r")
    return {name: _view(file, name, tensor, records, content) for name, tensor in found.items()}


def _view(
    file: Path, name: str, tensor: _Tensor, records: Mapping[str, zipfile.ZipInfo], content: np.ndarray
) -> np.ndarray:
    """Returns a tensor as a view of the mapped file, within its record."""
    storage, info = tensor.storage, records.get(f"data/{tensor.storage.key}")
    dtype = np.dtype(storage.dtype)
    if info is None:
        raise ValueError(f"{file}: {name} needs the record data/{storage.key}, which is missing")
    header = bytes(content[info.header_offset : info.header_offset + 30])  # a name and an extra field follow it
    begin = info.header_offset + 30 + sum(int.from_bytes(header[i : i + 2], "little") for i in (26, 28))
    is_header = len(header) == 30 and header[:4] == b"PK\x03\x04"
    if not is_header or info.file_size < storage.size * dtype.itemsize or begin + info.file_size > content.size:
        raise ValueError(f"{file}: {name} needs {storage.size:,} numbers; its record is shorter: the file is damaged")
    last = tensor.offset + sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.strides, strict=True))
    if 0 not in tensor.shape and last >= storage.size:
        raise ValueError(f"{file}: {name} reaches beyond its record: the file is damaged")
    flat = content[begin : begin + storage.size * dtype.itemsize].view(dtype)[tensor.offset :]
    strides = [stride * dtype.itemsize for stride in tensor.strides]
    if 0 in tensor.shape:
        return np.zeros(tensor.shape, dtype)
    return np.lib.stride_tricks.as_strided(flat, tensor.shape, strides, writeable=False)


class _RefusedError(ValueError):
    """The file asks for something that is not supported."""


def _run(program: bytes, where: str) -> Any:
    """Returns the object that a program leaves on the stack; `where` begins errors."""
    try:
        return _execute(program)
    except _RefusedError as error:
        raise ValueError(f"{where} asks for {error}; refused: only tensors, storages and dicts are read") from None
    except (IndexError, KeyError, TypeError, AttributeError, OverflowError, ValueError) as error:
        raise ValueError(f"{where}: data.pkl is damaged or cut off ({type(error).__name__})") from None


def _execute(program: bytes) -> Any:
    """Stack machine for the instructions of a state dict."""
    stack: list[Any] = []
    memo: dict[int, Any] = {}
    argument: Any
    for opcode, argument, _ in pickletools.genops(program):
        match opcode.name:
            case "STOP":
                return stack.pop()
            case "PROTO" | "FRAME":
                pass
            case "BINUNICODE" | "SHORT_BINUNICODE" | "BINSTRING" | "SHORT_BINSTRING":
                stack.append(argument)
            case "BININT" | "BININT1" | "BININT2" | "LONG1" | "BINFLOAT":
                stack.append(argument)
            case "NONE" | "NEWTRUE" | "NEWFALSE":
                stack.append({"NONE": None, "NEWTRUE": True, "NEWFALSE": False}[opcode.name])
            case "MARK":
                stack.append(_MARK)
            case "EMPTY_DICT":
                stack.append({})
            case "EMPTY_LIST":
                stack.append([])
            case "EMPTY_TUPLE":
                stack.append(())
            case "TUPLE1" | "TUPLE2" | "TUPLE3":
                n = int(opcode.name[-1])
                stack.append(tuple([stack.pop() for _ in range(n)][::-1]))
            case "TUPLE":
                stack.append(tuple(_popped_to_mark(stack)))
            case "SETITEM":
                value, key = stack.pop(), stack.pop()
                _set_items(stack[-1], [key, value])
            case "SETITEMS":
                items = _popped_to_mark(stack)
                _set_items(stack[-1], items)
            case "APPEND" | "APPENDS":
                items = [stack.pop()] if opcode.name == "APPEND" else _popped_to_mark(stack)
                _require(stack[-1], list).extend(items)
            case "GLOBAL":
                stack.append(_global(*argument.split(" ", 1)))
            case "STACK_GLOBAL":
                name, module = stack.pop(), stack.pop()
                stack.append(_global(_require(module, str), _require(name, str)))
            case "REDUCE":
                arguments, function = _require(stack.pop(), tuple), _require(stack.pop(), _Global)
                if function not in _CALLS or len(arguments) > MOST_ARGUMENTS:
                    raise _RefusedError(f"a call of {function.module}.{function.name}")
                stack.append(_CALLS[function](*arguments))
            case "BUILD":
                stack.pop()  # attributes, such as _metadata of a state dict: data that nothing reads
                _require(stack[-1], dict)
            case "BINPERSID":
                stack.append(_storage(*stack.pop()))
            case "BINPUT" | "LONG_BINPUT" | "MEMOIZE":
                memo[len(memo) if argument is None else argument] = stack[-1]
            case "BINGET" | "LONG_BINGET":
                stack.append(memo[argument])
            case other:
                raise _RefusedError(f"the pickle instruction {other}, which no dict of tensors needs")
    raise ValueError("no STOP")


def _require(value: Any, kind: Any) -> Any:
    if not isinstance(value, kind):
        raise TypeError
    return value


def _popped_to_mark(stack: list[Any]) -> list[Any]:
    at = len(stack) - 1
    while stack[at] is not _MARK:
        at -= 1
    items = stack[at + 1 :]
    del stack[at:]
    return items


def _set_items(target: Any, items: list[Any]) -> None:
    for key, value in zip(items[::2], items[1::2], strict=True):
        _require(target, dict)[_require(key, str | int)] = value  # hashing nested tuples may never end


def _global(module: str, name: str) -> _Global:
    known = (module, name) in _CALLS or (module == "torch" and name in _STORAGES)
    if not known:
        raise _RefusedError(f"the global {module}.{name}")
    return _Global(module, name)


def _storage(kind: Any, storage: Any, key: Any, _: Any, size: Any) -> _Storage:
    if kind != "storage" or not isinstance(storage, _Global) or storage.module != "torch":
        raise _RefusedError("a persistent object that is no storage")
    if not isinstance(key, str) or not isinstance(size, int) or size < 0:
        raise TypeError
    return _Storage(_STORAGES[storage.name], key, size)


def _tensor(storage: Any, offset: Any, shape: Any, strides: Any, *_: Any) -> _Tensor:
    if not isinstance(storage, _Storage) or len(shape) != len(strides) or len(shape) > MOST_ARGUMENTS:
        raise TypeError
    if not all(isinstance(n, int) and 0 <= n < 2**62 for n in (offset, *shape, *strides)):
        raise TypeError
    return _Tensor(storage, offset, tuple(shape), tuple(strides))


_CALLS: Mapping[tuple[str, str], Callable[..., Any]] = {
    ("collections", "OrderedDict"): lambda: {},  # noqa: PIE807 no arguments
    ("torch._utils", "_rebuild_tensor_v2"): _tensor,
    ("torch._utils", "_rebuild_parameter"): lambda tensor, *_: _require(tensor, _Tensor),
}
"""Globals that may be called, and their replacements."""
