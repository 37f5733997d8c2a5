"""Checkpoints that survive being killed at any moment: written aside, flushed, renamed last, verified at load.

A checkpoint is a folder with ``model.safetensors``, ``optimizer.safetensors`` and ``state.json``, which holds the
digests of the other two. Nothing in it executes when it is read.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from benchmarks.files import BrokenRecord, read_json, replacing, sha256, space_in, sync, write_json

log = logging.getLogger(__name__)
KEPT = 2  # the last good one and the one before


@dataclass
class Checkpoint:
    model: dict[str, Tensor]
    optimizer: dict[str, Tensor]
    state: dict[str, Any]

    @property
    def size(self) -> int:
        """Bytes of all tensors."""
        return sum(tensor.nbytes for part in (self.model, self.optimizer) for tensor in part.values())


def weights(module: nn.Module) -> dict[str, Tensor]:
    """Parameters and persistent buffers by name, each shared tensor once, on the CPU."""
    seen: dict[int, str] = {}
    state = module.state_dict()
    return {
        name: tensor.detach().cpu().contiguous()
        for name, tensor in state.items()
        if seen.setdefault(tensor.data_ptr() if tensor.numel() else id(tensor), name) == name
    }


def load_weights(module: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """The opposite of :func:`weights`; every tensor must find its place."""
    missing, unexpected = module.load_state_dict(dict(tensors), strict=False)
    lacking = set(missing) & weights(module).keys()
    if lacking or unexpected:
        raise ValueError(f"the weights do not fit the model: missing {sorted(lacking)}, unexpected {unexpected}")


def save_weights(path: Path, tensors: dict[str, Tensor]) -> None:
    """Write one weights file so that it is there whole or not at all."""
    with replacing(path) as temporary:
        save_file(tensors, temporary)


def digest(tensors: Mapping[str, Tensor]) -> str:
    """sha256 of names and values, independent of any file format."""
    total = hashlib.sha256()
    for name in sorted(tensors):
        total.update(name.encode())
        total.update(tensors[name].detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return total.hexdigest()


def save(folder: Path, name: str, checkpoint: Checkpoint) -> None:
    """Write ``folder/name`` so that it is there whole or not at all; older ones beyond :data:`KEPT` go afterwards."""
    target, temporary = folder / name, folder / f".{name}.partial"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    try:
        with space_in(folder, checkpoint.size):
            _write(temporary, checkpoint)
    except BaseException:  # what is half there takes room
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    shutil.rmtree(target, ignore_errors=True)
    os.replace(temporary, target)
    sync(folder)
    for old in _by_age(folder)[:-KEPT]:
        shutil.rmtree(old)


def _write(folder: Path, checkpoint: Checkpoint) -> None:
    digests = {}
    for part in ("model", "optimizer"):
        path = folder / f"{part}.safetensors"
        save_file(getattr(checkpoint, part), path)
        sync(path)
        digests[path.name] = sha256(path)
    state = {**checkpoint.state, "digests": digests}
    write_json(folder / "state.json", {**state, "seal": seal(state)})
    sync(folder)


def seal(state: Mapping[str, Any]) -> str:
    """sha256 of all of a checkpoint's state but the seal itself: a bit that flips in a number leaves it valid JSON."""
    rest = {name: value for name, value in state.items() if name != "seal"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def load_latest(folder: Path, key: str) -> Checkpoint | None:
    """The newest checkpoint that is whole and was written for ``key``; broken ones are named in the log and skipped.
    What a process that was killed left half-written is removed."""
    for path in folder.glob(".*"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    for path in reversed(_by_age(folder)):
        try:
            checkpoint = load(path)
        except BrokenRecord as error:
            log.warning("%s; going back to the checkpoint before it", error)
            continue
        if checkpoint.state.get("key") == key:
            return checkpoint
        log.warning("%s belongs to other settings, data or code: not used", path)
    return None


def load(path: Path) -> Checkpoint:
    """Read and verify one checkpoint, or :class:`BrokenRecord`."""
    state = read_json(path / "state.json")
    if not isinstance(state, dict) or state.get("seal") != seal(state):
        raise BrokenRecord(f"{path / 'state.json'} is damaged (its seal is not the one written with it)")
    for name, expected in state["digests"].items():
        if not (path / name).is_file() or sha256(path / name) != expected:
            raise BrokenRecord(f"{path / name} is damaged (its sha256 is not the one written with it)")
    return Checkpoint(load_file(path / "model.safetensors"), load_file(path / "optimizer.safetensors"), state)


def discard(folder: Path) -> None:
    """Remove the resumable checkpoints, once a run is done."""
    for path in _by_age(folder):
        shutil.rmtree(path)


def _by_age(folder: Path) -> list[Path]:
    return sorted(folder.glob("step-*"))
