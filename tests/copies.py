"""Copies of the suite in which tests run its commands and edit its files."""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from conftest import ROOT

# Imports the packages that commands import, which takes seconds, and then runs each module that its input names in a
# fork of itself, which ends without freeing them. The suite's own modules are imported by each fork, from the copy that
# it runs in; only what `code_substance` gives for files as they are in ROOT, which takes longest, is computed once
FORKS = """
import atexit, gc, json, os, pathlib, runpy, sys, threading, traceback
import attr, datasets, docutils.core, dpath, jsonschema, mlflow, pandas, pygments, scipy.stats, smart_open, torch, yte
import snakemake.cli, snakemake.workflow
import transformers.models.auto.modeling_auto, transformers.models.qwen2.modeling_qwen2

sys.path.insert(0, ROOT)
from methods.code_digest import code_substance
files = [path.read_bytes() for part in ("benchmarks", "methods") for path in pathlib.Path(ROOT, part).rglob("*.py")]
known = {source: code_substance(source) for source in files}
for name in [name for name in sys.modules if name.split(".")[0] == "methods"]:
    del sys.modules[name]
sys.path.remove(ROOT)


def substance(source):
    return known[source] if source in known else code_substance(source)


def run(module):
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        if isinstance(ended.code, str):
            print(ended.code, file=sys.stderr)
            return 1
        return ended.code or 0
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


gc.freeze()
for line in sys.stdin:
    module, arguments, place, environment, output = json.loads(line)
    if not (child := os.fork()):
        file = os.open(output, os.O_WRONLY)
        for number, target in ((0, os.open(os.devnull, os.O_RDONLY)), (1, file), (2, file)):
            os.dup2(target, number)
        os.chdir(place)
        os.environ.clear()
        os.environ.update(environment)
        sys.path.insert(0, place)
        sys.argv[1:] = arguments
        import methods.code_digest
        methods.code_digest.code_substance = substance
        code = run(module)
        threading._shutdown()
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


def copy_suite(folder: Path) -> Path:
    """Copy the suite's source to a folder where it may be edited and run."""
    skip = shutil.ignore_patterns("__pycache__")
    for name in ("benchmarks", "methods", "profiles", "workflows"):
        shutil.copytree(ROOT / name, folder / name, ignore=skip)
    shutil.copy(ROOT / "Snakefile", folder)
    return folder


def stand_in(folder: Path, code: str) -> None:
    """Replace the command line by ``code``, so that stages do nothing else and import nothing first."""
    (folder / "benchmarks/cli/__init__.py").write_text("", encoding="utf-8")
    (folder / "benchmarks/cli/__main__.py").write_text(code, encoding="utf-8")


def environment(folder: Path) -> dict[str, str]:
    """Return an environment in which the copy precedes an installed suite and no outside database is written."""
    outside = ("MLFLOW_TRACKING_URI", "SNAKEMAKE_PROFILE")
    return {name: value for name, value in os.environ.items() if name not in outside} | {"PYTHONPATH": str(folder)}


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "snakemake", "--cores", "2", *arguments]


def snakemake(folder: Path, *arguments: str, fails: bool = False) -> str:
    """Run Snakemake and return its output. It must fail if ``fails``, else succeed."""
    return forked(folder, "snakemake", "--cores", "2", *arguments, fails=fails)


@functools.cache
def _server() -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", f"ROOT = {str(ROOT)!r}\n{FORKS}"],
        cwd=tempfile.gettempdir(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        encoding="utf-8",
    )


def forked(
    folder: Path, module: str, *arguments: str, fails: bool = False, variables: Mapping[str, str] | None = None
) -> str:
    """Return the output of ``python -m module``, in a process that has imported the large packages already, with more
    ``variables`` in its environment."""
    server = _server()
    assert server.stdin and server.stdout
    with tempfile.NamedTemporaryFile("r", encoding="utf-8") as output:
        asked = [module, arguments, str(folder), environment(folder) | dict(variables or {}), output.name]
        server.stdin.write(json.dumps(asked) + "\n")
        server.stdin.flush()
        code, text = server.stdout.readline(), output.read()
    assert code and (code != "0\n") == fails, f"{module} {' '.join(arguments)}\n{text}"
    return text


def printed(folder: Path, command: list[str], fails: bool = False) -> str:
    done = subprocess.run(command, cwd=folder, env=environment(folder), encoding="utf-8", capture_output=True)
    assert (done.returncode != 0) == fails, done.stdout + done.stderr
    return done.stdout + done.stderr
