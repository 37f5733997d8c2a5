"""What ``marcos-bench new-method`` writes: a file that works as it is, whose comments say what to change."""

from __future__ import annotations

import importlib.util
import inspect
import keyword
import re
from pathlib import Path

from benchmarks.files import write_text
from benchmarks.scaffold import template
from methods.errors import InputError
from methods.registry import ENTRY_POINT_GROUP, available

PROJECT = f"""[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "marcos-bench-my_method"
version = "0.1"
dependencies = ["marcos-bench"]

[project.entry-points."{ENTRY_POINT_GROUP}"]
my_method = "my_method:MyMethod"

[tool.setuptools]
py-modules = ["my_method"]
"""


def new_method(name: str, folder: Path) -> Path:
    """Write a method with this name to ``folder/name.py`` and return the path."""
    source = _named(name, inspect.getsource(template))
    if not folder.is_dir():
        raise InputError(f"there is no folder {folder}: go to the repository, or name one with --folder")
    path = folder / f"{name}.py"
    if path.exists():
        raise InputError(f"{path} exists already: take another name, or move that file away")
    write_text(path, source)
    return path


def new_package(name: str) -> Path:
    """Write a method with this name, and what it is installed by, to a folder of its own. Return the path of its file.
    The folder is not named like the module: Python would take it for a package, in the folder that it lies in."""
    project, folder = _named(name, PROJECT), Path(f"marcos-bench-{name}")
    if importlib.util.find_spec(name):
        raise InputError(f"Python finds another module {name!r} before that of the package: take another name")
    if folder.exists():
        raise InputError(f"{folder} exists already: take another name, or move it away")
    write_text(folder / "pyproject.toml", project)
    return new_method(name, folder)


def _named(name: str, text: str) -> str:
    """Return a text about ``my_method`` with another name in it. Raise :class:`InputError` if no method can have it."""
    taken = vars(template).keys() - {"MyMethod"}
    if not re.fullmatch("[a-z][a-z0-9_]*", name) or keyword.iskeyword(name):
        raise InputError(
            f"{name!r} cannot be a method's name: use one like my_method, of lower-case letters, digits and _"
        )
    if class_name(name) in taken:
        raise InputError(f"a method {name!r} would be a class {class_name(name)}, which is another: use a longer name")
    if name in available():
        raise InputError(f"there is a method {name!r} already ({available()[name].__module__}): take another name")
    text = text.replace("MyMethod", class_name(name)).replace("my_method", name)
    return text.replace("My method", name.replace("_", " ").strip().capitalize())


def class_name(name: str) -> str:
    """Return the name of a method's class: ``MyMethod`` for ``my_method``."""
    return "".join(word.capitalize() for word in name.split("_"))
