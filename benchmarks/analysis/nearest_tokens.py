"""Latents beside token embeddings: which tokens are nearest, and how much longer or shorter latents are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from methods.base import Method

SHOWN = 8  # latents of a step that are shown at most


@dataclass(frozen=True)
class TokenEmbeddings:
    """The input embeddings (V, d) of the model that speaks, and their norms (V,)."""

    vectors: Tensor
    norms: Tensor
    tokenizer: PreTrainedTokenizerBase

    @classmethod
    def of(cls, method: Method, tokenizer: PreTrainedTokenizerBase) -> TokenEmbeddings:
        vectors = token_embeddings(method)
        return cls(vectors, vectors.norm(dim=-1), tokenizer)

    @property
    def median_norm(self) -> float:
        return float(np.median(self.norms.numpy()))

    def described(self, latents: np.ndarray) -> list[str]:
        """Return the nearest token of each latent with its norm in median norms of tokens: one line for (n, d), one
        line per step for (steps, n, d). Zero vectors are padding and left out."""
        if latents.ndim == 3:
            return [f"{i}. {self.described(step)[0]}" for i, step in enumerate(latents, 1)]
        shown = torch.from_numpy(latents[:SHOWN])
        shown = shown[shown.norm(dim=-1) > 0]
        lengths = (shown.norm(dim=-1) / self.median_norm).tolist()
        tokens = (repr(self.tokenizer.decode([token]))[1:-1] for token in self.nearest(shown))
        more = " ..." if len(latents) > SHOWN else ""
        return [" ".join(f"{token} ({length:.3g})" for token, length in zip(tokens, lengths, strict=True)) + more]

    def nearest(self, latents: Tensor) -> list[int]:
        """Return the tokens that are nearest to (n, d) latents by cosine."""
        # The products are divided instead of the embeddings: at 0.5B a normalised copy of these takes 0.5 GB
        return (latents @ self.vectors.T / self.norms.clamp(min=1e-12)).argmax(-1).tolist()


def token_embeddings(method: Method) -> Tensor:
    """Return the (V, d) input embeddings of the model that speaks, without the markers that methods add."""
    models: Iterator[PreTrainedModel] = (m for m in method.modules() if isinstance(m, PreTrainedModel))
    speaking = next(model for model in models if model.get_output_embeddings() is not None)
    embeddings = speaking.get_input_embeddings()
    assert isinstance(embeddings, torch.nn.Embedding)
    return embeddings.weight.detach().float().cpu()[: method.vocabulary.size]
