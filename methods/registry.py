"""Find methods: in all modules of this package, and by the entry points of other packages."""

from __future__ import annotations

import importlib
import inspect
import logging
import pkgutil
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from importlib.metadata import entry_points
from types import NoneType
from typing import Any

import torch

from methods.base import Method, Setup
from methods.code_digest import builds_on, source_digest
from methods.errors import InputError, suggestion

ENTRY_POINT_GROUP = "marcos_bench.methods"

log = logging.getLogger(__name__)
_left_out: dict[str, str] = {}  # reasons, by module, entry point or class


@cache
def available() -> dict[str, type[Method]]:
    """Return all methods by name: those in the modules of this package and those of other packages' entry points.
    Modules whose names begin with an underscore are skipped: they hold no method, and take seconds to import.

    A method that cannot be imported or built is logged and left out: somebody may still be writing it, and the runs of
    other methods should go on. So are methods that have the same name, but for one in the module of that name.
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
    named: dict[str, dict[str, type[Method]]] = defaultdict(dict)
    for cls in filter(_is_method, found):
        place = f"{cls.__module__}.{cls.__qualname__}"
        if wrong := [word for word in ("name", "title", "citation") if not isinstance(getattr(cls, word), str)]:
            _leave_out(place, f"its `{wrong[0]}` is {getattr(cls, wrong[0])!r}, which is no text")
            continue
        named[cls.name][place] = cls
    for name, alike in named.items():
        if len(alike) > 1:
            at_home = {place for place, cls in alike.items() if cls.__module__.split(".")[:2] == ["methods", name]}
            for place in alike.keys() - (at_home if len(at_home) == 1 else set()):
                others = ", ".join(sorted(alike.keys() - {place}))
                _leave_out(place, f"{others} is named {name!r} too: rename one of them")
    return {
        name: cls for name, alike in sorted(named.items()) for place, cls in alike.items() if place not in _left_out
    }


def _loaded(name: str, load: Callable[[], Any]) -> Any:
    """Return what ``load`` loads, or None if it fails."""
    try:
        return load()
    except (Exception, SystemExit) as error:  # importing a module may raise anything
        _leave_out(name, f"it cannot be imported ({type(error).__name__}: {error})")


def left_out() -> dict[str, str]:
    """Return why methods are left out, by module, entry point or class."""
    available()
    return dict(_left_out)


def _leave_out(name: str, why: str) -> None:
    if name not in _left_out:
        log.warning("%s is left out: %s", name, why)
        _left_out[name] = why


def _is_method(value: object) -> bool:
    """Return whether this is a method that can be built. A class is taken for a mere base class if it has neither a
    name of its own nor all abstract methods implemented, or if the class's name begins with an underscore."""
    if not inspect.isclass(value) or not issubclass(value, Method) or value.__name__.startswith("_"):
        return False
    lacking, nameless = sorted(value.__abstractmethods__), "name" not in vars(value)
    if lacking and nameless:
        return False
    lacking += ["`name`"] if nameless else []
    lacking += [f"`{word}`" for word in ("title", "citation") if not hasattr(value, word)]
    try:
        defaults = value.Options().model_dump()
    except Exception as error:  # validators and default factories may raise anything
        lacking.append(f"a valid default of each option ({' '.join(str(error).split())})")
    else:
        lacking += [
            f"options of types that JSON has, or tuples ({place} is a {kind})" for place, kind in _no_json(defaults)
        ]
    if lacking:
        _leave_out(f"{value.__module__}.{value.__qualname__}", f"it lacks {', '.join(lacking)}")
    return not lacking


def _no_json(value: object, place: str = "") -> Iterator[tuple[str, str]]:
    """Yield the places of what JSON has no type for, and its type. Digests of settings are of JSON: a set, for example,
    would have another order in each process."""
    if isinstance(value, Mapping):
        for key, part in value.items():
            yield from _no_json(part, f"{place}.{key}".lstrip("."))
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from _no_json(part, place)
    elif type(value) not in (str, int, float, bool, NoneType):
        yield place, type(value).__name__


def get_method(name: str) -> type[Method]:
    """Return the class of a method, or raise :class:`InputError`, which suggests the nearest name."""
    registry = available()
    if name in registry:
        return registry[name]
    missing = "".join(f"; {place} is left out: {why}" for place, why in _left_out.items())
    raise InputError(
        f"no method is named {name!r}{suggestion(name, registry)} (available: {', '.join(registry)}){missing}"
    )


def build(name: str, options: Mapping[str, Any], setup: Setup, seed: int) -> Method:
    """Build a method with freshly initialised weights. The global generator is left as it was."""
    cls = get_method(name)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return cls(cls.Options.model_validate(dict(options)), setup)


def code_digest(name: str, *modules: str) -> str:
    """Return a digest of the source that determines a method's numbers: its module or package and those of its base
    classes, everything that they build on, and the given ``modules`` (dotted)."""
    classes = [cls.__module__ for cls in get_method(name).__mro__ if issubclass(cls, Method)]
    return source_digest(*sorted({*modules, *(module for cls in classes for module in builds_on(cls))}))
