"""A browser on the web UI, doing what a person does by hand: the planner's launchpad, the dialogs, the asset's pages.

Needs Playwright and a Chromium: the one that CHROMIUM names, else the system's. Slow as the web UI is: test_web_ui.py.
"""

import os
import re
import shutil
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from web_ui import WebUi
from workplace import Workplace, find_free_port, wait_until

TASK = """
from typing import Literal

import dagster as dg
from pydantic import BaseModel

from batch_assets.dagster.llm_task import LlmTask
from batch_assets.core.tasks import Thresholds
from batch_assets.sources.files import FileSource


class Label(BaseModel):
    label: Literal["a", "b", "c"]


@dg.component_instance
def clicked(_context) -> LlmTask:
    return LlmTask(
        name="clicked",
        source=FileSource("files/*.csv", settle_s=0),
        output=Label,
        models=["good", "cut"],
        thresholds=Thresholds(max_invalid_share=0.05, min_records=4),
    )
"""
MODELS = """\
good:
  weights: none
  engine: fake
cut:
  weights: none
  engine: fake
  engine_args: {invalid_share: 1.0}
"""
PROMPT = "---\ndescription: number {n}\nsystem: Sort the text.\n---\n{{{{ text }}}}\n"
BATCHES = ("b1", "b2", "b3")
RECORDS = 8
CHROMIUMS = ("chromium", "chromium-browser", "google-chrome")
ARGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip
WAIT_MS = 60_000
OUTPUTS = "/assets/clicked/llm_outputs"


def _miss_browser(reason: str) -> None:
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    found = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, CHROMIUMS)), None)
    if found is None:
        _miss_browser(f"no Chromium: install one, or set CHROMIUM ({', '.join(CHROMIUMS)} were looked for)")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError as e:
        _miss_browser(f"no Playwright: pip install playwright ({e})")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=ARGS)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def place(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Workplace:
    place = Workplace(tmp_path_factory.mktemp("browser"))
    folder = place.defs / "clicked"
    for name in ("prompts", "files"):
        (folder / name).mkdir(parents=True)
    (place.defs / "__init__.py").write_text("")
    (place.defs / "models.yaml").write_text(MODELS)
    (folder / "__init__.py").write_text("")
    (folder / "task.py").write_text(TASK)
    for n in (1, 2):
        (folder / "prompts" / f"v{n}.md").write_text(PROMPT.format(n=n))
    for batch in BATCHES:
        rows = [f"{batch}-{i},text {i} of {batch}" for i in range(RECORDS)]
        (folder / "files" / f"{batch}.csv").write_text("\n".join(["item_id,text", *rows]) + "\n")
    return place


@pytest.fixture(scope="module")
def port(place: Workplace) -> Iterator[int]:
    port = find_free_port()
    process = place.start("up", "--port", str(port))
    ui = WebUi(port)
    query = "{ assetNodes { partitionStats { numPartitions } } }"

    def is_ready() -> bool:
        assert process.poll() is None, process.communicate()
        try:
            nodes = ui.ask(query)["assetNodes"]
        except OSError:
            return False
        return max((n["partitionStats"]["numPartitions"] for n in nodes), default=0) == len(BATCHES) * 4

    wait_until(is_ready, 120, "the web UI, with its partitions in step")
    yield port
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 0


@pytest.fixture(scope="module")
def ui(port: int) -> WebUi:
    return WebUi(port)


@pytest.fixture
def open_page(browser: Any, port: int) -> Iterator[Callable[[str], Any]]:
    """Yield what opens a page of the web UI; the page is a fresh one for each test."""
    page = browser.new_page(viewport={"width": 1500, "height": 1200})
    page.set_default_timeout(WAIT_MS)

    def open_path(path: str) -> Any:
        page.goto(f"http://127.0.0.1:{port}{path}")
        return page

    yield open_path
    page.close()


def choose(page: Any, keys: list[str]) -> None:
    """Tick keys in the dialog, in the first select that is empty."""
    dialog = page.get_by_role("dialog").filter(has_text="Launch runs to materialize").first
    dialog.get_by_text("Select a partition or create one").first.click()
    menu = dialog.get_by_role("menu").last
    for key in keys:
        menu.get_by_role("menuitem", name=key).click()
    page.keyboard.press("Escape")
    menu.wait_for(state="hidden")


def launch(page: Any, batches: list[str], variant: str, button: str) -> None:
    """Fill in the dialog of the asset's page, and launch."""
    page.get_by_role("button", name="Materialize").first.click()
    choose(page, batches)
    choose(page, [variant])  # the select of the batches shows them now, so this one is the first that is empty
    page.get_by_role("button", name=button, exact=True).click()


def find_runs(ui: WebUi, job: str, partition: str | None = None) -> list[str]:
    """Return the runs of a job, and of one partition if it is given, newest first."""
    query = "{ runsOrError(limit: 50) { ... on Runs { results { runId jobName tags { key value } } } } }"
    tag = {"key": "dagster/partition", "value": partition}
    runs = ui.ask(query)["runsOrError"]["results"]
    return [r["runId"] for r in runs if r["jobName"] == job and (partition is None or tag in r["tags"])]


def find_backfills(ui: WebUi) -> list[str]:
    query = "{ partitionBackfillsOrError { ... on PartitionBackfills { results { id } } } }"
    return [b["id"] for b in ui.ask(query)["partitionBackfillsOrError"]["results"]]


def wait_for_run_of(ui: WebUi, job: str) -> str:
    """Wait for the first run of a job, to its end."""
    wait_until(lambda: bool(find_runs(ui, job)), 120, f"a run of {job}")
    return ui.wait_for_run(find_runs(ui, job)[-1])


def test_the_planners_launchpad_launches_a_variant_whose_check_fails(open_page: Any, ui: WebUi) -> None:
    page = open_page("/locations/batch_assets.definitions/jobs/launch_missing_and_stale/playground")
    page.get_by_text("failure_budget").first.wait_for()  # the defaults are filled in
    page.locator(".CodeMirror").first.click()
    page.keyboard.press("Control+a")
    page.keyboard.insert_text("ops: {launch_missing_and_stale_op: {config: {variants: [v1--cut]}}}")
    page.get_by_text("No errors").wait_for()
    page.get_by_role("button", name="Launch Run").click()
    assert wait_for_run_of(ui, "launch_missing_and_stale") == "SUCCESS"
    assert wait_for_run_of(ui, "clicked__launch_outputs__cut") == "SUCCESS"

    page = open_page(f"{OUTPUTS}?view=checks&checkDetail=invalid_share")
    page.get_by_text("At most 5.0% of the answers are invalid").wait_for()
    page.get_by_text("Failed", exact=True).first.wait_for()
    page.get_by_text("b3|v1--cut").first.wait_for()
    assert find_row(page, "share") == "1"
    assert find_row(page, "limit") == "0.05"
    page.get_by_text("Partitions", exact=True).last.click()  # the check's own, under the asset's
    page.get_by_text("Failed (3)", exact=True).wait_for()
    page = open_page(f"{OUTPUTS}?view=partitions&partition=b2%7Cv1--cut")
    page.get_by_text("the answer was cut off at max_tokens").first.wait_for()


def test_a_backfill_and_one_partition_are_launched_by_the_dialog_and_their_figures_are_read(
    open_page: Any, ui: WebUi
) -> None:
    page = open_page(f"{OUTPUTS}?view=partitions")
    before = read_count(page)
    launch(page, ["b2", "b3"], "v2--good", "Launch backfill")
    wait_until(lambda: bool(find_backfills(ui)), 60, "the backfill")
    (backfill,) = find_backfills(ui)

    # The daemon looks for backfills every half minute; meanwhile the single one is made.
    page = open_page(f"{OUTPUTS}?view=partitions")
    launch(page, ["b1"], "v1--good", "Launch 1 run")
    wait_until(lambda: bool(find_runs(ui, "__ASSET_JOB", "b1|v1--good")), 60, "the run")
    assert ui.wait_for_run(find_runs(ui, "__ASSET_JOB", "b1|v1--good")[0]) == "SUCCESS"
    page = open_page(f"{OUTPUTS}?view=partitions&partition=b1%7Cv1--good")
    assert find_row(page, "summary") == f"{RECORDS} sent, 0 already done, 0 reused"
    assert find_row(page, "records") == str(RECORDS)
    assert find_row(page, "error_share") == "0"

    wait_until(
        lambda: {"b2|v2--good", "b3|v2--good"} <= set(ui.versions(["clicked", "llm_outputs"])), 150, "its partitions"
    )
    page = open_page(f"{OUTPUTS}?view=partitions&partition=b3%7Cv2--good")
    assert find_row(page, "summary") == f"{RECORDS} sent, 0 already done, 0 reused"
    assert read_count(page) == before + 3
    page = open_page(f"/runs/b/{backfill}")
    page.get_by_text("llm_outputs").first.wait_for()


def find_row(page: Any, key: str) -> str:
    """Return the value beside a key in a page's table of metadata."""
    row = page.get_by_role("row").filter(has=page.get_by_role("cell", name=key, exact=True)).first
    row.wait_for()
    return row.get_by_role("cell").nth(1).inner_text().strip()


def read_count(page: Any) -> int:
    """Return how many partitions the asset's page shows as materialized."""
    counter = page.get_by_text(re.compile(r"^Materialized \(\d+\)$"))
    return int(re.sub(r"\D", "", counter.inner_text()))
