"""CoLaR agrees with every number that the authors' code computed."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from golden import GOLDEN_VARIABLE, backbone_config, cases, check_gradients, close, load_case, under_our_names
from methods.backbone import Backbone
from methods.base import Batch, Context, Example, Setup, Stage, Vocabulary
from methods.colar import CoLaR, CoLaROptions
from methods.collate import IGNORE

CASES = cases("colar")
OURS = {  # published prefix -> ours
    "llm.": "lm.",
    "latent_policy.fc.": "latent_head.body.",
    "latent_policy.mean.": "latent_head.mean.",
    "latent_policy.log_std.": "latent_head.log_deviation.",
}
CONTEXT = Context(Stage("compression", 1.0), epoch=0, step=0, seed=0, training=False)
POINT = 1e-9  # the deviation that the published code gives a deterministic head; it shows only in the head's entropy
pytestmark = pytest.mark.skipif(not CASES, reason=f"{GOLDEN_VARIABLE} names no folder with colar_*.safetensors")


class Golden:
    """A golden case: the model with its weights, and its batch with the labels that were drawn."""

    def __init__(self, path: Path) -> None:
        self.tensors, meta = load_case(path)
        state = under_our_names(self.tensors, "weight", OURS)
        self.deterministic = "latent_head.log_deviation.weight" not in state
        options = CoLaROptions.model_validate(
            {
                "max_compression": int(meta["compression"]),
                "sqrt_mean": meta["sqrt_mean"] == "True",
                "latent_loss": meta["embed_loss"],
                "deterministic": self.deterministic,
                "head_width": len(state["latent_head.body.0.weight"]),
            }
        )
        config = backbone_config(meta, vocab_size=int(meta["separator"]))
        # The examples contain the whole layout
        vocabulary = Vocabulary(config.vocab_size, int(meta["eos"]), lambda text: [])
        self.model = CoLaR(options, Setup(Backbone(config), vocabulary)).double()
        state["embedding_deviation"] = torch.tensor(float(meta["embeds_std"]), dtype=torch.double)
        missing, unexpected = self.model.load_state_dict(state, strict=False)
        assert not unexpected and all("lm_head" in name for name in missing)
        assert self.model.separator == int(meta["separator"])

    def batch(self) -> Batch:
        batch = self.model.collate(self.examples(), CONTEXT)
        labelled, drawn = batch["labels"] != IGNORE, self.tensors["upstream.labels"]
        assert torch.equal(labelled.sum(1), (drawn != IGNORE).sum(1))
        batch.tensors["labels"][labelled] = drawn[drawn != IGNORE]
        return batch

    def examples(self) -> list[Example]:
        """Return the examples. The method adds the separators that open chain and answer, and the end of text."""
        count = sum(name.startswith("in.q") for name in self.tensors)
        pieces = [[self.tensors[f"in.{kind}{row}"].tolist() for kind in "qsa"] for row in range(count)]
        return [Example(str(i), q, [s[1:]], a[1:-1]) for i, (q, s, a) in enumerate(pieces)]


@pytest.fixture(params=CASES, ids=lambda path: path.stem)
def golden(request: pytest.FixtureRequest) -> Golden:
    return Golden(request.param)


def test_losses_and_gradients(golden: Golden) -> None:
    batch = golden.batch()
    output = golden.model(batch, CONTEXT)
    means = {name: loss / batch.denominators[name] for name, loss in output.losses.items()}
    close(means["cross_entropy"], golden.tensors["out.ce_loss"])
    close(means["latent"], golden.tensors["out.embed_modeling_loss"])
    total = torch.stack(list(means.values())).sum()
    close(total, golden.tensors["out.total_loss"])
    if golden.deterministic:
        entropy = torch.tensor(0.5 * math.log(2 * math.pi * math.e) + math.log(POINT))
    else:
        entropy = output.statistics["entropy"] / output.statistics["vectors"]
    close(entropy, golden.tensors["out.entropy"])
    total.backward()
    check_gradients(golden.model, under_our_names(golden.tensors, "grad", OURS))


def test_compressed_vectors(golden: Golden) -> None:
    batch = golden.batch()
    vectors = golden.model._compress(batch)
    published = golden.tensors["upstream.attention_mask"].bool()
    real = torch.arange(vectors.shape[1]) < published.sum(1, keepdim=True)
    close(vectors[real], golden.tensors["upstream.inputs_embeds"][published])


def test_a_drawn_label_is_a_token_of_its_block(golden: Golden) -> None:
    drawn = golden.model.collate(golden.examples(), CONTEXT)["labels"]
    published = golden.batch()["labels"]
    chain = torch.stack([golden.tensors[f"in.s{row}"] for row in range(len(drawn))])
    differing = (drawn != published).nonzero().tolist()
    assert all(drawn[row, place] in chain[row] for row, place in differing)
