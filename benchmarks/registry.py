"""What the modules of a package offer under one name, such as ``DATASETS``. :mod:`methods.registry` has the methods."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from methods.errors import InputError


def collect(
    package: str, path: Iterable[str], variable: str, name_of: Callable[[Any], str], skipped: Container[str] = ()
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return what is in ``variable`` of a package's modules, by name, and the dotted name of each one's module. Modules
    that are ``skipped``, or whose names begin with an underscore, are not imported."""
    found: dict[str, Any] = {}
    modules: dict[str, str] = {}
    for short in sorted(info.name for info in iter_modules(path)):
        if short.startswith("_") or short in skipped:
            continue
        module = f"{package}.{short}"
        for one in getattr(import_module(module), variable):
            if (name := name_of(one)) in found:
                raise InputError(f"{module} and {modules[name]} both have {name!r} in {variable}: rename one of them")
            found[name], modules[name] = one, module
    return found, modules
