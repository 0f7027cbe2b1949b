"""Plain Python: what a record, prompt, request, completion and answer are. No Dagster, SQL, frames, engines or HTTP."""
