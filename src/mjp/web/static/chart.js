// The chart of PSNR against γ: a point for each finished run, a series for each attack.

const SPACE = "http://www.w3.org/2000/svg";
const EDGE = { left: 46, right: 16, top: 28, bottom: 42 };
const HEIGHT = 320;

function make(name, attributes, text) {
  const node = document.createElementNS(SPACE, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (text !== undefined) node.textContent = text;
  return node;
}

function ticks(most) {
  const step = most > 80 ? 20 : most > 30 ? 10 : 5;
  return Array.from({ length: Math.floor(most / step) + 1 }, (_, place) => place * step);
}

export class Chart {
  constructor(holder, legend, table) {
    this.holder = holder;
    this.legend = legend;
    this.table = table;
    this.points = new Map(); // Of each picture and model: series by attack, points by γ.
    this.key = "";
    this.now = null;
    new ResizeObserver(() => this.draw()).observe(holder);
  }

  /** Shows the points of another picture, model or seed. */
  turnTo(key) {
    this.key = key;
    if (!this.points.has(key)) this.points.set(key, { guess: null, series: new Map() });
    this.draw();
  }

  add(key, attack, gamma, result) {
    if (!this.points.has(key)) this.points.set(key, { guess: null, series: new Map() });
    const own = this.points.get(key);
    own.guess = result.psnr_guess;
    if (!own.series.has(attack)) own.series.set(attack, new Map());
    own.series.get(attack).set(gamma, result);
    if (key === this.key) this.draw();
  }

  draw() {
    const { guess, series } = this.points.get(this.key) ?? { guess: null, series: new Map() };
    const found = [...series].map(([attack, points]) => [attack, this.#measured(points)]);
    const width = Math.max(300, this.holder.clientWidth);
    const all = found.flatMap(([, points]) => points.map(([, result]) => result.psnr));
    const top = Math.max(30, Math.ceil((Math.max(0, ...all) + 4) / 10) * 10);
    const x = (gamma) => EDGE.left + (gamma / 0.9) * (width - EDGE.left - EDGE.right);
    const y = (psnr) => HEIGHT - EDGE.bottom - (psnr / top) * (HEIGHT - EDGE.top - EDGE.bottom);
    const picture = make("svg", { viewBox: `0 0 ${width} ${HEIGHT}`, role: "img", "aria-label": this.#words(found, guess) });
    this.#axes(picture, x, y, top, width);
    if (guess !== null) {
      picture.append(make("line", { class: "guess", x1: x(0), x2: x(0.9), y1: y(guess), y2: y(guess) }));
      picture.append(make("text", { x: x(0.9), y: y(guess) + 17, "text-anchor": "end" }, `${width > 560 ? "trivial " : ""}guess, ${guess.toFixed(1)} dB`));
    }
    found.forEach(([attack, points], place) => this.#series(picture, attack, points, place, x, y));
    this.holder.replaceChildren(picture);
    this.legend.replaceChildren(...found.map(([attack], place) =>
      Object.assign(document.createElement("li"), { className: `s${Math.min(place, 3)}`, textContent: `${place % 2 ? "■" : "●"} ${attack}` })));
    this.#fill(found);
  }

  #measured(points) {
    return [...points].filter(([, result]) => result.psnr !== null).sort((a, b) => a[0] - b[0]);
  }

  #axes(picture, x, y, top, width) {
    if (this.now !== null)
      picture.append(make("line", { class: "now", x1: x(this.now), x2: x(this.now), y1: y(0), y2: y(top) }));
    for (const psnr of ticks(top)) {
      picture.append(make("line", { class: psnr ? "grid" : "axis", x1: x(0), x2: x(0.9), y1: y(psnr), y2: y(psnr) }));
      picture.append(make("text", { x: EDGE.left - 8, y: y(psnr) + 4, "text-anchor": "end" }, psnr));
    }
    const step = width > 560 ? 0.1 : 0.3;
    for (let gamma = 0; gamma <= 0.901; gamma += step)
      picture.append(make("text", { x: x(gamma), y: HEIGHT - 18, "text-anchor": "middle" }, gamma.toFixed(1)));
    picture.append(make("text", { x: x(0.9), y: HEIGHT - 2, "text-anchor": "end" }, "γ, share of the patches that MJP hides"));
    picture.append(make("text", { x: 4, y: 14 }, "PSNR, dB"));
  }

  #series(picture, attack, points, place, x, y) {
    const look = `s${Math.min(place, 3)}`;
    const path = points.map(([gamma, { psnr }], number) => `${number ? "L" : "M"}${x(gamma).toFixed(1)} ${y(psnr).toFixed(1)}`);
    if (points.length > 1) picture.append(make("path", { class: `curve-line ${look}`, d: path.join("") }));
    for (const [gamma, { psnr }] of points) {
      const mark = place % 2
        ? make("rect", { class: look, x: x(gamma) - 4.5, y: y(psnr) - 4.5, width: 9, height: 9 })
        : make("circle", { class: look, cx: x(gamma), cy: y(psnr), r: 5 });
      mark.append(make("title", {}, `${attack}, γ = ${gamma}: ${psnr.toFixed(1)} dB`));
      picture.append(mark);
    }
  }

  #words(found, guess) {
    if (!found.some(([, points]) => points.length)) return "Chart of PSNR against γ; no run is finished yet.";
    const parts = found.map(([attack, points]) =>
      `${attack}: ${points.map(([gamma, { psnr }]) => `${psnr.toFixed(0)} dB at ${gamma}`).join(", ")}`);
    return `PSNR against γ. ${parts.join(". ")}. A trivial guess gives ${guess.toFixed(0)} dB.`;
  }

  #fill(found) {
    const row = (cells, kind) => {
      const line = document.createElement("tr");
      cells.forEach((text, place) => {
        const cell = document.createElement(kind);
        if (kind === "th") cell.scope = "col";
        if (place && place < 4) cell.className = "n";
        cell.textContent = text;
        line.append(cell);
      });
      return line;
    };
    const head = document.createElement("thead");
    const body = document.createElement("tbody");
    head.append(row(["attack", "γ", "PSNR, dB", "outside the mask", "found"], "th"));
    const shown = (value) => (value === null ? "–" : value.toFixed(1));
    for (const [attack, points] of found)
      for (const [gamma, result] of points)
        body.append(row([attack, gamma, shown(result.psnr), shown(result.psnr_unmasked), result.level], "td"));
    this.table.replaceChildren(head, body);
  }
}
