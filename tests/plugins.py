"""A method in another installed package, as importing and entry points see one."""

from __future__ import annotations

from pathlib import Path

from methods.registry import ENTRY_POINT_GROUP


def install(site: Path, module: str, attribute: str) -> None:
    """What pip would leave in ``site`` for a package whose entry point is ``module:attribute``."""
    info = site / f"{module}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{ENTRY_POINT_GROUP}]\n{module} = {module}:{attribute}\n")
