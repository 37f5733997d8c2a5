"""Which methods there are: all modules of this package, and the entry points of others."""

from __future__ import annotations

import importlib
import inspect
import logging
import pkgutil
from collections.abc import Callable, Mapping
from functools import cache, partial
from importlib.metadata import entry_points
from typing import Any

import torch

from methods.base import Method, Setup
from methods.errors import InputError
from methods.nearest import suggestion
from methods.sources import builds_on, source_digest

ENTRY_POINT_GROUP = "marcos_bench.methods"


log = logging.getLogger(__name__)
_left_out: dict[str, str] = {}  # why, by module, entry point or class


class UnknownMethod(InputError):
    """No method of that name; the message suggests the nearest."""


@cache
def available() -> dict[str, type[Method]]:
    """All methods by name: the modules of this package, but those whose names begin with an underscore (they hold no
    method, and take seconds to import), then the entry points of other packages.

    What cannot be imported or built is named in the log and left out: somebody may be writing it, and other methods'
    runs go on.
    """
    import methods

    _left_out.clear()
    names = [info.name for info in pkgutil.iter_modules(methods.__path__) if not info.name.startswith("_")]
    modules = [_loaded(f"methods.{name}", partial(importlib.import_module, f"methods.{name}")) for name in names]
    found = [value for module in modules if module for value in vars(module).values()]
    for point in entry_points(group=ENTRY_POINT_GROUP):
        found.append(_loaded(point.value, point.load))
        if point.value not in _left_out and not (inspect.isclass(found[-1]) and issubclass(found[-1], Method)):
            _leave_out(point.value, "it is no subclass of methods.base.Method")
    registry: dict[str, type[Method]] = {}
    for cls in filter(_is_method, found):
        if registry.setdefault(cls.name, cls) is not cls:
            other = registry[cls.name].__module__
            raise InputError(f"two methods are named {cls.name!r}: {other} and {cls.__module__}; rename one of them")
    return dict(sorted(registry.items()))


def _loaded(name: str, load: Callable[[], Any]) -> Any:
    """None where loading fails."""
    try:
        return load()
    except Exception as error:  # whatever a module does when it is imported
        _leave_out(name, f"it cannot be imported ({type(error).__name__}: {error})")


def _leave_out(name: str, why: str) -> None:
    if name not in _left_out:
        log.warning("%s is left out: %s", name, why)
        _left_out[name] = why


def _is_method(value: object) -> bool:
    """Whether this is a method that can be built. A class that lacks both a name of its own and what a method must
    define is one that others are derived from, and so is one that begins with an underscore."""
    if not inspect.isclass(value) or not issubclass(value, Method) or value.__name__.startswith("_"):
        return False
    lacking, nameless = sorted(value.__abstractmethods__), "name" not in vars(value)
    if bool(lacking) != nameless:
        _leave_out(f"{value.__module__}.{value.__qualname__}", f"it lacks {', '.join(lacking) or '`name`'}")
    return not lacking and not nameless


def get_method(name: str) -> type[Method]:
    """The class of a method, or an error that suggests the nearest name."""
    registry = available()
    if name in registry:
        return registry[name]
    left_out = "".join(f"; {place} is left out: {why}" for place, why in _left_out.items())
    raise UnknownMethod(
        f"no method is named {name!r}{suggestion(name, registry)} (available: {', '.join(registry)}){left_out}"
    )


def build(name: str, options: Mapping[str, Any], setup: Setup, seed: int) -> Method:
    """A method with freshly initialised weights; the global generator is left as it was."""
    cls = get_method(name)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return cls(cls.Options.model_validate(dict(options)), setup)


def code_digest(name: str, *modules: str) -> str:
    """A digest of the source that decides a method's numbers: its module or package, all of this package that it
    builds on, and the ``modules`` named (dotted)."""
    return source_digest(*sorted({*builds_on(get_method(name).__module__), *modules}))
