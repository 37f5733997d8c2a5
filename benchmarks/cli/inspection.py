"""Looking into results: two runs, one question, a latent set by hand, records computed again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from benchmarks.cli.common import RESULTS, Results, RunArgument, StudyArgument, clear_errors, run_of
from benchmarks.study import load_study

app = typer.Typer()


@app.command()
def compare(
    a: Annotated[str, typer.Argument(help="An MLflow run id, or STUDY:RUN, e.g. quick:equation/marcos/s0.")],
    b: Annotated[str, typer.Argument(help="The run that it is compared with.")],
    results: Results = RESULTS,
    test: Annotated[str | None, typer.Option(help="Only this test set.")] = None,
    decoding: Annotated[str, typer.Option(help="Whose answers, as the studies name it.")] = "default",
) -> None:
    """Metric differences of two tracked runs, a paired test, and the questions where they differ."""
    with clear_errors():
        from benchmarks import comparison

        typer.echo(comparison.render(comparison.compare(a, b, results, test, decoding)))


@app.command()
def explain(
    study: StudyArgument,
    question: Annotated[int, typer.Option(min=1, help="Its number in the test set, from 1.")],
    results: Results = RESULTS,
    test: Annotated[str | None, typer.Option(help="Test set; default: the first.")] = None,
) -> None:
    """All trained runs on one question, side by side: steps, latents as nearest tokens, active dimensions."""
    with clear_errors():
        loaded = load_study(study)
        from benchmarks import devices
        from benchmarks.analysis import explaining

        devices.pin(1)
        explaining.explain(loaded, results, question, test)


@app.command()
def intervene(
    study: StudyArgument,
    run: RunArgument,
    dims: Annotated[str, typer.Option(help="Dimensions, as in 3,7.")],
    value: Annotated[float, typer.Option(help="What they are set to.")],
    results: Results = RESULTS,
    step: Annotated[int | None, typer.Option(help="Thinking step, from 1; default: all.")] = None,
    test: Annotated[str | None, typer.Option(help="Test set; default: the first.")] = None,
    questions: Annotated[int, typer.Option(min=1, help="So many, spread evenly over the test set.")] = 100,
    show: Annotated[int, typer.Option(min=0, help="So many outputs are printed.")] = 5,
) -> None:
    """Set dimensions of a trained run's latents by hand: outputs before and after, and what becomes of their length,
    their format and their accuracy."""
    with clear_errors():
        spec = run_of(study, run)
        from benchmarks import devices
        from benchmarks.analysis import by_hand

        devices.pin(1)
        by_hand.intervene(spec, results, dims, value, step, test, questions, show)


@app.command()
def verify(
    folder: Annotated[Path, typer.Argument(help="A study's results, e.g. results/reference/quick.")],
    study: Annotated[str | None, typer.Option(help="The study that made them; default: the folder's name.")] = None,
) -> None:
    """Compute digests, scores and tables again from the predictions; exit code 1 where anything differs."""
    with clear_errors():
        loaded = load_study(study or folder.resolve().name)
        from benchmarks import verification

        findings = verification.verify(loaded, folder)
    typer.echo(verification.report(findings))
    raise typer.Exit(any(finding.kind == "differs" for finding in findings))


@app.command()
def claims() -> None:
    """What the paper says of its numbers, against these numbers; `table STUDY --table claims` has ours beside."""
    from benchmarks.markup import markdown
    from benchmarks.tables.claims import paper_alone

    typer.echo(markdown(paper_alone()))
