"""SIM-CoT: another method, whose latents a second language model has to put into words during training."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch
from pydantic import Field, field_validator
from torch import Tensor

from methods.backbone import label_loss
from methods.base import Batch, Budget, Context, Example, Method, MethodOptions, Output, Setup, Stage, copy_weights
from methods.coconut import Coconut, CoconutOptions
from methods.codi import CODI, CODIOptions
from methods.collate import IGNORE, label_indices, pad
from methods.generation import Decoding, Generation, Length, Nats


class SimCoTOptions(MethodOptions):
    base: MethodOptions
    weight: float = Field(default=1.0, ge=0, description="weight of the decoder's cross entropy on the explained steps")


class SimCoT(Method):
    """Another method, ``base``, is trained with one additional loss: a decoder reads the latents that stand for a step
    and has to write the step.

    The decoder starts as a copy of the base's language model and reads tokens through the base's embeddings. It is not
    used for answering.
    """

    citation = """@misc{wei2025simcot,
  title={{SIM-CoT}: Supervised implicit chain-of-thought},
  author={Wei, Xilin and Liu, Xiaoran and Zang, Yuhang and others}, year={2025}, eprint={2509.20317},
  archivePrefix={arXiv}}"""
    Base: ClassVar[type[Coconut] | type[CODI]]
    has_latents = True
    caches_in_training = True
    options: Any

    def __init__(self, options: Any, setup: Setup) -> None:
        super().__init__(options, setup)
        self.base = self.Base(options.base, setup)
        # No deep copy: tensors without data, by which plans count, have none
        self.decoder = replace(setup.backbone, checkpoint=None).causal_lm(extra_tokens=self.base.lm.marker_rows)
        copy_weights(self.base.lm.state_dict(), self.decoder)

    def warm_start(self, weights: Mapping[str, Tensor]) -> None:
        copy_weights(weights, self.base)
        copy_weights(self.base.lm.state_dict(), self.decoder)

    def stages(self, budget: Budget) -> list[Stage]:
        return self.base.stages(budget)

    @property
    def even_passes(self) -> bool:
        return self.base.even_passes

    @property
    @abstractmethod
    def group(self) -> int:
        """The number of latents that together stand for one step."""

    @abstractmethod
    def explanations(self, example: Example, context: Context) -> list[list[int]]:
        """Return the text that each group of an example's latents stands for, empty if a group stands for none."""

    def text_weight(self, count: int) -> float:
        """Return the weight of the cross entropy of a text's tokens, as far as it depends on the example alone, which
        has ``count`` texts. The weighted sum is divided by the number of examples."""
        return 1.0

    def collate(self, examples: Sequence[Example], context: Context) -> Batch:
        """Collate the base's batch and R texts: ``explained`` (R, L), ``explained_labels`` and ``weights`` (R, L + 1),
        and ``latents`` (R, group), the indices of each text's latents among those of the whole batch."""
        batch = self.base.collate(examples, context)
        texts = [self.explanations(example, context) for example in examples]
        rows, most = [], max(map(len, texts))
        for row, own in enumerate(texts):
            first = (row + 1) * most - len(own)  # an example with fewer groups of latents has them at the end
            for group, text in enumerate(own, start=first):
                if text:
                    rows.append((group, self.text_weight(len(own)), [*text, self.vocabulary.eos]))
        if not rows and most:  # a text of weight 0, so that every micro-batch takes the same path
            rows = [(0, 0.0, [self.vocabulary.eos])]
        ids, written = pad([text for _, _, text in rows], self.vocabulary.eos)
        groups = torch.tensor([place for place, _, _ in rows], dtype=torch.long)[:, None]
        labels = ids.masked_fill(~written, IGNORE)
        tensors = {
            "explained": ids[:, :-1],
            "explained_labels": labels,
            "explained_labelled": label_indices(labels),
            "weights": torch.tensor([weight for _, weight, _ in rows])[:, None].expand_as(ids),
            "latents": groups * self.group + torch.arange(self.group),
        }
        tokens = batch.tokens + int(written.sum()) + len(rows) * (self.group - 1)
        denominators = batch.denominators | {"explanation": float(len(examples))}
        return Batch(batch.tensors | tensors, denominators, tokens, batch.keys)

    def forward(self, batch: Batch, context: Context) -> Output:
        output, latents = self.base.losses_and_latents(batch, context)
        weights = self.weights(batch, context)
        explained = self.explain(batch, latents, weights) if len(batch["latents"]) else self._zero_loss()
        output.losses["explanation"] = self.options.weight * explained
        return output

    def weights(self, batch: Batch, context: Context) -> Tensor:
        """Return the weights (R, L + 1) of the texts' tokens, including factors that depend on other examples."""
        return batch["weights"]

    def explain(self, batch: Batch, latents: Tensor, weights: Tensor) -> Tensor:
        """Return the weighted cross entropy of all texts, each read after its group of the latents (B, m, d)."""
        groups = latents.flatten(0, 1)[batch["latents"]]
        words = self.base.lm.get_input_embeddings()(batch["explained"])
        output = self.decoder.base_model(inputs_embeds=torch.cat([groups, words], dim=1), use_cache=False)
        hidden = output.last_hidden_state[:, self.group - 1 :]
        labels, at = batch["explained_labels"], batch["explained_labelled"]
        return label_loss(self.decoder.get_output_embeddings(), hidden, labels, at, weights)

    def length(self, example: Example) -> Length:
        return self.base.length(example)

    def _zero_loss(self) -> Tensor:
        """Return 0, for a batch whose examples have no latents, by calling the same modules as any explanation."""
        end = torch.full((1, 1), self.vocabulary.eos, device=self.device)
        words = self.base.lm.get_input_embeddings()(end)
        hidden = self.decoder.base_model(inputs_embeds=words, use_cache=False).last_hidden_state
        return 0.0 * label_loss(self.decoder.get_output_embeddings(), hidden, end, torch.zeros_like(end.expand(2, 1)))

    def nats(self, examples: Sequence[Example]) -> Nats:
        return self.base.nats(examples)

    def generate(self, questions: Sequence[Sequence[int]], decoding: Decoding) -> Generation:
        return self.base.generate(questions, decoding)


class SimCoTCoconutOptions(SimCoTOptions):
    base: CoconutOptions = Field(
        default=CoconutOptions(),
        description="options of Coconut, except warm_start; control must be none or no_curriculum",
    )

    @field_validator("base")
    @classmethod
    def _require_thoughts(cls, base: CoconutOptions) -> CoconutOptions:
        if base.control not in ("none", "no_curriculum"):
            raise ValueError(f"Coconut's control {base.control!r} has no thoughts to explain")
        if base.warm_start != CoconutOptions().warm_start:
            raise ValueError(
                "SIM-CoT starts from a Coconut checkpoint, whatever that one started from: leave out "
                "the base's `warm_start`"
            )
        return base


class SimCoTCoconut(SimCoT):
    """SIM-CoT repeats Coconut's curriculum, from a Coconut checkpoint, and explains the thoughts of each step."""

    name = "sim_cot_coconut"
    title = "SIM-CoT (Coconut)"
    Options: ClassVar = SimCoTCoconutOptions
    thoughts_option = f"base.{Coconut.thoughts_option}"
    answering_options = tuple(f"base.{name}" for name in Coconut.answering_options)
    Base = Coconut
    base: Coconut

    @classmethod
    def starts_from(cls, options: SimCoTCoconutOptions) -> str | None:
        return "coconut"

    @property
    def group(self) -> int:
        return self.base.options.thoughts_per_step

    def explanations(self, example: Example, context: Context) -> list[list[int]]:
        """Return the steps that thoughts replace. Thoughts beyond the last step stand for the answer."""
        (stage,) = self.base.example_stages([example], context)
        groups = min(stage, self.base.options.max_stage)
        replaced = len(example.steps) - len(self.base.steps_left(example, stage))
        lines = merge_steps(example.steps[:replaced], groups, self.vocabulary.newline)
        return [*lines, *[[*self.vocabulary.answer_marker, *example.answer]] * (groups - len(lines))]

    def text_weight(self, count: int) -> float:
        """Return a weight that sums the loss over the tokens of a text, and averages it over an example's texts."""
        return 1 / count


class SimCoTCODIOptions(SimCoTOptions):
    base: CODIOptions = Field(default=CODIOptions(), description="options of CODI")


class SimCoTCODI(SimCoT):
    """SIM-CoT keeps CODI's single stage and its losses, and explains every latent and the state after the last one."""

    name = "sim_cot_codi"
    title = "SIM-CoT (CODI)"
    Options: ClassVar = SimCoTCODIOptions
    thoughts_option = f"base.{CODI.thoughts_option}"
    answering_options = tuple(f"base.{name}" for name in CODI.answering_options)
    batch_terms = (*CODI.batch_terms, "explanation")
    Base = CODI
    base: CODI

    @classmethod
    def starts_from(cls, options: SimCoTCODIOptions) -> str | None:
        return CODI.starts_from(options.base)

    @property
    def group(self) -> int:
        return 1

    def explanations(self, example: Example, context: Context) -> list[list[int]]:
        """Return a step for each state, and nothing for states beyond the last step."""
        states = self.base.options.num_latents + 1
        lines = merge_steps(example.steps, states, self.vocabulary.newline)
        return [*lines, *[[]] * (states - len(lines))]

    def weights(self, batch: Batch, context: Context) -> Tensor:
        """Return weights by which the loss is, for each n, the mean over all tokens of the batch's n-th texts, and then
        the mean over every n that has texts. They allow for the later division by the number of examples."""
        nth = batch["latents"][:, 0] % (self.base.options.num_latents + 1)
        written = (batch["explained_labels"] != IGNORE) * batch["weights"].double()  # a text of weight 0 does not count
        count = written.new_zeros(self.base.options.num_latents + 1).index_add(0, nth, written.sum(1))
        rows = written.new_full((1,), len(batch["prompt"]))
        if context.over_ranks:
            count, rows = context.over_ranks(torch.cat([count, rows])).split([len(count), 1])
        share = rows / (count * (count > 0).sum()).clamp(min=1)
        return batch["weights"] * share.float()[nth, None]


def merge_steps(steps: Sequence[Sequence[int]], count: int, separator: Sequence[int]) -> list[list[int]]:
    """Return at most ``count`` texts: one step each, except that the last joins all remaining steps."""
    if len(steps) <= count:
        return [list(step) for step in steps]
    joined = [token for step in steps[count - 1 :] for token in (*separator, *step)]
    return [*map(list, steps[: count - 1]), joined[len(separator) :]]
