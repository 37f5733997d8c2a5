"""Coconut agrees with every number that the authors' code computed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from golden import backbone_config, cases, check_gradients, close, load_case, under_our_names
from methods.backbone import Backbone
from methods.base import Batch, Context, Setup, Stage, Vocabulary
from methods.coconut import Coconut, CoconutOptions
from methods.collate import IGNORE, label_indices, pad
from methods.generation import Decoding
from methods.last_layer import widen

CASES = cases("coconut")
pytestmark = pytest.mark.skipif(not CASES, reason="MARCOS_BENCH_GOLDEN names no folder with coconut_*.safetensors")
CONTEXT = Context(Stage("any", 1.0), epoch=0, step=0, seed=0)


class Golden:
    """A golden case: the model with its weights, and the batch, with each row split after its last thought."""

    def __init__(self, path: Path) -> None:
        self.tensors, meta = load_case(path)
        self.eos, markers = int(meta["eos"]), [int(meta[name]) for name in ("bot", "eot", "latent")]
        # The questions have their own line ends
        vocabulary = Vocabulary(min(markers), self.eos, lambda text: [0] if text == "<<" else [])
        options = CoconutOptions(thoughts_per_step=1, max_stage=int(meta["latents"]), stage_share=0.01)
        size = self.tensors["weight.model.embed_tokens.weight"].shape[0]
        config = backbone_config(meta, vocab_size=size - 3)
        self.model = Coconut(options, Setup(Backbone(config), vocabulary)).double()
        self.model.begin, self.model.end, self.model.latent = markers
        weights = under_our_names(self.tensors, "weight", {})
        missing, unexpected = self.model.lm.load_state_dict(weights, strict=False)
        assert not unexpected
        assert set(missing) <= {"lm_head.weight"}
        self.real = self.tensors["in.attention_mask"].bool()

    def rows(self, name: str) -> list[list[int]]:
        return [row[real].tolist() for row, real in zip(self.tensors[name], self.real, strict=True)]

    def batch(self) -> Batch:
        ids, labels = self.rows("in.input_ids"), self.rows("in.labels")
        ends = [row.index(self.model.end) for row in ids]
        prompts, real = pad([row[:end] for row, end in zip(ids, ends, strict=True)], self.eos, side="left")
        text, _ = pad([row[end:] for row, end in zip(ids, ends, strict=True)], self.eos)
        wanted, _ = pad([[*row[end + 1 :], IGNORE] for row, end in zip(labels, ends, strict=True)], IGNORE)
        at, thinking = label_indices(wanted), self.model._thought_mask(prompts)
        tensors = {
            "prompt": prompts,
            "real": real,
            "thinking": thinking,
            "text": text,
            "labels": wanted,
            "labelled": at,
        }
        return Batch(tensors, {"cross_entropy": float(at.shape[1])}, tokens=0)


@pytest.fixture(params=CASES, ids=lambda path: path.stem)
def golden(request: pytest.FixtureRequest) -> Golden:
    return Golden(request.param)


def test_loss_and_gradients(golden: Golden) -> None:
    batch = golden.batch()
    loss = golden.model(batch, CONTEXT).losses["cross_entropy"] / batch.denominators["cross_entropy"]
    close(loss, golden.tensors["out.loss"])
    loss.backward()
    check_gradients(golden.model.lm, under_our_names(golden.tensors, "grad", {}))


def test_thoughts_and_logits(golden: Golden) -> None:
    batch, read = golden.batch(), []
    trunk = golden.model.lm.base_model
    widen(trunk)  # the case has logits everywhere
    hook = trunk.register_forward_hook(
        lambda _, args, kwargs, output: read.append((kwargs["inputs_embeds"], output.last_hidden_state)),
        with_kwargs=True,
    )
    golden.model(batch, CONTEXT)
    hook.remove()
    inputs, hidden = (torch.cat(parts, dim=1) for parts in zip(*read, strict=True))
    lengths = [len(row) for row in golden.rows("in.input_ids")]
    leads = (~batch["real"]).sum(1).tolist()

    def own(values: Tensor) -> Tensor:
        return torch.cat([row[lead : lead + n] for row, lead, n in zip(values, leads, lengths, strict=True)])

    close(own(inputs), golden.tensors["out.inputs_embeds"][golden.real])
    close(golden.model.lm.get_output_embeddings()(own(hidden)), golden.tensors["out.logits"][golden.real])


def test_greedy_tokens_of_all_questions_at_once(golden: Golden) -> None:
    names = sorted(k.split(".")[1] for k in golden.tensors if k.startswith("in.gen"))
    prompts = [golden.tensors[f"in.{name}.input_ids"][0].tolist() for name in names]
    outputs = [golden.tensors[f"out.{name}.tokens"][0] for name in names]
    wanted = [output[len(asked) :] for output, asked in zip(outputs, prompts, strict=True)]
    limit = max(map(len, wanted))
    questions = [asked[: asked.index(golden.model.begin)] for asked in prompts]
    answers = golden.model.generate(questions, Decoding(max_new_tokens=limit)).answer
    for answer, tokens in zip(answers, wanted, strict=True):
        ended = (tokens == golden.eos).cumsum(0) > 0  # the published loop does not check its first token for the end
        assert torch.equal(answer[: len(tokens)], tokens.masked_fill(ended, golden.eos)[: len(answer)])
        assert (tokens.masked_fill(ended, golden.eos)[len(answer) :] == golden.eos).all()
