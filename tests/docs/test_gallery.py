"""The gallery: in step with the registry and the docstrings."""

import re

import pytest

from docs.make_gallery import PAGE, ROOT, _cells, page, read_docstring, step_flops
from jaxzoo.mixers import MIXERS, AttentionConfig, BaseConvConfig, RetNetConfig


@pytest.mark.full
def test_the_page_is_what_the_generator_writes():
    """Kills: a mixer, a number or a docstring that changed without its page; renewed by python -m docs.make_gallery."""
    assert PAGE.read_text() == page()


def test_every_link_of_the_page_leads_somewhere():
    """Kills: a link to a file that moved, a heading that the table does not reach."""
    text = PAGE.read_text()
    links = re.findall(r"\]\(([^)]+)\)", text)
    for link in links:
        if link.startswith("#"):
            assert f"\n### {link[1:]}\n" in text
        elif not link.startswith("https://"):
            assert (ROOT / "docs" / link).is_file()
    assert {f"#{name}" for name in MIXERS} <= set(links)


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


def test_filters_as_long_as_the_text_cost_t_log_t():
    """Kills: a filter of the stated length, held to it while the length grows."""
    assert _cells(BaseConvConfig(filter="implicit"))[3:5] == ["t log t", "t"]


def test_a_step_s_flops_grow_where_the_state_does():
    """Kills: a count that does not see the length."""
    assert step_flops(AttentionConfig(), 512) > 1.5 * step_flops(AttentionConfig(), 256)
    assert step_flops(RetNetConfig(), 512) == step_flops(RetNetConfig(), 256)
