"""What a record says about the code that made it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from benchmarks import environment
from benchmarks.evaluation import task as evaluation
from inflict import run_of
from methods.registry import code_digest


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a clean checkout with one method."""
    monkeypatch.setattr(environment, "ROOT", tmp_path)
    (tmp_path / "methods").mkdir()
    (tmp_path / "methods/mine.py").write_text("", encoding="utf-8")
    author = ("-c", "user.name=A", "-c", "user.email=a@example.org")
    for arguments in (("init", "-q"), ("add", "."), (*author, "commit", "-qm", "first")):
        subprocess.run(["git", *arguments], cwd=tmp_path, check=True)
    return tmp_path


@pytest.mark.parametrize(
    ("path", "dirty"), [("methods/mine.py", True), ("methods/new.py", True), ("results/table.md", False)]
)
def test_a_method_that_git_does_not_know_is_a_local_change(path: str, dirty: bool, checkout: Path) -> None:
    """It counts like an edit of a known method. Files in other places are not code."""
    assert environment.environment()["dirty"] is False
    (checkout / path).parent.mkdir(exist_ok=True)
    (checkout / path).write_text("EDITED = True\n", encoding="utf-8")
    assert environment.environment()["dirty"] is dirty


def test_a_repository_around_an_environment_is_not_the_source(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An installed suite often lies inside of a project that has a repository of its own."""
    assert environment.commit()
    (site := checkout / ".venv/site-packages").mkdir(parents=True)
    (site / "methods").mkdir()
    (site / "methods/mine.py").write_text("", encoding="utf-8")
    monkeypatch.setattr(environment, "ROOT", site)
    assert environment.commit() is None and environment.environment()["dirty"] is False


def test_a_record_names_the_versions_of_what_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert {"torch", "transformers"} <= environment.environment().keys()
    monkeypatch.setattr(environment, "find_spec", lambda name: None if name == "deepspeed" else name)
    assert "deepspeed" not in environment.environment()


def test_the_code_is_that_of_when_work_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Edits that are made while a process works do not affect it."""
    calls: list[str] = []

    class Begun(Exception):
        pass

    def begin(*_: object) -> None:
        calls.append("work")
        raise Begun

    monkeypatch.setattr(evaluation, "environment", lambda method: calls.append(method))
    monkeypatch.setattr(evaluation, "kept_stages", begin)
    with pytest.raises(Begun):
        evaluation.evaluate(run_of("cot_sft"), tmp_path)
    assert calls == ["cot_sft", "work"]
    made = environment.environment("cot_sft")
    assert made["code"] == code_digest("cot_sft") and "code" not in environment.environment()
    assert environment.with_hardware(made).keys() >= {"code", "commit", "device", "threads", "started", "finished"}
