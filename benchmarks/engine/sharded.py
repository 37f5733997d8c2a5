"""The engine of many ranks: DeepSpeed, with weights, gradients and optimizer states split according to the ZeRO stage.

It computes the same as a single process:

- DeepSpeed averages gradients over ranks; here they are summed, since each loss already is a share of the global one.
- The optimizer is PyTorch's AdamW, so nothing has to be compiled, and no C++ compiler is needed.
- Mixed precision is autocast over float32 weights, as in one process, and gradients are reduced in float32.

With ZeRO 3 a parameter is whole only during the forward and backward pass of the module that holds it. DeepSpeed itself
finds parameters that are used elsewhere (a tied head; a weight that another module reads), provided that all ranks call
the same modules in the same order. Parameters that belong to the method itself are registered here. Methods therefore
need no code for ZeRO 3.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.engine.adapters import distinct_tensors
from benchmarks.engine.base import MOMENTS, Engine
from benchmarks.engine.device import autocast
from benchmarks.studies.specs import EngineSpec, TrainingSpec
from methods.base import Batch, Context, Method, Output
from methods.errors import InputError


def deepspeed_settings(spec: EngineSpec, training: TrainingSpec, ranks: int, parameters: int) -> dict[str, Any]:
    """Return DeepSpeed's JSON configuration for a model of that many ``parameters``. Gradient accumulation is 1,
    because the engine tells DeepSpeed at each micro-batch whether it ends the step. With ZeRO 3, tensors smaller than a
    thousandth of the model (biases, norms; at most 100,000 elements) stay whole."""
    zero: dict[str, Any] = {"stage": spec.zero_stage, "reduce_bucket_size": 50_000_000, "overlap_comm": True}
    if spec.zero_stage == 3:
        zero["stage3_param_persistence_threshold"] = min(100_000, parameters // 1000)
    if spec.offload != "none":
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": torch.cuda.is_available()}
    if spec.offload == "weights":
        zero["offload_param"] = {"device": "cpu", "pin_memory": torch.cuda.is_available()}
    return {
        "train_batch_size": ranks,
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "gradient_clipping": (training.max_grad_norm or 1e30) if spec.zero_stage else 0.0,
        "zero_optimization": zero,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "steps_per_print": None,
        "timers": {"throughput": {"enabled": False}},  # this timer waits for the device at every forward pass
    }


def _parts(module: nn.Module) -> set[tuple[str, int | None]]:
    """Return the names of a module's attributes, and its hooks with the attribute that holds them.

    Everything that appears after this snapshot is removed together with the engine, attributes and hooks alike:
    transformers marks its hooks as installed in an attribute, and would install them twice if only the mark were
    removed.
    """
    found: set[tuple[str, int | None]] = set()
    for name, held in vars(module).items():
        found.add((name, None))
        if name.endswith("_hooks") and isinstance(held, dict):
            found |= {(name, hook) for hook in held}
    return found


class Losses(nn.Module):
    """Wraps a method for DeepSpeed: returns the losses, and keeps the statistics in an attribute."""

    def __init__(self, method: Method, precision: str) -> None:
        super().__init__()
        self.method, self.precision = method, precision
        self.statistics: dict[str, Tensor] = {}

    def forward(self, batch: Batch, context: Context) -> dict[str, Tensor]:
        with autocast(self.method.device, self.precision):
            output = self.method(batch, context)
        self.statistics = output.statistics
        return output.losses


class DeepSpeedEngine(Engine):
    """One stage's DeepSpeed engine. :meth:`close` removes everything that DeepSpeed added to the method."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        import deepspeed

        logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
        self._tools, self._gathered = deepspeed.utils, deepspeed.zero.GatheredParameters
        if self.spec.zero_stage == 3 and not self.method.even_passes:
            raise InputError(
                f"{self.method.name}: with these options micro-batches may differ in passes, and "
                "ZeRO 3 needs all ranks to call the same modules: set zero_stage to 2"
            )
        self._found = {module: _parts(module) for module in self.method.modules()}
        self._linear = F.linear  # stage 3 puts another in its place, for the whole process
        self.losses = Losses(self.method, self.spec.precision)
        size = sum(parameter.numel() for parameter in self.method.parameters())
        settings = deepspeed_settings(self.spec, self.training, self.ranks.world, size)
        self.engine, *_ = deepspeed.initialize(
            model=self.losses, optimizer=self.optimizer, config=settings, dist_init_required=False
        )
        if self.spec.zero_stage == 3:
            for parameter in self.method.parameters(recurse=False):
                deepspeed.zero.register_external_parameter(self.losses, parameter)
        self._reset_optimizer()

    # -- steps

    def _forward(self, batch: Batch, context: Context) -> Output:
        self.ranks.beat(f"forward pass, step {context.step}")
        losses = self.engine(batch, context)
        return Output(losses, self.losses.statistics)

    def backward(self, loss: Tensor, last: bool) -> None:
        self.ranks.beat("backward pass")
        self.engine.set_gradient_accumulation_boundary(last)
        self.engine.backward(loss * self.ranks.world, scale_wrt_gas=False)

    def step(self, step: int) -> Tensor:
        self.ranks.beat("update")
        for group in self.optimizer.param_groups:
            group["lr"] = self.learning_rate(step)
        whole = self.spec.zero_stage == 0  # then DeepSpeed's own clipping is off
        norm: Any = None
        if whole:
            norm = nn.utils.clip_grad_norm_(self.trainable.values(), self.training.max_grad_norm or float("inf"))
        self.engine.step()
        self.updates += 1
        return torch.as_tensor(norm if whole else self.engine.get_global_grad_norm(), device=self.ranks.device)

    # -- weights and optimizer states, whole

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        for name, tensor in distinct_tensors(self.method):
            self.ranks.beat(f"gathering {name}")
            with self._gathered([tensor], enabled=hasattr(tensor, "ds_id")):
                yield name, tensor.detach()

    def optimizer_states(self) -> Iterator[tuple[str, Tensor]]:
        for name, parameter in self.trainable.items():
            for moment in MOMENTS:
                self.ranks.beat(f"gathering {name}.{moment}")
                if self.spec.zero_stage == 0:
                    yield f"{name}.{moment}", self.optimizer.state[parameter][moment]
                else:
                    yield f"{name}.{moment}", self._tools.safe_get_full_optimizer_state(parameter, moment)

    def load_optimizer_states(self, tensors: Mapping[str, Tensor], updates: int) -> None:
        self._reset_optimizer(updates)
        for name, parameter in self.trainable.items():
            for moment in MOMENTS:
                self.ranks.beat(f"loading {name}.{moment}")
                value = tensors[f"{name}.{moment}"].to(self.ranks.device)
                if self.spec.zero_stage == 0:
                    self.optimizer.state[parameter][moment].copy_(value)
                elif self.spec.zero_stage == 3:
                    self._tools.safe_set_local_optimizer_state(parameter, self._own_part(parameter, value), moment)
                else:
                    self._tools.safe_set_full_optimizer_state(parameter, value, moment)

    def _own_part(self, parameter: Any, value: Tensor) -> Tensor:
        """Return this rank's part of a tensor that is split into parts of equal size, the last of them padded."""
        size = parameter.ds_tensor.ds_numel
        flat = nn.functional.pad(value.flatten(), (0, size * self.ranks.world - value.numel()))
        return flat.narrow(0, size * self.ranks.rank, size)

    def _reset_optimizer(self, updates: int = 0) -> None:
        """Set all moments to zero and the number of updates to ``updates``."""
        sharded: Any = self.engine.optimizer
        groups = [group["params"] for group in self.optimizer.param_groups]
        if self.spec.zero_stage == 3:
            groups = [sharded.fp32_partitioned_groups_flat]
        for parameter in (parameter for group in groups for parameter in group):
            state = self.optimizer.state[parameter]
            state["step"] = torch.tensor(float(updates), device=parameter.device)
            for moment in MOMENTS:  # in place, because parameters are linked to slices of these
                state.setdefault(moment, torch.zeros_like(parameter)).zero_()
        if self.spec.zero_stage in (1, 2):
            sharded._lazy_init_hp_params_optimizer_state()  # links the states to the parameters they belong to
        self.updates = updates

    def close(self) -> None:
        from deepspeed.runtime.zero.parameter_offload import FWD_MODULE_STACK

        super().close()
        self._give_back()
        # The modules that are in a forward pass. At stage 3 one module of every engine stays there, and its hooks keep
        # that engine alive. So do recomputed layers, whose forward pass stops before they are removed
        FWD_MODULE_STACK.clear()
        del self.engine, self.optimizer, self.losses, self.trainable
        gc.collect()  # DeepSpeed's objects form reference cycles, and the next stage needs their memory

    def _give_back(self) -> None:
        """Replace DeepSpeed's parameters with whole PyTorch parameters, and remove everything else that it left
        behind."""
        whole: dict[int, nn.Parameter] = {}
        for parameter in self.method.parameters():
            self.ranks.beat("gathering the weights of a stage")
            with self._gathered([parameter], enabled=hasattr(parameter, "ds_id")):
                whole[id(parameter)] = nn.Parameter(parameter.detach().clone(), parameter.requires_grad)
        self.engine.destroy()
        F.linear = self._linear
        for module in self.method.modules():
            parameters = dict(module._parameters.items())
            module._parameters = {name: None if p is None else whole[id(p)] for name, p in parameters.items()}
            for name, hook in _parts(module) - self._found[module]:
                if hook is None:
                    del vars(module)[name]
                elif name in vars(module):
                    del vars(module)[name][hook]
