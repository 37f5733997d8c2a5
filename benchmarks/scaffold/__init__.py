"""The first file of a new method: it works, and its comments say what to change."""

from __future__ import annotations

import inspect
import keyword
import re
from pathlib import Path

from benchmarks.files import write_text
from benchmarks.scaffold import template
from methods.errors import InputError
from methods.registry import available


class ScaffoldError(InputError):
    """A file that cannot be written for a new method; the message says what to do."""


def new_method(name: str, folder: Path) -> Path:
    """Write a method of that name, as ``folder/name.py``, and return the path."""
    taken = vars(template).keys() - {"MyMethod"}
    if not re.fullmatch("[a-z][a-z0-9_]*", name) or keyword.iskeyword(name) or class_name(name) in taken:
        raise ScaffoldError(
            f"{name!r} cannot be a method's name: use one like my_method, of lower-case letters, digits and _"
        )
    if name in available():
        raise ScaffoldError(f"there is a method {name!r} already ({available()[name].__module__}): take another name")
    if not folder.is_dir():
        raise ScaffoldError(f"there is no folder {folder}: go to the repository, or name one with --folder")
    path = folder / f"{name}.py"
    if path.exists():
        raise ScaffoldError(f"{path} exists already: take another name, or move that file away")
    text = inspect.getsource(template).replace("MyMethod", class_name(name))
    write_text(path, text.replace("My method", name.replace("_", " ").strip().capitalize()).replace("my_method", name))
    return path


def class_name(name: str) -> str:
    """``my_method`` as ``MyMethod``."""
    return "".join(word.capitalize() for word in name.split("_"))
