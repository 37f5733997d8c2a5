"""Where ranks are started, how the engine's settings are passed on, and which process gets which GPU."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from pydantic import ValidationError

from benchmarks import rank
from benchmarks.analysis import explaining, interventions
from benchmarks.analysis import task as analysis
from benchmarks.cli.common import load_for_one_process
from benchmarks.engine import PlaceInPhase, Ranks, build_engine, pick_device, ranks
from benchmarks.engine.ranks import join, leave_nvml_out
from benchmarks.engine.sharded import deepspeed_settings
from benchmarks.processes import devices, launch
from benchmarks.processes.launch import alive, command, exit_status, run_ranks
from benchmarks.processes.locks import FileLock
from benchmarks.processes.preemption import block_sigterm
from benchmarks.studies.specs import EngineSpec, TrainingSpec
from benchmarks.studies.study import load_study
from benchmarks.timing import measuring, speed
from commands import invoke
from conftest import ROOT, needs_deepspeed, needs_linux
from methods.base import Budget
from methods.errors import InputError
from small import MARCOS, small_study
from tiny import make

EIGHT = EngineSpec(kind="deepspeed", gpus=4, nodes=2)
TRAINING = TrainingSpec(epochs=1, max_grad_norm=2.0)


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Return an environment without SLURM job, hostfile and visible GPUs."""
    for name in ("SLURM_JOB_ID", "MARCOS_BENCH_HOSTFILE", "MARCOS_BENCH_GPUS", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


def slots(words: list[str]) -> object:
    (world,) = [word for word in words if word.startswith("--world_info=")]
    return json.loads(base64.urlsafe_b64decode(world.split("=", 1)[1]))


def test_one_node_is_deepspeeds_launcher_on_the_gpus_at_hand(bare: pytest.MonkeyPatch) -> None:
    engine = EngineSpec(kind="deepspeed", gpus=2)
    assert slots(command(engine, 1, [])) == {"localhost": [0, 1]}
    bare.setenv("CUDA_VISIBLE_DEVICES", "5,3")
    words = command(engine, 1, ["--folder", "here"])
    assert slots(words) == {"localhost": ["5", "3"]}
    assert "deepspeed.launcher.launch" in words and words[-3:] == ["benchmarks.rank", "--folder", "here"]


@pytest.mark.parametrize("asks", [False, True])
def test_a_launcher_gets_no_sigterm_and_a_rank_asks_for_it(asks: bool) -> None:
    """DeepSpeed's launcher would set its own handler, which kills the ranks while they save."""
    code = "import signal, sys, time; from benchmarks.processes.preemption import unblock_sigterm; "
    code += "signal.signal(signal.SIGTERM, lambda *_: sys.exit(3)); "
    code += f"{'unblock_sigterm(); ' if asks else ''}print('ready', flush=True); time.sleep({600 if asks else 0.5})"
    with block_sigterm():
        process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, cwd=ROOT)
    assert process.stdout and process.stdout.readline() == b"ready\n"
    process.terminate()
    assert process.wait(600) == (3 if asks else 0)


@needs_deepspeed
def test_ranks_are_started_by_a_launcher_that_gets_no_sigterm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocked = []

    def started(*_: Any, **__: Any) -> None:
        blocked.append(signal.pthread_sigmask(signal.SIG_BLOCK, ()))
        raise OSError("as far as this")

    monkeypatch.setattr(launch.subprocess, "Popen", started)
    run = small_study([{"id": "cot_sft", "method": "cot_sft"}], engine={"kind": "deepspeed"}).runs[
        "equation/cot_sft/s0"
    ]
    with pytest.raises(OSError, match="as far as this"):
        launch.run_ranks(run, tmp_path, "train")
    assert signal.SIGTERM in blocked[0] and signal.SIGTERM not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


@needs_linux
def test_what_a_process_died_of_is_known_before_its_parent_asks() -> None:
    codes = {}
    for end in ("import sys; sys.exit(3)", "import os; os.kill(os.getpid(), 9)"):
        child, last = subprocess.Popen([sys.executable, "-c", end]), time.monotonic() + 20
        while alive(child.pid):
            assert time.monotonic() < last, "a zombie counts as alive"
            time.sleep(0.01)
        codes[end] = exit_status(child.pid)
        assert child.wait() == codes[end] and exit_status(child.pid) is None, "nothing is left of it"
    assert [*codes.values()] == [3, -9] and exit_status(os.getpid()) is None


def test_where_deepspeed_is_not_installed_its_engine_is_refused(tmp_path: Path, bare: pytest.MonkeyPatch) -> None:
    bare.setattr("benchmarks.processes.find_spec", lambda _: None)
    spec = small_study([{"id": "cot", "method": "cot_sft"}], engine={"kind": "deepspeed"}).runs["equation/cot/s0"]
    with pytest.raises(InputError, match=r"DeepSpeed, which is not installed .*: set `kind: process`"):
        run_ranks(spec, tmp_path, "train")
    assert not list(tmp_path.iterdir())


def test_several_nodes_are_a_hostfile_or_a_slurm_job(bare: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="2 nodes: run inside a SLURM job of as many, or name a hostfile"):
        command(EIGHT, 6, [])
    hosts = tmp_path / "hosts"
    bare.setenv("MARCOS_BENCH_HOSTFILE", str(hosts))
    with pytest.raises(InputError, match=r"names .*hosts, which is not a file"):
        command(EIGHT, 6, [])
    hosts.write_text("node-0 slots=4\nnode-1 slots=4\n", encoding="utf-8")
    words = command(EIGHT, 6, [])
    assert {f"--hostfile={hosts}", "--num_nodes=2", "--num_gpus=4"} < set(words)
    bare.setenv("SLURM_JOB_ID", "7")
    words = command(EIGHT, 6, [])
    assert words[0] == "srun" and {"--nodes=2", "--ntasks=8", "--ntasks-per-node=4", "--cpus-per-task=6"} < set(words)
    assert "--distribution=block" in words, "a rank's node is found from its number"
    assert words[-2] == "--rendezvous"


def test_a_task_of_slurm_finds_its_place(bare: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "LOCAL_WORLD_SIZE"):
        bare.setenv(name, "")  # restored when the test ends
        bare.delenv(name)
    for name, value in {"SLURM_PROCID": "5", "SLURM_LOCALID": "1", "SLURM_NTASKS": "8"}.items():
        bare.setenv(name, value)
    assert rank.complete_environment(4, "node-1:2345") == 5
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "LOCAL_WORLD_SIZE")
    assert [os.environ[name] for name in names] == ["5", "1", "8", "node-1", "2345", "4"]


def test_settings_of_deepspeed_follow_from_the_engine() -> None:
    plain = deepspeed_settings(EngineSpec(kind="deepspeed"), TRAINING, 8, 1000)
    assert plain["zero_optimization"]["stage"] == 0 and plain["train_batch_size"] == 8
    spread = EngineSpec(kind="deepspeed", gpus=8, zero_stage=3, offload="weights")
    settings = deepspeed_settings(spread, TRAINING, 8, 10**9)
    assert settings["gradient_clipping"] == 2.0
    for made in (plain, settings):
        assert made["zero_optimization"]["overlap_comm"] and not made["timers"]["throughput"]["enabled"]
    assert {settings["zero_optimization"][f"offload_{what}"]["device"] for what in ("param", "optimizer")} == {"cpu"}
    json.dumps(settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"gpus": 2}, "set `kind: deepspeed`"),
        ({"kind": "deepspeed", "offload": "optimizer"}, "needs zero_stage 1, 2 or 3"),
        ({"kind": "deepspeed", "offload": "weights", "zero_stage": 2}, "needs zero_stage 3"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        EngineSpec.model_validate(settings)


def digest(method: str, **engine: object) -> str:
    rows = [{"id": "row", "method": method}]
    return next(iter(small_study(rows, engine=engine).runs.values())).digest("train")


def test_only_precision_makes_another_run() -> None:
    assert digest("cot_sft") == digest("cot_sft", kind="deepspeed", gpus=8, zero_stage=2, micro_batch=4)
    assert digest("cot_sft") == digest("cot_sft", micro_tokens=100)
    assert digest("cot_sft") != digest("cot_sft", precision="bfloat16")


def test_what_a_statistic_of_a_micro_batch_is_taken_of_makes_another_run() -> None:
    """Otherwise, a run would go on with another loss. The number of GPUs alone does not change the loss."""
    assert digest("codi", micro_batch=2) == digest("codi", kind="deepspeed", gpus=2, micro_batch=2)
    assert digest("codi") == digest("codi", kind="deepspeed", gpus=2)
    ranks = [digest("codi", kind="deepspeed", gpus=count, micro_tokens=100) for count in (1, 2, 3)]
    assert len({digest("codi"), digest("codi", micro_batch=2), digest("codi", micro_tokens=200), *ranks}) == 6
    assert len({digest("codi"), digest("codi", micro_tokens=100), digest("codi", micro_tokens=200)}) == 3


def test_gpus_that_share_every_run_change_no_run_but_those_with_statistics_of_a_pass(bare: pytest.MonkeyPatch) -> None:
    """Of the study of a single GPU each, a rank's share of 32 examples is one pass, whatever `micro_batch` was for."""
    apart = {id: run for id, run in load_study("paper_0.5b").runs.items()}
    bare.setenv("MARCOS_BENCH_GPUS", "8")
    shared = load_study("paper_0.5b").runs
    engines = {run.row: run.engine for run in shared.values()}
    assert {(e.kind, e.ranks, e.zero_stage, e.micro_batch) for e in engines.values()} == {("deepspeed", 8, 1, None)}
    assert engines["marcos"].activation_checkpointing and engines["marcos"].compile
    moved = {run.method for id, run in shared.items() if run.digest("train") != apart[id].digest("train")}
    assert moved == {"codi"} and engines["codi"].micro_tokens is None, "its distance is that of the whole batch"
    bare.setenv("MARCOS_BENCH_GPUS", "4")
    assert load_study("paper_3b").runs["equation/cot_sft/s0"].engine.micro_batch == 32  # of a share of 64
    bare.setenv("MARCOS_BENCH_GPUS", "8")
    curves = {run.row: (run.engine.kind, run.engine.ranks) for run in load_study("quick").runs.values()}
    assert set(curves.values()) == {("process", 1)}, "validation questions are answered by a process with all weights"
    bare.setenv("MARCOS_BENCH_GPUS", "all")
    assert load_for_one_process("smoke").runs, "what takes one GPU, such as a rehearsal, leaves the variable aside"
    bare.setenv("MARCOS_BENCH_GPUS", "all")
    with pytest.raises(InputError, match="MARCOS_BENCH_GPUS is 'all': set it to the number of GPUs"):
        load_study("smoke")


def test_a_stage_may_have_a_learning_rate_of_its_own() -> None:
    """MarCos's predictor has its own rate, on the schedule of the training."""
    method = make("marcos", {**MARCOS, "second_rate": 1e-5})
    training = TrainingSpec(
        epochs=1, learning_rate=1e-3, schedule="cosine", warmup_steps=2, final_learning_rate_share=0
    )
    rates = []
    for stage in method.stages(Budget(1.0, 10, (9,))):
        engine = build_engine(method, stage, training, EngineSpec(), PlaceInPhase(0, 10), Ranks())
        rates.append([engine.learning_rate(step) for step in range(10)])
    assert max(rates[0]) == 1e-3 and max(rates[1]) == 1e-5
    assert rates[1] == pytest.approx([rate / 100 for rate in rates[0]])


def test_two_processes_never_share_a_gpu(tmp_path: Path, bare: pytest.MonkeyPatch) -> None:
    code = "import sys; from pathlib import Path; from benchmarks.processes.devices import pin; "
    code += "print(*pin(2, Path(sys.argv[1])), flush=True); sys.stdin.read()"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": "0,1,2"}
    other = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        encoding="utf-8",
    )
    assert other.stdout and other.stdout.readline().split() == ["0", "1"]
    bare.setenv("CUDA_VISIBLE_DEVICES", "0,1,2")
    assert devices.pin(1, tmp_path) == ["2"] and os.environ["CUDA_VISIBLE_DEVICES"] == "2"
    other.send_signal(signal.SIGKILL)
    other.wait()
    bare.setenv("CUDA_VISIBLE_DEVICES", "0,1,2")
    assert devices.pin(2, tmp_path) == ["0", "1"]
    with pytest.raises(InputError, match="needs 3 GPUs, and 2 are visible"):
        devices.pin(3, tmp_path)
    bare.setenv("SLURM_JOB_ID", "17")  # GPU 0 of another job is another device: SLURM gives each job its own
    bare.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert devices.pin(1, tmp_path) == ["0"]
    assert sorted(path.name for path in tmp_path.glob("gpu-17*.lock")) == ["gpu-17-0.lock"]


@pytest.mark.parametrize(
    ("named", "gpus"),
    [
        ("1,0", ["1", "0"]),
        (" 2 , 3", ["2", "3"]),
        ("", []),
        ("-1", []),
        ("NoDevFiles", []),
        ("0,-1,1", ["0"]),
        ("0,,1", ["0"]),
    ],
)
def test_gpus_are_counted_up_to_a_name_of_none(
    named: str, gpus: list[str], tmp_path: Path, bare: pytest.MonkeyPatch
) -> None:
    bare.setenv("CUDA_VISIBLE_DEVICES", named)
    assert devices.visible() == gpus
    assert devices.pin(1, tmp_path) == gpus[:1]
    assert len(list(tmp_path.glob("gpu-*.lock"))) == len(gpus[:1])


def test_who_holds_a_gpu_is_said_once(
    tmp_path: Path, bare: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A process asks again and again until the GPU is free."""
    other, waits = FileLock(tmp_path / "gpu-0.lock", "other work"), list[float]()

    def wait(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 3:
            other.release()

    other.acquire()
    bare.setenv("CUDA_VISIBLE_DEVICES", "0")
    bare.setattr(devices, "time", SimpleNamespace(sleep=wait))
    assert devices.pin(1, tmp_path) == ["0"] and len(waits) == 3
    assert caplog.text.count("work on GPU 0 is already being done by process") == 1
    caplog.clear()
    bare.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    assert devices.pin(1, tmp_path) == ["1"] and not caplog.text, "nobody waits for GPU 0 while another is free"


def test_a_gpu_is_set_up_before_it_is_used(bare: pytest.MonkeyPatch) -> None:
    attention: list[bool] = []
    bare.setattr(torch.cuda, "is_available", lambda: True)
    bare.setattr(torch.backends.cuda, "enable_cudnn_sdp", attention.append)
    bare.setenv("CUBLAS_WORKSPACE_CONFIG", "")  # restored when the test ends
    bare.delenv("CUBLAS_WORKSPACE_CONFIG")
    assert pick_device() == torch.device("cuda")
    assert attention == [False] and os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"


@needs_deepspeed
def test_a_group_waits_for_longer_than_the_launcher_does(bare: pytest.MonkeyPatch) -> None:
    """With a shorter timeout, a waiting rank would be ended by it, and be named in place of the rank that hangs."""
    import deepspeed

    own, clone = dict[str, Any](), dict[str, Any]()

    def note(**settings: Any) -> None:
        clone.update(settings)
        raise TimeoutError

    bare.setattr(deepspeed, "init_distributed", lambda **settings: own.update(settings))
    bare.setattr(torch.distributed, "new_group", note)  # ZeRO uses it
    bare.setenv("LOCAL_RANK", "0")
    with pytest.raises(TimeoutError), join(900):
        pass
    assert own["timeout"] == clone["timeout"] > timedelta(seconds=900 + launch.GRACE)


def test_a_rank_that_failed_waits_for_nothing_on_its_way_out() -> None:
    code = (
        "import atexit, time; from benchmarks.rank import leave\n"
        "atexit.register(time.sleep, 60); print('said'); leave(3)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, encoding="utf-8", timeout=30)
    assert (done.returncode, done.stdout) == (3, "said\n")


@needs_deepspeed
def test_a_rank_that_sees_one_gpu_takes_that_one(bare: pytest.MonkeyPatch) -> None:
    """As under a scheduler that binds each task to its own."""
    taken: list[int] = []

    def take(device: int) -> None:
        taken.append(device)
        raise TimeoutError

    bare.setattr(ranks, "pick_device", lambda: torch.device("cuda"))
    bare.setattr(torch.cuda, "set_device", take)
    for visible in (4, 1):
        bare.setattr(torch.cuda, "device_count", lambda visible=visible: visible)
        bare.setenv("LOCAL_RANK", "3")
        with pytest.raises(TimeoutError), join(900):
            pass
        assert os.environ["LOCAL_RANK"] == str(taken[-1])
    assert taken == [3, 0]


@needs_deepspeed
def test_gpus_may_have_names_that_are_no_numbers(bare: pytest.MonkeyPatch) -> None:
    """DeepSpeed parses them as numbers when it asks pynvml how much memory is free."""
    from deepspeed.accelerator import cuda_accelerator

    accelerator = cuda_accelerator.CUDA_Accelerator()
    bare.setattr(cuda_accelerator, "pynvml", SimpleNamespace(nvmlDeviceGetHandleByIndex=int))
    bare.setattr(accelerator, "total_memory", lambda _: 10)
    bare.setattr(accelerator, "memory_allocated", lambda _: 4)
    bare.setenv("CUDA_VISIBLE_DEVICES", "GPU-8f6d2a41,MIG-1b3c")
    with pytest.raises(ValueError, match="GPU-8f6d2a41"):
        accelerator.available_memory(0)
    leave_nvml_out()
    assert accelerator.available_memory(0) == 6


SET = ["explain", "smoke", "--run", "equation/marcos/s0"]


@pytest.mark.parametrize(
    ("module", "work", "arguments"),
    [
        (analysis, "analyse", ["analyse", "smoke", "equation/marcos/s0"]),
        (measuring, "measure", ["measure", "smoke", "--name", "here"]),
        (speed, "measure_speed", ["measure", "smoke", "--batching"]),
        (explaining, "explain", ["explain", "smoke", "--question", "1"]),
        (interventions, "intervene", [*SET, "--set-dims", "3", "--value", "0"]),
        (explaining, "explain_model", ["explain", "./model", "--text", "How many?"]),
    ],
)
def test_a_command_that_computes_takes_a_gpu_first(
    module: Any, work: str, arguments: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[object] = []

    def begin(*_: object, **__: object) -> None:
        raise InputError(f"after {calls}")

    monkeypatch.setattr("benchmarks.data.store.require_prepared", lambda *_: None)
    monkeypatch.setattr(devices, "pin", calls.append)
    monkeypatch.setattr(module, work, begin)
    assert "after [1]" in invoke(*arguments, code=2).output
