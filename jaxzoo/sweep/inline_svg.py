"""A figure of matplotlib as part of a page: marks that say which runs they show, colours that follow the page's."""

import re
from collections.abc import Callable
from typing import NamedTuple
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from jaxzoo.sweep.figure import Mark

COLOURS = re.compile(r"#(?:[0-9a-f]{6})\b")
REFERENCES = re.compile(r"#([^)\s]+)")
"""To an id, in an attribute: `url(#id)` and `#id`."""
FONT = re.compile(r"font-family:[^;]*;?\s*")
LONG = re.compile(r"-?\d+\.\d{3,}")
"""A number with more decimals than a screen shows."""


class Label(NamedTuple):
    """What a page knows of a mark."""

    item: int
    """Its number in the page's data."""
    text: str
    """What is read aloud."""


def inline(svg: str, *, prefix: str, title: str, label: Callable[[Mark], Label]) -> str:
    """The `<svg>` element for a page.

    Every mark becomes `<g class="mark" data-item=... aria-label=...>`; one that its panel clips away does not. A colour
    `#0072b2` becomes `var(--h0072b2, #0072b2)`, so that the page may change it.

    Args:
      svg: what matplotlib wrote.
      prefix: of all ids, so that those of two figures differ.
      title: read aloud for the whole.
      label: of a mark.
    """
    root = ElementTree.fromstring(svg)
    for element in root.iter():
        _plain(element)
    clips = {found.get("id"): found.find("rect") for found in root.iter("clipPath")}
    for group in root.iter("g"):
        mark = Mark.parse(group.get("id", ""))
        if mark:
            _label(group, label(mark), clips)
    _drop(root, {"metadata", "style"})
    _rename(root, prefix)
    width = float(root.attrib.pop("width").removesuffix("pt"))
    root.attrib.pop("height")
    root.attrib |= {"role": "group", "aria-label": title, "style": f"max-width:{1.6 * width:.0f}px"}
    return ElementTree.tostring(root, encoding="unicode")


def _plain(element: Element) -> None:
    """Without namespaces, fonts, indentation and superfluous decimals."""
    element.tag = element.tag.rpartition("}")[2]
    for name, value in list(element.attrib.items()):
        del element.attrib[name]
        if name in ("d", "x", "y"):
            value = " ".join(LONG.sub(lambda found: f"{float(found.group()):.2f}", value).split())
        if name == "style":
            value = COLOURS.sub(lambda found: f"var(--h{found.group()[1:]}, {found.group()})", FONT.sub("", value))
        element.set(name.rpartition("}")[2], value)
    if element.tag not in ("text", "tspan"):
        element.text = (element.text or "").strip()
        for child in element:
            child.tail = ""


def _label(group: Element, label: Label, clips: dict[str | None, Element | None]) -> None:
    """Makes a mark of a group, unless it shows nothing."""
    clipped = group.find("g[@clip-path]")
    dot = group.find(".//use")
    if dot is None:
        return
    clip = clips.get(clipped.get("clip-path", "")[5:-1]) if clipped is not None else None
    if clip is not None and not _inside(dot, clip):
        return
    group.attrib |= {"class": "mark", "data-item": str(label.item), "role": "button", "aria-label": label.text}


def _inside(dot: Element, clip: Element) -> bool:
    def covers(axis: str, size: str) -> bool:
        offset = float(dot.get(axis, "0")) - float(clip.get(axis, "0"))
        return -0.1 <= offset <= float(clip.get(size, "0")) + 0.1

    return covers("x", "width") and covers("y", "height")


def _drop(root: Element, tags: set[str]) -> None:
    for parent in root.iter():
        for child in [child for child in parent if child.tag in tags]:
            parent.remove(child)


def _rename(root: Element, prefix: str) -> None:
    """Keeps the ids that are referred to, with the prefix."""
    references = [
        (element, name)
        for element in root.iter()
        for name, value in element.attrib.items()
        if name == "href" or value.startswith("url(#")
    ]
    used = {found for element, name in references for found in REFERENCES.findall(element.attrib[name])}
    for element, name in references:
        element.set(name, REFERENCES.sub(rf"#{prefix}\1", element.attrib[name]))
    for element in root.iter():
        found = element.attrib.pop("id", None)
        if found in used:
            element.set("id", f"{prefix}{found}")
