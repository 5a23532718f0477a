"use strict";
const source = document.getElementById("chart-data");
if (source) {
  const charts = JSON.parse(source.textContent).map((chart) => ({ ...chart, figure: document.querySelector(`[data-chart="${chart.name}"]`) }))
    .filter((chart) => chart.figure);
  const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const dashes = [undefined, [8, 3], [2, 2], [8, 2, 2, 2]];
  const format = (value) => (value == null ? "-" : String(+value.toPrecision(4)));
  const clock = (seconds) => (seconds < 120 ? `${format(seconds)} s` : seconds < 7200 ? `${format(seconds / 60)} min` : `${format(seconds / 3600)} h`);
  const smooth = (values, weight) => {
    // an exponential average without the bias of its start, as TensorBoard draws it
    let sum = 0, share = 0;
    return values.map((value) => {
      if (value == null) return null;
      sum = sum * weight + (1 - weight) * value;
      share = share * weight + (1 - weight);
      return sum / share;
    });
  };
  const tables = (chart, axis, weight, log) => {
    const seen = (value) => (log && value <= 0 ? null : value);
    return uPlot.join(chart.x.map((columns, at) => {
      const xs = columns[axis], keep = xs.map((x, row) => x != null && (row === 0 || x > xs[row - 1]) ? row : -1).filter((row) => row >= 0);
      const own = chart.series.filter((each) => each.x === at);
      const pick = (values) => keep.map((row) => seen(values[row]));
      return [keep.map((row) => xs[row]), ...own.map((each) => smooth(pick(each.y), weight)), ...own.map((each) => pick(each.y))];
    }));
  };
  const order = (chart) => chart.x.flatMap((_, at) => {
    const own = chart.series.filter((each) => each.x === at);
    return [...own.map((each) => [each, false]), ...own.map((each) => [each, true])];
  });
  const draw = (chart) => {
    const { axis, weight, log } = chart.state;
    const hidden = new Set(chart.plot ? chart.plot.series.filter((each) => each.show === false && !each.raw).map((each) => each.label) : []);
    chart.plot && chart.plot.destroy();
    const name = `${chart.name.startsWith("resource") ? "resource" : "curve"}-${axis}`;
    const series = order(chart).map(([each, raw]) => ({
      label: each.label, raw, scale: "y", spanGaps: true, width: raw ? 1 : 1.8, alpha: raw ? 0.35 : 1,
      show: raw ? weight > 0 && !hidden.has(each.label) : !hidden.has(each.label), dash: dashes[each.dash % 4],
      stroke: () => color(`--c${each.color % 6}`), value: (_, value) => format(value),
      points: raw ? { show: false } : { size: 5 },
    }));
    const line = { stroke: () => color("--dim"), grid: { stroke: () => color("--line"), width: 1 }, ticks: { stroke: () => color("--line"), width: 1 } };
    const seconds = axis === "seconds";
    chart.plot = new uPlot({
      width: Math.max(200, chart.box.clientWidth), height: 230,
      scales: { x: { time: false }, y: { distr: log ? 3 : 1 } },
      axes: [{ ...line, values: seconds ? (_, ticks) => ticks.map(clock) : undefined },
        { ...line, size: 56, values: (_, ticks) => ticks.map((tick) => (tick == null ? "" : format(tick))) }],
      cursor: { sync: { key: name }, drag: { x: true, y: false } },
      series: [{ label: axis, value: (_, value) => (value == null ? "-" : seconds ? clock(value) : format(value)) }, ...series],
      hooks: {
        setSeries: [(plot, at) => {
          const changed = at != null && plot.series[at];
          const twin = changed && plot.series.findIndex((each) => each.raw && !changed.raw && each.label === changed.label);
          if (twin > 0 && plot.series[twin].show !== (weight > 0 && changed.show)) plot.setSeries(twin, { show: weight > 0 && changed.show });
        }],
        draw: [(plot) => {
          if (chart.best == null || axis !== chart.axes[0]) return;
          const x = plot.valToPos(chart.best, "x", true), { ctx, bbox } = plot;
          if (x < bbox.left || x > bbox.left + bbox.width) return;
          ctx.save();
          ctx.strokeStyle = ctx.fillStyle = color("--dim");
          ctx.setLineDash([4, 4]);
          ctx.beginPath();
          ctx.moveTo(x, bbox.top);
          ctx.lineTo(x, bbox.top + bbox.height);
          ctx.stroke();
          ctx.fillText("best", x + 4, bbox.top + 10 * devicePixelRatio);
          ctx.restore();
        }],
      },
    }, tables(chart, axis, weight, log), chart.box);
    chart.box.querySelectorAll(".u-series").forEach((row, at) => {
      if (at && series[at - 1].raw) row.hidden = true;
      const label = row.querySelector("th");
      if (!at) return;
      label.tabIndex = 0;
      label.setAttribute("role", "button");
      label.setAttribute("aria-pressed", String(series[at - 1].show));
      label.addEventListener("keydown", (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); label.click(); } });
      label.addEventListener("click", () => label.setAttribute("aria-pressed", String(chart.plot.series[at].show)));
    });
  };
  const range = (chart) => { const xs = chart.plot.data[0]; return [xs[0], xs[xs.length - 1]]; };
  const zoom = (chart, factor) => {
    const { min, max } = chart.plot.scales.x, at = chart.plot.cursor.left;
    const middle = at >= 0 ? chart.plot.posToVal(at, "x") : (min + max) / 2, [low, high] = range(chart);
    chart.plot.setScale("x", { min: Math.max(low, middle - (middle - min) * factor), max: Math.min(high, middle + (max - middle) * factor) });
  };
  const reset = (chart) => { const [min, max] = range(chart); chart.plot.setScale("x", { min, max }); };
  const move = (chart, step) => {
    const plot = chart.plot, xs = plot.data[0], last = plot.cursor.idx ?? (step > 0 ? -1 : xs.length);
    const at = Math.min(xs.length - 1, Math.max(0, last + step));
    plot.setCursor({ left: plot.valToPos(xs[at], "x"), top: plot.over.clientHeight / 2 });
  };
  const keys = { ArrowRight: (chart) => move(chart, 1), ArrowLeft: (chart) => move(chart, -1), "+": (chart) => zoom(chart, 0.5), "-": (chart) => zoom(chart, 2), Escape: reset, "0": reset };
  const control = (bar, text, element) => {
    const label = document.createElement("label");
    label.append(text, " ", element);
    bar.append(label);
    return element;
  };
  const input = (type, settings) => Object.assign(document.createElement("input"), { type }, settings);
  const groups = new Map();
  for (const chart of charts) {
    const section = chart.figure.closest("section");
    groups.set(section, [...(groups.get(section) ?? []), chart]);
    chart.state = { axis: chart.axes[0], weight: 0, log: chart.log };
    chart.still = chart.figure.querySelector(".scroll");
    chart.box = document.createElement("div");
    chart.box.className = "chart";
    chart.box.tabIndex = 0;
    chart.box.setAttribute("role", "group");
    chart.box.setAttribute("aria-label", `${chart.figure.querySelector("figcaption").textContent}: left and right move, plus and minus zoom, Escape shows all`);
    chart.still.after(chart.box);
    chart.still.hidden = true;
    chart.box.addEventListener("keydown", (event) => {
      if (event.target === chart.box && keys[event.key]) { event.preventDefault(); keys[event.key](chart); }
    });
    draw(chart);
    new ResizeObserver(() => {
      const width = chart.box.clientWidth;
      if (width && Math.abs(width - chart.plot.width) > 1) chart.plot.setSize({ width, height: 230 });
    }).observe(chart.figure);
  }
  for (const [section, own] of groups) {
    const bar = document.createElement("div");
    bar.className = "controls";
    const change = (settings) => own.forEach((chart) => { Object.assign(chart.state, settings); draw(chart); });
    if (own[0].axes.length > 1) {
      const axis = control(bar, "by", document.createElement("select"));
      own[0].axes.forEach((name) => axis.append(new Option(name, name)));
      axis.addEventListener("change", () => change({ axis: axis.value }));
    }
    const weight = control(bar, "smoothing", input("range", { min: 0, max: 0.99, step: 0.01, value: 0 }));
    weight.addEventListener("input", () => change({ weight: +weight.value }));
    const log = control(bar, "log axis", input("checkbox", { checked: own.some((chart) => chart.log), indeterminate: own.some((chart) => chart.log) && !own.every((chart) => chart.log) }));
    log.addEventListener("change", () => change({ log: log.checked }));
    const all = Object.assign(document.createElement("button"), { type: "button", textContent: "show all" });
    all.addEventListener("click", () => own.forEach(reset));
    bar.append(all, Object.assign(document.createElement("span"), { className: "dim", textContent: "drag to zoom, click a name to hide it" }));
    own[0].figure.closest(".plots").before(bar);
  }
  const redraw = () => charts.forEach((chart) => chart.plot.redraw(false));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
}
