"""Memory traffic of the compiled step by source file and pass."""

import collections
import dataclasses
import re

from jaxzoo.plan.hlo import Hlo, Instruction
from jaxzoo.plan.memory_traffic import instruction_bytes
from jaxzoo.utils.text_table import text_table

PASSES = ("forward", "again", "backward", "other")
"""`again`: forward a second time, by remat; `other`: the optimizer, and traffic of no known pass."""
UNKNOWN = "(the compiler's own)"
"""Source of copies and the like, which the compiler added."""
_FOREIGN = re.compile(r"site-packages/(?!jaxzoo/|pallas_kernels/)|/lib/python3|^<")
_HELPERS = (
    "layers/linear.py",
    "jaxzoo/parallel/sharding.py",
    *(f"pallas_kernels/{name}.py" for name in ("dispatch", "halo", "layout", "op")),
)
"""Files of helpers, whose callers are named instead."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SourceTraffic:
    """One file's share of a step on one device."""

    file: str
    """Path from its package on, such as `jaxzoo/layers/mlp.py`."""
    bytes: dict[str, int]
    """Bytes read and written, by pass (`PASSES`)."""
    launches: int
    """Instructions that run, as often as loops run them."""

    @property
    def total(self) -> int:
        """Bytes of all passes."""
        return sum(self.bytes.values())


def read_sources(text: str, hlo: Hlo) -> list[SourceTraffic]:
    """Returns the source files of a compiled program, the one with most traffic first."""
    files = _files_by_frame(text)
    moved: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    launches: collections.Counter[str] = collections.Counter()
    for computation, instruction, times in hlo.steps():
        if number := instruction_bytes(hlo, computation, instruction):
            found = re.search(r"stack_frame_id=(\d+)", instruction.attributes)
            file = files.get(int(found[1]), UNKNOWN) if found else UNKNOWN
            moved[file][_pass(instruction)] += times * number
            launches[file] += times
    sources = [
        SourceTraffic(file=file, bytes=dict(by_pass), launches=launches[file]) for file, by_pass in moved.items()
    ]
    return sorted(sources, key=lambda source: -source.total)


def sources_table(sources: list[SourceTraffic], size: int) -> str:
    """The `size` largest sources as a table, in GB."""
    shown = sources[:size]
    rest = sources[size:]
    if rest:
        total = sum((collections.Counter(source.bytes) for source in rest), collections.Counter())
        launches = sum(source.launches for source in rest)
        shown.append(SourceTraffic(file=f"{len(rest)} more", bytes=dict(total), launches=launches))
    rows: list[tuple[str, ...]] = [("GB by source file", *PASSES, "all", "launches")]
    for source in shown:
        numbers = [*(source.bytes.get(name, 0) for name in PASSES), source.total]
        cells = [f"{number / 1e9:.1f}" if number else "" for number in numbers]
        rows.append((source.file, *cells, f"{source.launches:,}"))
    return text_table(rows)


def _pass(instruction: Instruction) -> str:
    found = re.search(r'op_name="([^"]*)"', instruction.attributes)
    path = found[1] if found else ""
    if "rematted_computation" in path:
        return "again"
    if "transpose(" in path:
        return "backward"
    return "forward" if "jvp(" in path else "other"


def _files_by_frame(text: str) -> dict[int, str]:
    """The file of every stack frame: the innermost one of this package or the user, except helpers."""
    names = {number: name.strip('"') for number, name in _section(text, "FileNames")}
    places = {number: int(re.findall(r"\d+", line)[0]) for number, line in _section(text, "FileLocations")}
    frames = {number: tuple(map(int, re.findall(r"\d+", line))) for number, line in _section(text, "StackFrames")}
    found = {}
    for number in frames:
        at: int = number
        while at in frames:
            place, parent = frames[at]
            file = names[places[place]]
            if not _FOREIGN.search(file) and not file.endswith(_HELPERS):
                found[number] = re.sub(r"^.*/(?=(jaxzoo|pallas_kernels)/(?!jaxzoo/))", "", file)
                break
            at = parent - 1  # 1: no parent
    return found


def _section(text: str, name: str) -> list[tuple[int, str]]:
    """Numbered lines of a table at the beginning of the program's text."""
    found = re.search(rf"^{name}\n((?:\d+ .*\n)*)", text, re.MULTILINE)
    lines = found[1].splitlines() if found else []
    return [(int(number), rest) for number, rest in (line.split(" ", 1) for line in lines)]
