"""From a run's specification to its method: tokenizer, backbone, weights."""

from __future__ import annotations

from pathlib import Path

from benchmarks.checkpoints import DIGEST, load_weights, read_weights
from benchmarks.data import load_tokenizer, vocabulary
from benchmarks.files import BrokenRecord, read_json, write_json
from benchmarks.paths import WEIGHTS, Paths
from benchmarks.specs import RunSpec
from methods.backbone import load_backbone
from methods.base import Method, Setup
from methods.registry import build


def build_method(spec: RunSpec, data: Path) -> Method:
    """The run's method with freshly initialised weights, in training mode. ``data`` is a folder with the run's
    tokenizer."""
    words = vocabulary(load_tokenizer(data))
    backbone = load_backbone(vocab_size=words.size, **spec.backbone.model_dump())
    return build(spec.method, spec.options, Setup(backbone, words), spec.seed).train()  # a checkpoint's part is not


def trained_method(spec: RunSpec, results: Path) -> Method:
    """The run's method with the weights that its training ended with, in evaluation mode."""
    paths = Paths(results, spec)
    weights = read_weights(paths.weights)
    if weights.metadata[DIGEST] != trained_weights(paths):
        raise BrokenRecord(f"{paths.weights} is not what {paths.run / 'train.json'} recorded: train this run again")
    method = build_method(spec, paths.data)
    load_weights(method, weights)
    return method.eval()


def trained_weights(paths: Paths) -> str:
    """The digest of a run's final weights, as its training recorded it."""
    return read_json(paths.run / "train.json")["weights_sha256"]


def export(spec: RunSpec, paths: Paths) -> None:
    """Put specification and tokenizer beside the final weights."""
    load_tokenizer(paths.data).save_pretrained(paths.model / "tokenizer")
    write_json(paths.model / "spec.json", spec.model_dump(mode="json"))


def exported_method(folder: Path) -> Method:
    """The method in a run's ``model`` folder, wherever that was copied to, in evaluation mode."""
    method = build_method(RunSpec.model_validate(read_json(folder / "spec.json")), folder)
    load_weights(method, read_weights(folder / WEIGHTS))
    return method.eval()
