"use strict";
// Zoom, walk and point: the drawing is stretched in place, nothing of it is drawn again.
(() => {
  const chart = document.getElementById("chart"), svg = chart.querySelector("svg");
  const plot = svg.querySelector(".plot"), layer = svg.querySelector(".texts");
  const texts = [...layer.children].filter((one) => !one.classList.contains("axis"));
  const tip = document.getElementById("tip"), cursor = document.getElementById("cursor");
  const data = document.getElementById("spots");
  const spots = JSON.parse(data.textContent), began = BigInt(data.dataset.began);
  const left = +svg.dataset.left, width = +svg.dataset.width, span = +svg.dataset.ms;
  const MOST = 2000, LETTER = 6.6;
  const STEPS_MS = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 2e4, 6e4, 12e4, 3e5, 6e5, 18e5, 36e5];
  let zoom = 1, from = 0, at = -1;

  const x = (ms) => ((ms - from) / span) * width * zoom;
  const clamp = (value, low, high) => Math.min(high, Math.max(low, value));

  function show() {
    zoom = clamp(zoom, 1, MOST);
    from = clamp(from, 0, span - span / zoom);
    const shift = (from / span) * width * zoom;
    plot.setAttribute("transform", `translate(${left - shift} 0) scale(${zoom} 1)`);
    for (const one of texts) place(one, one.dataset.x * zoom - shift);
    ticks();
    point();
  }

  function draw(parent, name, attributes) {
    const one = document.createElementNS(svg.namespaceURI, name);
    for (const [key, value] of Object.entries(attributes)) one.setAttribute(key, value);
    return parent.appendChild(one);
  }

  function ticks() {
    for (const old of svg.querySelectorAll(".tick, .axis")) old.remove();
    const step = STEPS_MS.find((ms) => span / zoom / ms <= 16) || span;
    for (let ms = Math.ceil(from / step) * step; ms <= from + span / zoom; ms += step) {
      const where = (ms / span) * width, top = +svg.dataset.top;
      const line = draw(plot, "path", { class: "tick", d: `M${where} ${top - 6}V${svg.dataset.bottom}` });
      plot.prepend(line);
      draw(layer, "text", { class: "axis middle", x: left + x(ms), y: top - 12 }).textContent =
        step < 1000 ? `${(ms / 1000).toFixed(step < 10 ? 3 : 2)} s` : `${ms / 1000} s`;
    }
  }

  // A label of a bar that began further left stays in sight; one without room is not shown.
  function place(one, px) {
    const y = one.dataset.y, room = one.dataset.w, far = px < -1 || px > width + 1;
    if (y !== undefined) one.setAttribute("transform", `translate(${left + px} ${y})`);
    if (room === undefined) return seen(one, !far);
    const slides = one.classList.length === 1, now = slides ? Math.max(px, 0) : px;
    one.setAttribute("x", left + now);
    const wide = one.textContent.length * LETTER + 12;
    seen(one, (slides ? px <= width : !far) && wide <= room * zoom - (now - px));
  }

  const seen = (one, yes) => one.setAttribute("visibility", yes ? "visible" : "hidden");

  function around(factor, ms) {
    const share = (ms - from) / (span / zoom);
    zoom = clamp(zoom * factor, 1, MOST);
    from = ms - share * (span / zoom);
    show();
  }

  function range(first, last) {
    const room = Math.max((last - first) * 0.35, 1);
    zoom = span / (last - first + 2 * room);
    from = first - room;
    show();
  }

  const scale = () => svg.getBoundingClientRect().width / svg.viewBox.baseVal.width;
  const middle = () => from + span / zoom / 2;

  function point() {
    const hidden = at < 0 || x(spots[at][0]) < -1 || x(spots[at][0]) > width + 1;
    tip.hidden = cursor.hidden = hidden;
    if (hidden) return;
    const [ms, y, text] = spots[at], px = (left + x(ms)) * scale(), py = y * scale();
    cursor.style.left = `${px}px`;
    cursor.style.top = `${py}px`;
    tip.textContent = `+${(ms / 1000).toFixed(3)} s  ${text}`;
    tip.style.left = `${px + tip.offsetWidth + 20 > chart.clientWidth ? px - tip.offsetWidth - 12 : px + 12}px`;
    tip.style.top = `${Math.min(py + 12, chart.clientHeight - tip.offsetHeight - 4)}px`;
  }

  function first(ms) {
    let low = 0, high = spots.length;
    while (low < high) {
      const mid = (low + high) >> 1;
      if (spots[mid][0] < ms) low = mid + 1;
      else high = mid;
    }
    return low;
  }

  // The nearest event within 12 pixels of the pointer; -1: none.
  function nearest(event) {
    const box = svg.getBoundingClientRect(), px = (event.clientX - box.left) / scale() - left;
    const py = (event.clientY - box.top) / scale(), ms = from + (px / width / zoom) * span;
    const reach = ((12 / width) * span) / zoom;
    let best = -1, least = 144;
    for (let i = first(ms - reach); i < spots.length && spots[i][0] <= ms + reach; i++) {
      const far = (x(spots[i][0]) - px) ** 2 + (spots[i][1] - py) ** 2;
      if (far < least) [best, least] = [i, far];
    }
    return best;
  }

  function walk(by) {
    const start = at < 0 ? first(from) - (by > 0 ? 1 : 0) : at;
    at = clamp(start + by, 0, spots.length - 1);
    if (x(spots[at][0]) < 0 || x(spots[at][0]) > width) from = spots[at][0] - span / zoom / 2;
    show();
  }

  const KEYS = {
    ArrowRight: () => walk(1), ArrowLeft: () => walk(-1), Home: () => { at = 0; walk(0); },
    End: () => { at = spots.length - 1; walk(0); }, Escape: () => { at = -1; point(); },
    "+": () => around(1.5, at < 0 ? middle() : spots[at][0]), "=": () => KEYS["+"](),
    "-": () => around(1 / 1.5, at < 0 ? middle() : spots[at][0]), 0: () => { zoom = 1; show(); },
  };
  chart.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || !spots.length || !(event.key in KEYS)) return;
    event.preventDefault();
    KEYS[event.key]();
  });
  document.getElementById("in").onclick = () => around(1.5, middle());
  document.getElementById("out").onclick = () => around(1 / 1.5, middle());
  document.getElementById("all").onclick = () => { zoom = 1; show(); };
  chart.addEventListener("wheel", (event) => {
    if (!event.ctrlKey) return;
    event.preventDefault();
    const px = (event.clientX - svg.getBoundingClientRect().left) / scale() - left;
    around(Math.exp(-event.deltaY / 300), from + (px / width / zoom) * span);
  }, { passive: false });

  let drag = null;
  chart.addEventListener("pointerdown", (event) => { drag = { x: event.clientX, from }; });
  window.addEventListener("pointerup", () => { drag = null; });
  chart.addEventListener("pointermove", (event) => {
    if (drag) {
      from = drag.from - ((event.clientX - drag.x) / scale() / width / zoom) * span;
      show();
    } else {
      at = nearest(event);
      point();
    }
  });
  for (const button of document.querySelectorAll("button[data-from]")) {
    const ms = (text) => Number(BigInt(text) - began) / 1e6;
    button.onclick = () => {
      range(ms(button.dataset.from), ms(button.dataset.to));
      chart.scrollIntoView({ block: "nearest" });
    };
  }
  // The list is made when it is asked for: ten thousand lines cost a moment.
  const events = document.getElementById("events");
  events.addEventListener("toggle", () => {
    const list = events.querySelector("ol");
    if (!events.open || list.children.length) return;
    list.append(...spots.map(([ms, , text]) => {
      const line = document.createElement("li"), when = document.createElement("b");
      when.textContent = `+${(ms / 1000).toFixed(3)} s`;
      line.append(when, ` ${text}`);
      return line;
    }));
  }, { once: false });
  window.addEventListener("resize", point);
  chart.dataset.ready = spots.length;
})();
