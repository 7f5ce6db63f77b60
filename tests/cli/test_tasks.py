"""`jaxzoo tasks`. Kills: examples printed with other targets than the task has."""

import re
import typing

import numpy as np
import pytest

from jaxzoo.cli.tasks import main
from jaxzoo.tasks import base
from jaxzoo.tasks.continuous_mqar import ContinuousMQARConfig
from jaxzoo.tasks.demos import DEMOS
from jaxzoo.tasks.text_recall import TextTask
from tests.pallas_kernels.shared import full, slow
from tests.tasks.oracles import oracle

LEGENDS = {
    "mqar": "keys 1..31, values 32..63; 0: empty",
    "ar": "keys 2..15, values 16..31; 0: empty",
    "nar": "2-grams of 2..15, values 16..31; 0: empty",
    "mqnar": "2-grams of 2..15, values 16..31; 0: empty, 1: no match",
    "selective_copy": "noise 1..8, signals 9..16; 0: separator",
    "forgetting_mqar": "keys 1..31, values 32..63; 0: empty; keys are bound again from position 8 on",
    "compositional_mqar": "first keys 1..19, second keys 20..39, values 40..59; 0: empty",
    "parity": "bits 0 and 1; 2 asks",
    "permutations": "permutations 0..5 of 3 objects in lexicographic order; each asks for the product",
    "noisy_recall": "keys 0..3, values 4..7, noise 8..15",
    "fuzzy_recall": "keys 0..3, values 4..8",
    "memorization": "keys 0..6, values 7..14",
    "compression": "plain tokens 0..6, compression token 7",
    "continuous_mqar": "keys 0..63, values 0..63; token = key * 65, + 1 + value in a pair",
    "phone_book": "tokens of bytes; the answer follows the question",
    "needle_in_a_haystack": "tokens of bytes; the answer follows the question",
    "variable_tracking": "tokens of bytes; the answer follows the question",
    "majority": "bits 0 and 1; 2 asks",
}
FULL = ("mqar", "continuous_mqar", "compression", "phone_book")
"""Tokens of every kind: keys and values, pairs, a last token that asks, text."""


def table(out: str) -> dict[str, list[str]]:
    """Returns the printed positions, tokens and targets of all examples."""
    names, lines = ("position", "token", "target"), out.splitlines()
    rows = {name: [line for line in lines if line.startswith(name)] for name in names}
    assert {len({len(line) for line in lines}) for lines in zip(*rows.values(), strict=True)} == {1}
    return {name: [cell for line in lines for cell in line.split()[1:]] for name, lines in rows.items()}


@pytest.mark.parametrize("name", [full(name) if name in FULL else slow(name) for name in DEMOS])
def test_every_task_prints_what_reading_finds(name, capsys):
    """Kills: a task without positions, misplaced targets, a legend with wrong tokens, examples that are too long to
    print."""
    assert main(["--task", name, "--seed", "3"]) == 0
    out = capsys.readouterr().out
    config = DEMOS[name].build()
    summary, legend = out.splitlines()[:2]
    assert summary == f"{name}: {DEMOS[name].summary}"
    assert legend == LEGENDS[name]
    if isinstance(config, TextTask):
        batch = config.labelled(3, np.arange(3))
        said = oracle(batch.tokens, config)
        answers = [config.tokenizer.decode(row[row != -100]) for row in said]
        assert re.findall("^answer:(.*)$", out, re.MULTILINE) == answers
        return
    if isinstance(config, ContinuousMQARConfig):
        passes = [dict(re.findall(r"(\d+)=(\d+)", line)) for line in out.splitlines() if "=" in line][1:]
        asked = [dict(re.findall(r"(\d+)\? (\d+)", line)) for line in out.splitlines() if "?" in line]
        assert passes == [answers for answers in asked for _ in range(config.n_passes)]
        assert [len(answers) for answers in asked] == [config.n_pairs] * 3
        return
    printed = table(out)
    assert len(printed["token"]) == 3 * config.length
    assert config.length < 32
    tokens = np.array(printed["token"], int).reshape(3, config.length)
    found = ["." if label == -100 else str(label) for label in oracle(tokens, config).ravel()]
    assert printed["target"] == found


def test_flags_reach_the_task(capsys, monkeypatch):
    """Kills: a flag that is dropped, or goes to another field; a legend that names other tokens than the examples
    have."""
    shown = []

    def record(config, key, numbers, split):
        shown.append(config)
        tokens = np.zeros((numbers.size, config.length), np.int32)
        return base.Batch(tokens=tokens, positions=tokens[:, :1], targets=tokens[:, :1])

    for kind in {type(demo.build()) for demo in DEMOS.values()}:
        monkeypatch.setattr(kind, "generate", record)
    for flags, fields in (
        ("--task ar --length 9", {"length": 9, "n_gram": 1, "n_pairs": 4, "n_queries": 1, "vocab_size": 32}),
        ("--task nar --n-gram 3 --length 15", {"n_gram": 3, "n_pairs": 3, "n_queries": 1}),
        ("--task mqnar --length 60 --n_pairs 8", {"length": 60, "n_pairs": 8, "n_unmatched": 2}),
        ("--task selective-copy --repeats once", {"repeats": "once", "n_signals": 4}),
        ("--task forgetting_mqar --n-updates=1", {"n_updates": 1, "fillers": "zero"}),
        ("--task Compositional_MQAR --n-pairs 9 --length 54", {"n_pairs": 9, "vocab_size": 60}),
        ("--task parity --cumulative", {"cumulative": True, "length": 13}),
        ("--task majority --no-cumulative --length 8", {"cumulative": False, "length": 8}),
        ("--task continuous_mqar --n-passes 3 --n-values 9", {"length": 16, "n_pairs": 4, "n_keys": 64, "n_values": 9}),
        ("", {"length": 16, "n_pairs": 2, "power": 0.1}),
    ):
        assert main([*flags.split(), "--show", "1"]) == 0
        config = shown.pop()
        assert {name: getattr(config, name) for name in fields} == fields
        assert "train example 0" in capsys.readouterr().out
    for name, legend in LEGENDS.items():
        assert main(["--task", name]) == 0
        assert capsys.readouterr().out.splitlines()[:2] == [f"{name}: {DEMOS[name].summary}", legend]


def test_choices_are_the_task_s():
    """Kills: choices of the command, which is parsed without JAX, that differ from those of the tasks."""
    for split in typing.get_args(base.Split):
        assert main(["--show", "1", "--split", split]) == 0
