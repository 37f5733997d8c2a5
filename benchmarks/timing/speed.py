"""Measure how much batching and a KV cache speed up every method's answers, and its training step over the naive one;
and the training loop beside that of transformers.

Weights are untrained, so answers are forced to the lengths of the gold answers. Both ways then do the same work and
give the same answers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from tabulate import tabulate
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from benchmarks.console import Progress
from benchmarks.data import Corpus, epoch_batches, load_tokenizer, open_corpus, prepare, vocabulary
from benchmarks.engine import ALONE, PlaceInPhase, build_engine, deterministic, pick_device
from benchmarks.engine.device import synchronize
from benchmarks.environment import environment, with_hardware
from benchmarks.evaluation.inference import batches_by_length
from benchmarks.studies.specs import Block, EngineSpec, TrainingSpec
from benchmarks.studies.study import Study
from benchmarks.timing.steps import take, timed
from benchmarks.training.batches import StageLoader
from methods.backbone import load_backbone
from methods.base import Budget, Context, Example, Method, Setup, Vocabulary
from methods.collate import IGNORE
from methods.cot_sft import CoTSFT, CoTSFTOptions, prompt, target
from methods.generation import CachePolicy, Decoding
from methods.registry import available, build

BATCH = 64
LOOP_STEPS = 40  # optimizer steps of each training loop
STEP = {"backbone": "qwen2-tiny", "hidden_size": 96, "batch_size": 64, "tokens": 70}  # size of the training step


def measure_speed(study: Study, results: Path, repeats: int, questions: int) -> dict[str, Any]:
    """Measure all registered methods with the backbone and tokenizer of the study's block with the most runs. The
    questions are the first ``questions`` of its training set, or all if there are fewer."""
    torch.set_num_threads(study.timing_threads)
    made, block = environment(), fullest_block(study)
    data = prepare(study, block, results)
    words = vocabulary(load_tokenizer(data))
    backbone = block.backbone or study.backbone
    setup = Setup(load_backbone(vocab_size=words.size, **backbone.model_dump()), words)
    corpus = open_corpus(data, "train")
    examples = corpus.examples(range(min(questions, len(corpus))))
    of_step = load_backbone(STEP["backbone"], words.size, overrides={"hidden_size": STEP["hidden_size"]})
    answers, training = {}, {}
    with Progress("speed", len(available()) + 1) as progress:
        for name in available():
            answers[name] = time_answers(_built(name, options_in(study, block, name), setup), examples, repeats)
            if (step := time_step(name, Setup(of_step, words), repeats)) is not None:
                training[name] = step
            progress.advance()
        loop = time_loops(setup, corpus, study.training, LOOP_STEPS, repeats)
        progress.advance()
    return {
        "study": study.name,
        "block": block.id,
        "backbone": backbone.model_dump(),
        "batch_size": BATCH,
        "questions": len(examples),
        "repeats": repeats,
        "answers": answers,
        "training_step": {**STEP, "layers": of_step.config.num_hidden_layers},
        "training": training,
        "loop": loop,
        "environment": with_hardware(made),
    }


def fullest_block(study: Study) -> Block:
    """Return the block with the most runs, whose options stand for the study's."""
    runs = list(study.runs.values())
    return max(study.blocks, key=lambda block: sum(run.block == block.id for run in runs))


def options_in(study: Study, block: Block, method: str) -> dict[str, Any]:
    """Return a method's options in a block: those of its first row there that is not a control, or else its own
    defaults."""
    rows = [row for row in study.rows_of(block) if row.method == method and not row.control]
    return study.options_of(block, rows[0]).model_dump() if rows else {}


def _built(name: str, options: dict[str, Any], setup: Setup) -> Method:
    """Build a method and perturb its weights slightly. Markers that start out identical would have equal logits, and
    which of them comes first would be chance."""
    method, generator = build(name, options, setup, seed=0), torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in method.parameters():
            parameter += 0.01 * torch.randn(parameter.shape, generator=generator)
    return method.to(pick_device()).eval()


@torch.no_grad()
def time_answers(method: Method, examples: Sequence[Example], repeats: int) -> dict[str, Any]:
    """Return the questions per second with a cache, in batches formed as in evaluation, and without one, question by
    question. Each is computed from the median time of the repeats."""
    batches = [[examples[i] for i in rows] for rows in batches_by_length([e.question for e in examples], BATCH)]
    singles = [[example] for batch in batches for example in batch]

    def answers(parts: Sequence[Sequence[Example]], cache: CachePolicy) -> list[list[int]]:
        answers_of_all = []
        for part in parts:
            decoding = Decoding(cache=cache, lengths=tuple(method.length(example) for example in part))
            answers_of_all += method.generate([example.question for example in part], decoding).answer.tolist()
        return [[token for token in row if token != method.vocabulary.eos] for row in answers_of_all]

    same = sum(a == b for a, b in zip(answers(batches, "auto"), answers(singles, "none"), strict=True))  # warms up too
    cached = len(examples) / median_seconds(method.device, partial(answers, batches, "auto"), repeats)
    uncached = len(examples) / median_seconds(method.device, partial(answers, singles, "none"), repeats)
    rates = {"batched": cached, "single": uncached, "ratio": cached / uncached}
    return {"title": method.title, **rates, "same": same / len(examples)}


def time_step(name: str, setup: Setup, repeats: int) -> dict[str, Any] | None:
    """Return the seconds of forward and backward over one batch of the last stage, batched and naive, or None if the
    method has no naive forward pass."""
    method = _built(name, {}, setup)
    context = Context(method.stages(Budget(1.0, 100))[-1], epoch=0, step=0, seed=0)
    shortest = method.collate([_example(1)], context).tokens
    rows = [_example(STEP["tokens"] - shortest + 1)] * STEP["batch_size"]
    batch = method.collate(rows, context).to(method.device)
    with torch.no_grad():
        if method.naive_forward(method.collate(rows[:1], context).to(method.device), context) is None:
            return None

    def step(forward: Callable[..., Any]) -> None:
        method.zero_grad()
        torch.stack(list(forward(batch, context).losses.values())).sum().backward()

    step(method)  # warm-up
    ours, naive = (
        median_seconds(method.device, partial(step, forward), repeats) for forward in (method, method.naive_forward)
    )
    return {
        "title": method.title,
        "tokens": batch.tokens / STEP["batch_size"],
        "seconds": ours,
        "naive_seconds": naive,
        "ratio": naive / ours,
    }


def _example(question: int) -> Example:
    return Example("row", [7] * question, [[5] * 8] * 3, [9] * 4)


def median_seconds(device: torch.device, work: Callable[[], Any], repeats: int) -> float:
    return median(timed(device, work)[1] for _ in range(repeats))


def render_speed(record: dict[str, Any]) -> str:
    made, step, loop = record["environment"], record["training_step"], record["loop"]
    answers = [[a["title"], a["batched"], a["single"], a["ratio"]] for a in record["answers"].values()]
    headers = ["Method", f"cached, batch {BATCH} (questions/s)", "uncached, one by one (questions/s)", "ratio"]
    steps = [[t["title"], t["seconds"], t["naive_seconds"], t["ratio"]] for t in record["training"].values()]
    form = {"tablefmt": "pipe", "floatfmt": ("", ".3g", ".3g", ".1f")}
    loops = [["CoT-SFT", loop["ours"], loop["trainer"], loop["ratio"]]]
    versions = ", ".join(f"{name} {made[name]}" for name in ("torch", "transformers", "python"))
    return "\n\n".join(
        [
            tabulate(answers, headers, **form),
            tabulate(steps, ["Training step", "batched (s)", "row by row (s)", "ratio"], **form),
            tabulate(loops, ["Training loop", "here (tokens/s)", "`Trainer` (tokens/s)", "ratio"], **form),
            f"{made['device']} ({made['cpu']}), {made['threads']} threads, {versions}; study {record['study']}, block "
            f"{record['block']}. {record['questions']} questions, in batches of about equal length; untrained "
            f"weights, so answers have the lengths of the gold ones. The training step has batch {step['batch_size']}, "
            f"{step['tokens']} tokens, {step['layers']} layers of width {step['hidden_size']}. The training loops make "
            f"{loop['steps']} updates each with batch {loop['batch_size']}, {loop['tokens_per_row']:.0f} tokens a row "
            "on average, in float32; they start from the same weights, and end with the same up to rounding.",
        ]
    )


# ---- the loop of `Trainer`


@deterministic()  # as in training
def time_loops(setup: Setup, corpus: Corpus, training: TrainingSpec, steps: int, repeats: int) -> dict[str, Any]:
    """Return the tokens per second of CoT-SFT's loop here and of the ``Trainer``: medians of ``repeats`` trainings
    each, in turn, of ``steps`` optimizer steps in float32 from the same weights. Tokens are those of the data.

    Both make the same updates: AdamW with a constant rate, no decay of biases and norm weights, clipped gradients.
    ``difference`` is how far they end apart, relative to the norm of the weights.
    """
    training = training.model_copy(
        update={"schedule": "constant", "warmup_steps": 0, "decays": "matrices", "dropout": 0.0, "lora": None}
    )
    batches: list[np.ndarray] = []
    for epoch in count():
        drawn = epoch_batches(corpus.lengths, training.batch_size, 0, epoch, training.group_by_length)
        largest = max(map(len, drawn))
        batches += [batch for batch in drawn if len(batch) == largest]  # the Trainer cuts batches of one size
        if len(batches) >= steps:
            break
    del batches[steps:]
    first = CoTSFT(CoTSFTOptions(), setup).lm.state_dict()
    seconds: dict[str, list[float]] = {"ours": [], "trainer": []}
    for _ in range(1 + repeats):  # the first warms up
        ours, ended = _ours(setup, corpus, batches, training, first)
        theirs, others = _trainer(setup, corpus, batches, training, first)
        seconds["ours"].append(ours)
        seconds["trainer"].append(theirs)
    tokens = sum(int(corpus.lengths[batch].sum()) for batch in batches)
    rates = {name: tokens / median(taken[1:]) for name, taken in seconds.items()}
    apart = torch.cat([(ended[name] - others[name]).flatten() for name in ended]).norm()
    norm = torch.cat([weight.flatten() for weight in ended.values()]).norm()
    return {
        **rates,
        "ratio": rates["ours"] / rates["trainer"],
        "difference": float(apart / norm),
        "steps": steps,
        "batch_size": len(batches[0]),
        "tokens_per_row": tokens / steps / len(batches[0]),
    }


def _ours(
    setup: Setup, corpus: Corpus, batches: Sequence[np.ndarray], training: TrainingSpec, first: dict[str, Tensor]
) -> tuple[float, dict[str, Tensor]]:
    """Return the seconds of a training in this suite's loop, and the weights it ends with."""
    method = CoTSFT(CoTSFTOptions(), setup)
    method.lm.load_state_dict(first)
    method.to(pick_device()).train()
    stage = method.stages(Budget(1.0, len(batches)))[0]
    engine = build_engine(method, stage, training, EngineSpec(), PlaceInPhase(0, len(batches)), ALONE)
    data = StageLoader(method, corpus, stage, 0)
    _, seconds = timed(method.device, partial(take, engine, data, batches))
    return seconds, _weights(method.lm)


def _trainer(
    setup: Setup, corpus: Corpus, batches: Sequence[np.ndarray], training: TrainingSpec, first: dict[str, Tensor]
) -> tuple[float, dict[str, Tensor]]:
    """Return the seconds of the steps of a training by the ``Trainer``, and the weights it ends with."""
    from transformers import AutoModelForCausalLM, PrinterCallback, Trainer, TrainerCallback, TrainingArguments

    class Clock(TrainerCallback):
        """Times the steps alone, as ours are timed: not what the ``Trainer`` sets up before the first one."""

        began = ended = 0.0

        def on_train_begin(self, *_: Any, **__: Any) -> None:
            synchronize(device)
            self.began = time.perf_counter()

        def on_train_end(self, *_: Any, **__: Any) -> None:
            synchronize(device)
            self.ended = time.perf_counter()

    device = pick_device()
    model = AutoModelForCausalLM.from_config(setup.backbone.config, dtype=torch.float32)
    model.load_state_dict(first)
    with TemporaryDirectory() as folder:
        trainer = Trainer(
            model,
            TrainingArguments(
                folder,
                max_steps=len(batches),
                per_device_train_batch_size=len(batches[0]),
                train_sampling_strategy="sequential",
                learning_rate=training.learning_rate,
                lr_scheduler_type="constant",
                weight_decay=training.weight_decay,
                adam_beta1=training.betas[0],
                adam_beta2=training.betas[1],
                max_grad_norm=training.max_grad_norm or 0.0,
                optim="adamw_torch_fused",
                use_cpu=device.type == "cpu",
                dataloader_pin_memory=device.type == "cuda",
                remove_unused_columns=False,
                logging_strategy="no",
                save_strategy="no",
                report_to="none",
                disable_tqdm=True,
            ),
            train_dataset=_Rows(corpus, np.concatenate(batches), setup.vocabulary),
            data_collator=_padded,
        )
        trainer.remove_callback(PrinterCallback)
        trainer.add_callback(clock := Clock())
        trainer.train()
        return clock.ended - clock.began, _weights(model)


class _Rows(torch.utils.data.Dataset[dict[str, Tensor]]):
    """Some rows of a corpus in the form of Hugging Face's language models, which shift the labels themselves."""

    def __init__(self, corpus: Corpus, rows: np.ndarray, vocabulary: Vocabulary) -> None:
        self.examples, self.vocabulary = corpus.examples(rows), vocabulary

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, place: int) -> dict[str, Tensor]:
        example = self.examples[place]
        asked, written = prompt(example.question, self.vocabulary), target(example, self.vocabulary)
        ids, labels = torch.tensor(asked + written), torch.tensor([IGNORE] * len(asked) + written)
        return {"input_ids": ids, "labels": labels}


def _padded(rows: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Return a batch of rows, padded on the right."""
    ids = [row["input_ids"] for row in rows]
    return {
        "input_ids": pad_sequence(ids, batch_first=True),
        "attention_mask": pad_sequence([torch.ones_like(row) for row in ids], batch_first=True),
        "labels": pad_sequence([row["labels"] for row in rows], batch_first=True, padding_value=IGNORE),
    }


def _weights(model: nn.Module) -> dict[str, Tensor]:
    return {name: weight.detach().cpu() for name, weight in model.named_parameters()}
