"""The records that ship with the project: unlike each other, correctly labelled, with a real queue's ugly ones."""

import itertools
import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import batch_assets

DEFS = Path(batch_assets.__file__).parent / "defs"
TICKET_FILES = sorted((DEFS / "ticket_triage" / "tickets").glob("*.csv"))
MESSAGE_FILES = sorted((DEFS / "booking_fields" / "messages").glob("*.jsonl"))

COLUMNS = ["item_id", "text", "lang", "gold_label", "gold_urgent"]
LABELS = {"card", "transfer", "login", "loan", "fee", "fraud", "app", "other"}
DAYS = {"monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday", "today", "tomorrow"}

# The second of each pair repeats the text of the first: one in the same file, one in another.
REPEATS = [["T-10445", "T-10447"], ["T-10459", "T-10773"]]

# Any two texts of one language share some trigrams: the closest shipped pair has 0.21, the furthest templated one 0.34.
MAX_SIMILARITY = 0.25
MAX_SAME_OPENING = 3
MAX_SAME_FIVE_WORDS = 2

EMOJI = re.compile("[\U0001f300-\U0001faff\u2600-\u27bf]")
CYRILLIC = re.compile("[А-Яа-яЁё]")
INSTRUCTING = re.compile(r"ignore all previous instructions|забудь все предыдущие инструкции|<\|im_end\|>", re.I)

Record = dict[str, str]


def read_tickets(path: Path) -> list[Record]:
    frame = pl.read_csv(path, infer_schema=False, empty_string_is_null=False)
    assert frame.columns == COLUMNS
    assert frame.null_count().row(0) == (0,) * len(COLUMNS)
    return frame.to_dicts()


def read_messages(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


BY_FILE = {path.name: read_tickets(path) for path in TICKET_FILES}
TICKETS = [ticket for tickets in BY_FILE.values() for ticket in tickets]
MESSAGES = [message for path in MESSAGE_FILES for message in read_messages(path)]


def is_all_capitals(text: str) -> bool:
    return text.isupper() and sum(char.isalpha() for char in text) > 20


def is_quoted_and_multiline(text: str) -> bool:
    return text.count('"') >= 4 and "," in text and text.count("\n") >= 3 and len(text) < 1_000 and "<|" not in text


UGLY: dict[str, tuple[int, Callable[[Record], bool]]] = {
    "empty": (1, lambda t: t["text"] == ""),
    "only whitespace": (1, lambda t: t["text"] != "" and not t["text"].strip()),
    "very long but fits": (1, lambda t: 3_000 < len(t["text"]) < 4_000),
    "far too long": (1, lambda t: len(t["text"]) > 14_000),
    "emoji": (3, lambda t: EMOJI.search(t["text"]) is not None),
    "only emoji": (1, lambda t: t["text"] != "" and EMOJI.sub("", t["text"]) == ""),
    "HTML": (2, lambda t: re.search(r"</(p|div)>", t["text"]) is not None),
    "two languages": (3, lambda t: t["lang"] == "mixed"),
    "instructs the model": (3, lambda t: INSTRUCTING.search(t["text"]) is not None),
    "instructs the model in Russian": (1, lambda t: "Забудь все предыдущие инструкции" in t["text"]),
    "chat control token and fake JSON": (1, lambda t: "<|im_end|>" in t["text"] and '{"label":' in t["text"]),
    "template braces and percent signs": (
        1,
        lambda t: all(part in t["text"] for part in ("{{ text }}", "{% raw %}", "%s", "100%")),
    ),
    "quotes, commas and newlines": (1, lambda t: is_quoted_and_multiline(t["text"])),
    "all capitals": (1, lambda t: is_all_capitals(t["text"])),
}


def is_ugly(ticket: Record) -> bool:
    return any(test(ticket) for _, test in UGLY.values())


def repeats_of(tickets: Iterable[Record]) -> list[list[str]]:
    ids: defaultdict[str, list[str]] = defaultdict(list)
    for ticket in tickets:
        ids[ticket["text"]].append(ticket["item_id"])
    return [same for same in ids.values() if len(same) > 1]


def words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


def trigrams(text: str) -> frozenset[str]:
    flat = f"  {' '.join(words(text))}  "
    return frozenset(flat[i : i + 3] for i in range(len(flat) - 2))


def too_similar(texts: list[str], bound: float = MAX_SIMILARITY) -> list[tuple[float, str, str]]:
    """The pairs whose character trigrams overlap (Jaccard) by the bound or more."""
    grams = [trigrams(text) for text in texts]
    found: list[tuple[float, str, str]] = []
    for i, j in itertools.combinations(range(len(texts)), 2):
        common = len(grams[i] & grams[j])
        similarity = common / (len(grams[i]) + len(grams[j]) - common)
        if similarity >= bound:
            found.append((round(similarity, 3), texts[i], texts[j]))
    return found


def same_openings(texts: list[str]) -> dict[str, int]:
    """The first three words that begin more texts than allowed."""
    counts = Counter(" ".join(words(text)[:3]) for text in texts)
    return {opening: count for opening, count in counts.items() if count > MAX_SAME_OPENING}


def same_five_words(texts: list[str]) -> dict[str, int]:
    """The runs of five words that stand in more texts than allowed."""
    counts: Counter[str] = Counter()
    for text in texts:
        found = words(text)
        counts.update({" ".join(found[i : i + 5]) for i in range(len(found) - 4)})
    return {run: count for run, count in counts.items() if count > MAX_SAME_FIVE_WORDS}


PLAIN_TEXTS = list(dict.fromkeys(ticket["text"] for ticket in TICKETS if not is_ugly(ticket)))
PLAIN_MESSAGES = [str(message["message"]) for message in MESSAGES if words(str(message["message"]))]


def test_there_are_at_least_120_tickets_in_three_equal_files() -> None:
    assert list(BY_FILE) == ["2026-11-01.csv", "2026-11-02.csv", "2026-11-03.csv"]
    assert [len(tickets) for tickets in BY_FILE.values()] == [44, 44, 44]
    assert len(TICKETS) >= 120


@pytest.mark.parametrize("name", list(BY_FILE))
def test_each_ticket_file_is_about_half_english_and_half_russian(name: str) -> None:
    counts = Counter(ticket["lang"] for ticket in BY_FILE[name])
    assert set(counts) == {"en", "ru", "mixed"}
    assert abs(counts["en"] - counts["ru"]) <= 2
    assert counts["mixed"] == 1


def test_the_language_of_each_ticket_agrees_with_its_alphabet() -> None:
    for ticket in TICKETS:
        text = ticket["text"]
        if not words(text):
            continue
        cyrillic, latin = CYRILLIC.search(text) is not None, len(re.findall(r"\b[a-zA-Z]{4,}\b", text)) >= 3
        expected = {"en": not cyrillic, "ru": cyrillic, "mixed": cyrillic and latin}
        assert expected[ticket["lang"]], ticket


def test_ticket_ids_are_unique_as_text() -> None:
    ids = [ticket["item_id"] for ticket in TICKETS]
    assert len(set(ids)) == len(ids)
    assert all(item_id == item_id.strip() != "" for item_id in ids)


def test_leading_zeros_and_a_twenty_digit_id_are_kept_exactly() -> None:
    odd = [ticket["item_id"] for ticket in TICKETS if not re.fullmatch(r"T-\d{5}", ticket["item_id"])]
    assert odd == ["007", "18446744073709551617"]


def test_ticket_files_are_utf8_with_bare_line_feeds() -> None:
    for path in TICKET_FILES:
        raw = path.read_bytes()
        assert not raw.startswith(b"\xef\xbb\xbf")
        assert b"\r" not in raw
        assert raw.endswith(b"\n")
        assert raw.decode("utf-8")


def test_every_gold_label_is_one_of_the_eight_and_each_has_ten_or_more() -> None:
    counts = Counter(ticket["gold_label"] for ticket in TICKETS)
    assert set(counts) == LABELS
    assert min(counts.values()) >= 10


def test_urgency_is_true_or_false_and_neither_is_rare() -> None:
    counts = Counter(ticket["gold_urgent"] for ticket in TICKETS)
    assert set(counts) == {"true", "false"}
    assert min(counts.values()) >= 25


@pytest.mark.parametrize("kind", UGLY)
def test_each_kind_of_ugly_record_is_there_as_often_as_intended(kind: str) -> None:
    intended, test = UGLY[kind]
    assert len([ticket["item_id"] for ticket in TICKETS if test(ticket)]) == intended


def test_ugly_records_are_a_minority_and_stand_in_every_file() -> None:
    assert sum(is_ugly(ticket) for ticket in TICKETS) == 18
    assert all(any(is_ugly(ticket) for ticket in tickets) for tickets in BY_FILE.values())


def test_a_ticket_without_words_is_labelled_other_and_not_urgent() -> None:
    blank = [ticket for ticket in TICKETS if not words(ticket["text"])]
    assert len(blank) == 3
    assert {(ticket["gold_label"], ticket["gold_urgent"]) for ticket in blank} == {("other", "false")}


def test_the_exact_repeats_are_the_two_intended_ones() -> None:
    assert repeats_of(TICKETS) == REPEATS
    in_one_file = [same for tickets in BY_FILE.values() for same in repeats_of(tickets)]
    assert in_one_file == [REPEATS[0]]


def test_repeated_tickets_have_the_same_gold() -> None:
    gold = {ticket["item_id"]: (ticket["gold_label"], ticket["gold_urgent"]) for ticket in TICKETS}
    assert all(len({gold[item_id] for item_id in same}) == 1 for same in REPEATS)


def test_no_two_plain_tickets_are_alike() -> None:
    assert len(PLAIN_TEXTS) == 112
    assert too_similar(PLAIN_TEXTS) == []


def test_no_opening_begins_more_than_three_plain_tickets() -> None:
    assert same_openings(PLAIN_TEXTS) == {}


def test_no_run_of_five_words_stands_in_more_than_two_tickets() -> None:
    assert same_five_words(PLAIN_TEXTS) == {}


def test_tickets_are_of_many_lengths() -> None:
    lengths = sorted(len(words(text)) for text in PLAIN_TEXTS)
    assert lengths[0] == 1
    assert lengths[len(lengths) // 10] * 4 <= lengths[-len(lengths) // 10]
    assert lengths[-1] >= 60
    assert len(set(lengths)) >= 30


CARDS = ["debit", "credit", "travel", "business", "joint"]
CITIES = ["Paris", "Leeds", "Madrid", "Oslo"]
TEMPLATED = [f"I lost my {card} card in {city}" for card in CARDS for city in CITIES]


def test_the_template_detector_flags_templated_texts() -> None:
    assert len(set(TEMPLATED)) == 20
    flagged = {text for _, one, other in too_similar(TEMPLATED) for text in (one, other)}
    assert flagged == set(TEMPLATED)
    assert same_openings(TEMPLATED) == {"i lost my": 20}
    assert same_five_words(TEMPLATED)["i lost my debit card"] == 4


def test_the_template_detector_flags_a_few_templated_texts_among_the_real_ones() -> None:
    flagged = {text for _, one, other in too_similar([*PLAIN_TEXTS, *TEMPLATED[:3]]) for text in (one, other)}
    assert flagged == set(TEMPLATED[:3])


def test_the_template_detector_flags_one_tail_under_many_openings() -> None:
    openings = ["Yesterday", "Sadly", "Well then,", "Hello again,"]
    texts = [f"{opening} my transfer of {n}00 to my landlord has not arrived" for n, opening in enumerate(openings, 1)]
    assert same_openings(texts) == {}
    assert too_similar(texts)
    assert same_five_words(texts)


def test_there_are_forty_booking_messages_in_two_equal_files() -> None:
    assert [path.name for path in MESSAGE_FILES] == ["2026-11-01.jsonl", "2026-11-02.jsonl"]
    assert [len(read_messages(path)) for path in MESSAGE_FILES] == [20, 20]


def test_each_booking_message_has_exactly_the_four_keys_with_text_values() -> None:
    for message in MESSAGES:
        assert list(message) == ["item_id", "message", "channel", "gold"]
        assert all(isinstance(message[key], str) for key in ("item_id", "message", "channel"))
        assert message["channel"] in {"web", "chat", "sms", "email", "phone"}


def test_booking_ids_are_unique() -> None:
    assert len({message["item_id"] for message in MESSAGES}) == len(MESSAGES)


def test_every_booking_gold_has_exactly_the_five_fields_with_valid_values() -> None:
    for message in MESSAGES:
        gold: dict[str, Any] = message["gold"]
        assert set(gold) == {"guests", "day", "time", "name", "outside"}
        assert gold["guests"] is None or (type(gold["guests"]) is int and 1 <= gold["guests"] <= 50), message
        assert gold["day"] is None or gold["day"] in DAYS, message
        assert gold["time"] is None or re.fullmatch(r"([01]\d|2[0-3]):[0-5]\d", gold["time"]), message
        assert gold["name"] is None or 0 < len(gold["name"]) <= 40, message
        assert gold["name"] is None or gold["name"] in message["message"], message
        assert type(gold["outside"]) is bool, message


def test_every_booking_field_is_often_given_and_sometimes_missing() -> None:
    for field in ("guests", "day", "time", "name"):
        assert 3 <= sum(message["gold"][field] is None for message in MESSAGES) <= 20, field
    assert 8 <= sum(message["gold"]["outside"] for message in MESSAGES) <= 20


def test_one_booking_message_is_empty_and_one_is_only_emoji_with_nothing_to_read() -> None:
    blank = [message for message in MESSAGES if not words(message["message"])]
    assert sorted(bool(message["message"]) for message in blank) == [False, True]
    nothing = {"guests": None, "day": None, "time": None, "name": None, "outside": False}
    assert all(message["gold"] == nothing for message in blank)


def test_about_a_third_of_the_booking_messages_are_russian() -> None:
    assert sum(CYRILLIC.search(message["message"]) is not None for message in MESSAGES) == 13


def test_booking_messages_are_not_stamped_from_a_template() -> None:
    assert len(set(PLAIN_MESSAGES)) == 38
    assert too_similar(PLAIN_MESSAGES) == []
    assert same_openings(PLAIN_MESSAGES) == {}
    assert same_five_words(PLAIN_MESSAGES) == {}
