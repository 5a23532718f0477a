from __future__ import annotations

import pytest

from lightkit import runs


def test_trust_lasts_as_long_as_its_block() -> None:
    assert not runs.is_trusting()
    with runs.trusting():
        assert runs.is_trusting()
    assert not runs.is_trusting()


def test_a_trusted_file_is_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    with runs.trusting():
        for name in ("a.ckpt", "a.ckpt", "b.ckpt"):
            runs.warn_of_trust(name, ["os.system"])
    rest = "holds os.system besides tensors and plain values; loading it may run code"
    assert [record.getMessage() for record in caplog.records] == [
        f"--trust: {name} {rest}" for name in ("a.ckpt", "b.ckpt")
    ]


@pytest.mark.parametrize(
    ("message", "names"),
    [
        (
            "Unsupported global: GLOBAL posix.system was not an allowed global by default.",
            ["posix.system"],
        ),
        ("Trying to load unsupported GLOBAL os.system whose module os is blocked.", ["os.system"]),
        ("Unsupported operand 149", []),
    ],
    ids=["not allowed", "blocked", "nothing named"],
)
def test_the_class_is_found_in_the_words_of_torch(message: str, names: list[str]) -> None:
    assert runs.find_class_names(message) == names


def test_a_refusal_says_what_and_why_and_what_allows_it() -> None:
    says = runs.refusal("a.ckpt", [f"my_models.C{number}" for number in range(7)])
    assert says.startswith(
        "a.ckpt holds my_models.C0, my_models.C1, my_models.C2,"
        " my_models.C3, my_models.C4 and 2 more"
    )
    assert says.endswith("If you know who made the file, --trust on the command line allows it.")
