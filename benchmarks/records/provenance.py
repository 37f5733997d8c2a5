"""The provenance of a study's numbers: code, versions, hardware, seeds and data, taken from its records."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

from benchmarks.records.results import StudyRecords
from benchmarks.records.schema import RunRecords, ScoredBy
from benchmarks.scoring.scorers import scorer_of_recorded
from benchmarks.studies.runs import RunSpec, row_of
from benchmarks.studies.specs import BackboneSpec, EngineSpec, LoraSpec, TokenizerSpec
from benchmarks.studies.study import Study

OFFLOADED = {
    "none": "",
    "optimizer": ", optimizer states in CPU memory",
    "weights": ", weights and optimizer states in CPU memory",
}
VERSIONS = ("python", "torch", "transformers", "datasets", "deepspeed")


def environments(records: StudyRecords) -> list[dict[str, Any]]:
    """Return the environments of all usable records, and those that produced answers which were only scored later."""
    environments = [record.environment for run in records.runs.values() for record in run.tasks.values()]
    earlier = [made for run in records.runs.values() if run.evaluate for made in run.evaluate.answered.values()]
    return environments + earlier


def kernels_text(environment: Mapping[str, Any]) -> str | None:
    """Return the kernels and the CPU that a record's environment names: where they are the same, so are results. Return
    None if a GPU computed. Older records name the CPU alone."""
    if environment["device"] != "cpu":
        return None
    used = environment.get("kernels") or {"aten": "unknown"}
    held = [f", {name} {used[key]}" for key, name in (("mkl", "MKL"), ("onednn", "oneDNN")) if used.get(key)]
    return f"{used['aten']} kernels{''.join(held)} on {environment['cpu']}"


def kernels_of(run: RunRecords) -> list[str]:
    """Return the distinct kernels and CPUs that a run was trained and answered with; none on a GPU."""
    tasks = [record for record in (run.train, run.evaluate) if record]
    return list(dict.fromkeys(text for record in tasks if (text := kernels_text(record.environment))))


def provenance(records: StudyRecords) -> dict[str, str]:
    """Return the labels and texts of a table's footer; those that do not apply are left out."""

    def versions(environment: dict[str, Any]) -> str:
        return ", ".join(f"{name} {environment[name]}" for name in VERSIONS if environment.get(name))

    study, found = records.study, environments(records)
    decodings = [f"{name}: {spec.seeds} where anything is drawn" for name, spec in study.evaluation.decodings.items()]
    timed = f", {study.timing_threads} in timing" if study.timing else ""
    shared = "; ".join(f"{', '.join(runs)} ({other})" for other, runs in study.shared.items())
    # Older records name neither kernels nor a hash of the code
    kernels = _distinct(text for one in found if "kernels" in one and (text := kernels_text(one)))
    codes = {id: {one.environment.get("code") for one in run.tasks.values()} for id, run in records.runs.items()}
    edited = [id for id, of_run in codes.items() if len(of_run - {None}) > 1]
    lines = {
        "Study": f"{study.name}. {study.description}".strip(),
        "Departures from the paper": "; ".join(study.deviations),
        "Runs of another study": (shared or "none") if study.shares else "",
        "Model": "; ".join(_models(study)),
        "Hardware": _distinct(map(hardware, found)) or "unknown",
        "Kernels": kernels,
        "Versions": _distinct(map(versions, found)) or "unknown",
        "Commit": _distinct(map(commit_of, found)) or "unknown",
        "Edited between tasks": f"the method of {', '.join(edited)}: run them again" if edited else "",
        "Engine": "; ".join(_grouped(study, lambda spec: on_engine(spec.engine))),
        "Seeds": f"training {', '.join(map(str, study.seeds))}; decoding {'; '.join(decodings)}",
        "Threads": f"{study.threads} in training and evaluation" + timed + " (CPU)",
    }
    for block in study.blocks:
        data = records.data.get(block.id, {})
        lines[f"Data, {block.id}"] = "; ".join(_data(data)) or "not prepared"
        if budgets := "; ".join(_grouped(study, partial(_budget, records, block.id))):
            count = f"{data['counts']['train']:,} examples; " if "counts" in data else ""
            lines[f"Training, {block.id}"] = count + budgets
    return {label: text for label, text in lines.items() if text}


def in_short(records: StudyRecords) -> str:
    """Return a study's models and commits, for another study's table that shows its numbers as well. The study's own
    tables give its full provenance."""
    commits = _distinct(map(commit_of, environments(records)))
    return f"{'; '.join(_models(records.study))}; commit {commits}"


def _grouped(study: Study, describe: Callable[[RunSpec], str | None]) -> Iterator[str]:
    """Yield a description of the study's rows. Rows with the same text share a line, without names if all rows do."""
    rows: dict[str, dict[str, None]] = {}
    runs = [spec for spec in study.runs.values() if spec.seed == study.seeds[0]]
    for spec in runs:
        if text := describe(spec):
            rows.setdefault(text, {})[spec.row] = None
    for text, names in rows.items():
        every = len(rows) == 1 and len(names) == len({spec.row for spec in runs})
        yield text if every else f"{', '.join(names)}: {text}"


def on_engine(engine: EngineSpec) -> str:
    """Describe the engine that computes a run's steps, as far as results or times depend on it."""
    ranks = f"{engine.ranks} rank{'s' if engine.ranks > 1 else ''} of DeepSpeed, ZeRO {engine.zero_stage}"
    on = "one process" if engine.kind == "process" else ranks
    parts = f", micro-batches of {engine.micro_batch}" if engine.micro_batch else ""
    parts += f", cut to {engine.micro_tokens:,} tokens by the longest row" if engine.micro_tokens else ""
    parts += ", activations computed again" if engine.activation_checkpointing else ""
    parts += ", compiled" if engine.compile else ""
    return f"{on}, {engine.precision}{parts}{OFFLOADED[engine.offload]}"


def _budget(records: StudyRecords, block: str, spec: RunSpec) -> str | None:
    """Return the training budget of a run of a block; None of one elsewhere, or if it is not recorded."""
    record = records.runs[spec.id].train if spec.id in records.runs else None
    if spec.block != block or not record:
        return None
    phases: defaultdict[str, float] = defaultdict(float)
    for stage in record.stages:
        phases[stage.phase] += stage.epochs
    parts = [f"{f'{phase} ' if len(phases) > 1 else ''}{epochs:.3g} epochs" for phase, epochs in phases.items()]
    start = f" after {row_of(spec.starts_from)}" if spec.starts_from else ""
    settings = f"batches of {spec.training.batch_size}, learning rate {spec.training.learning_rate:g}"
    settings += by_adapters(spec.training.lora)
    settings += f", dropout {spec.training.dropout:g}" if spec.training.dropout else ""
    if spec.training.select_by == "accuracy":
        asked = min(spec.training.validation_questions, record.held_out)
        settings += f", weights selected by accuracy on {asked} held-out questions"
    return f"{', '.join(parts)} in {settings}{start}"


def by_adapters(lora: LoraSpec | None) -> str:
    """Say that adapters were trained, if they were."""
    if not lora:
        return ""
    dropout = f", dropout {lora.dropout:g}" if lora.dropout else ""
    return f", LoRA of rank {lora.rank} (alpha {lora.alpha:g}, {', '.join(lora.modules)}{dropout})"


def _models(study: Study) -> Iterator[str]:
    """Yield the study's backbone and tokenizer, then those of blocks and rows that have their own."""
    yield f"{backbone(study.backbone)}; tokenizer: {_tokenizer(study.tokenizer)}"
    for block in study.blocks:
        named = [backbone(block.backbone)] if block.backbone else []
        named += [f"tokenizer {_tokenizer(block.tokenizer)}"] if block.tokenizer else []
        if named:
            yield f"{block.id}: {', '.join(named)}"
    for row in study.rows:
        if row.backbone:
            yield f"{row.id}: {backbone(row.backbone)}"


def backbone(spec: BackboneSpec) -> str:
    """Return a backbone's name, with its revision and configuration overrides in brackets."""
    more = [spec.revision] if spec.revision else []
    more += [f"{field} {value}" for field, value in spec.overrides.items()]
    return (spec.pretrained or spec.name) + (f" ({', '.join(more)})" if more else "")


def _tokenizer(spec: TokenizerSpec) -> str:
    if spec.trained == "words":
        return "one token per word of the training split"
    if spec.pretrained:
        return f"{spec.pretrained} ({spec.revision})" if spec.revision else spec.pretrained
    return f"byte-level BPE of at most {spec.trained:,} tokens, trained on the training split"


def hardware(environment: dict[str, Any]) -> str:
    count = environment["device_count"]
    return f"{f'{count} x ' if count > 1 else ''}{environment['device']}, {environment['cpu']}"


def measured_on(environments: Iterable[dict[str, Any]]) -> dict[str, str]:
    """Return where, and with which code, something was measured: the distinct facts of the environments."""
    found = list(environments)
    facts = ("device", "cpu", "threads", "torch", "transformers")
    made = {name: ", ".join(sorted({str(one[name]) for one in found})) for name in facts}
    return made | {"commit": ", ".join(sorted(set(map(commit_of, found))))}


def commit_of(environment: dict[str, Any]) -> str:
    """Return the (abbreviated) commit of the code that a record was made by, and whether it had local changes."""
    return (environment.get("commit") or "unknown")[:10] + (" (with local changes)" if environment.get("dirty") else "")


def _distinct(texts: Iterable[str]) -> str:
    return "; ".join(dict.fromkeys(texts))


def _data(record: dict[str, Any]) -> Iterator[str]:
    """Yield each data set with its digest, and for a test set its overlap with the training data; then the size of the
    vocabulary."""
    for place, digest in record.get("digests", {}).items():
        name, split = place.split("/")
        text = f"{record['cards'][name]['title']} ({place}, {digest[:12]})"
        if shared := record["overlaps"].get(name) if split == "test" else None:
            text += f": {shared['shared_with_train']} of {shared['questions']} questions also in the training data"
        yield text
    if "tokenizer" in record:
        yield f"a vocabulary of {record['tokenizer']['size']:,} tokens"


def outdated_scorers(scorers: Mapping[str, ScoredBy]) -> list[str]:
    """Return the test sets that were scored by another version of their scorer than today's."""
    return [test for test, scorer in scorers.items() if scorer.version != scorer_of_recorded(test).version]
