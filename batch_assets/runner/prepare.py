"""What a record needs: nothing, a new judgement of a stored answer, an answer that is there already, or a request."""

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from jinja2 import TemplateError

from batch_assets.core.acceptance import Verdict, accept
from batch_assets.core.attempts import (
    QUARANTINE_DEATHS_ALONE,
    SUSPECT_DEATHS,
    ErrorKind,
    RetryMode,
    Status,
)
from batch_assets.core.identity import request_key
from batch_assets.core.records import Record, input_hash, is_blank
from batch_assets.core.requests import Request
from batch_assets.runner.work import Ask, OpenPartition, PartitionWork, Tally
from batch_assets.store.database import Database, now
from batch_assets.store.results import (
    PastAttempt,
    Result,
    RowState,
    find_answers,
    load_attempts,
    load_foreign,
    load_history,
    load_states,
)

PERMANENT = frozenset({ErrorKind.CONTEXT_LENGTH, ErrorKind.BAD_REQUEST, ErrorKind.KILLS_ENGINE})
"""Failures that the same request meets again: an earlier one stands, as an earlier answer does."""


@dataclass(slots=True, kw_only=True)
class Prepared:
    """A chunk of records, sorted by what they need."""

    tally: Tally = field(default_factory=Tally)
    results: list[Result] = field(default_factory=list[Result])
    asks: list[Ask] = field(default_factory=list[Ask])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Candidate:
    """A record that has no valid row. `is_retry`: the row stands, and the operator wants it asked again."""

    record: Record
    hash: str
    request: Request
    is_retry: bool


class Preparer:
    """Sorts chunks of records. Reads the store, writes nothing."""

    def __init__(self, database: Database, run_id: str, retry: RetryMode) -> None:
        self._database = database
        self._run_id = run_id
        self._retry = retry

    def prepare(self, partition: OpenPartition, records: Sequence[Record]) -> Prepared:
        """Sort one chunk and count it."""
        work = partition.work
        prepared = Prepared()
        with self._database.read() as connection:
            ids = [r.item_id for r in records]
            foreign = load_foreign(connection, work.task.name, work.batch, ids)
            states = load_states(connection, work.key, ids)
            prepared.tally.superseded += len(foreign)
            candidates: list[_Candidate] = []
            rejudged: list[tuple[str, RowState]] = []
            for record in records:
                if record.item_id in foreign:
                    continue
                state = states.get(record.item_id)
                found = input_hash(record, work.variant.prompt.fields)
                if state and state.input_hash == found and state.request_spec == work.spec.request_spec:
                    if not self._retry.selects(state.status):
                        prepared.tally.already_done += 1
                        if state.accept_spec != work.spec.accept_spec:
                            rejudged.append((record.item_id, state))
                        continue
                    is_retry = True
                else:
                    is_retry = False
                candidate = self._render(work, record, found, is_retry, prepared)
                if candidate:
                    candidates.append(candidate)
            history = load_history(connection, work.key, [c.record.item_id for c in candidates])
            keys = [] if self._retry is RetryMode.ALL else [c.request.request_key for c in candidates]
            answers = find_answers(connection, keys)
            past = load_attempts(connection, [s.attempt_id for _, s in rejudged if s.attempt_id])
        prepared.results += [self._judge_again(work, item_id, state, past) for item_id, state in rejudged]
        prepared.tally.rejudged += len(rejudged)
        for candidate in candidates:
            own = history.get(candidate.record.item_id, [])
            self._settle(partition, candidate, own, answers.get(candidate.request.request_key), prepared)
        return prepared

    def _render(
        self, work: PartitionWork, record: Record, found: str, is_retry: bool, prepared: Prepared
    ) -> _Candidate | None:
        """Render a record, or give it its row where there is nothing to ask."""
        prompt = work.variant.prompt
        required = [f for f in work.task.required_fields if f in prompt.fields]
        if any(is_blank(record, [f]) for f in required) or is_blank(record, prompt.fields):
            words = f"nothing to ask: {', '.join(required or prompt.fields)} is empty"
            prepared.results.append(self.error(work, record.item_id, found, ErrorKind.EMPTY_INPUT, words))
            return None
        try:
            messages = prompt.render(record)
        except TemplateError as e:
            words = f"{prompt.path.name} can't be rendered: {e}"
            prepared.results.append(self.error(work, record.item_id, found, ErrorKind.RENDER, words))
            return None
        request = Request(
            request_key=request_key(messages, work.spec),
            messages=messages,
            schema=work.task.output_schema,
            sampling=work.variant.model.sampling,
        )
        return _Candidate(record=record, hash=found, request=request, is_retry=is_retry)

    def _settle(
        self,
        partition: OpenPartition,
        candidate: _Candidate,
        history: Sequence[PastAttempt],
        answer: PastAttempt | None,
        prepared: Prepared,
    ) -> None:
        """Take an earlier answer where one stands, else ask; a record that dies alone again and again is not asked."""
        work, key = partition.work, candidate.request.request_key
        own = [a for a in history if a.request_key == key]
        earlier = None if candidate.is_retry else _find_standing(own)
        result: Result | None = None
        if earlier is not None:
            result = self._reuse(work, candidate, earlier, attempts=len(own))
        elif answer is not None and self._retry is not RetryMode.ALL:
            reused = self._reuse(work, candidate, answer, attempts=0)
            result = reused if reused.status is Status.OK else None
        if result is not None:
            prepared.tally.reused += 1
            prepared.results.append(result)
            return
        deaths = [a for a in own if not a.is_ended]
        if not candidate.is_retry and sum(a.is_alone for a in deaths) >= QUARANTINE_DEATHS_ALONE:
            words = f"the engine died {len(deaths)} times with this record in flight, the last times with it alone"
            prepared.results.append(
                self.error(
                    work, candidate.record.item_id, candidate.hash, ErrorKind.KILLS_ENGINE, words,
                    request_key=key, attempts=len(own), attempt_id=own[-1].attempt_id,
                )
            )  # fmt: skip
            return
        prepared.asks.append(
            Ask(
                partition=partition,
                item_id=candidate.record.item_id,
                input_hash=candidate.hash,
                request=candidate.request,
                attempts_before=len(own),
                is_suspect=len(deaths) >= SUSPECT_DEATHS,
            )
        )

    def _reuse(self, work: PartitionWork, candidate: _Candidate, past: PastAttempt, attempts: int) -> Result:
        return self.row(
            work,
            candidate.record.item_id,
            candidate.hash,
            judge(past, work),
            request_key=past.request_key,
            attempts=attempts,
            attempt_id=past.attempt_id,
            reused_from=past.attempt_id,
        )

    def _judge_again(
        self, work: PartitionWork, item_id: str, state: RowState, past: Mapping[str, PastAttempt]
    ) -> Result:
        """Judge a row's stored completion under the present rules; where there is no answer, its error stands."""
        attempt = past.get(state.attempt_id or "")
        if attempt is not None and attempt.completion is not None:
            verdict = accept(attempt.completion, work.task)
        else:
            verdict = Verdict(status=state.status, error_kind=state.error_kind, error=state.error)
        return self.row(
            work,
            item_id,
            state.input_hash,
            verdict,
            request_key=state.request_key,
            attempts=state.attempts,
            attempt_id=state.attempt_id,
            reused_from=state.reused_from,
        )

    def error(
        self,
        work: PartitionWork,
        item_id: str,
        found: str,
        kind: ErrorKind,
        words: str,
        *,
        request_key: str | None = None,
        attempts: int = 0,
        attempt_id: str | None = None,
    ) -> Result:
        """Return the row of a record that has no answer."""
        verdict = Verdict(status=Status.ERROR, error_kind=kind, error=words[:500])
        return self.row(
            work, item_id, found, verdict, request_key=request_key, attempts=attempts, attempt_id=attempt_id
        )

    def row(
        self,
        work: PartitionWork,
        item_id: str,
        found: str,
        verdict: Verdict,
        *,
        request_key: str | None,
        attempts: int,
        attempt_id: str | None,
        reused_from: str | None = None,
        at: dt.datetime | None = None,
    ) -> Result:
        """Return the row that a verdict makes."""
        return Result(
            key=work.key,
            item_id=item_id,
            batch=work.batch,
            status=verdict.status,
            payload=verdict.payload,
            error_kind=verdict.error_kind,
            error=verdict.error,
            attempts=attempts,
            input_hash=found,
            request_spec=work.spec.request_spec,
            accept_spec=work.spec.accept_spec,
            request_key=request_key,
            attempt_id=attempt_id,
            reused_from=reused_from,
            run_id=self._run_id,
            updated_at=at or now(),
        )


def judge(past: PastAttempt, work: PartitionWork) -> Verdict:
    """Return the verdict on a stored attempt: its completion judged by the present rules, or its permanent failure."""
    if past.completion is not None:
        return accept(past.completion, work.task)
    return Verdict(status=Status.ERROR, error_kind=past.error_kind, error=past.error)


def _find_standing(own: Sequence[PastAttempt]) -> PastAttempt | None:
    """Return a record's own last attempt at the same request, if it ended in an answer or a permanent failure."""
    ended = [a for a in own if a.is_ended and (a.completion is not None or a.error_kind in PERMANENT)]
    return ended[-1] if ended else None
