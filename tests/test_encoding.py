"""Text has one encoding, UTF-8, in every locale."""

from __future__ import annotations

import ast
import io
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.cli import prepare_terminal
from commands import invoke
from conftest import ROOT

PIPES = {"run", "Popen", "check_output", "check_call", "call"}


def unnamed(path: Path) -> list[str]:
    """Return the calls in a file that leave the encoding of text to the locale. Ruff misses those on paths whose type
    it cannot infer."""
    found = []
    for node in ast.walk(ast.parse(path.read_bytes())):
        if not isinstance(node, ast.Call) or any(keyword.arg == "encoding" for keyword in node.keywords):
            continue
        called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        method = isinstance(node.func, ast.Attribute)
        text = method and ((called == "read_text" and not node.args) or (called == "write_text" and len(node.args) < 2))
        text |= called in PIPES and any(keyword.arg in ("text", "universal_newlines") for keyword in node.keywords)
        if called == "open" and not (
            method and ast.unparse(node.func) in ("os.open", "tarfile.open", "webbrowser.open")
        ):
            given = [
                *node.args[0 if method else 1 :][:1],
                *(word.value for word in node.keywords if word.arg == "mode"),
            ]
            mode = given[0].value if given and isinstance(given[0], ast.Constant) else "r"
            text |= "b" not in str(mode)
        if text:
            found.append(f"{path.relative_to(ROOT)}:{node.lineno}: {ast.unparse(node)}")
    return found


@pytest.mark.parametrize("top", ["benchmarks", "methods", "tests", "workflows"])
def test_text_files_and_pipes_name_their_encoding(top: str) -> None:
    assert [call for path in sorted((ROOT / top).rglob("*.py")) for call in unnamed(path)] == []


def test_importing_the_suite_and_listing_reads_nothing_in_the_encoding_of_the_locale() -> None:
    code = """
import warnings
warnings.filterwarnings("error", category=EncodingWarning, module=r"(benchmarks|methods)\\.")
from benchmarks.cli import app
for words in (["list", "studies"], ["list", "methods"], ["list", "datasets"], ["table", "smoke", "--table", "claims"]):
    app(words, standalone_mode=False)
"""
    command = [sys.executable, "-X", "warn_default_encoding", "-c", code]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, encoding="utf-8")
    assert done.returncode == 0, done.stderr


def stream(encoding: str, terminal: bool = False) -> io.TextIOWrapper:
    made = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    made.isatty = lambda: terminal  # type: ignore[method-assign]
    return made


def test_what_goes_into_a_file_or_pipe_is_utf_8(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", out := stream("iso8859-1"))
    monkeypatch.setattr(sys, "stderr", err := stream("ascii"))
    prepare_terminal()
    print("é τ … 😀")
    print("é τ", file=sys.stderr)
    for written, text in ((out, "é τ … 😀\n"), (err, "é τ\n")):
        written.flush()
        assert written.buffer.getvalue().decode("utf-8") == text  # type: ignore[attr-defined]


def test_a_terminal_keeps_its_encoding_and_shows_what_it_lacks_as_marks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", out := stream("iso8859-1", terminal=True))
    prepare_terminal()
    print("é τ")
    out.flush()
    assert out.buffer.getvalue() == b"\xe9 ?\n"  # type: ignore[attr-defined]


@pytest.mark.parametrize("columns", ["0", "abc", ""])
def test_a_width_that_is_none_counts_as_unset(columns: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    words = ("explain", "--help"), ("table", "smoke", "--table", "claims")
    plain = [invoke(*word).output for word in words]
    monkeypatch.setenv("COLUMNS", columns)
    assert [invoke(*word).output for word in words] == plain


def test_a_width_that_is_one_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "57")
    assert {len(line) for line in invoke("explain", "--help").output.splitlines()[2:]} <= {0, 57}
