// Draws the page's figures from its JSON with Chart.js; the fields of a figure are described in
// figures.py. Colours are names ("--e2e") in the style sheet: a change of the colour scheme, or
// printing, redraws the figures.
(() => {
  "use strict";
  const SYMBOLS = {
    circle: "circle", diamond: "rectRot", square: "rect", triangle: "triangle", x: "crossRot",
    cross: "cross", star: "star",
  };
  const DASHES = {
    dash: [9, 5], dot: [2, 3], dashdot: [9, 4, 2, 4], longdash: [15, 6], longdashdot: [15, 5, 2, 5],
  };
  const ROW_GAP = 0.18; // of an average row's height
  const HEADING_GAP = 0.35; // the gap above a row with a heading
  const LABEL_HEIGHT = 16;
  const KEY = { width: 28, height: 12 }; // of a legend's symbol
  const MIN_DRAG = 6; // pixels; a shorter movement is a click
  const FAMILY = getComputedStyle(document.body).fontFamily;
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const narrow = matchMedia("(max-width: 40rem)");

  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const transparent = (name, opacity) => Chart.helpers.color(colour(name)).alpha(opacity).rgbString();
  const fontSize = () => (narrow.matches ? 11 : 12.5);
  const number = (value) =>
    typeof value === "number" ? Number(value.toPrecision(4)).toLocaleString("en-US", { maximumFractionDigits: 9 }) : value;

  function plotOf(chart, row) {
    const { left, right } = chart.chartArea;
    const { top, bottom } = chart.scales[`y${row}`];
    return { left, right, top, bottom };
  }

  function label(context, text, x, y, { name, align = "left", baseline = "bottom", background = false }) {
    context.font = `${fontSize() - 1.5}px ${FAMILY}`;
    context.textAlign = align;
    context.textBaseline = baseline;
    if (background) {
      const width = context.measureText(text).width + 4;
      const top = baseline === "bottom" ? y - LABEL_HEIGHT + 1 : y;
      context.fillStyle = transparent("--card", 0.85);
      context.fillRect(align === "right" ? x - width + 2 : x - 2, top, width, LABEL_HEIGHT - 1);
    }
    context.fillStyle = colour(name);
    context.fillText(text, x, y);
  }

  function drawSpans(chart, figure) {
    const { ctx: context, chartArea: area, scales } = chart;
    for (const span of figure.spans) {
      const inside = (value) => Math.min(area.right, Math.max(area.left, scales.x.getPixelForValue(value)));
      const [left, right] = [inside(span.start), inside(span.end)];
      if (right <= left) continue;
      context.fillStyle = colour("--shade");
      figure.rows.forEach((_, row) => {
        const { top, bottom } = plotOf(chart, row);
        context.fillRect(left, top, right - left, bottom - top);
      });
      const { top } = plotOf(chart, 0);
      if (right - left > 60) label(context, span.text, left + 5, top + 4, { name: "--quiet", baseline: "top" });
    }
  }

  function drawLimits(chart, figure) {
    const { ctx: context } = chart;
    const beyond = figure.rows.map(() => 0);
    for (const limit of figure.limits) {
      const { left, right, top } = plotOf(chart, limit.row);
      if (limit.beyond_data) {
        const y = top + 2 + LABEL_HEIGHT * beyond[limit.row]++;
        const style = { name: limit.colour, align: "right", baseline: "top", background: true };
        label(context, `↑ ${limit.text}`, right - 4, y, style);
        continue;
      }
      const y = chart.scales[`y${limit.row}`].getPixelForValue(limit.value);
      context.strokeStyle = colour(limit.colour);
      context.lineWidth = 1.5;
      context.setLineDash([6, 4]);
      context.beginPath();
      context.moveTo(left, y);
      context.lineTo(right, y);
      context.stroke();
      context.setLineDash([]);
      const baseline = y - top < LABEL_HEIGHT ? "top" : "bottom"; // inside the plot
      const style = { name: limit.colour, align: "right", baseline, background: true };
      label(context, limit.text, right - 4, baseline === "top" ? y + 3 : y - 1, style);
    }
  }

  // Intervals stand upright, or lie where the rows are categories.
  function drawIntervals(chart, figure) {
    const { ctx: context, chartArea: area } = chart;
    context.save();
    context.beginPath();
    context.rect(area.left, area.top, area.right - area.left, area.bottom - area.top);
    context.clip();
    figure.series.forEach((series, index) => {
      if (!series.low || !chart.isDatasetVisible(index)) return;
      const lying = Boolean(figure.rows[0].categories);
      const scale = lying ? chart.scales.x : chart.scales[`y${series.row || 0}`];
      context.strokeStyle = colour(series.colour);
      context.lineWidth = 1.5;
      chart.getDatasetMeta(index).data.forEach((point, i) => {
        for (const end of [series.low[i], series.high[i]]) {
          if (end === null) continue;
          const at = scale.getPixelForValue(end);
          context.beginPath();
          if (lying) {
            context.moveTo(point.x, point.y);
            context.lineTo(at, point.y);
            context.moveTo(at, point.y - 5);
            context.lineTo(at, point.y + 5);
          } else {
            context.moveTo(point.x, point.y);
            context.lineTo(point.x, at);
            context.moveTo(point.x - 4, at);
            context.lineTo(point.x + 4, at);
          }
          context.stroke();
        }
      });
    });
    context.restore();
  }

  function drawHeadings(chart, figure) {
    figure.rows.forEach((row, index) => {
      if (!row.heading) return;
      const { left, top } = plotOf(chart, index);
      label(chart.ctx, row.heading, left, top - 3, { name: "--quiet" });
    });
  }

  function drawSelection(chart, figure) {
    if (!figure.selection) return;
    const { ctx: context, chartArea: area } = chart;
    const [from, to] = figure.selection;
    context.fillStyle = transparent("--accent", 0.15);
    context.fillRect(Math.min(from, to), area.top, Math.abs(to - from), area.bottom - area.top);
  }

  const annotations = (figure) => ({
    id: "annotations",
    beforeDatasetsDraw: (chart) => drawSpans(chart, figure),
    afterDatasetsDraw(chart) {
      drawIntervals(chart, figure);
      drawLimits(chart, figure);
      drawHeadings(chart, figure);
      drawSelection(chart, figure);
    },
  });

  function hatched(series) {
    const size = 8;
    const tile = document.createElement("canvas");
    tile.width = tile.height = size;
    const context = tile.getContext("2d");
    context.fillStyle = colour(series.colour);
    context.fillRect(0, 0, size, size);
    context.strokeStyle = context.fillStyle = transparent("--card", 0.75);
    context.lineWidth = 1.5;
    const strokes = {
      "/": [[-2, 2, 2, -2], [0, 8, 8, 0], [6, 10, 10, 6]],
      "\\": [[-2, 6, 2, 10], [0, 0, 8, 8], [6, -2, 10, 2]],
      "-": [[0, 4, 8, 4]],
      x: [[0, 0, 8, 8], [0, 8, 8, 0]],
    };
    for (const [x0, y0, x1, y1] of strokes[series.pattern] || []) {
      context.beginPath();
      context.moveTo(x0, y0);
      context.lineTo(x1, y1);
      context.stroke();
    }
    if (series.pattern === ".") context.fillRect(3, 3, 2.5, 2.5);
    return context.createPattern(tile, "repeat");
  }

  const symbolOf = (series) => series.symbol ?? (series.kind === "points" ? "circle" : null);

  // Crosses and stars have no area: their strokes carry the colour.
  const isOutlined = (series) => series.filled === false || ["x", "cross", "star"].includes(series.symbol);

  // A series without a legend is hidden with the one that its name begins with.
  function isHidden(figure, series) {
    const belongsTo = (name) => series.legend === false && series.name.startsWith(`${name}, `);
    return [...figure.hidden].some((name) => name === series.name || belongsTo(name));
  }

  function dataset(figure, series) {
    const opacity = series.opacity ?? 1;
    const plain = transparent(series.colour, opacity);
    const symbol = symbolOf(series);
    const radius = Array.isArray(series.size) ? series.size.map((size) => size / 2) : (series.size ?? 5) / 2;
    const common = {
      label: series.name,
      data: series.x.map((x, i) => ({ x, y: series.y[i] })),
      yAxisID: `y${series.row || 0}`,
      hidden: isHidden(figure, series),
      borderColor: plain,
      clip: figure.zoom ? 0 : Math.max(5, ...[radius].flat()), // whole marks at the edges
    };
    if (series.kind === "bars") {
      const fill = series.pattern ? hatched(series) : plain;
      return {
        ...common, type: "bar", backgroundColor: fill, pointStyle: "rect", order: figure.series.indexOf(series),
        barPercentage: figure.rows[0].categories ? 0.72 : 0.9, categoryPercentage: 1,
      };
    }
    const marks = {
      pointStyle: SYMBOLS[symbol] || "line",
      pointRadius: symbol ? radius : 0,
      pointHoverRadius: symbol ? 5 : 4,
      pointHitRadius: 0,
      backgroundColor: isOutlined(series) ? transparent("--card", 0) : plain,
      borderWidth: isOutlined(series) ? 1.8 : 0,
      order: -figure.series.indexOf(series), // later series lie on top
    };
    if (series.kind === "points") return { ...common, ...marks, type: "scatter" };
    const stroke = { borderWidth: series.width ?? 2, borderDash: DASHES[series.dash] || [] };
    return {
      ...common, ...marks, ...stroke, type: "line", pointBorderWidth: 0, pointHoverBorderWidth: 0,
      stepped: series.steps ? "before" : false,
    };
  }

  // The largest and the smallest value that a row's axis has to show beyond its points.
  function extent(figure, row) {
    const ends = figure.series.filter((s) => (s.row || 0) === row && s.high).flatMap((s) => [...s.high, ...s.low]);
    const limits = figure.limits.filter((l) => l.row === row && !l.beyond_data).map((l) => l.value);
    return [...ends, ...limits].filter((value) => typeof value === "number");
  }

  function axisStyle(title) {
    return {
      title: { display: Boolean(title), text: title, color: colour("--ink"), font: { size: fontSize() } },
      grid: { color: colour("--grid"), tickLength: 4 },
      border: { color: colour("--line") },
      ticks: { color: colour("--quiet"), font: { size: fontSize() - 0.5 }, maxRotation: 0 },
    };
  }

  function horizontalAxis(figure) {
    const style = axisStyle(figure.x.title);
    const [min, max] = figure.zoom || figure.x.range || [];
    const type = figure.x.logarithmic ? "logarithmic" : "linear";
    const axis = { ...style, type, min, max, offset: false, grid: { ...style.grid, offset: false } };
    if (figure.rows[0].categories) {
      const ends = extent(figure, 0);
      axis.suggestedMin = Math.min(0, ...ends);
      axis.suggestedMax = Math.max(0, ...ends);
      axis.grid.color = (context) => colour(context.tick?.value === 0 ? "--quiet" : "--grid");
    }
    if (figure.x.ticks) {
      const names = new Map(figure.x.ticks);
      axis.afterBuildTicks = (scale) => {
        const visible = figure.x.ticks.filter(([value]) => value >= scale.min * 0.999 && value <= scale.max * 1.001);
        scale.ticks = visible.map(([value]) => ({ value }));
      };
      axis.ticks = { ...style.ticks, autoSkip: false, callback: (value) => names.get(value) };
    } else {
      axis.ticks = { ...style.ticks, autoSkipPadding: 16, includeBounds: !figure.zoom && !figure.x.range };
    }
    return axis;
  }

  function verticalAxis(figure, row, index) {
    const style = axisStyle(row.title);
    const stack = figure.rows.length > 1 ? { stack: "rows", stackWeight: row.weight ?? 1 } : {};
    if (row.categories) {
      const names = { ...style.ticks, autoSkip: false, color: colour("--ink") };
      return { ...style, type: "category", labels: row.categories, offset: true, ticks: names };
    }
    const ends = extent(figure, index);
    if (figure.scale === "log" && index === 0) {
      const powers = { ...style.ticks, callback: (value) => (/^[125]e/.test(value.toExponential()) ? number(value) : null) };
      const positive = ends.filter((value) => value > 0);
      return { ...style, ...stack, type: "logarithmic", suggestedMax: Math.max(...positive, 0) || undefined, ticks: powers };
    }
    const ticks = { ...style.ticks, maxTicksLimit: figure.rows.length > 2 ? 5 : 8 };
    return { ...style, ...stack, type: "linear", beginAtZero: true, suggestedMax: ends.length ? Math.max(...ends) : undefined, ticks };
  }

  // Chart.js stacks axes from the bottom up and without gaps: an invisible axis is a gap.
  function scales(figure) {
    const all = { x: horizontalAxis(figure) };
    const total = figure.rows.reduce((sum, row) => sum + (row.weight ?? 1), 0);
    [...figure.rows.keys()].reverse().forEach((index) => {
      const row = figure.rows[index];
      all[`y${index}`] = verticalAxis(figure, row, index);
      if (index > 0) {
        const share = row.heading ? HEADING_GAP : ROW_GAP;
        const stackWeight = (share * total) / figure.rows.length;
        const nothing = { display: false };
        all[`gap${index}`] = { axis: "y", type: "linear", stack: "rows", stackWeight, grid: nothing, ticks: nothing, border: nothing };
      }
    });
    return all;
  }

  function hoverLines(figure, item) {
    const series = figure.series[item.datasetIndex];
    const [x, y] = [series.x[item.dataIndex], series.y[item.dataIndex]];
    const text = (series.hover || "{y} at {x}").replace("{x}", number(x)).replace("{y}", number(y));
    const lines = text.replace("{text}", () => series.texts?.[item.dataIndex] ?? "").split("\n");
    return [`${series.name}: ${lines[0]}`, ...lines.slice(1).flatMap((part) => wrapped(part, narrow.matches ? 34 : 64))];
  }

  function wrapped(text, width) {
    const lines = [""];
    for (const word of text.split(" ")) {
      if (lines[lines.length - 1].length + word.length > width) lines.push("");
      lines[lines.length - 1] += (lines[lines.length - 1] ? " " : "") + word;
    }
    return lines.filter(Boolean);
  }

  function legendKey(series) {
    const canvas = document.createElement("canvas");
    const ratio = Math.max(2, devicePixelRatio);
    canvas.width = KEY.width * ratio;
    canvas.height = KEY.height * ratio;
    canvas.style.width = `${KEY.width}px`;
    canvas.style.height = `${KEY.height}px`;
    const context = canvas.getContext("2d");
    context.scale(ratio, ratio);
    context.strokeStyle = context.fillStyle = colour(series.colour);
    if (series.kind === "bars") {
      context.fillStyle = series.pattern ? hatched(series) : context.fillStyle;
      context.fillRect(4, 0, KEY.width - 8, KEY.height);
    }
    if (series.kind === "line") {
      context.lineWidth = series.width ?? 2;
      context.setLineDash(DASHES[series.dash] || []);
      context.beginPath();
      context.moveTo(0, KEY.height / 2);
      context.lineTo(KEY.width, KEY.height / 2);
      context.stroke();
      context.setLineDash([]);
    }
    if (symbolOf(series) && series.kind !== "bars") {
      if (isOutlined(series)) context.fillStyle = "transparent";
      const mark = { pointStyle: SYMBOLS[symbolOf(series)], radius: 4.5, borderWidth: isOutlined(series) ? 1.8 : 0 };
      Chart.helpers.drawPoint(context, mark, KEY.width / 2, KEY.height / 2);
    }
    return canvas;
  }

  function legendEntry(figure, series) {
    const button = document.createElement("button");
    button.type = "button";
    button.append(legendKey(series), series.name);
    button.setAttribute("aria-pressed", String(!figure.hidden.has(series.name)));
    button.addEventListener("click", () => {
      if (!figure.hidden.delete(series.name)) figure.hidden.add(series.name);
      button.setAttribute("aria-pressed", String(!figure.hidden.has(series.name)));
      draw(figure);
    });
    return button;
  }

  function drawLegend(figure) {
    const named = figure.legend ? figure.series.filter((series) => series.legend ?? true) : [];
    const legend = document.querySelector(`#${figure.id}`).previousElementSibling;
    legend.replaceChildren(...named.map((series) => legendEntry(figure, series)));
  }

  function tooltip(figure) {
    return {
      backgroundColor: colour("--hover"), borderColor: colour("--line"), borderWidth: 1,
      bodyColor: colour("--ink"), bodyFont: { size: fontSize() }, padding: 8, boxPadding: 4, usePointStyle: true,
      animation: false, caretSize: 0, caretPadding: 8,
      callbacks: { title: () => "", label: (item) => hoverLines(figure, item) },
      filter: (item, index) => index < 6,
      itemSort: (a, b) => a.datasetIndex - b.datasetIndex,
    };
  }

  function configuration(figure) {
    const hasPoints = figure.series.some((series) => series.kind === "points");
    const hasBars = figure.series.some((series) => series.kind === "bars");
    const lying = hasBars && Boolean(figure.rows[0].categories);
    const all = scales(figure);
    if (lying) all.x.stacked = all.y0.stacked = true;
    const nearest = { mode: "nearest", intersect: false, axis: hasPoints ? "xy" : "x" };
    return {
      type: "scatter",
      data: { datasets: figure.series.map((series) => dataset(figure, series)) },
      options: {
        animation: false, responsive: true, maintainAspectRatio: false, locale: "en-US",
        indexAxis: lying ? "y" : "x",
        layout: { padding: { right: 12, top: figure.rows[0].heading ? LABEL_HEIGHT + 4 : 8 } },
        interaction: hasBars ? { mode: "nearest", intersect: true } : nearest,
        scales: all,
        font: { family: FAMILY },
        plugins: { legend: { display: false }, tooltip: tooltip(figure), colors: { enabled: false } },
      },
      plugins: [annotations(figure)],
    };
  }

  function draw(figure) {
    const canvas = document.querySelector(`#${figure.id} canvas`);
    Chart.getChart(canvas)?.destroy();
    new Chart(canvas, configuration(figure));
  }

  function drawAll() {
    figures.forEach(draw);
    figures.forEach(drawLegend);
    document.documentElement.dataset.drawn = String(figures.length);
  }

  // A drag with the mouse shows its part of the horizontal axis, a double click shows all of it.
  function zoomable(figure, canvas) {
    const move = (event) => {
      const { left, right } = Chart.getChart(canvas).chartArea;
      return Math.min(right, Math.max(left, event.offsetX));
    };
    canvas.addEventListener("pointerdown", (event) => {
      const { top, bottom, left, right } = Chart.getChart(canvas).chartArea;
      const inside = event.offsetY >= top && event.offsetY <= bottom && event.offsetX >= left && event.offsetX <= right;
      if (!inside || event.pointerType !== "mouse" || event.button !== 0) return;
      canvas.setPointerCapture(event.pointerId);
      figure.selection = [move(event), move(event)];
    });
    canvas.addEventListener("pointermove", (event) => {
      if (!figure.selection) return;
      figure.selection[1] = move(event);
      Chart.getChart(canvas).draw();
    });
    canvas.addEventListener("pointerup", () => {
      if (!figure.selection) return;
      const [from, to] = figure.selection.sort((a, b) => a - b);
      figure.selection = null;
      const { x } = Chart.getChart(canvas).scales;
      if (to - from >= MIN_DRAG) figure.zoom = [x.getValueForPixel(from), x.getValueForPixel(to)];
      draw(figure);
    });
    canvas.addEventListener("dblclick", () => {
      figure.zoom = null;
      draw(figure);
    });
  }

  function prepare(figure) {
    figure.hidden = new Set();
    const holder = document.getElementById(figure.id);
    holder.style.height = `${figure.height}px`;
    const legend = document.createElement("div");
    legend.className = "legend";
    holder.before(legend);
    const canvas = holder.appendChild(document.createElement("canvas"));
    if (!figure.rows[0].categories) zoomable(figure, canvas);
  }

  function chooseScale(group, event) {
    const button = event.target.closest("button");
    if (!button) return;
    const figure = figures.find((f) => f.id === group.dataset.figure);
    figure.scale = button.dataset.scale;
    for (const choice of group.children) choice.setAttribute("aria-pressed", String(choice === button));
    draw(figure);
  }

  try {
    figures.forEach(prepare);
    drawAll();
    for (const group of document.querySelectorAll(".scale")) {
      group.hidden = false;
      group.addEventListener("click", (event) => chooseScale(group, event));
    }
    document.getElementById("zoom").hidden = figures.length === 0;
    for (const query of ["(prefers-color-scheme: dark)", "print", "(max-width: 40rem)"]) {
      matchMedia(query).addEventListener("change", drawAll);
    }
  } catch (error) {
    const problem = document.getElementById("problem");
    problem.hidden = false;
    problem.textContent = `The charts could not be drawn: ${error}. The tables hold the same figures.`;
    throw error;
  }
})();
