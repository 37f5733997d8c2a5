"""The last layer of a transformer, computed only where its output is read.

The states of the last layer go nowhere but into losses, heads and latents, and most passes read them at a few positions
alone: after the question, at the last token, or at MarCos's neurons. The other positions are keys and values there.
"""

from __future__ import annotations

from functools import cache
from typing import Any, cast

import torch
from torch import Tensor, nn

NARROWED = ("LlamaDecoderLayer", "Qwen2DecoderLayer")  # their layers have the modules that `NarrowLayer` calls


def forward_last(trunk: Any, count: int, **inputs: Any) -> Any:
    """Return the output of a trunk with final hidden states (B, count, d) at the last ``count`` positions alone. With
    ``output_hidden_states``, those of the other layers are at all positions."""
    output = trunk(**inputs, **({"last": count} if isinstance(_last(trunk), NarrowLayer) else {}))
    output.last_hidden_state = output.last_hidden_state[:, -count:]
    return output


def narrow(trunk: Any) -> None:
    """Let :func:`forward_last` save work in the last layer of a trunk, if its architecture is one of ``NARROWED``."""
    layer = _last(trunk)
    if layer is not None and type(layer).__name__ in NARROWED:
        layer.__class__ = _narrowed(type(layer))


def widen(module: nn.Module) -> None:
    """Let all trunks of a module compute their last layer everywhere, so that all of their layers are alike."""
    for layer in module.modules():
        if isinstance(layer, NarrowLayer):
            layer.__class__ = type(layer).__mro__[2]


class NarrowLayer(nn.Module):
    """A decoder layer that takes the argument ``last`` of :func:`forward_last`. The classes of :func:`_narrowed` derive
    from it and from the layer's own class."""

    def forward(self, hidden_states: Tensor, *, last: int | None = None, **kwargs: Any) -> Tensor:
        """Return the states (B, last, d) of the last positions, given those of all (B, n, d)."""
        if last is None or last >= hidden_states.shape[1]:
            return super().forward(hidden_states, **kwargs)
        return self._at_last(hidden_states, last, **kwargs)

    def _at_last(
        self,
        states: Tensor,
        last: int,
        attention_mask: Tensor | None = None,
        position_embeddings: tuple[Tensor, Tensor] | None = None,
        cache: Any = None,
        past_key_values: Any = None,
        **_: Any,
    ) -> Tensor:
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        cache = past_key_values if cache is None else cache  # its name before transformers 5.24
        layer: Any = self
        attention = layer.self_attn
        normed, asking = layer.input_layernorm(states), states[:, -last:]
        query, key, value = (
            project(given).unflatten(-1, (-1, attention.head_dim)).transpose(1, 2)
            for project, given in (
                (attention.q_proj, normed[:, -last:]),
                (attention.k_proj, normed),
                (attention.v_proj, normed),
            )
        )
        assert position_embeddings is not None
        query = _rotated(query, *(part[:, -last:] for part in position_embeddings))
        key = _rotated(key, *position_embeddings)
        if cache is not None:
            key, value = cache.update(key, value, attention.layer_idx)
        if attention_mask is not None:
            attention_mask = attention_mask[:, :, -last:]
        elif last > 1:
            columns = torch.arange(key.shape[2], device=key.device)
            attention_mask = (columns <= columns[-last:, None])[None, None]
        dropout = attention.attention_dropout if self.training else 0.0
        settings: dict[str, Any] = {"dropout": dropout, "scaling": attention.scaling, "is_causal": False}
        attended, _ = cast(Any, sdpa_attention_forward)(attention, query, key, value, attention_mask, **settings)
        asking = asking + attention.o_proj(attended.flatten(2))
        return asking + layer.mlp(layer.post_attention_layernorm(asking))


@cache
def _narrowed(layer: type[nn.Module]) -> type[nn.Module]:
    """Return a class of layers that derives from :class:`NarrowLayer` and a layer's own class, whose name it keeps."""
    return type(layer.__name__, (NarrowLayer, layer), {})


def _last(trunk: Any) -> nn.Module | None:
    layers = getattr(trunk, "layers", None)
    return layers[-1] if isinstance(layers, nn.ModuleList) else None


def _rotated(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Return queries or keys (B, heads, n, d) with their positions, given by cosines and sines (B, n, d)."""
    first, second = heads.chunk(2, -1)
    return heads * cos[:, None] + torch.cat([-second, first], dim=-1) * sin[:, None]
