"""Generated pages and links. Kills: a page without its equation, a broken link."""

import sys
from importlib.util import find_spec

import pytest

from benchmarks.subjects import in_model
from docs.gallery import ROOT, _cells, _entry, read_docstring, read_facts, task_examples
from docs.site_hook import API, MARK, MIRRORED, on_page_markdown
from jaxzoo.mixers import MIXERS, RetNetConfig
from jaxzoo.tasks.demos import DEMOS


@pytest.mark.full
def test_the_page_of_a_mixer():
    """Kills: a page without equation, paper, cost, state or fields; a mixer that has no facts for its page."""
    config = RetNetConfig()
    text = _entry("ret_net", config, _cells(config))
    assert text.startswith("# RetNet\n")
    assert "mixer = RetNet(d_model=64, rngs=nnx.Rngs(0))\ny = mixer(x)  #" in text
    paper = "[Sun et al. 2023](https://arxiv.org/abs/2307.08621)"
    assert f"\n\nRecent text at constant memory, with fixed decays.\n\n{paper}\n\n" in text
    assert "```\nS_i = gamma S_{i-1} + k_i v_i^T " in text
    assert "--model.mixer ret_net\n" in text
    assert "| state, bytes | 16,388 |" in text
    assert "| accuracy on MQAR, 8 pairs, 2,500 steps | 0." in text
    assert "::: jaxzoo.mixers.linear.ret_net.RetNetConfig" in text
    assert "| float32 |" in text
    for kind in MIXERS.values():
        docstring = str(sys.modules[kind.__module__].__doc__)
        assert all(read_facts(docstring)), kind
        assert all(read_docstring(docstring)), kind


@pytest.mark.slow
def test_examples_of_the_tasks_and_what_the_pages_leave_to_the_site():
    """Kills: a task that the page leaves out; a mark or a module that the site does not find."""
    assert all(f"### {name}\n" in task_examples() for name in DEMOS)
    assert all(MARK.search((ROOT / "docs" / page).read_text()) for page in ("mixers.md", "tasks.md"))
    assert all(find_spec(name) for names in API.values() for name in names)
    assert all(list(ROOT.glob(pattern)) for pattern in MIRRORED)


def test_links_of_the_repository_in_the_site():
    """Kills: a link of a page in docs/ or of the README that leads out of the site, or nowhere."""

    class Files:
        src_uris = ("data.md", "index.md", "experiments/results/x.png", "pallas_kernels/README.md")

    def moved(page, text):
        class Page:
            class file:
                src_uri = page

        return on_page_markdown(text, page=Page, config=None, files=Files)

    picture = "experiments/results/x.png"
    assert moved("recall.md", f"![a](../{picture})") == f"[![a]({picture})]({picture})"
    assert moved("index.md", "[d](docs/data.md#train) [s](jaxzoo/a.py)") == "[d](data.md#train) s"
    assert moved("pallas_kernels/README.md", "[`k`](../docs/data.md)") == "[`k`](../data.md)"
    assert (
        moved("data.md", "[r](../README.md) [w](https://x.org/a.md) [h](#b)")
        == "[r](index.md) [w](https://x.org/a.md) [h](#b)"
    )


@pytest.mark.parametrize(
    ("text", "title", "equation"),
    [
        ("One\nline.\n\nWords:\n\n    y = x\n        + 1\n\n    z\n", "One line.", "y = x\n    + 1"),
        ("Title.\n\n| a | b |\n", "Title.", ""),
    ],
)
def test_title_and_equation_of_a_docstring(text, title, equation):
    """Kills: a table taken for an equation, an equation without its own indentation."""
    assert read_docstring(text) == (title, equation)


def test_the_page_on_scale_names_mixers_that_refuse_a_sequence_axis():
    """Kills: a mixer that refuses `--mesh.sequence` without a word on the page."""
    text = (ROOT / "docs/scale.md").read_text()
    refused = text.split("These are refused by name:")[1].split("\n\n")[0]
    configs = {name: in_model(config(), 64, 256) for name, config in MIXERS.items()}
    for name, config in configs.items():
        assert config.capabilities.sequence_parallel or f"`{name}`" in refused, name
