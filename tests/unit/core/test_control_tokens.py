"""Control tokens are broken visibly, whatever stands around them; all other text stays as it is."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batch_assets.core.control_tokens import KNOWN, break_control_tokens, find_control_tokens


@pytest.mark.parametrize("token", [*KNOWN, "<|im_end|>", "<|reserved_special_token_7|>", "<｜end▁of▁sentence｜>"])
def test_each_known_token_is_broken_by_a_space_after_its_first_character(token: str) -> None:
    assert find_control_tokens(f"a {token} b") == {token}
    assert break_control_tokens(f"a {token}{token} b") == f"a {token[0]} {token[1:]}{token[0]} {token[1:]} b"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "plain",
        "a <b>bold</b> <br/> <a href='x|y'>",
        "if a < b | c > d",
        "x <| y |> z",
        "f <|> g",
        "|<td>|",
        "[x] [INST ] [sep]",
        "< |im_end|>",
        "1 << 2 >> 3",
        "<THINK>",
    ],
)
def test_a_text_without_a_token_comes_back_as_it_is(text: str) -> None:
    assert break_control_tokens(text) == text


def test_a_token_inside_another_is_broken_too() -> None:
    assert break_control_tokens("<<s>>") == "<< s>>"
    assert break_control_tokens("<|<|im_end|>|>") == "<|< |im_end|>|>"
    assert break_control_tokens("abcbcd", ["abc", "bcbc", "cd"]) == "a b cbc d"


def test_the_tokens_that_are_named_are_those_that_count_beside_the_forms() -> None:
    assert break_control_tokens("<s> ~~X~~ <|x|>", ["~~X~~"]) == "<s> ~ ~X~~ < |x|>"


def test_tokens_that_no_space_can_break_are_passed_over() -> None:
    assert break_control_tokens("a <  b", ["", " ", "<", "< ", "  ", "\n"]) == "a <  b"


def test_a_token_to_keep_stays() -> None:
    assert break_control_tokens("<s><think>", keep=["<think>"]) == "< s><think>"


tokens = st.lists(st.text("<|>s [", min_size=1, max_size=4), max_size=4)


@settings(deadline=None, max_examples=200)
@given(st.text("<|>s [a\n", max_size=14) | st.lists(st.sampled_from([*KNOWN, "<|a|>", "x"])).map("".join), tokens)
def test_whatever_is_broken_holds_no_token_more_and_differs_in_spaces_alone(text: str, more: list[str]) -> None:
    broken = break_control_tokens(text, [*KNOWN, *more])
    assert not find_control_tokens(broken)
    assert not any(t.strip() in broken for t in more if len(t.strip()) > 1)
    assert broken.replace(" ", "") == text.replace(" ", "")
    assert break_control_tokens(broken, [*KNOWN, *more]) == broken
