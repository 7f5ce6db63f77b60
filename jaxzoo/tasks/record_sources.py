"""Key-value records from the metadata of a machine's Python and Debian packages."""

import importlib.metadata
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

PYTHON = "Python packages"
DEBIAN = "Debian packages"

DPKG_STATUS = Path("/var/lib/dpkg/status")
"""Database of installed packages of Debian and its derivatives."""

PYTHON_KEYS = (
    "Name",
    "Version",
    "Summary",
    "License-Expression",
    "License",
    "Author",
    "Author-email",
    "Maintainer",
    "Maintainer-email",
    "Home-page",
    "Download-URL",
    "Requires-Python",
    "Keywords",
    "Platform",
)
"""Core metadata fields that are used unchanged."""

DEBIAN_LEFT_OUT = ("Status", "Conffiles", "Build-Ids")
"""Fields that describe this machine, or are lists of file digests."""


class Record(NamedTuple):
    """A package."""

    source: str
    """`PYTHON` or `DEBIAN`."""
    name: str
    group: str
    """Name of a group of records that share values, all in the same split. A Debian source package makes many packages
    of one version, and may be a Python package as well."""
    fields: dict[str, str]
    """Fields by key, the name first; one line each, none empty."""


def python_records(distributions: Iterable[importlib.metadata.Distribution] | None = None) -> list[Record]:
    """Returns installed Python packages by name. Besides `PYTHON_KEYS`, the URLs of a project by label
    (`Documentation`), its trove classifiers by first part (`Development Status`) and its dependencies (`Requires-Dist`,
    without extras) are fields. `distributions` None: those of this Python."""
    records = {}
    found = importlib.metadata.distributions() if distributions is None else distributions
    for fields in sorted((_python_fields(each) for each in found), key=lambda fields: sorted(fields.items())):
        if "Name" in fields:
            group = _group(fields["Name"])
            records[group] = Record(PYTHON, fields["Name"], group, fields)
    return [records[group] for group in sorted(records)]


def debian_records(status: Path = DPKG_STATUS) -> list[Record]:
    """Returns installed Debian packages by name; none if the file is absent. Only the first line of a field is
    used. Raises `OSError` if the file cannot be read."""
    if not status.is_file():
        return []
    records = {}
    for stanza in re.split(r"\n\s*\n", status.read_text(encoding="utf-8", errors="replace")):
        parts = (line.partition(":") for line in stanza.splitlines())
        named = [(key, _one_line(value)) for key, _, value in parts if re.fullmatch(r"[A-Z][A-Za-z-]*", key)]
        fields = {key: value for key, value in named if value and key not in DEBIAN_LEFT_OUT}
        if "Package" in fields:
            name = fields.pop("Package")
            source = fields.get("Source", name).split(" ")[0]
            key = (name, fields.get("Architecture", ""))
            records[key] = Record(DEBIAN, name, _group(source), {"Package": name, **fields})
    return [records[key] for key in sorted(records)]


def _python_fields(distribution: importlib.metadata.Distribution) -> dict[str, str]:
    found: dict[str, list[str]] = {}
    metadata: Any = distribution.metadata or {}
    for key, value in metadata.items():
        value = _one_line(value)
        if key == "Project-URL" and ", " in value:
            label, value = value.split(", ", 1)
            found.setdefault(label.strip().title(), []).append(value.strip())
        elif key == "Classifier" and " :: " in value:
            kind, value = value.split(" :: ", 1)
            found.setdefault(kind, []).append(value)
        elif key == "Requires-Dist" and "extra ==" not in value:
            found.setdefault(key, []).append(value.split(";")[0].strip())
        elif key in PYTHON_KEYS and key not in found:
            found[key] = [value]
    fields = {key: _one_line(", ".join(values)) for key, values in found.items()}
    fields = {key: value for key, value in fields.items() if value not in ("", "UNKNOWN")}
    return {"Name": fields.pop("Name"), **fields} if "Name" in fields else {}


def _one_line(value: str) -> str:
    """Removes line breaks, runs of spaces, and invalid UTF-8."""
    return " ".join(value.encode("utf-8", errors="replace").decode("utf-8").split())


def _group(name: str) -> str:
    """Returns one name for `python3-PyYAML`, `pyyaml` and `PyYAML` (PEP 503's normal form without Debian's prefix)."""
    return re.sub(r"[-_.]+", "-", name).lower().removeprefix("python3-").removeprefix("python-")
