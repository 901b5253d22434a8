// Draws the figures of the page from the JSON in it. Colours are named ("--e2e") and looked up in
// the style sheet, so that a change of the colour scheme, or printing, draws them again.
(async () => {
  "use strict";
  const CONFIG = {
    responsive: true,
    displaylogo: false,
    displayModeBar: "hover",
    showSendToCloud: false, // a button that uploads the figures
    plotlyServerURL: "",
    modeBarButtonsToRemove: ["lasso2d", "select2d"],
  };
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const problems = document.getElementById("problem");

  async function loadPlotly() {
    const packed = document.getElementById("plotly").textContent.trim();
    const bytes = Uint8Array.from(atob(packed), (c) => c.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    const script = document.createElement("script");
    script.textContent = await new Response(stream).text();
    document.head.append(script);
  }

  function coloured(value, style) {
    if (typeof value === "string") {
      return value.startsWith("--") ? style.getPropertyValue(value).trim() : value;
    }
    if (Array.isArray(value)) {
      const first = value[0];
      const flat = typeof first === "number" || first === null;
      return flat ? value : value.map((item) => coloured(item, style));
    }
    if (value && typeof value === "object") {
      const entries = Object.entries(value).map(([key, item]) => [key, coloured(item, style)]);
      return Object.fromEntries(entries);
    }
    return value;
  }

  function hasWebGl() {
    const context = document.createElement("canvas").getContext("webgl");
    return Boolean(context && context.getExtension("OES_element_index_uint"));
  }

  const narrow = matchMedia("(max-width: 40rem)");
  const webGl = figures.some((f) => f.data.some((t) => t.type === "scattergl")) && hasWebGl();

  function draw(figure) {
    const style = getComputedStyle(document.documentElement);
    const data = coloured(figure.data, style);
    const layout = coloured(figure.layout, style);
    for (const trace of data) {
      if (trace.type === "scattergl" && !webGl) trace.type = "scatter";
    }
    if (figure.scale) layout.yaxis.type = figure.scale;
    if (figure.scale === "log") {
      // plotly.js places shapes by value, but annotations on a logarithmic axis by exponent.
      for (const label of layout.annotations) if (label.yref === "y") label.y = Math.log10(label.y);
    }
    layout.autosize = true;
    layout.uirevision = figure.scale || "as it was";
    if (narrow.matches) {
      layout.margin = { ...layout.margin, l: 48, r: 10 };
      layout.font = { ...layout.font, size: 11 };
    }
    const config = narrow.matches ? { ...CONFIG, displayModeBar: false } : CONFIG;
    return Plotly.react(figure.id, data, layout, config);
  }

  async function drawAll() {
    for (const figure of figures) await draw(figure);
    document.documentElement.dataset.drawn = String(figures.length);
  }

  for (const group of document.querySelectorAll(".scale")) {
    group.hidden = false;
    group.addEventListener("click", (event) => {
      const button = event.target.closest("button");
      if (!button) return;
      const figure = figures.find((f) => f.id === group.dataset.figure);
      figure.scale = button.dataset.scale;
      for (const other of group.children) other.setAttribute("aria-pressed", String(other === button));
      draw(figure);
    });
  }

  try {
    await loadPlotly();
    await drawAll();
    for (const query of ["(prefers-color-scheme: dark)", "print", "(max-width: 40rem)"]) {
      matchMedia(query).addEventListener("change", drawAll);
    }
  } catch (error) {
    problems.hidden = false;
    problems.textContent = `The charts could not be drawn: ${error}. The tables hold the same figures.`;
    throw error;
  }
})();
