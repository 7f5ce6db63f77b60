"""What the storage layer says of a damaged checkpoint, in one line; and nothing of it on the screen."""

import asyncio
import contextlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax

from jaxzoo.train.seal import Seal, UnusableError


@contextlib.contextmanager
def reading(folder: Path, seal: Seal) -> Iterator[None]:
    """One kind of error for all that the storage layer says of a damaged checkpoint.

    Memory that runs out says nothing of the checkpoint and passes.

    Raises:
      UnusableError: whatever was raised; names the file, where the storage layer does.
    """
    _check_notes(folder, seal)
    try:
        with _patient_event_loops():
            yield
    except MemoryError:
        raise
    except Exception as error:  # the storage layer raises kinds of its own, ours, JAX's, and plain Exception
        if isinstance(error, jax.errors.JaxRuntimeError) and "RESOURCE_EXHAUSTED" in str(error):
            raise
        raise UnusableError(_reason(error, folder)) from None


def _check_notes(folder: Path, seal: Seal) -> None:
    """Reads what the storage layer has noted of the arrays; of damage there it does not say in which file."""
    if not (folder / "state" / "manifest.ocdbt").is_file():
        raise UnusableError("state/manifest.ocdbt is missing")
    tree = folder / "state" / "_METADATA"
    for file in (tree, *folder.glob("state/array_metadatas/*")):
        name = file.relative_to(folder)
        try:
            notes = json.loads(file.read_bytes())
            entries = notes["tree_metadata"].values() if file == tree else ()
            arrays = {"/".join(key["key"] for key in entry["key_metadata"] if key["key_type"]) for entry in entries}
        except OSError as error:
            raise UnusableError(f"{name}: {error.strerror}") from None
        except (ValueError, LookupError, TypeError, AttributeError):
            raise UnusableError(f"{name} is damaged") from None
        if file == tree and not seal.digests.keys() <= arrays:
            raise UnusableError(f"{name} is damaged: it lacks {min(seal.digests.keys() - arrays)}")


def _reason(error: BaseException, folder: Path) -> str:
    """The file, or else the array, that an error of the storage layer is about, and its last words, for one line."""
    texts, link = [], error
    while link is not None:
        texts.append(re.split(r" \[(?:source|tensorstore)", str(link))[0].strip())
        link = link.__cause__
    text = texts[-1].replace(f"{folder}/", "")
    files = [file for file in re.findall(r'"(state/[^"]*)"', text) if (folder / file).is_file()]
    arrays = [f"state: {array.replace('.', '/')}" for array in re.findall(r'Error reading "([^"]*)/[^"/]*"', text)]
    where = (*files[-1:], *arrays[-1:], "state")[0]
    words = " ".join((text or type(error).__name__).split('": ')[-1].split())
    return f"{where}: {words if len(words) <= 120 else words[:117] + '...'}"


class _PatientEventLoop(asyncio.SelectorEventLoop):
    """Waits for what still runs before it closes. Orbax closes its loop at the first read that fails; those that end
    later find it closed, and each prints a traceback over our lines."""

    def close(self) -> None:
        if not self.is_closed() and not self.is_running():
            pending: Any = asyncio.all_tasks(self)
            self.run_until_complete(asyncio.gather(*pending, return_exceptions=True)) if pending else None
        super().close()


@contextlib.contextmanager
def _patient_event_loops() -> Iterator[None]:
    before = asyncio.new_event_loop
    asyncio.new_event_loop = _PatientEventLoop
    try:
        yield
    finally:
        asyncio.new_event_loop = before
