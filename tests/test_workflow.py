"""The workflow: what it plans, what an edit reruns, and what it says about bad input."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median

import pytest
import yaml

from benchmarks.studies.paths import Paths
from benchmarks.studies.study import load_study
from conftest import ROOT
from copies import copy_suite, environment, forked, printed, snakemake, stand_in
from methods.code_digest import SUFFIXES

SMOKE = list(load_study("smoke").runs)
TASKS = ("train", "evaluate", "time")
TARGET = "results/table_main.md"
ANALYSES = [f"results/smoke/runs/{run}/analysis/analysis.json" for run in SMOKE if "marcos" in run]
# A stand-in for tasks that only writes the requested file, at once
STAND_IN = """
import json, os, sys
from pathlib import Path

verb, study, *rest = sys.argv[1:]
results = Path("results", Path(study).stem)
names = {
    "data": [f"data/{rest[-1]}/done.json"] if rest else [],
    "analyse": [f"runs/{rest[0]}/analysis/analysis.json"] if rest else [],
    "collect": ["collect.json", "frame.csv"],
    "track": ["track.json"],
    "table": [f"table_{''.join(rest[-1:])}.{kind}" for kind in ("md", "tex", "csv", "json")],
}
text = f"{verb} {rest}"
if verb == "track":
    from benchmarks.tracking.store import tries

    status = "pending" if Path("server_is_down").exists() else "done"
    text = json.dumps({"status": status, "tries": tries(results / "track.json")})
for name in names.get(verb) or [f"runs/{rest[0]}/{verb}.json"]:
    (results / name).parent.mkdir(parents=True, exist_ok=True)
    (results / name).write_text(text)
"""
# In place of SLURM's plugin: prints what a job requests, and writes the job's output
CLUSTER = """
import json, sys
from dataclasses import dataclass, field
from pathlib import Path

from snakemake_interface_executor_plugins.executors.base import SubmittedJobInfo
from snakemake_interface_executor_plugins.executors.real import RealExecutor
from snakemake_interface_executor_plugins.settings import CommonSettings, ExecMode, ExecutorSettingsBase

common_settings = CommonSettings(non_local_exec=True, implies_no_shared_fs=False, job_deploy_sources=False)
NAMES = ("nodes", "gpu", "mpi", "tasks_per_node", "tasks", "tasks_per_gpu", "cpus_per_task", "mem_mb", "slurm_extra")

@dataclass
class ExecutorSettings(ExecutorSettingsBase):
    requeue: bool = field(default=False, metadata={"help": "as the plugin has it", "env_var": False, "required": False})

class Executor(RealExecutor):
    cores = "all"

    def run_job(self, job):
        asked = {name: job.resources[name] for name in NAMES if name in job.resources.keys()}
        asked["threads"] = job.threads
        assert self.workflow.executor_settings.requeue  # a job that is pre-empted comes back
        print("ASKS", json.dumps([job.rule.name, job.wildcards_dict.get("run"), asked]), flush=True)
        for path in map(Path, job.output):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        info = SubmittedJobInfo(job)
        self.report_job_submission(info)
        self.report_job_success(info)

    def get_exec_mode(self):
        return ExecMode.REMOTE

    def get_python_executable(self):
        return sys.executable

    def cancel(self):
        pass

    def shutdown(self):
        pass
"""


def planned(output: str) -> Counter[str]:
    """Return the jobs of a dry run by rule and run, such as ``train equation/marcos/s0``."""
    rules = re.findall(r"^(?:local)?rule (\w+):\n(.*?)(?:\n\n|\Z)", output, re.M | re.S)
    runs = [(rule, re.search(r"wildcards: study=\S+, run=(\S+)", text)) for rule, text in rules]
    return Counter(f"{rule} {run[1]}" if run else rule for rule, run in runs)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy whose smoke study has been run by a stand-in for the tasks, and analysed. It has the output."""
    folder = copy_suite(tmp_path_factory.mktemp("finished"))
    stand_in(folder, STAND_IN)
    output = snakemake(folder, "--config", "study=smoke", "--", TARGET, *ANALYSES)
    assert (folder / TARGET).is_file()
    (folder / "first.log").write_text(output, encoding="utf-8")
    return folder


@pytest.fixture
def edit(finished: Path) -> Iterator[Callable[[str, str], None]]:
    """Append text to a file of the finished copy, for a single test."""
    before: dict[Path, bytes | None] = {}

    def append(name: str, text: str) -> None:
        path = finished / name
        before[path] = path.read_bytes() if path.exists() else None
        path.write_bytes((before[path] or b"") + text.encode())

    yield append
    for path, content in before.items():
        path.unlink() if content is None else path.write_bytes(content)


def test_timings_share_one_quiet_period_at_the_end(finished: Path) -> None:
    """A timing needs all cores, which would be idle before it while other jobs end. Analyses, which no table waits for,
    come before it too; trainings come before all answers, which fill the cores that the last trainings leave."""
    started = re.findall(r"^(?:local)?rule (\w+):$", (finished / "first.log").read_text(encoding="utf-8"), re.M)
    tasks = [{"data"}, {"train"}, {"evaluate", "analyse"}, {"time"}, {"collect"}]
    at = [[place for place, rule in enumerate(started) if rule in task] for task in tasks]
    assert [len(places) for places in at] == [2, len(SMOKE), len(SMOKE) + len(ANALYSES), len(SMOKE), 1]
    data, trainings, answers, timings, collecting = at
    assert max(data) < min(answers) and max(trainings) < median(answers)  # a late block may let an answer go first
    assert max(answers + trainings) < min(timings) and max(timings) < min(collecting)


def test_lint_is_clean() -> None:
    assert "good condition" in snakemake(ROOT, "--lint")


def test_dry_run_of_the_default_study_says_what_would_run_and_why(tmp_path: Path) -> None:
    output = snakemake(copy_suite(tmp_path), "--dry-run", TARGET)
    jobs = Counter(job.split()[0] for job in planned(output).elements())
    assert jobs["train"] == jobs["evaluate"] == jobs["time"] == len(load_study("quick").runs)
    assert jobs["data"] == 2
    assert jobs["collect"] == jobs["track"] == jobs["table"] == jobs["latest_table"] == 1
    assert output.count("reason: Missing output files") == sum(jobs.values())


def test_second_call_does_nothing_however_the_study_is_named(finished: Path) -> None:
    assert "Nothing to be done" in snakemake(finished, "--configfile", "workflows/config/smoke.yaml", "--", TARGET)


def test_what_was_removed_is_made_again_though_its_table_is_there(finished: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(finished, tmp_path / "copy")
    path, asked = folder / "results/smoke/runs/equation/cot_sft/s0/time.json", ("--config", "study=smoke", "--", TARGET)
    after = {"collect", "track", "table", "latest_table"}
    path.unlink()
    assert planned(snakemake(folder, *asked)).keys() == {"time equation/cot_sft/s0"} | after
    assert path.exists()
    assert "Nothing to be done" in snakemake(folder, *asked)
    shutil.rmtree(folder / "results/smoke")
    everything = {f"{task} {run}" for task in TASKS for run in SMOKE} | {"data"}
    assert planned(snakemake(folder, "--dry-run", *asked)).keys() == everything | after


def test_results_without_the_notes_of_snakemake_are_not_taken_for_what_is_asked(finished: Path, tmp_path: Path) -> None:
    """Results that were copied, or are reached from another folder, as their records tell what they were made from."""
    folder = shutil.copytree(finished, tmp_path / "copy")
    shutil.rmtree(folder / ".snakemake")
    asked, study = ("--config", "study=smoke", "--", "results/table.md"), load_study("smoke")
    for run in study.runs.values():
        for task in TASKS:
            record = Paths(folder / "results", run).record(task)
            before = record.stat()
            record.write_text(json.dumps({"digest": run.digest(task)}), encoding="utf-8")
            os.utime(record, ns=(before.st_atime_ns, before.st_mtime_ns))
    (folder / "results/table.md").write_text("of another study", encoding="utf-8")
    output = snakemake(folder, "--dry-run", *asked)
    assert planned(output) == {"first_table": 1}
    assert "results/table.md is written again: it is no copy of results/table_main.md." in output
    run = "equation/marcos/s0"
    for task in TASKS:
        Paths(folder / "results", study.runs[run]).record(task).write_text(
            '{"digest": "of other settings"}', encoding="utf-8"
        )
    (folder / "results/smoke/data/text/done.json").write_text('{"key": "of other settings"}', encoding="utf-8")
    jobs = planned(snakemake(folder, *asked))
    rest = {"data", "collect", "track", "table", "latest_table", "first_table"}
    assert jobs.keys() == {f"{task} {name}" for task in TASKS for name in (run, "text/cot_sft/s0")} | rest
    assert jobs["data"] == 1
    assert "Nothing to be done" in snakemake(folder, *asked)


def test_an_import_is_tried_again_while_it_is_pending(finished: Path) -> None:
    """The same command tries again, and tables are rendered after each try."""
    asked = ("--config", "study=smoke", "--", TARGET)
    record, down = finished / "results/smoke/track.json", finished / "server_is_down"
    record.write_text(json.dumps({"status": "pending", "tries": 1}), encoding="utf-8")
    down.touch()
    for tries, status in ((2, "pending"), (3, "done")):
        assert planned(snakemake(finished, *asked)) == {"track": 1, "table": 1, "latest_table": 1}
        assert json.loads(record.read_text(encoding="utf-8")) == {"status": status, "tries": tries}
        down.unlink(missing_ok=True)
    assert "Nothing to be done" in snakemake(finished, *asked)


def test_the_address_of_a_server_is_not_kept(finished: Path, tmp_path: Path) -> None:
    """The address may contain a password. Another address causes another import."""
    folder = shutil.copytree(finished, tmp_path / "copy")
    address = {"MLFLOW_TRACKING_URI": "https://me:secret@example.org"}
    said = forked(folder, "snakemake", "--cores", "2", "--config", "study=smoke", "--", TARGET, variables=address)
    assert planned(said) == {"track": 1, "table": 1, "latest_table": 1}
    files = [path for path in (folder / ".snakemake").rglob("*") if path.is_file()]
    assert files and not [path for path in files if b"secret" in path.read_bytes()]


def test_all_tables_are_made_when_none_is_named(finished: Path) -> None:
    jobs = planned(snakemake(finished, "--dry-run", "--config", "study=smoke"))
    # Besides the main table, which exists already
    assert jobs == {"table": 2, "latest_table": 2, "report": 1, "all": 1}
    one = snakemake(finished, "--dry-run", "--config", "study=smoke", "--", "results/table_controls.md")
    assert planned(one) == {"table": 1, "latest_table": 1}


def test_a_named_study_is_never_exchanged_for_another(finished: Path) -> None:
    message = r"study ablation does not render table_main \(its tables: table_ablation\): ask for one of them"
    output = snakemake(finished, "--dry-run", "--config", "study=ablation", "--", TARGET, fails=True)
    assert re.search(message, output), output


def test_what_a_run_starts_from_is_trained_in_the_study_that_it_is_shared_with(finished: Path) -> None:
    target = "results/variants/runs/equation/coconut_pause/s10/train.json"
    output = snakemake(finished, "--dry-run", "--", target)
    assert planned(output) == {
        "data": 2,
        **{f"train equation/{row}/s10": 1 for row in ("cot_sft_long", "coconut_pause")},
    }
    assert re.search(r"input: .*results/coconut_start/runs/equation/cot_sft_long/s10/train\.json\n", output)


def test_runs_of_a_study_of_ones_own_are_shared_from_its_file(finished: Path) -> None:
    text = (finished / "workflows/config/smoke.yaml").read_text(encoding="utf-8")
    (mine := finished / "mine").mkdir()
    (mine / "base.yaml").write_text(text.replace("name: smoke", "name: base"), encoding="utf-8")
    shared = text.replace("name: smoke", "name: twice\nshares: base.yaml\nseeds: [0, 1]")
    (mine / "twice.yaml").write_text(shared, encoding="utf-8")
    output = snakemake(finished, "--dry-run", "--printshellcmds", "--configfile", "mine/twice.yaml", "--", TARGET)
    jobs = planned(output)
    assert {job for job in jobs if job.startswith("train equation/cot_sft")} == {
        "train equation/cot_sft/s0",
        "train equation/cot_sft/s1",
    }
    assert re.search(r" mine/base\.yaml equation/cot_sft/s0\n", output), output
    assert re.search(r" mine/twice\.yaml equation/cot_sft/s1\n", output), output


def made(*variables: str) -> list[str]:
    """Return the commands of `make table`, even if make itself runs these tests."""
    command = ["make", "--no-print-directory", "-n", "table", *variables]
    return subprocess.run(command, cwd=ROOT, encoding="utf-8", capture_output=True).stdout.splitlines()


def test_make_prints_the_first_table_of_the_study_that_it_is_told(finished: Path) -> None:
    *_, call, shown, told = made("STUDY=ablation")
    assert call.startswith(".venv/bin/snakemake --cores all ")
    assert shown.endswith(f" {call.split()[-1]}") and call.split()[-1] in told
    output = snakemake(finished, "--dry-run", *call.split()[3:])
    assert f"input: results/table_ablation.md\n    output: {call.split()[-1]}" in output


def test_make_without_a_study_makes_the_main_table() -> None:
    call, shown, _ = made()[-3:]
    assert call == f".venv/bin/snakemake --cores all {TARGET}"
    printed = subprocess.run(
        shown.replace(TARGET, "results/reference/stories/table_main.md"),
        shell=True,
        cwd=ROOT,
        capture_output=True,
        encoding="utf-8",
    )
    lines = printed.stdout.splitlines()
    assert lines[2].startswith("| Model") and lines[-2].startswith("| Answer only")
    assert not re.search("&|<", printed.stdout) and len({len(line) for line in lines[2:-1]}) == 1, "columns in line"


def test_edited_part_of_a_method_reruns_its_own_rows_only(finished: Path, edit: Callable[[str, str], None]) -> None:
    edit("methods/marcos/losses.py", "\nEDITED = True\n")
    edit("methods/other.py", '"""A new method\'s file."""\n')
    jobs = planned(snakemake(finished, "--dry-run", "--config", "study=smoke", "--", TARGET))
    expected = {f"{task} {run}" for task in TASKS for run in SMOKE if "/marcos" in run}
    assert {job for job in jobs if " " in job} == expected
    assert "data" not in jobs


def test_another_title_renders_tables_alone(finished: Path, edit: Callable[[str, str], None]) -> None:
    edit("methods/cot_sft.py", "")  # restored when the test ends
    path = finished / "methods/cot_sft.py"
    path.write_text(path.read_text(encoding="utf-8").replace('title = "CoT-SFT"', 'title = "CoT"'), encoding="utf-8")
    jobs = planned(snakemake(finished, "--dry-run", "--config", "study=smoke", "--", TARGET))
    assert jobs == {"collect": 1, "track": 1, "table": 1, "latest_table": 1}


def test_one_test_set_more_has_all_runs_look_again(finished: Path, edit: Callable[[str, str], None]) -> None:
    """The train task runs too, but ends at once if a run is already trained (``test_ended.py``)."""
    study = finished / "workflows/config/smoke.yaml"
    edit("workflows/config/smoke.yaml", "")  # restored when the test ends
    study.write_text(study.read_text(encoding="utf-8").replace("tests: [", "tests: [multiarith, "), encoding="utf-8")
    jobs = planned(snakemake(finished, "--dry-run", "--config", "study=smoke", "--", TARGET))
    assert {job for job in jobs if " " in job} == {f"{task} {run}" for task in TASKS for run in SMOKE}
    assert jobs["data"] == 2


def test_data_and_method_that_change_together_are_made_anew_by_one_call(finished: Path, tmp_path: Path) -> None:
    """Snakemake does not check a job's own reasons to run while its inputs are made again."""
    folder = tmp_path / "suite"
    shutil.copytree(finished, folder, symlinks=True)
    for name in ("methods/cot_sft.py", "benchmarks/data/store.py", "benchmarks/records/provenance.py"):
        with (folder / name).open("a", encoding="utf-8") as file:
            file.write("\nEDITED = True\n")
    asked = ("--config", "study=smoke", "--", TARGET)
    jobs = planned(snakemake(folder, *asked))
    assert {job for job in jobs if " " in job} == {f"{task} {run}" for task in TASKS for run in SMOKE}
    assert "Nothing to be done" in snakemake(folder, *asked)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--config", "stduy=smoke"], r"unknown keys \['stduy'\]"),
        (["--configfile", "workflows/config/smoke.yaml", "--config", "threads=2"], "a study is one file"),
    ],
)
def test_bad_study_gets_an_error_that_says_what_to_do(finished: Path, arguments: list[str], message: str) -> None:
    output = snakemake(finished, "--dry-run", *arguments, "--", TARGET, fails=True)
    assert re.search(message, output), output


def test_a_study_without_tables_has_its_figures_alone(finished: Path) -> None:
    text = (finished / "workflows/config/smoke.yaml").read_text(encoding="utf-8").replace("name: smoke", "name: drawn")
    (finished / "drawn.yaml").write_text(f"{text}\ntables: []\n", encoding="utf-8")
    asked = ["--dry-run", "--configfile", "drawn.yaml"]
    output = snakemake(finished, *asked, "--", "results/table.md", fails=True)
    assert "study drawn renders no table (`tables: []`)" in output
    assert not any(job.startswith("table") for job in planned(snakemake(finished, *asked)))


def test_a_run_that_ends_with_an_error_of_its_own_is_not_trained_again(tmp_path: Path) -> None:
    """In contrast, tests/test_ended.py has runs that are told to stop or killed, which are tried again."""
    folder = copy_suite(tmp_path)
    failing = "if verb == 'train':\n    open('trained', 'a').write('x')\n    print('what was wrong')\n    sys.exit(1)\n"
    stand_in(folder, f"{STAND_IN}{failing}")
    run = "results/smoke/runs/equation/cot_sft/s0"
    error = "results/smoke/logs/train/equation/cot_sft/s0.log.error"
    for tries in (1, 2):  # each new call gets a try
        output = snakemake(folder, "--config", "study=smoke", "--", f"{run}/train.json", fails=True)
        assert f"Not tried again: the error is in {error}" in output
        assert (folder / error).read_text(encoding="utf-8") == "what was wrong\n"
        assert (folder / "trained").read_text(encoding="utf-8") == "x" * tries


def test_a_run_that_fails_stops_no_other(tmp_path: Path) -> None:
    """Two runs follow each other here, and the first one fails."""
    folder = copy_suite(tmp_path)
    failing = "if verb == 'train' and not Path('tried').exists():\n    Path('tried').touch()\n    sys.exit(2)\n"
    stand_in(folder, f"{STAND_IN}{failing}")
    runs = [folder / f"results/smoke/runs/equation/{row}/s0/train.json" for row in ("cot_sft", "marcos")]
    targets = (str(run.relative_to(folder)) for run in runs)
    snakemake(folder, "--cores", "1", "--config", "study=smoke", "--", *targets, fails=True)
    assert sum(run.exists() for run in runs) == 1


def test_data_files_have_the_names_of_modules() -> None:
    """A digest of a module's source then includes its data file, and so does one of its package."""
    files = [path for path in (ROOT / "benchmarks").rglob("*.*") if path.suffix not in {".py", ".pyc"}]
    assert files and all(path.with_suffix(".py").is_file() and path.suffix in SUFFIXES for path in files)


def test_jobs_share_a_machine_that_has_slurm_and_no_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a login node, jobs would run one by one for a GPU that does not exist, and leave cores idle."""
    folder = copy_suite(tmp_path)
    (folder / "sbatch").touch(mode=0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    output = snakemake(folder, "--dry-run", "--config", "study=smoke", "--", "results/table.md")
    assert "train" in output and not re.search(r"gpu=[1-9]", output)


def test_a_job_of_a_cluster_asks_for_what_its_ranks_take(tmp_path: Path) -> None:
    """The runs use one node, two nodes of four GPUs, and two nodes of one GPU."""
    folder = copy_suite(tmp_path)
    study = yaml.safe_load((folder / "workflows/config/smoke.yaml").read_text(encoding="utf-8"))
    study |= {"name": "ranks", "threads": 3, "timing_threads": 2, "engine": {"kind": "deepspeed", "gpus": 4}}
    study["rows"][0]["engine"] = {"nodes": 2}
    study["rows"][3] |= {"engine": {"nodes": 2, "gpus": 1}, "backbone": {"name": "qwen2.5-0.5b"}}
    (folder / "ranks.yaml").write_text(yaml.safe_dump(study), encoding="utf-8")
    (plugin := folder / "snakemake_executor_plugin_slurm").mkdir()
    (plugin / "__init__.py").write_text(CLUSTER, encoding="utf-8")
    words = [sys.executable, "-m", "snakemake", "--workflow-profile", "profiles/slurm", "--configfile", "ranks.yaml"]
    runs = {"equation/marcos/s0": (1, 4), "equation/cot_sft/s0": (2, 4), "equation/marcos_wo_r/s0": (2, 1)}
    records = [
        f"results/ranks/runs/{run}/{task}.json" for run in runs for task in ("evaluate", "time", "analysis/analysis")
    ]
    output = printed(folder, [*words, "--", *records])  # in a process of its own, which looks for plug-ins
    asked = {(rule, run): what for rule, run, what in map(json.loads, re.findall("^ASKS (.*)", output, re.M))}
    for run, (nodes, gpus) in runs.items():
        memory = 40_000 if "wo_r" in run else 8_000  # MB per process, by its backbone
        for task, threads in {"train": 3, "time": 2}.items():
            tasks = {"tasks_per_node": gpus} if gpus > 1 else {"tasks": nodes, "tasks_per_gpu": 1}
            across = {"mpi": "srun", "cpus_per_task": threads, **tasks} if nodes > 1 else {}
            whole = {"threads": gpus * threads, "nodes": nodes, "gpu": gpus * nodes, "mem_mb": memory * gpus}
            alone = {"slurm_extra": "--exclusive"} if task == "time" else {}
            assert asked[task, run] == whole | across | alone
        assert asked["evaluate", run] == asked["analyse", run] == {"threads": 3, "gpu": 1, "mem_mb": memory}


def test_what_builds_no_model_does_not_wait_for_transformers() -> None:
    """This covers reading studies and records, rendering, and starting ranks. Importing transformers takes seconds."""
    modules = ("studies.study", "data", "records.results", "tracking.importer", "tables.render", "figures.render")
    imports = ", ".join(f"benchmarks.{module}" for module in (*modules, "processes.launch"))
    load = "benchmarks.studies.study.load_study('quick').runs"
    code = f"import sys, {imports}; {load}; print('transformers' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], env=environment(ROOT), encoding="utf-8", capture_output=True)
    assert done.stdout == "False\n", done.stderr


# -- the table of claims, which shows records of the paper's studies too; the last tests, as they leave such records


def records_of(study: str, folder: Path, content: str) -> None:
    path = folder / f"results/{study}/collect.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content, encoding="utf-8")


def test_records_of_the_papers_studies_render_the_table_anew(finished: Path, edit: Callable[[str, str], None]) -> None:
    edit("workflows/config/smoke.yaml", "\ntables: [claims]\n")
    asked = ("--config", "study=smoke", "--", "results/smoke/table_claims.md")
    assert planned(snakemake(finished, *asked))["table"] == 1
    records_of("quick", finished, "{}")
    for content in ("{}", "{ }"):
        assert "Nothing to be done" in snakemake(finished, *asked)
        records_of("paper_3b", finished, content)
        assert planned(snakemake(finished, *asked)) == {"table": 1}


def test_all_of_a_study_that_is_named_trains_no_other(finished: Path) -> None:
    records_of("paper_3b", finished, "{}")
    output = snakemake(finished, "--dry-run", "--config", "study=paper_0.5b", "--", "all")
    assert "results/paper_0.5b/table_claims.md" in output
    assert set(re.findall(r"wildcards: study=(\S+), run=", output)) == {"paper_0.5b"}
