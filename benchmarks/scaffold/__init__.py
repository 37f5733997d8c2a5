"""The file that ``marcos-bench new-method`` writes. It works as it is, and its comments say what to change."""

from __future__ import annotations

import inspect
import keyword
import re
from pathlib import Path

from benchmarks.files import write_text
from benchmarks.scaffold import template
from methods.errors import InputError
from methods.registry import available


def new_method(name: str, folder: Path) -> Path:
    """Write a method with this name to ``folder/name.py`` and return the path."""
    taken = vars(template).keys() - {"MyMethod"}
    if not re.fullmatch("[a-z][a-z0-9_]*", name) or keyword.iskeyword(name) or class_name(name) in taken:
        raise InputError(
            f"{name!r} cannot be a method's name: use one like my_method, of lower-case letters, digits and _"
        )
    if name in available():
        raise InputError(f"there is a method {name!r} already ({available()[name].__module__}): take another name")
    if not folder.is_dir():
        raise InputError(f"there is no folder {folder}: go to the repository, or name one with --folder")
    path = folder / f"{name}.py"
    if path.exists():
        raise InputError(f"{path} exists already: take another name, or move that file away")
    text = inspect.getsource(template).replace("MyMethod", class_name(name))
    write_text(path, text.replace("My method", name.replace("_", " ").strip().capitalize()).replace("my_method", name))
    return path


def class_name(name: str) -> str:
    """Return the name of a method's class: ``MyMethod`` for ``my_method``."""
    return "".join(word.capitalize() for word in name.split("_"))
