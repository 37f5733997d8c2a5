"""What the keys of a study must fulfil together. Each single key is checked by its own type."""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING

from methods.errors import InputError

if TYPE_CHECKING:
    from benchmarks.studies.study import Study


def require_known_names(study: Study) -> None:
    """Raise ValueError if a name is given twice, or stands for nothing in the study."""
    if study.name in study.shares:
        raise ValueError("a study cannot share its own runs: name another one")
    named = {"block": [b.id for b in study.blocks], "row": [r.id for r in study.rows]}
    named |= {"training seed": [str(seed) for seed in study.seeds], "test": [*study.evaluation.tests]}
    for kind, ids in named.items():
        if twice := sorted({id for id in ids if ids.count(id) > 1}):
            raise ValueError(f"two {kind}s are the same: {', '.join(twice)}")
    known = {block.id for block in study.blocks}
    for row in study.rows:
        if unknown := set(row.blocks or ()) - known:
            raise ValueError(f"row {row.id!r} names unknown blocks {sorted(unknown)}; known: {sorted(known)}")
        if unknown := row.decodings.keys() - study.evaluation.decodings.keys():
            raise ValueError(f"row {row.id!r} changes decodings {sorted(unknown)}: name them in `evaluation` too")
    methods = {row.method for row in study.rows}
    for name, decoding in study.evaluation.decodings.items():
        if unknown := set(decoding.only or ()) - methods:
            raise ValueError(f"decoding {name!r} is only for {sorted(unknown)}, which no row names")
    for block in study.blocks:
        if not study.rows_of(block):
            raise ValueError(f"no row is in block {block.id!r}: name it in the `blocks` of a row, or leave it out")
        if unknown := set(block.tests or ()) - set(study.evaluation.tests):
            raise ValueError(f"block {block.id!r} names {sorted(unknown)}: name them in `evaluation.tests` too")
        if unknown := block.options.keys() - methods:
            raise ValueError(f"block {block.id!r} has options of {sorted(unknown)}, which no row names")


def require_rows_told_apart(study: Study) -> None:
    """Raise InputError if a block's options replace those that alone tell two rows apart: they would be one training
    under two names."""
    alike = {"id", "title", "indent", "control", "blocks", "options"}  # what may differ in two names of one training
    for block in study.blocks:
        for one, other in combinations(study.rows_of(block), 2):
            if (
                one.options != other.options
                and one.model_dump(exclude=alike) == other.model_dump(exclude=alike)
                and study.options_of(block, one) == study.options_of(block, other)
            ):
                raise InputError(
                    f"block {block.id!r}: its `options` of {one.method} replace what tells row {other.id!r} from "
                    f"{one.id!r}: leave them out of the block, or one of the rows"
                )
