"""Writes the folder of a new task, which runs as it is: `batch-assets new` and `dg scaffold` share it."""

import keyword
from importlib.util import find_spec
from pathlib import Path

from batch_assets.core.errors import ConfigError
from batch_assets.core.names import check_task_name
from batch_assets.engines.models_file import load_models

SHIPPED_DEFS = Path(__file__).resolve().parent.parent / "defs"

_OUTPUT = '''\
class {output}(BaseModel):
    """What is wanted of a record."""

    model_config = ConfigDict(extra="forbid")

    label: Literal["question", "complaint", "praise"]
'''
_TASK = '''\
"""What is asked of each record, of which models, and what an answer must be."""

from typing import Literal

import dagster as dg
from pydantic import BaseModel, ConfigDict

from batch_assets.dagster.llm_task import LlmTask
from batch_assets.sources.files import FileSource


{model}

@dg.component_instance
def {name}(_context: dg.ComponentLoadContext) -> LlmTask:
    """Declare the task."""
    return LlmTask(
        name="{name}",
        source=FileSource("records/*.csv", key="item_id"),
        output={output},
        models=["{model_id}"],
    )
'''
_OUTPUT_MODULE = '''\
"""What an answer must be."""

from typing import Literal

from pydantic import BaseModel, ConfigDict


{model}'''
_YAML = """\
type: batch_assets.dagster.llm_task.LlmTask
attributes:
  name: {name}
  source: {{files: "records/*.csv", key: item_id}}
  output: {package}.{name}.output.{output}
  models: [{model_id}]
"""
_PROMPT = """\
---
description: the first words that came to mind
---
Say what this message is: a question, a complaint or praise.

{{ text }}
"""
_RECORDS = """\
item_id,text
1,When does the shop open on Sunday?
2,The parcel came late and the box was broken.
3,"Thank you, that was quick!"
"""


def check_new_task(folder: Path) -> None:
    """Raise ConfigError if no task can be made of this name in this place."""
    name = check_task_name(folder.name)
    if keyword.iskeyword(name):
        raise ConfigError(f"task name {name!r}: a word of Python's own; choose another")
    if folder.exists() and any(folder.iterdir()):  # `dg scaffold` makes the folder before it asks for files
        raise ConfigError(f"{folder} is there already: choose another name, or remove it")


def write_defs_package(folder: Path) -> list[Path]:
    """Make `folder` a defs package, if it isn't one: __init__.py and the shipped models.yaml. Return what was written.

    Raises ConfigError if Python can't import a folder of this name.
    """
    if (folder / "__init__.py").exists() and (folder / "models.yaml").exists():
        return []
    if not folder.name.isidentifier() or keyword.iskeyword(folder.name):
        raise ConfigError(f"--defs {folder}: Python imports this folder: use letters, digits and _ for its name")
    if not (folder / "__init__.py").exists() and find_spec(folder.name) is not None and not folder.is_dir():
        raise ConfigError(f"--defs {folder}: Python has a package {folder.name} already; choose another name")
    texts = {"__init__.py": '"""Tasks, a folder each."""\n', "models.yaml": (SHIPPED_DEFS / "models.yaml").read_text()}
    return [_write(folder / name, text) for name, text in texts.items() if not (folder / name).exists()]


def find_package(defs: Path) -> str:
    """Return the name under which a defs folder is imported."""
    return "batch_assets.defs" if defs.resolve() == SHIPPED_DEFS else defs.name


def write_task(folder: Path, *, package: str, is_yaml: bool, module: str = "task.py") -> list[Path]:
    """Write the files of a task that is named as its folder, and return them. `package`: the defs folder's import name.
    `module`: the file that declares it in Python.

    It asks the first model of models.yaml. Raises ConfigError if the name or the place won't do.
    """
    check_new_task(folder)
    words = {
        "name": folder.name,
        "output": "".join(map(str.capitalize, folder.name.split("_"))) + "Answer",
        "model_id": next(iter(load_models(folder.parent / "models.yaml"))),
        "package": package,
    }
    words["model"] = _OUTPUT.format(**words)
    texts = {"prompts/v1.md": _PROMPT, "records/first.csv": _RECORDS}
    if is_yaml:
        texts |= {"defs.yaml": _YAML.format(**words), "output.py": _OUTPUT_MODULE.format(**words)}
    else:
        texts |= {module: _TASK.format(**words)}
    return [_write(folder / path, text) for path, text in sorted(texts.items())]


def _write(path: Path, text: str) -> Path:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as e:
        raise ConfigError(f"{path} can't be written: {e.strerror}") from e
    return path
