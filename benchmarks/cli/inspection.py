"""Commands that look at results and into trained models: render tables and figures, compare runs, explain answers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from benchmarks.cli.common import RESULTS, Results, StudyArgument, prepared_run, refuse_options
from benchmarks.studies.paths import COLLECTED
from benchmarks.studies.specs import Figure, Table
from benchmarks.studies.study import StudyError, load_study, names_study, require_run
from methods.errors import InputError

app = typer.Typer()
NAMED = (
    "STUDY:BLOCK/ROW/sSEED for a run, e.g. quick:equation/marcos/s0; STUDY:BLOCK/ROW for all trainings of a row; or an "
    "MLflow run id. STUDY is a name, a YAML file, or a folder of results, e.g. results/reference/stories."
)
NamedStudy = Annotated[
    str | None, typer.Option(help="The study whose results named folders hold; default: the folder's name.")
]
BY_HAND = "Set latents by hand"  # panel of `explain --help`
ONE_QUESTION = ("question", "text", "output")  # options of `explain` without --set-dims
MANY_QUESTIONS = ("value", "step", "count", "show")  # and with it


@app.command()
def table(
    study: StudyArgument,
    results: Results = RESULTS,
    table: Annotated[Table | None, typer.Option(help="Which table; default: the study's first.")] = None,
    with_: Annotated[
        list[str] | None,
        typer.Option(
            "--with",
            metavar="[NAME=]FOLDER|FILE@TEST",
            help="Also show rows made elsewhere: of another folder of results of this study, packed or not, or of a "
            "file of outputs (as for `score`) that answers a test set, e.g. GPT-2=gpt2.jsonl@gsm8k. May be repeated.",
        ),
    ] = None,
) -> None:
    """Render a table of a study, and print it.

    Writes Markdown, LaTeX, CSV and JSON. Every study has the table `claims`; without collected results, it is computed
    from the paper's own tables alone, and not written. With `--with`, the table (`main` or `3b`) is written to `with`
    in the study's folder; rows made elsewhere are labelled, and never ranked.
    """
    loaded = load_study(study)
    if table is None and not loaded.tables:
        raise StudyError(f"study {study} lists no table (`tables: []`): name one there, or ask for --table claims")
    if table not in (None, *loaded.tables, Table.claims):
        raise StudyError(
            f"study {study} does not list the table {table}; its tables are: {', '.join(loaded.tables) or 'none'} "
            "(and claims, as of any study)"
        )
    chosen = table or loaded.tables[0]
    if with_ and chosen not in (Table.main, Table.scale):
        raise InputError(f"--with goes with the tables {Table.main} and {Table.scale}, not with {chosen}")
    if chosen == Table.claims and not (results / loaded.name / COLLECTED).is_file():
        from benchmarks.tables.claims import papers_own
        from benchmarks.tables.markup import markdown

        _warn(f"{results.absolute()} has no collected results of {loaded.name}: these are the paper's numbers alone")
        typer.echo(markdown(papers_own()))
        return
    from benchmarks.records.results import load_collected
    from benchmarks.tables.render import render

    records, beside = load_collected(loaded, results), None
    if with_:
        from benchmarks import external_rows

        beside = external_rows.read_external_rows(records, with_)
    files = render(loaded, results, chosen, beside)
    if not any(run.train or run.evaluate for run in records.runs.values()):
        _warn(f"no run of {loaded.name} has a record, so the table has no result")
    typer.echo(next(path for path in files if path.suffix == ".md").read_text(encoding="utf-8"))


def _warn(text: str) -> None:
    typer.secho(f"warning: {text}", fg="yellow", err=True)


@app.command()
def figure(
    study: StudyArgument,
    figure: Annotated[Figure, typer.Option(help="Which figure.")],
    results: Results = RESULTS,
) -> None:
    """Draw a figure of a study, with its numbers and a caption.

    Writes PNG and PDF, the numbers as CSV and the caption as Markdown.
    """
    loaded = load_study(study)
    from benchmarks.figures.render import render

    files = render(loaded, results, figure)
    typer.echo("\n".join(map(str, files)), err=True)


@app.command()
def report(
    folder: Annotated[Path, typer.Argument(help="A results folder, or the folder of one study in it.")] = RESULTS,
) -> None:
    """Put all tables and figures of a folder into one HTML file.

    The file can be read offline.
    """
    from benchmarks.report.report import report as write

    typer.echo(write(folder), err=True)


@app.command()
def compare(
    a: Annotated[str, typer.Argument(help=NAMED)],
    b: Annotated[str, typer.Argument(help="What to compare it with.")],
    results: Results = RESULTS,
    test: Annotated[str | None, typer.Option(help="Only this test set.")] = None,
    decoding: Annotated[str, typer.Option(help="Decoding whose answers are compared.")] = "default",
    study: NamedStudy = None,
) -> None:
    """Compare two runs or rows: metrics, paired tests, questions.

    Reads the records and answers of a results folder, packed or not, or of MLflow for its run ids. Shows the metrics
    that both sides have, a paired test for each test set, and the questions on which the two differ.
    """
    from benchmarks import comparison

    typer.echo(comparison.render(comparison.compare(a, b, results, test, decoding, study)))


@app.command()
def score(
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE...",
            help="JSON lines with `output` and an `id`, an `index` (from 0) or the `question`. Runs may follow, named "
            "as for `compare`.",
        ),
    ],
    test: Annotated[str | None, typer.Option(help="The test set that was answered, e.g. gsm8k.")] = None,
    scorer: Annotated[
        str | None, typer.Option(help="Score by the file's own `question` and `gold` instead, e.g. number or text.")
    ] = None,
    results: Results = RESULTS,
    decoding: Annotated[str, typer.Option(help="Decoding of the runs.")] = "default",
    study: NamedStudy = None,
    output: Annotated[Path | None, typer.Option(help="Also write table, scores and verdicts to this folder.")] = None,
) -> None:
    """Score outputs of any model, and test them against others.

    Shows accuracies with intervals, paired tests of all pairs over the same questions, and lines that match no
    question.
    """
    from benchmarks import outputs

    scores = outputs.score(names, test, scorer, results, decoding, study)
    if output is not None:
        outputs.write(scores, output)
    typer.echo(outputs.render(scores))


@app.command()
def published(
    name: Annotated[str, typer.Argument(help="A published model, e.g. codi_gpt2; an unknown name lists all.")],
    test: Annotated[str, typer.Option(help="Test set to answer, e.g. gsm8k.")],
    folder: Annotated[
        Path | None,
        typer.Option(help="Folder with its weights, and its backbone in `base`; default: download from the hub."),
    ] = None,
    latents: Annotated[
        int | None, typer.Option(min=1, help="Number of latents before the answer; default: the authors'.")
    ] = None,
    output: Annotated[Path | None, typer.Option(help="Also write the answers to this file, for `score`.")] = None,
) -> None:
    """Answer a test set with weights that authors published.

    Nothing is trained. Prompts and decoding are the authors'; questions, scorer and clock are those of this suite. What
    the authors report is printed beside it.
    """
    from benchmarks import published
    from benchmarks.processes import devices

    if output is not None:  # what decoding took should not be lost
        if output.is_dir():
            raise InputError(f"{output} is a folder: name the file that answers are written to")
        output.parent.mkdir(parents=True, exist_ok=True)
    devices.pin(1)
    result = published.evaluate(name, test, folder, latents)
    typer.echo(published.render(result))
    if output is not None:
        published.write(result, output)


@app.command()
def explain(
    context: typer.Context,
    study: Annotated[
        str,
        typer.Argument(
            metavar="STUDY|MODEL_FOLDER",
            help="A study (name or YAML file), or the `model` folder of a trained run, wherever it was copied to.",
        ),
    ],
    text: Annotated[str | None, typer.Option(help="A question of your own.")] = None,
    question: Annotated[
        int | None, typer.Option(min=1, help="A question of the study's test set instead, by its number from 1.")
    ] = None,
    test: Annotated[str | None, typer.Option(help="Test set; default: the first.")] = None,
    run: Annotated[
        list[str] | None, typer.Option(help="Only this run of the study; may be repeated. Default: all trained runs.")
    ] = None,
    results: Results = RESULTS,
    output: Annotated[
        Path | None, typer.Option(help="Also write all latents to this NPZ file, as RUN/NAME; it must not exist.")
    ] = None,
    set_dims: Annotated[
        str | None,
        typer.Option(
            help="Dimensions to set in one `--run`, e.g. 3,7: answer before and after.", rich_help_panel=BY_HAND
        ),
    ] = None,
    value: Annotated[float | None, typer.Option(help="Value that they are set to.", rich_help_panel=BY_HAND)] = None,
    step: Annotated[
        int | None, typer.Option(help="Thinking step, from 1; default: all.", rich_help_panel=BY_HAND)
    ] = None,
    count: Annotated[
        int, typer.Option(min=1, help="Number of questions, spread evenly over the test set.", rich_help_panel=BY_HAND)
    ] = 100,
    show: Annotated[int, typer.Option(min=0, help="Number of changed outputs to print.", rich_help_panel=BY_HAND)] = 5,
) -> None:
    """Show how trained models think and answer, or set their latents.

    Shows steps, answer, latents as nearest tokens, and active dimensions: of all trained runs of a study, or of a
    model folder, which needs no study. With `--set-dims`, sets dimensions of a run's latents instead, and shows how
    answers to many questions of a test set change, and their length, format and accuracy.
    """
    from benchmarks.analysis import explaining, interventions
    from benchmarks.processes import devices

    if set_dims is not None:
        refuse_options(context, ONE_QUESTION, "does not go with --set-dims, which takes `--count` questions")
        if value is None or not run or len(run) > 1:
            raise InputError("--set-dims needs one run, as in `--run equation/marcos/s0`, and a `--value` to set")
        spec = prepared_run(study, run[0], results)
        devices.pin(1)
        interventions.intervene(spec, results, set_dims, value, step, test, count, show)
        return
    refuse_options(context, MANY_QUESTIONS, "goes with --set-dims")
    if (question is None) == (text is None):
        raise InputError("ask one question: --question with its number in the test set, or --text with one of your own")
    if text is not None and test is not None:
        raise InputError("--test goes with --question: a text of your own is in no test set")
    asked = explaining.Question(question, test, text)
    if _is_study(study):
        loaded = load_study(study)
        for id in run or ():
            require_run(loaded, study, id)
        devices.pin(1)
        explaining.explain(loaded, results, asked, run or (), output)
        return
    refuse_options(context, ["run", "results", "question"], "goes with a study: ask a model folder with --text")
    devices.pin(1)
    explaining.explain_model(Path(study), asked, output)


def _is_study(name: str) -> bool:
    """Return whether a name is meant as a study. A folder that is named like one is written ./NAME."""
    return names_study(name) or ("/" not in name and not Path(name).is_dir())
