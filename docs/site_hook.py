"""Hook of mkdocs: pages that are made at build time, and links of the repository's pages in the site.

The site has the pages of `docs/` and, under their paths in the repository, the READMEs, the tables of results and the
pictures that they show. A link to any other file of the repository becomes its name.
"""

import functools
import os
import re
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")  # the examples of tasks are generated once
ROOT = Path(__file__).parents[1]
sys.path[:0] = [] if str(ROOT) in sys.path else [str(ROOT)]
PAGES = {"index.md": "README.md", "contributing.md": "CONTRIBUTING.md", "changelog.md": "CHANGELOG.md"}
"""Page -> file of the repository, besides those that keep their path."""
MIRRORED = (
    "configs/README.md",
    "pallas_kernels/**/README.md",
    "experiments/models/README.md",
    "experiments/results/**/table.md",
)
PICTURES = ("experiments/results/**/*.png", "benchmarks/results/*.png")
API = {
    "Load and capture": ("jaxzoo.loading.loaded", "jaxzoo.inspection.capture"),
    "Mixer contract": ("jaxzoo.mixers.base", "jaxzoo.testing"),
    "Operations": (
        *(f"jaxzoo.ops.{file.stem}" for file in sorted((ROOT / "jaxzoo/ops").glob("[a-z]*.py"))),
        *(f"pallas_kernels.{file.parent.name}.api" for file in sorted((ROOT / "pallas_kernels").glob("*/api.py"))),
    ),
    "Models": ("jaxzoo.models.model_config", "jaxzoo.models.language_model", "jaxzoo.models.accounting"),
    "Configuration": ("jaxzoo.train.config", "jaxzoo.config.checked"),
    "Tasks": ("jaxzoo.tasks.base", "jaxzoo.tasks.recall_data", "jaxzoo.tasks.mqar"),
    "Generation": ("jaxzoo.generation.generate", "jaxzoo.generation.sampling"),
    "Checkpoints of other libraries": ("jaxzoo.interop.loading", "jaxzoo.interop.saving"),
    "Sweeps": ("jaxzoo.sweep.experiment", "jaxzoo.sweep.claims", "jaxzoo.sweep.results"),
    "Array types": ("jaxzoo.utils.array_typing",),
}
MARK = re.compile(r"<!-- The site adds here .*?-->", re.DOTALL)
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\((?!https?://|#|mailto:)([^)\s#]+)(#[^)\s]*)?\)")


@functools.cache
def made() -> dict[str, str]:
    """Pages that are made here: page -> text."""
    from docs import gallery

    table, mixers = gallery.mixer_pages()
    docs = {"mixers.md": table, "tasks.md": gallery.task_examples()}
    pages = {
        page: MARK.sub(lambda _, text=text: text, (ROOT / "docs" / page).read_text()) for page, text in docs.items()
    }
    pages |= {f"mixers/{name}.md": text for name, text in mixers.items()}
    for title, modules in API.items():
        body = "\n\n".join(f"::: {module}\n    options: {{show_root_full_path: true}}" for module in modules)
        pages[f"api/{title.lower().replace(' ', '_')}.md"] = f"# {title}\n\n{body}\n"
    return pages


def mirrored() -> dict[str, str]:
    """Page -> file of the repository outside of `docs/`."""
    found = [path.relative_to(ROOT).as_posix() for pattern in MIRRORED for path in sorted(ROOT.glob(pattern))]
    return {**PAGES, **{path: path for path in found}}


def on_config(config: Any) -> Any:
    """Puts the pages that are made here into the navigation."""
    of = {part: [page for page in sorted(made()) if page.startswith(f"{part}/")] for part in ("api", "mixers")}
    nav = [{"Mixers": ["mixers.md", *of["mixers"]]} if "Mixers" in part else part for part in config.nav]
    config.nav = [*nav[:-1], {"API": of["api"]}, nav[-1]]
    return config


def on_files(files: Any, *, config: Any) -> Any:
    """Adds the pages and pictures."""
    from mkdocs.structure.files import File

    texts = {page: (ROOT / path).read_text() for page, path in mirrored().items()}
    for page, text in texts.items():
        if page.endswith("table.md"):
            texts[page] = text.replace("\n", "\n\n![Figure](figure.png)\n", 1)
    for page, text in (texts | made()).items():
        if page in files.src_uris:
            files.remove(files.src_uris[page])
        files.append(File.generated(config, page, content=text))
    for path in (path for pattern in PICTURES for path in ROOT.glob(pattern)):
        files.append(File.generated(config, path.relative_to(ROOT).as_posix(), abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Any) -> str:
    """Turns links between files of the repository into links of the site; a picture opens at full size."""
    here = page.file.src_uri
    source = mirrored().get(here, f"docs/{here}")
    pages = {path: name for name, path in mirrored().items()}

    def link(found: re.Match[str]) -> str:
        picture, text, target, anchor = found[1], found[2], found[3], found[4] or ""
        path = os.path.normpath(os.path.join(os.path.dirname(source), target))
        name = pages.get(path, path.removeprefix("docs/"))
        if name not in files.src_uris:
            return text
        place = f"{os.path.relpath(name, os.path.dirname(here) or '.')}{anchor}"
        return f"[![{text}]({place})]({place})" if picture else f"[{text}]({place})"

    return LINK.sub(link, markdown)
