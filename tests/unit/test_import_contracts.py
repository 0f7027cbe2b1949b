"""The contracts of imports name every part of the package: a new one can't slip past them."""

import tomllib
from pathlib import Path

import pytest

import batch_assets

PACKAGE = Path(batch_assets.__file__).parent
PARTS = {f"batch_assets.{p.stem}" for p in PACKAGE.iterdir() if p.suffix == ".py" or (p / "__init__.py").exists()}
CONTRACTS = tomllib.loads((PACKAGE.parent / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]


@pytest.mark.parametrize(
    ("forbidden", "allowed"),
    [
        ("sqlalchemy", {"store", "sources"}),
        ("dagster", {"dagster", "cli", "defs", "definitions", "components"}),
    ],
)
def test_a_contract_holds_for_all_parts_but_those_that_it_names(forbidden: str, allowed: set[str]) -> None:
    (contract,) = [c for c in CONTRACTS if c.get("allow_indirect_imports") and forbidden in c["forbidden_modules"]]
    free = {f"batch_assets.{name}" for name in allowed}
    assert set(contract["source_modules"]) == PARTS - free - {"batch_assets.__init__"}
