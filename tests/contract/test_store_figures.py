"""The raw figures of a partition: sums over its rows and attempts."""

from dataclasses import replace

from factories import KEY, make_claim, make_completion, make_ending, make_result, write_rows

from batch_assets.core.attempts import ErrorKind, Status
from batch_assets.core.completions import Usage
from batch_assets.store.database import Database
from batch_assets.store.figures import load_failures, load_figures


def test_a_partition_without_rows_has_zeroes(database: Database) -> None:
    with database.read() as connection:
        raw = load_figures(connection, KEY, "b1")
        assert load_failures(connection, KEY, "b1", 5) == []
    assert (raw.ok, raw.attempts, raw.asked_records, raw.prompt_tokens, raw.engine_s) == (0, 0, 0, 0, 0.0)
    assert list(raw.latencies_s) == []


def test_tokens_of_every_attempt_are_summed_and_unknown_ones_are_counted_apart(database: Database) -> None:
    claims = [make_claim("1", attempt=1), make_claim("1", attempt=2), make_claim("2"), make_claim("3"), make_claim("4")]
    write_rows(database, claims=claims)
    usage = Usage(prompt_tokens=10, completion_tokens=3, cached_tokens=4)
    write_rows(
        database,
        endings=[
            make_ending(claims[0], "error", error_kind=ErrorKind.TIMEOUT, engine_s=0.5),
            make_ending(claims[1], completion=make_completion(usage=usage), engine_s=0.25),
            make_ending(claims[2], "invalid", completion=make_completion(usage=usage), engine_s=0.25),
            make_ending(claims[3], completion=make_completion(usage=Usage()), engine_s=1.0),
        ],
        rows=[
            make_result("1", request_key="k1"),
            make_result("2", Status.INVALID, request_key="k2"),
            make_result("3", request_key="k3", reused_from="x"),
            make_result("4", Status.ERROR, request_key="k4"),
        ],
    )
    with database.read() as connection:
        raw = load_figures(connection, KEY, "b1")
    assert (raw.ok, raw.invalid, raw.error, raw.reused) == (2, 1, 1, 1)
    assert (raw.attempts, raw.asked_records, raw.unknown_usage) == (5, 4, 2)
    assert (raw.prompt_tokens, raw.completion_tokens, raw.cached_tokens) == (20, 6, 8)
    assert (raw.engine_s, len(raw.latencies_s)) == (2.0, 3)
    assert raw.error_kinds == {"schema": 1, "timeout": 1}


def test_other_partitions_are_not_in_the_sums(database: Database) -> None:
    others = [
        make_claim("1", batch="b2"),
        make_claim("1", key=replace(KEY, prompt_ver="v2")),
        make_claim("1", key=replace(KEY, task="t2")),
    ]
    rows = [make_result("1", key=c.key, batch=c.batch, request_key=c.request_key) for c in others]
    write_rows(database, claims=others, rows=rows)
    write_rows(database, endings=[make_ending(c) for c in others])
    with database.read() as connection:
        raw = load_figures(connection, KEY, "b1")
    assert (raw.ok, raw.attempts, raw.prompt_tokens) == (0, 0, 0)


def test_the_first_failures_are_told_in_the_order_of_their_ids(database: Database) -> None:
    rows = [make_result(i, Status.ERROR if i == "3" else Status.INVALID, error=f"why {i}") for i in "321"]
    write_rows(database, rows=[*rows, make_result("0")])
    with database.read() as connection:
        assert load_failures(connection, KEY, "b1", 2) == [
            ("1", "invalid", "schema", "why 1"),
            ("2", "invalid", "schema", "why 2"),
        ]


def test_attempts_at_an_earlier_prompt_or_text_are_not_in_the_sums(database: Database) -> None:
    claims = [make_claim("1", request_key="before"), make_claim("1", request_key="now")]
    write_rows(database, claims=claims)
    rows = [make_result("1", request_key="now"), make_result("2", Status.ERROR, request_key=None)]
    write_rows(database, endings=[make_ending(c, engine_s=0.5) for c in claims], rows=rows)
    with database.read() as connection:
        raw = load_figures(connection, KEY, "b1")
    assert (raw.attempts, raw.asked_records, raw.prompt_tokens, raw.engine_s) == (1, 1, 10, 0.5)
