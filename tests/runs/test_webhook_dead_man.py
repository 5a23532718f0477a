"""The signs of a dead-man's switch."""

from __future__ import annotations

import pytest

from lightkit.errors import ConfigError
from lightkit.runs.webhook import DeadMansSwitch, heartbeat_sign
from tests.receiving import CANARY, Answer, receiving


@pytest.mark.parametrize(
    ("code", "sign"),
    [(0, "ok"), (6, "ok"), (1, "fail"), (2, "fail"), (3, "fail"), (4, "fail"), (5, "fail"),
     (70, "fail"), (75, None),
     (130, None), (143, None)],
)  # fmt: skip
def test_each_exit_code_has_its_sign(code: int, sign: str | None) -> None:
    assert heartbeat_sign(code) == sign


@pytest.mark.parametrize(
    ("code", "paths"),
    [
        (0, ["/beat/*/start", "/beat/*"]),
        (1, ["/beat/*/start", "/beat/*/fail"]),
        (75, ["/beat/*/start"]),
    ],
    ids=["well", "failed", "later"],
)
def test_a_command_is_reported_from_its_beginning_to_its_end(code: int, paths: list[str]) -> None:
    with receiving() as receiver:
        switch = DeadMansSwitch(receiver.url("beat"))
        switch.send("start")
        switch.send(heartbeat_sign(code), "the last words")
        switch.sender.close()
        assert [request.path for request in receiver.requests] == paths
        assert [request.body for request in receiver.requests] == [b"", b"the last words"][
            : len(paths)
        ]


def test_the_address_keeps_its_question_and_the_body_its_end() -> None:
    with receiving() as receiver:
        switch = DeadMansSwitch(receiver.url("beat") + "?token=1")
        for sign in ("start", "ok", "fail"):
            switch.compose(sign, "a" * 20_000 + "end")()
        found = receiver.requests
        assert [request.path for request in found] == [
            f"/beat/*{end}?token=1" for end in ("/start", "", "/fail")
        ]
        assert {(len(request.body), request.body[-4:]) for request in found} == {(10_000, b"aend")}


def test_an_address_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^run\.heartbeat_url: expected an address"):
        DeadMansSwitch(f"host/{CANARY}")


def test_a_switch_that_does_not_answer_is_left() -> None:
    with receiving() as receiver:
        receiver.answer = lambda _number: Answer(-1)
        switch = DeadMansSwitch(receiver.url("beat"))
        switch.send("start")
        switch.send("ok")
        switch.sender.close(0.1)
        assert not receiver.over.is_set()
