"""Training and inference of MarCos: its two phases, what a batch holds, and how it answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import ClassVar

import torch
from torch import Tensor

from methods.backbone import label_nats
from methods.base import Batch, Budget, Context, Example, Length, Output, Stage
from methods.collate import IGNORE, label_indices, pad
from methods.decoding import decode, forced_lengths, prefill, swap_latents
from methods.generation import Cost, Decoding, Generation, Nats, check_interventions, intervened
from methods.marcos import variants
from methods.marcos.losses import kl_divergence, kl_loss, reconstruction_loss, sparsity_loss
from methods.marcos.model import MarCosModel, pool, sample_prior
from methods.marcos.options import MarCosOptions
from methods.marcos.targets import has_text, speaking_start, step_targets
from methods.random_keys import key, question_keys

PHASE_1, PHASE_2 = "phase 1", "phase 2"


class MarCos(MarCosModel):
    """An understanding layer reads the question once; a thinking layer updates deep and shallow neurons K times; a
    speaking layer puts the shallow neurons of any step into words, independently of all other steps."""

    name = "marcos"
    title = "MarCos"
    citation = """@misc{liu2025marcos, title={Deep Thinking by {Markov} Chain of Continuous Thoughts},
  author={Liu, Jiayu and Huang, Zhenya and Yang, Xuan and Ji, Tianyun and Sims, Anya and Xu, Hao and Chen, Enhong and
  Teh, Yee Whye and Miao, Ning}, year={2025}, eprint={2509.25020}, archivePrefix={arXiv}}"""
    Options: ClassVar = MarCosOptions
    has_latents = True
    thoughts_option = "steps"
    can_skip_steps = True
    answering_options = ("steps",)  # no weight belongs to one step; whatever K is, the answer is read from step K
    tested_options: ClassVar = {"deep": 2, "shallow": 3, "tau": 1, "sparsity": {"target": 1.0}}

    def stages(self, budget: Budget) -> list[Stage]:
        """Return phase 1, which trains all but g on ``-L_re + lambda L_sparse``, and phase 2, which trains g on
        ``L_KL`` with all else fixed. Without R, there is only phase 1; with ``joint_kl``, it trains everything.

        Known limitation: the weights that phase 1 ends with are selected by L_re on validation data, with R encoded
        from the gold step. A denser R carries more of that step and lowers L_re, whether g can predict it or not, so
        the selection favours weights with a denser R. (The published code selects by the loss with lambda L_sparse.)
        """
        first = budget.epochs * self.options.first_phase
        if not self.options.randomness:  # variant
            return [Stage(PHASE_1, first, phase=PHASE_1, select_on=("reconstruction",))]
        if self.options.joint_kl is not None:  # variant
            return variants.joint_stages(PHASE_1, first, self.options.joint_kl, self.options.joint_start)
        all_but_g = tuple(sorted({name.partition(".")[0] for name, _ in self.named_parameters()} - {"prior"}))
        second = budget.epochs * self.options.second_phase
        return [  # weights after phase 1 cannot answer: g is untrained
            Stage(PHASE_1, first, phase=PHASE_1, trainable=all_but_g, select_on=("reconstruction",), answers=False),
            Stage(
                PHASE_2,
                second,
                phase=PHASE_2,
                trainable=("prior",),
                select_on=("kl",),
                cached=True,
                learning_rate=self.options.second_rate,
            ),
        ]

    # -- what a batch holds

    def collate(self, examples: Sequence[Example], context: Context) -> Batch:
        """Collate the tensors of phase 1, and of :meth:`features`:

        * ``question`` (B, n): token ids
        * ``question_real`` (B, n): mask of those that are no padding
        * ``targets``, ``lengths``, and ``paths`` if f reads them: see :meth:`_collate_targets`
        * ``spoken_rows`` (A,): the rows k B + b of the non-empty targets
        * ``labels`` (A, M): of these rows, the tokens that speaking predicts
        * ``labelled`` (2, N): indices of the non-padding labels
        * ``known``, ``weights``: see :func:`methods.marcos.variants.mask_predict_tensors`, which also changes
          ``labelled``; only with refinements
        """
        epoch, _ = context.epoch_and_step
        question, real = pad([example.question for example in examples], self.vocabulary.eos)
        ids, written, encoder_inputs = self._collate_targets(examples)
        spoken_rows = has_text(written.sum(1)).nonzero().squeeze(1)
        labels = ids.masked_fill(~written, IGNORE)[:, 1:]
        keys = torch.tensor([key(context.seed, epoch, example.id) for example in examples])
        tensors = {"question": question, "question_real": real, "spoken_rows": spoken_rows, **encoder_inputs}
        tensors["labels"] = labels[spoken_rows]
        if self.options.refinements and context.training:  # variant; validation scores the first pass
            tensors |= variants.mask_predict_tensors(labels, spoken_rows, keys, self.options.steps, context.step)
        else:
            tensors["labelled"] = label_indices(tensors["labels"])
        return Batch(
            tensors,
            {name: float(len(examples)) for name in ("reconstruction", "sparsity", "kl")},
            tokens=self._positions(int(real.sum()), written, encoder_inputs["lengths"]),
            keys=keys,
        )

    def _collate_targets(self, examples: Sequence[Example]) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """Return the targets (K B, M + 1), rows k B + b; the mask (K B, M + 1) of their written positions; and what f
        reads:

        * ``targets`` (K B, M): without end-of-text, which is only spoken
        * ``lengths`` (K B,): number of tokens that f reads of each row
        * ``paths`` (B, P): with ``encoder_reads: path``, what f reads instead; ``lengths`` are then (B, K), the numbers
          of tokens by the end of each step
        """
        options = self.options
        by_example = [
            step_targets(
                example,
                options.steps,
                self.vocabulary,
                limit=options.max_step_tokens,
                marked=options.marked,
                padding=options.padding,
            )
            for example in examples
        ]
        by_step = [row for step in zip(*by_example, strict=True) for row in step]
        ids, written = pad(by_step, self.vocabulary.eos)
        lengths = written.sum(1)
        encoder_inputs = {"targets": ids[:, :-1], "lengths": lengths - has_text(lengths).long()}
        if options.randomness and options.encoder_reads == "path":  # variant
            rows, ends = variants.join_paths([example.question for example in examples], by_example)
            encoder_inputs |= {"paths": pad(rows, self.vocabulary.eos)[0], "lengths": torch.tensor(ends)}
        return ids, written, encoder_inputs

    def _positions(self, question: int, written: Tensor, encoded_lengths: Tensor) -> int:
        """Return the number of positions that the four transformers process in one training pass, given

        * ``question``: the number of question tokens
        * ``written`` (K B, M + 1): the mask of the targets, of which only non-empty rows are spoken
        * ``encoded_lengths`` (K B,): the number of tokens that f reads of each row; or (B, K), by the end of each step
        """
        options = self.options
        states = options.deep + options.shallow + (options.tau if options.randomness else 0)
        thinking = options.steps * question + len(written) * states
        lengths = written.sum(1)
        spoken = int((lengths[has_text(lengths)] - 1 + options.shallow).sum())
        encoded = 0
        if options.randomness:
            encoded = int((encoded_lengths if encoded_lengths.dim() == 1 else encoded_lengths[:, -1]).sum())
        return question + thinking + spoken + encoded

    # -- training: the terms of the loss (9), see losses.py

    def forward(self, batch: Batch, context: Context) -> Output:
        if context.stage.phase == PHASE_2:
            return self.phase_2_loss(batch)
        return self.phase_1_loss(batch, context)

    def phase_1_loss(self, batch: Batch, context: Context) -> Output:
        """Return -L_re and lambda L_sparse: f encodes R_k from y_k, and thinking with it has to lead to y_k. With
        ``joint_kl``, also L_KL."""
        h_in, real = self.understand(batch["question"]), batch["question_real"]  # (1)
        mu_hat, sigma_hat, r = None, self.options.epsilon, None
        if self.options.randomness:
            mu_hat, sigma_hat, r = self._encode_and_sample(batch, context)  # (6)
        states = [*self.chain(h_in, real, r)]  # (3); Neu_0, ..., Neu_K
        shallow = torch.stack([neurons[:, self.options.deep :] for neurons in states[1:]])  # (K, B, S, d)
        spoken = shallow.flatten(0, 1)[batch["spoken_rows"]]  # (A, S, d)
        losses = {"reconstruction": self._reconstruction(spoken, batch)}  # (4), (7)
        if mu_hat is None:  # variant
            return Output(losses)
        if self.options.joint_kl is not None:  # variant
            mu, log_sigma = self.prior(torch.stack([pool(neurons, h_in, real) for neurons in states[:-1]]).detach())
            losses["kl"] = variants.joint_kl(context.stage, mu_hat, sigma_hat, mu, log_sigma)  # (2), (8)
        counted = mu_hat.flatten(0, 1)  # (K B, tau d)
        if self.options.sparsity.steps == "nonempty":
            counted = counted[batch["spoken_rows"]]  # (A, tau d)
        l1 = sparsity_loss(counted)
        losses["sparsity"] = self.sparsity.weight.to(l1) * l1  # lambda L_sparse
        statistics = {
            "l1": l1.detach(),
            "counted_steps": l1.new_full((), len(counted)),
            "active_dimensions": (counted > 0).sum().to(l1),
        }
        return Output(losses, statistics)

    def _reconstruction(self, shallow: Tensor, batch: Batch) -> Tensor:
        """Return -L_re of the non-empty steps, from their shallow neurons (A, S, d)."""
        labels = batch["labels"]
        hidden = self._speak_targets(shallow, batch["targets"][batch["spoken_rows"]], labels, batch.get("known"))
        return reconstruction_loss(self.speaking, hidden, labels, batch["labelled"], batch.get("weights"))

    def _speak_targets(self, shallow: Tensor, targets: Tensor, labels: Tensor, known: Tensor | None = None) -> Tensor:
        """Return the hidden states (A, M, d) that predict the labels (A, M) of targets (A, M), from their shallow
        neurons (A, S, d)."""
        if self.options.speaking == "autoregressive":
            return self.speak(shallow, targets)
        return variants.predict_targets_at_once(self.speaking, shallow, labels, self.vocabulary.eos, known)  # variant

    def phase_2_loss(self, batch: Batch) -> Output:
        """Return L_KL of the posterior and g's prior. The posterior and the inputs of g are fixed in this phase: they
        are the :meth:`features`."""
        mu, log_sigma = self.prior(batch["pooled"])  # (2)
        sigma_hat = batch.tensors.get("sigma_hat", self.options.epsilon)
        return Output({"kl": kl_loss(batch["mu_hat"], sigma_hat, mu, log_sigma)})  # (8)

    def features(self, batch: Batch, context: Context) -> dict[str, Tensor]:
        """Return what phase 2 trains on:

        * ``pooled`` (B, K, d): what g reads at each step, with Neu_{k-1} from a chain of draws from the posterior
        * ``mu_hat`` (B, K, tau d)
        * ``sigma_hat`` (B, K, tau d): only with ``posterior: gaussian``

        They are computed once. So with a noisy or Gaussian posterior, all epochs of phase 2 reuse one draw of
        R_1, ..., R_{K-1} for each example, where the paper's expectation would take a new one each time.
        """
        real = batch["question_real"]
        h_in = self.understand(batch["question"])
        mu_hat, sigma_hat, r = self._encode_and_sample(batch, context)
        before_each_step = islice(self.chain(h_in, real, r), self.options.steps)  # Neu_0, ..., Neu_{K-1}
        pooled = [pool(neurons, h_in, real) for neurons in before_each_step]
        features = {"pooled": torch.stack(pooled, 1), "mu_hat": mu_hat.transpose(0, 1)}
        return {**features, "sigma_hat": sigma_hat.transpose(0, 1)} if isinstance(sigma_hat, Tensor) else features

    def collate_features(self, features: dict[str, Tensor]) -> Batch:
        rows = len(features["pooled"])
        return Batch(features, {"kl": float(rows)}, tokens=rows * self.options.steps)

    def _encode_and_sample(self, batch: Batch, context: Context) -> tuple[Tensor, Tensor | float, Tensor]:
        """Return mu_hat, sigma_hat (the constant epsilon unless f is Gaussian), and a draw of R. Tensors are
        (K, B, tau d)."""
        mu_hat, sigma_hat = self.encode_r(batch.tensors)
        sigma_hat = self.options.epsilon if sigma_hat is None else sigma_hat
        _, step = context.epoch_and_step
        return mu_hat, sigma_hat, self.sample_posterior(mu_hat, sigma_hat, batch.keys, step)

    def after_step(self, statistics: dict[str, float]) -> None:
        if "l1" in statistics:
            self.sparsity.update(statistics["l1"], statistics["counted_steps"])

    def metrics(self, statistics: dict[str, float]) -> dict[str, float]:
        if "l1" not in statistics:
            return {}
        count, size = max(statistics["counted_steps"], 1.0), self.posterior.expand.out_features
        return {
            "lambda": float(self.sparsity.weight),
            "l1_per_step": statistics["l1"] / count,
            "active_share": statistics["active_dimensions"] / (count * size),
        }

    def dead_latents(self, metrics: Mapping[str, float]) -> bool:
        return metrics.get("active_share") == 0.0

    def warnings(self, metrics: dict[str, float]) -> list[str]:
        if self.dead_latents(metrics):
            return [
                "R is dead: no dimension is active in a step that the L1 norm counts; start from a smaller "
                "sparsity weight, lower the learning rate or raise the sparsity target"
            ]
        return []

    # -- inference

    def length(self, example: Example) -> Length:
        _, written, _ = self._collate_targets([example])
        steps = (written.sum(1) - 1).clamp(min=1).tolist()  # without the token that speaking starts from
        return Length(steps[-1], steps=tuple(steps))

    def stochastic(self, decoding: Decoding) -> bool:
        draws_tokens = self.options.speaking == "autoregressive" and super().stochastic(decoding)
        draws_r = self.options.randomness and decoding.latents != "mean" and decoding.encoded is None
        return draws_tokens or draws_r

    @classmethod
    def steerable_latents(cls, options: MarCosOptions) -> str | None:
        return "R" if options.randomness else None

    @classmethod
    def encodes_steps(cls, options: MarCosOptions) -> bool:
        return options.randomness

    def encode_steps(self, examples: Sequence[Example]) -> Tensor:
        """Return mu_hat, the posterior's mean of R, (B, K, tau d)."""
        _, _, encoder_inputs = self._collate_targets(examples)
        mu_hat, _ = self.encode_r({name: tensor.to(self.device) for name, tensor in encoder_inputs.items()})
        return mu_hat.transpose(0, 1)

    def nats(self, examples: Sequence[Example]) -> Nats:
        """Return, with R encoded from the gold steps: -L_re (7) of each step, 0 if it is empty, and L_KL (8) of each,
        which add up to minus the ELBO (5), as both phases validate it. And the nats of the answer with the means of g
        in place of encoded R. Without R, those of the steps alone."""
        context = Context(Stage(PHASE_1, 1.0, phase=PHASE_1), epoch=0, step=0, seed=0, training=False)
        batch = self.collate(examples, context).to(self.device)
        h_in, real = self.understand(batch["question"]), batch["question_real"]
        if not self.options.randomness:  # variant
            text = self._step_nats(self.think_all_steps(h_in, real, None), batch)
            return Nats(text, answer=text[:, -1])
        mu_hat, sigma_hat, r = self._encode_and_sample(batch, context)
        states = torch.stack([*self.chain(h_in, real, r)])  # Neu_0, ..., Neu_K
        mu, log_sigma = self.prior(torch.stack([pool(neurons, h_in, real) for neurons in states[:-1]]))
        divergence = kl_divergence(mu_hat.float(), sigma_hat, mu, log_sigma).sum(-1)  # (K, B)
        text, neurons = self._step_nats(states[1:, :, self.options.deep :], batch), states[0]
        for _ in range(self.options.steps):
            neurons = self.think(neurons, h_in, real, self.prior(pool(neurons, h_in, real))[0])
        answers = slice(len(batch["labels"]) - len(examples), None)  # the last step is never empty
        return Nats(text, divergence.T, self._spoken_nats(neurons[:, self.options.deep :], batch, answers))

    def _step_nats(self, shallow: Tensor, batch: Batch) -> Tensor:
        """Return -L_re (B, K) of each step, from the shallow neurons of all (K, B, S, d)."""
        nats = torch.zeros(shallow.shape[:2], device=shallow.device).flatten()
        nats[batch["spoken_rows"]] = self._spoken_nats(shallow.flatten(0, 1)[batch["spoken_rows"]], batch)
        return nats.view(shallow.shape[:2]).T

    def _spoken_nats(self, shallow: Tensor, batch: Batch, rows: slice = slice(None)) -> Tensor:
        """Return -L_re (A,) of those ``rows`` of the non-empty steps that the shallow neurons (A, S, d) are of."""
        labels, targets = batch["labels"][rows], batch["targets"][batch["spoken_rows"]][rows]
        hidden = self._speak_targets(shallow, targets, labels)
        return label_nats(self.speaking.get_output_embeddings(), hidden, labels).sum(1)

    def generate(self, questions: Sequence[Sequence[int]], decoding: Decoding) -> Generation:
        """Understand the questions, think K steps with R_k from g, or given ones, then speak the last step, or all."""
        if self.options.randomness:
            check_interventions(decoding.interventions, self.options.steps, self.posterior.expand.out_features)
        ids, real = (tensor.to(self.device) for tensor in pad(questions, self.vocabulary.eos))
        h_in = self.understand(ids)  # (1)
        neurons = self.initial_neurons(len(h_in))
        keys = question_keys(questions, decoding.seed, "R").to(self.device)
        shallow, drawn = [], []
        for k in range(self.options.steps):  # not `chain`: each R_k is drawn from Neu_{k-1}, and controls change both
            r = self._draw_r(neurons, h_in, real, k, keys, decoding) if self.options.randomness else None  # (2)
            neurons = self.think(neurons, h_in, real, r)  # (3)
            if k + 1 < self.options.steps:  # the last neurons are spoken alone: they are the question's own
                neurons = swap_latents(neurons, decoding)  # control
            if decoding.trace or not decoding.answer_only or k + 1 == self.options.steps:
                shallow.append(neurons[:, self.options.deep :])
            if decoding.trace and r is not None:
                drawn.append(r)
        generation = self._speak_tokens(torch.stack(shallow), questions, decoding)  # (4)
        generation.cost.forward_passes += 1 + self.options.steps
        generation.cost.latent_steps += self.options.steps
        if decoding.trace:
            generation.trace["thoughts"] = torch.stack(shallow, dim=1)
            if drawn:
                generation.trace["R"] = torch.stack(drawn, dim=1)
        return generation

    def _draw_r(self, neurons: Tensor, h_in: Tensor, real: Tensor, k: int, keys: Tensor, decoding: Decoding) -> Tensor:
        """(2) mu_k, sigma_k = g(Neu_{k-1}, H_in): draw R_k ~ N(mu_k, sigma_k), (B, tau d), for step ``k``, counted from
        0, unless it is given. Interventions then set dimensions by hand."""
        if decoding.encoded is not None:
            r = decoding.encoded[:, k]
        else:
            mu, log_sigma = self.prior(pool(neurons, h_in, real))
            temperature = 0.0 if decoding.latents == "mean" else decoding.temperature
            r = sample_prior(mu, log_sigma, keys, k, temperature)
        return intervened(r, decoding.interventions, k + 1)  # control

    def _speak_tokens(self, shallow: Tensor, questions: Sequence[Sequence[int]], decoding: Decoding) -> Generation:
        """Decode the last step alone, or all K steps together as K B rows, from the neurons (K, B, S, d)."""
        spoken = shallow[-1:] if decoding.answer_only else shallow
        (count, batch), rows = spoken.shape[:2], spoken.flatten(0, 1)
        if decoding.lengths and not decoding.answer_only:
            by_step = zip(*(length.steps for length in decoding.lengths), strict=True)
            decoding = replace(decoding, lengths=tuple(Length(tokens) for step in by_step for tokens in step))
        if self.options.speaking == "one_shot":  # variant
            ends, length = forced_lengths(decoding, rows, "tokens"), self.options.max_step_tokens
            length = length if ends is not None else min(length, decoding.max_new_tokens)
            tokens, cost = variants.decode_at_once(
                self.speaking, rows, self.vocabulary.eos, length, self.options.refinements, ends
            )
        else:
            steps = range(self.options.steps - count, self.options.steps)
            keys = torch.cat([question_keys(questions, decoding.seed, f"tokens {step}") for step in steps])
            tokens, cost = self._speak_autoregressively(rows, decoding, keys.to(rows.device))
        texts = tokens.view(count, batch, -1).transpose(0, 1)
        return Generation(texts[:, -1], cost, steps=None if decoding.answer_only else texts)

    def _speak_autoregressively(self, shallow: Tensor, decoding: Decoding, keys: Tensor) -> tuple[Tensor, Cost]:
        """Decode the tokens (A, L) that follow the shallow neurons (A, S, d) and the token that speaking starts from.
        If tokens are sampled, the keys (A,) determine the draws of each row."""
        start = torch.tensor(speaking_start(self.vocabulary), device=shallow.device).expand(len(shallow), -1)
        sequence = torch.cat([shallow, self.speaking.get_input_embeddings()(start)], dim=1)
        prefix = prefill(self.speaking.base_model, sequence, None, decoding.cache)
        return decode(self.speaking, prefix, decoding, keys, self.vocabulary.eos)
