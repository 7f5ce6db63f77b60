"""A figure of matplotlib as part of a page: marks that say which runs they show, colours that follow the page's."""

import re
from collections.abc import Callable
from typing import NamedTuple
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from jaxzoo.sweep.figure import Mark


class Label(NamedTuple):
    """Data of a mark on a page."""

    item: int
    """Its number in the page's data."""
    text: str
    """Text for screen readers."""


def inline(svg: str, *, prefix: str, title: str, label: Callable[[Mark], Label]) -> str:
    """The `<svg>` element for a page.

    Every mark becomes `<g class="mark" data-item=... aria-label=...>`; one that its panel clips away does not. A colour
    `#0072b2` becomes `var(--h0072b2, #0072b2)`, so that the page may change it. All ids get the prefix:
    those of two figures differ. The title is read aloud.
    """
    root = ElementTree.fromstring(svg)
    for element in root.iter():
        _shorten(element)
    for parent in root.iter():
        for child in [child for child in parent if child.tag in ("metadata", "style")]:
            parent.remove(child)
    clips = {found.get("id"): found.find("rect") for found in root.iter("clipPath")}
    for group in root.iter("g"):
        if mark := Mark.parse(group.get("id", "")):
            del group.attrib["id"]
            found = label(mark)
            if _is_visible(group, clips):
                attributes = {"class": "mark", "data-item": str(found.item), "role": "button", "aria-label": found.text}
                group.attrib |= attributes
    width = float(root.attrib.pop("width").removesuffix("pt"))
    root.attrib.pop("height")
    root.attrib |= {"role": "group", "aria-label": title, "style": f"max-width:{1.6 * width:.0f}px"}
    text = ElementTree.tostring(root, encoding="unicode")
    used = set(re.findall(r'(?: href="#|url\(#)([^")]+)', text))
    text = re.sub(r' id="([^"]*)"', lambda found: found[0] if found[1] in used else "", text)
    return re.sub(r'( id="| href="#|url\(#)', rf"\g<1>{prefix}", text)


def _shorten(element: Element) -> None:
    """Removes namespaces, fonts, indentation and superfluous decimals; makes colours variables."""
    element.tag = element.tag.rpartition("}")[2]
    for name, value in list(element.attrib.items()):
        del element.attrib[name]
        if name in ("d", "x", "y"):
            value = re.sub(r"-?\d+\.\d{3,}", lambda found: f"{float(found[0]):.2f}", " ".join(value.split()))
        if name == "style":
            value = re.sub(r"font-family:[^;]*;?\s*", "", value)
            value = re.sub(r"#([0-9a-f]{6})\b", r"var(--h\1, #\1)", value)
        element.set(name.rpartition("}")[2], value)
    if element.tag not in ("text", "tspan"):
        element.text = (element.text or "").strip()
        for child in element:
            child.tail = ""


def _is_visible(group: Element, clips: dict[str | None, Element | None]) -> bool:
    """Whether the dot of a mark is inside its panel."""
    dot, clipped = group.find(".//use"), group.find("g[@clip-path]")
    clip = clips.get(clipped.get("clip-path", "")[5:-1]) if clipped is not None else None
    if dot is None or clip is None:
        return dot is not None
    offsets = {axis: float(dot.get(axis, "0")) - float(clip.get(axis, "0")) for axis in ("x", "y")}
    sizes = {"x": float(clip.get("width", "0")), "y": float(clip.get("height", "0"))}
    return all(-0.1 <= offsets[axis] <= sizes[axis] + 0.1 for axis in offsets)
