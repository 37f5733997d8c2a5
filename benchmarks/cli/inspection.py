"""Commands that inspect results: compare two runs, explain one question, set latents by hand, verify records, check the
paper's claims."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from benchmarks.cli.common import RESULTS, Results, RunArgument, StudyArgument, ready_run, require_run
from benchmarks.studies.paths import COLLECTED
from benchmarks.studies.study import Study, StudyError, load_study, shipped
from methods.errors import InputError

app = typer.Typer()
NAMED = (
    "RUN, e.g. equation/marcos/s0; STUDY:RUN, where several studies have such a run; an MLflow run id; or "
    "STUDY:BLOCK/ROW for all trainings of a row."
)


@app.command()
def compare(
    a: Annotated[str, typer.Argument(help=NAMED)],
    b: Annotated[str, typer.Argument(help="The run to compare it with.")],
    results: Results = RESULTS,
    test: Annotated[str | None, typer.Option(help="Only this test set.")] = None,
    decoding: Annotated[str, typer.Option(help="Decoding whose answers are compared.")] = "default",
) -> None:
    """Compare two tracked runs, or all trainings of two rows: metrics, a paired test, and where they differ."""
    from benchmarks.tracking import comparison

    typer.echo(comparison.render(comparison.compare(a, b, results, test, decoding)))


@app.command()
def explain(
    study: StudyArgument,
    question: Annotated[int | None, typer.Option(min=1, help="Number of the question in the test set, from 1.")] = None,
    text: Annotated[str | None, typer.Option(help="A question of your own instead.")] = None,
    run: Annotated[list[str] | None, typer.Option(help="Only this run; may be repeated. Default: all.")] = None,
    results: Results = RESULTS,
    test: Annotated[str | None, typer.Option(help="Test set; default: the first.")] = None,
    output: Annotated[
        Path | None, typer.Option(help="Also write all latents to this NPZ file, as RUN/NAME; it must not exist.")
    ] = None,
) -> None:
    """Show what trained runs make of one question: steps, latents as nearest tokens, active dimensions."""
    if (question is None) == (text is None):
        raise InputError("ask one question: --question with its number in the test set, or --text with one of your own")
    if text is not None and test is not None:
        raise InputError("--test goes with --question: a text of your own is in no test set")
    loaded = load_study(study)
    for id in run or ():
        require_run(loaded, study, id)
    from benchmarks.analysis import explaining
    from benchmarks.processes import devices

    devices.pin(1)
    explaining.explain(loaded, results, explaining.Question(question, test, text), run or (), output)


@app.command()
def intervene(
    study: StudyArgument,
    run: RunArgument,
    dims: Annotated[str, typer.Option(help="Dimensions to set, as in 3,7.")],
    value: Annotated[float, typer.Option(help="Value that they are set to.")],
    results: Results = RESULTS,
    step: Annotated[int | None, typer.Option(help="Thinking step, from 1; default: all.")] = None,
    test: Annotated[str | None, typer.Option(help="Test set; default: the first.")] = None,
    questions: Annotated[int, typer.Option(min=1, help="Number of questions, spread evenly over the test set.")] = 100,
    show: Annotated[int, typer.Option(min=0, help="Number of outputs to print.")] = 5,
) -> None:
    """Set dimensions of a trained run's latents by hand: outputs before and after, and how their length, format and
    accuracy change."""
    spec = ready_run(study, run, results)
    from benchmarks.analysis import interventions
    from benchmarks.processes import devices

    devices.pin(1)
    interventions.intervene(spec, results, dims, value, step, test, questions, show)


@app.command()
def verify(
    folder: Annotated[Path, typer.Argument(help="Folder of a study's results, e.g. results/reference/quick.")],
    study: Annotated[str | None, typer.Option(help="The study that made them; default: the folder's name.")] = None,
) -> None:
    """Recompute digests, scores and tables from the predictions; exit code 1 if anything differs."""
    from benchmarks.verification import checks

    findings = checks.verify(_study_of(folder, study), folder)
    typer.echo(checks.report(findings))
    raise typer.Exit(any(finding.kind == "differs" for finding in findings))


@app.command()
def rescore(
    folder: Annotated[Path, typer.Argument(help="Folder of a study's results, e.g. results/reference/quick.")],
    study: Annotated[str | None, typer.Option(help="The study that made them; default: the folder's name.")] = None,
) -> None:
    """Score recorded answers anew where an older scorer did, without asking a model, and render the tables again."""
    from benchmarks.verification import rescoring

    found = 0
    for line in rescoring.rescore(_study_of(folder, study), folder):
        typer.echo(line)
        found += 1
    typer.echo(f"{found} changes" if found else "no score moves")


def _study_of(folder: Path, study: str | None) -> Study:
    """Return the study whose results a folder holds: the one named, or that of the folder's name."""
    if not folder.is_dir():
        raise StudyError(f"there is no folder {folder}: name that of a study's results")
    if study is None and folder.resolve().name not in shipped():
        example = min(folder.glob(f"*/{COLLECTED}"), default=folder / "smoke" / COLLECTED).parent
        raise StudyError(
            f"{folder} is not named like a study: name one study's folder, e.g. {example}, or say "
            "with --study whose results these are"
        )
    return load_study(study or folder.resolve().name)


@app.command()
def pack(
    folder: Annotated[Path, typer.Argument(help="Folder of a study's results, e.g. results/quick.")],
    target: Annotated[Path, typer.Argument(help="Folder to write, e.g. results/reference/quick.")],
) -> None:
    """Pack a study's results to be shared or committed: tables, figures, and one archive of records and predictions."""
    from benchmarks.archive import pack

    path = pack(folder, target)
    typer.echo(f"{path}: {path.stat().st_size / 1e6:.2f} MB", err=True)


@app.command()
def unpack(
    folder: Annotated[Path, typer.Argument(help="Folder of packed results, e.g. results/reference/quick.")],
    target: Annotated[Path, typer.Argument(help="Folder to write, e.g. results/quick; it must not exist.")],
) -> None:
    """Unpack results that were packed, so that tables and figures can be rendered from them again."""
    from benchmarks.archive import unpack

    unpack(folder, target)


@app.command()
def claims() -> None:
    """Compute the paper's claims again from its own tables; `table STUDY --table claims` adds our numbers."""
    from benchmarks.paper.claims import compared, load_claims, printed
    from benchmarks.tables.claims import TITLE, claims_grid
    from benchmarks.tables.markup import Document, markdown

    found = [(claim, list(compared(claim, printed)), None) for claim in load_claims()]
    typer.echo(markdown(Document(TITLE, (claims_grid(found),))))
