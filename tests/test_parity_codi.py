"""CODI agrees with every number that the authors' code computed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from golden import GOLDEN_VARIABLE, backbone_config, cases, check_gradients, close, load_case, under_our_names
from methods.backbone import Backbone
from methods.base import Context, Example, Setup, Stage, Vocabulary
from methods.codi import ANSWER_PHRASE, CODI, MARKERS, CODIOptions
from methods.collate import IGNORE, pad
from methods.decoding import forward_cached, prefill
from methods.generation import Decoding

CASES = cases("codi")
OURS = {"codi.": "lm.", "prj.1.": "project.0.", "prj.3.": "project.2.", "prj.ln.": "project.3."}  # published: ours
CONTEXT = Context(Stage("distillation", 1.0), epoch=0, step=0, seed=0)
pytestmark = pytest.mark.skipif(not CASES, reason=f"{GOLDEN_VARIABLE} names no folder with codi_*.safetensors")


class Golden:
    """A golden case: the model with its weights, and the examples that its batch was made from."""

    def __init__(self, path: Path) -> None:
        self.tensors, meta = load_case(path)
        rows = len(self.tensors["weight.codi.model.embed_tokens.weight"])
        self.eos, self.padding = int(meta["eos"]), int(meta["pad"])
        self.asked = self.unpadded("question_ids")
        taught, said = self.unpadded("teacher_input_ids"), self.unpadded("decoder_input_ids")
        ends, at = (self.tensors[f"in.{who}_distill_index"].tolist() for who in ("teacher", "student"))
        chains = [
            row[len(asked) : end - a + 1] for row, asked, end, a in zip(taught, self.asked, ends, at, strict=True)
        ]
        answers = [row[a + 1 : -1] for row, a in zip(said, at, strict=True)]
        pieces = zip(self.asked, chains, answers, strict=True)
        self.examples = [Example(str(i), asked, [chain], answer) for i, (asked, chain, answer) in enumerate(pieces)]
        phrase = said[0][1 : at[0] + 1]
        options = CODIOptions(
            num_latents=int(meta["latents"]),
            prj_dim=len(self.tensors["weight.prj.1.weight"]),
            distill_weight=float(meta["distill_factor"]),
            divide_by_std=meta["distill_div_std"] == "True",
            include_last_step=True,
        )
        vocabulary = Vocabulary(rows - MARKERS, self.eos, lambda text: phrase if text == ANSWER_PHRASE else [])
        backbone = Backbone(backbone_config(meta, vocab_size=rows - MARKERS))
        self.model = CODI(options, Setup(backbone, vocabulary)).double()
        assert (self.model.begin, self.model.end) == (int(meta["bot"]), int(meta["eot"]))
        state = under_our_names(self.tensors, "weight", OURS)
        missing, unexpected = self.model.load_state_dict(state, strict=False)
        assert not unexpected and all("lm_head" in name for name in missing)

    def unpadded(self, name: str) -> list[list[int]]:
        return [[token for token in row if token != self.padding] for row in self.tensors[f"in.{name}"].tolist()]


@pytest.fixture(params=CASES, ids=lambda path: path.stem)
def golden(request: pytest.FixtureRequest) -> Golden:
    return Golden(request.param)


def test_layout(golden: Golden) -> None:
    batch = golden.model.collate(golden.examples, CONTEXT)
    for ours, published in (("student", "decoder_input_ids"), ("teacher", "teacher_input_ids")):
        expected, _ = pad([row[:-1] for row in golden.unpadded(published)], golden.eos)
        assert torch.equal(batch[ours], expected)
    labels = golden.tensors["in.teacher_labels"][:, 1:]
    first = labels.shape[1] - batch["teacher_labels"].shape[1]
    assert torch.equal(batch["teacher_labels"], labels[:, first:])
    assert (labels[:, :first] == IGNORE).all()
    assert torch.equal(batch["student_labels"], golden.tensors["in.decoder_labels"][:, 1:])
    assert torch.equal(batch["distilled_position"], golden.tensors["in.teacher_distill_index"])


def test_losses_and_gradients(golden: Golden) -> None:
    batch = golden.model.collate(golden.examples, CONTEXT)
    losses = golden.model(batch, CONTEXT).losses
    means = {name: loss / batch.denominators[name] for name, loss in losses.items()}
    close(means["student"], golden.tensors["out.student_ce"])
    close(means["teacher"], golden.tensors["out.teacher_ce"])
    close(means["distillation"], golden.tensors["out.distill_weighted"])
    total = torch.stack(list(means.values())).sum()
    close(total, golden.tensors["out.loss"])
    total.backward()
    check_gradients(golden.model, under_our_names(golden.tensors, "grad", OURS))


def test_student_logits(golden: Golden) -> None:
    model, batch = golden.model, golden.model.collate(golden.examples, CONTEXT)
    trunk, embed = model.lm.base_model, model.lm.get_input_embeddings()
    prefix, _ = model.think(prefill(trunk, embed(batch["prompt"]), batch.get("prompt_real")), Decoding())
    _, output = forward_cached(prefix, embed(golden.tensors["in.decoder_input_ids"]))
    logits = model.lm.get_output_embeddings()(output.last_hidden_state)
    real = golden.tensors["in.decoder_labels"] != IGNORE
    close(logits[real], golden.tensors["out.student_logits"][real])


def test_greedy_tokens(golden: Golden) -> None:
    expected = golden.tensors["out.greedy_tokens"]
    generated = golden.model.generate(golden.asked, Decoding(max_new_tokens=expected.shape[1])).answer
    ended = (expected == golden.eos).cumsum(1) > 0  # the published loop continues after the end
    written = generated.shape[1]
    assert torch.equal(generated, expected.masked_fill(ended, golden.eos)[:, :written])
    assert ended[:, written:].all()
