"""Warm starts: the row whose weights another row starts from."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.studies.specs import Block, Row
from methods.errors import InputError
from methods.registry import get_method

if TYPE_CHECKING:
    from benchmarks.studies.study import Study


def start_row(study: Study, block: Block, child: Row) -> Row | None:
    """Return the row that ``child`` starts from in a block, or None if its method starts from fresh weights.

    It is the row that ``child`` names, or else the one row of the method that ``child``'s method starts from, with
    default options and the same backbone, one of the block's if there are any. If the study has no such row, make one
    that no table shows. Raise :class:`InputError` if several rows could be meant, or none can be.
    """
    method = get_method(child.method).starts_from(study.options_of(block, child))
    if method is None:
        if child.starts_from:
            raise InputError(f"row {child.id!r} starts from fresh weights: leave out `starts_from`")
        return None
    backbone = study.backbone_of(block, child)
    fits = [row for row in study.rows if row.method == method and study.backbone_of(block, row) == backbone]
    if child.starts_from:
        if named := [row for row in fits if row.id == child.starts_from]:
            return named[0]
        known = ", ".join(row.id for row in fits) or "no row"
        raise InputError(
            f"row {child.id!r} cannot start from {child.starts_from!r}, but from a row of {method} with the same "
            f"backbone: {known}"
        )
    plain, default = Row(id=method, method=method, backbone=backbone), get_method(method).Options()
    same = [row for row in fits if study.options_of(block, row) == default]
    same = [row for row in same if row in study.rows_of(block)] or same
    if len(same) > 1:
        raise InputError(
            f"row {child.id!r} could start from {' or '.join(row.id for row in same)}: name one in its `starts_from`"
        )
    if not same and (method in [row.id for row in study.rows] or study.options_of(block, plain) != default):
        raise InputError(
            f"row {child.id!r} starts from {method!r} with default options and the same backbone, and {method!r} is "
            f"another in block {block.id!r}: rename that row, or name the one to start from in `starts_from`"
        )
    return same[0] if same else plain
