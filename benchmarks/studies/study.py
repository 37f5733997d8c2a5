"""A study is a grid of runs: its rows are methods with options, its blocks are training data.

A study is a YAML file (``workflows/config``). It contains everything that affects a result; nothing depends on what
happens to be available on a machine.
"""

from __future__ import annotations

import os
import re
import shlex
from collections import Counter
from collections.abc import Iterator
from contextvars import ContextVar
from functools import cached_property
from itertools import combinations, product
from pathlib import Path
from textwrap import indent
from typing import Annotated, Any

from pydantic import Field, PrivateAttr, model_validator

from benchmarks.files import folder_from_environment
from benchmarks.studies.micro_batches import on_gpus, requested_gpus
from benchmarks.studies.paths import COLLECTED, TAKEN
from benchmarks.studies.runs import RunSpec, override_training, run_id
from benchmarks.studies.specs import (
    AnalysisSpec,
    BackboneSpec,
    Block,
    Comparisons,
    EngineSpec,
    EvaluationSpec,
    Figure,
    Identifier,
    Kernels,
    Names,
    PublishedRow,
    Row,
    Strict,
    Table,
    TimingSpec,
    TokenizerSpec,
    TrainingSpec,
)
from benchmarks.studies.validation_errors import StudyError, study_content, validate_settings
from methods.base import added_field
from methods.errors import InputError, suggestion
from methods.registry import get_method

# The files that are being read: a study, one that it shares runs with, one that this shares runs with, and so on
_READING: ContextVar[tuple[Path, ...]] = ContextVar("_READING", default=())
WORKFLOWS = Path(__file__).resolve().parents[2] / "workflows"  # of this checkout or, if installed, beside the packages
STUDIES = WORKFLOWS / "config"
SUFFIXES = (".yaml", ".yml")
OF_LATENTS = (Figure.dimensions, Figure.intervention, Figure.encoding, Figure.draws, Figure.calibration)
IN_FOLDER = re.compile(r"\$\{(\w+)\}/(.+)")  # a file in the folder that an environment variable names


class Study(Strict):
    """A whole study, as its YAML file gives it."""

    name: Identifier = Field(
        description="name of the study: of its file in workflows/config and its folder in `results`"
    )
    title: str = Field(description="title of the tables")
    description: str = Field(default="", description="what the study compares; printed with the tables")
    paper: str | None = Field(default=None, description="table in benchmarks/paper/numbers.yaml with the same setting")
    deviations: tuple[str, ...] = Field(default=(), description="where the study deviates from the paper, and why")
    shares: Names = Field(
        default=(),
        description="one or more studies to reuse runs from, where all settings are the same: names of the suite's, or "
        "files, relative to the study's own",
    )
    tables: tuple[Table, ...] = Field(
        default=(Table.main, Table.decoding, Table.controls), description="tables to render"
    )
    figures: tuple[Figure, ...] = Field(default=(), description="figures to render")
    backbone: BackboneSpec = BackboneSpec()
    tokenizer: TokenizerSpec
    blocks: tuple[Block, ...] = Field(min_length=1)
    rows: tuple[Row, ...] = Field(min_length=1)
    comparisons: Comparisons | None = added_field(
        None, description="pairs of rows to compare, named in advance; default: all pairs are compared alike"
    )
    published: tuple[PublishedRow, ...] = added_field(
        (), description="outputs of others' models to show beneath the rows, scored alike and never ranked"
    )
    training: TrainingSpec
    evaluation: EvaluationSpec
    analysis: AnalysisSpec = AnalysisSpec()
    timing: TimingSpec | None = Field(default=TimingSpec(), description="null: no timing")
    engine: EngineSpec = EngineSpec()
    seeds: tuple[Annotated[int, Field(ge=0, lt=2**63)], ...] = Field(
        default=(0,), min_length=1, description="training seeds; every row is trained once with each"
    )
    threads: int = Field(
        default=1, ge=1, description="CPU threads per training or evaluation process; results may depend on it"
    )
    kernels: Kernels = added_field(
        "native",
        description="what a CPU computes with; native: the fastest that it has; portable: slower kernels, with the "
        "same results on every CPU that has AVX2",
    )
    timing_threads: int = Field(default=2, ge=1, description="CPU threads per timing process")
    _file: str | None = PrivateAttr(None)

    @property
    def cli_name(self) -> str:
        """What commands take for this study: the path of its file, or its name if it comes with the suite."""
        return self._file or self.name

    def command(self, verb: str, results: Path, *arguments: str) -> str:
        """Return the command line of a task of this study, for messages that advise it."""
        place = () if results.resolve() == Path("results").resolve() else ("--results", str(results))
        return shlex.join(("marcos-bench", verb, self.cli_name, *arguments, *place))

    def published_files(self) -> list[tuple[PublishedRow, str, Path]]:
        """Return the files that `published` names, each with its row and test set, except those in the folder of an
        environment variable that is not set. Raise StudyError if another one is not there."""
        named = ((row, test, name) for row in self.published for test, name in row.outputs.items())
        found = ((row, test, self._outputs_file(name)) for row, test, name in named)
        return [(row, test, path) for row, test, path in found if path]

    def _outputs_file(self, name: str) -> Path | None:
        found, home = IN_FOLDER.fullmatch(name), Path(self._file).parent if self._file else STUDIES
        folder = folder_from_environment(found[1], "outputs") if found else home
        if folder is None:
            return None
        path = folder / (found[2] if found else name)
        if not path.is_file():
            otherwise = f"unset {found[1]}" if found else "leave it out of the study"
            raise StudyError(f"`published` names {name}, but there is no file {path}: put it there, or {otherwise}")
        return path

    @model_validator(mode="after")
    def _consistent(self) -> Study:
        require_known_names(self)
        return self

    def block(self, id: str) -> Block:
        return next(block for block in self.blocks if block.id == id)

    def backbone_of(self, block: Block, row: Row) -> BackboneSpec:
        return row.backbone or block.backbone or self.backbone

    def tokenizer_of(self, block: Block) -> TokenizerSpec:
        return block.tokenizer or self.tokenizer

    def tests_of(self, block: Block) -> tuple[str, ...]:
        """Return the tests that the runs of a block are evaluated on, in the study's order."""
        return tuple(test for test in self.evaluation.tests if block.tests is None or test in block.tests)

    def options_of(self, block: Block, row: Row) -> Any:
        """Return the validated options of a row's method in a block."""
        options = row.options | block.options.get(row.method, {})
        return validate_settings(get_method(row.method).Options, options, f"{block.id}/{row.id}, options")

    @cached_property
    def row_titles(self) -> dict[str, str]:
        """The rows' titles in tables. Rows without one have their ids as well if another row would have the same."""
        methods = {row.id: get_method(row.method).title for row in self.rows}
        titled = Counter(row.title or methods[row.id] for row in self.rows)
        titles = {}
        for row in self.rows:
            title = methods[row.id]
            titles[row.id] = row.title or (f"{title} ({row.id})" if titled[title] > 1 else title)
        return titles

    def rows_of(self, block: Block) -> tuple[Row, ...]:
        """Return the rows that a block has in the tables, in the study's order."""
        return tuple(row for row in self.rows if row.blocks is None or block.id in row.blocks)

    def planned(self, block: Block) -> tuple[tuple[str, str], ...]:
        """Return the planned comparisons of which a block has both rows."""
        here = {row.id for row in self.rows_of(block)}
        return tuple(pair for pair in (self.comparisons.planned if self.comparisons else ()) if here.issuperset(pair))

    @cached_property
    def runs(self) -> dict[str, RunSpec]:
        """All runs by id; a warm start comes before the runs that start from it."""
        found: dict[str, RunSpec] = {}
        for block in self.blocks:
            for row, seed in product(self.rows_of(block), self.seeds):
                start = None
                for link in reversed([*self._links(block, row)]):
                    id = run_id(block.id, link.id, seed)
                    if id not in found:
                        found[id] = self._spec(block, link, seed, start)
                    start = found[id]
        return found

    def trainings(self, block: str, row: str) -> list[RunSpec]:
        """Return the runs of a row in a block, one per training seed; none if it has no run there."""
        return [run for seed in self.seeds if (run := self.runs.get(run_id(block, row, seed)))]

    def _links(self, block: Block, row: Row | None) -> Iterator[Row]:
        """Yield a row, the one that it starts from in a block, the one that this starts from, and so on."""
        seen: list[str] = []
        while row:
            if row.id in seen:
                circle = " -> ".join([*seen[seen.index(row.id) :], row.id])
                raise InputError(f"{circle}: rows start from each other's weights in a circle; name another start")
            seen.append(row.id)
            yield row
            row = start_row(self, block, row)

    def _spec(self, block: Block, row: Row, seed: int, start: RunSpec | None) -> RunSpec:
        """Return the specification of one run, which starts from the weights of ``start``."""
        place = f"{block.id}/{row.id}"
        training = override_training(self.training, row.training, block.training)
        engine = validate_settings(
            EngineSpec, self.engine.model_dump(exclude_unset=True) | row.engine, f"{place}, engine"
        )
        made = validate_settings(TrainingSpec, training, f"{place}, training")
        if gpus := requested_gpus():
            engine = on_gpus(engine, gpus, made, bool(get_method(row.method).batch_terms))
        return RunSpec(
            id=run_id(block.id, row.id, seed),
            study=self.name,
            block=block.id,
            row=row.id,
            method=row.method,
            options=self.options_of(block, row).model_dump(),
            seed=seed,
            backbone=self.backbone_of(block, row),
            tokenizer=self.tokenizer_of(block),
            data=block.data,
            training=made,
            evaluation=self._evaluation_for(block, row),
            timing=self.timing,
            engine=engine,
            threads=self.threads,
            kernels=self.kernels,
            timing_threads=self.timing_threads,
            analysis=self.analysis,
            starts_from=start and start.id,
            starts_at=start and self._source(start).folder,
        ).validated()

    @cached_property
    def sources(self) -> dict[str, RunSpec]:
        """The run that each run's records come from: itself, or one of a study that this study shares runs with."""
        return {id: self._source(run) for id, run in self.runs.items()}

    @property
    def shared(self) -> dict[str, list[str]]:
        """The ids of the runs that come from other studies, by the name of the other study."""
        found: dict[str, list[str]] = {}
        for id, source in self.sources.items():
            if source.study != self.name:
                found.setdefault(source.study, []).append(id)
        return found

    @property
    def shared_in_vain(self) -> str:
        """A sentence on why no run comes from the studies that ``shares`` names, or an empty text if one does."""
        if self.shared or not self.shares:
            return ""
        return (
            f"No run is shared with {' or '.join(self.shares)}: a run is, if its settings are the same there, and the "
            "other study answers all test sets and decodings that this one asks of the block (see its `tests`)."
        )

    def _source(self, run: RunSpec) -> RunSpec:
        theirs = (their for other in self._others for their in other.sources.values())
        return next((their for their in theirs if their.same_training_as(run) and their.covers(run)), run)

    def home(self, run: RunSpec) -> Study:
        """Return the study that a source is a run of: this one, or one that it shares runs with, if only through
        others."""
        return next((other.home(run) for other in self._others if run in other.sources.values()), self)

    @cached_property
    def timings(self) -> dict[str, TimingSpec]:
        """How the runs of this study and of those that it shares runs with are timed, by the study that times them."""
        homes = (self, *map(self.home, self.sources.values()))
        return {home.name: home.timing for home in homes if home.timing}

    @cached_property
    def _others(self) -> tuple[Study, ...]:
        reading = _READING.get()
        folder = reading[-1].parent if reading else Path()
        names = [str(folder / name) if name.endswith(SUFFIXES) else name for name in self.shares]
        try:
            others = tuple(map(load_study, names))
        except InputError as error:
            raise StudyError(f"`shares`: {error}") from error
        for other in others:
            if self.name in other.family:
                raise StudyError(
                    f"`shares`: {other.family[self.name].cli_name} has `name: {self.name}`, as this study has: give "
                    "one of them another, or their results would be taken for each other's"
                )
        return others

    @property
    def family(self) -> dict[str, Study]:
        """This study and those that it shares runs with, if only through others, by name."""
        return {name: study for other in self._others for name, study in other.family.items()} | {self.name: self}

    def _evaluation_for(self, block: Block, row: Row) -> EvaluationSpec:
        """Return a block's tests and a row's decodings, without controls of latents if the method has none, and without
        encoded ones if it encodes none."""
        own = {k: v for k, v in self.evaluation.decodings.items() if v.only is None or row.method in v.only}
        method, own = get_method(row.method), own | row.decodings
        if not method.has_latents:
            own = {k: v for k, v in own.items() if v.thoughts == "own"}
        if not method.encodes_steps(self.options_of(block, row)):
            own = {k: v for k, v in own.items() if v.latents != "encoded"}
        decodings = {name: decoding.model_dump() for name, decoding in own.items()}
        fields = self.evaluation.model_dump() | {"tests": self.tests_of(block), "decodings": decodings}
        return validate_settings(EvaluationSpec, fields, f"{block.id}/{row.id}, evaluation")

    def swept(self, block: Block) -> Iterator[tuple[str, float, Row]]:
        """Yield option, value and row for all rows of a block that differ from the study's first row in one number
        among their options and nothing else. The first row itself is yielded for each option that another one has
        otherwise."""
        first = self.rows[0]
        base, swept = dict(self.options_of(block, first)), dict[str, float]()
        for row in self.rows_of(block):
            if not self._trained_alike(row, first):
                continue
            changed = {key: value for key, value in self.options_of(block, row) if value != base[key]}
            if len(changed) != 1:
                continue
            option, value = next(iter(changed.items()))
            if type(value) in (int, float) and type(base[option]) in (int, float):
                yield option, value, row
                swept[option] = base[option]
        yield from ((option, value, first) for option, value in swept.items())

    def _trained_alike(self, row: Row, other: Row) -> bool:
        """Return whether two rows are of one method, and have the same training and backbone in each block."""
        if row.method != other.method:
            return False
        for block in self.blocks:
            runs, others = (self.trainings(block.id, id) for id in (row.id, other.id))
            for run, one in zip(runs, others, strict=False):  # none where the block lacks a row
                if (run.training, run.backbone) != (one.training, one.backbone):
                    return False
        return True


def require_run(study: Study, called: str, run: str) -> None:
    """Raise an error that lists the study's runs if there is no such run. ``called``: how the user named the study."""
    if run not in study.runs:
        raise StudyError(f"study {called} has no run {run!r}; its runs are: {', '.join(study.runs)}")


def study_path(name: str) -> Path:
    """Return the YAML file of a study, given its name or a path."""
    path = Path(name) if name.endswith(SUFFIXES) else STUDIES / f"{name}.yaml"
    if not os.path.lexists(path):  # what a link to nothing is, its reader says
        near, known = suggestion(path.stem, shipped()), ", ".join(shipped())
        raise StudyError(f"no study at {path}{near} (give the path of a YAML file, or one of: {known})")
    return path


def names_study(name: str) -> bool:
    """Return whether a name is that of a study that comes with the suite, or of a study's file."""
    return name in shipped() or name.endswith(SUFFIXES)


def shipped() -> list[str]:
    """Return the names of the studies that come with the suite."""
    return sorted(path.stem for path in STUDIES.glob("*.yaml"))


def load_study(name: str) -> Study:
    """Read and validate a study, given its name or the path of its YAML file."""
    path, above = study_path(name), _READING.get()
    if (file := Path(os.path.realpath(path))) in above:  # unlike `resolve`, it ends on links in a circle
        circle = " -> ".join(one.stem for one in (*above[above.index(file) :], file))
        raise StudyError(f"{circle}: they share runs in a circle, so one of them must not name the next")
    token = _READING.set((*above, file))
    try:
        study = parse_study(study_content(path), str(path))
    finally:
        _READING.reset(token)
    _require_own_name(study.name, path)
    require_something_to_show(study)
    study._file = None if file.parent == STUDIES else str(path)
    return study


def study_of_folder(folder: Path, named: str | None) -> Study:
    """Return the study whose results a folder holds: the one that is ``named``, or that of the folder's name. Raise
    StudyError if there is no such folder, or if the study's results are in one of another name."""
    name = folder.resolve().name
    if not folder.is_dir():
        raise StudyError(f"there is no folder {folder}: name that of a study's results")
    if named is None and name not in shipped():
        example = min(folder.glob(f"*/{COLLECTED}"), default=folder / "smoke" / COLLECTED).parent
        other = "" if (folder / COLLECTED).is_file() else f"name one study's folder, e.g. {example}, or "
        raise StudyError(
            f"{folder} is not named like a study of the suite: {other}say with --study FILE whose results these are"
        )
    study = load_study(named or name)
    if study.name != name:
        raise StudyError(f"{folder} does not hold the results of {study.name}, whose folder has the study's name")
    return study


def _require_own_name(name: str, path: Path) -> None:
    """Raise StudyError if a study's results, which lie under its name, could be taken for something else's."""
    if path.resolve().parent == STUDIES and name != path.stem:
        raise StudyError(f"{path} has `name: {name}`: write `name: {path.stem}`, or name the file {name}.yaml")
    if path.resolve().parent != STUDIES and name in shipped():
        raise StudyError(
            f"{path} has `name: {name}`, which is a study in {STUDIES}: give it a name of its own, or its "
            "results would be taken for that one's"
        )


def parse_study(content: Any, place: str) -> Study:
    """Validate the content of a study file, with errors that name place, key and fix."""
    try:
        study = validate_settings(Study, content)
        _ = study.sources  # resolves methods and their options
        require_distinct_rows(study)
    except InputError as error:
        raise StudyError(f"{place} is not a valid study:\n{indent(str(error), '  ')}") from error
    return study


def require_something_to_show(study: Study) -> None:
    """Raise StudyError if a table or figure is asked for whose numbers no run is going to have. Rehearsals, which time
    nothing and leave out rows that are too large, keep such figures."""
    if Table.nats in study.tables and not study.evaluation.nats:
        raise StudyError(
            "table `nats` shows what gold texts cost, and none is scored: set `nats` in `evaluation` to a number of "
            "validation rows, or leave the table out"
        )
    if Table.stages in study.tables and not any(run.training.keep_stages for run in study.runs.values()):
        raise StudyError(
            "table `stages` shows answers after each stage of a curriculum, and no row keeps its weights: set "
            "`keep_stages: true` in a `training`, or leave the table out"
        )
    costs = [figure for figure in (Figure.pareto, Figure.overview) if figure in study.figures]
    if costs and not any("time" in run.tasks for run in study.sources.values()):
        raise StudyError(
            f"figure `{costs[0]}` shows accuracy against time, and no run is timed: set `timing`, or leave the figure "
            "out"
        )
    if Figure.curves in study.figures and not any(run.training.validation_questions for run in study.runs.values()):
        raise StudyError(
            "figure `curves` shows accuracy while training, and no run answers questions then: set "
            "`validation_questions` in `training`, or leave the figure out"
        )
    of_latents = [figure for figure in study.figures if figure in OF_LATENTS]
    if of_latents and not any(run.steerable_latents for run in study.runs.values()):
        raise StudyError(
            f"figure `{of_latents[0]}` shows latents that can be set by hand, and no row has any: add one of MarCos "
            "with R, or leave the figure out"
        )
    if Figure.sweeps in study.figures and not any(list(study.swept(block)) for block in study.blocks):
        raise StudyError(
            f"figure `sweeps` shows rows that differ from the first, {study.rows[0].id!r}, in one number among their "
            "options and nothing else, and there is none: add such rows, as in workflows/config/sweeps.yaml, or leave "
            "the figure out"
        )
    if Figure.latents_curve in study.figures and not any(
        spec.options for run in study.runs.values() for spec in run.evaluation.decodings.values()
    ):
        raise StudyError(
            "figure `latents_curve` shows answers with other numbers of latents, and there are none: add decodings "
            "such as `{options: {num_latents: 2}, only: [codi]}` to `evaluation`, or leave the figure out"
        )


def require_known_names(study: Study) -> None:
    """Raise ValueError if a name is given twice, or stands for nothing in the study."""
    require_free_name(study.name)
    if study.name in study.shares:
        raise ValueError("a study cannot share its own runs: name another one")
    named = {"block": [b.id for b in study.blocks], "row": [r.id for r in study.rows]}
    named |= {"training seed": [str(seed) for seed in study.seeds], "test": [*study.evaluation.tests]}
    named |= {"published row": [row.title for row in study.published]}
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
            raise ValueError(
                f"decoding {name!r} is only for {sorted(unknown)}: name methods, which here are {sorted(methods)}"
            )
    for block in study.blocks:
        if not study.rows_of(block):
            raise ValueError(f"no row is in block {block.id!r}: name it in the `blocks` of a row, or leave it out")
        if block.data.validation_set in study.tests_of(block):
            raise ValueError(
                f"block {block.id!r} validates on its test set {block.data.validation_set!r}: take another"
            )
        if unknown := set(block.tests or ()) - set(study.evaluation.tests):
            raise ValueError(f"block {block.id!r} names {sorted(unknown)}: name them in `evaluation.tests` too")
        if unknown := block.options.keys() - methods:
            raise ValueError(f"block {block.id!r} has options of {sorted(unknown)}, which no row names")
    for row in study.published:
        if unknown := [test for test in row.outputs if test not in study.evaluation.tests]:
            near = suggestion(unknown[0], study.evaluation.tests)
            raise ValueError(
                f"`published` has outputs for {unknown[0]!r}{near}: name a test set of `evaluation.tests` "
                f"({', '.join(study.evaluation.tests)})"
            )
    if study.published and not {Table.main, Table.scale} & {*study.tables}:
        raise ValueError(
            f"`published` rows are shown by the tables `{Table.main}` and `{Table.scale}`: list one of them"
        )
    require_comparable(study)


def require_comparable(study: Study) -> None:
    """Raise ValueError if a planned comparison names an unknown row, or two that no block has both of."""
    if study.comparisons is None:
        if Table.comparisons in study.tables:
            raise ValueError("the table `comparisons` is of planned ones: name pairs of rows in `comparisons`")
        return
    known = [row.id for row in study.rows]
    somewhere = {pair for block in study.blocks for pair in study.planned(block)}
    for pair in study.comparisons.planned:
        for row in pair:
            if row not in known:
                near = suggestion(row, known) or f"; known: {', '.join(known)}"
                raise ValueError(f"`comparisons` name a row {row!r}, which the study does not have{near}")
        if pair not in somewhere:
            raise ValueError(f"`comparisons` name {pair[0]!r} and {pair[1]!r}, of which no block has both")


def require_free_name(name: str) -> None:
    """Raise ValueError if something else lies in a folder of results under the name of a study."""
    if name.casefold() in TAKEN or name.casefold().startswith("mlflow.db"):
        raise ValueError(
            f"`name: {name}` is taken: the folder of results has something else of that name; name the study otherwise"
        )


def require_distinct_rows(study: Study) -> None:
    """Raise InputError if rows with other options have the same in a block, as its own options replace them or they are
    defaults: they would be one training under two names."""
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
                    if block.options.get(one.method)
                    else f"rows {one.id!r} and {other.id!r} have the same settings, because one of them spells out the "
                    "default: leave one out"
                )


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
