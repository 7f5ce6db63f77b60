"""The site as mkdocs builds it (`pip install -e '.[docs]'`)."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from jaxzoo.mixers import MIXERS

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_the_site_is_built_without_a_warning_and_asks_nothing_of_the_network(tmp_path):
    """Kills: a broken link or anchor, an API module that is not found, a font or script from elsewhere."""
    pytest.importorskip("mkdocs", reason="needs pip install -e '.[docs]'")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")]
    subprocess.run(command, check=True, cwd=ROOT)
    pages = {file.relative_to(tmp_path / "site").as_posix(): file.read_text() for file in tmp_path.rglob("*.html")}
    assert {f"mixers/{name}.html" for name in MIXERS} <= pages.keys()
    text = "".join(pages.values())
    assert not re.findall(r'<(?:script|img|iframe)[^>]+src="?(https?:[^"> ]+)', text)
    assert not re.findall(r'<link[^>]+rel="?(?:stylesheet|preconnect)[^>]+(https?:[^"> ]+)', text)
    found = json.loads((tmp_path / "site/search/search_index.json").read_text())["docs"]
    assert any(entry["location"].startswith("mixers/ret_net.html") for entry in found)
