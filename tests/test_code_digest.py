"""Digests of source: the same on every Python, in every locale and checkout, and other ones for other code."""

from __future__ import annotations

import codecs
import hashlib
from pathlib import Path

import pytest

from methods.code_digest import code_substance, source_digest

# Digests that Python 3.11, 3.12 and 3.13 agree on
RECORDED = {
    "f_strings": (
        """x = f'{a["k"]} of {b!r:>{w}.{p}}' f"and {c=} {d = :.2f}{{}}" ''' {e:%H:%M}''' 'plain'\n""",
        "5d957f03c4168288",
    ),
    "empty format": ("x = f'{a:}' f''\ny = f''\n", "fe15b819786992bd"),
    "escapes in f_strings": ("x = f'\\n{a}\\t{b:\\x3e10}\\N{BULLET}' rf'\\d{c}'\n", "b3a89cba6ae947d8"),
    "walrus and lambda": ("if (n := len(a)) > 1: f = lambda x, /, *y, z=n, **k: (x, *y, z, k)\n", "98419c9ba97d4ac2"),
    "match": (
        "match a:\n    case None | True: pass\n    case {'k': [x, *_], **rest} if x: y\n"
        "    case P(1, q=-2j): z\n    case _: w\n",
        "1cb891948e34190f",
    ),
    "decorators and hints": (
        "@d(1)\nclass A(B, m=C):\n    x: int = 0\n    y: 'list[int] | None'\n"
        "    def f(self, a: int, *b: str) -> None: ...\n",
        "1723f9f8e864c418",
    ),
    "async": (
        "async def f():\n    async with a as b, c: await d\n    async for x in y: yield [z async for z in x]\n",
        "38d04bfa1ccbd3c0",
    ),
    "stars": ("a, *b = *c, d\nf(*b, **k)\nx[*b]\ng = {**k, 'l': 1}\ndef h(*a: *T): ...\n", "7c6e99c3a5c67dce"),
    "except groups": ("try: a\nexcept* (B, C) as d: raise E from d\nelse: f\nfinally: g\n", "67b0126978e2a6a3"),
    "bytes and numbers": (
        "a = b'\\xff\\0' b'x', 1_000, 0xff, .5, 1e999, 1e999j, 2j, 0x" + "f" * 5000 + "\n",
        "3635d23362ac69e1",
    ),
    "unicode": ("\u03c4 = 'caf\u00e9 \U0001f600 \\ud800'; \ufb01 = u'x'\n", "a4c64129ad8718a7"),
}


def digest(source: str | bytes) -> str:
    source = source if isinstance(source, bytes) else source.encode("utf-8")
    return hashlib.sha256(code_substance(source)).hexdigest()[:16]


@pytest.mark.parametrize("case", RECORDED)
def test_digests_are_those_that_all_pythons_agree_on(case: str) -> None:
    source, recorded = RECORDED[case]
    assert digest(source) == recorded


SOURCE = '''"""Doc."""

class A:
    """Doc of A."""

    title = "Tau"
    text = """two
    lines"""
    tau: float = f(1, description="words")
'''


@pytest.mark.parametrize(
    "same",
    [
        SOURCE.replace("\n", "\r\n").encode(),
        SOURCE.replace("\n", "\r").encode(),
        codecs.BOM_UTF8 + SOURCE.encode(),
        ("# \u03c4, and a comment\n" + SOURCE).encode(),
        ("# coding: latin-1\n" + SOURCE).encode(),
        SOURCE.replace('"""Doc."""', "'''Other words,\n\u03c4.'''").encode(),
        SOURCE.replace('"""Doc."""\n', "pass\n").replace('    """Doc of A."""\n', "").encode(),
        SOURCE.replace('"Tau"', "'A better title'").encode(),
        SOURCE.replace('description="words"', 'description="other" "words"').encode(),
        SOURCE.replace("    tau", "    pass\n    tau").encode(),
        SOURCE.rstrip("\n").encode(),
    ],
)
def test_what_changes_nothing_changes_no_digest(same: bytes) -> None:
    assert digest(same) == digest(SOURCE)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("return_ = 1", "return_ = True"),
        ("x = 1", "x = 1.0"),
        ("x = '1'", "x = 1"),
        ("x = 0.1", "x = 0.10000000000000002"),
        ("def f(*, a, b=1): ...", "def f(*, a=1, b): ..."),
        ("x = {**a, b: c}", "x = {b: c, **a}"),
        ("x = f'{a!r}'", "x = f'{a!s}'"),
        ("x = f'{a:b}'", "x = f'{a}b'"),
        ("x = f'{a} {b}'", "x = f'{a}{b} '"),
        ("if a:\n    b\n    c", "if a:\n    b\nc"),
        ("if a: b\nelse: c", "if a: c\nelse: b"),
        ("def f(): 'doc'; return 1", "def f(): return 1; 'doc'\ng"),
        ("f(x, describe='a')", "f(x, describe='b')"),
        ("title = 'a'", "title = 'b'"),  # outside a class
        ("from . import a", "from .. import a"),
        ("async def f(): ...", "def f(): ..."),
        ("x = 'caf\u00e9'", "x = 'cafe\u0301'"),
    ],
)
def test_other_code_has_another_digest(one: str, other: str) -> None:
    assert digest(one) != digest(other)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_data_beside_code_count_whatever_their_line_ends(site: Path) -> None:
    (site / "alone_a.py").write_bytes(b"x = 1\n")
    (site / "alone_b.py").write_bytes(b"x = 1\r\n")
    (site / "alone_a.py.orig").write_bytes(b"x = 2\n")  # of an editor
    assert source_digest("alone_a") == source_digest("alone_b"), "the name of a module alone changes nothing"
    for name in ("pack_a", "pack_b"):
        (site / name / "inner").mkdir(parents=True)
        (site / name / "__init__.py").write_bytes(b"")
        (site / name / "inner/part.py").write_bytes(b"y = 1\n")
    (site / "pack_a/data.yaml").write_bytes(b"k: \xcf\x84\nl: 1\n")
    (site / "pack_b/data.yaml").write_bytes(codecs.BOM_UTF8 + b"k: \xcf\x84\r\nl: 1\r\n")
    (site / "pack_b/.cache").mkdir()
    (site / "pack_b/.cache/part.py").write_bytes(b"y = 2\n")
    assert source_digest("pack_a") == source_digest("pack_b")
    (site / "pack_b/inner/part.py").rename(site / "pack_b/part.py")
    assert source_digest("pack_a") != source_digest("pack_b"), "modules of a package find each other by their names"
