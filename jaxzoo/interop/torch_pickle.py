"""Reader of `pytorch_model.bin` without PyTorch, which executes nothing that the file says.

`torch.save` writes a zip archive: `data.pkl`, a pickle of the state dict, and one raw record for every storage. A
pickle is a program for a stack machine that may call any function by its name. Here `pickletools` splits it into
instructions, and a machine of our own knows those that a state dict needs: containers, numbers, strings, and calls of
the three globals of `_CALLS`. Nothing is imported or looked up; all other globals and instructions are refused by name.

Tensors are views of the mapped file: a page is read when its numbers are.
"""

import pickletools
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import ml_dtypes
import numpy as np

LARGEST_PICKLE = 16 * 2**20
"""Bytes of a `data.pkl` that are read at most; that of a state dict of a thousand tensors has some 0.1 MB."""

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
    """Name that a pickle mentions; it stands for nothing until `_call` knows it."""

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
_UNKNOWN = object()


def read_torch_file(file: Path) -> dict[str, np.ndarray]:
    """The tensors of a file, as read-only views of it.

    A file whose dict holds a dict `state_dict` among other things (PyTorch Lightning) is read as that dict.

    Raises:
      ValueError: the file is damaged, none of `torch.save`, or asks for anything but tensors, storages and dicts.
      OSError: it cannot be read.
    """
    try:
        with zipfile.ZipFile(file) as archive:
            records = {info.filename.partition("/")[2]: info for info in archive.infolist()}
            if "data.pkl" not in records:
                raise ValueError(f"{file} holds no data.pkl; only files of torch.save are read")
            if records["data.pkl"].file_size > LARGEST_PICKLE:
                raise ValueError(
                    f"{file}: data.pkl has {records['data.pkl'].file_size:,} bytes, above {LARGEST_PICKLE:,}"
                )
            _check_stored(file, records)
            if "byteorder" in records and archive.read(records["byteorder"]).strip() != b"little":
                raise ValueError(f"{file}: its numbers are not little-endian")
            program = archive.read(records["data.pkl"])
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError) as error:
        remedy = "save it with PyTorch 1.6 or later, or as safetensors"
        raise ValueError(f"{file} is damaged, or no zip archive of torch.save ({error}); {remedy}") from None
    found = _Machine(str(file)).run(program)
    if isinstance(found, dict) and isinstance(found.get("state_dict"), dict):
        found = found["state_dict"]
    if not isinstance(found, dict) or not all(isinstance(name, str) for name in found):
        raise ValueError(f"{file} must hold a dict of tensors by name")
    for name, value in found.items():
        if not isinstance(value, _Tensor):
            raise ValueError(f"{file}: {name} is no tensor but {type(value).__name__}")
    content = np.memmap(file, np.uint8, mode="r")
    return {name: _view(file, name, tensor, records, content) for name, tensor in found.items()}


def _check_stored(file: Path, records: Mapping[str, zipfile.ZipInfo]) -> None:
    for name, info in records.items():
        if info.compress_type != zipfile.ZIP_STORED:
            raise ValueError(f"{file}: its record {name} is compressed, which torch.save never does")


def _view(
    file: Path, name: str, tensor: _Tensor, records: Mapping[str, zipfile.ZipInfo], content: np.ndarray
) -> np.ndarray:
    """A tensor as a view of the mapped file, within its record."""
    storage, info = tensor.storage, records.get(f"data/{tensor.storage.key}")
    dtype = np.dtype(storage.dtype)
    if info is None:
        raise ValueError(f"{file}: {name} needs the record data/{storage.key}, which is missing")
    begin = _begin(info, content)
    if begin is None or info.file_size < storage.size * dtype.itemsize or begin + info.file_size > content.size:
        raise ValueError(f"{file}: {name} needs {storage.size:,} numbers; its record is shorter: the file is damaged")
    last = tensor.offset + sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.strides, strict=True))
    if 0 not in tensor.shape and last >= storage.size:
        raise ValueError(f"{file}: {name} reaches beyond its record: the file is damaged")
    flat = content[begin : begin + storage.size * dtype.itemsize].view(dtype)[tensor.offset :]
    strides = [stride * dtype.itemsize for stride in tensor.strides]
    if 0 in tensor.shape:
        return np.zeros(tensor.shape, dtype)
    return np.lib.stride_tricks.as_strided(flat, tensor.shape, strides, writeable=False)


def _begin(info: zipfile.ZipInfo, content: np.ndarray) -> int | None:
    """Where the bytes of a record begin: after its local header, name and extra field."""
    header = bytes(content[info.header_offset : info.header_offset + 30])
    if len(header) < 30 or header[:4] != b"PK\x03\x04":
        return None
    lengths = int.from_bytes(header[26:28], "little") + int.from_bytes(header[28:30], "little")
    return info.header_offset + 30 + lengths


class _Machine:
    """Stack machine for the instructions of a state dict."""

    def __init__(self, where: str):
        self._where = where
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}

    def run(self, program: bytes) -> Any:
        """Result that the program leaves on the stack."""
        try:
            for opcode, argument, _ in pickletools.genops(program):
                if opcode.name == "STOP":
                    return self._stack.pop()
                handle = _HANDLERS.get(opcode.name)
                if handle is None:
                    self._refuse(f"the pickle instruction {opcode.name}, which no dict of tensors needs")
                handle(self, argument)
        except _RefusedError:
            raise
        except (IndexError, KeyError, TypeError, AttributeError, OverflowError, ValueError) as error:
            raise ValueError(f"{self._where}: data.pkl is damaged ({type(error).__name__})") from None
        raise ValueError(f"{self._where}: data.pkl is cut off")

    def _refuse(self, what: str) -> NoReturn:
        raise _RefusedError(f"{self._where} asks for {what}; refused: only tensors, storages and dicts are read")

    def _push(self, value: Any) -> None:
        self._stack.append(value)

    def _popped_to_mark(self) -> list[Any]:
        at = len(self._stack) - 1
        while self._stack[at] is not _MARK:
            at -= 1
        items = self._stack[at + 1 :]
        del self._stack[at:]
        return items

    def _global(self, module: str, name: str) -> None:
        known = (module, name) in _CALLS or (module == "torch" and name in _STORAGES)
        if not known:
            self._refuse(f"the global {module}.{name}")
        self._push(_Global(module, name))

    def _set_items(self, items: list[Any]) -> None:
        target = self._stack[-1]
        if not isinstance(target, dict):
            raise TypeError
        for key, value in zip(items[::2], items[1::2], strict=True):
            if not isinstance(key, str | int | float | tuple | None):
                raise TypeError
            target[key] = value

    def _extend(self, items: list[Any]) -> None:
        if not isinstance(self._stack[-1], list):
            raise TypeError
        self._stack[-1].extend(items)

    def _reduce(self) -> None:
        arguments, function = self._stack.pop(), self._stack.pop()
        if not isinstance(function, _Global) or not isinstance(arguments, tuple):
            raise TypeError
        call = _CALLS.get(tuple(function))
        if call is None:
            self._refuse(f"a call of {function.module}.{function.name}")
        self._push(call(*arguments))

    def _persistent(self) -> None:
        kind, storage, key, _, size = self._stack.pop()
        if kind != "storage" or not isinstance(storage, _Global) or storage.module != "torch":
            self._refuse("a persistent object that is no storage")
        if not isinstance(key, str) or not isinstance(size, int) or size < 0:
            raise TypeError
        self._push(_Storage(_STORAGES[storage.name], key, size))

    def _build(self) -> None:
        self._stack.pop()  # attributes, such as _metadata of a state dict: data that nothing reads
        if not isinstance(self._stack[-1], dict):
            raise TypeError

    def _tuple(self, n: int) -> None:
        items = tuple(self._stack[len(self._stack) - n :]) if n else ()
        if len(items) < n:
            raise IndexError
        del self._stack[len(self._stack) - n :]
        self._push(items)


class _RefusedError(ValueError):
    """The file asks for what is not read."""


def _ordered_dict(*arguments: Any) -> dict:
    pairs = arguments[0] if arguments else ()
    return dict(pairs)


def _tensor(storage: Any, offset: Any, shape: Any, strides: Any, *_: Any) -> _Tensor:
    numbers = (offset, *shape, *strides)
    if not isinstance(storage, _Storage) or not all(isinstance(n, int) and 0 <= n < 2**62 for n in numbers):
        raise TypeError
    if len(shape) != len(strides) or len(shape) > 32:
        raise TypeError
    return _Tensor(storage, offset, tuple(shape), tuple(strides))


def _parameter(tensor: Any, *_: Any) -> _Tensor:
    if not isinstance(tensor, _Tensor):
        raise TypeError
    return tensor


_CALLS: Mapping[tuple[str, ...], Callable[..., Any]] = {
    ("collections", "OrderedDict"): _ordered_dict,
    ("torch._utils", "_rebuild_tensor_v2"): _tensor,
    ("torch._utils", "_rebuild_parameter"): _parameter,
}
"""The globals that may be called, and what stands for them."""


def _stack_global(machine: _Machine) -> None:
    name, module = machine._stack.pop(), machine._stack.pop()
    machine._global(str(module), str(name))


def _memoize(machine: _Machine, index: int) -> None:
    machine._memo[index] = machine._stack[-1]


_HANDLERS: Mapping[str, Callable[[_Machine, Any], None]] = {
    **dict.fromkeys(("PROTO", "FRAME"), lambda m, a: None),
    **dict.fromkeys(
        ("BINUNICODE", "SHORT_BINUNICODE", "BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "BINSTRING"),
        lambda m, a: m._push(a),
    ),
    "SHORT_BINSTRING": lambda m, a: m._push(a),
    "NONE": lambda m, a: m._push(None),
    "NEWTRUE": lambda m, a: m._push(True),
    "NEWFALSE": lambda m, a: m._push(False),
    "MARK": lambda m, a: m._push(_MARK),
    "EMPTY_DICT": lambda m, a: m._push({}),
    "EMPTY_LIST": lambda m, a: m._push([]),
    "EMPTY_TUPLE": lambda m, a: m._push(()),
    "TUPLE1": lambda m, a: m._tuple(1),
    "TUPLE2": lambda m, a: m._tuple(2),
    "TUPLE3": lambda m, a: m._tuple(3),
    "TUPLE": lambda m, a: m._push(tuple(m._popped_to_mark())),
    "SETITEM": lambda m, a: m._set_items([m._stack.pop(-2), m._stack.pop()]),
    "SETITEMS": lambda m, a: m._set_items(m._popped_to_mark()),
    "APPEND": lambda m, a: m._extend([m._stack.pop()]),
    "APPENDS": lambda m, a: m._extend(m._popped_to_mark()),
    "GLOBAL": lambda m, a: m._global(*a.split(" ", 1)),
    "STACK_GLOBAL": lambda m, a: _stack_global(m),
    "REDUCE": lambda m, a: m._reduce(),
    "BUILD": lambda m, a: m._build(),
    "BINPERSID": lambda m, a: m._persistent(),
    **dict.fromkeys(("BINPUT", "LONG_BINPUT"), _memoize),
    "MEMOIZE": lambda m, a: _memoize(m, len(m._memo)),
    **dict.fromkeys(("BINGET", "LONG_BINGET"), lambda m, a: m._push(m._memo[a])),
}
"""Actions of the known instructions."""
