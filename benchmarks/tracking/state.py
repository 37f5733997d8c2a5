"""What ``track.json`` says of the last import into MLflow. Snakemake reads it at every call, so this imports little."""

from __future__ import annotations

from pathlib import Path

from benchmarks.files import BrokenRecord, read_json


def tries(path: Path) -> int:
    """Return a counter that Snakemake watches as a parameter of the rule: one higher while the last import is pending,
    so that the rule runs again, and unchanged once it is done."""
    try:
        state = read_json(path)
    except BrokenRecord:
        return 1
    return state.get("tries", 1) + (state.get("status") == "pending")
