"""Load pretrained language models as backbones, and check that our forward pass reproduces their logits.

Methods feed embeddings, with masks and positions of their own, into the transformer, and take logits from the head
themselves. A model that does more than that between its inputs and its logits would compute something else here.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError
from torch import Tensor

from methods.errors import InputError

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

USABLE = "models such as Qwen2.5, Qwen3, LLaMA, Mistral, OLMo 2, Phi-3, Gemma 3 and GPT-2 can be used"
TOLERANCE = 1e-3  # relative to the largest logit: kernels of attention differ by some 1e-6, models by far more
TOKENS = 8  # that a checkpoint is compared on

log = logging.getLogger(__name__)


def require_folder(checkpoint: str) -> None:
    """Raise InputError if a checkpoint is named by a path, and there is no such folder."""
    if checkpoint.startswith(("/", ".", "~")) and not Path(checkpoint).is_dir():
        raise InputError(
            f"there is no folder {checkpoint}, which `backbone: {{pretrained: {checkpoint}}}` names: give the folder "
            "of a checkpoint (without ~), or its id on the hub"
        )


@contextmanager
def checkpoint_errors(checkpoint: str) -> Iterator[None]:
    """Name the checkpoint and the remedy where transformers finds no file of it, or cannot use what it finds."""
    try:
        yield
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        raise InputError(
            f"no checkpoint can be read from {checkpoint} ({' '.join(str(error).split())}). To fix the study's "
            f"`backbone: {{pretrained: {checkpoint}}}`, name a folder with its config.json and weights; for one on the "
            "hub, log in if it is gated (`hf auth login`), and where there is no network, download it before (`hf "
            "download`)"
        ) from error


def published_config(checkpoint: str, revision: str | None, vocab_size: int) -> PreTrainedConfig:
    """Return the configuration of a checkpoint. Raise InputError if there is no such checkpoint, if a model of its kind
    cannot be used, or if the tokenizer has more tokens, ``vocab_size``, than it has embeddings."""
    from transformers import AutoConfig

    require_folder(checkpoint)
    with checkpoint_errors(checkpoint):
        config = AutoConfig.from_pretrained(checkpoint, revision=revision)
    _require_usable(config, checkpoint)
    if vocab_size > config.vocab_size:
        raise InputError(
            f"the tokenizer has {vocab_size} tokens, and {checkpoint} has embeddings of "
            f"{config.vocab_size}: name the checkpoint's own as `tokenizer`"
        )
    return config


def _require_usable(config: PreTrainedConfig, place: str) -> None:
    """Raise InputError if a configuration is of no language model, or of one whose attention has no scaled dot product
    attention in transformers. ``place`` names the checkpoint."""
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING  # takes seconds

    sized = hasattr(config, "vocab_size") and hasattr(config, "hidden_size")  # models of images too have these deeper
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING or not sized:
        raise InputError(f"{place} is no language model of texts alone ({config.model_type}): {USABLE}")
    if not getattr(MODEL_FOR_CAUSAL_LM_MAPPING[type(config)], "_supports_sdpa", False):
        raise InputError(
            f"{place} is a {config.model_type}, whose attention is not PyTorch's scaled dot product attention: {USABLE}"
        )


@cache  # a run loads its checkpoint several times
def warn_of_dropout(checkpoint: str, fields: tuple[str, ...]) -> None:
    if fields:
        log.warning(
            "%s has dropout (%s): it is 0 here, unless the row's `training` has a `dropout`",
            checkpoint,
            ", ".join(fields),
        )


def require_no_missing_weights(missing: Collection[str], place: str) -> None:
    """Raise InputError if a checkpoint lacks weights, which transformers would draw. ``place`` names it."""
    if missing:
        raise InputError(
            f"{place} lacks {len(missing)} weights of its model, such as {min(missing)}: fetch it again, or take "
            "another"
        )


def check_logits_match(lm: Any, place: str) -> None:
    """Raise InputError if a loaded model (in evaluation mode, with its weights whole) has other logits when it is read
    as methods read, than by its own forward pass. ``place`` names the checkpoint."""
    ids = torch.arange(TOKENS, device=lm.device)[None] * 7919 % lm.config.vocab_size  # spread over the vocabulary
    attention, kind = lm.config._attn_implementation, lm.config.model_type
    with torch.no_grad():
        try:
            read = _logits_of_decoding(lm, ids)
        except (AttributeError, RuntimeError, TypeError, ValueError) as error:
            raise InputError(
                f"{place} is a {kind}, which cannot be read here ({' '.join(str(error).split())}): {USABLE}"
            ) from error
        lm.set_attn_implementation("eager")  # with which transformers makes the masks, and applies all that a model has
        try:
            own = lm(input_ids=ids, use_cache=False).logits
        finally:
            lm.set_attn_implementation(attention)
    if not own.isfinite().all():
        raise InputError(f"{place} has weights that are not finite: its logits are not (get its files again)")
    apart, largest = float((read - own).abs().max()), float(own.abs().max())
    if not apart <= TOLERANCE * largest:
        raise InputError(
            f"{place} would be another model here: its architecture, {kind}, does more than its transformer and its "
            f"head (logits differ by {apart:.2g}, the largest is {largest:.2g}): {USABLE}"
        )


def _logits_of_decoding(lm: Any, ids: Tensor) -> Tensor:
    """Return the logits (1, n, V) after each id as decoding computes them: of vectors behind padding, half of them in
    one pass and the others one by one, with a cache."""
    from methods.decoding import empty_prefix, forward_cached

    vectors, half = lm.get_input_embeddings()(ids), ids.shape[1] // 2
    padded = torch.cat([vectors[:, :1], vectors[:, :half]], dim=1)
    real = torch.arange(half + 1, device=ids.device)[None] > 0
    prefix, output = forward_cached(empty_prefix(lm.base_model, vectors), padded, real)
    hidden = [output.last_hidden_state[:, 1:]]
    for place in range(half, ids.shape[1]):
        prefix, output = forward_cached(prefix, vectors[:, place : place + 1])
        hidden.append(output.last_hidden_state)
    return lm.get_output_embeddings()(torch.cat(hidden, dim=1))
