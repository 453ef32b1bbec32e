"use strict";
// Charts are Vega-Lite; the page adds the slider that moves clients, and the heat maps.
(() => {
  const font = getComputedStyle(document.body).fontFamily;
  const axis = {
    labelColor: "var(--muted)", titleColor: "var(--muted)", domainColor: "var(--line)",
    tickColor: "var(--line)", gridColor: "var(--line)", titleFontWeight: "normal", titlePadding: 6,
    labelFontSize: 11, titleFontSize: 11,
  };
  const options = {
    actions: false,
    renderer: "svg", // so that colours can be the page's own
    tooltip: { disableDefaultStyle: true },
    config: {
      background: null, font, view: { stroke: null }, axis, text: { color: "var(--ink)" },
      autosize: { type: "fit", contains: "padding" },
    },
  };
  const calm = matchMedia("(prefers-reduced-motion: reduce)");
  const parse = (element) => JSON.parse(element.textContent);
  const embed = (element) => vegaEmbed(element, parse(document.getElementById(element.dataset.chart)), options);

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

  function heat(figure) {
    const { names, edge, low, high, bytes } = parse(figure.querySelector("script"));
    const canvas = figure.querySelector("canvas"), say = figure.querySelector(".say");
    const n = names.length, cell = Math.max(Math.ceil(800 / n), 1);
    const levels = Uint8Array.from(atob(bytes), (letter) => letter.charCodeAt(0));
    const paint = canvas.getContext("2d");
    canvas.width = canvas.height = n * cell;
    let row = 0, column = 0;

    function shade(name) { // a colour of the page as red, green, blue
      const hex = getComputedStyle(figure).getPropertyValue(name).trim();
      return [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
    }
    function draw(marked) {
      const from = shade("--card"), to = shade("--accent");
      const palette = Array.from({ length: 256 }, (_, i) => `rgb(${from.map((v, c) => v + ((to[c] - v) * i) / 255)})`);
      levels.forEach((level, i) => {
        paint.fillStyle = palette[level];
        paint.fillRect((i % n) * cell, Math.floor(i / n) * cell, cell, cell);
      });
      paint.fillStyle = getComputedStyle(figure).getPropertyValue("--paper");
      let seam = 0;
      for (const [, span] of edge) {
        paint.fillRect(seam * cell - 1, 0, 2, n * cell);
        paint.fillRect(0, seam * cell - 1, n * cell, 2);
        seam += span;
      }
      if (marked) {
        paint.strokeStyle = getComputedStyle(figure).getPropertyValue("--ink");
        paint.lineWidth = 3;
        paint.strokeRect(column * cell, row * cell, cell, cell);
      }
    }
    function read(nextRow, nextColumn) {
      row = Math.min(Math.max(nextRow, 0), n - 1);
      column = Math.min(Math.max(nextColumn, 0), n - 1);
      const value = low + (levels[row * n + column] / 255) * (high - low);
      say.textContent = `${names[row]} · ${names[column]}: ${value.toFixed(4)}`;
    }
    canvas.addEventListener("pointermove", (event) => {
      const box = canvas.getBoundingClientRect();
      read(Math.floor(((event.clientY - box.top) / box.height) * n), Math.floor(((event.clientX - box.left) / box.width) * n));
    });
    canvas.addEventListener("keydown", (event) => {
      const move = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
      if (!move) return;
      event.preventDefault();
      read(row + move[0], column + move[1]);
      draw(true);
    });
    canvas.addEventListener("blur", () => draw(false));
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => draw(false));
    draw(false);
  }

  // What comes into view is drawn first, so that a page of several runs opens at once; the rest when
  // there is time, so that it can be printed. In closed details there is no width to draw in.
  const waiting = new Set(document.querySelectorAll(".chart, .heat"));
  async function show(target) {
    if (!waiting.delete(target)) return;
    seen.unobserve(target);
    if (target.classList.contains("heat")) return heat(target);
    const { view } = await embed(target);
    const figure = target.closest(".plane");
    if (figure) play(figure, view);
  }
  const seen = new IntersectionObserver((entries) => {
    for (const { isIntersecting, target } of entries) if (isIntersecting) show(target);
  }, { rootMargin: "400px" });
  for (const element of waiting) seen.observe(element);
  addEventListener("load", async () => {
    for (const element of [...waiting]) {
      await new Promise((go) => setTimeout(go, 50));
      if (element.getClientRects().length) await show(element);
    }
  });
})();
