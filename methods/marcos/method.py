"""MarCos: two phases of training, thinking in steps, and speaking from thoughts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from methods import interventions
from methods.backbone import label_loss
from methods.base import DEAD_R, Batch, Budget, Context, Example, Length, Method, Output, Setup, Stage
from methods.collate import IGNORE, pad
from methods.decoding import forced, swap_latents
from methods.generation import Decoding, Generation
from methods.marcos.layout import paths, positions, start, targets
from methods.marcos.options import MarCosOptions
from methods.marcos.randomness import RandomnessEncoder, RandomnessPredictor, SparsityController
from methods.marcos.speaking import at_once_loss, decode_at_once, decode_in_turn, revealed, speak, target_tensors
from methods.marcos.thinking import next_neurons, pool
from methods.random_keys import key, normal, question_keys


class MarCos(Method):
    """An understanding layer reads the question once; a thinking layer updates deep and shallow neurons K times; a
    speaking layer puts the shallow neurons of any step into words, independently of all other steps."""

    name = "marcos"
    title = "MarCos"
    citation = """@misc{liu2025marcos, title={Deep Thinking by {Markov} Chain of Continuous Thoughts},
  author={Liu, Jiayu and Huang, Zhenya and Yang, Xuan and Ji, Tianyun and Sims, Anya and Xu, Hao and Chen, Enhong and
  Teh, Yee Whye and Miao, Ning}, year={2025}, eprint={2509.25020}, archivePrefix={arXiv}}"""
    Options: ClassVar = MarCosOptions
    has_latents = True
    says_steps = True
    tested_options: ClassVar = {"deep": 2, "shallow": 3, "tau": 1, "sparsity": {"target": 1.0}}
    options: MarCosOptions

    def __init__(self, options: MarCosOptions, setup: Setup) -> None:
        super().__init__(options, setup)
        backbone = setup.backbone
        width, size = backbone.hidden_size, options.tau * backbone.hidden_size
        self.understanding = backbone.trunk()
        self.thinking = backbone.trunk(embeddings=False)
        self.speaking = backbone.causal_lm()
        self.neurons = nn.Parameter(torch.randn(options.deep + options.shallow, width))
        if options.randomness:
            self.posterior = RandomnessEncoder(backbone.trunk(pretrained=False), size, options.posterior == "gaussian")
            self.inject = nn.Sequential(nn.Linear(size, size), nn.ReLU(), nn.Linear(size, size))
            self.prior = RandomnessPredictor(width, size, options.epsilon)
            self.sparsity = SparsityController(options.sparsity)
        if options.thinking_init == "xavier":  # last, so that all other initial weights stay the same
            for matrix in (parameter for parameter in self.thinking.parameters() if parameter.dim() == 2):
                nn.init.xavier_uniform_(matrix)

    @classmethod
    def skip(cls, options: Any, setting: Mapping[str, Any]) -> str | None:
        if setting["pretrained"] and options.thinking_init != "normal":
            return "a thinking layer that starts from a checkpoint is not initialised"
        return None

    def stages(self, budget: Budget) -> list[Stage]:
        first = budget.epochs * self.options.first_phase
        if not self.options.randomness:
            return [Stage("phase 1", first, phase="phase 1", select_on=("reconstruction",))]
        learned = tuple(sorted({name.partition(".")[0] for name, _ in self.named_parameters()} - {"prior"}))
        second = budget.epochs * self.options.second_phase
        return [  # after the first one there are no answers: nothing predicts R yet
            Stage("phase 1", first, phase="phase 1", trainable=learned, select_on=("reconstruction",), answers=False),
            Stage(
                "phase 2",
                second,
                phase="phase 2",
                trainable=("prior",),
                select_on=("kl",),
                cached=True,
                learning_rate=self.options.second_rate,
            ),
        ]

    # -- training

    def collate(self, examples: Sequence[Example], context: Context) -> Batch:
        """Collate ``question`` (B, n); ``active`` (A,), the rows of targets that say something; the targets of these
        rows (:func:`target_tensors`); and what f reads."""
        epoch, _ = context.moment
        question, real = pad([example.question for example in examples], self.vocabulary.eos)
        ids, written, read = self._targets(examples)
        active = (written.sum(1) > 1).nonzero().squeeze(1)
        labels = ids.masked_fill(~written, IGNORE)[:, 1:]
        keys = torch.tensor([key(context.seed, epoch, example.id) for example in examples])
        seen = self.options.refinements and context.training  # validation scores the first pass
        shown = revealed(labels, keys, self.options.steps, context.step) if seen else None
        return Batch(
            {
                "question": question,
                "question_real": real,
                "active": active,
                **target_tensors(labels, active, shown),
                **read,
            },
            {name: float(len(examples)) for name in ("reconstruction", "sparsity", "kl")},
            tokens=positions(self.options, int(real.sum()), written, read["lengths"]),
            keys=keys,
        )

    def _targets(self, examples: Sequence[Example]) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """Return target rows (K B, M), step by step; the mask of their written positions; and what f reads: of
        ``targets``, the rows without their end-of-text, which is only said, ``lengths`` (K B,) tokens; or of ``paths``
        (B, P), ``lengths`` (B, K) tokens by the end of each step."""
        options = self.options
        shape = options.steps, self.vocabulary, options.max_step_tokens, options.marked
        split = [targets(example, *shape) for example in examples]
        ids, written = pad([row for step in zip(*split, strict=True) for row in step], self.vocabulary.eos)
        lengths = written.sum(1)
        read = {"targets": ids[:, :-1], "lengths": lengths - (lengths > 1).long()}
        if options.randomness and options.encoder_reads == "path":
            rows, ends = paths([example.question for example in examples], split)
            read |= {"paths": pad(rows, self.vocabulary.eos)[0], "lengths": torch.tensor(ends)}
        return ids, written, read

    def forward(self, batch: Batch, context: Context) -> Output:
        if context.stage.cached:
            return Output({"kl": self.prior.loss(batch.tensors, self.options.prior_loss == "upstream")})
        question = self.understand(batch["question"])
        mean, _, randomness = self._encode(batch, context) if self.options.randomness else (None, None, None)
        thoughts = self.think(question, batch["question_real"], randomness)
        active = batch["active"]
        loss = self._reconstruction(thoughts.flatten(0, 1)[active], batch)
        if mean is None:
            return Output({"reconstruction": loss})
        counted = mean.flatten(0, 1)[active if self.options.sparsity.steps == "said" else slice(None)]
        l1 = counted.abs().sum(dtype=torch.float32)  # under autocast on a CPU, bfloat16 would round it
        statistics = {
            "l1": l1.detach(),
            "counted_steps": l1.new_full((), len(counted)),
            "active_dimensions": (counted > 0).sum().to(l1),
        }
        return Output({"reconstruction": loss, "sparsity": self.sparsity.weight.to(l1) * l1}, statistics)

    def understand(self, question: Tensor) -> Tensor:
        """Return H_in (B, n, d) for right-padded ids (B, n). Attention is causal, so the padding changes nothing."""
        return self.understanding(input_ids=question, use_cache=False).last_hidden_state

    def _encode(self, batch: Batch, context: Context) -> tuple[Tensor, Tensor | None, Tensor]:
        """Return, for all K steps from one call of f, the posterior's mean; its deviation, if f gives one; and R. Each
        is (K, B, tau d)."""
        mean, deviation = self._posterior(batch.tensors)
        if self.options.posterior == "deterministic":
            return mean, None, mean
        assert batch.keys is not None
        _, step = context.moment
        noise = normal(batch.keys ^ key(step), self.options.steps * mean.shape[2]).to(mean)
        noise = noise.view(-1, *mean.shape[::2]).transpose(0, 1)
        return mean, deviation, mean + (self.options.epsilon if deviation is None else deviation) * noise

    def _posterior(self, tensors: Mapping[str, Tensor]) -> tuple[Tensor, Tensor | None]:
        """Return what one call of f gives for all steps: the mean and any deviation, both (K, B, tau d)."""
        if "paths" in tensors:
            mean, deviation = self.posterior(tensors["paths"], tensors["lengths"])
            return mean.transpose(0, 1), None if deviation is None else deviation.transpose(0, 1)
        mean, deviation = self.posterior(tensors["targets"], tensors["lengths"])
        shape = self.options.steps, -1, mean.shape[1]
        return mean.view(shape), None if deviation is None else deviation.view(shape)

    def encoded(self, examples: Sequence[Example]) -> Tensor | None:
        """Return the posterior's mean of R, (B, K, tau d), or None without R."""
        if not self.options.randomness:
            return None
        _, _, read = self._targets(examples)
        mean, _ = self._posterior({name: tensor.to(self.device) for name, tensor in read.items()})
        return mean.transpose(0, 1)

    def think(self, question: Tensor, real: Tensor, randomness: Tensor | None) -> Tensor:
        """Return the shallow neurons of each step, (K, B, S, d), given R of each step, (K, B, tau d) or None."""
        neurons = self.neurons.expand(len(question), -1, -1)
        shallow = []
        for step in range(self.options.steps):
            neurons = self.think_once(question, real, neurons, None if randomness is None else randomness[step])
            shallow.append(neurons[:, self.options.deep :])
        return torch.stack(shallow)

    def think_once(self, question: Tensor, real: Tensor, neurons: Tensor, randomness: Tensor | None) -> Tensor:
        """Take one step of the chain: return the next neurons (B, T + S, d), given R, (B, tau d) or None."""
        vectors = None
        if randomness is not None:
            vectors = self.inject(randomness).view(len(neurons), self.options.tau, -1)
        return next_neurons(self.thinking, question, real, neurons, vectors, self.options.attention == "causal")

    def _reconstruction(self, shallow: Tensor, batch: Batch) -> Tensor:
        """Return the summed cross entropy of the targets, said from the shallow neurons (A, S, d) of active rows."""
        labels, at = batch["labels"], batch["labelled"]
        if self.options.speaking == "autoregressive":
            states = speak(self.speaking, shallow, batch["targets"][batch["active"]])
            return label_loss(self.speaking.get_output_embeddings(), states, labels, at)
        shown = batch.get("known"), batch.get("weights")
        return at_once_loss(self.speaking, shallow, labels, at, self.vocabulary.eos, *shown)

    def after_step(self, statistics: dict[str, float]) -> None:
        if "l1" in statistics:
            self.sparsity.update(statistics["l1"], statistics["counted_steps"])

    def observed(self, statistics: dict[str, float]) -> dict[str, float]:
        if "l1" not in statistics:
            return {}
        count, size = max(statistics["counted_steps"], 1.0), self.posterior.expand.out_features
        return {
            "lambda": float(self.sparsity.weight),
            "l1_per_step": statistics["l1"] / count,
            "active_share": statistics["active_dimensions"] / (count * size),
        }

    def warnings(self, observed: dict[str, float]) -> list[str]:
        if observed.get("active_share") == 0.0:
            return [
                f"{DEAD_R}: no dimension is active in a step that the L1 norm counts; start from a smaller "
                "sparsity weight, lower the learning rate or raise the sparsity target"
            ]
        return []

    # -- phase 2: the predictor on the frozen model's features

    def features(self, batch: Batch, context: Context) -> dict[str, Tensor]:
        """Return what g sees, (B, K, d), and the posterior that it has to predict, (B, K, tau d)."""
        question = self.understand(batch["question"])
        mean, deviation, randomness = self._encode(batch, context)
        neurons = self.neurons.expand(len(question), -1, -1)
        pooled = [pool(question, batch["question_real"], neurons)]
        for before in randomness[:-1]:
            neurons = self.think_once(question, batch["question_real"], neurons, before)
            pooled.append(pool(question, batch["question_real"], neurons))
        features = {"pooled": torch.stack(pooled, 1), "mean": mean.transpose(0, 1)}
        return features if deviation is None else {**features, "deviation": deviation.transpose(0, 1)}

    def collate_features(self, features: dict[str, Tensor]) -> Batch:
        rows = len(features["pooled"])
        return Batch(features, {"kl": float(rows)}, tokens=rows * self.options.steps)

    # -- inference

    def length(self, example: Example) -> Length:
        _, written, _ = self._targets([example])
        return Length(int(written[-1].sum()) - 1)  # without the token that speaking starts from

    def stochastic(self, decoding: Decoding) -> bool:
        draws_tokens = self.options.speaking == "autoregressive" and super().stochastic(decoding)
        return draws_tokens or (self.options.randomness and decoding.latents != "mean")

    @classmethod
    def steerable_latents(cls, options: MarCosOptions) -> str | None:
        return "R" if options.randomness else None

    def generate(self, questions: Sequence[Sequence[int]], decoding: Decoding) -> Generation:
        if self.options.randomness:
            interventions.check(decoding.interventions, self.options.steps, self.posterior.expand.out_features)
        ids, real = (tensor.to(self.device) for tensor in pad(questions, self.vocabulary.eos))
        question = self.understand(ids)
        neurons = self.neurons.expand(len(question), -1, -1)
        draws = question_keys(questions, decoding.seed, "R").to(self.device)
        shallow, drawn = [], []
        for step in range(self.options.steps):
            randomness = None
            if self.options.randomness:
                pooled = pool(question, real, neurons)
                temperature = 0.0 if decoding.latents == "mean" else decoding.temperature
                randomness = self.prior.draw(pooled, draws, step, temperature)
                randomness = interventions.intervened(randomness, decoding.interventions, step + 1)
            neurons = swap_latents(self.think_once(question, real, neurons, randomness), decoding)
            if decoding.trace or not decoding.answer_only or step + 1 == self.options.steps:
                shallow.append(neurons[:, self.options.deep :])
            if decoding.trace and randomness is not None:
                drawn.append(randomness)
        generation = self._say(torch.stack(shallow), questions, decoding)
        generation.cost.forward_passes += 1 + self.options.steps
        generation.cost.latent_steps += self.options.steps
        if decoding.trace:
            generation.trace["thoughts"] = torch.stack(shallow, dim=1)
            if drawn:
                generation.trace["R"] = torch.stack(drawn, dim=1)
        return generation

    def _say(self, shallow: Tensor, questions: Sequence[Sequence[int]], decoding: Decoding) -> Generation:
        """Decode the last step alone, or all K steps together as K B rows."""
        said = shallow[-1:] if decoding.answer_only else shallow
        (count, batch), rows, eos = said.shape[:2], said.flatten(0, 1), self.vocabulary.eos
        if self.options.speaking == "one_shot":
            ends, length = forced(decoding, rows, "tokens"), self.options.max_step_tokens
            length = length if ends is not None else min(length, decoding.max_new_tokens)
            tokens, cost = decode_at_once(self.speaking, rows, eos, length, self.options.refinements, ends)
        else:
            steps = range(self.options.steps - count, self.options.steps)
            keys = torch.cat([question_keys(questions, decoding.seed, f"tokens {step}") for step in steps])
            first = start(self.vocabulary)
            tokens, cost = decode_in_turn(self.speaking, rows, first, decoding, keys.to(rows.device), eos)
        said = tokens.view(count, batch, -1).transpose(0, 1)
        return Generation(said[:, -1], cost, steps=None if decoding.answer_only else said)
