"""Trained and published tokenizers."""

import os
from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerFast

from benchmarks.data import decode, load_records, make_tokenizer, vocabulary
from benchmarks.data.records import DataError
from benchmarks.data.tokenizers import PUBLISHED, TOKENIZER_VARIABLE, word_level
from benchmarks.studies.specs import TokenizerSpec

RECORDS = load_records("embedded_in_domain", "equation", "test")


@pytest.fixture(scope="module")
def trained() -> PreTrainedTokenizerFast:
    return make_tokenizer(TokenizerSpec.model_validate({"trained": 500}), RECORDS)


def test_digits_are_single_tokens_and_text_comes_back(trained: PreTrainedTokenizerFast):
    words = vocabulary(trained)
    text = "Tom has 12 apples.\n<<12+305=317>> Größe ✓"
    ids = words.encode(text)
    assert [trained.decode([i]) for i in words.encode("317")] == ["3", "1", "7"]
    assert decode(trained, ids) == text
    assert words.eos not in ids
    assert max(ids) < words.size == len(trained)
    assert len(words.newline) == 1


def test_decoding_stops_at_the_first_end(trained: PreTrainedTokenizerFast):
    words = vocabulary(trained)
    assert decode(trained, [*words.encode("7 ."), words.eos, *words.encode("8"), words.eos]) == "7 ."


def test_training_repeats(trained: PreTrainedTokenizerFast):
    again = make_tokenizer(TokenizerSpec.model_validate({"trained": 500}), RECORDS)
    assert again.backend_tokenizer.to_str() == trained.backend_tokenizer.to_str()


def test_a_missing_folder_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(TOKENIZER_VARIABLE, "/nowhere")
    with pytest.raises(DataError, match=f"{TOKENIZER_VARIABLE} names /nowhere"):
        make_tokenizer(TokenizerSpec.model_validate({"pretrained": "qwen2.5"}), [])


def test_a_folder_without_a_tokenizer_is_named(tmp_path: Path):
    with pytest.raises(DataError, match="no tokenizer can be read from"):
        make_tokenizer(TokenizerSpec.model_validate({"pretrained": str(tmp_path)}), [])


def test_a_tokenizer_of_the_hub_is_read_at_its_pinned_revision(
    trained: PreTrainedTokenizerFast, monkeypatch: pytest.MonkeyPatch
):
    asked = []

    def load(place: str, revision: str) -> PreTrainedTokenizerFast:
        asked.append((place, revision))
        return trained

    monkeypatch.setattr("transformers.AutoTokenizer.from_pretrained", load)
    for revision in ("607a30d", None):
        make_tokenizer(TokenizerSpec(pretrained="openai-community/gpt2", revision=revision), [])
    assert asked == [("openai-community/gpt2", "607a30d"), ("openai-community/gpt2", "main")]


def test_a_tokenizer_that_is_pinned_already_takes_no_other_revision():
    with pytest.raises(DataError, match=r"qwen2\.5 is pinned to 060db64.* of Qwen/Qwen2\.5-0\.5B: leave out its `rev"):
        make_tokenizer(TokenizerSpec(pretrained="qwen2.5", revision="main"), [])


@pytest.mark.skipif(TOKENIZER_VARIABLE not in os.environ, reason=f"{TOKENIZER_VARIABLE} names no folder")
def test_qwen():
    tokenizer = make_tokenizer(TokenizerSpec.model_validate({"pretrained": "qwen2.5"}), [])
    words = vocabulary(tokenizer)
    assert words.eos == 151_643
    assert words.size == PUBLISHED["qwen2.5"].size
    assert decode(tokenizer, words.encode("<<48/2=24>> a .")) == "<<48/2=24>> a ."
    assert len(words.encode("2048")) == 4


def test_words_are_single_tokens_and_text_comes_back():
    records = load_records("rp_n2_k3", "lines", "test")
    tokenizer = make_tokenizer(TokenizerSpec(trained="words"), records)
    words = vocabulary(tokenizer)
    assert len(words.encode("12 -1 7 15")) == 4
    assert len(words.newline) == len(words.answer_marker) == 1
    for record in records[:50]:
        text = "\n".join([record.question, *record.steps, f"#### {record.answer}"])
        assert [line.strip() for line in decode(tokenizer, words.encode(text)).split("\n")] == text.split("\n")
    assert tokenizer.encode("12345 x") == [tokenizer.unk_token_id] * 2
    with pytest.raises(DataError, match=r"no tokens for ' \(Thinking speed: 5\)', which the method uses"):
        words.encode(" (Thinking speed: 5)")  # all speeds would be read as the same
    again = make_tokenizer(TokenizerSpec(trained="words"), records)
    assert again.backend_tokenizer.to_str() == tokenizer.backend_tokenizer.to_str()


def test_every_word_has_a_token():
    """The library's default keeps the most frequent 30,000."""
    numbers = [str(number) for number in range(31_000)]
    tokenizer = word_level(iter(numbers))
    assert tokenizer.unk_token_id not in tokenizer.encode(" ".join(numbers))
