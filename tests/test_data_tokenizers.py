"""Trained and published tokenizers."""

import json
import os
from pathlib import Path
from typing import cast

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast, Qwen2Config

from benchmarks.analysis.responses import TrainedModel
from benchmarks.data import (
    decode,
    load_records,
    load_tokenizer,
    make_tokenizer,
    open_corpus,
    open_test,
    prepare,
    vocabulary,
)
from benchmarks.data.records import DataError
from benchmarks.data.tokenizers import (
    END,
    PUBLISHED,
    TOKENIZER_VARIABLE,
    encode_questions,
    encode_texts,
    question_text,
    read_tokenizer,
    word_level,
)
from benchmarks.plan.lengths import lengths_of
from benchmarks.scoring import SCORERS, Reference, Score
from benchmarks.scoring.numeric import Number
from benchmarks.studies.specs import TokenizerSpec
from benchmarks.training.loop import train
from methods.errors import InputError
from small import small_study

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


@pytest.fixture
def beginning(trained: PreTrainedTokenizerFast, tmp_path: Path) -> Path:
    """Save a tokenizer that puts a token before every text, as LLaMA's does, and return its folder."""
    own = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(trained.backend_tokenizer.to_str()), eos_token=END, bos_token="<|begin|>"
    )
    own.backend_tokenizer.post_processor = TemplateProcessing(
        single="<|begin|> $A", special_tokens=[("<|begin|>", own.convert_tokens_to_ids("<|begin|>"))]
    )
    own.save_pretrained(tmp_path / "beginning")
    return tmp_path / "beginning"


class Asking(Number):
    """Notes the questions that it is told."""

    def __init__(self) -> None:
        self.seen: set[str] = set()

    def score(self, text: str, asked: Reference) -> Score:
        self.seen.add(asked.question)
        return super().score(text, asked)


def test_questions_begin_as_the_tokenizer_begins_texts(
    beginning: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, training = [{"id": "cot_sft", "method": "cot_sft"}], {"validation_questions": 8}
    study = small_study(rows, tokenizer={"pretrained": str(beginning)}, training=training)
    expected = lengths_of(study, study.blocks[0], tmp_path)
    folder = prepare(study, study.blocks[0], tmp_path)
    tokenizer = load_tokenizer(folder)
    begin = cast(int, tokenizer.bos_token_id)
    corpus, test = open_corpus(folder, "train"), open_test(folder, "embedded_in_domain")
    assert expected.basis != "the prepared data" and expected.tokens == pytest.approx(corpus.lengths.sum(), rel=0.01)
    for example in corpus.examples(np.arange(20)):
        assert list(example.question).count(begin) == 1 and example.question[0] == begin
        assert all(begin not in part for part in (*example.steps, example.answer))
    assert all(list(question).count(begin) == 1 and question[0] == begin for question in test.questions)
    assert question_text(tokenizer, test.questions[0]) == test.texts[0]
    spec = study.runs["equation/cot_sft/s0"]
    monkeypatch.setitem(SCORERS, "number", asking := Asking())
    train(spec, tmp_path)
    held_out = {record.question for record in load_records("embedded", "equation", "train")}
    assert asking.seen and asking.seen <= held_out
    assert TrainedModel.load(spec, tmp_path).tokenize(test.texts[0]) == test.questions[0]


def test_a_tokenizer_that_begins_texts_with_nothing_adds_nothing(trained: PreTrainedTokenizerFast) -> None:
    own = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(trained.backend_tokenizer.to_str()), eos_token=END, bos_token=END
    )
    words = vocabulary(own)
    assert encode_questions(own, ["7 ."]) == encode_texts(own, ["7 ."]) == [words.encode("7 .")]
    assert question_text(own, words.encode("7 .")) == "7 ." and decode(own, [words.eos, *words.encode("7")]) == ""


def test_beside_a_checkpoint_a_tokenizer_stays_what_its_file_says(
    trained: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    """For a Qwen2 checkpoint, transformers takes a class of tokenizer that splits numbers into digits."""
    own = Tokenizer(models.BPE())
    own.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    own.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, special_tokens=["<eos>"])
    own.train_from_iterator(["Zoe has 25 apples, 25 pears and 49 plums."] * 9, trainer)
    PreTrainedTokenizerFast(tokenizer_object=own, eos_token="<eos>").save_pretrained(tmp_path)
    Qwen2Config(vocab_size=400).save_pretrained(tmp_path)
    read = read_tokenizer(tmp_path, "main", "mend it")
    text = "Zoe has 25 apples,\n49 pears."
    assert read.encode(text, add_special_tokens=False) == own.encode(text, add_special_tokens=False).ids
    assert read.decode(read.encode(text, add_special_tokens=False)) == text and len(read) == own.get_vocab_size()


def test_training_repeats(trained: PreTrainedTokenizerFast):
    again = make_tokenizer(TokenizerSpec.model_validate({"trained": 500}), RECORDS)
    assert again.backend_tokenizer.to_str() == trained.backend_tokenizer.to_str()


def test_a_missing_folder_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(TOKENIZER_VARIABLE, "/nowhere")
    with pytest.raises(InputError, match=f"{TOKENIZER_VARIABLE} names /nowhere"):
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


def test_a_tokenizer_without_its_vocabulary_is_refused(
    trained: PreTrainedTokenizerFast, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Transformers makes one of special tokens from the settings alone."""
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps(
            {"tokenizer_class": "Qwen2Tokenizer", "eos_token": END, "additional_special_tokens": ["<|im_end|>"]}
        ),
        encoding="utf-8",
    )
    monkeypatch.setenv(TOKENIZER_VARIABLE, str(tmp_path))
    with pytest.raises(
        DataError, match=r"special tokens only, .* \(tokenizer\.json, or vocab.* from Qwen/Qwen2\.5-0\.5B"
    ):
        make_tokenizer(TokenizerSpec(pretrained="qwen2.5"), [])
    with pytest.raises(DataError, match=r"special tokens only, .*name a folder with all of its files"):
        make_tokenizer(TokenizerSpec(pretrained=str(tmp_path)), [])
    trained.save_pretrained(tmp_path)
    with pytest.raises(
        DataError, match=rf"has {len(trained)} tokens, and the published one 151,665: set {TOKENIZER_VARIABLE}"
    ):
        make_tokenizer(TokenizerSpec(pretrained="qwen2.5"), [])


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
