"""Find the source files that results depend on, and digest what they do. Nothing is imported for this."""

from __future__ import annotations

import ast
import codecs
import hashlib
import json
import sysconfig
from functools import cache
from importlib.metadata import packages_distributions
from importlib.util import find_spec
from pathlib import Path

SUFFIXES = {".py", ".yaml", ".html"}  # of modules, and of the data files beside them
OWN = __name__.partition(".")[0]
WORDS = (["title"], ["citation"])  # targets of assignments in classes that set words


def source_digest(*modules: str) -> str:
    """Return a digest of the source of modules and packages (dotted), short enough to be read in a reason for a rerun.
    Comments, layout, docstrings, titles, citations and descriptions do not count: better wording reruns nothing.

    The same source has the same digest under all supported versions of Python, in any locale and with any line ends.
    The names of files count only inside packages, where modules find each other by them.
    """
    whole = hashlib.sha256()
    for module in modules:
        place = _place(module)
        for path in source_files(module):
            name = path.relative_to(place).as_posix() if place and place.is_dir() else path.suffix
            content = _substance(path, path.stat().st_mtime_ns)
            whole.update(f"{name} {len(content)}\n".encode() + content)
    return whole.hexdigest()[:16]


@cache
def _substance(path: Path, changed: int) -> bytes:
    """Return the content of a file, as last ``changed`` at this time; of Python code, only what it does."""
    content = path.read_bytes()
    if path.suffix != ".py":
        return content.removeprefix(codecs.BOM_UTF8).replace(b"\r\n", b"\n")
    return code_substance(content)


def code_substance(source: bytes) -> bytes:
    """Return what Python code does, as text that only depends on the code.

    The text is the syntax tree, written by this module because `ast.unparse` and `ast.dump` write the same tree
    otherwise from one version of Python to the next.
    """
    parts: list[str] = []
    _write(ast.parse(source), parts)
    return "".join(parts).encode("ascii")


def _write(value: object, parts: list[str]) -> None:
    """Append the text of a node, of a list of nodes, or of what else a field of a node holds."""
    if isinstance(value, list):
        parts.append("[")
        for item in value:
            _write(item, parts)
        parts.append("]")
    elif isinstance(value, ast.AST):
        parts.append(f"({type(value).__name__}")
        for name, content in _fields(value):
            parts.append(f" {name}=")
            _write(content, parts)
        parts.append(")")
    else:
        parts.append(f"<{_literal(value)}>")


def _fields(node: ast.AST) -> list[tuple[str, object]]:
    """Return the fields of a node that matter, by name. Empty ones are left out, since later versions of Python add
    more of them (``type_params``)."""
    if isinstance(node, (ast.Constant, ast.MatchSingleton)):  # of which None is a value; not ``kind``, as in u""
        return [("value", node.value)]
    fields = [(name, content) for name, content in ast.iter_fields(node) if name != "type_ignores"]
    kept: list[tuple[str, object]] = []
    for name, content in sorted(fields):
        if name == "body" and isinstance(content, list):
            content = _statements(node, content)
        elif isinstance(node, ast.Call) and name == "keywords":
            content = [keyword for keyword in content if keyword.arg != "description"]
        elif isinstance(node, ast.JoinedStr):
            content = _joined(content)
        elif name == "format_spec" and content is not None and not _joined(content.values):
            content = None  # f"{x:}" is f"{x}"
        if content is not None and content != []:
            kept.append((name, content))
    return kept


def _statements(node: ast.AST, body: list[ast.stmt]) -> list[ast.stmt]:
    """Return the statements of a block that do something."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    if isinstance(node, documented) and ast.get_docstring(node, clean=False) is not None:
        body = body[1:]
    if isinstance(node, ast.ClassDef):
        body = [part for part in body if not _is_words(part)]
    return [part for part in body if not isinstance(part, ast.Pass)]


def _joined(values: list[ast.expr]) -> list[ast.expr]:
    """Return the parts of an f-string without empty texts and with neighbouring texts as one, since versions of Python
    divide them differently."""
    joined: list[ast.expr] = []
    for value in values:
        if isinstance(value, ast.Constant) and joined and isinstance(joined[-1], ast.Constant):
            joined[-1] = ast.Constant(f"{joined[-1].value}{value.value}")
        elif not isinstance(value, ast.Constant) or value.value != "":
            joined.append(value)
    return joined


def _literal(value: object) -> str:
    """Return a literal or an identifier as ASCII. `repr` of a text depends on the characters that a version of Python
    knows, and that of an integer has a limit."""
    if isinstance(value, str):
        return json.dumps(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return hex(value)
    return repr(value)  # bytes, floats, complex numbers, True, False, None and ...


def _is_words(part: ast.stmt) -> bool:
    """Return whether a statement of a class sets its title or citation."""
    if not isinstance(part, ast.Assign) or not isinstance(part.value, ast.Constant):
        return False
    return [target.id for target in part.targets if isinstance(target, ast.Name)] in WORDS


def source_files(module: str) -> list[Path]:
    """Return a module's file, and a data file of the same name if there is one; for a package, all files in it."""
    if files := _files(module):
        return files
    raise ModuleNotFoundError(f"no module is named {module!r}")


def _files(module: str) -> list[Path]:
    """Do the same as :func:`source_files`, but return no file if there is no such module."""
    if (place := _place(module)) is None:
        return []
    if not place.is_dir():
        beside = (place.with_name(place.name + suffix) for suffix in sorted(SUFFIXES))
        return [path for path in beside if path.is_file()]
    inside = (path.relative_to(place) for path in place.rglob("*") if path.suffix in SUFFIXES)
    return [place / path for path in sorted(inside) if not any(part.startswith(".") for part in path.parts)]


def _place(module: str) -> Path | None:
    """Return the folder of a package, or the path of a module without its suffix; None if nothing of the name of the
    outermost package is there."""
    top, *parts = module.split(".")
    spec = find_spec(top)
    if spec is None:
        return None
    if not spec.submodule_search_locations:
        return Path(str(spec.origin)).with_suffix("")
    return Path(spec.submodule_search_locations[0]).joinpath(*parts)


@cache
def builds_on(module: str) -> set[str]:
    """Return a module and all modules that it imports, anywhere in its code, directly or indirectly, from this package
    or from those that are :func:`_developed_with` its own."""
    seen: set[str] = set()
    new = {module}
    while new:
        seen |= new
        new = {name for one in new for name in _imports(one)} - seen
    return seen


def _imports(module: str) -> set[str]:
    """Return the modules that a module names in its imports, as far as :func:`builds_on` has them."""
    found: set[str] = set()
    for path in source_files(module):
        for node in ast.walk(ast.parse(path.read_bytes())) if path.suffix == ".py" else ():
            if isinstance(node, ast.ImportFrom):
                source = f"{_package(path, module, node.level)}{node.module or ''}".rstrip(".")
                found |= {source, *(f"{source}.{alias.name}" for alias in node.names)}
            elif isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
    top = module.partition(".")[0]
    followed, whole = {OWN, *_developed_with(top)}, {OWN, top}  # of these two, the modules that are named count
    named = {name for name in found - whole if name.partition(".")[0] in followed}
    return {name for name in named if _files(name)}  # others are names in modules


@cache
def _developed_with(top: str) -> set[str]:
    """Return the outermost modules and packages that change together with one: those of the same distribution, and
    those in the same folder, unless that is where all distributions are installed."""
    spec = find_spec(top)
    if top in (OWN, "benchmarks") or spec is None:  # the suite's own parts
        return {top}
    installed = packages_distributions()
    names = {name for name, whose in installed.items() if not {*whose}.isdisjoint(installed.get(top, []))}
    place = Path(spec.submodule_search_locations[0]) if spec.submodule_search_locations else Path(str(spec.origin))
    if str(place.parent) not in (sysconfig.get_path("purelib"), sysconfig.get_path("platlib")):
        names |= {path.stem for path in place.parent.iterdir() if path.is_dir() or path.suffix == ".py"}
    return {top, *names}


def _package(path: Path, module: str, level: int) -> str:
    """Return the package, with a dot behind it, that a relative import of ``level`` dots in a file of ``module`` starts
    from; nothing for an absolute import."""
    if level == 0:
        return ""
    top = module.partition(".")[0]
    spec = find_spec(top)
    assert spec and spec.submodule_search_locations, f"{path} has relative imports, and {top} is no package"
    inside = path.parent.relative_to(spec.submodule_search_locations[0]).parts
    names = (top, *inside)
    return ".".join(names[: len(names) - level + 1]) + "."
