"""CODI: one network is both teacher and student. The student thinks in projected vectors, and learns from the hidden
states that the same network has when it reads the written chain (Shen et al., 2025)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from methods.backbone import label_loss
from methods.base import Batch, Budget, Context, Example, Method, MethodOptions, Output, Setup, Stage
from methods.collate import build_inputs_and_labels, label_indices, labelled_tail, masks_of_padding, pad
from methods.cot_sft import SCORING, lines, prompt
from methods.decoding import Prefix, decode, extend, forward_cached, prefill, read_prompts, swap_latents, text_nats
from methods.generation import Decoding, Generation, Length, Nats
from methods.last_layer import forward_last

ANSWER_PHRASE = "The answer is: "  # precedes every answer; the state at its last token is distilled
MARKERS = 2  # begin and end of thought: embedding rows after the vocabulary


class CODIOptions(MethodOptions):
    num_latents: int = Field(
        default=6, ge=0, description="number of latent thoughts before the answer; 0: a control without latents"
    )
    prj_dim: int | None = Field(
        default=None,
        ge=1,
        description="inner width of the projection from hidden states to latents; null: the hidden size",
    )
    distill_weight: float = Field(
        default=1.0,
        ge=0,
        description="weight of the distillation loss; published: 1 for GPT-2, 20 for pretrained Llama",
    )
    divide_by_std: bool = Field(
        default=True, description="divide each layer's distance by the standard deviation of the teacher's states"
    )
    include_last_step: bool = Field(
        default=False, description="keep the last step, which holds the result, in the teacher's chain"
    )
    warm_start: Literal["none", "cot_sft"] = Field(
        default="none", description="method to take the initial weights from"
    )


class CODI(Method):
    """One model is teacher and student: the student thinks in vectors and learns from the teacher's hidden states.

    The teacher reads ``question newline step newline … The answer is: answer <eos>``, by default without the last step;
    the student reads ``question newline <begin> latent … latent <end> The answer is: answer <eos>``.
    """

    name = "codi"
    title = "CODI"
    citation = """@inproceedings{shen2025codi,
  title={CODI: Compressing Chain-of-Thought into Continuous Space via Self-Distillation},
  author={Shen, Zhenyi and Yan, Hanqi and Zhang, Linhai and Hu, Zhanghao and Du, Yali and He, Yulan},
  booktitle={EMNLP}, year={2025}}"""
    Options: ClassVar = CODIOptions
    has_latents = True
    thoughts_option = "num_latents"
    caches_in_training = True
    batch_terms = ("distillation",)
    answering_options = ("num_latents",)
    options: CODIOptions

    def __init__(self, options: CODIOptions, setup: Setup) -> None:
        super().__init__(options, setup)
        self.lm = setup.backbone.causal_lm(extra_tokens=MARKERS)
        self.begin, self.end = range(self.lm.config.vocab_size - MARKERS, self.lm.config.vocab_size)
        width = setup.backbone.hidden_size
        inner = options.prj_dim or width
        self.project = nn.Sequential(nn.Linear(width, inner), nn.GELU(), nn.Linear(inner, width), nn.LayerNorm(width))
        self.phrase = self.vocabulary.encode(ANSWER_PHRASE)

    def stages(self, budget: Budget) -> list[Stage]:
        return [Stage("distillation", budget.epochs, select_on=("student",))]

    # -- training

    def collate(self, examples: Sequence[Example], context: Context) -> Batch:
        """Collate ``prompt`` (B, n), padded on the left, which the student reads before it thinks; ``student``, which
        it writes afterwards; ``teacher``, which the teacher reads; and ``distilled_position`` (B,), the position in
        ``teacher`` whose next token begins the answer."""
        eos = self.vocabulary.eos
        prompt_ids, prompt_real = pad([self._prompt(e.question) for e in examples], eos, side="left")
        answers = [self._answer(e) for e in examples]
        student_ids, student_labels, student_tokens = build_inputs_and_labels(
            [[self.end]] * len(examples), answers, eos
        )
        prompts = [prompt(e.question, self.vocabulary) for e in examples]
        chains = [self._chain(e) for e in examples]
        teacher_ids, teacher_labels, teacher_tokens = build_inputs_and_labels(
            prompts, [[*chain, *answer] for chain, answer in zip(chains, answers, strict=True)], eos
        )
        last = [len(p) + len(chain) + len(self.phrase) - 1 for p, chain in zip(prompts, chains, strict=True)]
        teacher_labels = labelled_tail(teacher_labels)
        student_labelled, teacher_labelled = label_indices(student_labels), label_indices(teacher_labels)
        return Batch(
            {
                "prompt": prompt_ids,
                **masks_of_padding(prompt_real=prompt_real),
                "student": student_ids,
                "teacher": teacher_ids,
                "distilled_position": torch.tensor(last),
                "student_labels": student_labels,
                "student_labelled": student_labelled,
                "teacher_labels": teacher_labels,
                "teacher_labelled": teacher_labelled,
            },
            {
                "student": float(student_labelled.shape[1]),
                "teacher": float(teacher_labelled.shape[1]),
                "distillation": float(len(examples)),
            },
            tokens=int(prompt_real.sum()) + self.options.num_latents * len(examples) + student_tokens + teacher_tokens,
        )

    def _prompt(self, question: Sequence[int]) -> list[int]:
        return [*prompt(question, self.vocabulary), self.begin]

    def _answer(self, example: Example) -> list[int]:
        """Return the tokens of the answer: its phrase, and end-of-text."""
        return [*self.phrase, *example.answer, self.vocabulary.eos]

    def _chain(self, example: Example) -> list[int]:
        steps = example.steps if self.options.include_last_step else example.steps[:-1]
        return lines(steps, self.vocabulary)

    def forward(self, batch: Batch, context: Context) -> Output:
        return self.losses_and_latents(batch, context)[0]

    def losses_and_latents(self, batch: Batch, context: Context) -> tuple[Output, Tensor]:
        """Return the loss sums and the projected states (B, num_latents + 1, d): the latents, and one not fed back.

        It takes three passes over whole texts and one for each latent. The teacher's single pass gives both its own
        loss, with gradients, and the states that the student has to match, without gradients.
        """
        trunk, head, embed = self.lm.base_model, self.lm.get_output_embeddings(), self.lm.get_input_embeddings()
        teacher_ids, count = batch["teacher"], batch["teacher_labels"].shape[1]
        teacher = forward_last(trunk, count, input_ids=teacher_ids, output_hidden_states=True, use_cache=False)
        prefix, latents = self.think(prefill(trunk, embed(batch["prompt"]), batch.get("prompt_real")), Decoding())
        _, student = forward_cached(prefix, embed(batch["student"]), hidden_states=True)
        rows = torch.arange(len(teacher_ids), device=self.device)
        at = batch["distilled_position"] - teacher_ids.shape[1]
        wanted = torch.stack([states[rows, at] for states in teacher.hidden_states]).detach()
        reached = torch.stack([states[:, len(self.phrase)] for states in student.hidden_states])
        distance = layer_distance(reached, wanted, self.options.divide_by_std, context.over_ranks)
        teacher_loss, student_loss = (
            label_loss(head, output.last_hidden_state, batch[f"{what}_labels"], batch[f"{what}_labelled"])
            for what, output in (("teacher", teacher), ("student", student))
        )
        losses = {
            "student": student_loss,
            "teacher": teacher_loss,
            "distillation": self.options.distill_weight * distance,
        }
        return Output(losses), torch.cat([latents, self.project(prefix.hidden)[:, None]], dim=1)

    def think(self, prefix: Prefix, decoding: Decoding) -> tuple[Prefix, Tensor]:
        """Feed back the projection of each last state, one pass each. Return the latents, (B, num_latents, d), too."""
        latents = []
        for _ in range(self.options.num_latents):
            latents.append(swap_latents(self.project(prefix.hidden), decoding))
            prefix = extend(prefix, latents[-1])
        return prefix, torch.stack(latents, dim=1) if latents else prefix.hidden[:, None][:, :0]

    # -- inference

    def length(self, example: Example) -> Length:
        return Length(len(self._answer(example)))

    def nats(self, examples: Sequence[Example]) -> Nats:
        prefix, _, _ = self._prefill_and_think([example.question for example in examples], SCORING)
        answers = [self._answer(example) for example in examples]
        return Nats(answer=text_nats(self.lm, prefix, answers, self.vocabulary.eos).sum(1))

    def generate(self, questions: Sequence[Sequence[int]], decoding: Decoding) -> Generation:
        prefix, latents, keys = self._prefill_and_think(questions, decoding)
        answer, cost = decode(self.lm, prefix, decoding, keys, self.vocabulary.eos)
        cost.latent_steps += self.options.num_latents
        return Generation(answer, cost, trace={"latents": latents} if decoding.trace else {})

    def _prefill_and_think(
        self, questions: Sequence[Sequence[int]], decoding: Decoding
    ) -> tuple[Prefix, Tensor, Tensor]:
        """Return what precedes the answer, the latents (B, num_latents, d) in it, and the keys (B,) for sampling."""
        prompts = [self._prompt(question) for question in questions]
        prefix, keys = read_prompts(self.lm, prompts, questions, decoding, self.vocabulary.eos)
        prefix, latents = self.think(prefix, decoding)
        end = self.lm.get_input_embeddings()(torch.full_like(keys, self.end))
        return extend(prefix, end), latents, keys


def layer_distance(
    student: Tensor, teacher: Tensor, divide_by_std: bool, over_ranks: Callable[[Tensor], Tensor] | None = None
) -> Tensor:
    """Return the smooth L1 distance between states (layers, B, d): the mean over d and layers, summed over B.

    With ``divide_by_std``, each layer's distance is divided by the standard deviation of all the teacher's numbers in
    the layer. It then depends on the other rows of the *micro-batch*, so gradient accumulation changes it a little.
    """
    distance = F.smooth_l1_loss(student, teacher, reduction="none").mean(-1)
    if divide_by_std:
        distance = distance / deviations(teacher, over_ranks)[:, None]
    return distance.mean(0).sum()


def deviations(states: Tensor, over_ranks: Callable[[Tensor], Tensor] | None) -> Tensor:
    """Return the standard deviations (layers,) of states (layers, B, d) over the rows of all ranks, in float32."""
    if over_ranks is None:
        return states.float().std(dim=(1, 2))
    numbers = states.double().flatten(1)
    count = numbers.new_full((len(states),), numbers.shape[1])
    count, total, squares = over_ranks(torch.stack([count, numbers.sum(1), numbers.square().sum(1)]))
    return ((squares - total.square() / count) / (count - 1)).sqrt().float()
