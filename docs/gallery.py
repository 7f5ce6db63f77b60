"""Pages of the site from the registries: the tables of the mixers, a page per mixer, examples of the tasks.

A mixer's description is in its module docstring (first paragraph, first indented equation; strength and its price
after "Good at:", authors, year and address after "Paper:"), its promises are in its config (`capabilities`); its cost
is measured from shapes.
"""

import contextlib
import functools
import io
import re
import sys
import textwrap
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from benchmarks.subjects import family, growth, in_model, mixer_state_bytes, train_growth
from docs.drawings import STEPS, draw_learning, draw_state, state_arrays
from jaxzoo.cli import tasks
from jaxzoo.mixers import MIXERS, Context, Mixer, MixerConfig
from jaxzoo.mixers.names import ALIASES, title
from jaxzoo.models.accounting import count_parameters
from jaxzoo.tasks.demos import DEMOS

ROOT = Path(__file__).parents[1]
ACCURACY = ROOT / "experiments/results/mqar_gallery/overnight/table.md"
WIDTH, LENGTH = 64, 1024
COLUMNS = (
    "causal",
    "streams",
    "packed documents",
    "cost of t tokens",
    "cost of one more token",
    "parameters",
    "state, bytes",
    "papers' state, bytes",
)
FAMILIES = {
    "attention": "Attention: exact or selected keys",
    "linear": "Linear attention and its relatives: matrix states",
    "conv": "Convolutions: filters",
    "ssm": "State space models: diagonal recurrences",
}
TRAIN = {"1": "t", "log t": "t log t", "sqrt t": "t sqrt t", "t": "t^2", "t^2": "t^3"}
"""Cost of a sequence, by the growth of that of a token."""


def mixer_pages() -> tuple[str, dict[str, str]]:
    """The tables of all mixers, by name and by family, with links to their pages, and these pages by name."""
    configs = {name: config() for name, config in MIXERS.items()}
    cells = {name: _cells(config) for name, config in configs.items()}
    parts = [_names_table(configs, cells)]
    for key in [*FAMILIES, *sorted({family(config) for config in configs.values()} - FAMILIES.keys())]:
        members = sorted(name for name, config in configs.items() if family(config) == key)
        rows = [f"| {' | '.join((f'[{title(name)}](mixers/{name}.md)', *cells[name]))} |" for name in members]
        head = [f"| {' | '.join(('mixer', *COLUMNS))} |", "| --- " * (1 + len(COLUMNS)) + "|"]
        parts.append("\n".join([f"## {FAMILIES.get(key, key)}\n", *head, *rows]))
    return "\n\n".join(parts), {name: _entry(name, configs[name], cells[name]) for name in configs}


def _names_table(configs: dict[str, MixerConfig], cells: dict[str, list[str]]) -> str:
    """A row per mixer: title, year, paper, class, names on the command line, state bytes, recall."""
    lines = ["| mixer | year | paper | class | `--model.mixer` | state, bytes | recall |", "| --- " * 7 + "|"]
    for name, config in sorted(configs.items(), key=lambda found: title(found[0]).lower()):
        _, paper, url = read_facts(str(sys.modules[type(config).__module__].__doc__))
        year = re.findall(r"\b(?:19|20)\d\d\b", paper)[0]
        names = ", ".join(f"`{x}`" for x in (name, *sorted(key for key, value in ALIASES.items() if value == name)))
        row = (f"[{title(name)}](mixers/{name}.md)", year, f"[{paper}]({url})", f"`{type(config).__name__[:-6]}`")
        lines.append(f"| {' | '.join((*row, names, cells[name][6] or '-', _recall(name) or '-'))} |")
    return "\n".join(["## Names\n", *lines])


def _recall(name: str) -> str:
    """Accuracy on MQAR in the gallery's results, "": not run."""
    learned = re.search(rf"^\| {name} \| \S+ \| ([\d.]+)", ACCURACY.read_text(), re.MULTILINE)
    return learned[1] if learned else ""


def _python(name: str, config: MixerConfig) -> str:
    """Import, build, call and stream in Python."""
    cls, can = type(config).__name__.removesuffix("Config"), config.capabilities
    context = ", Context(tokens=tokens)" if can.needs_tokens else ""
    imported = f"{cls}, Context" if context else cls
    lines = [
        f"from jaxzoo.mixers import {imported}",
        f"mixer = {cls}(d_model=64, rngs=nnx.Rngs(0))",
        f"y = mixer(x{context})  # x, y: (batch, time, 64)",
    ]
    if can.streams:
        capacity = ", capacity=1024" if can.growing_state else ""
        lines.append(f"y, state = mixer.prefill(x, mixer.init_state(batch_size=2{capacity}){context})")
        lines.append("y_t, state = mixer.step(x_t, state" + (", Context(tokens=token))" if context else ")"))
    return "\n".join(["```python", *lines, "```"])


def task_examples() -> str:
    """One example of every task, as `jaxzoo tasks` prints it."""
    parts = []
    for name in DEMOS:
        shown = io.StringIO()
        with contextlib.redirect_stdout(shown):
            assert tasks.main(["--task", name, "--show", "1"]) == 0
        parts.append(f"### {name}\n\n```\n{shown.getvalue().strip()}\n```")
    return "\n\n".join(parts)


def _cells(config: MixerConfig) -> list[str]:
    """Cells of the table after the name."""
    ready = in_model(config, WIDTH, LENGTH)
    can, formula = ready.capabilities, ready.papers_state_size(LENGTH)
    return [
        *("yes" if value else "no" for value in (can.causal, can.streams, can.segments)),
        TRAIN[train_growth(config, WIDTH)],
        growth(functools.partial(step_flops, config), LENGTH) if can.streams else "",
        f"{count_parameters(nnx.eval_shape(lambda: ready.build(rngs=nnx.Rngs(0)))):,}",
        f"{mixer_state_bytes(ready, LENGTH):,}" if can.streams else "",
        "" if formula is None else f"{4 * formula:,}",
    ]


def step_flops(config: MixerConfig, length: int) -> float:
    """The compiler's count of FLOPs of one step of a state with room for `length` tokens; nothing is compiled."""
    config = in_model(config, WIDTH, length)
    mixer: Mixer = nnx.eval_shape(lambda: config.build(rngs=nnx.Rngs(0)))
    definition, variables = nnx.split(mixer)
    state = jax.eval_shape(lambda: mixer.init_state(1, capacity=length))

    def step(variables: Any, state: Any, x: jax.Array, tokens: jax.Array) -> Any:
        return nnx.merge(definition, variables).step(x, state, Context(tokens=tokens))

    x, tokens = jax.ShapeDtypeStruct((1, WIDTH), jnp.float32), jax.ShapeDtypeStruct((1,), jnp.int32)
    cost: Any = jax.jit(step).lower(variables, state, x, tokens).cost_analysis()
    return cost["flops"]


def _entry(name: str, config: MixerConfig, cells: list[str]) -> str:
    """The page of a mixer; mkdocstrings fills in the fields of its config."""
    module = type(config).__module__
    text = str(sys.modules[module].__doc__)
    first_paragraph, equation = read_docstring(text)
    good_at, paper, url = read_facts(text)
    rows = [f"| {column} | {cell} |" for column, cell in zip(COLUMNS, cells, strict=True) if cell]
    if learned := _recall(name):
        rows.append(f"| accuracy on MQAR, 8 pairs, {STEPS:,} steps | {learned} |")
    parts = [
        f"# {title(name)}",
        first_paragraph,
        _python(name, config),
        f"```\n{equation}\n```",
        good_at,
        f"[{paper}]({url})",
    ]
    parts += ["## Train", f"```\njaxzoo train --config mqar/zoo --model.mixer {name}\n```"]
    if drawing := draw_learning(name):
        parts += [
            "## Learning MQAR",
            "64 tokens, 8 pairs, width 64, after a short convolution; other mixers in grey.",
            drawing,
        ]
    parts += [
        f"## Cost\n\nWidth {WIDTH}, state after {LENGTH:,} tokens, one sequence, float32.",
        "\n".join(["| property | value |", "| --- | --- |", *rows]),
    ]
    if config.capabilities.streams:
        arrays = state_arrays(config, WIDTH, LENGTH)
        parts += ["## State", draw_state(arrays), _state(config)]
    return "\n\n".join([*parts, "## Configuration", f"::: {module}.{type(config).__name__}", ""])


def _state(config: MixerConfig) -> str:
    """Table of the arrays of a state."""
    mixer: Mixer = nnx.eval_shape(lambda: in_model(config, WIDTH, LENGTH).build(rngs=nnx.Rngs(0)))
    leaves = jax.tree_util.tree_leaves_with_path(jax.eval_shape(lambda: mixer.init_state(1, capacity=LENGTH)))
    rows = [f"| `{jax.tree_util.keystr(path)[1:]}` | {leaf.shape} | {leaf.dtype} |" for path, leaf in leaves]
    return "\n".join(["| array | shape | dtype |", "| --- | --- | --- |", *rows])


def read_facts(text: str) -> tuple[str, str, str]:
    """Strength of a mixer, its paper, and the paper's address, from the end of its docstring."""
    facts = re.search(r"^Good at: (.*)\nPaper: (.*), (\S+)$", text.strip(), re.DOTALL | re.MULTILINE)
    assert facts, f"must end with lines that begin with 'Good at:' and 'Paper:': {text[:60]!r}"
    return " ".join(facts[1].split()), facts[2], facts[3]


def read_docstring(text: str) -> tuple[str, str]:
    """The first paragraph on one line, and the first indented block without its indentation ("": there is none)."""
    paragraphs = text.strip().split("\n\n")
    first = " ".join(paragraphs[0].split())
    blocks = [paragraph for paragraph in paragraphs if all(x.startswith("    ") for x in paragraph.splitlines())]
    return first, textwrap.dedent(blocks[0]).rstrip() if blocks else ""
