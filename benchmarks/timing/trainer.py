"""Compare the training loop with the ``Trainer`` of transformers: the same model, batches, optimizer and updates."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import count
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from benchmarks.data import Corpus, epoch_batches
from benchmarks.engine import PlaceInPhase, Ranks, build_engine, deterministic, pick_device
from benchmarks.studies.specs import EngineSpec, TrainingSpec
from benchmarks.timing.steps import take, timed
from benchmarks.training.batches import StageLoader
from methods.base import Budget, Setup, Vocabulary
from methods.collate import IGNORE
from methods.cot_sft import CoTSFT, CoTSFTOptions, prompt, target


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
    engine = build_engine(method, stage, training, EngineSpec(), PlaceInPhase(0, len(batches)), Ranks())
    data = StageLoader(method, corpus, stage, 0)
    _, seconds = timed(method.device, partial(take, engine, data, batches))
    return seconds, _weights(method.lm)


def _trainer(
    setup: Setup, corpus: Corpus, batches: Sequence[np.ndarray], training: TrainingSpec, first: dict[str, Tensor]
) -> tuple[float, dict[str, Tensor]]:
    """Return the seconds of a training by the ``Trainer``, and the weights it ends with."""
    from transformers import AutoModelForCausalLM, PrinterCallback, Trainer, TrainingArguments

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
        _, seconds = timed(device, trainer.train)
        return seconds, _weights(model)


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
