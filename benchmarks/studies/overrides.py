"""Settings by dotted paths, for those that a command line or a measurement changes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def set_path(settings: Mapping[str, Any], path: str, value: Any) -> dict[str, Any]:
    """Return ``settings`` with another value where a dotted ``path`` leads, e.g. ``sparsity.weight``."""
    name, _, rest = path.partition(".")
    return {**settings, name: set_path(settings.get(name) or {}, rest, value) if rest else value}
