"""Prepare the data of a block: read, split, tokenise, and write them once."""

from __future__ import annotations

import logging
import os
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import accumulate, chain, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from datasets import Dataset, disable_progress_bars, load_from_disk

from benchmarks.data.corpus import TEST, TRAINING, Corpus, sizes
from benchmarks.data.loading import (
    dataset_with,
    exclude_questions,
    get_dataset,
    load_rows,
    overlap_flags,
    questions,
    split_validation,
    to_records,
    unscorable_rows,
)
from benchmarks.data.records import DataError, Raw, Record, digest
from benchmarks.data.sets import MODULES
from benchmarks.data.tokenizers import encode_questions, encode_texts, make_tokenizer
from benchmarks.files import BrokenRecord, json_digest, read_json, sync, write_json
from benchmarks.processes.locks import FileLock
from benchmarks.studies.paths import DONE, data_folder
from benchmarks.studies.specs import Block
from benchmarks.studies.study import Study
from methods.backbone import require_configuration
from methods.code_digest import source_digest

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast as Tokenizer

log = logging.getLogger(__name__)
LAYOUT = "5"  # change it when data prepared by older versions must not be used any more
NO_SETTING = {"files": {"__all__": {"__all__": {"url"}}}}  # of a card: where a file is fetched from changes no data


def prepare(study: Study, block: Block, results: Path) -> Path:
    """Read, split, tokenise and store the data of a block. Return their folder. Data that were already prepared from
    the same inputs are kept, or copied from a study that this one shares runs with. Raise :class:`Locked` if another
    process prepares them."""
    target = data_folder(results, study.name, block.id)
    if _are_current(study, block, target):
        return target
    if not sys.stderr.isatty():
        disable_progress_bars()
    with FileLock(target.with_name(f".{block.id}.lock"), f"preparing {target}"), _apart(target) as folder:
        others = (data_folder(results, Path(name).stem, block.id) for name in study.shares)
        if (twin := next((other for other in others if _are_current(study, block, other)), None)) is not None:
            shutil.copytree(twin, folder / "built")
        else:
            _build(study, block, folder / "built")
        if target.exists():
            os.replace(target, folder / "old")
        os.replace(folder / "built", target)
    sync(target.parent)
    return target


@contextmanager
def _apart(target: Path) -> Iterator[Path]:
    """Yield a folder beside the target that is removed at the end, as is what a killed process has left in it."""
    folder = target.with_name(f".{target.name}.partial")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def is_prepared(study: Study, block: Block, results: Path) -> bool:
    """Return whether the data of a block are there and are what the study asks for now."""
    return _are_current(study, block, data_folder(results, study.name, block.id))


def _are_current(study: Study, block: Block, folder: Path) -> bool:
    done = _prepared(study, block, folder)
    if done is None or done["source"] != source_of(study, block):
        return False
    return unpinned_files(study, block).items() <= done["files"].items()


def prepared_files(study: Study, block: Block, results: Path) -> dict[str, str]:
    """Return what :func:`unpinned_files` was when the data that a block asks for were prepared, or nothing if they are
    not."""
    done = _prepared(study, block, data_folder(results, study.name, block.id))
    return done["files"] if done else {}


def _prepared(study: Study, block: Block, folder: Path) -> dict[str, Any] | None:
    """Return the record of data in a folder if they were prepared from the settings that a block has today."""
    try:
        done = read_json(folder / DONE)
        return {"files": {}, "source": None, **done} if done["key"] == _key(study, block) else None
    except BrokenRecord:
        return None


def unpinned_files(study: Study, block: Block) -> dict[str, str]:
    """Return the SHA-256 of each file that a block is read from and whose card has no checksum of it, as far as the
    files are at hand: prepared data do not need them any more."""
    used = used_by(study, block)
    return dict(chain.from_iterable(get_dataset(name).unpinned(split).items() for name, split in used))


def source_of(study: Study, block: Block) -> str:
    """Return a digest of the source of the data sets that a block is read from."""
    return source_digest(*sorted({MODULES[name] for name, _ in used_by(study, block)}))


def used_by(study: Study, block: Block) -> list[tuple[str, str]]:
    """Return the data sets that a block is read from, each with its split."""
    validation = [(block.data.validation_set, "test")] if block.data.validation_set else []
    return [(block.data.train, "train"), *validation, *((name, "test") for name in study.tests_of(block))]


def describe(folder: Path) -> str:
    """Return a line on what lies in a folder of prepared data, and on what was left out."""
    done = read_json(folder / DONE)
    counts = done["counts"]
    parts = [f"{counts['train']:,} rows to train on and {counts['validation']:,} to validate on"]
    if unused := counts["published"] - counts["usable"]:
        parts.append(f"{unused:,} of {counts['published']:,} are without steps or an answer that can be read")
    if counts["too_long"]:
        parts.append(f"{counts['too_long']:,} are too long")
    for test, overlap in done["overlaps"].items():
        parts.append(
            f"{test} has {overlap['questions']:,} questions, {overlap['shared_with_train']:,} of them in training too"
        )
        if validated := overlap.get("shared_with_validation"):
            parts[-1] += f", and {validated:,} are validated on, which selects weights"
    return "; ".join(parts)


def require_known(study: Study) -> None:
    """Raise :class:`InputError` if the study names a data set or a backbone that does not exist."""
    for block in study.blocks:
        for name, split in used_by(study, block):
            dataset_with(name, block.data.form, split)
    for run in study.runs.values():
        if not run.backbone.pretrained:
            require_configuration(run.backbone.name)


def require_prepared(study: Study, block: Block, results: Path) -> None:
    """Raise :class:`DataError` if data are missing or were prepared from other settings."""
    if not is_prepared(study, block, results):
        folder = data_folder(results, study.name, block.id).absolute()
        raise DataError(
            f"{folder} does not hold the data that {study.name} needs: "
            f"run `{study.command('data', results, '--block', block.id)}`"
        )


def _key(study: Study, block: Block) -> str:
    """Return a digest of everything that decides what :func:`prepare` writes."""
    inputs = {
        "layout": LAYOUT,
        "data": block.data.model_dump(mode="json"),
        "tokenizer": study.tokenizer_of(block).model_dump(mode="json"),
        "tests": study.tests_of(block),
        "cards": [
            get_dataset(name).card.model_dump(mode="json", exclude=NO_SETTING) for name, _ in used_by(study, block)
        ],
    }
    return json_digest(inputs)


def _build(study: Study, block: Block, folder: Path) -> None:
    """Write all data of a block into ``folder``, ``done.json`` last."""
    data = block.data
    rows = {f"{name}/{split}": load_rows(name, data.form, split) for name, split in used_by(study, block)}
    usable = to_records(data.train, data.form, "train", rows[f"{data.train}/train"])
    if dropped := unscorable_rows(data.train, rows[f"{data.train}/train"]):
        log.warning(
            "block %s: %s training rows have answers that cannot be read and are left out (listed in %s), first %s: %r",
            block.id,
            f"{len(dropped):,}",
            DONE,
            dropped[0]["place"],
            dropped[0]["answer"],
        )
    train, validation = _split(block, usable, rows)
    named = study.tokenizer_of(block)
    tokenizer = make_tokenizer(named, train)
    tokenizer.save_pretrained(folder / "tokenizer")
    stored = {
        split: _store_corpus(records, tokenizer, data.max_question_tokens, folder / split)
        for split, records in (("train", train), ("validation", validation))
    }
    known, selecting, overlaps = questions(train), questions(validation), {}
    for name in study.tests_of(block):
        tests = to_records(name, data.form, "test", rows[f"{name}/test"])
        overlaps[name] = _store_test(tests, known, selecting, tokenizer, folder / "tests" / name)
        if validated := overlaps[name]["shared_with_validation"]:
            log.warning(
                "block %s: %s of %s questions of %s are validated on, too, which selects weights: validate on others",
                block.id,
                f"{validated:,}",
                f"{len(tests):,}",
                name,
            )
    done = {
        "key": _key(study, block),
        "files": unpinned_files(study, block),
        "source": source_of(study, block),
        "block": block.id,
        "form": data.form,
        "cards": {name: get_dataset(name).card.model_dump(mode="json") for name, _ in used_by(study, block)},
        "digests": {place: digest(used) for place, used in rows.items()},
        "counts": {
            "published": len(rows[f"{data.train}/train"]),
            "usable": len(usable),  # with steps in this form, and with an answer that can be scored
            "unread": len(dropped),
            **{split: len(corpus) for split, corpus in stored.items()},
            "too_long": len(train) + len(validation) - sum(map(len, stored.values())),
        },
        "unread": dropped,
        "overlaps": overlaps,
        "tokenizer": {**named.model_dump(mode="json", exclude_none=True), "size": len(tokenizer)},
        # of all that training reads: a tokenizer in a folder may change under its name
        "tokenised": json_digest(
            [tokenizer.backend_tokenizer.to_str(), *(corpus.sha256 for corpus in stored.values())]
        ),
        "tokens_per_epoch": int(stored["train"].lengths.sum()),
    }
    write_json(folder / DONE, done)


def _split(block: Block, usable: list[Record], rows: Mapping[str, list[Raw]]) -> tuple[list[Record], list[Record]]:
    """Return the records that a block trains on, and those that it validates on."""
    data = block.data
    if data.validation_set:
        held_out = to_records(data.validation_set, data.form, "test", rows[f"{data.validation_set}/test"])
        stepless = get_dataset(data.validation_set).card.stepless
        validation = [record for record in held_out if record.steps or stepless]
        train = exclude_questions(usable, held_out)
    else:
        train, validation = split_validation(usable, data.validation)
    if data.limit and data.limit > len(train):
        log.warning(
            "block %s: a limit of %s rows, and %s has %s: all are taken",
            block.id,
            f"{data.limit:,}",
            data.train,
            f"{len(train):,}",
        )
    return train[: data.limit], validation


def _store_corpus(records: Sequence[Record], tokenizer: Tokenizer, longest: int, path: Path) -> Corpus:
    """Tokenise records in batches and save them, except for questions of more than ``longest`` tokens."""

    def tokenise(batch: dict[str, list[Any]]) -> dict[str, list[Any]]:
        return {
            "id": batch["id"],
            "question": encode_questions(tokenizer, batch["question"]),
            "steps": _encode_steps(tokenizer, batch["steps"]),
            "answer": encode_texts(tokenizer, batch["answer"]),
        }

    columns = {name: [getattr(record, name) for record in records] for name in TRAINING}
    tokenised = Dataset.from_dict(columns).map(tokenise, batched=True, features=TRAINING, new_fingerprint="tokenised")
    kept = np.flatnonzero(sizes(tokenised.data.column("question").combine_chunks()) <= longest)
    if not len(kept):
        raise DataError(f"no question of {path.name} has {longest} tokens or fewer; raise `max_question_tokens`")
    tokenised.select(kept).save_to_disk(path)
    return Corpus(cast(Dataset, load_from_disk(str(path))))


def _encode_steps(tokenizer: Tokenizer, chains: Sequence[Sequence[str]]) -> list[list[list[int]]]:
    """Return the ids of each step of each chain."""
    flat = encode_texts(tokenizer, [step for steps in chains for step in steps])
    ends = accumulate((len(steps) for steps in chains), initial=0)
    return [flat[start:end] for start, end in pairwise(ends)]


def _store_test(
    records: Sequence[Record], known: set[str], selecting: set[str], tokenizer: Tokenizer, path: Path
) -> dict[str, int]:
    """Tokenise test records and save them. Return how many there are, and how many of their questions are trained on
    (``known``) and validated on (``selecting``)."""
    texts, overlap = [record.question for record in records], overlap_flags(records, known)
    columns = {
        "id": [record.id for record in records],
        "text": texts,
        "question": encode_questions(tokenizer, texts),
        "answer": [record.answer for record in records],
        "steps": _encode_steps(tokenizer, [record.steps for record in records]),
        "answer_ids": encode_texts(tokenizer, [record.answer for record in records]),
        "n_steps": [len(record.steps) or None for record in records],
        "overlap": overlap,
    }
    Dataset.from_dict(columns, features=TEST).save_to_disk(path)
    return {
        "questions": len(records),
        "shared_with_train": sum(overlap),
        "shared_with_validation": sum(overlap_flags(records, selecting)),
        "distinct": len(questions(records)),
    }
