"""Some optimizer steps of any method on any engine, as a single process or as one of the ranks of a group.

RANK=0 WORLD_SIZE=2 … python tests/rank_cases.py FOLDER CASE …

runs these cases in one process group. It writes to FOLDER a file of numbers for each case, and what each rank reports
if the loss is not a number on one of them.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast
from unittest.mock import patch

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from benchmarks.engine import PlaceInPhase, Ranks, build_engine
from benchmarks.engine.adapters import add_adapters
from benchmarks.engine.sharded import DeepSpeedEngine
from benchmarks.studies.specs import EngineSpec, LoraSpec, TrainingSpec
from benchmarks.training import batches, loop
from benchmarks.training.batches import FeatureStore
from methods import head
from methods.base import Batch, Budget, Context, Example, Method, Output, Stage
from methods.registry import available, get_method
from tiny import ids, make

BATCHES = [np.arange(6), np.arange(6, 11), np.array([11])]  # the last two are not multiples of two ranks
TRAINING = TrainingSpec(epochs=4, batch_size=6, learning_rate=1e-3, schedule="cosine", warmup_steps=2)
BUDGET = Budget(epochs=8.0, steps_per_epoch=3, chain_lengths=(9,) * 12)
SPLIT_ABOVE = 20  # labels of a pass: some passes have more, so that one rank splits its logits and the other does not
Precision = Literal["float32", "bfloat16"]
Offload = Literal["none", "optimizer", "weights"]


@dataclass(frozen=True)
class Case:
    """A method on an engine with two ranks and ``micro`` examples per pass (None: each rank's whole share).

    ``adapted``: adapters are trained beside the transformers' weights; ``bare``: weight decay leaves out biases;
    ``split``: where a pass has more than a few labels, logits are computed in parts.
    """

    method: str
    zero_stage: Literal[0, 1, 2, 3]
    micro: int | None
    precision: Precision = "float32"
    offload: Offload = "none"
    adapted: bool = False
    dropout: float = 0.0
    bare: bool = False
    split: bool = False

    @property
    def name(self) -> str:
        parts = [self.method, f"zero{self.zero_stage}", "accumulated" if self.micro else ""]
        parts += ["" if self.precision == "float32" else self.precision]
        parts += ["" if self.offload == "none" else f"{self.offload}_offloaded", "adapted" if self.adapted else ""]
        parts += ["dropout" if self.dropout else "", "bare" if self.bare else ""]
        parts += ["split" if self.split else ""]
        return "-".join(filter(None, parts))

    @property
    def engine(self) -> EngineSpec:
        settings = {"zero_stage": self.zero_stage, "micro_batch": self.micro}
        return EngineSpec(kind="deepspeed", gpus=2, precision=self.precision, offload=self.offload, **settings)

    @property
    def training(self) -> TrainingSpec:
        decays = "matrices" if self.bare else "all"
        return TRAINING.model_copy(update={"dropout": self.dropout, "decays": decays, "weight_decay": 0.1})

    @property
    def resumes(self) -> bool:
        """Whether the last step is made on a new engine, as after loading a checkpoint. That takes as long as all else,
        and depends on the settings of the engine, all of which these cases have."""
        return self.method in ("cot_sft", "marcos") or self.adapted

    def made(self) -> Method:
        options = get_method(self.method).tested_options
        if not self.adapted:
            return make(self.method, options, dropout=self.dropout)
        lora = LoraSpec(rank=4, alpha=8, modules=("q_proj", "down_proj"))
        return add_adapters(make(self.method, options, tie_word_embeddings=self.method != "coconut"), lora, seed=0)


def cases() -> list[Case]:
    """Return every method with sharded weights or, if its passes may differ, sharded gradients.

    Of each pair of ZeRO stage and accumulation, one of two methods is run; all others are run with sharded weights, and
    CODI, whose distance is a statistic of a pass, at ZeRO 1, as runs that share all GPUs
    (benchmarks.studies.micro_batches.on_gpus). Of each other setting (bfloat16, offloading, adapters, dropout, what
    decays, logits in parts), one or two cases are run.
    """
    grid = [Case("cot_sft", 0, None), Case("cot_sft", 1, 2), Case("cot_sft", 2, None)]
    grid += [Case("marcos", 0, 2), Case("marcos", 1, None), Case("marcos", 2, 2)]
    grid += [Case("cot_sft", 3, 2, split=True), Case("marcos", 3, None, split=True)]
    for name in available():
        if name not in ("cot_sft", "marcos"):
            grid.append(Case(name, 3 if Case(name, 0, 2).made().even_passes else 2, 2))
    grid += [Case("codi", 1, None), Case("cot_sft", 3, 2, "bfloat16"), Case("marcos", 2, 2, "bfloat16")]
    grid += [Case("cot_sft", 2, 2, offload="optimizer"), Case("marcos", 3, 2, offload="weights")]
    grid += [Case("codi", 2, None, adapted=True, bare=True), Case("coconut", 3, 2, adapted=True)]
    return [*grid, Case("codi", 3, None, bare=True), Case("marcos", 3, 2, dropout=0.1)]


class Problems:
    """Twelve examples of unequal length, with the interface of a corpus."""

    def __init__(self) -> None:
        self.all = [self.example(i) for i in range(12)]
        self.lengths = np.array([len(example.question) for example in self.all])

    @staticmethod
    def example(i: int) -> Example:
        lines = [ids(f"<<{i}+{step}={i + step}>>") for step in range(i % 4)]
        return Example(f"row-{i}", ids(f"{i} + {i * i}" + "?" * (i % 5)), lines, ids(str(2 * i)))

    def examples(self, indices: np.ndarray) -> list[Example]:
        return [self.all[i] for i in indices]

    def __len__(self) -> int:
        return len(self.all)


def numbers(case: Case, spec: EngineSpec, ranks: Ranks, folder: Path) -> dict[str, Tensor]:
    """Return the numbers of some steps in the first and in the last stage, on an engine of the case or on another.

    They are the loss terms and gradient norms, the validation terms, and each stage's final weights and optimizer
    states.
    """
    made = case.made()
    stages = made.stages(BUDGET)
    found: dict[str, Tensor] = {}
    with patch.object(head, "AT_ONCE", SPLIT_ABOVE * made.vocabulary.size if case.split else head.AT_ONCE):
        for stage in [stages[0], *stages[1:][-1:]]:
            resumes = case.resumes and stage is stages[0]
            for name, value in _run(made, stage, case, spec, ranks, folder, resumes).items():
                found[f"{stage.name}: {name}"] = value
    return found


def _run(
    method: Method, stage: Stage, case: Case, spec: EngineSpec, ranks: Ranks, folder: Path, resumes: bool
) -> dict[str, Tensor]:
    problems: Any = Problems()
    data = batches.StageLoader(method, problems, stage, 0)
    if stage.cached:
        store = FeatureStore(folder / f"features-{ranks.world}", "features", ranks)
        store.fill(data, np.arange(len(problems)), spec.precision, 4)
        data.features = store
    found: dict[str, Tensor] = {}
    engine = build_engine(method, stage, case.training, spec, PlaceInPhase(1, 8), ranks)
    for step, indices in enumerate(BATCHES):
        if resumes and step == len(BATCHES) - 1:
            states, updates = dict(_copies("", engine.optimizer_states())), engine.updates
            engine.close()
            engine = build_engine(method, stage, case.training, spec, PlaceInPhase(1, 8), ranks)
            engine.load_optimizer_states(states, updates)
        sums = loop.optimizer_step(batches.PrefetchingLoader(engine, data, [(indices, data.context(0, step))]), step)
        method.after_step(sums.statistics)
        values = {**sums.terms(), "tokens": float(sums.tokens), "gradient norm": sums.norms["grad_norm"]}
        found |= {f"{name} at step {step}": torch.tensor(value) for name, value in values.items()}
    method.eval()
    validation = loop.validation_sums(engine, data, data.context(0, 3, training=False), 5).terms()
    method.train()
    found |= {f"validation {name}": torch.tensor(value) for name, value in validation.items()}
    found |= _copies("weight", engine.weights()) | _copies("state", engine.optimizer_states())
    engine.close()
    after = _copies("weight", ((name, tensor) for name, tensor in method.state_dict(keep_vars=True).items()))
    assert all(torch.equal(tensor, after[name]) for name, tensor in found.items() if name.startswith("weight"))
    return found


def said_of_no_number(ranks: Ranks) -> str:
    """Return what a rank reports if the last rank's loss is not a number."""
    method, problems = make("cot_sft", {}), cast(Any, Problems())
    stage = method.stages(BUDGET)[0]
    data = batches.StageLoader(method, problems, stage, 0)
    engine = build_engine(method, stage, TRAINING, Case("cot_sft", 2, 2).engine, PlaceInPhase(1, 8), ranks)
    output_of = engine._forward
    assert isinstance(engine, DeepSpeedEngine)
    own, world = engine.engine.data_parallel_group, torch.distributed.group.WORLD
    assert own is not world and _timeout(own) == _timeout(world), "the group that ZeRO communicates over waits as long"

    def spoiled(batch: Batch, context: Context) -> Output:
        output = output_of(batch, context)
        return Output({name: loss * float("nan") for name, loss in output.losses.items()}, output.statistics)

    if ranks.rank == ranks.world - 1:
        engine._forward = spoiled  # type: ignore[method-assign]
    try:
        loop.optimizer_step(batches.PrefetchingLoader(engine, data, [(BATCHES[0], data.context(0, 5))]), 0)
    except loop.NonFiniteLoss as error:
        return str(error)
    finally:
        engine.close()
    return "nothing"


def _timeout(group: Any) -> Any:
    return group._get_backend(torch.device("cpu")).options._timeout


def _copies(kind: str, tensors: Any) -> dict[str, Tensor]:
    return {f"{kind} {name}".strip(): tensor.detach().cpu().clone() for name, tensor in tensors}


def main(folder: Path, chosen: Sequence[Case]) -> None:
    from benchmarks.engine.ranks import join

    torch.set_num_threads(1)
    with join(300) as ranks:
        gc.freeze()  # as in `benchmarks/rank.py`
        for case in chosen:
            found = numbers(case, case.engine, ranks, folder)
            if ranks.first:
                save_file(found, folder / f"{case.name}.partial")
                (folder / f"{case.name}.partial").rename(folder / f"{case.name}.safetensors")
                print(case.name, flush=True)
        (folder / f"said-{ranks.rank}.txt").write_text(said_of_no_number(ranks), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), [case for case in cases() if case.name in sys.argv[2:]])
