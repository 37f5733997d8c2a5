"""How many positions a transformer can read in one sequence."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from methods.errors import InputError

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

SPARE = 128  # positions of a sequence for what its example does not have: markers, line ends, thoughts


class ContextLimit(NamedTuple):
    """The most positions that a model can read in one sequence, and why there are not more."""

    positions: int
    reason: str


def context_limit(config: PreTrainedConfig) -> ContextLimit | None:
    """Return how long sequences may be, or None if only memory limits them. Attention always reaches the
    whole prefix. In a model with a sliding window it does so only within the first window, which is the limit here."""
    found: list[ContextLimit] = []
    window, kinds = getattr(config, "sliding_window", None), getattr(config, "layer_types", None)
    slides = getattr(config, "use_sliding_window", True) and (not kinds or "sliding_attention" in kinds)
    if window and slides:
        found.append(
            ContextLimit(window, f"`sliding_window` is {window}, and attention reaches back over everything here")
        )
    places = getattr(config, "max_position_embeddings", None)
    if places and not getattr(config, "rope_parameters", None):  # rotations can be computed for any position
        found.append(ContextLimit(places, f"it has a table of {places} positions"))
    return min(found, default=None)


def require_context(config: PreTrainedConfig, model: str, tokens: int, what: str, fix: str) -> None:
    """Raise InputError if a sequence of ``tokens`` tokens, with :data:`SPARE` positions for markers and thoughts, is
    longer than a model's may be. ``model`` names the model, ``what`` the sequence, and ``fix`` is the remedy."""
    most = context_limit(config)
    if most is not None and tokens + SPARE > most.positions:
        raise InputError(
            f"{model} takes sequences of {most.positions:,} tokens ({most.reason}), and {what} has {tokens:,}, "
            f"to which markers and thoughts may add {SPARE}: {fix}"
        )
