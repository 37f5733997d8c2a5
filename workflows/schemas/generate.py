"""Writes study.schema.json, which editors and Snakemake validate study files against, from the models in the code."""

import json
from pathlib import Path
from typing import Any

from benchmarks.studies.study import Study

TARGET = Path(__file__).with_name("study.schema.json")


def study_schema() -> dict[str, Any]:
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **Study.model_json_schema()}


if __name__ == "__main__":
    TARGET.write_text(json.dumps(study_schema(), indent=2) + "\n", encoding="utf-8")
