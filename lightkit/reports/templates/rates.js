"use strict";
{
  // precision over recall, and ROC, of one class at a time
  const source = document.getElementById("rate-data"), figure = document.querySelector('[data-chart="thresholds"]');
  if (source && figure) {
    const choices = JSON.parse(source.textContent).map((each) => {
      const taken = each.right.map((right, at) => right + each.wrong[at]), last = taken.length - 1;
      return { ...each, last,
        accepted: taken.map((number) => number / taken[last]),
        precision: each.right.map((right, at) => (taken[at] ? right / taken[at] : 1)),
        recall: each.right.map((right) => right / each.right[last]),
        fallout: each.wrong.map((wrong) => wrong / each.wrong[last]) };
    });
    const columns = ["accepted", "precision", "recall", "fallout"];
    const axes = [["recall", "precision", "recall", "precision"], ["fallout", "recall", "false positive rate", "true positive rate"]];
    const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name);
    const create = (name, settings) => Object.assign(document.createElement(name), settings);
    const share = (value) => value.toFixed(3);
    let shown = choices[0], at = 0, plots = [];
    const select = create("select"), label = create("label", { className: "controls" });
    choices.forEach((each, number) => select.append(new Option(each.name, number)));
    label.append("curves of", select);
    const box = create("div", { className: "rates", tabIndex: 0, role: "group", ariaLabel: "Curves: left and right move along them" });
    const point = create("p", { className: "note", ariaLive: "polite" });
    const [caption, still] = figure.children;
    still.hidden = true;
    still.after(label, box, point);
    const width = () => Math.max(160, box.clientWidth < 400 ? box.clientWidth : box.clientWidth / 2 - 8);
    const go = (next) => {
      at = Math.min(shown.last, Math.max(0, next));
      const [accepted, precision, recall, fallout] = columns.map((name) => share(shown[name][at]));
      point.textContent = `Threshold ${shown.threshold[at] ?? "above all"}: ${accepted} accepted, precision ${precision}, recall ${recall}, false positive rate ${fallout}`;
      plots.forEach((plot) => plot.redraw(false));
    };
    const choose = () => {
      shown = choices[+select.value];
      caption.textContent = `${shown.subject}: average precision ${share(shown.ap)}, area under ROC ${share(shown.area)}`;
      plots.forEach((plot, number) => plot.setData(axes[number].slice(0, 2).map((name) => shown[name])));
      figure.parentElement.querySelectorAll("tbody tr").forEach((row, number) => {
        columns.forEach((name, column) => { row.cells[column + 1].textContent = share(shown[name][shown.rows[number]]); });
      });
      go(shown.rows[0]);
    };
    plots = axes.map(([x, y, ...names]) => {
      const place = (plot, index, onCanvas) => [plot.valToPos(shown[x][index], "x", onCanvas), plot.valToPos(shown[y][index], "y", onCanvas)];
      const axis = (name) => ({ label: name, labelSize: 20, labelFont: "12px sans-serif", size: 34, splits: () => [0, 0.25, 0.5, 0.75, 1], values: (_, ticks) => ticks,
        stroke: () => color("--dim"), ticks: { show: false }, grid: { stroke: () => color("--line"), width: 1 } });
      return new uPlot({
        width: width(), height: 230, legend: { show: false }, axes: names.map(axis),
        scales: { x: { time: false, range: [0, 1] }, y: { range: [0, 1.02] } },
        cursor: { x: false, y: false, drag: { x: false }, points: { show: false } },
        series: [{}, { stroke: () => color("--c0"), width: 1.8, points: { show: false } }],
        hooks: {
          setCursor: [(plot) => {
            // the nearest on the screen: many points of a curve are above one another
            const far = (index) => { const [left, top] = place(plot, index); return Math.hypot(left - plot.cursor.left, top - plot.cursor.top); };
            if (plot.cursor.left >= 0) go(shown.recall.reduce((best, _, index) => (far(index) < far(best) ? index : best), at));
          }],
          draw: [(plot) => {
            plot.ctx.fillStyle = color("--c1");
            plot.ctx.beginPath();
            plot.ctx.arc(...place(plot, at, true), 4 * devicePixelRatio, 0, 7);
            plot.ctx.fill();
          }],
        },
      }, [[], []], box);
    });
    choose();
    select.addEventListener("change", choose);
    box.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (step) { event.preventDefault(); go(at + step); }
    });
    new ResizeObserver(() => box.clientWidth && plots.forEach((plot) => plot.setSize({ width: width(), height: 230 }))).observe(figure);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => go(at));
    addEventListener("beforeprint", () => { select.value = 0; choose(); });
  }
}
