"use strict";
// Charts are Vega-Lite; the page adds the slider that moves clients, and arrow keys that read heat maps.
(() => {
  const font = getComputedStyle(document.body).fontFamily;
  const axis = {
    labelColor: "var(--muted)", titleColor: "var(--muted)", domainColor: "var(--line)",
    tickColor: "var(--line)", gridColor: "var(--line)", titleFontWeight: "normal", titlePadding: 6,
    labelFontSize: 11, titleFontSize: 11,
  };
  const options = {
    actions: false,
    tooltip: { disableDefaultStyle: true },
    config: {
      background: null, font, view: { stroke: null }, axis, text: { color: "var(--ink)" },
      autosize: { type: "fit", contains: "padding" },
    },
  };
  const calm = matchMedia("(prefers-reduced-motion: reduce)");
  const parse = (element) => JSON.parse(element.textContent);
  const specOf = (element) => parse(document.getElementById(element.dataset.chart));
  const embed = (element) => vegaEmbed(element, specOf(element), { ...options, renderer: "svg" });

  // A heat map has too many cells for SVG, and a canvas can't look up the colours of the page.
  function embedOnCanvas(element) {
    const style = getComputedStyle(element);
    const coloured = (value) => JSON.parse(
      JSON.stringify(value).replace(/var\((--\w+)\)/g, (_, name) => style.getPropertyValue(name).trim()),
    );
    return vegaEmbed(element, coloured(specOf(element)), { ...coloured(options), renderer: "canvas" });
  }

  function play(figure, view) {
    const slider = figure.querySelector("input[type=range]");
    const button = figure.querySelector(".play");
    const { rounds, notes } = parse(figure.querySelector(".stops"));
    const last = rounds.length - 1;
    let now = last, moving = 0, timer = 0;

    function tell() {
      const stop = Number(slider.value);
      figure.querySelector(".round b").textContent = rounds[stop];
      figure.querySelector(".say").textContent = notes[stop];
      slider.setAttribute("aria-valuetext", `round ${rounds[stop]}: ${notes[stop]}`);
    }
    function glide() {
      cancelAnimationFrame(moving);
      tell();
      const from = now, to = Number(slider.value), began = performance.now(), took = calm.matches ? 0 : 450;
      (function frame(time) {
        const part = took ? Math.min(Math.max((time - began) / took, 0), 1) : 1;
        now = from + (to - from) * part * part * (3 - 2 * part);
        view.signal("t", now).run();
        if (part < 1) moving = requestAnimationFrame(frame);
      })(began);
    }
    function pause() {
      clearInterval(timer);
      timer = 0;
      button.textContent = "▶";
      button.setAttribute("aria-label", "Play");
    }
    function step() {
      slider.value = Number(slider.value) + 1;
      glide();
      if (Number(slider.value) >= last) pause();
    }
    button.addEventListener("click", () => {
      if (timer) return pause();
      if (Number(slider.value) >= last) { slider.value = 0; glide(); }
      button.textContent = "❚❚";
      button.setAttribute("aria-label", "Pause");
      timer = setInterval(step, 900);
    });
    slider.addEventListener("input", () => { pause(); glide(); });
    for (const radio of figure.querySelectorAll("input[type=radio]")) {
      radio.addEventListener("change", () => view.signal("by", radio.value).run());
    }
    tell();
  }

  async function heat(figure) {
    const chart = figure.querySelector(".chart"), say = figure.querySelector(".say");
    const low = Number(chart.dataset.low), step = Number(chart.dataset.step);
    let drawn = await embedOnCanvas(chart), row = 0, column = 0;
    const names = drawn.view.data("levels-names").map((each) => each.name);
    const levels = drawn.view.data("levels").map((each) => each.data); // the lower triangle, row by row
    const within = (place) => Math.min(Math.max(place, 0), names.length - 1);

    chart.addEventListener("keydown", (event) => {
      const move = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
      if (!move) return;
      event.preventDefault();
      row = within(row + move[0]);
      column = within(column + move[1]);
      const below = Math.max(row, column), level = levels[(below * (below + 1)) / 2 + Math.min(row, column)];
      say.textContent = `${names[row]} · ${names[column]}: ${(low + level * step).toFixed(4)}`;
      drawn.view.signal("at_row", row).signal("at_column", column).run();
    });
    chart.addEventListener("blur", () => drawn.view.signal("at_row", -1).run());
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", async () => {
      drawn.finalize();
      drawn = await embedOnCanvas(chart);
    });
  }

  // What comes into view is drawn first, so that a page of several runs opens at once; the rest when
  // there is time, so that it can be printed. In closed details there is no width to draw in.
  const waiting = new Set(document.querySelectorAll(".chart"));
  async function show(target) {
    if (!waiting.delete(target)) return;
    seen.unobserve(target);
    const map = target.closest(".heat"), plane = target.closest(".plane");
    if (map) return heat(map);
    const { view } = await embed(target);
    if (plane) play(plane, view);
  }
  const seen = new IntersectionObserver((entries) => {
    for (const { isIntersecting, target } of entries) if (isIntersecting) show(target);
  }, { rootMargin: "400px" });
  for (const element of waiting) seen.observe(element);

  // Of several runs each is folded: a link to a run opens it, and all are opened to be printed.
  const open = (id) => { if (id) document.getElementById(id)?.setAttribute("open", ""); };
  for (const link of document.querySelectorAll(".overview a")) {
    link.addEventListener("click", () => open(link.hash.slice(1)));
  }
  open(location.hash.slice(1));
  addEventListener("beforeprint", () => {
    for (const run of document.querySelectorAll("details.run")) run.open = true;
    for (const element of [...waiting]) if (element.getClientRects().length) show(element);
  });
  addEventListener("load", async () => {
    for (const element of [...waiting]) {
      await new Promise((go) => setTimeout(go, 50));
      if (element.getClientRects().length) await show(element);
    }
  });
})();
