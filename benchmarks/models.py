"""Builds a run's method from its specification: tokenizer, backbone and weights."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn
from torch.overrides import TorchFunctionMode
from transformers import AutoConfig, PreTrainedConfig

from benchmarks.checkpoints import DIGEST, Stored, load_weights, read_weights
from benchmarks.data import load_tokenizer, open_corpus, open_test, vocabulary
from benchmarks.files import BrokenRecord, read_json, write_json
from benchmarks.processes import kernels
from benchmarks.studies.paths import WEIGHTS, Paths
from benchmarks.studies.runs import RunSpec
from benchmarks.studies.validation_errors import validate_settings
from methods.backbone import Backbone, load_backbone
from methods.base import Method, Setup
from methods.context_length import context_limit, require_context
from methods.registry import build

UNTRAINED = "train this run first (marcos-bench train)"
SPEC, TOKENIZER, CONFIG = "spec.json", "tokenizer", "backbone"  # in a `model` folder, beside the final weights


def build_method(spec: RunSpec, data: Path) -> Method:
    """Return the run's method with freshly initialised weights, in training mode.
    ``data``: the folder with its prepared data. Raise InputError if they are longer than its backbone can read, or this
    process computes with other kernels."""
    kernels.require(spec.kernels)
    setup = _setup(spec, data, spec.training.dropout)
    _require_context(spec, data, setup.backbone.config)
    return build(spec.method, spec.options, setup, spec.seed).train()  # pretrained parts load in eval mode


def _setup(spec: RunSpec, data: Path, dropout: float = 0.0) -> Setup:
    words = vocabulary(load_tokenizer(data))
    return Setup(load_backbone(vocab_size=words.size, dropout=dropout, **spec.backbone.model_dump()), words)


def _require_context(spec: RunSpec, data: Path, config: PreTrainedConfig) -> None:
    """Raise InputError before anything is trained if the longest example, or the longest question with the longest
    answer, is longer than the backbone's sequences may be. Markers, line ends and thoughts are allowed for by
    :data:`SPARE` positions."""
    if context_limit(config) is None:
        return
    longest = {split: int(open_corpus(data, split).lengths.max()) for split in ("train", "validation")}
    for name in spec.evaluation.tests:
        longest[name] = max(map(len, open_test(data, name).questions)) + spec.evaluation.max_new_tokens
    place = max(longest, key=lambda name: longest[name])
    what = f"the longest of {place}{', with its answer,' if place in spec.evaluation.tests else ''}"
    fix = "lower `max_question_tokens` or `max_new_tokens`, or take another backbone"
    require_context(config, spec.backbone.pretrained or spec.backbone.name, longest[place], what, fix)


def published_model(spec: RunSpec, data: Path) -> nn.Module:
    """Return the language model in the published checkpoint that a run starts from."""
    return _setup(spec, data).backbone.causal_lm()


def trained_method(spec: RunSpec, results: Path, stage: int | None = None, decoding: str = "default") -> Method:
    """Return the run's method in evaluation mode, with the weights that its training, or one stage of it, ended with,
    and the options that it has under a decoding. Raise :class:`BrokenRecord` if these weights are not the recorded
    ones, or were trained with other settings, and InputError if this process computes with other kernels."""
    kernels.require(spec.kernels)
    paths = Paths(results, spec)
    path = paths.weights if stage is None else paths.stage_weights(stage)
    weights = read_weights(path)
    if read_json(paths.record("train")).get("digest") != spec.digest("train"):
        raise BrokenRecord(
            f"{path} was trained with other settings than {spec.id} of study {spec.study} has now: train this run again"
        )
    if weights.metadata[DIGEST] != trained_weights(paths, stage):
        raise BrokenRecord(f"{path} is not what {paths.record('train')} recorded: train this run again")
    setup = _setup(spec, paths.data, spec.training.dropout)  # for training steps, which may be timed
    return _filled(spec.with_decoding_options(decoding), setup, weights)


def trained_weights(paths: Paths, stage: int | None = None) -> str:
    """Return the digest of the weights that a run's training, or one stage of it, ended
    with, as training recorded it."""
    record = read_json(paths.record("train"), UNTRAINED)
    return (record if stage is None else record["stages"][stage])["weights_sha256"]


def kept_stages(paths: Paths) -> list[int]:
    """Return the numbers of the stages whose weights a run's training has kept."""
    stages = read_json(paths.record("train"), UNTRAINED).get("stages", [])
    return [number for number, stage in enumerate(stages) if stage.get("weights_sha256")]


def complete_folder(spec: RunSpec, paths: Paths) -> None:
    """Write the specification, the tokenizer and the backbone's configuration beside the final weights."""
    load_tokenizer(paths.data).save_pretrained(paths.model / TOKENIZER)
    _setup(spec, paths.data).backbone.config.save_pretrained(paths.model / CONFIG)
    write_json(paths.model / SPEC, spec.model_dump(mode="json"))


def exported_method(folder: Path) -> Method:
    """Return the method in a run's ``model`` folder, in evaluation mode. The folder may have been copied anywhere and
    is self-contained: neither the network nor a checkpoint that training may have started from is needed."""
    spec = validate_settings(RunSpec, read_json(folder / SPEC), str(folder / SPEC))
    read_json(folder / CONFIG / "config.json", "copy all of the folder again")  # says what is wrong with the file
    try:
        backbone = Backbone(AutoConfig.from_pretrained(folder / CONFIG))
    except Exception as error:  # those of transformers have no common base class
        raise BrokenRecord(f"{folder / CONFIG} holds no configuration ({error}): copy all of it again") from error
    return _filled(spec, Setup(backbone, vocabulary(load_tokenizer(folder))), read_weights(folder / WEIGHTS))


def _filled(spec: RunSpec, setup: Setup, weights: Stored) -> Method:
    """Build the method and load all of its weights. A checkpoint that training may have started from is not read."""
    blank = replace(setup, backbone=replace(setup.backbone, checkpoint=None))
    with _WithoutDraws():
        method = build(spec.method, spec.options, blank, spec.seed)
    load_weights(method, weights)
    return method.eval()


class _WithoutDraws(TorchFunctionMode):
    """Leaves tensors as they are where they would be filled with random numbers: at 0.5B that takes seconds."""

    FILL = {"normal_", "uniform_", "kaiming_uniform_", "xavier_uniform_"}  # of tensors, PyTorch and transformers

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = kwargs or {}
        if getattr(function, "__name__", "") in self.FILL:  # those of torch.nn.init name their tensor
            return args[0] if args else given["tensor"]
        return function(*args, **given)
