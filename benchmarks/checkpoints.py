"""Checkpoints that survive being killed at any moment: written aside, flushed, renamed last, verified on load.

A checkpoint is a folder that holds weights and optimizer states in safetensors files, and ``state.json`` with the
digests of these files. Loading it executes no code. Tensors are stored whole, in their own type (weights: float32),
under the names of their parameters, whatever engine trained them. Any number of ranks can therefore resume from it,
without DeepSpeed's universal checkpoints, which are pickles. If there are several ranks, each writes a file of its own
(``model-00001-of-00008.safetensors``), so no rank has to hold all tensors or write for the others. The folder must be
on a file system that all nodes share."""

from __future__ import annotations

import hashlib
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

from benchmarks.engine import ALONE, Ranks
from benchmarks.engine.adapters import whole_weights
from benchmarks.files import (
    BrokenRecord,
    json_digest,
    read_json,
    read_json_if_intact,
    replacing,
    report_full_disk,
    sha256,
    sync,
    write_json,
)
from methods.errors import InputError

log = logging.getLogger(__name__)
KEPT = 2  # checkpoints that stay: the last one and the one before it
PRECIOUS = 600.0  # more seconds of training than this are not discarded without asking
DIGEST = "sha256"  # key in the header of a weights file: the digest of its tensors
Tensors = Iterable[tuple[str, Tensor]]


class Stored(Mapping[str, Tensor]):
    """The tensors of one or more safetensors files by name, each read only when it is accessed."""

    def __init__(self, paths: Iterable[Path]) -> None:
        files = [safe_open(path, framework="pt") for path in paths]
        self.metadata = {key: value for file in files for key, value in (file.metadata() or {}).items()}
        self._files = {name: file for file in files for name in file.keys()}  # noqa: SIM118  # not a mapping

    def __getitem__(self, name: str) -> Tensor:
        return self._files[name].get_tensor(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)


@dataclass
class Checkpoint:
    """A loaded checkpoint: tensors by name, and everything else."""

    model: Mapping[str, Tensor]
    optimizer: Mapping[str, Tensor]
    state: dict[str, Any]


@torch.no_grad()
def load_weights(module: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Copy tensors into a module whose weights are not split.
    Raise :class:`InputError` if names or shapes do not match."""
    weights = dict(whole_weights(module))
    if weights.keys() != tensors.keys():
        raise InputError(
            f"the weights do not fit the model: missing {sorted(weights.keys() - tensors.keys())}, unexpected "
            f"{sorted(tensors.keys() - weights.keys())}"
        )
    for name, tensor in weights.items():
        value = tensors[name]
        if value.shape != tensor.shape:
            raise InputError(
                f"the weights do not fit the model: {name} has the shape {tuple(value.shape)} in the "
                f"file, {tuple(tensor.shape)} in the model"
            )
        tensor.copy_(value)


def save_weights(path: Path, tensors: dict[str, Tensor]) -> str:
    """Write one weights file atomically. Return its digest, which is also stored in the file."""
    actual = digest(tensors)
    with replacing(path) as temporary:
        save_file(tensors, temporary, {DIGEST: actual})
    return actual


def read_weights(path: Path) -> Stored:
    """Open a weights file and verify it, or raise :class:`BrokenRecord`. Its tensors are read one by one, so a model
    filled with them is in memory only once."""
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
    """Return the SHA-256 of the names and values of tensors, which is independent of any file format."""
    total = hashlib.sha256()
    for name in sorted(tensors):
        total.update(name.encode())
        total.update(tensors[name].detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return total.hexdigest()


def save(
    folder: Path, name: str, model: Tensors, optimizer: Tensors, state: dict[str, Any], ranks: Ranks = ALONE
) -> None:
    """Write the checkpoint ``folder/name`` atomically. Of those with its key up to its step, the newest :data:`KEPT`
    stay; later ones (left over if training fell back behind a damaged checkpoint) and those with another key are
    deleted. All ranks call this together; the first renames the folder once all have written."""
    target, temporary = folder / name, folder / f".{name}.partial"
    if ranks.first:
        with report_full_disk(folder.parent):
            temporary.mkdir(parents=True)
    ranks.wait("a checkpoint's folder")
    try:
        _write(temporary, {"model": model, "optimizer": optimizer}, state, ranks)
    except BaseException:  # a half-written checkpoint only takes up disk space
        if ranks.world == 1:
            shutil.rmtree(temporary, ignore_errors=True)
        else:  # keep the folder: without it other ranks would fail, perhaps before this one has reported why
            for part in ("model", "optimizer"):
                (temporary / _file_name(part, ranks)).unlink(missing_ok=True)
        raise
    if ranks.first:
        shutil.rmtree(target, ignore_errors=True)
        os.replace(temporary, target)
        sync(folder)
        before = [path for path in _by_age(folder) if path.name <= name]
        led_here = [path for path in before if read_json_if_intact(path / "state.json").get("key") == state.get("key")]
        for other in set(_by_age(folder)) - set(led_here[-KEPT:]):
            shutil.rmtree(other, ignore_errors=True)  # what cannot be removed now is removed at the next save
        keep_selected(folder, state.get("selected"))
    ranks.wait("a checkpoint's renaming")


def _write(folder: Path, parts: Mapping[str, Tensors], state: dict[str, Any], ranks: Ranks) -> None:
    digests = {}
    for part, tensors in parts.items():
        path, shares = folder / _file_name(part, ranks), _share_of_rank(tensors, ranks)
        with report_full_disk(folder, sum(tensor.nbytes for tensor in shares.values())):
            save_file(shares, path)
            sync(path)
        digests[path.name] = sha256(path)
        del shares  # free the copies before the next part is copied
    state = {**state, "digests": {name: digest for found in ranks.gather(digests) for name, digest in found.items()}}
    if ranks.first:
        with report_full_disk(folder):
            write_json(folder / "state.json", {**state, "seal": seal(state)})
            sync(folder)


def _file_name(part: str, ranks: Ranks) -> str:
    return f"{part}.safetensors" if ranks.world == 1 else f"{part}-{ranks.rank + 1:05}-of-{ranks.world:05}.safetensors"


def _share_of_rank(tensors: Tensors, ranks: Ranks) -> dict[str, Tensor]:
    """Return copies of the tensors that this rank writes: each goes to the rank that has the fewest bytes so far."""
    bytes_of, shares = [0] * ranks.world, {}
    for name, tensor in tensors:
        owner = bytes_of.index(min(bytes_of))
        bytes_of[owner] += tensor.nbytes
        if owner == ranks.rank:
            shares[name] = cpu_copy(tensor)
    return shares


def cpu_copy(tensor: Tensor) -> Tensor:
    """Return one copy in CPU memory, wherever the tensor is, which lies there in one piece."""
    return tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)


def seal(state: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a checkpoint's state without its seal. It detects damage that parsing does not: a flipped
    bit in a number leaves valid JSON."""
    rest = {name: value for name, value in state.items() if name != "seal"}
    return json_digest(rest)


def load_latest(folder: Path, key: str, ranks: Ranks = ALONE) -> Checkpoint | None:
    """Return the newest intact checkpoint that was written for ``key``, or None. Broken ones are logged and skipped,
    and half-written files of a killed process are removed. The first rank searches for all. Raise
    :class:`InputError` if it meets much training under another key."""
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
            raise InputError(
                f"{path} holds {checkpoint.state['seconds'] / 3600:.1f} hours of training with other settings, data or "
                f"code: restore them to resume, or remove {folder} to start over"
            )
        log.warning("%s belongs to other settings, data or code: not used", path)
    return None


def load(path: Path, verify: bool = True) -> Checkpoint:
    """Load one checkpoint, by default with its digests verified, or raise :class:`BrokenRecord`."""
    state = read_json(path / "state.json")
    if state.get("seal") != seal(state):
        raise BrokenRecord(f"{path / 'state.json'} is damaged (its seal is not the one written with it)")
    digests = state["digests"]
    for name, expected in digests.items() if verify else ():
        if not (path / name).is_file() or sha256(path / name) != expected:
            raise BrokenRecord(f"{path / name} is damaged (its sha256 is not the one written with it)")
    model, optimizer = (
        Stored([path / name for name in digests if name.startswith(part)]) for part in ("model", "optimizer")
    )
    return Checkpoint(model, optimizer, state)


def selected_path(folder: Path, stage: int, step: int) -> Path:
    """Return the path of the weights that a stage selected at a step. Checkpoints store the file's name as ``selected``
    in their state, so each of them finds the weights it knows of, whatever was selected later."""
    return folder / f"best-{stage:03d}-{step:09d}.safetensors"


def keep_selected(folder: Path, name: str | None) -> None:
    """Remove all files of selected weights except the one named ``name`` and those that a checkpoint refers to."""
    needed = {name, *(read_json_if_intact(path / "state.json").get("selected") for path in _by_age(folder))}
    for path in folder.glob("best-*"):
        if path.name not in needed:
            path.unlink()


def _by_age(folder: Path) -> list[Path]:
    return sorted(folder.glob("step-*"))
