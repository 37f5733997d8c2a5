"""The formats in which authors published weights, each with its own prompt, loaded into the methods of this package.

A format differs from our method in the layout of its prompt and in the names of its weights; thinking and decoding are
those of the method. Its golden cases are answers of the authors' own inference code.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from methods.backbone import Backbone
from methods.base import Method, MethodOptions, Setup, Vocabulary
from methods.coconut import Coconut
from methods.codi import CODI, MARKERS, CODIOptions
from methods.colar import CoLaR, CoLaROptions
from methods.decoding import decode, read_prompts
from methods.errors import InputError
from methods.generation import Cost, Decoding, Generation
from methods.icot_si import ICoTSI

ALPHA = 32  # of LoRA, in all published runs; no file has it, while the rank is a shape
ADAPTER = re.compile(r"(.+)\.lora_([AB])\.default\.weight")
BUFFERS = re.compile(r"\.attn\.(masked_)?bias$")  # of older versions of GPT-2 in transformers: no weights
EMBEDDINGS = ("lm.transformer.wte.weight", "lm.model.embed_tokens.weight")
HEAD = "lm.lm_head.weight"
POSITIONS = "lm.transformer.wpe.weight"


class _CODI(CODI):
    """``question <bot> latents <eot>``, without a newline. The row of a pad token comes before those of the markers."""

    def __init__(self, options: CODIOptions, setup: Setup) -> None:
        super().__init__(options, setup)
        self.begin, self.end = setup.vocabulary.size + 1, setup.vocabulary.size + 2

    def _prompt(self, question: Sequence[int]) -> list[int]:
        return [*question, self.begin]


class _Coconut(Coconut):
    """``question newline <begin> thoughts <end>``; question and newline are tokenised together."""

    def _enclose(self, question: Sequence[int], thoughts: int) -> tuple[list[int], int]:
        return [*question, self.begin, *[self.latent] * thoughts], self.end


class _ICoTSI(ICoTSI):
    """`` question <eos>``, then what is left of the chain, ``<eos> #### answer <eos>``: the first end-of-text that the
    model writes ends only the chain, which may already contain the answer. ``steps`` of the output hold both parts."""

    def generate(self, questions: Sequence[Sequence[int]], decoding: Decoding) -> Generation:
        eos = self.vocabulary.eos
        chains, thinking = self._continue(questions, questions, decoding)
        written = [[*row[: row.index(eos)], eos] if eos in row else row for row in chains.tolist()]
        prompts = [[*question, *chain] for question, chain in zip(questions, written, strict=True)]
        answer, answering = self._continue(prompts, questions, decoding)
        length = max(chains.shape[1], answer.shape[1])
        parts = [F.pad(ids, (0, length - ids.shape[1]), value=eos) for ids in (chains, answer)]
        return Generation(answer, thinking + answering, steps=torch.stack(parts, dim=1))

    def _continue(
        self, prompts: Sequence[Sequence[int]], questions: Sequence[Sequence[int]], decoding: Decoding
    ) -> tuple[Tensor, Cost]:
        prefix, keys = read_prompts(self.lm, prompts, questions, decoding, self.vocabulary.eos)
        return decode(self.lm, prefix, decoding, keys, self.vocabulary.eos)


class _CoLaR(CoLaR):
    """``Question: … (Thinking speed: c)### vectors ###``, whose separator is a token of the backbone; the row behind
    the vocabulary is a pad token, which nothing attends to."""

    def __init__(self, options: CoLaROptions, setup: Setup) -> None:
        super().__init__(options, setup)
        separator = setup.vocabulary.encode("###")
        if len(separator) != 1:
            raise InputError("the tokenizer splits `###`, which has to be one token: name the backbone's own tokenizer")
        self.separator = separator[0]

    def _prompt(self, question: Sequence[int], factor: int) -> list[int]:
        return [*question, self.separator]


@dataclass(frozen=True)
class Format:
    """One layout of published weights.

    ``text``: the prompt of a question, as far as it is text, given the tokenizer's end-of-text. ``opens``: whether the
    tokenizer's begin-of-text comes before it. ``parts``: what prefixes of names are called here; weights with other
    prefixes are not needed to answer. ``rows``: embedding rows that the method adds to the backbone's. ``whole``:
    whether the file has the backbone's weights too. ``decoding``: how the authors' code decodes.
    """

    method: type[Method]
    text: Callable[[str, str], str]
    opens: bool
    parts: Mapping[str, str]
    rows: int
    decoding: Decoding
    whole: bool = True
    options: Mapping[str, Any] = field(default_factory=dict)

    def with_latents(self, count: int) -> Format:
        """Return the format with another number of latents before the answer, or refuse to."""
        if self.method is _CODI:
            return replace(self, options={**self.options, "num_latents": count})
        if self.method is _Coconut:
            return replace(self, options={**self.options, "thoughts_per_step": count, "max_stage": 1})
        raise InputError(f"{self.method.title} has no fixed number of latents: leave out --latents")


FORMATS = {
    "codi": Format(
        method=_CODI,
        text=lambda question, _: question.strip().replace("  ", " "),
        opens=True,
        parts={
            "codi.base_model.model.": "lm.",
            "prj.1.": "project.0.",
            "prj.3.": "project.2.",
            "prj.ln.": "project.3.",
        },
        rows=MARKERS,
        decoding=Decoding(max_new_tokens=256),
        options={"num_latents": 6},
    ),
    "coconut": Format(
        method=_Coconut,
        text="{}\n".format,
        opens=True,
        parts={"base_causallm.": "lm."},
        rows=3,
        decoding=Decoding(max_new_tokens=64),
        options={"thoughts_per_step": 2, "max_stage": 3},
    ),
    "icot_si": Format(
        method=_ICoTSI,
        text=" {} {}".format,
        opens=False,
        parts={"base_model.": "lm."},
        rows=0,
        decoding=Decoding(max_new_tokens=800),
    ),
    "colar": Format(
        method=_CoLaR,
        text="Question: {} Let's think step by step:(Thinking speed: 5)".format,
        opens=False,
        parts={
            "llm.base_model.model.": "lm.",
            "latent_policy.fc.": "latent_head.body.",
            "latent_policy.mean.": "latent_head.mean.",
            "latent_policy.log_std.": "latent_head.log_deviation.",
        },
        rows=1,
        decoding=Decoding(tokens="sample", top_p=0.9, max_new_tokens=16),
        whole=False,
        options={"max_latents": 64},
    ),
}
DEVIATIONS = {"llama": 0.018, "qwen2": 0.03, "gpt2": 0.12}  # of embeddings, constants of CoLaR's code by backbone


def published_method(
    format: Format, tensors: Mapping[str, Tensor], backbone: Backbone, vocabulary: Vocabulary, place: str
) -> tuple[Method, list[str]]:
    """Return a published model in evaluation mode, in float32, and the prefixes of the tensors that it does not need.

    ``vocabulary`` has the size of the backbone before rows were added. Raise :class:`InputError` if a weight is
    missing, unknown, or of another shape: what is read partly would answer with random weights. ``place`` names the
    file.
    """
    named, unused = _renamed(format, tensors)
    config = backbone.config
    if format.whole:
        rows = next((named[name] for name in (*EMBEDDINGS, HEAD) if name in named), None)
        if rows is None:
            raise InputError(f"{place} has no embeddings: it is no whole checkpoint of {format.method.title}")
        config.vocab_size = len(rows) - format.rows
        if POSITIONS in named:  # more than the backbone has, if the model was trained on longer texts
            config.n_positions = len(named[POSITIONS])
    options = dict(format.options)
    if "prj.1.weight" in tensors:
        options["prj_dim"] = len(tensors["prj.1.weight"])
    if "latent_policy.fc.0.weight" in tensors:
        options["head_width"] = len(tensors["latent_policy.fc.0.weight"])
    chosen: MethodOptions = format.method.Options.model_validate(options)
    method = format.method(chosen, Setup(backbone, vocabulary))
    if isinstance(method, CoLaR):
        method.embedding_deviation.fill_(DEVIATIONS[config.model_type])
    _fill(method, named, format.whole, place)
    return method.eval(), unused


def _renamed(format: Format, tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], list[str]]:
    """Return the tensors that answering needs by our names, and the first parts of the names of the others."""
    named, unused = {}, set()
    for name, tensor in tensors.items():
        prefix = next((prefix for prefix in format.parts if name.startswith(prefix)), None)
        if prefix is None:
            unused.add(name.partition(".")[0])
        elif not BUFFERS.search(name):
            named[format.parts[prefix] + name.removeprefix(prefix).replace(".base_layer.", ".")] = tensor.float()
    return named, sorted(unused)


@torch.no_grad()
def _fill(method: Method, named: dict[str, Tensor], whole: bool, place: str) -> None:
    """Copy all weights into a method, and add the products of the adapters to those that they adapt."""
    adapters = {found[1] for name in named if (found := ADAPTER.fullmatch(name))}
    own = method.state_dict()
    embedding = next(name for name in EMBEDDINGS if name in own)
    # One table, of which files have either name or both
    if whole and own[embedding].data_ptr() == own[HEAD].data_ptr():
        tied = [named[name] for name in (embedding, HEAD) if name in named]
        if not torch.equal(tied[0], tied[-1]):
            raise InputError(f"{place} has a head that differs from the embeddings, but its backbone ties them")
        named = named | dict.fromkeys((embedding, HEAD), tied[0])
    weights = {name: tensor for name, tensor in named.items() if not ADAPTER.fullmatch(name)}
    missing = sorted(name for name in own if name not in weights and (whole or not name.startswith("lm.")))
    missing = [name for name in missing if name != "embedding_deviation"]
    unknown = sorted(weights.keys() - own.keys()) + sorted(name for name in adapters if f"{name}.weight" not in own)
    for what, names in (("lacks", missing), ("has unknown", unknown)):
        if names:
            raise InputError(
                f"{place} {what} {len(names)} weights of {method.title}, such as {names[0]}: name the folder of a "
                "checkpoint of this format and backbone"
            )
    for name, tensor in weights.items():
        if own[name].shape != tensor.shape:
            raise InputError(
                f"{place}: {name} has shape {tuple(tensor.shape)}, and its backbone {tuple(own[name].shape)}: name the "
                "backbone that it was trained from"
            )
        own[name].copy_(tensor)
    from transformers.pytorch_utils import Conv1D

    for layer in adapters:
        down, up = (named[f"{layer}.lora_{side}.default.weight"] for side in "AB")
        product = ALPHA / len(down) * (up @ down)
        own[f"{layer}.weight"].add_(product.T if isinstance(method.get_submodule(layer), Conv1D) else product)
