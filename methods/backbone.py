"""The transformers that methods are built from: initialised from a configuration, or from a pretrained checkpoint.

Weights are always float32: Hugging Face would follow the checkpoint's dtype, and AdamW would run in bfloat16. Mixed
precision is left to autocast. Attention is PyTorch's scaled dot product attention; its masks are made here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from methods.collate import IGNORE
from methods.errors import InputError, suggestion
from methods.head import Head
from methods.last_layer import narrow
from methods.packing import Places
from methods.pretrained import (
    check_logits_match,
    checkpoint_errors,
    published_config,
    require_no_missing_weights,
    warn_of_dropout,
)

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

_TINY = {
    "hidden_size": 64,
    "intermediate_size": 176,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": True,
}
_QWEN25 = {
    "model_type": "qwen2",
    "num_key_value_heads": 2,
    "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-6,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0},
    "tie_word_embeddings": True,
    "vocab_size": 151936,
}
_LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "qwen2-tiny": {"model_type": "qwen2", "rms_norm_eps": 1e-6, **_TINY},
    "llama-tiny": {"model_type": "llama", "rms_norm_eps": 1e-5, **_TINY},
    "qwen2.5-0.5b": {
        **_QWEN25,
        "hidden_size": 896,
        "intermediate_size": 4864,
        "num_hidden_layers": 24,
        "num_attention_heads": 14,
    },
    "qwen2.5-3b": {
        **_QWEN25,
        "hidden_size": 2048,
        "intermediate_size": 11008,
        "num_hidden_layers": 36,
        "num_attention_heads": 16,
    },
    "llama-3.2-1b": {
        "model_type": "llama",
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-5,
        "rope_parameters": _LLAMA3_ROPE,
        "attention_bias": False,
        "tie_word_embeddings": True,
        "vocab_size": 128256,
    },
    "gpt2": {
        "model_type": "gpt2",
        "hidden_size": 768,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "max_position_embeddings": 1024,
        "layer_norm_epsilon": 1e-5,
        "tie_word_embeddings": True,
        "vocab_size": 50257,
    },
}

SIZES = (
    "hidden_size",
    "intermediate_size",
    "head_dim",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
)


@dataclass(frozen=True)
class Backbone:
    """A recipe for transformers of one architecture; every call builds a new one.

    What is built is a ``PreTrainedModel``, but typed ``Any``, because transformers types its parts too loosely to use.
    ``config.vocab_size`` is at least the number of the tokenizer's tokens; a named architecture may have more rows.
    ``cleared``: fields of the checkpoint's configuration that had dropout, and are 0 here.
    """

    config: PreTrainedConfig
    checkpoint: str | None = None
    revision: str | None = None
    cleared: tuple[str, ...] = ()

    @property
    def hidden_size(self) -> int:
        return self.config.hidden_size

    def causal_lm(self, extra_tokens: int = 0) -> Any:
        """Build a language model with its head. ``extra_tokens`` embedding rows for markers follow the vocabulary.
        Raise InputError if a checkpoint would be another model here than it is by itself."""
        from transformers import AutoModelForCausalLM

        model = self._build(AutoModelForCausalLM, pretrained=True)
        if self.checkpoint:
            check_logits_match(model, self.checkpoint)
        if extra_tokens:
            model.resize_token_embeddings(self.config.vocab_size + extra_tokens, mean_resizing=False)
        model.set_output_embeddings(Head.like(model.get_output_embeddings()))
        model.marker_rows = extra_tokens
        return model

    def trunk(self, embeddings: bool = True, pretrained: bool = True) -> Any:
        """Build a transformer without a head. Without ``embeddings`` it has no token table, and reads vectors only."""
        from transformers import AutoModel

        model = self._build(AutoModel, pretrained)
        if not embeddings:
            model.set_input_embeddings(None)
        return model

    def _build(self, factory: Any, pretrained: bool) -> Any:
        settings: dict[str, Any] = {"dtype": torch.float32, "attn_implementation": _attention()}
        if self.checkpoint and pretrained:
            warn_of_dropout(self.checkpoint, self.cleared)
            with checkpoint_errors(self.checkpoint):
                model, found = factory.from_pretrained(
                    self.checkpoint,
                    config=deepcopy(self.config),
                    revision=self.revision,
                    output_loading_info=True,
                    **settings,
                )
            require_no_missing_weights(found["missing_keys"], self.checkpoint)
        else:  # a copy: adding rows for markers changes a model's config
            model = factory.from_config(deepcopy(self.config), **settings)
        narrow(model.base_model)
        model.base_model.register_forward_pre_hook(_refuse_flat_masks, with_kwargs=True)
        model.takes_adapters = pretrained  # what is drawn even in a study of checkpoints is always trained whole
        return model


def _attention() -> str:
    """Register scaled dot product attention of transformers under a new name, and return the name. Under the usual one,
    transformers makes the masks, for which it reads from the device before each pass whether sequences are packed.
    Without a mask, attention is causal; with ``places``, the rows of a joined batch attend apart."""
    from transformers import AttentionInterface
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    def attend(module: nn.Module, *states: Any, places: Places | None = None, **kwargs: Any) -> tuple[Tensor, None]:
        if places is None:
            return sdpa_attention_forward(module, *states, **kwargs)
        query, key, value = map(places.separate, states[:3])
        attended, _ = sdpa_attention_forward(module, query, key, value, *states[3:], **kwargs)
        return places.join(attended), None

    AttentionInterface.register("sdpa_own_masks", attend)
    return "sdpa_own_masks"


def _refuse_flat_masks(trunk: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
    mask = kwargs.get("attention_mask", args[1] if len(args) > 1 else None)
    if mask is not None and mask.dim() != 4:
        raise ValueError(
            f"an attention mask of shape {tuple(mask.shape)} would be ignored: give (B, 1, n, L), as "
            "`causal_mask` and `bidirectional_mask` make it, or none for causal attention"
        )


def load_backbone(
    name: str,
    vocab_size: int,
    pretrained: str | None = None,
    revision: str | None = None,
    overrides: Mapping[str, Any] | None = None,
    dropout: float = 0.0,
) -> Backbone:
    """Return the backbone that a study names, with one rate of dropout wherever its architecture has some. A pretrained
    checkpoint comes with its own configuration otherwise. Raise InputError if there is no such checkpoint, or if it or
    ``overrides`` cannot be used."""
    config = (
        published_config(pretrained, revision, vocab_size) if pretrained else _configured(name, vocab_size, overrides)
    )
    had = _set_dropout(config, dropout)
    return Backbone(config, pretrained, revision, cleared=() if dropout else tuple(had))


def require_configuration(name: str) -> None:
    """Raise InputError, with the nearest name, if no backbone of :data:`CONFIGURATIONS` has this name."""
    if name not in CONFIGURATIONS:
        near = suggestion(name, CONFIGURATIONS)
        raise InputError(f"no backbone is named {name!r}{near} (available: {', '.join(CONFIGURATIONS)})")


def fields_of(name: str) -> set[str]:
    """Return the fields that the configuration of a backbone of :data:`CONFIGURATIONS` has. What GPT-2 has under names
    of its own also has its usual names."""
    from transformers import AutoConfig

    config = AutoConfig.for_model(str(CONFIGURATIONS[name]["model_type"]))
    own = {*config.to_dict(), *config.attribute_map}
    return own | {"head_dim", "rope_theta"} if "rope_parameters" in own else own


def _configured(name: str, vocab_size: int, overrides: Mapping[str, Any] | None) -> PreTrainedConfig:
    from huggingface_hub.errors import StrictDataclassError
    from transformers import CONFIG_MAPPING, AutoConfig

    require_configuration(name)
    known = fields_of(name)
    usual = {own: field for field, own in CONFIG_MAPPING[CONFIGURATIONS[name]["model_type"]].attribute_map.items()}
    for field, value in (overrides or {}).items():
        if field not in known:  # transformers would keep it, without any effect
            near = suggestion(field, known)
            raise InputError(f"the configuration of backbone {name} has no field `{field}`{near}")
        if usual.get(field, field) in SIZES and not (isinstance(value, int) and value > 0):
            raise InputError(f"`{field}` of backbone {name} is {value!r}: it must be a positive whole number")
        if _is_dropout(field) and value:
            raise InputError(
                f"`{field}` of backbone {name} is {value}: set it to 0, and give `training` a `dropout` instead, which "
                "sets all rates of a backbone"
            )
    fields = CONFIGURATIONS[name] | {usual.get(field, field): value for field, value in (overrides or {}).items()}
    heads, shared = fields.get("num_attention_heads", 1), fields.get("num_key_value_heads", 1)
    if heads % shared:
        raise InputError(
            f"backbone {name} has {heads} attention heads and {shared} key-value heads: override `num_attention_heads` "
            "and `num_key_value_heads` so that the second divides the first"
        )
    fields["vocab_size"] = max(vocab_size, fields.get("vocab_size", 0))
    if "rope_theta" in fields and "rope_parameters" in fields:  # transformers would take the second's
        fields["rope_parameters"] = fields["rope_parameters"] | {"rope_theta": fields.pop("rope_theta")}
    try:
        return AutoConfig.for_model(fields.pop("model_type"), **fields)
    except StrictDataclassError as error:
        raise InputError(f"`overrides` of backbone {name}: {' '.join(str(error).split())}") from error


def _is_dropout(field: str) -> bool:
    """Return whether a field of a configuration is a rate of dropout."""
    return re.search(r"dropout|pdrop|layerdrop", field) is not None


def _set_dropout(config: PreTrainedConfig, rate: float) -> list[str]:
    """Set all dropout of a configuration to one rate, and return the names of the fields that had some. Layers are
    never left out."""
    fields = {name: value for name, value in config.to_dict().items() if _is_dropout(name)}
    for name in fields:
        setattr(config, name, 0.0 if "layerdrop" in name else rate)
    return [name for name, value in fields.items() if value]


def label_nats(head: nn.Module, hidden: Tensor, labels: Tensor) -> Tensor:
    """Return the cross entropy (B, L) of each label that carries a loss, and 0 elsewhere, in float32. Arguments are
    those of :func:`label_loss`."""
    at = labels != IGNORE
    nats = torch.zeros(labels.shape, device=hidden.device)
    nats[at] = F.cross_entropy(head(hidden[at]).float(), labels[at], reduction="none")
    return nats


def label_loss(
    head: nn.Module, hidden: Tensor, labels: Tensor, labelled: Tensor, weights: Tensor | None = None
) -> Tensor:
    """Return the sum of the (weighted) cross entropy over the labels that carry a loss. Logits are computed only there,
    and by parts if there are more than :data:`methods.head.AT_ONCE`.

    ``hidden`` (B, L, d) predicts ``labels`` (B, L) at the same places, so the caller has to shift the labels.
    ``labelled`` (2, N) is what :func:`methods.collate.label_indices` returned for the labels, on the CPU.
    """
    at = labelled.unbind()
    states, tokens, factors = hidden[at], labels[at], None if weights is None else weights[at]
    if isinstance(head, Head) and head.splits(len(tokens)):
        return head(states, tokens, factors)
    logits = head(states).float()
    if factors is None:
        return F.cross_entropy(logits, tokens, reduction="sum")
    return (F.cross_entropy(logits, tokens, reduction="none") * factors).sum()
