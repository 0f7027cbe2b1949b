"""One folder per task; `models.yaml` beside them. Adding a task is adding a folder."""
