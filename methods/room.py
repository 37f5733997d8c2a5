"""How long the sequences are that a transformer can read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from torch import nn

from methods.errors import InputError

if TYPE_CHECKING:
    from transformers import PreTrainedConfig


class Room(NamedTuple):
    """The most positions that a model can read in one sequence, and why there are not more."""

    positions: int
    reason: str


def room(config: PreTrainedConfig) -> Room | None:
    """Return how long sequences may be, or None if only memory limits them. Attention here is causal over everything
    that came before, as it is within the first window of a model with a sliding one."""
    found: list[Room] = []
    window, kinds = getattr(config, "sliding_window", None), getattr(config, "layer_types", None)
    slides = getattr(config, "use_sliding_window", True) and (not kinds or "sliding_attention" in kinds)
    if window and slides:
        found.append(Room(window, f"`sliding_window` is {window}, and attention reaches back over everything here"))
    places = getattr(config, "max_position_embeddings", None)
    if places and not getattr(config, "rope_parameters", None):  # rotations can be computed for any position
        found.append(Room(places, f"it has a table of {places} positions"))
    return min(found, default=None)


def refuse_long(most: Room, trunk: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
    """Raise InputError if a pass reads more positions than a trunk has room for. A mask also counts those in a cache,
    and padding."""
    mask, ids = kwargs.get("attention_mask"), args[0] if args else kwargs.get("input_ids")
    length = mask.shape[-1] if mask is not None else (kwargs["inputs_embeds"] if ids is None else ids).shape[1]
    if length > most.positions:
        raise InputError(
            f"a sequence has {length:,} positions, and the backbone takes {most.positions:,} ({most.reason}): take one "
            "that reads longer ones, or data with shorter ones"
        )
