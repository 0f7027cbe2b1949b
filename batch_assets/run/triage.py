"""Decides what a record needs: nothing, a new judgement of a stored answer, an answer that exists, or a request."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from jinja2 import TemplateError

from batch_assets.core.acceptance import Verdict
from batch_assets.core.attempts import (
    QUARANTINE_DEATHS_ALONE,
    SUSPECT_DEATHS,
    ErrorKind,
    RetryMode,
    Status,
)
from batch_assets.core.classification import RecordNeed, RowState, classify, is_outdated
from batch_assets.core.identity import request_key
from batch_assets.core.prompts import Message
from batch_assets.core.records import Record, input_hash, is_blank
from batch_assets.core.requests import Request
from batch_assets.run.attempt_history import ResumePoint, find_deaths, find_resume_point, judge, judge_again
from batch_assets.run.partition_run import Ask, OpenPartition, PartitionInputs, Tally
from batch_assets.run.result_rows import build_error_row, build_row
from batch_assets.store.database import Database
from batch_assets.store.known_records import KnownRecords, read_known_records
from batch_assets.store.results import PastAttempt, Result


@dataclass(slots=True, kw_only=True)
class Triaged:
    """A chunk of records, sorted by what they need."""

    tally: Tally = field(default_factory=Tally)
    results: list[Result] = field(default_factory=list[Result])
    asks: list[Ask] = field(default_factory=list[Ask])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Known:
    """A record that this batch owns, what it needs, and its row if that is of the same record, prompt and model."""

    record: Record
    hash: str
    need: RecordNeed
    state: RowState | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Candidate:
    """A record that may have to be asked. `is_retry`: it has a valid row, and the operator wants it asked again."""

    record: Record
    hash: str
    request: Request
    is_retry: bool
    request_before: Request | None = None
    """The request as version 0.1 rendered it, if it did so in another way."""

    @property
    def keys(self) -> list[str]:
        """The request keys under which an answer to it may be found."""
        return [r.request_key for r in (self.request, self.request_before) if r is not None]


class Triage:
    """Sorts chunks of records. It reads the store and writes nothing."""

    def __init__(self, database: Database, run_id: str, retry: RetryMode) -> None:
        self._database = database
        self._run_id = run_id
        self._retry = retry

    def sort(self, partition: OpenPartition, records: Sequence[Record]) -> Triaged:
        """Sort one chunk and count it."""
        inputs = partition.inputs
        triaged = Triaged()
        with read_known_records(self._database) as store:
            known = self._look_up(store, inputs, records, triaged)
            outdated = {k.record.item_id: k.state for k in known if k.state and _is_outdated(inputs, k.state)}
            past = store.load_attempts([s.attempt_id for s in outdated.values() if s.attempt_id])
            refused = [i for i, s in outdated.items() if s.status is Status.INVALID and s.attempts > 1]
            steps = store.load_history(inputs.key, refused)
            candidates = [c for k in known if (c := self._sort(inputs, k, past, steps, triaged)) is not None]
            history = store.load_history(inputs.key, [c.record.item_id for c in candidates])
            candidates = [_choose_base(c, history.get(c.record.item_id, ())) for c in candidates]
            answers = self._find_answers(store, [key for c in candidates for key in c.keys])
        for candidate in candidates:
            own = history.get(candidate.record.item_id, [])
            answer = next((answers[key] for key in candidate.keys if key in answers), None)
            self._reuse_or_ask(partition, candidate, own, answer, triaged)
        return triaged

    def find_step_answers(self, asks: Sequence[Ask]) -> dict[str, tuple[Verdict, str]]:
        """Return stored answers to the present requests of `asks` that are accepted now.

        By request key: the verdict and the id of the attempt that answered. Keys without one are absent.
        """
        with read_known_records(self._database) as store:
            past = self._find_answers(store, [a.request.request_key for a in asks])
        all_inputs = {a.request.request_key: a.partition.inputs for a in asks}
        judged = {key: (judge(attempt, all_inputs[key]), attempt.attempt_id) for key, attempt in past.items()}
        return {key: found for key, found in judged.items() if found[0].status is Status.OK}

    def _find_answers(self, store: KnownRecords, keys: Sequence[str]) -> dict[str, PastAttempt]:
        """Return earlier answers. If all is asked anew, only this run's own count: it asks equal requests once."""
        return store.find_answers(keys, self._run_id if self._retry is RetryMode.ALL else None)

    def _look_up(
        self, store: KnownRecords, inputs: PartitionInputs, records: Sequence[Record], triaged: Triaged
    ) -> list[_Known]:
        """Classify the records that this batch owns; count the others as superseded."""
        ids = [r.item_id for r in records]
        foreign = store.load_superseded(inputs.task.name, inputs.batch, ids)
        states = store.load_states(inputs.key, ids)
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
        """Return the record as a candidate if it may have to be asked; else count it or give it its row.

        A row that other rules judged is judged again first, even if the operator wants it asked again: an answer that
        is acceptable now costs no request.
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
        """Render a record's request; if there is nothing to ask, give the record its row instead."""
        prompt, record, found = inputs.variant.prompt, known.record, known.hash
        blank = _find_blank(inputs, record)
        if blank:
            words = f"nothing to ask: {', '.join(blank)} is empty"
            triaged.results.append(
                build_error_row(inputs, record.item_id, found, ErrorKind.EMPTY_INPUT, words, run_id=self._run_id)
            )
            return None
        try:
            messages = prompt.render(record)
        except TemplateError as e:
            words = f"{prompt.path.name} can't be rendered: {e}"
            triaged.results.append(
                build_error_row(inputs, record.item_id, found, ErrorKind.RENDER, words, run_id=self._run_id)
            )
            return None
        before = prompt.render_as_before(record)
        return _Candidate(
            record=record,
            hash=found,
            request=_build_request(inputs, messages),
            request_before=_build_request(inputs, before) if before else None,
            is_retry=is_retry,
        )

    def _reuse_or_ask(
        self,
        partition: OpenPartition,
        candidate: _Candidate,
        history: Sequence[PastAttempt],
        answer: PastAttempt | None,
        triaged: Triaged,
    ) -> None:
        """Take an earlier answer if there is one, else ask. A record that keeps killing the engine is not asked.

        The request is that of the ladder's step after the record's own earlier answers.
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
                build_error_row(
                    inputs, candidate.record.item_id, candidate.hash, ErrorKind.KILLS_ENGINE, words,
                    run_id=self._run_id, request_key=key, attempts=len(own), attempt_id=deaths[-1].attempt_id,
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
        """Return the row that earlier attempts give, or None.

        The record's own attempts give one if they ended for good. Anyone's answer gives one if it is `ok`, and is
        preferred to an own row that isn't.
        """
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
        return build_row(
            inputs,
            candidate.record.item_id,
            candidate.hash,
            verdict,
            run_id=self._run_id,
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
        """Return the row under the present rules, or None if the stored answer is gone."""
        found = judge_again(inputs, state, past.get(state.attempt_id or ""), steps)
        if found is None:
            return None
        verdict, state = found
        return build_row(
            inputs,
            item_id,
            state.input_hash,
            verdict,
            run_id=self._run_id,
            request_key=state.request_key,
            attempts=state.attempts,
            attempt_id=state.attempt_id,
            ladder_step=state.ladder_step,
            reused_from=state.reused_from,
        )


def _build_request(inputs: PartitionInputs, messages: tuple[Message, ...]) -> Request:
    return Request(
        request_key=request_key(messages, inputs.spec),
        messages=messages,
        schema=inputs.task.output_schema,
        sampling=inputs.variant.model.sampling,
    )


def _choose_base(candidate: _Candidate, history: Sequence[PastAttempt]) -> _Candidate:
    """Return the candidate with the request that its record goes on with.

    A record that version 0.1 has asked, in its way of writing the prompt, goes on in that way: its attempts count.
    """
    before = candidate.request_before
    asked = {a.base_key for a in history}
    if before is None or candidate.is_retry or candidate.request.request_key in asked:
        return candidate
    return replace(candidate, request=before) if before.request_key in asked else candidate


def _is_outdated(inputs: PartitionInputs, state: RowState) -> bool:
    return is_outdated(state, inputs.spec, is_fallback=inputs.fallback_for is not None)


def _find_blank(inputs: PartitionInputs, record: Record) -> Sequence[str]:
    """Return the fields whose emptiness leaves nothing to ask; empty if there is something to ask."""
    fields = inputs.variant.prompt.fields
    missing = [f for f in inputs.task.required_fields if f in fields and is_blank(record, [f])]
    return missing or (fields if is_blank(record, fields) else ())
