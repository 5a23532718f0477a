"""The pages of reports on a screen, in headless Chromium: nothing is cut, and the curves answer."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from tests.contract.test_gate_page import decision
from tests.contract.test_report import page, reported_original, write_run  # noqa: F401 (fixtures)
from tests.contract.workspace import Workspace

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs chromium or google-chrome")

MEASURE = """
const width = view.innerWidth;
const found = { width, scroll: doc.documentElement.scrollWidth, cut: [], unmarked: [] };
const scrolls = (element) => ["auto", "scroll"].includes(view.getComputedStyle(element).overflowX);
for (const element of doc.body.querySelectorAll("*")) {
  const box = element.getBoundingClientRect();
  if (!box.width || box.right <= width + 1 || box.right < 0) continue;
  let outer = element.parentElement;
  while (outer && !scrolls(outer)) outer = outer.parentElement;
  if (!outer || element.matches(".status")) found.cut.push(element.outerHTML.slice(0, 80));
}
for (const element of doc.body.querySelectorAll("*")) {
  if (!scrolls(element) || element.scrollWidth <= element.clientWidth + 1) continue;
  const hasBar = element.offsetHeight - element.clientHeight >= 4;
  const marked = hasBar || view.getComputedStyle(element).backgroundImage !== "none";
  if (!marked) found.unmarked.push(element.outerHTML.slice(0, 80));
}
const texts = doc.createTreeWalker(doc.body, NodeFilter.SHOW_TEXT);
while (texts.nextNode()) {
  const range = doc.createRange();
  range.selectNodeContents(texts.currentNode);
  if (range.getBoundingClientRect().right <= width + 1) continue;
  let outer = texts.currentNode.parentElement;
  while (outer && !scrolls(outer)) outer = outer.parentElement;
  if (!outer) found.cut.push(texts.currentNode.textContent.slice(0, 80));
}
return found;
"""


def run_chromium(folder: Path, name: str, *words: str) -> tuple[list[str], str]:
    """Open a file in headless Chromium; return console messages and the final page."""
    command = [
        str(CHROMIUM),
        *(
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--no-first-run",
            "--enable-logging=stderr",
        ),
        *(
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--disable-extensions",
        ),
        *(
            f"--user-data-dir={folder / 'chromium'}",
            "--window-size=1400,1000",
            "--virtual-time-budget=20000",
        ),
        *words,
        "--dump-dom",
        (folder / name).as_uri(),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return re.findall(r"CONSOLE.*", done.stderr), done.stdout


def ask_page(content: str, script: str, folder: Path, *, width: int) -> Any:
    """Run a script beside a page in a frame of that width, and return what it returns.

    A window of Chromium is never narrower than 500 pixels, whatever `--window-size` asks for; a
    frame is.
    """
    frame = f'<iframe width="{width}" height="900" srcdoc="{html.escape(content)}"></iframe>'
    code = f"""
    const frame = document.querySelector("iframe");
    frame.addEventListener("load", async () => {{
      const view = frame.contentWindow, doc = frame.contentDocument;
      const frames = () => new Promise((done) => setTimeout(done, 50));  // of virtual time
      try {{
        await frames();
        const answer = await (async () => {{ {script} }})();
        document.querySelector("pre").textContent = JSON.stringify(answer);
      }} catch (error) {{
        document.querySelector("pre").textContent = JSON.stringify(String(error.stack));
      }}
    }});"""
    style = "<style>iframe { border: 0 }</style>"
    page_ = (
        "<!DOCTYPE html><meta"
        f" charset=utf-8><title>t</title>{style}<pre></pre>{frame}<script>{code}</script>"
    )
    (folder / "frame.html").write_text(page_, encoding="utf-8")
    messages, shown = run_chromium(folder, "frame.html")
    assert not messages
    found = re.search(r"<pre>(.*?)</pre>", shown, re.DOTALL)
    assert found
    return json.loads(html.unescape(found[1]))


@pytest.fixture
def pages(workspace: Workspace) -> dict[str, str]:
    """A report, the page of a gate and a comparison, with long names and many classes."""
    names = tuple(f"a class with quite a long name {index}" for index in range(12))
    first = write_run(workspace, class_names=names, num_epochs=40, thumbnail_side=60, name="first")
    second = write_run(workspace, class_names=names, num_epochs=25, name="second")
    long = "models:/" + "flowers" * 9
    (first / "gate.json").write_text(
        json.dumps(decision(num_slices=4, num_samples=3) | {"baseline": long})
    )
    workspace.run("report", str(first)).ok()
    workspace.run("report", str(first), str(second)).ok()
    return {
        name: (first / f"{name}.html").read_text(encoding="utf-8")
        for name in ("report", "gate", "comparison")
    }


@pytest.mark.parametrize("width", [390, 1280])
def test_nothing_is_wider_than_the_screen(
    width: int, pages: dict[str, str], tmp_path: Path
) -> None:
    for name, content in pages.items():
        found = ask_page(content, MEASURE, tmp_path, width=width)
        assert found["width"] == width, name
        assert found["scroll"] <= width, name
        assert not found["cut"], f"{name}: cut at the edge, and in no box that scrolls"
        assert not found["unmarked"], f"{name}: scrolls, and does not show it"
    wide = '<!DOCTYPE html><body><div style="overflow:hidden"><p style="width:800px">x</p></div>'
    found = ask_page(wide, MEASURE, tmp_path, width=390)
    assert found["scroll"] <= 390, "what is cut off does not make a page wider"
    assert found["cut"], "or the assertions above could not fail"


def test_chromium_shows_the_report_without_a_message_or_a_request(
    page: str,  # noqa: F811
    tmp_path: Path,
) -> None:
    # of Chromium itself: updates, accounts
    own = re.compile(r"https?://[\w.-]+\.(?:google|googleapis|gstatic)\.com/")
    log = tmp_path / "net.json"

    def open_page(name: str) -> tuple[list[str], set[str], str]:
        messages, shown = run_chromium(tmp_path, name, f"--log-net-log={log}")
        urls = {
            *re.findall(
                r'"url":"((?:https?|wss?|ftp|file)://[^"]+)"', log.read_text(errors="replace")
            )
        }
        return messages, {url for url in urls if not own.match(url)}, shown

    (tmp_path / "report.html").write_text(page, encoding="utf-8")
    messages, urls, shown = open_page("report.html")
    assert not messages
    assert not {url for url in urls if not url.endswith("report.html")}
    assert "google" not in page, "or a request would be taken for Chromium's own"
    assert "<th" in shown
    assert "<canvas" in shown, "the script has run"
    bad = (
        "<!DOCTYPE html><title>x</title><img"
        ' src="https://192.0.2.1/x.png"><script>console.log("said")</script>'
    )
    (tmp_path / "bad.html").write_text(bad, encoding="utf-8")
    messages, urls, _ = open_page("bad.html")
    assert messages, "or the assertion above could not fail"
    assert any("192.0.2.1" in url for url in urls)


CURVES = """
const section = doc.querySelector("#curves"), box = section.querySelector(".chart"), out = {};
const lines = () => [...box.querySelectorAll(".u-series")].filter((row) => !row.hidden);
const legend = () => lines().map((row) => row.textContent);
const press = async (key, on = box) => {
  on.dispatchEvent(new view.KeyboardEvent("keydown", { key, bubbles: true, cancelable: true }));
  await frames();
};
const change = async (element, value) => {
  if (element.type === "checkbox") element.checked = value; else element.value = value;
  element.dispatchEvent(new view.Event("input"));
  element.dispatchEvent(new view.Event("change"));
  await frames();
};
const ink = () => box.querySelector("canvas").toDataURL();
out.still = section.querySelector(".scroll").hidden;
box.focus();
out.focused = doc.activeElement === box;
await press("ArrowRight");
out.first = legend();
await press("ArrowRight");
out.second = legend();
const all = ink();
await press("+");
out.zoomed = ink() !== all;
await press("Escape");
out.back = ink() === all;
const [axis, weight, log] = section.querySelectorAll(".controls select, .controls input");
await change(axis, "step");
box.focus();
await press("ArrowRight");
await press("ArrowRight");
out.step = legend();
await change(log, true);
const logged = ink();
await change(log, false);
out.log = ink() !== logged;
await change(weight, "0.9");
await press("ArrowRight");
await press("ArrowRight");
out.smooth = legend();
const label = box.querySelectorAll(".u-series th")[1];
await press("Enter", label);
out.pressed = box.querySelectorAll(".u-series th")[1].getAttribute("aria-pressed");
const hostile = [...doc.querySelectorAll("#curves .u-series th")];
out.hostile = hostile.map((each) => each.innerHTML).join(" ");
return out;
"""


def test_curves_answer_to_keys_and_controls(workspace: Workspace, tmp_path: Path) -> None:
    """The loss is 1, 0.1, 0.01.

    By hand a smoothing of 0.9 makes (0.09 + 0.01) / 0.19 = 0.5263 of the first two.
    """
    run = write_run(workspace)
    rows = ["epoch,step,train/loss,val/<b>x</b>", "0,9,1,1", "1,18,0.1,0.5", "2,27,0.01,0.25"]
    (run / "metrics.csv").write_text("\n".join(rows) + "\n")
    workspace.run("report", str(run)).ok()
    content = (run / "report.html").read_text(encoding="utf-8")
    for scheme in ("light", "dark"):
        themed = content.replace(
            "(prefers-color-scheme: dark)", "all" if scheme == "dark" else "not all", 1
        )
        policy = re.search(r"<meta http-equiv[^>]*>", themed)
        assert policy
        found = ask_page(themed.replace(policy[0], ""), CURVES, tmp_path, width=1280)
        assert isinstance(found, dict), found
        assert found["still"]
        assert found["focused"]
        assert found["first"] == ["epoch0", "train/loss1"]
        assert found["second"] == ["epoch1", "train/loss0.1"]
        assert found["zoomed"]
        assert found["back"]
        assert found["step"] == ["step18", "train/loss0.1"]
        assert found["log"]
        assert found["smooth"] == ["step18", "train/loss0.5263"]
        assert found["pressed"] == "false"
        assert "<b>" not in found["hostile"]


RATES = """
const section = doc.querySelector("#thresholds"), box = section.querySelector(".rates"), out = {};
const figure = section.querySelector("figure");
const row = () => [...section.querySelector(".plots table").tBodies[0].rows[0].cells];
const read = () => [figure.querySelector("figcaption").textContent,
  box.nextElementSibling.textContent, row().map((cell) => cell.textContent)];
const select = section.querySelector("select");
const ink = () => [...box.querySelectorAll("canvas")].map((each) => each.toDataURL()).join("");
const press = async (key) => {
  box.dispatchEvent(new view.KeyboardEvent("keydown", { key, bubbles: true, cancelable: true }));
  await frames();
};
out.still = figure.querySelector(".scroll").hidden;
out.names = [...select.options].map((each) => each.text);
out.overall = read();
const before = ink();
select.value = "1";
select.dispatchEvent(new view.Event("change"));
await frames();
out.first = read();
out.drawn = ink() !== before;
await press("ArrowRight");
out.next = read()[1];
await press("ArrowLeft");
await press("ArrowLeft");
out.before = read()[1];
const over = box.querySelectorAll(".u-over")[1], area = over.getBoundingClientRect();
const at = { clientX: area.left + 1, clientY: area.top + 20, bubbles: true };
over.dispatchEvent(new view.MouseEvent("mousemove", at));
await frames();
out.pointed = read()[1];
return out;
"""


def test_curves_of_each_class_answer_to_a_choice_keys_and_the_pointer(
    workspace: Workspace, tmp_path: Path
) -> None:
    """By hand: of `<b>a</b>` the two samples have 0.7 and 0.4, and the three others at most 0.3."""
    names = ("<b>a</b>", "b", "c")
    run = write_run(workspace, class_names=names, num_samples=5)
    path = run / "test_predictions.parquet"
    table = parquet.read_table(path)
    columns = {
        "label": ["b", "b", "c", names[0], names[0]],
        "predicted": ["b", "b", "b", names[0], "c"],
        "probability": [0.9, 0.6, 0.7, 0.7, 0.5],
        "label_probability": [0.9, 0.6, 0.25, 0.7, 0.4],
        f"probability_{names[0]}": [0.05, 0.3, 0.05, 0.7, 0.4],
        "probability_b": [0.9, 0.6, 0.7, 0.2, 0.1],
        "probability_c": [0.05, 0.1, 0.25, 0.1, 0.5],
    }
    rows = pa.table({name: table[name] for name in ("index", "path")} | columns)
    parquet.write_table(rows.replace_schema_metadata(table.schema.metadata), path)
    workspace.run("report", str(run)).ok()
    content = (run / "report.html").read_text(encoding="utf-8")
    assert "</b>" not in content
    policy = re.search(r"<meta http-equiv[^>]*>", content)
    assert policy
    for width in (390, 1280):
        found = ask_page(content.replace(policy[0], ""), RATES, tmp_path, width=width)
        assert isinstance(found, dict), found
        assert found["still"]
        assert found["names"] == ["right predictions", "<b>a</b>", "b", "c"]
        assert found["overall"][0].startswith("predictions that are accepted")
        assert found["drawn"]
        text = (
            "<b>a</b>, where its probability is above a threshold: average precision 1.000, area"
            " under ROC 1.000"
        )
        assert found["first"][0] == text
        assert found["first"][2] == ["0.5", "0.200", "1.000", "0.500", "0.000"]
        rate = "accepted, precision {}, recall {}, false positive rate {}"
        assert found["first"][1] == f"Threshold 0.7: 0.200 {rate.format('1.000', '0.500', '0.000')}"
        assert found["next"] == f"Threshold 0.4: 0.400 {rate.format('1.000', '1.000', '0.000')}"
        assert (
            found["before"]
            == f"Threshold above all: 0.000 {rate.format('1.000', '0.000', '0.000')}"
        )
        assert found["pointed"] == f"Threshold 0.4: 0.400 {rate.format('1.000', '1.000', '0.000')}"
