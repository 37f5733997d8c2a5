"""Find the source files that results depend on, and digest what they do. Nothing is imported for this."""

from __future__ import annotations

import ast
import hashlib
from functools import cache
from importlib.util import find_spec
from pathlib import Path

SUFFIXES = {".py", ".yaml", ".html"}  # of modules, and of the data files beside them
OWN = __name__.partition(".")[0] + "."


def source_digest(*modules: str) -> str:
    """Return a digest of the source of modules and packages (dotted), short enough to be read in a reason for a rerun.
    Comments, layout, docstrings, titles, citations and descriptions do not count: better wording reruns nothing."""
    whole = hashlib.sha256()
    for module in modules:
        for path in source_files(module):
            whole.update(path.name.encode() + _substance(path, path.stat().st_mtime_ns))
    return whole.hexdigest()[:16]


@cache
def _substance(path: Path, changed: int) -> bytes:
    """Return the content of a file, as last ``changed`` at this time; of Python code, only what it does."""
    if path.suffix != ".py":
        return path.read_bytes()
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(node) is not None:
            node.body[0] = ast.Pass()
        if isinstance(node, ast.Call):
            node.keywords = [keyword for keyword in node.keywords if keyword.arg != "description"]
        if isinstance(node, ast.ClassDef):
            node.body = [ast.Pass() if _is_words(part) else part for part in node.body]
    return ast.unparse(tree).encode()


def _is_words(part: ast.stmt) -> bool:
    """Return whether a statement of a class sets its title or citation."""
    if not isinstance(part, ast.Assign) or not isinstance(part.value, ast.Constant):
        return False
    return [target.id for target in part.targets if isinstance(target, ast.Name)] in (["title"], ["citation"])


def source_files(module: str) -> list[Path]:
    """Return a module's file, and a data file of the same name if there is one; for a package, all files in it."""
    if files := _files(module):
        return files
    raise ModuleNotFoundError(f"no module is named {module!r}")


def _files(module: str) -> list[Path]:
    """Do the same as :func:`source_files`, but return no file if there is no such module."""
    top, *parts = module.split(".")
    spec = find_spec(top)
    if spec is None:
        return []
    if not spec.submodule_search_locations:
        return [Path(str(spec.origin))]
    path = Path(spec.submodule_search_locations[0]).joinpath(*parts)
    if not path.is_dir():
        return sorted(path.parent.glob(f"{path.name}.*"))
    return sorted(file for file in path.rglob("*") if file.suffix in SUFFIXES)


@cache
def builds_on(module: str) -> set[str]:
    """Return a module and all modules that it imports, anywhere in its code, directly or indirectly, from this package
    or from its own."""
    seen: set[str] = set()
    new = {module}
    while new:
        seen |= new
        new = {name for one in new for name in _imports(one)} - seen
    return seen


def _imports(module: str) -> set[str]:
    """Return the modules that a module names in its imports, of this package and of its own."""
    found: set[str] = set()
    for path in source_files(module):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if path.suffix == ".py" else ():
            if isinstance(node, ast.ImportFrom):
                source = f"{_package(path, module, node.level)}{node.module or ''}".rstrip(".")
                found |= {source, *(f"{source}.{alias.name}" for alias in node.names)}
            elif isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
    packages = OWN, f"{module.partition('.')[0]}."
    return {name for name in found if name.startswith(packages) and _files(name)}  # the rest are names in modules


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
