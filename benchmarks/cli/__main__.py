"""``python -m benchmarks.cli``."""

from benchmarks.cli import app

app(prog_name="marcos-bench")
