"""Writes `docs/mixers.md`, the gallery of the registered mixers: `python -m docs.make_gallery`.

The description of a mixer stands in its module docstring (first paragraph, first indented equation); its promises, its
paper and its strength in its config (`capabilities`, `about`); its cost is measured from shapes. The pictures
are those of `experiments/mqar_gallery.py` and `python -m benchmarks.mixers_cpu`, where they have been drawn.
"""

import argparse
import functools
import sys
import textwrap
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from benchmarks.subjects import family, in_model, train_growth
from jaxzoo.mixers import MIXERS, Context, Mixer, MixerConfig
from jaxzoo.models.accounting import count_parameters, growth, mixer_state_bytes

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "mixers.md"
WIDTH, LENGTH = 64, 1024
PICTURES = {
    "experiments/results/mqar_gallery/figure.png": "Accuracy on a small MQAR against the bytes of the state",
    "benchmarks/results/mixers_cpu.png": "Forward and backward, and one step, against the length",
}
FAMILIES = {
    "attention": "Attention: exact or selected keys",
    "linear": "Linear attention and its relatives: matrix states",
    "conv": "Convolutions: filters",
    "ssm": "State space models: diagonal recurrences",
}
TRAIN = {"1": "t", "log t": "t log t", "sqrt t": "t sqrt t", "t": "t^2", "t^2": "t^3"}
"""Cost of a sequence, by the growth of that of a token."""


def main() -> None:
    """Writes the page."""
    PAGE.write_text(page())
    print(PAGE.relative_to(ROOT))


def page() -> str:
    """The page as it should be."""
    configs = {name: config() for name, config in MIXERS.items()}
    families = [key for key in FAMILIES if any(family(config) == key for config in configs.values())]
    families += sorted({family(config) for config in configs.values()} - set(families))
    members = {key: sorted(name for name in configs if family(configs[name]) == key) for key in families}
    parts = [_head(len(configs)), _table({name: configs[name] for key in families for name in members[key]})]
    parts += [f"![{text}]({_link(file)})" for file, text in PICTURES.items() if (ROOT / file).exists()]
    for key in families:
        parts.append(f"## {FAMILIES.get(key, key)}")
        parts += [_entry(name, configs[name]) for name in members[key]]
    return "\n\n".join(parts) + "\n"


def _head(count: int) -> str:
    return textwrap.dedent(
        f"""\
        # The mixers

        All {count} obey one contract ([`jaxzoo/mixers/base.py`](../jaxzoo/mixers/base.py)), train by their name
        (`python -m jaxzoo.train --config configs/mqar/zoo.py --model.mixer NAME`) and can be mixed in one model.

        With the defaults of each at width {WIDTH}: parameters, and bytes of the state of one sequence of {LENGTH:,}
        tokens in float32, both counted from the arrays; the papers' state is the formula of Based, App. E.2, four bytes
        an element. Train is how the cost of a sequence grows with its t tokens by the mixer's own count of FLOPs, step
        how that of one more token does by the compiler's. What streams reads token by token; packed documents say
        whether those in one row are kept apart.

        <!-- Made by docs/make_gallery.py; edit the module docstrings or `about` of the configs instead. -->"""
    )


def _table(configs: dict[str, MixerConfig]) -> str:
    columns = ("mixer", "causal", "streams", "packed documents", "train", "step")
    columns += ("parameters", "state", "papers' state")
    lines = [f"| {' | '.join(columns)} |", "| --- " * len(columns) + "|"]
    for name, config in configs.items():
        lines.append("| " + " | ".join([f"[`{name}`](#{name})", *_cells(config)]) + " |")
    return "\n".join(lines)


def _cells(config: MixerConfig) -> list[str]:
    """The row of the table behind the name."""
    ready = in_model(config, WIDTH, LENGTH)
    can, formula = ready.capabilities, ready.papers_state_size(LENGTH)
    return [
        *("yes" if value else "no" for value in (can.causal, can.streams, can.segments)),
        TRAIN[train_growth(config, WIDTH)],
        growth(functools.partial(step_flops, config), LENGTH) if can.streams else "",
        f"{count_parameters(nnx.eval_shape(lambda: ready.build(rngs=nnx.Rngs(0)))):,}",
        f"{mixer_state_bytes(ready, LENGTH, jnp.float32):,}" if can.streams else "",
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


def _entry(name: str, config: MixerConfig) -> str:
    """The mixer's own section."""
    about = config.about
    module = sys.modules[type(config).__module__]
    file = Path(str(module.__file__)).resolve().relative_to(ROOT)
    title, equation = read_docstring(str(module.__doc__))
    body = [f"### {name}", title, f"```\n{equation or about.equation}\n```", about.good_at]
    body.append(f"[{about.paper}]({about.url}); [`{file.as_posix()}`]({_link(file.as_posix())})")
    return "\n\n".join(body)


def read_docstring(text: str) -> tuple[str, str]:
    """The first paragraph on one line, and the first indented block without its indentation ("": there is none)."""
    paragraphs = text.strip().split("\n\n")
    title = " ".join(paragraphs[0].split())
    blocks = [paragraph for paragraph in paragraphs if all(x.startswith("    ") for x in paragraph.splitlines())]
    return title, textwrap.dedent(blocks[0]).rstrip() if blocks else ""


def _link(file: str) -> str:
    """Link from the page to a file of the repository."""
    return file.removeprefix("docs/") if file.startswith("docs/") else f"../{file}"


if __name__ == "__main__":
    argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0]).parse_args()  # there are no options
    main()
