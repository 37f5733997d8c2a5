"""The table library that pages carry with them: DataTables, as the package `itables` bundles it for offline use."""

from __future__ import annotations

import base64
import gzip
from importlib.util import find_spec
from pathlib import Path


def packed(content: bytes) -> str:
    """Return content in the form that pages unpack in the browser: compressed, as text. The same content gives the same
    text."""
    return base64.b64encode(gzip.compress(content, mtime=0)).decode()


def bundle() -> dict[str, str]:
    """Return the library's script and its style sheet, each :func:`packed`."""
    found = find_spec("itables")  # not imported: that takes seconds, and only its files are needed
    assert found and found.origin
    folder = Path(found.origin).parent / "html"
    return {ending: packed((folder / f"dt_bundle.{ending}").read_bytes()) for ending in ("js", "css")}
