"""The registry finds the methods of this package and of other installed packages."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.scaffold import new_method
from methods.base import Method
from methods.code_digest import builds_on, source_files
from methods.errors import InputError
from methods.registry import available, code_digest, get_method, left_out
from plugins import install


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return a folder of installed packages. The registry is rebuilt before and after the test."""
    monkeypatch.syspath_prepend(tmp_path)
    available.cache_clear()
    yield tmp_path
    available.cache_clear()


def test_a_method_of_another_package_is_found(site: Path) -> None:
    new_method("outsider", site)
    install(site, "outsider", "Outsider")
    available.cache_clear()
    cls = get_method("outsider")
    assert (cls.__module__, cls.__name__, cls.title) == ("outsider", "Outsider", "Outsider")
    before = code_digest("outsider")
    path = site / "outsider.py"
    text = (
        path.read_text(encoding="utf-8")
        .replace('"""My method', '"""Our method')
        .replace("title={Think", "title={Do think")
        .replace("pause tokens between", "tokens between")
    )
    path.write_text(text.replace('title = "Outsider"', 'title = "One from outside"') + "# edited\n", encoding="utf-8")
    assert code_digest("outsider") == before  # an edit of its words starts no run again
    path.write_text(path.read_text(encoding="utf-8") + "EDITED = True\n", encoding="utf-8")
    assert code_digest("outsider") != before  # an edit of its code does


def test_a_method_is_made_of_all_modules_of_its_own_package(site: Path) -> None:
    """However it imports them."""
    (site / "plug/inner").mkdir(parents=True)
    for name, text in {
        "__init__": "",
        "method": "from . import near\nfrom .inner.deep import b\nfrom methods.cot_sft import target\nimport os\n",
        "near": "import plug.absolute\n",
        "absolute": "",
        "unused": "",
        "inner/__init__": "",
        "inner/deep": "def late():\n    from ..far import c\n",
        "far": "",
    }.items():
        (site / f"plug/{name}.py").write_text(text, encoding="utf-8")
    found = builds_on("plug.method")
    own = {f"plug.{name}" for name in ("method", "near", "absolute", "inner.deep", "far")}
    assert {name for name in found if name.startswith("plug")} == own
    assert "methods.cot_sft" in found and "os" not in found


def test_a_method_is_made_of_modules_beside_it_and_of_its_base_classes(site: Path, tmp_path: Path) -> None:
    """Modules beside it are found in a folder that is being worked on, and in the distribution that installs them."""
    path = new_method("beside_one", site)
    text = path.read_text(encoding="utf-8").replace("class BesideOne(Method):", "class BesideOne(Elsewhere):")
    imports = "import helper_of_one\nfrom base_elsewhere import Elsewhere\nfrom methods.base import"
    path.write_text(text.replace("from methods.base import", imports), encoding="utf-8")
    other = tmp_path / "other"
    other.mkdir()
    sys.path.insert(0, str(other))  # `site` restores it
    (other / "base_elsewhere.py").write_text(
        "import helper_elsewhere\nfrom methods.base import Method\n\n\nclass Elsewhere(Method): ...\n", encoding="utf-8"
    )
    helpers = site / "helper_of_one.py", other / "helper_elsewhere.py"
    for helper in helpers:
        helper.write_text("", encoding="utf-8")
    install(site, "beside_one", "BesideOne")
    available.cache_clear()
    for helper in helpers:
        before = code_digest("beside_one")
        helper.write_text("EDITED = True\n", encoding="utf-8")
        assert code_digest("beside_one") != before


@pytest.mark.parametrize(
    ("text", "why"), [("def (", "SyntaxError: invalid syntax"), ("raise SystemExit('no foo')", "SystemExit: no foo")]
)
def test_a_method_that_cannot_be_imported_keeps_no_other_from_being_used(
    text: str, why: str, site: Path, caplog: pytest.LogCaptureFixture
) -> None:
    new_method("unfinished", site)
    install(site, "unfinished", "Unfinished")
    (site / "unfinished.py").write_text(text, encoding="utf-8")
    available.cache_clear()
    assert get_method("cot_sft").title == "CoT-SFT"
    assert f"unfinished:Unfinished is left out: it cannot be imported ({why}" in caplog.text
    with pytest.raises(
        InputError, match=r"no method is named 'unfinished'.*:Unfinished is left out: it cannot be imported"
    ):
        get_method("unfinished")


@pytest.mark.parametrize(
    ("line", "becomes", "lacks"),
    [
        ("    def generate(self", "    def generates(self", "it lacks generate"),
        ('    name = "unfinished"', '    named = "unfinished"', "it lacks `name`"),
        ('    title = "Unfinished"', '    titled = "Unfinished"', "it lacks `title`"),
        ("    citation = ", "    cited = ", "it lacks `citation`"),
        (
            '    title = "Unfinished"',
            '    title = ("Unfinished",)',
            r"its `title` is \('Unfinished',\), which is no text",
        ),
        ("Field(default=4, ", "Field(", r"it lacks a valid default of each option .* pauses Field required"),
        (
            "Field(default=4, ",
            "Field(default=-4, ",
            r"it lacks a valid default of each option .* pauses Input should be",
        ),
        (
            "pauses: int = Field(default=4, ",
            'pauses: float = Field(default=float("inf"), ',
            r"it lacks a valid default of each option .* pauses Input should be a finite number",
        ),
        (
            "pauses: int = Field(default=4, ge=0, ",
            'pauses: frozenset[str] = Field(default=frozenset({"a", "b"}), ',
            r"it lacks options of types that JSON has, or tuples \(pauses is a frozenset\)",
        ),
    ],
)
def test_a_method_that_lacks_something_is_named(
    line: str,
    becomes: str,
    lacks: str,
    site: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = new_method("unfinished", site)
    install(site, "unfinished", "Unfinished")
    monkeypatch.delitem(sys.modules, "unfinished", raising=False)
    assert line in path.read_text(encoding="utf-8")
    path.write_text(path.read_text(encoding="utf-8").replace(line, becomes), encoding="utf-8")
    available.cache_clear()
    with pytest.raises(InputError, match=f"no method is named 'unfinished'.*unfinished.Unfinished is left .*{lacks}"):
        get_method("unfinished")
    assert re.search(f"unfinished.Unfinished is left out: {lacks}", caplog.text)
    assert Method.__name__ not in available() and "methods.base" not in caplog.text


def test_an_entry_point_that_is_no_method_is_named(site: Path) -> None:
    install(site, "stray", "Stray")
    (site / "stray.py").write_text("def Stray(): ...\n", encoding="utf-8")
    available.cache_clear()
    with pytest.raises(InputError, match="stray:Stray is left out: it is no subclass of"):
        get_method("stray")


def test_classes_that_methods_are_derived_from_are_no_methods(site: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = new_method("family", site)
    install(site, "family", "Family")
    base = "class Base(Method):\n    pass\n\n\nclass Family(Base):"
    path.write_text(path.read_text(encoding="utf-8").replace("class Family(Method):", base), encoding="utf-8")
    available.cache_clear()
    assert get_method("family").__mro__[1].__name__ == "Base" and not caplog.messages


@pytest.mark.parametrize("name", available())
def test_a_method_builds_on_all_that_it_decodes_with(name: str) -> None:
    assert builds_on(get_method(name).__module__) >= {
        f"methods.{part}" for part in ("base", "backbone", "decoding", "generation", "kv_cache", "_static_cache")
    }


def test_a_module_comes_with_its_data_and_a_package_with_all_its_modules() -> None:
    assert [path.name for path in source_files("benchmarks.paper.numbers")] == ["numbers.py", "numbers.yaml"]
    assert {"losses.py", "method.py"} < {path.name for path in source_files("methods.marcos")}
    assert "synthetic.py" in {path.name for path in source_files("benchmarks.data")}  # as part of the package
    assert "claims.yaml" in {path.name for path in source_files("benchmarks.tables")}
    for missing in ("nowhere.at_all", "benchmarks.nowhere"):  # an outdated name in a list of modules raises an error
        with pytest.raises(ModuleNotFoundError, match=f"no module is named '{missing}'"):
            source_files(missing)


def test_of_two_methods_of_one_name_that_in_the_module_of_the_name_is_used(site: Path) -> None:
    new_method("rival", site)
    path = site / "rival.py"
    path.write_text(path.read_text(encoding="utf-8").replace('name = "rival"', 'name = "codi"'), encoding="utf-8")
    install(site, "rival", "Rival")
    available.cache_clear()
    assert get_method("codi").title == "CODI"
    assert left_out() == {"rival.Rival": "methods.codi.CODI is named 'codi' too: rename one of them"}


def test_two_methods_of_one_name_are_left_out_and_keep_no_other_from_being_used(site: Path) -> None:
    for name in ("castor", "pollux"):
        path = new_method(name, site)
        path.write_text(path.read_text(encoding="utf-8").replace(f'name = "{name}"', 'name = "twin"'), encoding="utf-8")
        install(site, name, name.capitalize())
    available.cache_clear()
    assert get_method("cot_sft").title == "CoT-SFT"
    with pytest.raises(InputError) as refused:
        get_method("twin")
    for one, other in (("castor.Castor", "pollux.Pollux"), ("pollux.Pollux", "castor.Castor")):
        assert f"{one} is left out: {other} is named 'twin' too: rename one of them" in str(refused.value)
