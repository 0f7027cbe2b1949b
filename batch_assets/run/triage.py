"""What a record needs: nothing, a new judgement of a stored answer, an answer that is there already, or a request."""

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import sqlalchemy as sa
from jinja2 import TemplateError

from batch_assets.core.acceptance import Verdict, accept
from batch_assets.core.attempts import (
    QUARANTINE_DEATHS_ALONE,
    SUSPECT_DEATHS,
    ErrorKind,
    RetryMode,
    Status,
)
from batch_assets.core.classification import RecordNeed, RowState, classify, is_outdated
from batch_assets.core.identity import request_key
from batch_assets.core.records import Record, input_hash, is_blank
from batch_assets.core.requests import Request
from batch_assets.run.attempt_history import ResumePoint, find_deaths, find_resume_point, judge
from batch_assets.run.partition_run import Ask, OpenPartition, PartitionInputs, Tally
from batch_assets.store.database import Database, now
from batch_assets.store.results import (
    PastAttempt,
    Result,
    find_answers,
    load_attempts,
    load_foreign,
    load_history,
    load_states,
)


@dataclass(slots=True, kw_only=True)
class Triaged:
    """A chunk of records, sorted by what they need."""

    tally: Tally = field(default_factory=Tally)
    results: list[Result] = field(default_factory=list[Result])
    asks: list[Ask] = field(default_factory=list[Ask])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Known:
    """A record of this batch, what it needs, and its row if that is of the same record, prompt and model."""

    record: Record
    hash: str
    need: RecordNeed
    state: RowState | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Candidate:
    """A record that has no valid row. `is_retry`: the row stands, and the operator wants it asked again."""

    record: Record
    hash: str
    request: Request
    is_retry: bool


class Triage:
    """Sorts chunks of records. Reads the store, writes nothing."""

    def __init__(self, database: Database, run_id: str, retry: RetryMode) -> None:
        self._database = database
        self._run_id = run_id
        self._retry = retry

    def sort(self, partition: OpenPartition, records: Sequence[Record]) -> Triaged:
        """Sort one chunk and count it."""
        inputs = partition.inputs
        triaged = Triaged()
        with self._database.read() as connection:
            known = self._look_up(connection, inputs, records, triaged)
            outdated = {k.record.item_id: k.state for k in known if k.state and _is_outdated(inputs, k.state)}
            past = load_attempts(connection, [s.attempt_id for s in outdated.values() if s.attempt_id])
            refused = [i for i, s in outdated.items() if s.status is Status.INVALID and s.attempts > 1]
            steps = load_history(connection, inputs.key, refused)
            candidates = [c for k in known if (c := self._sort(inputs, k, past, steps, triaged)) is not None]
            history = load_history(connection, inputs.key, [c.record.item_id for c in candidates])
            answers = self._find_answers(connection, [c.request.request_key for c in candidates])
        for candidate in candidates:
            own = history.get(candidate.record.item_id, [])
            self._settle(partition, candidate, own, answers.get(candidate.request.request_key), triaged)
        return triaged

    def find_step_answers(self, asks: Sequence[Ask]) -> dict[str, tuple[Verdict, str]]:
        """Return the accepted answers that there are to asks' present requests, with their attempts, by request key."""
        with self._database.read() as connection:
            past = self._find_answers(connection, [a.request.request_key for a in asks])
        all_inputs = {a.request.request_key: a.partition.inputs for a in asks}
        judged = {key: (judge(attempt, all_inputs[key]), attempt.attempt_id) for key, attempt in past.items()}
        return {key: found for key, found in judged.items() if found[0].status is Status.OK}

    def _find_answers(self, connection: sa.Connection, keys: Sequence[str]) -> dict[str, PastAttempt]:
        """Return earlier answers. Asked anew means without earlier runs' ones; in one run, equals are asked once."""
        return find_answers(connection, keys, self._run_id if self._retry is RetryMode.ALL else None)

    def _look_up(
        self, connection: sa.Connection, inputs: PartitionInputs, records: Sequence[Record], triaged: Triaged
    ) -> list[_Known]:
        ids = [r.item_id for r in records]
        foreign = load_foreign(connection, inputs.task.name, inputs.batch, ids)
        states = load_states(connection, inputs.key, ids)
        triaged.tally.superseded += len(foreign)
        known: list[_Known] = []
        for record in records:
            if record.item_id in foreign:
                continue
            found = input_hash(record, inputs.variant.prompt.fields)
            state = states.get(record.item_id)
            is_fallback = inputs.fallback_for is not None
            need = classify(found, state, inputs.spec, self._retry, is_fallback=is_fallback)
            is_same = need not in (RecordNeed.MISSING, RecordNeed.STALE)
            known.append(_Known(record=record, hash=found, need=need, state=state if is_same else None))
        return known

    def _sort(
        self,
        inputs: PartitionInputs,
        known: _Known,
        past: Mapping[str, PastAttempt],
        steps: Mapping[str, Sequence[PastAttempt]],
        triaged: Triaged,
    ) -> _Candidate | None:
        """Return what is to be asked; else the row stands, or is judged again where the rules have changed.

        What the operator wants asked again is judged again first: an answer that is acceptable now costs no request.
        """
        state = known.state
        if state is None:
            return self._render(inputs, known, triaged, is_retry=False)
        is_asked = known.need is RecordNeed.RETRY
        if _is_outdated(inputs, state):
            if (state.error_kind is ErrorKind.EMPTY_INPUT) != bool(_find_blank(inputs, known.record)):
                return self._render(inputs, known, triaged, is_retry=False)  # required_fields changed
            result = self._judge_again(inputs, known.record.item_id, state, past, steps.get(known.record.item_id, ()))
            if result is None:
                return self._render(inputs, known, triaged, is_retry=False)
            is_asked = is_asked and self._retry.selects(result.status, result.error_kind)
            if not is_asked or result.status is Status.OK:  # an `ok` is kept, whatever a new answer is like
                triaged.tally.rejudged += 1
                triaged.results.append(result)
        if is_asked:
            return self._render(inputs, known, triaged, is_retry=True)
        triaged.tally.already_done += 1
        return None

    def _render(self, inputs: PartitionInputs, known: _Known, triaged: Triaged, *, is_retry: bool) -> _Candidate | None:
        """Render a record, or give it its row where there is nothing to ask."""
        prompt, record, found = inputs.variant.prompt, known.record, known.hash
        blank = _find_blank(inputs, record)
        if blank:
            words = f"nothing to ask: {', '.join(blank)} is empty"
            triaged.results.append(self.error(inputs, record.item_id, found, ErrorKind.EMPTY_INPUT, words))
            return None
        try:
            messages = prompt.render(record)
        except TemplateError as e:
            words = f"{prompt.path.name} can't be rendered: {e}"
            triaged.results.append(self.error(inputs, record.item_id, found, ErrorKind.RENDER, words))
            return None
        request = Request(
            request_key=request_key(messages, inputs.spec),
            messages=messages,
            schema=inputs.task.output_schema,
            sampling=inputs.variant.model.sampling,
        )
        return _Candidate(record=record, hash=found, request=request, is_retry=is_retry)

    def _settle(
        self,
        partition: OpenPartition,
        candidate: _Candidate,
        history: Sequence[PastAttempt],
        answer: PastAttempt | None,
        triaged: Triaged,
    ) -> None:
        """Take an earlier answer where one stands, else ask; a record that dies alone again and again is not asked.

        What is asked is the step of the ladder that comes after the record's own earlier answers.
        """
        inputs, key = partition.inputs, candidate.request.request_key
        own = [a for a in history if a.base_key == key]
        resume_point = (
            ResumePoint(request=candidate.request)
            if candidate.is_retry
            else find_resume_point(inputs, candidate.request, own)
        )
        result = self._find_result(inputs, candidate, resume_point, answer, len(own))
        if result is not None:
            triaged.tally.reused += 1
            triaged.results.append(result)
            return
        deaths = find_deaths(own)
        if not candidate.is_retry and sum(a.is_alone for a in deaths) >= QUARANTINE_DEATHS_ALONE:
            words = f"the engine died {len(deaths)} times with this record in flight, the last times with it alone"
            triaged.results.append(
                self.error(
                    inputs, candidate.record.item_id, candidate.hash, ErrorKind.KILLS_ENGINE, words,
                    request_key=key, attempts=len(own), attempt_id=deaths[-1].attempt_id,
                )
            )  # fmt: skip
            return
        triaged.asks.append(
            Ask(
                partition=partition,
                item_id=candidate.record.item_id,
                input_hash=candidate.hash,
                base=candidate.request,
                request=resume_point.request,
                refused=resume_point.refused,
                refused_attempt_id=resume_point.last.attempt_id if resume_point.last else "",
                attempts_before=len(own),
                is_suspect=len(deaths) >= SUSPECT_DEATHS,
            )
        )

    def _find_result(
        self,
        inputs: PartitionInputs,
        candidate: _Candidate,
        resume_point: ResumePoint,
        answer: PastAttempt | None,
        attempts: int,
    ) -> Result | None:
        """Return the row that earlier attempts give: where its own ended for good, or anyone's answer if it is `ok`."""
        result = None
        if resume_point.verdict is not None and resume_point.last is not None:
            result = self._reuse(inputs, candidate, resume_point.last, resume_point.verdict, attempts)
        if answer is not None and (result is None or result.status is not Status.OK):
            reused = self._reuse(inputs, candidate, answer, judge(answer, inputs), attempts)
            result = reused if reused.status is Status.OK else result
        return result

    def _reuse(
        self, inputs: PartitionInputs, candidate: _Candidate, past: PastAttempt, verdict: Verdict, attempts: int
    ) -> Result:
        return self.row(
            inputs,
            candidate.record.item_id,
            candidate.hash,
            verdict,
            request_key=candidate.request.request_key,
            attempts=attempts,
            attempt_id=past.attempt_id,
            ladder_step=past.ladder_step if past.item_id == candidate.record.item_id else 0,
            reused_from=past.attempt_id,
        )

    def _judge_again(
        self,
        inputs: PartitionInputs,
        item_id: str,
        state: RowState,
        past: Mapping[str, PastAttempt],
        steps: Sequence[PastAttempt],
    ) -> Result | None:
        """Judge a row's stored completion under the present rules; an error without one stands.

        Where it is refused, that of another step of the ladder may be accepted now: the first such is taken. None where
        the completion of an answer is gone: that must not pass as judged.
        """
        attempt = past.get(state.attempt_id or "")
        if attempt is not None and attempt.completion is not None:
            verdict = accept(attempt.completion, inputs.task)
            for other in steps if verdict.status is not Status.OK else ():
                if other.base_key != state.request_key or other.completion is None:
                    continue
                found = accept(other.completion, inputs.task)
                if found.status is Status.OK:
                    verdict = found
                    state = replace(
                        state, attempt_id=other.attempt_id, ladder_step=other.ladder_step, reused_from=None
                    )  # fmt: skip
                    break
        elif state.status is Status.ERROR:
            verdict = Verdict(status=state.status, error_kind=state.error_kind, error=state.error)
        else:
            return None
        return self.row(
            inputs,
            item_id,
            state.input_hash,
            verdict,
            request_key=state.request_key,
            attempts=state.attempts,
            attempt_id=state.attempt_id,
            ladder_step=state.ladder_step,
            reused_from=state.reused_from,
        )

    def error(
        self,
        inputs: PartitionInputs,
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
            inputs, item_id, found, verdict, request_key=request_key, attempts=attempts, attempt_id=attempt_id
        )

    def row(
        self,
        inputs: PartitionInputs,
        item_id: str,
        found: str,
        verdict: Verdict,
        *,
        request_key: str | None,
        attempts: int,
        attempt_id: str | None,
        ladder_step: int = 0,
        reused_from: str | None = None,
        at: dt.datetime | None = None,
    ) -> Result:
        """Return the row that a verdict makes."""
        return Result(
            key=inputs.key,
            item_id=item_id,
            batch=inputs.batch,
            status=verdict.status,
            payload=verdict.payload,
            error_kind=verdict.error_kind,
            error=verdict.error,
            attempts=attempts,
            input_hash=found,
            request_spec=inputs.spec.request_spec,
            accept_spec=inputs.spec.accept_spec,
            request_key=request_key,
            attempt_id=attempt_id,
            ladder_step=ladder_step,
            is_fallback=inputs.fallback_for is not None,
            owner=inputs.owner.key,
            reused_from=reused_from,
            run_id=self._run_id,
            updated_at=at or now(),
        )


def _is_outdated(inputs: PartitionInputs, state: RowState) -> bool:
    return is_outdated(state, inputs.spec, is_fallback=inputs.fallback_for is not None)


def _find_blank(inputs: PartitionInputs, record: Record) -> Sequence[str]:
    """Return the fields for whose emptiness there is nothing to ask; none where there is something."""
    fields = inputs.variant.prompt.fields
    missing = [f for f in inputs.task.required_fields if f in fields and is_blank(record, [f])]
    return missing or (fields if is_blank(record, fields) else ())
