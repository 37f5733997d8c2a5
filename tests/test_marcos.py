"""MarCos beyond the golden cases: attention directions, grouping of steps, the predictor's loss, and lambda."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.distributions import Normal, kl_divergence

from benchmarks.evaluation.inference import generate
from methods.backbone import load_backbone
from methods.base import Batch, Budget, Context, Example, Setup, Stage, Vocabulary
from methods.collate import IGNORE
from methods.cot_sft import CoTSFT
from methods.generation import Decoding
from methods.marcos.losses import SparsityController, kl_loss
from methods.marcos.method import MarCos
from methods.marcos.model import sample_prior
from methods.marcos.options import MarCosOptions, SparsityOptions
from methods.marcos.targets import group_steps, step_targets
from methods.random_keys import key
from methods.registry import build
from tiny import passes

VOCABULARY = Vocabulary(60, 1, lambda text: [2 + ord(letter) % 30 for letter in text])
EXAMPLES = [
    Example("a", [33, 34, 35, 36, 37], [[40, 41], [42]], [50]),
    Example("b", [38, 39, 33], [], [51, 52]),
    Example("c", [34, 36, 38, 33], [[40], [41], [42, 43], [44]], [53]),
]
CONTEXT = Context(Stage("phase 1", 1.0), epoch=0, step=0, seed=0)
PHASES = ("phase 1", "phase 2")


def make(**options: object) -> MarCos:
    settings = {"deep": 2, "shallow": 3, "tau": 2, **options}
    backbone = load_backbone("qwen2-tiny", 60, overrides={"hidden_size": 32, "intermediate_size": 64})
    method = build("marcos", settings, Setup(backbone, VOCABULARY), seed=0).eval()
    assert isinstance(method, MarCos)
    return method


def start(method: MarCos) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the inputs of the first thinking step: H_in, its attention mask, the neurons, and an R of zeros."""
    batch = method.collate(EXAMPLES, CONTEXT)
    neurons = method.neurons.expand(len(EXAMPLES), -1, -1).clone()
    return method.understand(batch["question"]), batch["question_real"], neurons, torch.zeros(len(EXAMPLES), 2 * 32)


def thoughts(method: MarCos, batch: Batch) -> Tensor:
    mean, _ = method.posterior(batch["targets"], batch["lengths"])
    randomness = mean.view(method.options.steps, len(EXAMPLES), -1)
    return method.think_all_steps(method.understand(batch["question"]), batch["question_real"], randomness)


def test_a_warm_start_gives_the_layers_the_language_model_and_f_nothing() -> None:
    assert MarCos.starts_from(MarCosOptions(warm_start="cot_sft")) == "cot_sft"
    method, untouched = make(warm_start="cot_sft"), make()
    backbone = load_backbone("qwen2-tiny", 60, overrides={"hidden_size": 32, "intermediate_size": 64})
    parent = build("cot_sft", {}, Setup(backbone, VOCABULARY), seed=1)
    method.warm_start({name: weights for name, weights in parent.state_dict().items() if "lm_head" not in name})
    assert isinstance(parent, CoTSFT)
    lm = parent.lm.state_dict()
    for name, weights in method.speaking.state_dict().items():
        assert torch.equal(weights, lm[name])
    for layer in (method.understanding, method.thinking):
        assert all(torch.equal(weights, lm[f"model.{name}"]) for name, weights in layer.state_dict().items())
    for part in ("posterior", "inject", "prior"):
        own, other = getattr(method, part).state_dict(), getattr(untouched, part).state_dict()
        assert all(torch.equal(own[name], other[name]) for name in own)


def test_a_thinking_layer_starts_from_one_thing() -> None:
    with pytest.raises(ValueError, match="leave out `thinking_init`"):
        MarCosOptions(warm_start="cot_sft", thinking_init="xavier")


@torch.no_grad()
@pytest.mark.parametrize("attention", ["bidirectional", "causal"])
def test_what_a_neuron_sees(attention: str) -> None:
    """A later neuron changes the states of earlier ones, unless thinking is causal; the question and R change all."""
    method = make(attention=attention)
    question, real, neurons, randomness = start(method)
    before = method.think(neurons, question, real, randomness)
    neurons[:, -1] += 1.0
    after = method.think(neurons, question, real, randomness)
    assert torch.allclose(before[:, :-1], after[:, :-1], atol=1e-4) is (attention == "causal")
    assert not torch.allclose(before[:, -1], after[:, -1], atol=1e-4)
    by_randomness = method.think(neurons, question, real, randomness + 1.0)
    assert not torch.allclose(after[:, 0], by_randomness[:, 0], atol=1e-4)
    by_question = method.think(neurons, question + 1.0, real, randomness)
    assert not torch.allclose(after[:, 0], by_question[:, 0], atol=1e-4)


def test_xavier_is_for_the_matrices_of_the_thinking_layer_alone() -> None:
    normal, xavier = make().state_dict(), make(thinking_init="xavier").state_dict()
    changed = {name for name in normal if not torch.equal(normal[name], xavier[name])}
    assert changed == {name for name, value in normal.items() if name.startswith("thinking.") and value.dim() == 2}
    for name in changed:
        rows, columns = xavier[name].shape
        assert xavier[name].abs().max() == pytest.approx(math.sqrt(6 / (rows + columns)), rel=0.02)
        assert normal[name].std() == pytest.approx(0.02, rel=0.1)


@pytest.mark.parametrize("attention", ["bidirectional", "causal"])
@torch.no_grad()
def test_padding_is_invisible_to_thinking(attention: str) -> None:
    method = make(attention=attention)
    batch = method.collate(EXAMPLES, CONTEXT)
    before = thoughts(method, batch)
    batch.tensors["question"] = batch["question"].masked_fill(~batch["question_real"], 44)
    torch.testing.assert_close(thoughts(method, batch), before)


@torch.no_grad()
def test_every_step_sees_the_question() -> None:
    method = make()
    question, real, neurons, randomness = start(method)
    first = method.think(neurons, question, real, randomness)
    other = method.think(first, question.flip(-1), real, randomness)
    assert not torch.allclose(other, method.think(first, question, real, randomness), atol=1e-5)


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ("", ["", ""]),
        ("1", ["1", ""]),
        ("12", ["1", "2"]),
        ("123", ["12", "3"]),
        ("1234", ["12", "34"]),
        ("12345", ["12", "345"]),
    ],
)
def test_steps_are_grouped_evenly_and_shortage_leaves_empty_groups(steps: str, expected: list[str]) -> None:
    found = group_steps([[int(step)] for step in steps], 2)
    assert ["".join(str(step[0]) for step in part) for part in found] == expected


def test_the_answer_is_always_the_last_target() -> None:
    for example in EXAMPLES:
        rows = step_targets(example, 3, VOCABULARY, limit=128)
        assert len(rows) == 3
        assert rows[-1] == [*VOCABULARY.newline, *VOCABULARY.answer_marker, *example.answer, VOCABULARY.eos]
        assert all(row[0] == VOCABULARY.newline[0] for row in rows)
    assert step_targets(EXAMPLES[1], 3, VOCABULARY, limit=128)[:2] == [VOCABULARY.newline] * 2
    assert all(row[-1] == VOCABULARY.eos for row in step_targets(EXAMPLES[0], 3, VOCABULARY, limit=1) if len(row) > 1)


@pytest.mark.parametrize("steps", [1, 2, 3, 5])
def test_with_padding_the_answer_follows_the_steps_and_is_kept_to_the_last(steps: int) -> None:
    for example in EXAMPLES:
        plain = step_targets(example, steps, VOCABULARY, limit=128)
        padded = step_targets(example, steps, VOCABULARY, limit=128, padding="answer")
        assert padded == [row if len(row) > 1 else plain[-1] for row in plain]


@pytest.mark.parametrize("steps", [1, 2, 3, 5])
def test_with_padding_on_the_left_the_last_step_is_just_before_the_answer(steps: int) -> None:
    for example in EXAMPLES:
        *groups, answer = step_targets(example, steps, VOCABULARY, limit=128)
        empty, filled = [row for row in groups if len(row) == 1], [row for row in groups if len(row) > 1]
        assert step_targets(example, steps, VOCABULARY, limit=128, padding="left") == [*empty, *filled, answer]


def test_a_share_of_answers_has_no_marker_whatever_the_epoch() -> None:
    many = [Example(f"row-{i}", [5], [], [7]) for i in range(400)]
    plain = [*VOCABULARY.newline, 7, VOCABULARY.eos]
    with_marker = [*VOCABULARY.newline, *VOCABULARY.answer_marker, 7, VOCABULARY.eos]
    rows = [step_targets(example, 3, VOCABULARY, limit=128, marked=0.7)[-1] for example in many]
    assert rows == [step_targets(example, 3, VOCABULARY, limit=128, marked=0.7)[-1] for example in many]
    assert 0.6 < rows.count(with_marker) / len(rows) < 0.8 and rows.count(plain) == len(rows) - rows.count(with_marker)
    assert all(step_targets(example, 3, VOCABULARY, limit=128, marked=0.0)[-1] == plain for example in many)
    assert [make(marked=share).length(many[0]).tokens + 1 for share in (0.0, 1.0)] == [len(plain), len(with_marker)]


@pytest.mark.parametrize(("randomness", "reads"), [(True, "step"), (True, "path"), (False, "step")])
def test_tokens_are_the_positions_that_its_transformers_read(randomness: bool, reads: str) -> None:
    """An end-of-text that nothing follows does not count. Of a step that says nothing, only what f reads counts."""
    method = make(randomness=randomness, encoder_reads=reads)
    read = passes(method)
    batch = method.collate(EXAMPLES[1:2], CONTEXT)  # alone, so that the question has no padding
    method(batch, CONTEXT)
    width, spoken = batch["targets"].shape[1], len(batch["spoken_rows"])
    padding = spoken * width - int((batch["labels"] != IGNORE).sum())
    padding += 3 * width - int(batch["lengths"].sum()) if randomness and reads == "step" else 0
    assert batch.tokens == sum(shape.numel() for shape in read) - padding


@torch.no_grad()
@pytest.mark.parametrize("posterior", ["noisy", "gaussian"])
def test_f_may_read_the_question_and_the_steps_before(posterior: str) -> None:
    method = make(encoder_reads="path", posterior=posterior)
    first = EXAMPLES[0]
    later = replace(first, steps=[*first.steps[:-1], [9, 9, 9]], answer=[8])
    asked = replace(first, question=[*first.question[:-1], first.question[-1] + 1])
    alone, changed, other = (method.encode_steps([example]) for example in (first, later, asked))
    together = method.encode_steps(EXAMPLES)
    assert alone is not None and changed is not None and other is not None and together is not None
    torch.testing.assert_close(together[:1], alone)  # whatever its batch mates are
    torch.testing.assert_close(changed[:, 0], alone[:, 0])
    assert not torch.allclose(changed[:, -1], alone[:, -1]) and not torch.allclose(other[:, 0], alone[:, 0])
    batch = method.collate(EXAMPLES[:1], CONTEXT)
    row = [*first.question, *step_targets(first, 3, VOCABULARY, limit=128)[0][:-1]]
    assert batch["paths"][0, : len(row)].tolist() == row and int(batch["lengths"][0, 0]) == len(row)
    assert method(batch, CONTEXT).losses["reconstruction"].isfinite()


def test_empty_steps_carry_no_loss_but_are_thought() -> None:
    method = make()
    batch = method.collate(EXAMPLES, CONTEXT)
    silent = [1, 3 + 1]  # steps 1 and 2 of the second example, in rows of three
    assert sorted({*range(9)} - {*batch["spoken_rows"].tolist()}) == silent
    assert thoughts(method, batch).shape[0] == 3


@torch.no_grad()
@pytest.mark.parametrize(("steps", "counted"), [("nonempty", 7), ("all", 9)])
def test_the_l1_norm_counts_r_of_the_steps_it_is_told_to(steps: str, counted: int) -> None:
    """There are three examples with three steps each, two of which are empty."""
    method = make(sparsity={"weight": 0.5, "maximum": 1.0, "steps": steps})
    batch = method.collate(EXAMPLES, CONTEXT)
    mean = method.encode_r(batch.tensors)[0].flatten(0, 1)
    norms = mean.abs().sum(1) if steps == "all" else mean.abs().sum(1)[batch["spoken_rows"]]
    output = method(batch, CONTEXT)
    assert len(norms) == counted == output.statistics["counted_steps"]
    torch.testing.assert_close(output.losses["sparsity"], 0.5 * norms.sum())
    logged = method.metrics({name: float(value) for name, value in output.statistics.items()})
    assert logged["l1_per_step"] == pytest.approx(float(norms.mean()))
    with torch.autocast("cpu", torch.bfloat16):
        assert {tensor.dtype for tensor in method(batch, CONTEXT).statistics.values()} == {torch.float32}


VARIANTS = [
    {"deep": 0},
    {"randomness": False},
    {"posterior": "noisy", "epsilon": 0.3},
    {"posterior": "gaussian"},
    {"encoder_reads": "path"},
    {"encoder_reads": "path", "posterior": "gaussian"},
    {"attention": "causal"},
    {"attention": "causal", "randomness": False},
    {"thinking_init": "xavier"},
    {"sparsity": {"weight": 0.0, "adaptive": False}},
    {"sparsity": {"steps": "all"}},
    {"speaking": "one_shot", "max_step_tokens": 6},
    {"speaking": "one_shot", "max_step_tokens": 6, "refinements": 2},
    {"steps": 1},  # the answer alone
]


@pytest.mark.parametrize("options", VARIANTS, ids=str)
def test_variants_train_and_answer(options: dict) -> None:
    method = make(**options)
    output = method(method.collate(EXAMPLES, CONTEXT), CONTEXT)
    torch.stack(list(output.losses.values())).sum().backward()
    unused = [name for name, p in method.named_parameters() if p.grad is None and not name.startswith("prior.")]
    assert not unused
    with torch.no_grad():
        questions = [example.question for example in EXAMPLES]
        generation = method.generate(questions, Decoding(max_new_tokens=4, answer_only=False))
    assert generation.steps is not None and generation.steps.shape[:2] == (3, options.get("steps", 3))


def test_noise_of_the_posterior_changes_with_the_step_and_spares_the_l1_norm() -> None:
    plain, noisy = make(), make(posterior="noisy", epsilon=0.5)
    batch = plain.collate(EXAMPLES, CONTEXT)
    losses = [noisy(batch, replace(CONTEXT, step=step)).losses for step in (0, 0, 1)]
    assert losses[0]["reconstruction"] == losses[1]["reconstruction"] != losses[2]["reconstruction"]
    assert losses[0]["sparsity"] == losses[2]["sparsity"] == plain(batch, CONTEXT).losses["sparsity"]
    _, _, drawn = noisy._encode_and_sample(batch, CONTEXT)
    mean, _, same = plain._encode_and_sample(batch, CONTEXT)
    assert same is mean and float((drawn - mean).detach().std()) == pytest.approx(0.5, rel=0.1)


@pytest.mark.parametrize("posterior", ["noisy", "gaussian"])
@torch.no_grad()
def test_validation_draws_the_same_noise_at_any_step(posterior: str) -> None:
    """Weights of different steps are then compared by themselves, not by their draws."""
    method = make(posterior=posterior, epsilon=0.5)

    def loss(epoch: int, step: int, training: bool) -> Tensor:
        context = replace(CONTEXT, epoch=epoch, step=step, training=training)
        return method(method.collate(EXAMPLES, context), context).losses["reconstruction"]

    assert loss(0, 1, training=False) == loss(0, 40, training=False) == loss(3, 40, training=False)
    assert loss(0, 1, training=True) != loss(0, 40, training=True) != loss(3, 40, training=True)


def test_draws_of_training_are_keyed_by_epoch_and_step() -> None:
    """Existing weights were trained with these keys. Other keys would give other weights."""
    context = replace(CONTEXT, epoch=2, step=7, seed=5)
    assert context.epoch_and_step == (2, 7) and replace(context, training=False).epoch_and_step == (None, None)
    keys = make().collate(EXAMPLES, context).keys
    assert keys is not None and keys.tolist() == [key(5, 2, example.id) for example in EXAMPLES]


def test_without_randomness_nothing_of_it_is_left() -> None:
    names = {name.split(".")[0] for name, _ in make(randomness=False).named_parameters()}
    assert names == {"understanding", "thinking", "speaking", "neurons"}
    assert not make(randomness=False).stochastic(Decoding())
    assert make().stochastic(Decoding()) and not make().stochastic(Decoding(latents="mean"))


@torch.no_grad()
def test_a_trained_model_thinks_as_often_as_it_is_told_to() -> None:
    """The first steps are the same whatever K is, and the answer is what step K says."""
    asked = [example.question for example in EXAMPLES]
    said = make(steps=3).generate(asked, Decoding(max_new_tokens=4, answer_only=False)).steps
    assert said is not None
    for steps in (1, 2):
        generation = make(steps=steps).generate(asked, Decoding(max_new_tokens=4))
        assert generation.cost.latent_steps == steps
        width = min(generation.answer.shape[1], said.shape[2])
        assert torch.equal(generation.answer[:, :width], said[:, steps - 1, :width])


def test_the_last_step_reads_the_question_whoever_s_neurons_it_is_given() -> None:
    """Speaking reads the last neurons alone: with another question's, answers could not depend on the question."""
    decoding = Decoding(max_new_tokens=2, trace=True, thoughts="exchanged")
    generation = generate(make(steps=3, randomness=False), [one.question for one in EXAMPLES], decoding, "float32")
    assert generation.own
    own, others = (answers.trace["thoughts"] for answers in (generation.own, generation))
    torch.testing.assert_close(others[:, :-1], own.roll(1, 0)[:, :-1])
    assert all((others[:, -1] - those[:, -1]).abs().amax((1, 2)).min() > 1e-3 for those in (own, own.roll(1, 0)))


@torch.no_grad()
def test_steps_said_together_are_those_said_alone() -> None:
    method = make()
    questions = [example.question for example in EXAMPLES]
    answer = method.generate(questions, Decoding(max_new_tokens=6)).answer
    together = method.generate(questions, Decoding(max_new_tokens=6, answer_only=False))
    width = min(answer.shape[1], together.answer.shape[1])
    assert torch.equal(answer[:, :width], together.answer[:, :width])


@pytest.mark.parametrize("posterior", ["deterministic", "gaussian"])
def test_joint_training_weighs_kl_for_f_alone(posterior: str) -> None:
    """g learns at its full rate, f by the weight, and thinking not at all, from this term."""

    def gradients(weight: float) -> dict[str, Tensor]:
        method = make(joint_kl=weight, posterior=posterior)
        (stage,) = method.stages(Budget(1.0, 10))
        loss = method(method.collate(EXAMPLES, CONTEXT), replace(CONTEXT, stage=stage)).losses["kl"]
        loss.backward()
        return {name: weights.grad for name, weights in method.named_parameters() if weights.grad is not None}

    whole, half, none = gradients(1.0), gradients(0.5), gradients(0.0)
    for name, gradient in whole.items():
        part, _, _ = name.partition(".")
        assert part in {"prior", "posterior"}
        torch.testing.assert_close(half[name], gradient if part == "prior" else gradient / 2)
        torch.testing.assert_close(none[name], gradient if part == "prior" else torch.zeros_like(gradient))


def test_joint_training_is_one_phase_that_may_spare_f_at_first() -> None:
    method = make(joint_kl=0.3, joint_start=0.2, first_phase=2.0)
    first, second = method.stages(Budget(5.0, 10))
    assert (first.epochs, second.epochs) == (2.0, 8.0) and first.phase == second.phase and second.keep_optimizer
    assert all(stage.trains("prior.layers") and stage.trains("thinking.norm") for stage in (first, second))
    batch = method.collate(EXAMPLES, CONTEXT)
    early, late = (method(batch, replace(CONTEXT, stage=stage)).losses for stage in (first, second))
    torch.testing.assert_close(early, late)
    with pytest.raises(ValueError, match="give both, or neither"):
        MarCosOptions(joint_start=0.2)


def test_kl_is_that_of_two_normals() -> None:
    mean, prior_mean = torch.tensor([0.0, 0.3, 2.0]), torch.tensor([0.1, 0.3, -1.0])
    log_deviation = torch.tensor([-1.0, 0.0, 0.5])
    expected = kl_divergence(Normal(mean, 0.01), Normal(prior_mean, log_deviation.exp()))
    found = [kl_loss(*dimension) for dimension in zip(mean, [0.01] * 3, prior_mean, log_deviation, strict=True)]
    torch.testing.assert_close(torch.stack(found), expected)
    torch.testing.assert_close(kl_loss(mean, 0.01, prior_mean, log_deviation), expected.sum())


def test_kl_gradient_tends_to_that_of_the_likelihood_and_stays_finite_at_zero() -> None:
    value = torch.tensor([0.0, 0.5], dtype=torch.float64)

    def gradient(loss) -> Tensor:
        parameters = torch.tensor([[0.2, 0.1], [-1.0, 0.3]], dtype=torch.float64, requires_grad=True)
        loss(parameters[0], parameters[1]).backward()
        assert parameters.grad is not None
        return parameters.grad

    wanted = gradient(lambda mean, log: -Normal(mean, log.exp()).log_prob(value).sum())
    distances = []
    for epsilon in (1e-1, 1e-2, 1e-3):
        found = gradient(lambda mean, log, e=epsilon: kl_loss(value, e, mean, log))
        assert found.isfinite().all()
        distances.append(float((found - wanted).abs().max()))
    assert distances[0] > distances[1] > distances[2] and distances[2] < 1e-5


def test_predicted_deviation_never_falls_below_the_posteriors_and_draws_scale_with_the_temperature() -> None:
    prior = make().prior
    torch.nn.init.constant_(prior.layers[2].get_parameter("bias"), -50.0)
    _, log_deviation = prior(torch.zeros(1, 32))
    assert (log_deviation >= math.log(1e-2)).all()
    mean, log_sigma = prior(torch.zeros(1, 32))
    drawn = [sample_prior(mean, log_sigma, torch.tensor([7]), 0, temperature) for temperature in (0.0, 1.0, 3.0)]
    torch.testing.assert_close(drawn[2] - drawn[0], 3 * (drawn[1] - drawn[0]))


def test_lambda_steers_to_its_target_and_stays_in_bounds() -> None:
    controller = SparsityController(SparsityOptions(weight=1e-4, target=0.5, minimum=1e-6, maximum=0.1))
    controller.update(l1=10.0, counted_steps=10.0)
    assert float(controller.weight) == pytest.approx(1.01e-4)
    controller.update(l1=1.0, counted_steps=10.0)
    assert float(controller.weight) == pytest.approx(1.01e-4 * 0.99)
    for _ in range(1000):
        controller.update(l1=10.0, counted_steps=10.0)
    assert float(controller.weight) == pytest.approx(0.1)


def test_bounds_of_lambda_are_in_order() -> None:
    with pytest.raises(ValueError, match=r"`minimum` of lambda is 0.1, above its `maximum` of 0.01"):
        SparsityOptions(minimum=0.1, maximum=0.01)
    with pytest.raises(
        ValueError, match=r"lambda starts at 0 and adapts between 1e-06 and 0.1: give .* `adaptive: false`"
    ):
        SparsityOptions(weight=0.0)
    assert SparsityOptions(weight=0.0, adaptive=False).weight == 0


def test_features_take_no_thought_that_nothing_reads() -> None:
    method = make().eval()
    stage = method.stages(Budget(1.0, 1))[-1]
    passes: list[None] = []
    method.thinking.register_forward_hook(lambda *_: passes.append(None))
    context = Context(stage, 0, 0, seed=0)
    with torch.no_grad():
        features = method.features(method.collate(EXAMPLES, context), context)
    assert features["pooled"].shape[1] == method.options.steps == len(passes) + 1


def test_a_fixed_lambda_stays() -> None:
    fixed = SparsityController(SparsityOptions(weight=1e-3, adaptive=False, target=0.5))
    fixed.update(l1=10.0, counted_steps=10.0)
    assert float(fixed.weight) == 1e-3


def test_dead_randomness_is_warned_of() -> None:
    method = make()
    assert method.warnings({"active_share": 0.0})[0].startswith("R is dead") and method.dead_latents(
        {"active_share": 0.0}
    )
    assert not method.warnings({"active_share": 0.01}) and not method.dead_latents({"active_share": 0.01})
    assert not make(randomness=False).dead_latents({})


def test_defaults_are_the_papers() -> None:
    options = MarCosOptions()
    assert (options.steps, options.deep, options.shallow, options.tau) == (3, 10, 100, 16)
    assert options.sparsity.target == pytest.approx(10 / 48)


def test_parameters_at_half_a_billion_are_the_papers() -> None:
    """The paper's number includes the thinker's unused token table and the R rows of the neuron matrix."""
    with torch.device("meta"):
        method = MarCos(MarCosOptions(), Setup(load_backbone("qwen2.5-0.5b", 151665), VOCABULARY))
    total = sum(p.numel() for p in method.parameters())
    assert total == 2_290_561_664 - 16 * 896


@torch.no_grad()
@pytest.mark.parametrize("options", [{}, {"posterior": "noisy"}, {"posterior": "gaussian"}])
def test_nats_are_the_losses_of_both_phases(options: dict[str, str]) -> None:
    """Their sum is minus the evidence lower bound, as validation has it."""
    method = make(**options)
    first, second = (replace(CONTEXT, stage=Stage(name, 1.0, phase=name), training=False) for name in PHASES)
    batch = method.collate(EXAMPLES, first)
    features = method.collate_features(method.features(batch, first))
    found = method.nats(EXAMPLES)
    assert found.text is not None and found.latents is not None
    torch.testing.assert_close(found.text.sum(), method(batch, first).losses["reconstruction"])
    torch.testing.assert_close(found.latents.sum(), method(features, second).losses["kl"], rtol=1e-4, atol=1e-3)
