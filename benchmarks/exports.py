"""What a run's ``model`` folder gives without its study and data: answers, and a checkpoint for transformers."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import torch
from transformers import PreTrainedModel

from benchmarks.analysis.responses import TrainedModel
from benchmarks.data import load_tokenizer
from benchmarks.engine import pick_device
from benchmarks.evaluation.inference import decoding_of, prepare_for_inference
from benchmarks.files import read_json, report_full_disk, sync
from benchmarks.models import CONFIG, SPEC, TOKENIZER, exported_method
from benchmarks.studies.paths import WEIGHTS
from benchmarks.studies.runs import RunSpec
from benchmarks.studies.validation_errors import validate_settings
from methods.base import Method
from methods.errors import InputError

PARTS = (SPEC, TOKENIZER, CONFIG, WEIGHTS)


def answer(folder: Path, question: str) -> str:
    """Return a model's answer to a question, by the default decoding of its run (seed 0)."""
    model = exported_model(folder)
    decoding = decoding_of(model.spec.evaluation.decodings["default"], model.spec.evaluation, seed=0)
    return model.generate([model.tokenize(question)], decoding).answers[0]


def exported_model(folder: Path) -> TrainedModel:
    """Return the model in a ``model`` folder on the device that answers. Its layers are not compiled, as that takes
    longer than a few answers."""
    require_whole(folder)
    spec = validate_settings(RunSpec, read_json(folder / SPEC), str(folder / SPEC))
    torch.set_num_threads(spec.threads)
    method = exported_method(folder).to(pick_device())
    prepare_for_inference(method, spec.engine.model_copy(update={"compile": False}))
    return TrainedModel(spec, method, load_tokenizer(folder), folder)


def export(folder: Path, target: Path) -> str:
    """Write the language model of a ``model`` folder, and its tokenizer, as transformers does. Return what was written,
    and which weights of the method were not. Raise :class:`InputError` if the method is more than one model, or if
    there is something in ``target``."""
    require_whole(folder)
    target = target.resolve()
    if target.exists() and (not target.is_dir() or any(target.iterdir()) or target == Path.cwd()):
        raise InputError(f"{target} is there already: name another folder, or remove it first")
    method, tokenizer = exported_method(folder), load_tokenizer(folder)
    name, model = only_model(method)
    settings = model.generation_config
    if settings is not None:  # else `generate` of transformers would not know where an answer ends
        settings.eos_token_id = settings.pad_token_id = tokenizer.eos_token_id
    target.parent.mkdir(parents=True, exist_ok=True)
    with (
        report_full_disk(target.parent),
        tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}.") as aside,
    ):
        whole = Path(aside) / "whole"
        model.save_pretrained(whole)
        tokenizer.save_pretrained(whole)
        for file in filter(Path.is_file, whole.rglob("*")):
            file.chmod(0o644)  # weights would be private, and the folder is for others too
        os.replace(whole, target)
    sync(target.parent)
    rest = [parameter for parameter, _ in method.named_parameters() if not parameter.startswith(f"{name}.")]
    left = ", ".join(sorted({parameter.partition(".")[0] for parameter in rest}))
    return (
        f"{target}: the language model of {method.title}, for AutoModelForCausalLM, and its tokenizer, for "
        f"AutoTokenizer. It only continues text; `marcos-bench explain` answers as {method.title} does."
        + (f" Of the method's weights, these are not in it: {left}." if left else "")
    )


def only_model(method: Method) -> tuple[str, PreTrainedModel]:
    """Return the name and the model of the one causal language model that a method is, or raise :class:`InputError` if
    it has several models."""
    found: dict[str, PreTrainedModel] = {}
    for name, module in method.named_modules():
        inside = name.startswith(tuple(f"{outer}." for outer in found))
        if isinstance(module, PreTrainedModel) and not inside:
            found[name] = module
    if len(found) != 1 or any(model.get_output_embeddings() is None for model in found.values()):
        raise InputError(
            f"{method.title} is not one language model, but has these: {', '.join(found) or 'none of transformers'}. "
            "`marcos-bench explain` answers with it; benchmarks.models.exported_method loads it in Python"
        )
    return next(iter(found.items()))


def require_whole(folder: Path) -> None:
    """Raise :class:`InputError` if a part of a ``model`` folder is not there: transformers would look for it on the
    hub."""
    if missing := [part for part in PARTS if not (folder / part).exists()]:
        raise InputError(
            f"{folder} is no model folder, as it has no {missing[0]}: name the folder `model` of a trained run, or "
            "copy all of it again"
        )
