"""Tokenizers: trained on a block's training split, or published ones."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from benchmarks.data.records import DataError, Record
from benchmarks.files import folder_from_environment, parse_json, read_text, shortened
from benchmarks.studies.specs import TokenizerSpec
from methods.base import ANSWER_MARKER, Vocabulary

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

TOKENIZER_VARIABLE = "MARCOS_BENCH_TOKENIZER"  # environment variable: a folder with the files of Qwen2.5's tokenizer
END, UNKNOWN = "<|endoftext|>", "<|unknown|>"
PROBE = "Zoë doesn't have 1,250 apples:\n\n<<3*4=12>>\t12.5 %  €3 #### 49"  # what tokenizers split in different ways


@dataclass(frozen=True)
class Published:
    """Where to find a tokenizer that studies know by name, and how many tokens it has.

    ``folder``: the environment variable that names a folder with its files. ``end``: its end-of-text token, if the
    tokenizer itself names another one.
    """

    hub: str
    revision: str
    size: int
    folder: str | None = None
    end: str | None = None


PUBLISHED = {
    "qwen2.5": Published(
        "Qwen/Qwen2.5-0.5B", "060db6499f32faf8b98477b0a26969ef7d8b9987", 151_665, TOKENIZER_VARIABLE, END
    ),
    "llama-3.2": Published("meta-llama/Llama-3.2-1B-Instruct", "9213176726f574b556790deb65791e0c5aa438b6", 128_256),
    "gpt2": Published("openai-community/gpt2", "607a30d783dfa663caf39e06633721c8d4cfcd7e", 50_257),
}


def make_tokenizer(spec: TokenizerSpec, records: Sequence[Record]) -> PreTrainedTokenizerFast:
    """Return the tokenizer that a study names. If it is a trained one, it learns from ``records``."""
    if spec.trained == "words":
        return word_level(texts(records))
    if spec.trained:
        return train_bpe(texts(records), spec.trained)
    return published(cast(str, spec.pretrained), spec.revision)


def texts(records: Iterable[Record]) -> Iterator[str]:
    """Yield one text per record, with everything that a model reads or writes."""
    for record in records:
        yield "\n".join([record.question, *record.steps, f"{ANSWER_MARKER} {record.answer}", ""])


def train_bpe(corpus: Iterable[str], size: int) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE tokenizer in which every digit is one token. Small corpora may not fill ``size``."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=[END], initial_alphabet=sorted(alphabet), show_progress=False
    )
    tokenizer.train_from_iterator(corpus, trainer)
    return _wrapped(tokenizer)


def word_level(corpus: Iterable[str]) -> PreTrainedTokenizerFast:
    """Build a tokenizer with one token for each word between blanks, and one for the newline.
    Unknown words share one token."""
    tokenizer = Tokenizer(models.WordLevel(unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split("\n", "isolated"), pre_tokenizers.Split(" ", "removed")]
    )
    every = sys.maxsize  # by default, the most frequent 30,000 words
    trainer = trainers.WordLevelTrainer(vocab_size=every, special_tokens=[END, UNKNOWN], show_progress=False)
    tokenizer.train_from_iterator(corpus, trainer)
    return _wrapped(tokenizer, unk_token=UNKNOWN)


def _wrapped(tokenizer: Tokenizer, **settings: str) -> PreTrainedTokenizerFast:
    from transformers import PreTrainedTokenizerFast  # slow to import, and not needed to render tables

    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=END, pad_token=END, clean_up_tokenization_spaces=False, **settings
    )


def published(name: str, revision: str | None = None) -> PreTrainedTokenizerFast:
    """Load a tokenizer by name, folder or hub id. ``revision`` pins that of a hub id. Raise :class:`DataError` if there
    is none, or if it is pinned already."""
    if revision and name in PUBLISHED:
        raise DataError(
            f"the tokenizer {name} is pinned to {PUBLISHED[name].revision} of {PUBLISHED[name].hub}: leave out its "
            "`revision`, or name the hub id as `pretrained`"
        )
    known = PUBLISHED.get(name)
    place, wanted = (known.hub, known.revision) if known else (name, revision or "main")
    fix = "log in to the hub, or name a folder with all of its files"
    if known and known.folder:
        fix = f"set {known.folder} to a folder with all of its files, from {known.hub} on the hub"
        if folder := folder_from_environment(known.folder, f"{name}'s files"):
            place, wanted = str(folder), "main"
    tokenizer = read_tokenizer(place, wanted, f"to fix the study's `tokenizer: {{pretrained: {name}}}`, {fix}")
    if known and len(tokenizer) != known.size:
        raise DataError(
            f"the tokenizer in {place} has {len(tokenizer):,} tokens, and the published one {known.size:,}: {fix}"
        )
    if known and known.end:
        tokenizer.eos_token = tokenizer.pad_token = known.end
    if tokenizer.eos_token_id is None:
        raise DataError(f"the tokenizer {place} has no end-of-text token; choose one that has")
    return tokenizer


def read_tokenizer(place: str | Path, revision: str, fix: str) -> PreTrainedTokenizerFast:
    """Read a tokenizer from a folder or the hub. Raise :class:`InputError`, which ends with the remedy ``fix``, if it
    cannot be read, or has special tokens only: transformers makes such a one where the files of a vocabulary lack."""
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    if Path(place).is_dir():
        for path in sorted(Path(place).glob("*.json")):
            content = parse_json(read_text(path, fix), str(path), fix)
            if not isinstance(content, dict):
                raise DataError(f"{path}: must be a JSON object, not {shortened(content)}; {fix}")
    try:
        tokenizer = AutoTokenizer.from_pretrained(place, revision=revision)
    except Exception as error:  # those of tokenizers have no common base class
        cause = " ".join(str(error).split())
        raise DataError(f"no tokenizer can be read from {place} ({type(error).__name__}: {cause}); {fix}") from error
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise DataError(f"the tokenizer in {place} is no fast one of transformers: {fix}")
    own = Path(place) / "tokenizer.json"
    if type(tokenizer) is not PreTrainedTokenizerFast and own.is_file():
        # Beside a checkpoint, transformers takes the tokenizer class of its kind, which may split text otherwise
        splits = (one.encode(PROBE, add_special_tokens=False).ids for one in (backend, Tokenizer.from_file(str(own))))
        if len({tuple(ids) for ids in splits}) > 1:
            tokenizer = PreTrainedTokenizerFast.from_pretrained(place)
            backend = tokenizer.backend_tokenizer
    if not backend.get_vocab().keys() - {str(token) for token in tokenizer.added_tokens_decoder.values()}:
        raise DataError(
            f"the tokenizer in {place} has special tokens only, as the files of its vocabulary are missing "
            f"(tokenizer.json, or vocab.json and merges.txt); {fix}"
        )
    return tokenizer


def vocabulary(tokenizer: PreTrainedTokenizerBase) -> Vocabulary:
    """Return the vocabulary that methods build their layouts from. Its ``encode`` raises :class:`DataError` for a text
    that the tokenizer has no tokens for."""

    def encode(text: str) -> list[int]:
        ids = tokenizer.encode(text, add_special_tokens=False)
        if tokenizer.unk_token_id is not None and tokenizer.unk_token_id in ids:
            raise DataError(
                f"the tokenizer has no tokens for {text!r}, which the method uses; a BPE has: "
                "`tokenizer: {trained: 2048}`"
            )
        return ids

    return Vocabulary(size=len(tokenizer), eos=cast(int, tokenizer.eos_token_id), encode=encode)


def encode_texts(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str]) -> list[list[int]]:
    """Return the ids of texts, without special tokens."""
    if not texts:  # e.g. no example of a batch has steps; tokenizers cannot encode an empty list
        return []
    return cast(list, tokenizer(list(texts), add_special_tokens=False, return_attention_mask=False)["input_ids"])


def encode_questions(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str]) -> list[list[int]]:
    """Return the ids of questions, which come first in every sequence: they begin as the tokenizer begins a text."""
    begin = opening(tokenizer)
    return [begin + ids for ids in encode_texts(tokenizer, texts)]


def opening(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Return what a tokenizer puts before every text: the begin-of-text token of LLaMA; of many others, nothing."""
    begin = cast("int | None", tokenizer.bos_token_id)
    return [begin] if begin is not None and tokenizer.encode("a")[0] == begin else []


def question_text(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> str:
    """Return the text of a question's ids."""
    return decode(tokenizer, ids[len(opening(tokenizer)) :])


def decode(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> str:
    """Return the text of ids up to the first end-of-text, with spaces as generated."""
    ids = list(ids)
    if tokenizer.eos_token_id in ids:
        ids = ids[: ids.index(tokenizer.eos_token_id)]
    return cast(str, tokenizer.decode(ids, clean_up_tokenization_spaces=False))
