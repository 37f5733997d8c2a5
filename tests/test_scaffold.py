"""The scaffold of a new method works as written."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from benchmarks.scaffold import new_method, new_package
from methods.base import copy_weights
from methods.errors import InputError


def test_a_new_file_has_the_method_s_name_throughout(tmp_path: Path) -> None:
    """That it passes the conformance tests is checked by tests/test_readme.py."""
    text = new_method("deep_thought", tmp_path).read_text(encoding="utf-8")
    assert "MyMethod" not in text and "my_method" not in text and "# CHANGE" in text
    assert 'title = "Deep thought"' in text


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("My-Method", "cannot be a method's name: use one like my_method"),
        ("class", "cannot be a method's name"),
        ("batch", "would be a class Batch, which is another"),  # its class would hide that of the interface
        ("marcos", r"there is a method 'marcos' already \(methods\.marcos"),
        ("taken", "taken.py exists already"),
    ],
)
def test_bad_names_are_refused(tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / "taken.py").write_text("mine\n", encoding="utf-8")
    with pytest.raises(InputError, match=message):
        new_method(name, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["taken.py"]
    assert (tmp_path / "taken.py").read_text(encoding="utf-8") == "mine\n"


def test_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no folder .*nowhere.*--folder"):
        new_method("fine", tmp_path / "nowhere")


def test_a_package_replaces_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert new_package("fine") == Path("marcos-bench-fine/fine.py")
    for name, message in (
        ("fine", "fine exists already"),
        ("class", "cannot be a method's name"),
        ("random", "Python finds another module 'random'"),
    ):
        with pytest.raises(InputError, match=message):
            new_package(name)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["fine.py", "marcos-bench-fine", "pyproject.toml"]


def test_a_warm_start_from_other_names_says_what_it_lacks() -> None:
    """A plugin may start from CoT-SFT and name its model differently."""
    theirs, own = {"lm.weight": torch.zeros(2, 2), "lm.bias": torch.zeros(2)}, nn.ModuleDict({"model": nn.Linear(2, 2)})
    with pytest.raises(ValueError, match=r"have 'lm\.bias' and 1 more tensors that ModuleDict lacks"):
        copy_weights(theirs, own)


def test_a_warm_start_fills_its_rows_of_a_table_and_no_corner_of_a_tensor() -> None:
    own = nn.Linear(2, 3)
    before = own.weight[2].clone()
    copy_weights({"weight": torch.zeros(2, 2)}, own)
    assert own.weight[:2].eq(0).all() and torch.equal(own.weight[2], before)
    for name, shape in (("weight", (3, 1)), ("weight", (4, 2)), ("bias", (2,)), ("bias", (4,))):
        with pytest.raises(InputError, match=rf"{name} to start from is \[{shape[0]}.*, and that of Linear \["):
            copy_weights({name: torch.zeros(shape)}, own)
