"""Checkpoints that survive being killed at any moment: written aside, flushed, renamed last, verified at load.

A checkpoint is a folder with weights and optimizer states in safetensors files, and ``state.json``, which holds the
digests of the others. Nothing in it executes when it is read. Tensors stand there whole, in float32, by the name of
their parameter, whatever engine trained them: so any number of ranks goes on from it, without DeepSpeed's universal
checkpoints, which are pickles. Several ranks write a file each (``model-00001-of-00008.safetensors``): none has to hold
all tensors or to write for all. Their folder must be on a file system that all nodes share.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from benchmarks.engine import Ranks
from benchmarks.engine.process import whole_weights
from benchmarks.files import BrokenRecord, read_json, replacing, sha256, space_in, sync, write_json
from methods.errors import InputError

log = logging.getLogger(__name__)
KEPT = 2  # checkpoints: the last and the one before
PRECIOUS = 600.0  # seconds of training that are not thrown away unasked
DIGEST = "sha256"  # of the tensors of a weights file, in its header


Tensors = Iterable[tuple[str, Tensor]]


class PreciousCheckpoint(InputError):
    """A run would begin anew, and with its first checkpoint throw away much work. The message names the ways out."""


class Stored(Mapping[str, Tensor]):
    """The tensors of some safetensors files by name, each read when it is asked for."""

    def __init__(self, paths: Iterable[Path]) -> None:
        files = [safe_open(path, framework="pt") for path in paths]
        self.metadata = {key: value for file in files for key, value in (file.metadata() or {}).items()}
        self._files = {name: file for file in files for name in file.keys()}  # noqa: SIM118  # no mapping

    def __getitem__(self, name: str) -> Tensor:
        return self._files[name].get_tensor(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)


@dataclass
class Checkpoint:
    """A checkpoint that was read: tensors by name, and everything else."""

    model: Mapping[str, Tensor]
    optimizer: Mapping[str, Tensor]
    state: dict[str, Any]


@torch.no_grad()
def load_weights(module: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Copy tensors into a module that is whole. There must be one for each of its own, and no others."""
    own = dict(whole_weights(module))
    if own.keys() != tensors.keys():
        raise InputError(
            f"the weights do not fit the model: missing {sorted(own.keys() - tensors.keys())}, unexpected "
            f"{sorted(tensors.keys() - own.keys())}"
        )
    for name, tensor in own.items():
        value = tensors[name]
        if value.shape != tensor.shape:
            raise InputError(
                f"the weights do not fit the model: {name} has the shape {tuple(value.shape)} in the "
                f"file, {tuple(tensor.shape)} in the model"
            )
        tensor.copy_(value)


def save_weights(path: Path, tensors: dict[str, Tensor]) -> str:
    """Write one weights file so that it is there whole or not at all. Returns its digest, which is in the file too."""
    own = digest(tensors)
    with replacing(path) as temporary:
        save_file(tensors, temporary, {DIGEST: own})
    return own


def read_weights(path: Path) -> Stored:
    """A weights file, verified. Its tensors are read one by one, so that a model filled with them is in memory once."""
    if not path.is_file():
        raise BrokenRecord(f"{path.absolute()} does not exist: train this run first (marcos-bench train)")
    try:
        stored = Stored([path])
        whole = stored.metadata.get(DIGEST) == digest(stored)
    except SafetensorError:
        whole = False
    if not whole:
        raise BrokenRecord(
            f"{path} is damaged (its sha256 is not the one written with it): copy it again, or remove "
            "its run's folder and train again"
        )
    return stored


def digest(tensors: Mapping[str, Tensor]) -> str:
    """sha256 of names and values, independent of any file format."""
    total = hashlib.sha256()
    for name in sorted(tensors):
        total.update(name.encode())
        total.update(tensors[name].detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return total.hexdigest()


def save(
    folder: Path, name: str, model: Tensors, optimizer: Tensors, state: dict[str, Any], ranks: Ranks | None = None
) -> None:
    """Write ``folder/name`` so that it is there whole or not at all. Then keeps only the newest :data:`KEPT`
    checkpoints of this key up to this step. Later ones (from before a fall back behind a damaged checkpoint) and those
    of other settings are deleted.

    All ranks call this together; the first renames when all have written.
    """
    ranks = ranks or Ranks()
    target, temporary = folder / name, folder / f".{name}.partial"
    if ranks.first:
        for left in folder.glob(".*.partial"):  # by a try that was killed, or by ranks of which one failed
            shutil.rmtree(left, ignore_errors=True)
        with space_in(folder.parent):
            temporary.mkdir(parents=True)
    ranks.wait("a checkpoint's folder")
    try:
        _write(temporary, {"model": model, "optimizer": optimizer}, state, ranks)
    except BaseException:  # a half-written checkpoint takes room
        if ranks.world == 1:
            shutil.rmtree(temporary, ignore_errors=True)
        else:  # not the folder, or other ranks would fail for want of it, perhaps before this one has said why
            for part in ("model", "optimizer"):
                (temporary / _file_name(part, ranks)).unlink(missing_ok=True)
        raise
    if ranks.first:
        shutil.rmtree(target, ignore_errors=True)
        os.replace(temporary, target)
        sync(folder)
        before = [path for path in _by_age(folder) if path.name <= name]
        led_here = [path for path in before if _state(path).get("key") == state.get("key")]
        for other in set(_by_age(folder)) - set(led_here[-KEPT:]):
            shutil.rmtree(other, ignore_errors=True)  # what cannot be removed now is removed with the next
        keep_selected(folder, state.get("selected"))
    ranks.wait("a checkpoint's renaming")


def _write(folder: Path, parts: Mapping[str, Tensors], state: dict[str, Any], ranks: Ranks) -> None:
    digests = {}
    for part, tensors in parts.items():
        path, own = folder / _file_name(part, ranks), _own(tensors, ranks)
        with space_in(folder, sum(tensor.nbytes for tensor in own.values())):
            save_file(own, path)
            sync(path)
        digests[path.name] = sha256(path)
        del own  # before the next part is copied
    state = {**state, "digests": {name: digest for found in ranks.gather(digests) for name, digest in found.items()}}
    if ranks.first:
        with space_in(folder):
            write_json(folder / "state.json", {**state, "seal": seal(state)})
            sync(folder)


def _file_name(part: str, ranks: Ranks) -> str:
    return f"{part}.safetensors" if ranks.world == 1 else f"{part}-{ranks.rank + 1:05}-of-{ranks.world:05}.safetensors"


def _own(tensors: Tensors, ranks: Ranks) -> dict[str, Tensor]:
    """Copies of the tensors that this rank writes: each goes to the rank that has the fewest bytes so far."""
    bytes_of, own = [0] * ranks.world, {}
    for name, tensor in tensors:
        owner = bytes_of.index(min(bytes_of))
        bytes_of[owner] += tensor.nbytes
        if owner == ranks.rank:
            own[name] = tensor.detach().cpu().contiguous().clone()
    return own


def seal(state: Mapping[str, Any]) -> str:
    """sha256 of a checkpoint's state without the seal: a bit that flips in a number would leave it valid JSON."""
    rest = {name: value for name, value in state.items() if name != "seal"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def load_latest(folder: Path, key: str, ranks: Ranks | None = None) -> Checkpoint | None:
    """The newest checkpoint that is whole and was written for ``key``. Broken ones are named in the log and skipped;
    what a killed process left half-written is removed. The first rank looks, for all."""
    ranks = ranks or Ranks()
    name = ranks.from_first(_latest(folder, key) if ranks.first else None)
    return load(folder / name, verify=False) if name else None


def _latest(folder: Path, key: str) -> str | None:
    for path in folder.glob(".*"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    for path in reversed(_by_age(folder)):
        try:
            checkpoint = load(path)
        except BrokenRecord as error:
            log.warning("%s; going back to the checkpoint before it", error)
            continue
        if checkpoint.state.get("key") == key:
            return path.name
        if checkpoint.state.get("seconds", 0.0) > PRECIOUS:
            raise PreciousCheckpoint(
                f"{path} holds {checkpoint.state['seconds'] / 3600:.1f} hours of training with other settings, data or "
                f"code: go back to those to go on from it, or remove {folder} to begin anew"
            )
        log.warning("%s belongs to other settings, data or code: not used", path)
    return None


def load(path: Path, verify: bool = True) -> Checkpoint:
    """One checkpoint, by default verified, or :class:`BrokenRecord`."""
    state = read_json(path / "state.json")
    if not isinstance(state, dict) or state.get("seal") != seal(state):
        raise BrokenRecord(f"{path / 'state.json'} is damaged (its seal is not the one written with it)")
    digests = state["digests"]
    for name, expected in digests.items() if verify else ():
        if not (path / name).is_file() or sha256(path / name) != expected:
            raise BrokenRecord(f"{path / name} is damaged (its sha256 is not the one written with it)")
    model, optimizer = (
        Stored([path / name for name in digests if name.startswith(part)]) for part in ("model", "optimizer")
    )
    return Checkpoint(model, optimizer, state)


def _state(path: Path) -> dict[str, Any]:
    """Of a checkpoint, empty where it cannot be read."""
    try:
        return read_json(path / "state.json")
    except BrokenRecord:
        return {}


def best(folder: Path, stage: int, step: int) -> Path:
    """The file of the weights that a stage has selected so far, those of a step. Its name is ``selected`` in the state
    of checkpoints, each of which finds the weights that it knows of, whatever was selected after it."""
    return folder / f"best-{stage:03d}-{step:09d}.safetensors"


def keep_selected(folder: Path, name: str | None) -> None:
    """Remove the files of selected weights but that of this name, and those that a checkpoint may need."""
    needed = {name, *(_state(path).get("selected") for path in _by_age(folder))}
    for path in folder.glob("best-*"):
        if path.name not in needed:
            path.unlink()


def discard(folder: Path) -> None:
    """Remove all that a run could be resumed from, once it is done."""
    shutil.rmtree(folder, ignore_errors=True)


def _by_age(folder: Path) -> list[Path]:
    return sorted(folder.glob("step-*"))
