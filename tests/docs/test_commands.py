"""Commands of README and docs. Kills: a flag, file or field that was renamed."""

import ast
import functools
import importlib
import re
import shlex
from pathlib import Path

import pytest

from jaxzoo.cli.commands import COMMANDS as NAMES

pytestmark = pytest.mark.full

ROOT = Path(__file__).parents[2]
PAGES = [
    *(ROOT / page for page in ("README.md", "CONTRIBUTING.md", "configs/README.md", "experiments/models/README.md")),
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "pallas_kernels").rglob("README.md")),
]

TESTS = {
    "benchmarks.coding_strand": "tests/benchmarks/test_coding_strand.py",
    "benchmarks.delta_rules": "tests/benchmarks/test_delta_rules.py",
    "benchmarks.generation": "tests/benchmarks/test_generation.py",
    "benchmarks.linearization": "tests/benchmarks/test_linearization.py",
    "benchmarks.kernel_plot": "tests/benchmarks/test_kernel_plot.py",
    "benchmarks.mixers_cpu": "tests/benchmarks/test_mixers_cpu.py",
    "benchmarks.mqar_cpu": "tests/benchmarks/test_mqar_cpu.py",
    "benchmarks.on_device": "tests/benchmarks/test_on_device.py",
    "benchmarks.queue_pictures": "tests/benchmarks/test_sweep_piece.py",
    "benchmarks.decode_programs": "tests/benchmarks/test_op_programs.py",
    "benchmarks.op_programs": "tests/benchmarks/test_op_programs.py",
    "benchmarks.mqar_generation": "tests/benchmarks/test_mqar_cpu.py",
    "benchmarks.parallel_recall": "tests/benchmarks/test_parallel_recall.py",
    "benchmarks.pretrained_cpu": "tests/benchmarks/test_pretrained_cpu.py",
    "benchmarks.recurrent_cpu": "tests/benchmarks/test_recurrent_cpu.py",
    "benchmarks.sweep_cpu": "tests/benchmarks/test_sweep_cpu.py",
    "benchmarks.token_input": "tests/benchmarks/test_token_input.py",
    "experiments.models.make": "tests/experiments/test_models.py",
    "experiments.pretrained_recall": "tests/experiments/test_pretrained_recall.py",
    "experiments.zoology_figure8": "tests/experiments/test_zoology_figure8.py",
    "jaxzoo.bench": "tests/bench/test_bench.py",
    "jaxzoo.classify": "tests/cli/test_classify.py",
    "jaxzoo.data.bigrams": "tests/cli/test_data_bigrams.py",
    "jaxzoo.data.build": "tests/cli/test_data_build.py",
    "jaxzoo.data.demo_pile": "tests/cli/test_data_build.py",
    "jaxzoo.data.recall_statistics": "tests/cli/test_data_recall_statistics.py",
    "jaxzoo.data.tokenize": "tests/cli/test_data_tokenize.py",
    "jaxzoo.data.train_tokenizer": "tests/cli/test_data_tokenize.py",
    "jaxzoo.evaluate": "tests/cli/test_evaluate.py",
    "jaxzoo.evaluate --slices": "tests/cli/test_evaluate_slices.py",
    "jaxzoo.evaluate --tasks": "tests/cli/test_evaluate_tasks.py",
    "jaxzoo.compare": "tests/cli/test_inspect_compare.py",
    "jaxzoo.convert": "tests/cli/test_convert.py",
    "jaxzoo.linearize": "tests/cli/test_linearize.py",
    "experiments.linearize": "tests/experiments/test_linearize.py",
    "jaxzoo.export": "tests/train/test_export.py",
    "jaxzoo.generate": "tests/cli/test_generate.py",
    "jaxzoo.inspect": "tests/cli/test_inspect_compare.py",
    "jaxzoo.plan": "tests/cli/test_plan.py",
    "jaxzoo.sweep": "tests/cli/test_sweep.py",
    "jaxzoo.tasks": "tests/cli/test_tasks.py",
    "jaxzoo.tasks.records": "tests/tasks/test_records.py",
    "jaxzoo.train": "tests/cli/test_train.py",
    "pallas_kernels.benchmark": "tests/pallas_kernels/test_benchmark.py",
    "pallas_kernels.compile_check": "tests/pallas_kernels/test_compile_check.py",
    "pallas_kernels.verify": "tests/pallas_kernels/test_verify.py",
    "tests.fuzz": "tests/fuzz/test_fuzz.py",
    "tests.mutants": "tests/mutants/test_mutants.py",
}
"""Program -> the test file that runs it, by its `main` or as a process."""

TOOLS = ("build", "docs.papers", "pytest", "venv")
"""Programs without flags of ours; tests/docs/test_papers.py compares what docs.papers writes."""
MAINS = {"jaxzoo.evaluate --slices": "jaxzoo.cli.evaluate", "jaxzoo.evaluate --tasks": "jaxzoo.cli.evaluate"}
"""Modules of `main` where they do not follow from the program's name."""
SELECTORS = ("--config", "--task", "--tasks", "--slices")
"""Flags that a help text depends on."""


class Command:
    """A printed command: the page, the program and the words that follow it."""

    def __init__(self, page: Path, text: str):
        self.page = page
        # variables of a shell script, and what it computes
        text = re.sub(r"\$\([^)]*\)|\$resume", "", text).replace("$model", "based").replace("$steps", "10")
        if found := re.match("jaxzoo ([a-z-]+)", text):
            module = re.sub("^(data|tasks)-", r"\1.", found[1]).replace("-", "_")
            text = f"python -m jaxzoo.{module}{text[found.end() :]}"
        words = shlex.split(re.sub(r"\$\w+", "0", text), comments=True)
        end = next((i for i, word in enumerate(words) if word in ("&", "|") or word.endswith(";")), len(words))
        words = [*words[:end], *[word.rstrip(";") for word in words[end : end + 1] if word.endswith(";")]]
        self.program = words[2] if words[1] == "-m" else words[1].removesuffix(".py").replace("/", ".")
        self.words = words[3:] if words[1] == "-m" else words[2:]
        for flag in ("--slices", "--tasks"):
            if self.program == "jaxzoo.evaluate" and flag in self.words:
                self.program += f" {flag}"

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}: {self.program} {' '.join(self.words)}".strip()


def commands() -> list[Command]:
    """Distinct commands of all pages."""
    found = {}
    names = "|".join(sorted(NAMES, key=len, reverse=True))
    for page in PAGES:
        text = page.read_text()
        blocks = re.findall(r"^( *)```\w*\n(.*?)^\1```", text, re.DOTALL | re.MULTILINE)
        lines = [line for _, block in blocks for line in re.sub(r"\\\n\s*", " ", block).splitlines()]
        prose = re.sub(r"^( *)```\w*\n.*?^\1```", "", text, flags=re.DOTALL | re.MULTILINE)
        lines += [" ".join(code.split()) for code in re.findall(r"`([^`]+)`", prose)]
        for line in lines:
            line = re.sub(r'^\w+="(.*)"$', r"\1", line)
            match = re.search(rf"(?:\bpython3? (?:-m [\w.]+|[\w/]+\.py)|(?<!\S)jaxzoo (?:{names}))(?: .*)?$", line)
            if match and "..." not in match[0] and "jaxzoo.NAME" not in match[0]:
                command = Command(page, match[0])
                found.setdefault(str(command), command)
    return list(found.values())


COMMANDS = commands()


def test_commands_are_found():
    """Kills: a search that finds none, or none in prose or shell scripts."""
    names = {str(command) for command in COMMANDS}
    assert "docs/cost.md: benchmarks.mqar_cpu --peer PYTHON" in names
    assert any(name.startswith("README.md: jaxzoo.train --config ") for name in names)
    assert "docs/recall.md: jaxzoo.train --config configs/recall/based.py" in names
    assert any(name.startswith("docs/scale.md: jaxzoo.train --config configs/lm/based.py") for name in names)
    assert len(names) > 60


def test_python_on_the_pages_parses():
    """Kills: an example that a line break in a comment has made unreadable."""
    for page in PAGES:
        for i, block in enumerate(re.findall(r"^```python\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)):
            ast.parse(block, f"{page.relative_to(ROOT)}, example {i}")


@pytest.mark.parametrize("program", sorted({command.program for command in COMMANDS} - set(TOOLS)))
def test_a_program_has_a_test_that_runs_it(program):
    """Kills: a printed program that no test runs. Add it to `TESTS`, together with a test."""
    text = (ROOT / TESTS[program]).read_text()
    assert "main(" in text or "main as" in text or "run(" in text or f"import {program.rpartition('.')[2]}" in text
    assert program.rpartition(".")[2].split()[0] in text


@functools.cache
def flags_of(module: str, *selected: str) -> frozenset[str]:
    """The flags in the help text of a program."""
    import contextlib
    import io

    shown = io.StringIO()
    with contextlib.redirect_stdout(shown), contextlib.suppress(SystemExit):
        for topic in ([], ["all"]) if selected else ([],):
            importlib.import_module(module).main([*selected, "--help", *topic])
    return frozenset(re.findall(r"--[a-zA-Z][\w.-]*", shown.getvalue()))


def main_module(program: str) -> str:
    """The module with the program's `main`."""
    if program.startswith("jaxzoo."):
        return MAINS.get(program, "jaxzoo.cli." + program.removeprefix("jaxzoo.").replace(".", "_"))
    return program if (ROOT / f"{program.replace('.', '/')}.py").exists() else f"{program}.__main__"


def selected(words: list[str]) -> list[str]:
    """The words that select a help text."""
    values = {"NAME": "mqar", "FILE.py:NAME": "mqar", "runs/pythia": "configs/lm/based_tiny.py"}
    return [
        part
        for i, word in enumerate(words)
        if word in SELECTORS
        for part in (word, *(values.get(value, value) for value in words[i + 1 : i + 2]))
    ]


def write_printed_files(page: Path) -> None:
    """Writes into the current folder the files that a page prints, each after "`NAME.py`:"."""
    for name, code in re.findall(r"`(\w+\.py)`:\n\n```python\n(.*?)```", page.read_text(), re.DOTALL):
        Path(name).write_text(code)


NO_HELP = (
    "benchmarks.mqar_cpu",
    "benchmarks.mqar_generation",
    "tests.fuzz",
    "tests.mutants",
)
"""Programs whose flags are the fields of a config, or that have none."""


@pytest.mark.parametrize("command", COMMANDS, ids=str)
def test_a_printed_command_can_be_typed(command, tmp_path, monkeypatch, capsys):
    """Kills: a flag, file, config field or value that was renamed, which the page still prints."""
    monkeypatch.chdir(ROOT)
    paths = [word for word in command.words if re.match(r"(configs|experiments|tests|benchmarks)/[\w/]+", word)]
    assert not [path for path in paths if not list(ROOT.glob(path.replace("FILE", "*")))]
    flags = {word.partition("=")[0] for word in command.words if word.startswith("--")}
    if command.program in TOOLS:
        return
    if command.program == "benchmarks.mqar_cpu":
        assert flags <= {"--peer"}
    elif command.program in NO_HELP:
        assert not flags
    elif command.program == "jaxzoo.train" and "--config" in flags and "--config runs/" not in str(command):
        from jaxzoo.cli.train import main

        words = [{"NAME": "hyena", "FILE": "configs/mqar/zoo.py"}.get(word, word) for word in command.words]
        given = {
            flag: words[words.index(flag) + 1].partition(":")[0]
            for flag in flags & {"--config", "--model.mixer", "--task"}
        }
        if any(file.endswith(".py") and not Path(file).exists() for file in given.values()):
            words = [str(ROOT / word) if word.startswith("configs/") else word for word in words]
            monkeypatch.chdir(tmp_path)
            write_printed_files(command.page)
        assert main([*words, "--print-model"]) == 0, capsys.readouterr().err
    else:
        if any(".py:" in word and word != "FILE.py:NAME" for word in command.words):
            monkeypatch.chdir(tmp_path)
            write_printed_files(command.page)
        known = flags_of(main_module(command.program), *selected(command.words))
        of_runs = flags_of("jaxzoo.cli.train", "--config", "recall/based") | flags_of(
            "jaxzoo.cli.train", "--config", "mqar/based"
        )  # fields of a run's config
        assert not [flag for flag in flags if flag not in known and not ("." in flag and flag in of_runs)]
