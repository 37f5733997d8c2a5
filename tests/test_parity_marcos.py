"""MarCos agrees with every number that the authors' code computed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from golden import backbone_config, cases, check_gradients, close, load_case, under_our_names
from methods.backbone import Backbone
from methods.base import Batch, Budget, Context, Setup, Stage, Vocabulary
from methods.collate import IGNORE, label_indices
from methods.decoding import decode, prefill
from methods.generation import Decoding
from methods.marcos.method import MarCos
from methods.marcos.options import MarCosOptions, SparsityOptions
from methods.marcos.variants import speak_at_once

CASES = cases("marcos")
OURS = {  # published prefix -> ours
    "encoder.": "understanding.",
    "think_model.": "thinking.",
    "decoder.": "speaking.",
    "random_encoder.": "posterior.trunk.",
    "projection_mlp1.0.": "posterior.expand.",
    "projection_mlp2.": "inject.",
}
pytestmark = pytest.mark.skipif(not CASES, reason="MARCOS_BENCH_GOLDEN names no folder with marcos_*.safetensors")


class Golden:
    """A golden case: the model with its weights, and the batch."""

    def __init__(self, path: Path) -> None:
        self.tensors, self.meta = load_case(path)
        config = backbone_config(self.meta)
        self.steps, self.eos, newline = (int(self.meta[k]) for k in ("K", "eos", "newline"))
        options = MarCosOptions(
            steps=self.steps,
            deep=int(self.meta["T"]),
            shallow=int(self.meta["S"]),
            tau=int(self.meta["tau"]),
            sparsity=SparsityOptions(weight=float(self.meta["lambda"]), adaptive=False),
        )
        vocabulary = Vocabulary(config.vocab_size, self.eos, lambda text: [newline] if text == "\n" else [])
        self.model = MarCos(options, Setup(Backbone(config), vocabulary)).double()
        self.neurons = options.deep + options.shallow
        state = under_our_names(self.tensors, "weight", OURS)
        state["neurons"] = state.pop("neuron_matrix")[: self.neurons]
        state.pop("thinking.embed_tokens.weight")
        missing, unexpected = self.model.load_state_dict(state, strict=False)
        assert not unexpected
        assert all(name.startswith(("prior.", "sparsity.", "speaking.lm_head")) for name in missing)

    def batch(self) -> Batch:
        ids = [self.tensors[f"in.step{k}.target_ids"] for k in range(self.steps)]
        marks = [self.tensors[f"in.step{k}.loss_mask"].bool() for k in range(self.steps)]
        width = max(i.shape[1] for i in ids)
        ids = torch.cat([torch.nn.functional.pad(i, (0, width - i.shape[1]), value=self.eos) for i in ids])
        marks = torch.cat([torch.nn.functional.pad(m, (0, width - m.shape[1])) for m in marks])
        lengths = marks.sum(1)
        spoken_rows = (lengths > 1).nonzero().squeeze(1)
        labels = ids[:, 1:].masked_fill(~marks[:, :-1], IGNORE)[spoken_rows]
        return Batch(
            {
                "question": self.tensors["in.question_ids"],
                "question_real": self.tensors["in.question_mask"].bool(),
                "targets": ids[:, :-1],
                "lengths": lengths,
                "spoken_rows": spoken_rows,
                "labels": labels,
                "labelled": label_indices(labels),
            },
            {"reconstruction": 1.0, "sparsity": 1.0},
            tokens=0,
        )

    def randomness(self, batch: Batch) -> torch.Tensor:
        mean, _ = self.model.posterior(batch["targets"], batch["lengths"])
        return mean.view(self.steps, len(batch["question"]), -1)


@pytest.fixture(params=CASES, ids=lambda path: path.stem)
def golden(request: pytest.FixtureRequest) -> Golden:
    return Golden(request.param)


def test_losses_and_gradients(golden: Golden) -> None:
    context = Context(Stage("phase 1", 1.0), epoch=0, step=0, seed=0)
    losses = golden.model(golden.batch(), context).losses
    weight = float(golden.meta["lambda"])
    close(losses["reconstruction"], golden.tensors["out.reconstruction_nll_sum"])
    close(losses["sparsity"], weight * golden.tensors["out.sparsity_l1_sum"])
    torch.stack(list(losses.values())).sum().backward()
    expected = under_our_names(golden.tensors, "grad", OURS)
    if (neurons := expected.pop("neuron_matrix", None)) is not None:
        assert not neurons[golden.neurons :].any()  # the R rows of the published matrix have no use here
        expected["neurons"] = neurons[: golden.neurons]
    check_gradients(golden.model, expected)


def test_hidden_values(golden: Golden) -> None:
    model, batch = golden.model, golden.batch()
    hidden = model.understand(batch["question"])
    real = batch["question_real"]
    close(hidden[real], golden.tensors["out.understanding.last_hidden_state"][real])
    randomness = golden.randomness(batch)
    thoughts = model.think_all_steps(hidden, real, randomness)
    head = model.speaking.get_output_embeddings()
    for step in range(golden.steps):
        expected = {k.removeprefix(f"out.step{step}."): v for k, v in golden.tensors.items() if f"out.step{step}." in k}
        ids = golden.tensors[f"in.step{step}.target_ids"]
        close(randomness[step].abs().sum(-1), expected["R_l1"])
        close(thoughts[step], expected["neu_shallow"])
        close(head(model.speak(thoughts[step], ids)), expected["speaking_logits"])
        blank = torch.full_like(ids, golden.eos)
        at_once = speak_at_once(model.speaking, thoughts[step], blank, torch.zeros_like(ids, dtype=torch.bool))
        close(head(at_once), expected["nar_logits"])
    assert golden.tensors["out.reconstruction_tokens"] == (batch["labels"] != IGNORE).sum()


def test_greedy_tokens(golden: Golden) -> None:
    model, batch = golden.model, golden.batch()
    thoughts = model.think_all_steps(
        model.understand(batch["question"]), batch["question_real"], golden.randomness(batch)
    )
    for step in range(golden.steps):
        expected = golden.tensors[f"out.step{step}.greedy_tokens"]
        start = model.speaking.get_input_embeddings()(expected[:, :1])
        sequence = torch.cat([thoughts[step], start], dim=1)
        prefix = prefill(model.speaking.base_model, sequence, torch.ones(sequence.shape[:2], dtype=torch.bool))
        keys = torch.zeros(len(expected), dtype=torch.long)
        decoding = Decoding(max_new_tokens=expected.shape[1] - 1)
        tokens, _ = decode(model.speaking, prefix, decoding, keys, golden.eos)
        ended = (expected[:, 1:] == golden.eos).cumsum(1) > 0  # the published loop continues after the end
        wanted = expected[:, 1:].masked_fill(ended, golden.eos)
        padded = torch.nn.functional.pad(tokens, (0, wanted.shape[1] - tokens.shape[1]), value=golden.eos)
        assert torch.equal(padded, wanted)


def test_budget_is_split_between_phases(golden: Golden) -> None:
    assert [stage.epochs for stage in golden.model.stages(Budget(20, 1))] == [10, 10]
