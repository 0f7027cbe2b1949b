"""Text that must not become markup."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batch_assets.reports.markdown import as_block, as_code


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain", "`plain`"),
        ("<b>*x*</b>", "`<b>*x*</b>`"),
        ("a `tick`", "`a 'tick'`"),
        ("two\nlines\r\n# and a heading", "`two lines # and a heading`"),
        ("", "(empty)"),
        (" \n ", "(empty)"),
        ("x" * 300, f"`{'x' * 200}…`"),
    ],
)
def test_a_text_becomes_one_code_span(text: str, shown: str) -> None:
    assert as_code(text) == shown


@settings(deadline=None)
@given(st.text(alphabet="ab`\n#<> ", max_size=60))
def test_no_text_leaves_its_span_or_its_block(text: str) -> None:
    span = as_code(text)
    assert span == "(empty)" or (span.count("`") == 2 and "\n" not in span)
    block = as_block(text)
    fence = re.match("`{3,}", block)
    assert fence is not None
    assert block == f"{fence.group()}\n{text}\n{fence.group()}"
    assert fence.group() not in text
