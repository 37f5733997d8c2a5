"""The engine of many ranks: DeepSpeed, with weights, gradients and optimizer states split as far as ZeRO's stage says.

What keeps its mathematics those of one process:

- DeepSpeed averages gradients over ranks; here they are summed, since each loss already is a share of the global one.
- The optimizer is PyTorch's AdamW, so nothing has to be compiled, and no C++ compiler is needed.
- Mixed precision is autocast over float32 weights, as in one process, and gradients are reduced in float32.

With ZeRO 3 a parameter is whole only inside the forward and backward pass of the module that holds it. DeepSpeed finds
by itself those that are used elsewhere (a tied head; a weight that another module reads), if all ranks call the same
modules in the same order; a method's own parameters are registered here. So methods need not know.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.engine.base import MOMENTS, Engine
from benchmarks.engine.device import autocast
from benchmarks.engine.process import distinct_tensors
from benchmarks.studies.specs import EngineSpec, TrainingSpec
from methods.base import Batch, Context, Method, Output
from methods.errors import InputError


def deepspeed_settings(spec: EngineSpec, training: TrainingSpec, ranks: int, parameters: int) -> dict[str, Any]:
    """DeepSpeed's JSON for a model of so many ``parameters``. DeepSpeed is told at each micro-batch whether the step
    ends with it, so its own count is one. With ZeRO 3, tensors of under a thousandth of the model (biases, norms) stay
    whole."""
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
        "timers": {"throughput": {"enabled": False}},  # it waits for the device at every forward pass
    }


def _parts(module: nn.Module) -> set[tuple[str, int | None]]:
    """Names of a module's attributes, and its hooks by the attribute that holds them.

    Whatever appears after this snapshot is removed together with the engine, attributes and hooks alike: transformers
    marks its hooks as installed in an attribute, and would install them twice if only the mark were removed.
    """
    holders = (
        (name, held) for name, held in vars(module).items() if name.endswith("_hooks") and isinstance(held, dict)
    )
    hooks = ((name, hook) for name, held in holders for hook in held)
    return {*((name, None) for name in vars(module)), *hooks}


class Losses(nn.Module):
    """A method as DeepSpeed sees it: losses come out, and the statistics are put aside."""

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
    """One stage's DeepSpeed engine; :meth:`close` gives the method back as it was found."""

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

    def output(self, batch: Batch, context: Context) -> Output:
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
        """This rank's part of a tensor that is split into parts of one size, the last of them padded."""
        size = parameter.ds_tensor.ds_numel
        flat = nn.functional.pad(value.flatten(), (0, size * self.ranks.world - value.numel()))
        return flat.narrow(0, size * self.ranks.rank, size)

    def _reset_optimizer(self, updates: int = 0) -> None:
        """States as after so many ``updates``, all moments zero."""
        sharded: Any = self.engine.optimizer
        groups = [group["params"] for group in self.optimizer.param_groups]
        if self.spec.zero_stage == 3:
            groups = [sharded.fp32_partitioned_groups_flat]
        for parameter in (parameter for group in groups for parameter in group):
            state = self.optimizer.state[parameter]
            state["step"] = torch.tensor(float(updates), device=parameter.device)
            for moment in MOMENTS:  # in place: parameters are linked to parts of these
                state.setdefault(moment, torch.zeros_like(parameter)).zero_()
        if self.spec.zero_stage in (1, 2):
            sharded._lazy_init_hp_params_optimizer_state()  # links the states to the parameters they belong to
        self.updates = updates

    def close(self) -> None:
        super().close()
        self._give_back()
        self._forget()
        del self.engine, self.optimizer, self.losses, self.trainable
        gc.collect()  # what DeepSpeed builds refers to itself, and the next stage needs its memory

    def _forget(self) -> None:
        """Empty DeepSpeed's list of the modules that a forward pass is in. At stage 3 one of every engine stays there,
        whose hooks hold that engine, and so do layers that are computed again, which stop before they are taken off."""
        from deepspeed.runtime.zero.parameter_offload import FWD_MODULE_STACK

        FWD_MODULE_STACK.clear()

    def _give_back(self) -> None:
        """Put PyTorch's own whole parameters in the place of DeepSpeed's, and remove all that it left behind."""
        whole: dict[int, nn.Parameter] = {}
        for parameter in self.method.parameters():
            self.ranks.beat("gathering the weights of a stage")
            with self._gathered([parameter], enabled=hasattr(parameter, "ds_id")):
                whole[id(parameter)] = nn.Parameter(parameter.detach().clone(), parameter.requires_grad)
        self.engine.destroy()
        for module in self.method.modules():
            own = dict(module._parameters.items())
            module._parameters = {name: None if p is None else whole[id(p)] for name, p in own.items()}
            for name, hook in _parts(module) - self._found[module]:
                if hook is None:
                    del vars(module)[name]
                elif name in vars(module):
                    del vars(module)[name][hook]
