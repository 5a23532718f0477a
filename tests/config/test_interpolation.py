"""References to other keys and to the environment, and how they are saved."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from lightkit.config import Resolved, dump_yaml, resolve
from lightkit.config.yaml_reader import TOO_LARGE
from lightkit.errors import ConfigError


def resolved_from(folder: Path, text: str, **environ: str) -> Resolved:
    (folder / "x.yaml").write_text(text)
    return resolve([folder / "x.yaml"], environ=environ)


SECRETIVE = r"""
plain: value
key: ${oc.env:API_KEY}
url: http://me:${oc.env:API_KEY}@host
again: ${url}/path
which: ${${plain}}
value: ${oc.env:API_KEY}
list: ["${key}", "${plain}", 3]
block: {inner: "${oc.env:USER_NAME,nobody}"}
whole: ${block}
literal: \${plain} ${plain}
"""


def test_what_used_the_environment_is_known_through_every_detour(tmp_path: Path) -> None:
    resolved = resolved_from(tmp_path, SECRETIVE, API_KEY="s3cret")
    assert resolved.references == {
        ("key",): "${oc.env:API_KEY}",
        ("url",): "http://me:${oc.env:API_KEY}@host",
        ("again",): "${url}/path",
        ("which",): "${${plain}}",
        ("value",): "${oc.env:API_KEY}",
        ("list", 0): "${key}",
        ("block", "inner"): "${oc.env:USER_NAME,nobody}",
        ("whole",): "${block}",
    }
    assert resolved.values["again"] == "http://me:s3cret@host/path"
    assert resolved.values["whole"] == {"inner": "nobody"}


def test_a_saved_config_holds_references_and_resolves_to_the_same(tmp_path: Path) -> None:
    resolved = resolved_from(tmp_path, SECRETIVE, API_KEY="s3cret")
    saved = dump_yaml(resolved.with_references(resolved.values))
    assert "s3cret" not in saved
    assert r"literal: \${plain} value" in saved
    again = resolved_from(tmp_path, saved, API_KEY="s3cret")
    assert again.values == resolved.values
    assert (
        resolved_from(tmp_path, saved, API_KEY="new", USER_NAME="me").values["again"]
        == "http://me:new@host/path"
    )


def test_a_secret_that_lightning_moved_is_a_reference_too(tmp_path: Path) -> None:
    resolved = resolved_from(
        tmp_path, "trainer: {logger+: {class_path: Comet, api_key: '${oc.env:KEY}'}}", KEY="s3cret"
    )
    dumped = {
        "trainer": {
            "logger": [{"class_path": "a.Comet", "init_args": {"api_key": "s3cret", "name": "x"}}]
        }
    }
    assert resolved.with_references(dumped) == {
        "trainer": {
            "logger": [
                {"class_path": "a.Comet", "init_args": {"api_key": "${oc.env:KEY}", "name": "x"}}
            ]
        }
    }


def test_logs_are_masked_with_the_longest_match_first(tmp_path: Path) -> None:
    resolved = resolved_from(tmp_path,
                             "a: ${oc.env:A}\nb: x-${oc.env:A}\nc: ${oc.env:ENV}\nn: ${oc.env:N}",
                             A="s3cret", ENV="oc.env", N="3")  # fmt: skip
    assert (
        resolved.masked("x-s3cret, s3cret, oc.env, 3")
        == "x-${oc.env:A}, ${oc.env:A}, ${oc.env:ENV}, 3"
    )
    assert [secret for secret, _ in resolved.secrets] == ["x-s3cret", "oc.env", "s3cret"]


def test_a_default_is_no_secret_yet_a_reference(tmp_path: Path) -> None:
    resolved = resolved_from(tmp_path, "a: ${oc.env:A,some/folder}")
    assert resolved.secrets == ()
    assert resolved.with_references(resolved.values) == {"a": "${oc.env:A,some/folder}"}
    assert resolved.masked("some/folder") == "some/folder"


def test_a_class_from_the_environment_is_saved_as_its_class_path(tmp_path: Path) -> None:
    resolved = resolved_from(tmp_path, "name: '${oc.env:NET}'\nmodel: ${name}", NET="my.Net")
    assert resolved.values["model"] == {"class_path": "my.Net"}
    assert resolved.references["model", "class_path"] == "${name}"


def test_a_variable_that_is_not_set_has_a_near_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as error:
        resolved_from(tmp_path, "a: '${oc.env:DATA_ROT}'", DATA_ROOT="x", TOKEN="y")
    says = (
        "the environment variable DATA_ROT is not set; set it, or give a default:"
        " ${oc.env:DATA_ROT,...}; did you mean "
    )
    assert f"{says}'DATA_ROOT'?\n" in str(error.value)
    with pytest.raises(ConfigError) as error:
        resolved_from(tmp_path, "a: '${oc.env:NET_NAME}'", CONTAINER_NAME="x")
    assert "did you mean" not in str(error.value)


def test_omegaconf_reads_the_real_environment_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LK_TEST", "real")
    assert resolved_from(tmp_path, "a: ${oc.env:LK_TEST}", LK_TEST="given").values == {"a": "given"}
    assert OmegaConf.create({"a": "${oc.env:LK_TEST}"}).a == os.environ["LK_TEST"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: ${b.c}\nb: {d: 1}",
         "a: cannot resolve '${b.c}': it refers to b.c, which is not set; did you mean 'b.d'?\n"
         "  --> x.yaml:1:4\n    1 | a: ${b.c}\n      |    ^^^^^^"),
        ("model: {class_path: N, hidden: 1}\na: ${model.hidden}",
         "a: cannot resolve '${model.hidden}': it refers to "
         "model.hidden, which is not set; did you mean 'model.init_args.hidden'?\n  --> "
         "x.yaml:2:4\n"),
        ("data: {class_path: N, root: 1}\na: ${data.rot}",
         "a: cannot resolve '${data.rot}': it refers to data.rot, "
         "which is not set; did you mean 'data.init_args.root'?\n  --> x.yaml:2:4\n"),
        ("data: {class_path: N, image_size: 1}\na: ${imag_size}",
         "a: cannot resolve '${imag_size}': it refers to "
         "imag_size, which is not set; did you mean 'data.init_args.image_size'?\n  --> "
         "x.yaml:2:4\n"),
        ("a: {image_size: 1, crop: '${.imag_size}'}",
         "a.crop: cannot resolve '${.imag_size}': it refers to .imag_size, "
         "which is not set; did you mean 'a.image_size'?\n  --> x.yaml:1:26\n"),
        ("image_size: ${imag_size}",
         "image_size: cannot resolve '${imag_size}': it refers to imag_size, which is not "
         "set\n  --> x.yaml:1:13\n"),
        ("a: {b: ['${oc.env:NOPE}']}",
         "a.b.0: cannot resolve '${oc.env:NOPE}': the environment variable NOPE is not set; "
         "set it, or give a default: ${oc.env:NOPE,...}\n  --> x.yaml:1:9\n"),
        ("b: ${a}\na: ${oc.env:NOPE}",
         "a: cannot resolve '${oc.env:NOPE}': the environment variable NOPE is not set; "),
        ("b: ${a}\na: ${nope}",
         "a: cannot resolve '${nope}': it refers to nope, which is not set\n  --> x.yaml:2:4"),
        ("a: 1\nb: ${", "b: '${' is not a valid interpolation: a } is missing; "
         "write \\${ where the text itself is meant\n  --> x.yaml:2:4\n"),
        ("a: ${nope:1}",
         "a: cannot resolve '${nope:1}': there is no nope; ${key} is another key, "),
        ("a: ${b}\nb: ${a}", "a: cannot resolve '${b}': "),
        ("a: {b: '${a}'}", "a.b: cannot resolve '${a}': "),
        ("a: '" + "x" * 500 + "${b}'",
         "a: cannot resolve '" + "x" * 80 + "'...: it refers to b, which is not set"),
    ],
    ids=["key", "key-in-short", "near-in-short", "near-name", "near-relative", "itself", "variable",
         "variable-afar",
         "key-afar", "grammar", "resolver", "cycle", "parent", "long"],
)  # fmt: skip
def test_what_cannot_be_resolved_shows_its_place(
    text: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as error:
        resolved_from(Path(), text)
    assert str(error.value).startswith(says)


def test_a_circle_of_interpolations_is_reported_once_with_all_its_places(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text("a: ${b}\nb: ${a}\n")
    with pytest.raises(ConfigError) as caught:
        resolve([tmp_path / "x.yaml"], environ={})
    assert len(caught.value.problems) == 1
    assert str(caught.value).startswith(
        "a: cannot resolve '${b}': it leads back to itself through other keys\n"
    )
    assert [str(place)[-4:] for place in caught.value.places] == [":1:4", ":2:4"]


GROWING = {
    "texts": "".join(f"k{i}: '${{k{i + 1}}}${{k{i + 1}}}'\n" for i in range(40)) + "k40: x\n",
    "sections": (
        "".join(f"s{i}: {{a: '${{s{i + 1}}}', b: '${{s{i + 1}}}'}}\n" for i in range(40))
        + "s40: 1\n"
    ),
    "relative": (
        "m:\n"
        + "".join(f"  k{i}: '${{.k{i + 1}}}${{.k{i + 1}}}'\n" for i in range(40))
        + "  k40: x\n"
    ),
    "chain": "".join(f"k{i}: ${{k{i + 1}}}\n" for i in range(500)) + "k500: 1\n",
    "upwards": "k500: 1\n" + "".join(f"k{i}: ${{k{i + 1}}}\n" for i in reversed(range(500))),
    "together": "s: [" + "1, " * 5000 + "]\n" + "".join(f"b{i}: ${{s}}\n" for i in range(4)),
}


@pytest.mark.parametrize("text", GROWING.values(), ids=GROWING.keys())
def test_interpolations_that_grow_beyond_the_limit_are_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match=f"^.*: {TOO_LARGE}\n  --> .*/x.yaml:"):
        resolved_from(tmp_path, text)


def test_files_that_exceed_the_limit_together_are_refused(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text("a: [" + "1, " * 11_000 + "]")
    with pytest.raises(ConfigError, match=f"^[ab]: {TOO_LARGE}"):
        resolved_from(tmp_path, "extends: base\nb: [" + "1, " * 11_000 + "]")


def test_a_thousand_values_that_refer_to_one_are_fine(tmp_path: Path) -> None:
    text = "root: /data\nall:\n" + "".join(f"  - ${{root}}/{i}\n" for i in range(1000))
    assert resolved_from(tmp_path, text).values["all"][999] == "/data/999"


def test_a_text_that_nests_too_deeply_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is not a valid interpolation: it nests too deeply"):
        resolved_from(tmp_path, "a: '" + "${oc.env:X," * 2_000 + "}" * 2_000 + "'")
