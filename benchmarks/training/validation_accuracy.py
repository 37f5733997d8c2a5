"""Held-out questions that are answered while a run trains: a curve of accuracy beside those of the losses."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace

import torch

from benchmarks.data import Corpus, decode, load_tokenizer
from benchmarks.data.corpus import spread_over
from benchmarks.data.tokenizers import question_text
from benchmarks.evaluation.inference import decoding_of, generate_batches, texts_of
from benchmarks.scoring import Reference
from benchmarks.scoring.scorers import scorer_of
from benchmarks.studies.paths import Paths
from benchmarks.studies.runs import RunSpec
from benchmarks.studies.specs import DecodingSpec
from methods.base import Method, Stage


def held_out_accuracy(method: Method, spec: RunSpec, paths: Paths, held_out: Corpus, stage: Stage) -> float:
    """Return the share of ``spec.training.validation_questions`` held-out questions that a method in training answers
    right, with the likeliest tokens (what else the method draws, it draws once) and as ``stage`` trains it to answer.
    The questions are spread evenly over the held-out ones."""
    tokenizer = load_tokenizer(paths.data)
    scorer = scorer_of(spec.data.held_out)
    examples = held_out.examples(spread_over(len(held_out), spec.training.validation_questions))
    decoding = decoding_of(DecodingSpec(), spec.evaluation, 0, answer_only=not scorer.reads_steps, stage=stage)
    # Neither CUDA graphs nor programs for single tokens: their memory would be missing in the steps that follow
    plain = torch.compiler.set_stance("force_eager") if spec.engine.compile else nullcontext()
    right = 0
    with plain:
        questions = [example.question for example in examples]
        for indices, generation in generate_batches(method, questions, replace(decoding, cache="dynamic"), spec):
            for index, text in zip(indices, texts_of(generation, tokenizer), strict=True):
                one = examples[index]
                asked, gold = question_text(tokenizer, one.question), decode(tokenizer, one.answer)
                right += scorer.score(text, Reference(asked, gold, len(one.steps))).correct
    return right / len(examples)
