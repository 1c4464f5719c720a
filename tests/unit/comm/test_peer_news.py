"""Who is blamed when an exchange does not go on: the ones at the end of all waiting."""

from __future__ import annotations

from phalanx.comm.peer_news import PeerNews

NAMES = [f"worker-{rank}" for rank in range(12)]


def test_blame_follows_those_who_wait_to_those_who_say_nothing() -> None:
    news = PeerNews(NAMES, 0)
    news.hear_stuck(3, 7, b"worker-2,worker-11")
    news.hear_stuck(2, 7, b"worker-0,worker-1")
    assert news.silent(7, {3}) == {1, 11}
    # What they said of another exchange does not count.
    assert news.silent(8, {3}) == {3}


def test_in_a_circle_the_neighbours_are_named() -> None:
    news = PeerNews(NAMES, 0)
    news.hear_stuck(3, 7, b"worker-0")
    assert news.silent(7, {3}) == {3}


def test_farewells_name_who_has_given_none() -> None:
    news = PeerNews(NAMES, 0)
    news.hear_farewell(4, b"worker-5")
    news.hear_farewell(5, b"worker-1,worker-10")
    assert news.named_by_farewells() == {1, 10}
    news.lost = {4: "gone", 10: "its connection broke"}
    assert news.broken() == {10: "its connection broke"}
    assert news.gone == {4, 5, 10}


def test_if_all_have_given_up_all_that_were_named_count() -> None:
    news = PeerNews(NAMES, 0)
    news.hear_farewell(1, b"worker-2")
    news.hear_farewell(2, b"worker-1")
    assert news.named_by_farewells() == {1, 2}


def test_names_are_packed_by_rank_and_what_is_no_name_is_ignored() -> None:
    news = PeerNews(NAMES, 0)
    assert news.pack({2, 1}) == b"worker-1,worker-2"
    news.hear_farewell(1, b"\xff,worker-3,worker-99")
    assert news.farewells == {1: {3}}
