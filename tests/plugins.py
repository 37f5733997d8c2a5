"""A method in another installed package, as imports and entry points see it."""

from __future__ import annotations

from pathlib import Path

from methods.registry import ENTRY_POINT_GROUP


def install(site: Path, module: str, attribute: str) -> None:
    """Write to ``site`` what pip would for a package with the entry point ``module:attribute``."""
    info = site / f"{module}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n", encoding="utf-8")
    (info / "entry_points.txt").write_text(
        f"[{ENTRY_POINT_GROUP}]\n{module} = {module}:{attribute}\n", encoding="utf-8"
    )
