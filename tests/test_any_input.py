"""Whatever bytes a file has, its reader gives rows or an InputError that names the file; and so do arguments, variables
of the environment and paths."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchmarks.cli import require_text
from benchmarks.data.cards import File
from benchmarks.data.records import DataError
from benchmarks.data.sets import gsm8k, multiarith, svamp
from benchmarks.data.sources import AGAIN, DATA_VARIABLE, DataSet, csv_rows, icot_lines
from benchmarks.data.tokenizers import read_tokenizer
from benchmarks.files import MissingKey, parse_json, read_json, read_text
from benchmarks.records.schema import parsed
from benchmarks.studies.study import load_study, parse_study
from benchmarks.studies.validation_errors import parse_yaml, study_content
from commands import invoke
from methods.errors import InputError
from test_messages import STUDY

quick = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


def odd(*texts: str) -> st.SearchStrategy[bytes]:
    """Return bytes: any, or pieces of what files of a kind have, in any order."""
    pieces = st.sampled_from([text.encode() for text in texts]) | st.binary(max_size=3)
    pieces |= st.sampled_from([b"\n", b"\r\n", b'"', b"\\ud83d", b"\xef\xbb\xbf", b"\0", b"NaN", b"1e999", b"9" * 5000])
    return st.binary(max_size=40) | st.lists(pieces, max_size=12).map(b"".join)


JSON = ("{", "}", "[", "]", ",", ":", '"question"', '"answer"', '"Body"', '"lSolutions"', "null", "true", "5", "-0.0")
READERS = {
    "json_lines": (gsm8k.GSM8K, gsm8k.gsm8k, '{"question": "x", "answer": "y #### 2"}', JSON),
    "json_array": (multiarith.MULTIARITH, multiarith.multiarith, '[{"sQuestion": "x", "lSolutions": [2]}]', JSON),
    "svamp": (svamp.SVAMP, svamp.svamp, '[{"ID": "chal-1", "Body": "x", "Question": "y", "Answer": 2}]', JSON),
    "csv_rows": (svamp.SVAMP_4138, svamp.svamp_masked, "Question,Numbers,Answer\n", ("number0", ",", "number99", "'")),
    "aug_lines": (gsm8k.GSM8K_AUG, gsm8k.gsm8k_aug, "x||<<1+1=2>> #### 2\n", ("||", "####", "<<1=1>>", "2/5", "x")),
}
PARSERS = {
    "json_lines": gsm8k.json_lines,
    "json_array": multiarith.json_array,
    "svamp": svamp.json_array,
    "csv_rows": svamp.csv_rows,
    "aug_lines": icot_lines,
}


@pytest.mark.parametrize("kind", READERS)
def test_any_bytes_are_rows_or_are_refused(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    card, convert, good, pieces = READERS[kind]
    file, path = File.of("rows", None), tmp_path / "rows"
    update = {"files": {"test": (file,)}, "counts": {"test": 1}, "records": {"test": None}, "ragged": True}
    dataset = DataSet(card.model_copy(update=update), PARSERS[kind], convert)
    monkeypatch.setenv(DATA_VARIABLE, str(tmp_path))

    @quick
    @given(odd(good, good[: len(good) // 2], *pieces))
    def check(content: bytes) -> None:
        path.write_bytes(content)
        try:
            rows = dataset.rows("test")
        except InputError as error:
            assert str(tmp_path) in str(error)
        else:
            assert rows and all(isinstance(row.question, str) for row in rows)

    check()


YAML = (
    "a: ",
    "- ",
    "&a ",
    "*a",
    "<<: ",
    "{",
    "}",
    "[",
    "]",
    "? ",
    "!!set ",
    "!!binary ",
    "2024-13-01",
    "~",
    "'",
    "|",
    "#",
)


def test_any_bytes_are_a_study_or_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "study.yaml"

    @quick
    @given(odd(STUDY, "seeds: ", "title: ", "rows: ", "training: ", "engine: ", *YAML), st.booleans())
    def check(content: bytes, behind: bool) -> None:
        path.write_bytes(STUDY.encode() + content if behind else content)
        with suppress(InputError):
            parse_study(study_content(path), str(path))

    check()


KEYS = [*STUDY.split(), "seeds", "options", "training", "engine", "shares", "beside", "timing", "figures"]
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3) | st.sampled_from(KEYS),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=2), inner),
    max_leaves=6,
)


@quick
@given(st.sampled_from(["name", "blocks", "rows", "training", "evaluation", "tokenizer", "backbone", "seeds"]), VALUES)
def test_any_value_of_a_key_is_a_study_or_is_refused(key: str, value: Any) -> None:
    with suppress(InputError):
        parse_study(yaml.safe_load(STUDY) | {key: value}, "study.yaml")


@pytest.mark.parametrize("read", [read_json, lambda path: parsed(path, "train"), lambda path: parsed(path, "evaluate")])
def test_any_bytes_are_a_record_or_are_refused(read: Callable[[Path], Any], tmp_path: Path) -> None:
    path = tmp_path / "record.json"

    @quick
    @given(odd('"digest"', '"environment"', '{"digest": "x"}', *JSON))
    def check(content: bytes) -> None:
        path.write_bytes(content)
        try:
            read(path)
        except InputError as error:
            assert str(path) in str(error)

    check()


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
def test_any_bytes_are_a_tokenizer_or_are_refused(name: str, tmp_path: Path) -> None:
    @settings(quick, max_examples=25)
    @given(
        odd('{"tokenizer_class": "Qwen2Tokenizer"}', '"model"', '{"version": "1.0", "model": {"type": "BPE"}}', *JSON)
    )
    def check(content: bytes) -> None:
        (tmp_path / name).write_bytes(content)
        with pytest.raises(InputError, match=str(tmp_path)):
            read_tokenizer(tmp_path, "main", "copy it again")

    check()


# ---- single cases


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"5", "must be a JSON object, not 5"),
        (b"null", "must be a JSON object, not null"),
        (b'{"a":\n\n"Ann \\ud83d has 3?"}', r"line 3: broken JSON \(unexpected end of hex escape\)"),
        (b'{"a":\n' + b"1" * 5000 + b"}", r"line 2: broken JSON \(number out of range\)"),
        (b'{"a": NaN}', r"line 1: broken JSON \(expected value\)"),
        (b'{"a": 1e999}', "a number is too large to compute with"),
        (b"[" * 100_000, "nested too deeply"),
        (b"[" * 500 + b"]" * 500, "nested too deeply"),
        (b'{"a":\n"\xe9"}', r"line 2: not UTF-8 \(byte 0xe9\)"),
    ],
)
def test_a_record_says_where_it_is_broken(content: bytes, said: str, tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    path.write_bytes(content)
    with pytest.raises(InputError, match=rf"{path}.*{said}.*delete it and run again"):
        read_json(path)


def test_a_byte_order_mark_and_blank_lines_are_no_content(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes('\ufeff{"a": 1}\n\n  \r\n{"a": "😀\u2028"}\r\n\n'.encode())
    rows = list(gsm8k.json_lines(read_text(path, "mend it"), path))
    assert rows == [(f"{path}, line 1", {"a": 1}), (f"{path}, line 4", {"a": "😀\u2028"})]
    path.write_bytes(b'{"a": 1}\n5\n')
    with pytest.raises(InputError, match="line 2: must be a JSON object, not 5"):
        list(gsm8k.json_lines(read_text(path, "mend it"), path))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a,b\n1," + "x" * 140_000, r"line 2: broken CSV \(field larger than field limit"),
        ("a,b\n1,\0", "line 2: a NUL byte"),
        ("a,b\n1\n", "line 2: not as many fields as the 2 columns"),
        ("a,b\n1,2,3\n", "line 2: not as many fields as the 2 columns"),
        ("a,a\n1,2\n", "line 1: column 'a' is there twice"),
        ('a,b\n1,"x\n', r"line 2: broken CSV \(unexpected end of data\)"),
    ],
)
def test_a_table_says_where_it_is_broken(text: str, said: str) -> None:
    with pytest.raises(DataError, match=rf"x\.csv, {said}.*; {AGAIN}"):
        list(csv_rows(text, Path("x.csv")))


def test_a_missing_key_names_the_record(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    path.write_text('{"a": [{"b": 1}]}', encoding="utf-8")
    content = read_json(path)
    assert json.dumps(content) == '{"a": [{"b": 1}]}'
    with pytest.raises(MissingKey, match=rf"^{path} has no 'c': it is damaged"):
        content["a"][0]["c"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("1: a", "key 1 is no text: put quotes around it"),
        ("a: 1\nb: 2\na: 3", "key 'a' is there twice"),
        ("a: &a [*a]", "an anchor stands for itself"),
        ("a: &a {b: {c: *a}}", "an anchor stands for itself"),
        ("a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 40)), "100,000 values"),
        ("a: !!int b", "invalid literal"),
        ("a: !!timestamp b", "not valid YAML"),
        ("a:\n\t- b", "line 2"),
        ("[" * 9999, "nested too deeply"),
    ],
)
def test_yaml_that_is_no_study_is_refused(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "study.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=rf"(?s){path}.*{said}"):
        study_content(path)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("seeds: [010]", "seeds, entry 1: must be a whole number, not '010'"),
        ("threads: 1:30", "threads: must be a whole number, not '1:30'"),
        ("kernels: yes", "kernels: must be 'native' or 'portable', not 'yes'"),
        (r'title: "\ud83d"', "surrogates not allowed"),
    ],
)
def test_values_of_another_kind_than_they_look_are_named(line: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "study.yaml"
    path.write_text(re.sub(rf"(?m)^{line.partition(':')[0]}:.*\n", "", STUDY) + line + "\n", encoding="utf-8")
    with pytest.raises(InputError, match=said):
        load_study(str(path))


def test_plain_values_are_those_of_yaml_1_2() -> None:
    assert parse_yaml("[yes, 2024-01-01, 1:30, 010, 1_000]") == ["yes", "2024-01-01", "1:30", "010", "1_000"]
    assert parse_yaml("[1e-3, -1.5, .5, 0, true, null, ~]") == [1e-3, -1.5, 0.5, 0, True, None, None]


def test_a_study_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "study.yaml"
    path.write_text("\ufeff" + STUDY, encoding="utf-8")
    assert load_study(str(path)).name == "minimal"
    path.write_bytes(STUDY.replace("Minimal", "Caf\xe9").encode("latin-1"))
    with pytest.raises(InputError, match=r"study\.yaml, line 3: not UTF-8"):
        load_study(str(path))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("reference", "`name: reference` is taken"),
        ("mlflow.db-wal", "is taken"),
        ("a" * 300, "String should have at most 100 characters"),
        ("a/b", "String should match pattern"),
    ],
)
def test_names_that_no_study_can_have(name: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "study.yaml"
    path.write_text(STUDY.replace("name: minimal", f"name: {json.dumps(name)}"), encoding="utf-8")
    with pytest.raises(InputError, match=said):
        load_study(str(path))


def test_paths_of_other_things_are_named(tmp_path: Path) -> None:
    paths = {kind: tmp_path / f"{kind}.yaml" for kind in ("folder", "link", "circle", "nothing")}
    paths["folder"].mkdir()
    paths["link"].symlink_to("nowhere")
    paths["circle"].symlink_to(paths["circle"].name)
    paths |= {"long": tmp_path / ("a" * 300 + ".yaml"), "below": Path(__file__) / "x.yaml", "device": Path("/dev/null")}
    for kind, path in paths.items():
        for read in (lambda path: read_text(path, "name another"), read_json, lambda path: load_study(f"{path}")):
            with pytest.raises(InputError) as refused:
                read(path)
            assert path.name.removesuffix(".yaml")[:50] in str(refused.value), kind


def test_arguments_and_variables_are_utf8() -> None:
    cafe = os.fsdecode(b"caf\xe9")
    with pytest.raises(InputError, match=r"argument 2, 'caf.*', has bytes that are not UTF-8"):
        require_text(["explain", cafe, "--text"], {})
    with pytest.raises(InputError, match=r"MARCOS_BENCH_DATA, '/caf.*', has bytes that are not UTF-8"):
        require_text([], {DATA_VARIABLE: f"/{cafe}", "OTHER": cafe})
    require_text(["explain", "model", "café"], {"OTHER": cafe})
    done = invoke("explain", cafe, "--text", code=2)
    assert "argument 2" in done.stderr and "Traceback" not in done.stderr


def test_a_path_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for results in (tmp_path / "file", Path("/dev/null"), tmp_path / ("a" * 300)):
        done = invoke("data", "smoke", "--results", results, code=2)
        assert f"error: {results}"[:60] in done.stderr and "Traceback" not in done.stderr


@quick
@given(odd(*JSON))
def test_what_is_read_can_be_written_again(content: bytes) -> None:
    with suppress(InputError, UnicodeDecodeError):
        again = json.dumps(parse_json(content.decode(), "x", "mend it"), ensure_ascii=False, allow_nan=False)
        assert again.encode()
