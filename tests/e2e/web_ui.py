"""What the web UI sends when a person clicks: GraphQL over loopback."""

import json
import time
import urllib.request
from typing import Any

REPOSITORY = {"repositoryName": "__repository__", "repositoryLocationName": "batch_assets.definitions"}
LAUNCH = """
mutation($executionParams: ExecutionParams!) {
  launchPipelineExecution(executionParams: $executionParams) {
    __typename ... on LaunchRunSuccess { run { runId } } ... on PythonError { message }
    ... on RunConfigValidationInvalid { errors { message } }
  }
}"""
BACKFILL = """
mutation($params: LaunchBackfillParams!) {
  launchPartitionBackfill(backfillParams: $params) {
    __typename ... on LaunchBackfillSuccess { backfillId } ... on PythonError { message }
  }
}"""


class WebUi:
    """A client of the webserver at a port."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}/graphql"

    def ask(self, query: str, **variables: Any) -> Any:
        data = json.dumps({"query": query, "variables": variables}).encode()
        request = urllib.request.Request(self._url, data, {"content-type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as response:
            body = json.load(response)
        assert "errors" not in body, body["errors"]
        return body["data"]

    def materialize(self, assets: list[list[str]], partition: str, config: dict[str, Any] | None = None) -> str:
        """Launch one run over one partition; return its id."""
        paths = [{"path": a} for a in assets]
        found = self.ask(
            LAUNCH,
            executionParams={
                "selector": {
                    **REPOSITORY,
                    "pipelineName": "__ASSET_JOB",
                    "assetSelection": paths,
                    "assetCheckSelection": None,
                },
                "runConfigData": config or {},
                "mode": "default",
                "executionMetadata": {
                    "tags": [{"key": "dagster/partition", "value": partition}, *split_tags(partition)]
                },
            },
        )["launchPipelineExecution"]
        assert found["__typename"] == "LaunchRunSuccess", found
        return found["run"]["runId"]

    def backfill(self, partitions: dict[tuple[str, ...], list[str]]) -> str:
        """Launch a backfill, with the partitions of each asset; return its id."""
        by_asset = [
            {"assetKey": {"path": list(a)}, "partitions": {"ranges": [{"start": p, "end": p} for p in ps]}}
            for a, ps in partitions.items()
        ]
        found = self.ask(BACKFILL, params={"partitionsByAssets": by_asset, "tags": []})["launchPartitionBackfill"]
        assert found["__typename"] == "LaunchBackfillSuccess", found
        return found["backfillId"]

    def wait_for_run(self, run_id: str, timeout_s: float = 180) -> str:
        def status() -> str:
            query = "query($id: ID!) { runOrError(runId: $id) { ... on Run { status } } }"
            return self.ask(query, id=run_id)["runOrError"]["status"]

        return self._wait(status, {"SUCCESS", "FAILURE", "CANCELED"}, timeout_s)

    def wait_for_backfill(self, backfill_id: str, timeout_s: float = 300) -> str:
        def status() -> str:
            query = """query($id: String!) {
                partitionBackfillOrError(backfillId: $id) { ... on PartitionBackfill { status } } }"""
            return self.ask(query, id=backfill_id)["partitionBackfillOrError"]["status"]

        return self._wait(status, {"COMPLETED_SUCCESS", "COMPLETED_FAILED", "CANCELED", "FAILED"}, timeout_s)

    def versions(self, asset: list[str]) -> dict[str, str]:
        """Return the data version of each materialized partition of an asset."""
        query = """query($key: AssetKeyInput!) { assetOrError(assetKey: $key) { ... on Asset {
            assetMaterializations(limit: 500) { partition tags { key value } } } } }"""
        found: dict[str, str] = {}
        for m in reversed(self.ask(query, key={"path": asset})["assetOrError"]["assetMaterializations"]):
            found[m["partition"]] = next(t["value"] for t in m["tags"] if t["key"] == "dagster/data_version")
        return found

    def check_results(self, asset: list[str], name: str) -> set[tuple[str | None, str]]:
        """Return (partition, status) of all executions of a check."""
        query = """query($key: AssetKeyInput!, $name: String!) {
            assetCheckExecutions(assetKey: $key, checkName: $name, limit: 100) { status evaluation { partition } } }"""
        found = self.ask(query, key={"path": asset}, name=name)["assetCheckExecutions"]
        return {((c["evaluation"] or {}).get("partition"), c["status"]) for c in found}

    @staticmethod
    def _wait(status: Any, ends: set[str], timeout_s: float) -> str:
        give_up_at = time.monotonic() + timeout_s
        while (found := status()) not in ends:
            assert time.monotonic() < give_up_at, f"still {found} after {timeout_s} s"
            time.sleep(0.5)
        return found


def split_tags(partition: str) -> list[dict[str, str]]:
    """Return the tags by which the UI names the dimensions of a multi-partition."""
    batch, separator, variant = partition.partition("|")
    if not separator:
        return []
    return [
        {"key": "dagster/partition/batch", "value": batch},
        {"key": "dagster/partition/variant", "value": variant},
    ]
