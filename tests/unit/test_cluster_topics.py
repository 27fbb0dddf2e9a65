"""What is wrong is told once when it begins and once when it is over."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from controlplane.cluster.topics import Topics

A, B = ("loss", "L0P0"), ("witness", "w1")


def told(cycles: list[set[tuple[str, str]]], quiet: int = 3) -> list[str]:
    """+topic and -topic by cycle."""
    topics = Topics(quiet)
    lines = []
    for present in cycles:
        news = topics.update(dict.fromkeys(present, "why"))
        words = [f"+{topic[0]}" for topic in sorted(news.begun)] + [f"-{topic[0]}" for topic in news.over]
        lines.append("".join(words))
    return lines


def test_a_topic_is_told_when_it_begins_and_when_it_has_been_quiet() -> None:
    assert told([{A}, {A}, set(), set(), set(), set(), {A}]) == ["+loss", "", "", "", "-loss", "", "+loss"]


def test_one_that_comes_and_goes_is_told_once() -> None:
    assert told([{A}, set(), {A}, set(), set(), {A}, set()]) == ["+loss", *[""] * 6]


def test_a_cycle_that_could_not_look_ends_nothing() -> None:
    topics = Topics(1)
    assert topics.update({A: "why"}).begun
    assert not topics.update({B: "no metrics"}, blind=True).over
    assert set(topics.update({}).over) == {A, B}


def test_topics_do_not_disturb_each_other() -> None:
    assert told([{A, B}, {B}, {B}, {B}]) == ["+loss+witness", "", "", "-loss"]


@given(st.lists(st.sets(st.sampled_from([A, B])), max_size=60), st.integers(1, 5))
def test_begin_and_over_alternate(cycles: list[set[tuple[str, str]]], quiet: int) -> None:
    topics = Topics(quiet)
    going: set[tuple[str, str]] = set()
    for present in cycles:
        news = topics.update(dict.fromkeys(present, "why"))
        assert not going & set(news.begun)
        assert set(news.over) <= going - present
        going = (going | set(news.begun)) - set(news.over)
        assert present <= going
