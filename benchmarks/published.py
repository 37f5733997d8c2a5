"""Models that authors published, answering a test set here: their weights and prompts, our questions, scorer and clock.

The accuracies that the authors report stand beside ours with their source, and never in our column.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from huggingface_hub import snapshot_download
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoConfig

from benchmarks.console import Progress
from benchmarks.data import vocabulary
from benchmarks.data.tokenizers import PUBLISHED as TOKENIZERS
from benchmarks.data.tokenizers import encode_questions, encode_texts, read_tokenizer
from benchmarks.engine import pick_device
from benchmarks.evaluation.inference import batches_by_length, generate, require_room, texts_of
from benchmarks.files import read_json, write_text
from benchmarks.outputs import Questions, questions_of_test
from benchmarks.records.statistics import correctness, interval
from benchmarks.timing.steps import timed
from methods.backbone import Backbone
from methods.base import Method
from methods.errors import InputError, suggestion
from methods.published import FORMATS, Format, published_method

BATCH = 64
BASE = "base"  # folder beside the weights, with the backbone's config.json and tokenizer
FILES = ("pytorch_model.bin", "state_dict.bin", "checkpoint_*", "*.ckpt")
Hub = tuple[str, str | None]  # an id on the hub, and the revision if one is known
GPT2, LLAMA_1B = ((TOKENIZERS[name].hub, TOKENIZERS[name].revision) for name in ("gpt2", "llama-3.2"))
LLAMA_3B, LLAMA_8B = ("meta-llama/Llama-3.2-3B-Instruct", None), ("meta-llama/Llama-3.1-8B-Instruct", None)


@dataclass(frozen=True)
class Published:
    """A published model. ``hub``: its weights; ``base``: its backbone. ``reported``: the authors' accuracies by test
    set, in percent, on the same questions as ours. ``seeds``: how many decodings the authors average."""

    title: str
    format: str
    base: Hub
    hub: Hub | None = None
    reported: Mapping[str, float] = field(default_factory=dict)
    source: str = ""
    latents: int | None = None
    seeds: int = 1


def _sim_cot(
    on: str, base: Hub, hub: str, accuracies: tuple[float, float, float], table: str, latents: int | None = None
) -> Published:
    """Return an entry of SIM-CoT on a method and backbone. ``accuracies``: on GSM8K, GSM-Hard and SVAMP."""
    reported: dict[str, float] = dict(zip(("gsm8k", "gsm_hard", "svamp"), accuracies, strict=True))
    source = f"README of InternLM/SIM-CoT, table {table}"
    method = on.partition(",")[0].lower()
    return Published(f"SIM-CoT on {on}", method, base, (f"internlm/SIM_COT-{hub}", None), reported, source, latents)


PUBLISHED = {
    "codi_gpt2": Published(
        "CODI, GPT-2",
        "codi",
        GPT2,
        ("zen-E/CODI-gpt2", "fd641b3d3edc59e4f534b55588e906588c9e36bb"),
        {"gsm8k": 43.7, "gsm_hard": 9.9, "svamp": 42.9},
        "the paper, as quoted in zhenyi4/codi#17",
    ),
    "codi_llama_1b": Published(
        "CODI, LLaMA-3.2-1B-Instruct",
        "codi",
        LLAMA_1B,
        ("zen-E/CODI-llama3.2-1b-Instruct", None),
        {"gsm8k": 51.9},
        "quoted by a public replication; zhenyi4/codi#17 quotes 44.1 as the paper's",
    ),
    "simcot_codi_gpt2": _sim_cot("CODI, GPT-2", GPT2, "GPT2-CODI", (42.6, 9.4, 42.6), "1"),
    "simcot_codi_llama_1b": _sim_cot(
        "CODI, LLaMA-3.2-1B-Instruct", LLAMA_1B, "LLaMA3-CODI-1B", (56.1, 12.7, 61.5), "2"
    ),
    "simcot_codi_llama_3b": _sim_cot(
        "CODI, LLaMA-3.2-3B-Instruct", LLAMA_3B, "LLaMA3-CODI-3B", (62.3, 14.6, 74.9), "3"
    ),
    "simcot_codi_llama_8b": _sim_cot(
        "CODI, LLaMA-3.1-8B-Instruct",
        LLAMA_8B,
        "LLaMA3-CODI-8B",
        (64.1, 16.3, 79.4),
        "3; a user of the weights had 34.3 (InternLM/SIM-CoT#15)",
    ),
    "simcot_coconut_gpt2": _sim_cot("Coconut, GPT-2", GPT2, "GPT2-Coconut", (44.8, 9.3, 40.7), "1", latents=10),
    "coconut_gpt2": Published(
        "Coconut, GPT-2 (no weights released)",
        "coconut",
        GPT2,
        reported={"gsm8k": 34.1},
        source="arXiv 2412.06769, as quoted in facebookresearch/coconut#38",
    ),
    "icot_si_gpt2": Published(
        "iCoT-SI, GPT-2",
        "icot_si",
        GPT2,
        reported={"gsm8k": 30.1},
        source="generation log in da03/Internalize_CoT_Step_by_Step",
    ),
    "colar_llama_1b": Published(
        "CoLaR (speed 5), LLaMA-3.2-1B-Instruct",
        "colar",
        LLAMA_1B,
        ("AlbertTan/CoLaR", None),
        {"gsm8k": 26.8, "gsm_hard": 5.87, "svamp": 48.4, "multiarith": 86.4},
        "README of xiaomi-research/colar, table 1 (mean of 5 sampled runs)",
        seeds=5,
    ),
}


@dataclass(frozen=True)
class Loaded:
    """A published model that is ready to answer. ``unused``: the parts of its file that answering does not need."""

    method: Method
    tokenizer: Any
    format: Format
    unused: list[str]

    def encode(self, questions: list[str]) -> list[list[int]]:
        """Return the ids of the prompts up to the first marker."""
        texts = [self.format.text(question, self.tokenizer.eos_token) for question in questions]
        return (encode_questions if self.format.opens else encode_texts)(self.tokenizer, texts)


@dataclass(frozen=True)
class Result:
    """What a published model answered: a verdict on each answer, the seconds of answering all questions once, and the
    backbone passes and latents per question."""

    name: str
    place: str
    questions: Questions
    verdicts: pd.DataFrame
    seconds: float
    forward_passes: float
    latent_steps: float
    unused: list[str]


def get_published(name: str) -> Published:
    """Return a published model, or raise :class:`InputError` with the nearest name and all names."""
    if name not in PUBLISHED:
        raise InputError(
            f"no published model is named {name!r}{suggestion(name, PUBLISHED)} (known: {', '.join(PUBLISHED)})"
        )
    return PUBLISHED[name]


def evaluate(name: str, test: str, folder: Path | None = None, latents: int | None = None) -> Result:
    """Answer a test set with a published model. ``folder``: with its weights; None: download them from the hub."""
    entry, questions = get_published(name), questions_of_test(test)
    place = folder or _downloaded(name, entry)
    model = load(name, place, latents)
    device = pick_device()
    method = model.method.to(device)
    prompts = model.encode([record.question for record in questions.records])
    require_room(method, name, prompts, model.format.decoding.max_new_tokens)
    decodings = [replace(model.format.decoding, seed=seed) for seed in range(entry.seeds)]
    rows, seconds, passes, thoughts = [], 0.0, [], []
    with Progress(f"{name} answers {test}", len(decodings) * len(prompts)) as progress:
        for decoding in decodings:
            for indices in batches_by_length(prompts, BATCH):
                asked = [prompts[i] for i in indices]
                generation, taken = timed(device, partial(generate, method, asked, decoding, "float32"))
                seconds += taken
                passes += [generation.cost.forward_passes] * len(indices)
                thoughts += [generation.cost.latent_steps] * len(indices)
                texts = texts_of(generation, model.tokenizer)
                for index, text in zip(indices, texts, strict=True):
                    record = questions.records[index]
                    verdict = questions.score(record, text)
                    rows.append((record.id, questions.same_as[record.id], text, verdict.correct))
                progress.advance(len(indices))
    verdicts = pd.DataFrame(rows, columns=["id", "same_as", "output", "correct"])
    means = (float(np.mean(values)) for values in (passes, thoughts))
    return Result(name, str(place), questions, verdicts, seconds / len(decodings), *means, unused=model.unused)


# ---- weights and backbones


def load(name: str, folder: Path, latents: int | None = None) -> Loaded:
    """Load a published model from a folder with its weights, and its backbone's configuration and tokenizer from
    ``base`` in it or else from the hub. Raise :class:`InputError` with what to download if something is missing."""
    entry = get_published(name)
    format = FORMATS[entry.format]
    if (count := latents or entry.latents) is not None:
        format = format.with_latents(count)
    tensors, place = read_tensors(folder)
    base, revision = _base(entry, folder)
    fix = (
        f"download the backbone (`hf download {base} --local-dir {folder / BASE}`; its config.json and tokenizer"
        f"{'' if format.whole else ', and its weights, which the file of adapters lacks'})"
    )
    try:
        config = AutoConfig.from_pretrained(base, revision=revision)
    except Exception as error:  # those of the hub have no common base class
        cause = " ".join(str(error).split())
        raise InputError(f"no backbone can be read from {base} ({type(error).__name__}: {cause}); {fix}") from error
    tokenizer = read_tokenizer(base, revision or "main", fix)
    for rate in [rate for rate in config.to_dict() if "drop" in rate]:
        setattr(config, rate, 0.0)
    words = replace(vocabulary(tokenizer), size=config.vocab_size)
    backbone = Backbone(config, None if format.whole else base, revision)
    method, unused = published_method(format, tensors, backbone, words, place)
    return Loaded(method, tokenizer, format, unused)


def _base(entry: Published, folder: Path) -> Hub:
    """Return the folder or hub id of a model's backbone, with the revision on the hub if one is known."""
    if (folder / BASE).is_dir():
        return str(folder / BASE), None
    if entry.format == "icot_si":  # its config.json names the backbone, and has nothing else that is needed
        named = str(read_json(folder / "config.json", "copy the whole published folder")["base_model"])
        if (folder / named).is_dir():
            return str(folder / named), None
        return entry.base if named in (entry.base[0], entry.base[0].rpartition("/")[2]) else (named, None)
    return entry.base


def read_tensors(folder: Path) -> tuple[dict[str, Tensor], str]:
    """Return all tensors of a checkpoint's folder, and the path of its (first) file. No code in a pickle is run."""
    if not folder.is_dir():
        raise InputError(f"there is no folder {folder}: name the one with the published weights (--folder)")
    if shards := sorted(folder.glob("model*.safetensors")):
        return _read_shards(shards), str(shards[0])
    found = sorted({path for pattern in FILES for path in folder.glob(pattern) if path.is_file()})
    if len(found) != 1:
        has = ", ".join(path.name for path in found) or "none"
        raise InputError(
            f"{folder} must have model*.safetensors or one file {', '.join(FILES)}; it has {has}: put the one that is "
            "meant into a folder of its own"
        )
    return _read_pickle(found[0]), str(found[0])


def _read_shards(shards: Sequence[Path]) -> dict[str, Tensor]:
    """Return the tensors of safetensors files in one folder, which must be all that an index there lists."""
    tensors: dict[str, Tensor] = {}
    for shard in shards:
        try:
            tensors |= load_file(shard)
        except SafetensorError as error:
            raise InputError(f"{shard} is damaged ({error}): download it again") from error
    index = shards[0].parent / "model.safetensors.index.json"
    if index.is_file() and (missing := read_json(index)["weight_map"].keys() - tensors.keys()):
        raise InputError(f"{index.parent} lacks {len(missing)} tensors that {index.name} lists: download all shards")
    return tensors


def _read_pickle(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a state dict. A pickle of more than tensors is refused."""
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except OSError:  # names the file itself
        raise
    except Exception as error:  # a damaged pickle raises whatever its bytes lead to
        raise InputError(
            f"{path} is damaged, or a pickle of more than tensors, which could run any code. If you trust it, keep "
            'its tensors alone: `tensors = torch.load(FILE, weights_only=False)["state_dict"]` (a Lightning file needs '
            "omegaconf), then `torch.save(tensors, FOLDER / 'state_dict.bin')`, in a folder of its own"
        ) from error
    if not isinstance(content, dict) or not all(isinstance(tensor, Tensor) for tensor in content.values()):
        raise InputError(f"{path} is no state dict of tensors by name: save the model's `state_dict()`")
    return content


def _downloaded(name: str, entry: Published) -> Path:
    """Return the folder with a model's weights from the hub."""
    if entry.hub is None:
        raise InputError(f"the weights of {name} are not on the hub: name the folder that has them (--folder)")
    hub, revision = entry.hub
    try:
        return Path(snapshot_download(hub, revision=revision))
    except Exception as error:  # those of the hub have no common base class
        pinned = f" --revision {revision}" if revision else ""
        cause = " ".join(str(error).split())[:200]
        raise InputError(
            f"cannot download {hub} ({type(error).__name__}: {cause}). Where there is a network: `hf download {hub}"
            f"{pinned} --local-dir FOLDER` and `hf download {entry.base[0]} --local-dir FOLDER/{BASE}`; then give "
            "--folder FOLDER"
        ) from error


# ---- what is shown


def render(result: Result) -> str:
    """Render a result as plain text."""
    entry, test = PUBLISHED[result.name], result.questions.name
    verdicts = result.verdicts
    low, high = interval(correctness(verdicts))
    drawn = f", mean of {entry.seeds} decodings" if entry.seeds > 1 else ""
    lines = [
        f"{entry.title} on {test}: {100 * verdicts['correct'].mean():.2f} % of {len(result.questions.records):,} "
        f"(95 % interval {100 * low:.2f} to {100 * high:.2f}{drawn})",
        f"answered in {result.seconds:.1f} s at batch {BATCH}, {result.forward_passes:.1f} passes and "
        f"{result.latent_steps:.1f} latents a question",
        f"weights: {result.place}",
    ]
    if entry.hub and not entry.hub[1]:
        lines.append("their revision is not pinned: cite that of the download")
    if result.unused:
        lines.append(f"not needed to answer, and left out: {', '.join(result.unused)}")
    reported = entry.reported.get(test)
    lines.append(
        f"reported by the authors on {test}: {'nothing' if reported is None else f'{reported} %, {entry.source}'}"
    )
    return "\n".join(lines)


def write(result: Result, path: Path) -> None:
    """Write the answers (of the first decoding) as JSON lines that `marcos-bench score` reads."""
    first = result.verdicts.drop_duplicates("id")
    rows = ({"id": id, "output": text} for id, text in zip(first["id"], first["output"], strict=True))
    write_text(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
