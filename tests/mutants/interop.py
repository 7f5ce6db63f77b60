"""Planted bugs in the readers and writers of other libraries' checkpoints."""

from tests.mutants.data import planted

REFUSALS, PICKLES = "tests/interop/test_refusals.py", "tests/interop/test_torch_pickle.py"
BASED, LLAMA = (
    f"tests/interop/test_published.py::test_published_folder[{name}]" for name in ("based", "llama-yarn-tied")
)

MUTANTS = [
    *planted(
        "jaxzoo/interop/torch_pickle.py",
        PICKLES,
        ("any global is let in", "    if not known:\n", "    if False:\n"),
        ("any global of torch is let in", 'module == "torch" and name in _STORAGES', 'module == "torch"'),
        ("views beyond their record", "if 0 not in tensor.shape and last >= storage.size:", "if False:"),
        ("records shorter than they claim", "info.file_size < storage.size * dtype.itemsize or ", ""),
        ("compressed records", "if info.compress_type != zipfile.ZIP_STORED:", "if False:"),
        ("big-endian numbers", 'archive.read(records["byteorder"]).strip() != b"little"', "False"),
    ),
    *planted(
        "jaxzoo/interop/mapping.py",
        REFUSALS,
        (
            "an unknown tensor is skipped",
            '            problems.append(f"tensor {name} is no part',
            '            str(f"tensor {name} is no part',
        ),
        ("any head passes for a tied one", "return embedding.shape == head.shape and all(", "return True or all("),
    ),
    *planted(
        "jaxzoo/interop/fields.py",
        REFUSALS,
        ("an unknown field is skipped", "            hint = nearest(name, self._read)\n", "            continue\n"),
        ("true is the integer 1", "if type(value) is not int or value < low:", "if not isinstance(value, int):"),
    ),
    *planted(
        "jaxzoo/interop/families/based.py",
        BASED,
        ("a window of one key less", "default=128) // 2 + 1", "default=128) // 2"),
        ("gate and values swapped", '("up_proj", "gate_proj") if', '("gate_proj", "up_proj") if'),
    ),
    *planted("jaxzoo/interop/transforms.py", BASED, ("taps in the other order", "x[:, 0, ::-1].T", "x[:, 0].T")),
    *planted(
        "jaxzoo/interop/rope.py",
        LLAMA,
        ("the base is not read", 'section.number("rope_theta", default=base, low=1)', "base"),
    ),
]
