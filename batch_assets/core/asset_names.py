"""The names of a task's assets, in the order of the data."""

SOURCE_RECORDS = "source_records"
VARIANT_SPECS = "variant_specs"
LLM_OUTPUTS = "llm_outputs"
FALLBACK_OUTPUTS = "fallback_outputs"
VALIDATED_RESULTS = "validated_results"
QUARANTINE = "quarantine"
QA_SAMPLES = "qa_samples"
RUN_REPORTS = "run_reports"
RESULT_ASSETS = (VALIDATED_RESULTS, QUARANTINE, QA_SAMPLES, RUN_REPORTS)
"""The assets after llm_outputs, in the order of the data; each has the data version of its whole output."""
