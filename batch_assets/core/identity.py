"""What makes a variant, a request and a partition the same as before. Everything stale or reused is decided on these.

`KEY_VERSION` changes when the scheme does: all keys change with it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from batch_assets.core.acceptance import ACCEPTANCE_VERSION
from batch_assets.core.canonical import digest, digest_exact
from batch_assets.core.models import ModelEntry, Sampling
from batch_assets.core.prompts import Message
from batch_assets.core.tasks import Task, Variant

KEY_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class VariantSpec:
    """The identity of a variant, 24 hex digits each. `parts` name what `request_spec` is made of, for the planner."""

    request_spec: str
    accept_spec: str
    parts: Mapping[str, str]

    @property
    def data_version(self) -> str:
        """The data version of a `variant_specs` partition, `<request_spec>.<accept_spec>`."""
        return data_version(self.request_spec, self.accept_spec)


def model_digest(model: ModelEntry, revision: str | None, *, local_place: str | None = None) -> str:
    """Return the identity of a model; `revision` is that of its weights as they were found.

    `local_place` is for a local folder: "" by the present rules, under which the place doesn't count, or the path under
    which the rules of version 0.1 knew it.
    """
    return digest(model.identity(revision, local_place))


def variant_spec(task: Task, variant: Variant, model: str) -> VariantSpec:
    """Return the identity of one variant; `model` is the digest of its model (`model_digest`)."""
    parts = {
        "prompt": digest(variant.prompt.text()),
        "output schema": digest(_keep_order(task.output_schema)),
        "sampling": _digest_sampling(variant.model.sampling),
        "model": model,
    }
    accept = digest(
        {
            "schema": task.output_schema,
            **task.rules_text,
            "version_of_acceptance": ACCEPTANCE_VERSION,
            "version_of_keys": KEY_VERSION,
        }
    )
    return VariantSpec(
        request_spec=digest({**parts, "version_of_keys": KEY_VERSION}),
        accept_spec=accept,
        parts={**parts, "rules": accept},
    )


def request_key(messages: tuple[Message, ...], spec: VariantSpec, sampling: Sampling | None = None) -> str:
    """Return the name of one question: rendered messages, schema, model, sampling, key version; not the record.

    The sampling is the variant's, unless a step of the ladder has its own.
    """
    own = spec.parts["sampling"] if sampling is None else _digest_sampling(sampling)
    return digest_exact(
        {
            "messages": [[m.role, m.content] for m in messages],
            "output schema": spec.parts["output schema"],
            "sampling": own,
            "model": spec.parts["model"],
            "version_of_keys": KEY_VERSION,
        }
    )


def _digest_sampling(sampling: Sampling) -> str:
    return digest(sampling.model_dump(mode="json"))


def _keep_order(schema: object) -> object:
    """Return a JSON schema whose properties are pairs: guided decoding writes them in their order, so it counts."""
    if isinstance(schema, list):
        return [_keep_order(v) for v in cast("list[object]", schema)]
    if not isinstance(schema, dict):
        return schema
    kept = {k: _keep_order(v) for k, v in cast("dict[str, object]", schema).items()}
    properties = cast("dict[str, object]", schema).get("properties")
    if isinstance(properties, dict):
        kept["properties"] = [[k, _keep_order(v)] for k, v in cast("dict[str, object]", properties).items()]
    return kept


def fingerprint(batch_content: str, spec: VariantSpec) -> str:
    """Return what an output partition must have been made of: the batch's content, request_spec and accept_spec."""
    return digest({"batch": batch_content, "request_spec": spec.request_spec, "accept_spec": spec.accept_spec})


def fallback_fingerprint(output_version: str, spec: VariantSpec) -> str:
    """Return what a partition's fallback must have been made of: the output's data version, the fallback's identity."""
    return digest({"output": output_version, "request_spec": spec.request_spec, "accept_spec": spec.accept_spec})


def results_version(output_version: str, fallback_version: str) -> str:
    """Return the data version of what follows an output and its fallback, `<fingerprint>.<content>` as well."""
    own, _, content = output_version.partition(".")
    return data_version(own, digest({"output": content, "fallback": fallback_version}))


def data_version(partition_fingerprint: str, content: str) -> str:
    """Return Dagster's data version of a partition, `<fingerprint>.<content>`: 49 characters, within a tag's 63."""
    return f"{partition_fingerprint}.{content}"
