"use strict";
// Draws the charts, follows the sliders and buttons, and, while a run goes on, takes in what is new.

const figures = JSON.parse(document.getElementById("figures").textContent);
const dark = matchMedia("(prefers-color-scheme: dark)");
const still = matchMedia("(prefers-reduced-motion: reduce)");
const SYMBOLS = ["circle", "square", "diamond", "triangle-up", "cross", "x", "star"];
const PATHS = [ // the same, for the legend
  "M6 1.5a4.5 4.5 0 1 0 .01 0Z", "M2 2H10V10H2Z", "M6 .5 11 6 6 11.5 1 6Z", "M6 1 11.5 10.5H.5Z",
  "M4.5 1h3v3.5H11v3H7.5V11h-3V7.5H1v-3H4.5Z", "M3 1 6 4 9 1 11 3 8 6 11 9 9 11 6 8 3 11 1 9 4 6 1 3Z",
  "M6 .5 7.5 4.5 11.5 4.6 8.4 7.1 9.5 11 6 8.8 2.5 11 3.6 7.1.5 4.6 4.5 4.5Z",
];
const PLAY_EVERY = 900; // milliseconds
const MOST_NAMES = 30; // on the map: more would cover it, and only the one that is chosen is named
const ASK_EVERY = 1000;

// what the reader has chosen; `step` null is the newest, also when there is a newer one
const chosen = { step: null, colour: null, group: null };

// -- charts ---------------------------------------------------------------------------------------------------------

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

function themed(layout) {
  const narrow = document.documentElement.clientWidth < 600;
  const look = {
    autosize: true, uirevision: "kept", paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: "system-ui, sans-serif", size: 12, color: colour("ink") },
    margin: { l: narrow ? 36 : 52, r: 12, t: layout.annotations?.length ? 42 : 8, b: 44 },
    hoverlabel: { bgcolor: colour("card"), bordercolor: colour("line"), font: { color: colour("ink") } },
    ...structuredClone(layout),
  };
  look.legend = { orientation: "h", x: 0, y: 0, yref: "container", yanchor: "bottom", ...look.legend };
  if (look.showlegend) look.margin.b = narrow ? 100 : 84;
  for (const name of Object.keys(look).filter((key) => /^[xy]axis/.test(key))) {
    look[name] = { gridcolor: colour("line"), linecolor: colour("line"), zeroline: false, automargin: true, ...look[name] };
  }
  return look;
}

const CONFIG = { responsive: true, displaylogo: false, displayModeBar: false, scrollZoom: false };

function draw(name) {
  const place = document.querySelector(`[data-figure="${name}"]`);
  if (!place || !figures[name]) return;
  if (figures[name].latent) drawLatent(place, figures[name]);
  else Plotly.react(place, structuredClone(figures[name].data), themed(figures[name].layout), CONFIG);
}

function drawAll() {
  for (const name of Object.keys(figures)) draw(name);
}

// -- latent space ---------------------------------------------------------------------------------------------------

function colourBy(latent) {
  return latent.labels && chosen.colour !== "component" ? "class" : "component";
}

function median(values) {
  return values.sort((a, b) => a - b)[Math.floor(values.length / 2)];
}

function middle(members, view) { // the member nearest to their median, which may itself lie where there is none
  const x = median(members.map((n) => view.x[n]));
  const y = median(members.map((n) => view.y[n]));
  const far = (n) => (view.x[n] - x) ** 2 + (view.y[n] - y) ** 2;
  return members.reduce((best, n) => (far(n) < far(best) ? n : best));
}

function shownView(latent) {
  return latent.views[placeOf(latent.views.map((view) => view.t))];
}

function drawLatent(box, figure) {
  const latent = figure.latent;
  const view = shownView(latent);
  const byClass = colourBy(latent) === "class";
  const group = byClass ? latent.labels : view.component;
  const rank = (g) => (byClass ? g : latent.ranks[g] ?? g); // components have their colours by use, as in all charts
  const named = (g) => (byClass ? latent.classes[g] : `${g}`);
  const groups = [...new Set(group)].sort((a, b) => a - b);
  const faded = (g) => chosen.group !== null && groups.includes(chosen.group) && chosen.group !== g;
  const points = {
    type: "scatter", mode: "markers", x: view.x, y: view.y, hoverinfo: "text",
    text: group.map((g, n) => (latent.labels ? `${latent.classes[latent.labels[n]]}, ` : "") + `component ${view.component[n]}`),
    marker: {
      size: 7, line: { width: 0.5, color: colour("card") },
      color: group.map((g) => latent.colours[rank(g) % latent.colours.length]),
      symbol: group.map((g) => SYMBOLS[Math.floor(rank(g) / latent.colours.length) % SYMBOLS.length]),
      opacity: group.map((g) => (faded(g) ? 0.08 : 0.85)),
    },
  };
  const told = groups.length <= MOST_NAMES ? groups.filter((g) => !faded(g)) : groups.filter((g) => g === chosen.group);
  const annotations = told.map((g) => {
    const n = middle(group.flatMap((other, n) => (other === g ? [n] : [])), view);
    return {
      x: view.x[n], y: view.y[n], text: `<b>${named(g)}</b>`,
      showarrow: false, bgcolor: colour("card"), opacity: 0.85, borderpad: 2, font: { size: 12 },
    };
  });
  const axis = { visible: false, fixedrange: false };
  const layout = themed({
    ...figure.layout, annotations, showlegend: false, hovermode: "closest", dragmode: "pan",
    xaxis: { ...axis, range: latent.ranges[0] }, yaxis: { ...axis, range: latent.ranges[1] },
  });
  layout.margin = { l: 4, r: 4, t: 4, b: 4 };
  layout.transition = { duration: still.matches ? 0 : 450, easing: "cubic-in-out" };
  Plotly.react(box, [points], layout, CONFIG);
  if (!box.dataset.listens) {
    box.dataset.listens = "yes";
    box.on("plotly_hover", (event) => showSample(event.points[0].pointNumber));
    box.on("plotly_click", (event) => showSample(event.points[0].pointNumber));
  }
  drawLegend(groups, latent, named, rank);
  for (const button of document.querySelectorAll("[data-colour]")) {
    button.setAttribute("aria-pressed", String(button.dataset.colour === colourBy(latent)));
  }
}

function plain(label) { // chart labels are escaped for plotly
  return new DOMParser().parseFromString(label, "text/html").documentElement.textContent;
}

function drawLegend(groups, latent, named, rank) {
  const legend = document.getElementById("latent-legend");
  const focused = legend.contains(document.activeElement) ? document.activeElement.id : "";
  legend.replaceChildren(...groups.map((g) => {
    const button = document.createElement("button");
    button.type = "button";
    button.id = `group-${g}`;
    button.dataset.group = g;
    button.setAttribute("aria-pressed", String(chosen.group === g));
    const mark = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    mark.setAttribute("viewBox", "0 0 12 12");
    mark.setAttribute("aria-hidden", "true");
    const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
    path.setAttribute("d", PATHS[Math.floor(rank(g) / latent.colours.length) % PATHS.length]);
    path.setAttribute("fill", latent.colours[rank(g) % latent.colours.length]);
    mark.append(path);
    button.append(mark, plain(named(g)));
    return button;
  }));
  if (focused) document.getElementById(focused)?.focus({ preventScroll: true });
}

function showSample(n) {
  const box = document.querySelector(".sample");
  const latent = figures.latent.latent;
  const view = shownView(latent);
  const words = latent.labels ? [`class ${plain(latent.classes[latent.labels[n]])}`] : [];
  const lines = [...words, `component ${view.component[n]}`].map((text) => {
    const line = document.createElement("div");
    line.textContent = text;
    return line;
  });
  if (latent.sprite) {
    const { src, columns, rows, small } = latent.sprite;
    const image = document.createElement("i");
    const part = (place, of) => (of > 1 ? (100 * place) / (of - 1) : 0);
    image.className = small ? "small" : "";
    image.style.backgroundImage = `url("${src}")`;
    image.style.backgroundSize = `${100 * columns}% ${100 * rows}%`;
    image.style.backgroundPosition = `${part(n % columns, columns)}% ${part(Math.floor(n / columns), rows)}%`;
    lines.unshift(image);
  }
  box.replaceChildren(...lines);
  box.hidden = false;
}

// -- sliders and buttons --------------------------------------------------------------------------------------------

function sliders() {
  return [...document.querySelectorAll("input[data-steps]")];
}

function stops() { // of the slider that has most of them
  return sliders().map((slider) => JSON.parse(slider.dataset.steps)).reduce((a, b) => (b.length > a.length ? b : a), []);
}

function placeOf(steps) { // of the newest view at the chosen time, or of the first if there was none yet
  const place = chosen.step === null ? steps.length - 1 : steps.findLastIndex((step) => step <= chosen.step);
  return Math.max(0, place);
}

function showView() {
  for (const slider of sliders()) {
    const steps = JSON.parse(slider.dataset.steps);
    const place = placeOf(steps);
    const words = `step ${steps[place].toLocaleString("en")}`;
    slider.value = String(place);
    slider.setAttribute("aria-valuetext", words);
    slider.parentElement.querySelector("output").textContent = words;
    const panels = slider.closest("section").querySelectorAll("[data-view]");
    for (const panel of panels) panel.hidden = Number(panel.dataset.view) !== place;
  }
}

function choose(step) {
  chosen.step = step < stops().at(-1) ? step : null; // also where there is no next one
  showView();
  draw("latent");
}

let playing = null;

function play() {
  clearInterval(playing);
  choose(chosen.step ?? stops()[0]);
  playing = setInterval(() => {
    choose(stops()[placeOf(stops()) + 1]);
    if (chosen.step === null) stop();
  }, PLAY_EVERY);
  showPlaying();
}

function stop() {
  clearInterval(playing);
  playing = null;
  showPlaying();
}

function showPlaying() {
  for (const button of document.querySelectorAll(".play")) {
    button.textContent = playing === null ? "▶" : "❚❚";
    button.setAttribute("aria-label", playing === null ? "Play" : "Pause");
  }
}

document.addEventListener("input", (event) => {
  if (!event.target.matches("input[data-steps]")) return;
  stop();
  choose(JSON.parse(event.target.dataset.steps)[Number(event.target.value)]);
});

document.addEventListener("click", (event) => {
  const button = event.target.closest("button");
  if (!button) return;
  if (button.matches(".play")) playing === null ? play() : stop();
  if (button.dataset.colour) {
    chosen.colour = button.dataset.colour;
    chosen.group = null;
    draw("latent");
  }
  if (button.dataset.group) {
    const group = Number(button.dataset.group);
    chosen.group = chosen.group === group ? null : group;
    draw("latent");
  }
});

// -- while the run goes on ------------------------------------------------------------------------------------------

let version = Number(document.body.dataset.live ?? 0);
let pressed = false; // no section is exchanged under the reader's finger
document.addEventListener("pointerdown", () => { pressed = true; });
for (const name of ["pointerup", "pointercancel"]) document.addEventListener(name, () => { pressed = false; });

function contents() {
  const links = [...document.querySelectorAll("main > section")].map((section) => {
    const link = document.createElement("a");
    link.href = `#${section.id}`;
    link.textContent = section.querySelector("h2").textContent;
    return link;
  });
  document.getElementById("contents").replaceChildren(...links);
}

function exchange(id, html) {
  const template = document.createElement("template");
  template.innerHTML = html; // made of escaped text only
  const fresh = template.content.firstElementChild;
  const old = document.getElementById(id);
  if (old) {
    const focused = old.contains(document.activeElement) ? document.activeElement.id : "";
    const open = [...old.querySelectorAll("details[open]")].map((box) => box.id);
    const scrolled = [...old.querySelectorAll(".scroll")].map((box) => box.scrollLeft);
    for (const chart of fresh.querySelectorAll(".chart")) { // the drawn one stays, zoomed as it is
      const drawn = document.getElementById(chart.id);
      if (!drawn) continue;
      drawn.style.cssText = chart.style.cssText;
      chart.replaceWith(drawn);
    }
    old.replaceWith(fresh);
    for (const box of open) if (document.getElementById(box)) document.getElementById(box).open = true;
    fresh.querySelectorAll(".scroll").forEach((box, n) => { box.scrollLeft = scrolled[n] ?? 0; });
    if (focused) document.getElementById(focused)?.focus({ preventScroll: true });
  }
  return fresh;
}

function takeIn(state) {
  const shown = [...document.querySelectorAll("main > section")].find((s) => s.getBoundingClientRect().bottom > 0);
  const anchor = shown && { id: shown.id, top: shown.getBoundingClientRect().top };
  version = state.version;
  Object.assign(figures, state.figures);
  const main = document.querySelector("main");
  for (const [id, html] of Object.entries(state.sections)) {
    const fresh = exchange(id, html);
    if (!fresh.isConnected) main.append(fresh);
  }
  state.order.forEach((id, n) => { // a new one may belong between others
    const section = document.getElementById(id);
    if (main.children[n] !== section) main.insertBefore(section, main.children[n]);
  });
  showView();
  showPlaying();
  for (const name of Object.keys(state.figures)) draw(name);
  if (state.sections.latent && !state.figures.latent) draw("latent");
  contents();
  const now = anchor && document.getElementById(anchor.id);
  if (now) scrollBy({ top: now.getBoundingClientRect().top - anchor.top, behavior: "instant" });
}

function say(words, kind) {
  const live = document.getElementById("live");
  live.hidden = false;
  live.className = `live ${kind}`;
  live.textContent = words;
}

async function follow() {
  let state = null;
  try {
    const answer = await fetch(`state?after=${version}`, { cache: "no-store" });
    state = answer.status === 200 ? await answer.json() : null;
  } catch {
    say("The connection is lost: curlicue watch has ended. This is the last that was seen.", "lost");
    return setTimeout(follow, 5 * ASK_EVERY);
  }
  while (pressed) await new Promise((resolve) => setTimeout(resolve, 100));
  if (state) takeIn(state);
  if (state?.finished) return say("The run has finished. This page stays as it is.", "");
  say("Live: this page follows the run.", "on");
  return setTimeout(follow, ASK_EVERY);
}

contents();
showView();
drawAll();
dark.addEventListener("change", drawAll);
if ("live" in document.body.dataset) follow();
