"""What is wrong with a study's settings, in the terms of the person who writes them: where, what, and how to fix it."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails
from yaml.composer import ComposerError
from yaml.constructor import ConstructorError
from yaml.events import AliasEvent

from benchmarks.files import read_text
from benchmarks.studies.specs import NAME
from methods.base import MethodOptions
from methods.errors import InputError, suggestion

Settings = TypeVar("Settings", bound=BaseModel)
POWER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$")
NEEDED = {  # what a value must be, by pydantic's type of error
    "float_type": "a number",
    "int_type": "a whole number",
    "bool_type": "true or false",
    "string_type": "text",
    "model_type": "keys with values (`key: value`)",
    "dict_type": "keys with values (`key: value`)",
    "literal_error": "{expected}",
    "enum": "{expected}",
}
COUNTS = {
    "too_short": "must have {min_length} or more entries",
    "too_long": "must have {max_length} entries at most",
    "string_too_long": "must have {max_length} letters at most, as files are named after it",
}
OF_KEYS = {"missing", "extra_forbidden"}
UNWRITABLE = re.compile("[\0\ud800-\udfff]")  # NUL, and halves of characters that YAML can write as escapes
MOST_NODES = 100_000  # values, list entries and keys of a study, with anchors written out
SHOWN = 60  # characters of a wrong value that a message quotes


class StudyError(InputError):
    """A study that cannot be used. The message names the place and the fix."""


def validate_settings(model: type[Settings], content: Any, place: str = "") -> Settings:
    """Validate settings and return them as a ``model``. Raise :class:`InputError`, whose lines begin with ``place``,
    if they are wrong. As in the JSON schema, nothing is converted: what YAML reads as text is not a number."""
    if content is None:
        raise InputError("the file is empty")
    try:
        text = json.dumps(content, default=_refuse)
    except TypeError as error:  # caused by a key
        raise InputError(str(error)) from error
    try:
        return model.model_validate_json(text, strict=True)
    except ValidationError as error:
        raise InputError("\n".join(map(str, _reasons(error, model, json.loads(text), place)))) from error


def _refuse(value: Any) -> Any:
    raise InputError(f"YAML reads {value} as a {type(value).__name__}: put quotes around it")


class StudyLoader(yaml.SafeLoader):
    """Reads 1e-3 as a number, as YAML 1.2 does. What other loaders accept in silence is refused: duplicate keys, of
    which they keep the last, keys that are no text, halves of characters, and anchors that stand for themselves or for
    more than a study could have."""

    def __init__(self, stream: Any) -> None:
        super().__init__(stream)
        self.sizes: dict[yaml.Node, int] = {}  # how many nodes each node that is read stands for, with itself

    def compose_node(self, parent: Any, index: Any) -> yaml.Node | None:
        alias = self.check_event(AliasEvent)
        node = super().compose_node(parent, index)
        if node is None:
            return None
        if alias and node not in self.sizes:  # it is still being read
            raise ComposerError(None, None, "an anchor refers to itself: write out what it stands for", node.start_mark)
        if not alias:
            self.sizes[node] = 1 + sum(self.sizes[part] for part in _parts(node))
        if self.sizes[node] > MOST_NODES:
            raise ComposerError(None, None, f"more than {MOST_NODES:,} values, by its anchors", node.start_mark)
        return node

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

    def construct_object(self, node: Any, deep: bool = False) -> Any:
        try:
            value = super().construct_object(node, deep)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:  # e.g. of 2024-13-01
            shown = node.value if isinstance(node, yaml.ScalarNode) else "this"
            raise ConstructorError(None, None, f"{shown[:SHOWN]} cannot be read ({error})", node.start_mark) from error
        if isinstance(value, str) and UNWRITABLE.search(value):
            raise ConstructorError(None, None, f"{value[:SHOWN]!a} has what no text can have", node.start_mark)
        return value


def _parts(node: yaml.Node) -> list[yaml.Node]:
    """Return the entries of a list, or the keys and values of a mapping."""
    if isinstance(node, yaml.MappingNode):
        return [part for pair in node.value for part in pair]
    return node.value if isinstance(node, yaml.SequenceNode) else []


StudyLoader.add_implicit_resolver("tag:yaml.org,2002:float", POWER, list("-+.0123456789"))


def study_content(path: Path) -> Any:
    """Return the content of a study's file, not yet validated."""
    text = read_text(path, "a study is a YAML file in UTF-8", StudyError)
    try:
        return yaml.load(text, StudyLoader)
    except yaml.YAMLError as error:
        raise StudyError(f"{path} is not valid YAML: {error}") from error
    except RecursionError as error:
        raise StudyError(f"{path} is not a valid study: its values are nested too deeply") from error


@dataclass
class Reason:
    """What is wrong with one value at one place: either complete messages (``fixes``), of which one is enough, or what
    the value must be (``needs``), as alternatives: each part of a union has an error of its own."""

    place: str
    value: Any
    fixes: list[str] = field(default_factory=list)
    needs: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        text = self.fixes[0] if self.fixes else f"must be {' or '.join(self.needs)}, not {_shown(self.value)}"
        return f"{self.place}: {text}" if self.place else text


def _reasons(error: ValidationError, model: type[BaseModel], content: Any, place: str) -> list[Reason]:
    found: dict[Any, Reason] = {}
    for problem in error.errors(include_url=False):
        kind, loc, value = problem["type"], problem["loc"], problem["input"]
        if kind == "too_short" and len(value) >= problem.get("ctx", {})["min_length"]:
            continue  # too short only without its faulty entries, which have lines of their own
        words, annotation = _where(model, content, loc[:-1] if kind in OF_KEYS else loc)
        where = ", ".join([place, *words] if place else words)
        reason = found.setdefault((where, loc if kind in OF_KEYS else None), Reason(where, value))
        if fix := _fix(problem, annotation):
            reason.fixes.append(fix)
        else:
            reason.needs.append(_need(problem, annotation))
    return [*found.values()]


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


def _fix(problem: ErrorDetails, annotation: Any) -> str | None:
    """Return a complete message if there is more to say than what the value must be, otherwise None."""
    kind, value, context = problem["type"], problem["input"], problem.get("ctx", {})
    if kind == "missing":
        key = problem["loc"][-1]
        return f"entry {key + 1} is missing" if isinstance(key, int) else f"`{key}` is missing"
    if kind == "extra_forbidden":
        return _unknown(str(problem["loc"][-1]), _models(annotation))
    if kind == "value_error":
        return str(context["error"])
    if kind in ("float_type", "int_type") and isinstance(value, str):
        return _unquoted(value)
    if kind == "string_type" and isinstance(value, int | float):
        return f"must be text: put quotes around {_shown(value)}"
    if kind in COUNTS:
        return COUNTS[kind].format(**context)
    return None


def _need(problem: ErrorDetails, annotation: Any) -> str:
    """Return what the value must be."""
    kind, context = problem["type"], problem.get("ctx", {})
    if kind == "string_pattern_mismatch" and context["pattern"] == NAME:
        return "letters, digits, `_`, `-` and `.`, the first a letter or a digit"
    if kind in ("tuple_type", "list_type"):
        return f"a list{_example(annotation, problem['input'])}"
    if kind in NEEDED:
        return NEEDED[kind].format(**context)
    return problem["msg"].removeprefix("Input should be ")


def _unknown(key: str, models: Sequence[type[BaseModel]]) -> str:
    """Return the message for a key that is not a field of ``models``, which has one model, or none that is known."""
    fields = [field for model in models for field in model.model_fields]
    kind = "option" if any(issubclass(model, MethodOptions) for model in models) else "key"
    return f"no {kind} `{key}`" + (suggestion(key, fields) or f"; known: {', '.join(fields) or 'none'}")


def _unquoted(text: str) -> str | None:
    """Return the fix if the text holds a number, otherwise None."""
    try:
        float(text)
    except ValueError:
        return None
    return f"write {text} without quotes"


def _example(annotation: Any, value: Any) -> str:
    """Return an example of the list that should replace a single value: that value in brackets, or numbers."""
    if isinstance(value, str):
        return f": [{value}]"
    inner = _inside(annotation, 0)
    return ", such as [0, 1, 2]" if {int, float} & set(_choices(inner)) else ""


def _shown(value: Any) -> str:
    text = repr(value) if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]} ..."
