"""The cached decoder against the plain computation, and draws that do not depend on the batch."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from methods.backbone import CONFIGURATIONS, label_loss, load_backbone
from methods.collate import IGNORE, label_indices
from methods.decoding import batch_prompts, choose_tokens, decode, force_end, prefill, sample_nucleus
from methods.generation import Decoding
from methods.masks import causal_mask
from methods.random_keys import key, normal, question_keys, uniform

EOS = 0


@pytest.fixture(scope="module")
def lm():
    torch.manual_seed(0)
    overrides = {"hidden_size": 32, "intermediate_size": 64, "initializer_range": 0.3}
    return load_backbone("llama-tiny", 40, overrides=overrides).causal_lm().eval()


def plain_greedy(lm, prompt: list[int], count: int) -> list[int]:
    """Decode greedily, reading everything again for each token."""
    ids = list(prompt)
    for _ in range(count):
        ids.append(int(lm(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1].argmax()))
        if ids[-1] == EOS:
            break
    return ids[len(prompt) :]


def padded(prompts: list[list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    width = max(map(len, prompts))
    ids = torch.tensor([[EOS] * (width - len(p)) + p for p in prompts])
    return ids, torch.tensor([[False] * (width - len(p)) + [True] * len(p) for p in prompts])


@torch.no_grad()
def test_cached_batch_equals_the_plain_computation(lm) -> None:
    """Rows end at different times and leave the batch."""
    generator = torch.Generator().manual_seed(1)
    prompts = [torch.randint(1, 40, (3 + i % 7,), generator=generator).tolist() for i in range(24)]
    ids, real = padded(prompts)
    prefix = prefill(lm.base_model, lm.get_input_embeddings()(ids), real)
    tokens, cost = decode(lm, prefix, Decoding(max_new_tokens=30), torch.zeros(24, dtype=torch.long), EOS)
    expected = [plain_greedy(lm, prompt, 30) for prompt in prompts]
    assert len({len(row) for row in expected}) > 2  # they do end at different times
    for row, wanted in zip(tokens.tolist(), expected, strict=True):
        assert row == wanted + [EOS] * (tokens.shape[1] - len(wanted))
    assert cost.tokens == sum(map(len, expected))
    assert cost.forward_passes == max(map(len, expected))


def test_greedy_takes_the_likeliest_and_a_tiny_nucleus_too() -> None:
    logits = torch.randn(50, 30, generator=torch.Generator().manual_seed(2))
    keys = torch.arange(50)
    assert torch.equal(choose_tokens(logits, Decoding(), keys, 0), logits.argmax(-1))
    assert torch.equal(choose_tokens(logits, Decoding(tokens="sample", top_p=1e-6), keys, 0), logits.argmax(-1))


def test_sampling_follows_the_probabilities_of_the_nucleus() -> None:
    probability = torch.tensor([0.5, 0.3, 0.15, 0.05])
    logits = probability.log().expand(20_000, -1)
    keys = torch.arange(20_000) * 7919
    share = torch.bincount(choose_tokens(logits, Decoding(tokens="sample"), keys, 3), minlength=4) / 20_000
    torch.testing.assert_close(share, probability, atol=0.015, rtol=0)
    nucleus = torch.bincount(choose_tokens(logits, Decoding(tokens="sample", top_p=0.7), keys, 3), minlength=4) / 20_000
    torch.testing.assert_close(nucleus, torch.tensor([0.625, 0.375, 0, 0]), atol=0.015, rtol=0)


@pytest.mark.parametrize("top_p", [1.0, 0.9, 0.3])
@pytest.mark.parametrize("scale", [0.1, 1.0, 6.0])
def test_a_draw_from_the_likeliest_tokens_is_that_of_the_whole_vocabulary(top_p: float, scale: float) -> None:
    """This includes distributions that are so flat that most draws lie beyond these tokens."""
    logits = scale * torch.randn(300, 500, generator=torch.Generator().manual_seed(2))
    probability, draws = torch.softmax(logits.double(), -1), uniform(torch.arange(300), 1)
    ordered, order = probability.sort(-1, descending=True)
    mass = ordered.cumsum(-1)
    total = (ordered * (mass - ordered < top_p)).sum(-1, keepdim=True)
    expected = order.gather(1, torch.searchsorted(mass, draws * total, right=True).clamp(max=499)).squeeze(1)
    assert torch.equal(sample_nucleus(probability, top_p, draws), expected)


def test_draws_are_uniform_normal_and_functions_of_their_key() -> None:
    keys = torch.tensor([key("seed", i) for i in range(200)])
    draws = uniform(keys, 100)
    assert draws.min() >= 0 and draws.max() < 1
    assert draws.mean() == pytest.approx(0.5, abs=0.01) and draws.var() == pytest.approx(1 / 12, abs=0.005)
    assert torch.equal(uniform(keys[3:4], 40, offset=60), draws[3:4, 60:])
    gaussian = normal(keys, 100)
    assert gaussian.mean() == pytest.approx(0, abs=0.02) and gaussian.std() == pytest.approx(1, abs=0.02)
    assert abs(torch.corrcoef(draws[:, :2].T)[0, 1]) < 0.2


def test_question_keys_depend_on_question_seed_and_stream_alone() -> None:
    first, second = [5, 6], [7]
    assert question_keys([first, second], 0, "R")[1] == question_keys([second], 0, "R")[0]
    others = [question_keys([first], 1, "R"), question_keys([first], 0, "tokens"), question_keys([second], 0, "R")]
    assert all(question_keys([first], 0, "R") != other for other in others)


def test_prompts_are_padded_on_the_left_and_draw_by_their_questions() -> None:
    decoding = Decoding(seed=4)
    ids, real, keys = batch_prompts([[5, 6, 9], [7, 9]], [[5, 6], [7]], decoding, EOS, torch.device("cpu"))
    assert ids.tolist() == [[5, 6, 9], [EOS, 7, 9]]
    assert real is not None and real.tolist() == [[True, True, True], [False, True, True]]
    assert torch.equal(keys, question_keys([[5, 6], [7]], 4, "tokens"))
    _, real, _ = batch_prompts([[5, 6], [7, 9]], [[5], [7]], decoding, EOS, torch.device("cpu"))
    assert real is None, "nothing is padding"


def test_end_of_text_is_chosen_where_it_is_due_and_nowhere_else() -> None:
    logits = torch.randn(2, 3, 5, generator=torch.Generator().manual_seed(1))
    logits[..., EOS] = 9.0
    over = torch.tensor([[False, True, True], [False, False, True]])
    forced = force_end(logits, over, EOS)
    assert torch.equal(forced.argmax(-1) == EOS, over)
    assert torch.equal(forced[~over][:, 1:], logits[~over][:, 1:]) and (logits[..., EOS] == 9.0).all()


@pytest.mark.parametrize("weighted", [False, True])
def test_the_loss_at_labels_is_to_the_bit_that_of_masked_positions(weighted: bool) -> None:
    generator = torch.Generator().manual_seed(2)
    labels = torch.randint(0, 40, (5, 7), generator=generator)
    labels[torch.rand(5, 7, generator=generator) < 0.4] = IGNORE
    weights = torch.rand(5, 7, generator=generator)
    head = torch.nn.Linear(16, 40)

    def masked(hidden: torch.Tensor) -> torch.Tensor:
        here = labels != IGNORE
        losses = F.cross_entropy(head(hidden[here]), labels[here], reduction="none" if weighted else "sum")
        return (losses * weights[here]).sum() if weighted else losses

    found = []
    for loss in (
        masked,
        lambda hidden: label_loss(head, hidden, labels, label_indices(labels), weights if weighted else None),
    ):
        hidden = torch.randn(5, 7, 16, generator=torch.Generator().manual_seed(3)).requires_grad_()
        value = loss(hidden)
        found.append((value, *torch.autograd.grad(value, [hidden, head.weight])))
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(*found, strict=True))


def test_a_mask_that_attention_would_ignore_is_refused(lm) -> None:
    ids, real = padded([[5, 6], [7]])
    with pytest.raises(ValueError, match=r"an attention mask of shape \(2, 2\) would be ignored: give \(B, 1, n, L\)"):
        lm.base_model(input_ids=ids, attention_mask=real)
    seen = lm.base_model(input_ids=ids, attention_mask=causal_mask(real)).last_hidden_state
    assert torch.allclose(
        seen[1, -1],
        lm.base_model(input_ids=ids[1:, 1:], position_ids=torch.tensor([[1]])).last_hidden_state[0, -1],
        atol=1e-6,
    )


def test_rotations_are_those_that_are_asked_for() -> None:
    rotary = [name for name in CONFIGURATIONS if name != "gpt2"]  # which has a table of positions
    for name in rotary:
        config = load_backbone(name, 40, overrides={"rope_theta": 5000.0}).config
        assert config.rope_parameters["rope_theta"] == 5000.0


def test_a_tokenizer_with_more_tokens_than_a_checkpoint_embeds_is_refused(tmp_path: Path) -> None:
    load_backbone("qwen2-tiny", 40).config.save_pretrained(tmp_path)
    assert load_backbone("qwen2-tiny", 40, pretrained=str(tmp_path)).config.vocab_size == 40
    with pytest.raises(ValueError, match=r"the tokenizer has 41 tokens, and .* has embeddings of 40: name the check"):
        load_backbone("qwen2-tiny", 41, pretrained=str(tmp_path))
