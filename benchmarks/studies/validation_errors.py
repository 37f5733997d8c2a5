"""What is wrong with a study's settings, in the terms of the person who writes them: where, what, and how to fix it."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, ClassVar, TypeVar, Union, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError
from yaml.composer import ComposerError

from benchmarks.files import read_text
from methods.base import MethodOptions
from methods.errors import InputError, suggestion

Settings = TypeVar("Settings", bound=BaseModel)
FLOAT = r"[-+]?(?:(?:\d+\.\d*|\.\d+)(?:[eE][-+]?\d+)?|\d+[eE][-+]?\d+|\.(?:inf|Inf|INF))|\.(?:nan|NaN|NAN)"
PLAIN = {  # what a value without quotes is read as, by YAML 1.2's core schema, with the characters that may begin it
    "null": (r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    "bool": (r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    "int": (r"[-+]?(?:0|[1-9]\d*)", list("-+0123456789")),  # not 010 or 0x1F, which loaders read differently
    "float": (FLOAT, list("-+.0123456789")),
    "merge": (r"<<", ["<"]),  # of YAML 1.1, but widely used
}
SHORT = {"lr": "learning_rate", "bs": "batch_size"}  # names that have others near them
NEEDED = {  # what a value must be in YAML's terms, by pydantic's type of error; for others, pydantic says it
    "float_type": "a number",
    "int_type": "a whole number",
    "bool_type": "true or false",
    "string_type": "text",
    "tuple_type": "a list",
    "list_type": "a list",
    "model_type": "keys with values (`key: value`)",
    "dict_type": "keys with values (`key: value`)",
}
MOST_VALUES = 100_000  # of a study, with anchors written out
SHOWN = 60  # characters of a wrong value that a message quotes


class StudyError(InputError):
    """A study that cannot be used. The message names the place and the fix."""


def validate_settings(model: type[Settings], content: Any, place: str = "") -> Settings:
    """Validate settings and return them as a ``model``. Raise :class:`InputError`, whose lines begin with ``place``,
    if they are wrong. As in the JSON schema, nothing is converted: what YAML reads as text is not a number."""
    if content is None:
        raise InputError("the file is empty")
    try:
        text = json.dumps(content, ensure_ascii=False)
        text.encode()
    except (TypeError, ValueError) as error:  # of a value that only a tag makes, such as `!!set`, or half a character
        raise InputError(str(error)) from error
    try:
        return model.model_validate_json(text, strict=True)
    except ValidationError as error:
        raise InputError("\n".join(_reasons(error, model, json.loads(text), place))) from error


class StudyLoader(yaml.SafeLoader):
    """Reads plain values as YAML 1.2 does: 1e-3 is a number, and yes, 010, 1:30 and dates are text. Duplicate keys, of
    which other loaders keep the last in silence, are refused, and so are keys that are no text."""

    yaml_implicit_resolvers: ClassVar[dict[str, Any]] = {}

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        keys = [(key.tag, key.value) for key, _ in node.value]
        for number, (key, _) in enumerate(node.value):
            merges = key.tag == "tag:yaml.org,2002:merge"
            if not merges and key.tag != "tag:yaml.org,2002:str":
                written = key.value if isinstance(key, yaml.ScalarNode) else "list or mapping"
                raise ComposerError(None, None, f"key {written} is no text: put quotes around it", key.start_mark)
            if keys[number] in keys[:number] and not merges:
                raise ComposerError(None, None, f"key {key.value!r} is there twice", key.start_mark)
        return node


for tag, (pattern, begins) in PLAIN.items():
    StudyLoader.add_implicit_resolver(f"tag:yaml.org,2002:{tag}", re.compile(f"(?:{pattern})$", re.ASCII), begins)


def parse_yaml(text: str) -> Any:
    """Return what a YAML text says. Raise :class:`InputError` if it is not valid."""
    try:
        content = yaml.load(text, StudyLoader)
    except (yaml.YAMLError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        # The others are of values that their own tags do not fit, such as `!!int x`
        raise InputError(f"not valid YAML: {error}") from error
    except RecursionError as error:
        raise InputError("its values are nested too deeply") from error
    if _size(content, {}) > MOST_VALUES:
        raise InputError(f"an anchor stands for itself, or for over {MOST_VALUES:,} values: write out what is meant")
    return content


def _size(value: Any, sizes: dict[int, float]) -> float:
    """Return how many values a value stands for, with itself and anchors written out: no end, if one is in itself."""
    if not isinstance(value, dict | list):
        return 1
    if id(value) not in sizes:
        sizes[id(value)] = math.inf
        parts = value.values() if isinstance(value, dict) else value
        sizes[id(value)] = 1 + sum(_size(part, sizes) for part in parts)
    return sizes[id(value)]


def study_content(path: Path) -> Any:
    """Return the content of a study's file, not yet validated."""
    try:
        return parse_yaml(read_text(path, "a study is a YAML file in UTF-8"))
    except InputError as error:
        raise StudyError(str(error) if str(path) in str(error) else f"{path}: {error}") from error


def _reasons(error: ValidationError, model: type[BaseModel], content: Any, place: str) -> list[str]:
    """Return a line for each wrong value. Each part of a union has an error of its own: the value must be what one of
    them needs."""
    needs: dict[tuple[str, str], list[str]] = {}
    lines: dict[tuple[str, str], str] = {}
    for problem in error.errors(include_url=False):
        kind, loc, value = problem["type"], problem["loc"], problem["input"]
        if kind == "too_short" and len(value) >= problem.get("ctx", {})["min_length"]:
            continue  # too short only without its faulty entries, which have lines of their own
        key = str(loc[-1]) if kind in ("missing", "extra_forbidden") else ""
        words, annotation = _where(model, content, loc[:-1] if key else loc)
        where = ", ".join([place, *words] if place else words)
        if kind == "missing":
            text = f"entry {loc[-1] + 1} is missing" if isinstance(loc[-1], int) else f"`{key}` is missing"
        elif kind == "extra_forbidden":
            text = _unknown(key, _models(annotation))
        elif kind == "value_error":
            text = str(problem.get("ctx", {})["error"])
        elif problem["msg"].startswith("Input should be ") or kind in NEEDED:
            need = NEEDED.get(kind) or problem["msg"].removeprefix("Input should be ")
            needs.setdefault((where, key), []).append(need)
            text = f"must be {' or '.join(needs[where, key])}, not {_shown(value)}"
        else:
            text = problem["msg"]
        lines[where, key] = f"{where}: {text}" if where else text
    return [*lines.values()]


def _where(model: type[BaseModel], content: Any, loc: Sequence[int | str]) -> tuple[list[str], Any]:
    """Return the place in words, and its annotation. A list entry is named by its id. A part of ``loc`` that is not in
    the content is pydantic's name for a member of a union, and is skipped."""
    words: list[str] = []
    annotation: Any = model
    dotted = False
    for part in loc:
        if isinstance(content, dict) and part in content:
            words.append(f"{words.pop()}.{part}" if dotted else str(part))
            inner, dotted = content[part], True
        elif isinstance(content, list) and isinstance(part, int):
            inner, dotted = content[part], False
            id = inner.get("id") if isinstance(inner, dict) else None
            if isinstance(id, str):
                words[-1] = f"{words[-1].removesuffix('s')} {id!r}"
            else:
                words.append(f"entry {part + 1}")
        else:
            continue
        content, annotation = inner, _inside(annotation, part)
    return words, annotation


def _choices(annotation: Any) -> tuple[Any, ...]:
    """Return the members of a union, or the annotation alone, without the metadata of ``Annotated``."""
    if get_origin(annotation) is Annotated:
        return _choices(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        return tuple(choice for part in get_args(annotation) for choice in _choices(part))
    return (annotation,)


def _models(annotation: Any) -> list[type[BaseModel]]:
    return [part for part in _choices(annotation) if isinstance(part, type) and issubclass(part, BaseModel)]


def _inside(annotation: Any, part: int | str) -> Any:
    """Return the annotation of a part of an annotated value, or None if it has none."""
    for model in _models(annotation):
        if part in model.model_fields:
            return model.model_fields[str(part)].annotation
    containers = [choice for choice in _choices(annotation) if get_origin(choice) in (dict, tuple, list)]
    return get_args(containers[0])[get_origin(containers[0]) is dict] if containers else None


def _unknown(key: str, models: Sequence[type[BaseModel]]) -> str:
    """Return the message for a key that is not a field of ``models``, which has one model, or none that is known."""
    fields = [field for model in models for field in model.model_fields]
    kind = "option" if any(issubclass(model, MethodOptions) for model in models) else "key"
    return f"no {kind} `{key}`" + (suggestion(SHORT.get(key, key), fields) or f"; known: {', '.join(fields) or 'none'}")


def _shown(value: Any) -> str:
    text = repr(value) if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]} ..."
