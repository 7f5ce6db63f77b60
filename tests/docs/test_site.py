"""The site built by mkdocs (`pip install -e '.[docs]'`). Kills: a broken link, a resource from the network."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from jaxzoo.mixers import MIXERS

ROOT = Path(__file__).parents[2]


pytestmark = pytest.mark.full


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Folder of the built site."""
    pytest.importorskip("mkdocs", reason="needs pip install -e '.[docs]'")
    place = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(place)]
    subprocess.run(command, check=True, cwd=ROOT)
    return place


def test_the_site_is_built_without_a_warning_and_asks_nothing_of_the_network(site):
    """Kills: a broken link or anchor, an API module that is not found, a font or script from elsewhere."""
    pages = {file.relative_to(site).as_posix(): file.read_text() for file in site.rglob("*.html")}
    assert {f"mixers/{name}.html" for name in MIXERS} <= pages.keys()
    text = "".join(pages.values())
    assert not re.findall(r'<(?:script|img|iframe)[^>]+src="?(https?:[^"> ]+)', text)
    assert not re.findall(r'<link[^>]+rel="?(?:stylesheet|preconnect)[^>]+(https?:[^"> ]+)', text)
    found = json.loads((site / "search/search_index.json").read_text())["docs"]
    assert any(entry["location"].startswith("mixers/ret_net.html") for entry in found)


@pytest.mark.slow
def test_search_works_where_pages_are_opened_as_files(site):
    """Kills: a worker that no browser starts from a file, an index that is fetched."""
    browser = shutil.which("chromium")
    if browser is None:
        pytest.skip("needs chromium")
    address = f"{(site / 'index.html').as_uri()}?q=hedgehog"
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=20000", "--dump-dom", address]
    page = subprocess.run([browser, *flags], capture_output=True, text=True, check=True, timeout=120).stdout
    assert "md-search-result__item" in page
