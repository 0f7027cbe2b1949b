"""Where LlmTask was imported from before version 0.2, kept for task folders that do; it is dagster.llm_task's."""

from batch_assets.dagster.llm_task import LlmTask

__all__ = ["LlmTask"]
