"""More of the world: models of other libraries, sequences with classes, genomes, prompts, rows, exports, sweeps."""

import gzip
import json
import random
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as parquet

from jaxzoo.data.tokenizer import END_OF_TEXT
from jaxzoo.data.tokens.tokenizer_definition import byte_alphabet
from jaxzoo.data.tokens.tokenizer_files import gpt2_content
from tests.cli import test_classify
from tests.interop import published, torch_files
from tests.sweep import small

COMPLETIONS = """
from jaxzoo.train.config import *
from jaxzoo.data.completions import CompletionsConfig
from jaxzoo.mixers import AttentionConfig

config = RunConfig(
    model=LanguageModelConfig(vocab_size=257, d_model=8, n_layers=1, max_length=32, pattern=(AttentionConfig(),)),
    data=CompletionsConfig(path="pairs.jsonl", valid_path="pairs.jsonl", length=16),
    train=TrainConfig(batch_size=4, valid_batch_size=4, steps=1),
)
"""
COMMANDS = (
    ("train", "--config sequences.py --run-dir sequences_run"),
    ("export", "--run run --out model.safetensors"),
    ("export", "--run run --out exported --dtype bfloat16"),
    ("sweep", "--experiment small.py --workers 1 --out swept"),
)


def make_files(place: Path) -> None:
    """Makes the files that no command makes."""
    config, shapes, _ = published.read("llama")
    shapes = {key: (258, *shape[1:]) if shape[0] == 61 else shape for key, shape in shapes.items()}
    layers = {key: shape for key, shape in shapes.items() if not re.search(r"\.[12]\.", key)}
    arrays = {key: published.numbers(key, shape) for key, shape in layers.items()}
    config |= {"num_hidden_layers": 1, "vocab_size": 258}
    for folder in ("folder", "torch_folder"):
        published.write_folder(place / folder, config, arrays)
        vocab = {**byte_alphabet(), "ab": 256, END_OF_TEXT: 257}
        (place / folder / "tokenizer.json").write_text(json.dumps(gpt2_content(vocab, "a b\n")))
    (place / "torch_folder" / "model.safetensors").unlink()
    tensors = {key: torch_files.tensor(str(i), array) for i, (key, array) in enumerate(arrays.items())}
    torch_files.write(
        place / "torch_folder" / "pytorch_model.bin",
        torch_files.program(torch_files.dict_of(tensors)),
        {f"data/{i}": array.tobytes() for i, array in enumerate(arrays.values())},
    )
    (place / "sequences").mkdir()
    test_classify.write_benchmark(place / "sequences")
    (place / "sequences.py").write_text(test_classify.CONFIG.format(path="sequences"))
    rng = random.Random(0)
    text = "".join(f">chr{i}\n" + "\n".join("".join(rng.choices("ACGTacgtN", k=60)) for _ in range(9)) for i in (1, 2))
    (place / "genome").mkdir()
    (place / "genome" / "a.fa").write_text(text.split(">chr2")[0])
    (place / "genome" / "b.fa.gz").write_bytes(gzip.compress((">chr2" + text.split(">chr2")[1]).encode()))
    (place / "intervals.bed").write_text("chr1\t0\t300\ttrain\nchr1\t300\t400\tvalid\nchr2\t0\t400\ttrain\n")
    rows = [{"text": f"row {i} of {i}; " * 9, "meta": {"subset": "ab"[i % 2]}} for i in range(24)]
    (place / "rows").mkdir()
    parquet.write_table(pa.Table.from_pylist(rows), place / "rows" / "a.parquet", row_group_size=8)
    pairs = [{"prompt": f"{i} and {i} is ", "response": f"{2 * i}"} for i in range(12)]
    (place / "pairs.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    (place / "completions.py").write_text(COMPLETIONS)
    small.write_experiment(place, STEPS="2", EVAL_EVERY="2", RATES="(1e-2,)", SEEDS="(0,)")


def table() -> list[tuple]:
    """Returns patterns of files with the commands that read them, as `world.cases` has them."""
    classify = ["--run", "sequences_run", "--data", "sequences", "--run-dir", "new", "--length", "12"]
    fasta = ["--source", "fasta", "--paths", "genome", "--intervals", "intervals.bed"]
    rows = ["--source", "parquet", "--paths", "rows", "--subset-field", "meta.subset", "--valid-fraction", "0.3"]
    resumed = ["--experiment", "small.py", "--workers", "1"]
    return [
        ("folder/*", "convert", ["--from", "folder"], "new", False),
        ("torch_folder/*.bin", "convert", ["--from", "torch_folder"], "new", False),
        ("sequences/*", "classify", [*classify, "--kmer", "1", "--steps", "1", "--batch-size", "8"], "", False),
        ("genome/*", "data_build", fasta, "new", False),
        ("intervals.bed", "data_build", fasta, "new", False),
        ("rows/*", "data_build", rows, "new", False),
        ("pairs.jsonl", "train", ["--config", "completions.py", "--run-dir", "new"], "", False),
        ("model.safetensors", "export", ["--import", "model.safetensors"], "new", True),
        ("exported/*", "generate", ["--run", "exported", "--prompt", "one", "--max-tokens", "4"], "", True),
        ("run/**/*", "export", ["--run", "run"], "new.safetensors", True),
        ("swept/*", "sweep", ["--report", "swept", "--experiment", "small.py"], "new", True),
        ("swept/**/*.json*", "sweep", resumed, "swept", True),
    ]
