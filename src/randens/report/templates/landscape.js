"use strict";
// The risk landscape, computed here from the risk profile: η(α) = Σ_k p_k max_{u in U_k} u·α.

// ---------------------------------------------------------------- the profile

function makeProfile(data) {
  const configurations = data.sets.split(" ").map((text) => text.split(","));
  const total = configurations.reduce((sum, sets) => sum + sets.length, 0);
  const blocks = Math.ceil(data.members / 8);
  const bytes = Array.from({ length: blocks }, () => new Uint8Array(total));
  const starts = new Int32Array(configurations.length + 1);
  let row = 0;
  configurations.forEach((sets, k) => {
    for (const word of sets) {
      const padded = word.padStart(2 * blocks, "0");
      for (let b = 0; b < blocks; b++) {
        const end = padded.length - 2 * b;
        bytes[b][row] = parseInt(padded.slice(end - 2, end), 16);
      }
      row += 1;
    }
    starts[k + 1] = row;
  });
  const profile = { members: data.members, weights: Float64Array.from(data.weights), starts, bytes };
  profile.memberRisks = Array.from({ length: data.members }, (_, i) => memberRisk(profile, i));
  return profile;
}

function has(profile, row, member) {
  return (profile.bytes[member >> 3][row] >> (member & 7)) & 1;
}

function memberRisk(profile, member) {
  let risk = 0;
  for (let k = 0; k < profile.weights.length; k++) {
    for (let row = profile.starts[k]; row < profile.starts[k + 1]; row++) {
      if (has(profile, row, member)) {
        risk += profile.weights[k];
        break;
      }
    }
  }
  return Math.min(1, risk);
}

// u·α for every set: one look-up per eight members in a table of all 256 partial sums.
function setValues(profile, probs) {
  const values = new Float64Array(profile.starts[profile.starts.length - 1]);
  profile.bytes.forEach((column, block) => {
    const part = probs.slice(8 * block, 8 * block + 8);
    const table = new Float64Array(256);
    for (let mask = 1; mask < 256; mask++) {
      const low = 31 - Math.clz32(mask & -mask);
      table[mask] = table[mask & (mask - 1)] + (low < part.length ? part[low] : 0);
    }
    for (let row = 0; row < values.length; row++) values[row] += table[column[row]];
  });
  return values;
}

function readLandscape(profile, probs) {
  const values = setValues(profile, probs);
  const fooled = new Float64Array(profile.members);
  let risk = 0;
  for (let k = 0; k < profile.weights.length; k++) {
    let best = 0;
    for (let row = profile.starts[k]; row < profile.starts[k + 1]; row++) best = Math.max(best, values[row]);
    risk += profile.weights[k] * best;
    let count = 0;
    for (let row = profile.starts[k]; row < profile.starts[k + 1]; row++) count += values[row] >= best - 1e-12;
    for (let row = profile.starts[k]; row < profile.starts[k + 1]; row++) {
      if (values[row] < best - 1e-12) continue;
      for (let i = 0; i < profile.members; i++) {
        if (has(profile, row, i)) fooled[i] += profile.weights[k] / count;
      }
    }
  }
  risk = Math.min(1, Math.max(0, risk));
  const risks = profile.memberRisks;
  const average = probs.reduce((sum, p, i) => sum + p * risks[i], 0);
  const order = risks.map((_, i) => i).sort((i, j) => risks[i] - risks[j] || i - j);
  let floor = 0;
  let lowest = 1;
  let largest = 0;
  const steps = order.map((i, place) => risks[i] - (place ? risks[order[place - 1]] : 0));
  for (let place = order.length - 1; place >= 0; place--) {
    largest = Math.max(largest, probs[order[place]]);
    floor += steps[place] * largest;
    lowest = Math.min(lowest, risks[order[place]] / (place + 1));
  }
  return {
    risk,
    accuracy: 1 - risk,
    average,
    floor,
    lowest,
    gain: Math.max(0, average - risk),
    shares: probs.map((p, i) => p * fooled[i]),
  };
}

// η on the face of three members. What counts at an input is which subsets of the three can be fooled there.
function faceProfile(profile, face) {
  const weights = new Float64Array(256);
  for (let k = 0; k < profile.weights.length; k++) {
    let present = 0;
    for (let row = profile.starts[k]; row < profile.starts[k + 1]; row++) {
      let subset = 0;
      face.forEach((member, place) => { subset |= has(profile, row, member) << place; });
      present |= 1 << subset;
    }
    weights[present] += profile.weights[k];
  }
  const groups = [];
  for (let present = 2; present < 256; present++) {
    if (!weights[present]) continue;
    const subsets = [];
    for (let subset = 1; subset < 8; subset++) {
      if (!((present >> subset) & 1)) continue;
      let inside = false;
      for (let other = subset + 1; other < 8; other++) {
        inside = inside || (((present >> other) & 1) && (other & subset) === subset);
      }
      if (!inside) subsets.push(subset);
    }
    if (subsets.length) groups.push({ weight: weights[present], subsets });
  }
  return groups;
}

function faceRisk(groups, a, b, c) {
  const values = [0, a, b, a + b, c, a + c, b + c, a + b + c];
  let risk = 0;
  for (const group of groups) {
    let best = 0;
    for (const subset of group.subsets) if (values[subset] > best) best = values[subset];
    risk += group.weight * best;
  }
  return risk;
}

// Adds the certificate up again: q ≥ 0, Σ_u q_{k,u} = p_k, and the bound is min_i Σ q_{k,u} u_i.
function checkCertificate(profile, optimum) {
  if (!optimum.rows) return null;
  const sums = new Float64Array(profile.weights.length);
  const fooled = new Float64Array(profile.members);
  let sound = true;
  let k = 0;
  optimum.rows.forEach((row, entry) => {
    const mass = optimum.mass[entry];
    while (!(row >= profile.starts[k] && row < profile.starts[k + 1])) k = (k + 1) % sums.length;
    sound = sound && mass >= 0;
    sums[k] += mass;
    for (let i = 0; i < profile.members; i++) if (has(profile, row, i)) fooled[i] += mass;
  });
  for (let j = 0; j < sums.length; j++) {
    sound = sound && Math.abs(sums[j] - profile.weights[j]) <= 1e-12 + 1e-9 * profile.weights[j];
  }
  const bound = Math.min(...fooled);
  return { bound, sound: sound && bound >= optimum.lower_bound - 1e-12 };
}

// ---------------------------------------------------------------- probabilities

function parseNumber(text) {
  const parts = text.split("/");
  if (parts.length > 2 || parts.some((part) => !/^\s*(\d+\.?\d*|\.\d+)(e[+-]?\d+)?\s*$/i.test(part))) return NaN;
  return parts.length === 2 ? Number(parts[0]) / Number(parts[1]) : Number(parts[0]);
}

function normalized(probs) {
  const clipped = probs.map((p) => Math.max(0, p));
  const total = clipped.reduce((sum, p) => sum + p, 0);
  return total > 0 ? clipped.map((p) => p / total) : probs.map(() => 1 / probs.length);
}

// Set one probability; the others keep their proportions.
function withProb(probs, member, value) {
  const rest = 1 - probs[member];
  const others = probs.length - 1;
  return normalized(probs.map((p, i) => {
    if (i === member) return value;
    return rest > 1e-12 ? (p * (1 - value)) / rest : (1 - value) / others;
  }));
}

function showNumber(value, digits = 4) {
  return value.toFixed(digits);
}

function showProbs(probs) {
  const used = probs.map((p, i) => [p, i]).filter(([p]) => p > 0);
  if (probs.length > 8) {
    return used.slice(0, 8).map(([p, i]) => `${i}: ${p.toFixed(3)}`).join(", ") + (used.length > 8 ? ", …" : "");
  }
  return "(" + probs.map((p) => p.toFixed(3)).join(", ") + ")";
}

// ---------------------------------------------------------------- drawing

const SVG = "http://www.w3.org/2000/svg";
// White to dark blue, as in the figures: even steps of lightness.
const COLORS = [
  [247, 251, 255], [222, 235, 247], [198, 219, 239], [158, 202, 225], [107, 174, 214], [66, 146, 198],
  [33, 113, 181], [8, 81, 156], [8, 48, 107],
];

function color(share) {
  const place = Math.min(0.999999, Math.max(0, share)) * (COLORS.length - 1);
  const low = Math.floor(place);
  const part = place - low;
  return COLORS[low].map((value, i) => Math.round(value + part * (COLORS[low + 1][i] - value)));
}

function svg(name, attributes = {}, ...children) {
  const node = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
}

function html(name, attributes = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key === "text") node.textContent = value;
    else node.setAttribute(key, value);
  }
  node.append(...children);
  return node;
}

const TRIANGLE = { width: 440, height: 404, top: [220, 34], left: [40, 346], right: [400, 346] };

function trianglePoint([a, b, c]) {
  const { top, left, right } = TRIANGLE;
  return [a * top[0] + b * left[0] + c * right[0], a * top[1] + b * left[1] + c * right[1]];
}

function triangleProbs(x, y) {
  const { top, left, right } = TRIANGLE;
  const a = (left[1] - y) / (left[1] - top[1]);
  const c = (x - a * top[0] - (1 - a) * left[0]) / (right[0] - left[0]);
  return [a, 1 - a - c, c];
}

// A picture of the triangle, `scale` pixels per unit, and the range of values in it.
function paintTriangle(groups, scale) {
  const { top, left, right } = TRIANGLE;
  const width = Math.round((right[0] - left[0]) * scale);
  const height = Math.round((left[1] - top[1]) * scale);
  const corners = [[1, 0, 0], [0, 1, 0], [0, 0, 1], [0.5, 0.5, 0], [0.5, 0, 0.5], [0, 0.5, 0.5],
    [1 / 3, 1 / 3, 1 / 3], [0.5, 0.25, 0.25], [0.25, 0.5, 0.25], [0.25, 0.25, 0.5]];
  // η is linear between these ten points (Theorem 2), so they hold its least and its largest value.
  const values = corners.map((p) => faceRisk(groups, ...p));
  const low = Math.min(...values);
  const high = Math.max(...values);
  const canvas = document.createElement("canvas");
  canvas.width = width;
  canvas.height = height;
  const context = canvas.getContext("2d");
  const image = context.createImageData(width, height);
  const levels = new Int16Array(width * height).fill(-1);
  for (let row = 0; row < height; row++) {
    for (let column = 0; column < width; column++) {
      const [a, b, c] = triangleProbs(left[0] + (column + 0.5) / scale, top[1] + (row + 0.5) / scale);
      if (a < -0.004 || b < -0.004 || c < -0.004) continue;
      const share = high > low ? (faceRisk(groups, a, b, c) - low) / (high - low) : 0.5;
      const [red, green, blue] = color(share);
      const at = row * width + column;
      levels[at] = Math.floor(share * 9.999);
      image.data.set([red, green, blue, 255], 4 * at);
    }
  }
  for (let at = 0; at < levels.length - width; at++) {
    const edge = (other) => levels[other] >= 0 && levels[other] !== levels[at];
    if (levels[at] >= 0 && (edge(at + 1) || edge(at + width))) {
      const shade = levels[at] < 5 ? 0 : 255;
      for (let channel = 0; channel < 3; channel++) {
        image.data[4 * at + channel] = 0.55 * image.data[4 * at + channel] + 0.45 * shade;
      }
    }
  }
  context.putImageData(image, 0, 0);
  return { url: canvas.toDataURL("image/png"), low, high };
}

function roundNumbers(low, high) {
  const size = 10 ** Math.floor(Math.log10((high - low) / 4));
  const step = [1, 2, 2.5, 5, 10].map((k) => k * size).find((k) => k >= ((high - low) / 5) * 0.999);
  const found = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + 1e-9 * step; k++) found.push(k * step);
  return found;
}

// ---------------------------------------------------------------- the control

class Landscape {
  constructor(root, data) {
    this.root = root;
    this.data = data;
    this.profile = makeProfile(data);
    this.members = data.members;
    this.optimum = data.optimum;
    this.probs = normalized(data.start || (data.optimum && data.optimum.probs) || Array(this.members).fill(1));
    this.build();
    this.move(this.probs);
  }

  build() {
    this.root.replaceChildren();
    const plot = html("div", { class: "plot" });
    const panel = html("div", { class: "panel" });
    if (this.members > 1) this.root.append(plot);
    this.root.append(panel);
    if (this.members === 2) this.buildCurve(plot);
    else if (this.members >= 3) this.buildTriangle(plot);
    this.buildReadings(panel);
    this.buildJumps(panel);
    this.buildMembers(panel);
    if (this.optimum) this.buildCertificate(panel);
  }

  // ------------------------------------------------ numbers

  buildReadings(panel) {
    const names = [
      ["risk", "risk η(α)", "How often the sampled member is fooled, on the worst perturbations found."],
      ["accuracy", "robust accuracy", "The expected accuracy on the worst perturbations found."],
      ["gain", "gain Σ α_i η_i − η(α)", "What the adversary loses because it cannot foresee the draw."],
      ["floor", "floor at these α, h(α)", "No members with these risks could have a lower risk at these α."],
      ["lowest", "floor at any α", "Theorem 3: no members with these risks go below, at any α."],
    ];
    const list = html("dl", { class: "readings" });
    this.outputs = {};
    for (const [key, name, meaning] of names) {
      const output = html("output", { "data-key": key });
      this.outputs[key] = output;
      list.append(html("div", { title: meaning }, html("dt", { text: name }), html("dd", {}, output)));
    }
    this.spoken = html("p", { class: "unseen", "aria-live": "polite" });
    panel.append(list, this.spoken);
  }

  buildJumps(panel) {
    const row = html("div", { class: "jumps" });
    const jump = (name, probs) => {
      const button = html("button", { type: "button", text: name });
      button.addEventListener("click", () => this.move(normalized(probs), true));
      row.append(button);
    };
    if (this.members > 1) {
      if (this.optimum) jump("optimum", this.optimum.probs);
      for (const mark of this.data.marks) jump(mark.name, mark.probs);
      if (!this.data.marks.some((mark) => mark.name === "uniform")) jump("uniform", Array(this.members).fill(1));
    }
    panel.append(row);
  }

  buildMembers(panel) {
    if (this.members > 1) {
      const field = html("input", { type: "text", size: 24, "aria-label": "probabilities α", spellcheck: "false" });
      const button = html("button", { type: "submit", text: "set α" });
      this.complaint = html("span", { class: "complaint", role: "alert" });
      const form = html("form", { class: "typed" }, field, button, this.complaint);
      form.addEventListener("submit", (event) => {
        event.preventDefault();
        this.type(field.value);
      });
      this.field = field;
      panel.append(form);
    }
    const table = html("div", { class: "members", role: "group", "aria-label": "probability and share of each member" });
    table.append(html("div", { class: "head" }, html("span", { text: "member" }), html("span", { text: "probability α_i" }),
      html("span", { text: "η_i alone" }), html("span", { text: "share of the risk" })));
    this.sliders = [];
    this.values = [];
    this.shares = [];
    this.bars = [];
    for (let i = 0; i < this.members; i++) {
      const slider = html("input", { type: "range", min: 0, max: 1, step: 0.001, "aria-label": `probability of member ${i}` });
      slider.disabled = this.members === 1;
      slider.addEventListener("input", () => this.move(withProb(this.probs, i, Number(slider.value)), true));
      const value = html("output", { "data-prob": i });
      const share = html("output", { "data-share": i });
      const bar = html("span", { class: "bar" });
      table.append(html("div", { class: "member" }, html("span", { text: String(i) }),
        html("span", { class: "prob" }, slider, value),
        html("span", { text: showNumber(this.profile.memberRisks[i]) }),
        html("span", { class: "share" }, html("span", { class: "track", "aria-hidden": "true" }, bar), share)));
      this.sliders.push(slider);
      this.values.push(value);
      this.shares.push(share);
      this.bars.push(bar);
    }
    panel.append(table);
  }

  buildCertificate(panel) {
    const checked = checkCertificate(this.profile, this.optimum);
    const optimum = this.optimum;
    const at = optimum.exact ? `(${optimum.exact.join(", ")})` : showProbs(optimum.probs);
    let text = `Optimum on these witnesses: η = ${showNumber(optimum.risk, 6)} at α = ${at}.`;
    if (checked) {
      text += checked.sound
        ? ` Certificate: the attacker's mixed strategy, added up again in this browser, fools every member at least `
          + `${showNumber(checked.bound, 6)} of the time; no probabilities do better than that.`
        : " The certificate does NOT add up: do not trust the optimum.";
    }
    const note = html("p", { class: checked && !checked.sound ? "warning" : "certificate", text });
    note.dataset.bound = checked ? String(checked.bound) : "";
    note.dataset.sound = checked ? String(checked.sound) : "";
    panel.append(note);
  }

  type(text) {
    const probs = text.split(/[\s,;]+/).filter((part) => part !== "").map(parseNumber);
    const total = probs.reduce((sum, p) => sum + p, 0);
    let complaint = "";
    if (probs.length !== this.members) complaint = `There are ${probs.length} numbers; give ${this.members}, one for each member.`;
    else if (probs.some((p) => !Number.isFinite(p))) complaint = "Give numbers or fractions, e.g. 1/2, 0.25, 0.25.";
    else if (Math.abs(total - 1) > 1e-6) complaint = `They sum to ${total.toPrecision(6)}; probabilities must sum to 1.`;
    this.complaint.textContent = complaint;
    if (!complaint) this.move(normalized(probs), true);
  }

  // ------------------------------------------------ moving

  move(probs, spoken = false) {
    this.probs = probs;
    const reading = readLandscape(this.profile, probs);
    this.root.dataset.probs = JSON.stringify(probs);
    for (const [key, output] of Object.entries(this.outputs)) {
      output.textContent = showNumber(reading[key]);
      output.dataset.value = String(reading[key]);
    }
    probs.forEach((p, i) => {
      if (Number(this.sliders[i].value) !== p) this.sliders[i].value = p;
      this.values[i].textContent = showNumber(p, 3);
      this.values[i].dataset.value = String(p);
      this.shares[i].textContent = showNumber(reading.shares[i]);
      this.shares[i].dataset.value = String(reading.shares[i]);
      this.bars[i].style.width = `${100 * (reading.risk > 0 ? reading.shares[i] / reading.risk : 0)}%`;
    });
    if (this.field && document.activeElement !== this.field) {
      this.field.value = probs.map((p) => Number(p.toFixed(6))).join(", ");
    }
    if (this.complaint && spoken) this.complaint.textContent = "";
    const words = `α ${showProbs(probs)}, risk ${showNumber(reading.risk)}`;
    if (this.handle) {
      this.handle.setAttribute("aria-valuenow", reading.risk.toFixed(4));
      this.handle.setAttribute("aria-valuetext", words);
    }
    if (spoken) {
      clearTimeout(this.timer);
      this.timer = setTimeout(() => { this.spoken.textContent = words; }, 400);
    }
    if (this.place) this.place(reading);
  }

  // Pointer and keyboard on a plot: `toProbs(x, y)` reads a place, `step(key, size)` answers an arrow key.
  operate(picture, toProbs, step) {
    this.handle = svg("g", { class: "handle", tabindex: 0, role: "slider", "aria-label": "point α on the landscape; arrow keys move it",
      "aria-valuemin": 0, "aria-valuemax": 1 });
    this.handle.append(svg("circle", { r: 17, class: "halo" }), svg("circle", { r: 8, class: "knob" }));
    const locate = (event) => {
      const at = new DOMPoint(event.clientX, event.clientY).matrixTransform(picture.getScreenCTM().inverse());
      this.move(toProbs(at.x, at.y), true);
    };
    let dragging = false;
    const area = picture.querySelector(".area");
    const begin = (event) => {
      if (event.button !== 0) return;
      dragging = true;
      picture.setPointerCapture(event.pointerId);
      this.handle.focus({ preventScroll: true });
      locate(event);
      event.preventDefault();
    };
    area.addEventListener("pointerdown", begin);
    this.handle.addEventListener("pointerdown", begin);
    picture.addEventListener("pointermove", (event) => { if (dragging) locate(event); });
    const end = () => { dragging = false; };
    picture.addEventListener("pointerup", end);
    picture.addEventListener("pointercancel", end);
    this.handle.addEventListener("keydown", (event) => {
      const size = event.shiftKey ? 0.1 : 0.01;
      let probs = null;
      if (event.key === "Home") probs = Array(this.members).fill(1 / this.members);
      else if (event.key === "End" && this.optimum) probs = normalized(this.optimum.probs);
      else probs = step(event.key, size);
      if (probs) {
        this.move(probs, true);
        event.preventDefault();
      }
    });
    picture.append(this.handle);
  }

  // ------------------------------------------------ two members: a curve

  buildCurve(plot) {
    const [width, height, left, right, top, bottom] = [440, 330, 52, 16, 20, 48];
    const corners = [0, 0.5, 1].map((p) => readLandscape(this.profile, [1 - p, p]));
    const high = Math.max(...corners.map((c) => Math.max(c.average, c.risk))) || 0.01;
    const low = Math.min(...corners.map((c) => Math.min(c.lowest, c.risk)));
    const [bottomValue, topValue] = [Math.max(0, low - 0.1 * (high - low)), Math.min(1, high + 0.1 * (high - low) + 1e-9)];
    const x = (p) => left + p * (width - left - right);
    const y = (v) => top + ((topValue - v) / (topValue - bottomValue)) * (height - top - bottom);
    const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, class: "chart", role: "group",
      "aria-label": "risk of the ensemble over the probability of member 1" });
    picture.append(svg("rect", { class: "area", x: left, y: top, width: width - left - right, height: height - top - bottom }));
    for (let tick = 0; tick <= 4; tick++) {
      const under = svg("text", { x: x(tick / 4), y: height - bottom + 18, "text-anchor": "middle" });
      under.textContent = String(tick / 4);
      picture.append(under);
    }
    for (const value of roundNumbers(bottomValue, topValue)) {
      const line = svg("line", { class: "grid", x1: left, x2: width - right, y1: y(value), y2: y(value) });
      const label = svg("text", { x: left - 6, y: y(value) + 4, "text-anchor": "end" });
      label.textContent = String(Number(value.toFixed(6)));
      picture.append(line, label);
    }
    const title = svg("text", { x: x(0.5), y: height - 8, "text-anchor": "middle" });
    title.textContent = "probability of member 1";
    const points = (key) => [0, 0.5, 1].map((p, i) => `${x(p)},${y(corners[i][key])}`).join(" ");
    picture.append(title,
      svg("polygon", { class: "gain", points: `${points("average")} ${points("risk").split(" ").reverse().join(" ")}` }),
      svg("polyline", { class: "line c1 dashed", points: points("average") }),
      svg("polyline", { class: "line c2 dotted", points: points("floor") }),
      svg("polyline", { class: "line c0", points: points("risk") }));
    for (const p of [0, 0.5, 1]) {
      picture.append(svg("circle", { class: "candidate", r: 4.5, cx: x(p), cy: y(readLandscape(this.profile, [1 - p, p]).risk) }));
    }
    this.operate(picture, (px) => {
      const p = Math.min(1, Math.max(0, (px - left) / (width - left - right)));
      return [1 - p, p];
    }, (key, size) => {
      const sign = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1 }[key];
      if (!sign) return null;
      const p = Math.min(1, Math.max(0, this.probs[1] + sign * size));
      return [1 - p, p];
    });
    this.place = (reading) => {
      this.handle.setAttribute("transform", `translate(${x(this.probs[1])} ${y(reading.risk)})`);
    };
    const key = html("p", { class: "legend" });
    for (const [kind, text] of [["line c0", "risk η(α)"], ["line c1 dashed", "Σ α_i η_i (shaded: the gain)"], ["line c2 dotted", "floor h(α)"]]) {
      const sample = svg("svg", { viewBox: "0 0 28 10", class: "sample", "aria-hidden": "true" });
      sample.append(svg("line", { class: kind, x1: 1, x2: 27, y1: 5, y2: 5 }));
      key.append(html("span", {}, sample, text));
    }
    plot.append(picture, key);
  }

  // ------------------------------------------------ three members: a triangle; more: a face at a time

  buildTriangle(plot) {
    this.face = this.firstFace();
    this.stage = html("div", { class: "stage" });
    plot.append(this.stage);
    if (this.members > 3) this.buildFaces(plot);
    this.drawFace();
  }

  firstFace() {
    const order = this.probs.map((p, i) => [p, -i]).sort((a, b) => b[0] - a[0] || b[1] - a[1]).map(([, i]) => -i);
    return order.slice(0, 3).sort((a, b) => a - b);
  }

  onFace() {
    return this.face.map((member) => this.probs[member]);
  }

  fromFace(three) {
    const probs = Array(this.members).fill(0);
    normalized(three).forEach((p, place) => { probs[this.face[place]] = p; });
    return probs;
  }

  drawFace() {
    const groups = faceProfile(this.profile, this.face);
    const painted = paintTriangle(groups, 1.5);
    const { width, height, top, left, right } = TRIANGLE;
    const outline = [top, left, right].map((p) => p.join(",")).join(" ");
    const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, class: "chart triangle", role: "group",
      "aria-label": `risk of the ensemble over the probabilities of members ${this.face.join(", ")}: from ${showNumber(painted.low)} to ${showNumber(painted.high)}` });
    const clip = `face-${Math.random().toString(36).slice(2)}`;
    picture.append(
      svg("clipPath", { id: clip }, svg("polygon", { points: outline })),
      svg("image", { href: painted.url, x: left[0], y: top[1], width: right[0] - left[0], height: left[1] - top[1],
        "clip-path": `url(#${clip})`, preserveAspectRatio: "none" }),
      svg("polygon", { class: "area outline", points: outline }));
    const corner = (place, point, anchor, lift) => {
      const label = svg("text", { x: point[0], y: point[1] + lift, "text-anchor": anchor });
      const member = this.face[place];
      label.textContent = `member ${member} (η = ${this.profile.memberRisks[member].toFixed(3)})`;
      picture.append(label);
    };
    corner(0, top, "middle", -20);
    corner(1, [4, left[1]], "start", 26);
    corner(2, [width - 4, right[1]], "end", 26);
    const candidates = this.members === 3 ? this.data.candidates.map((words) => words.map(parseNumber)) : [
      [1, 0, 0], [0, 1, 0], [0, 0, 1], [0.5, 0.5, 0], [0.5, 0, 0.5], [0, 0.5, 0.5],
      [1 / 3, 1 / 3, 1 / 3], [0.5, 0.25, 0.25], [0.25, 0.5, 0.25], [0.25, 0.25, 0.5]];
    for (const three of candidates) {
      const [x, y] = trianglePoint(three);
      const dot = svg("circle", { class: "candidate", cx: x, cy: y, r: 4.5 });
      const name = svg("title");
      name.textContent = `candidate (${three.map((p) => p.toFixed(3)).join(", ")}): η = ${showNumber(faceRisk(groups, ...three))}`;
      dot.append(name);
      dot.addEventListener("pointerdown", (event) => {
        // A click on a candidate means the candidate, not a place near it.
        this.move(this.fromFace(three), true);
        this.handle.focus({ preventScroll: true });
        event.preventDefault();
      });
      picture.append(dot);
    }
    if (this.optimum && this.optimum.probs.every((p, i) => p === 0 || this.face.includes(i))) {
      const [x, y] = trianglePoint(this.face.map((member) => this.optimum.probs[member]));
      const star = Array.from({ length: 10 }, (_, i) => {
        const radius = i % 2 ? 5 : 12;
        return [x + radius * Math.sin((i * Math.PI) / 5), y - radius * Math.cos((i * Math.PI) / 5)].join(",");
      }).join(" ");
      picture.append(svg("polygon", { class: "star", points: star }));
    }
    this.operate(picture, (x, y) => this.fromFace(triangleProbs(x, y)), (key, size) => {
      const [a, b, c] = normalized(this.onFace());
      const moves = { ArrowUp: [size, -size / 2, -size / 2], ArrowDown: [-size, size / 2, size / 2],
        ArrowLeft: [0, size, -size], ArrowRight: [0, -size, size] }[key];
      return moves ? this.fromFace([a + moves[0], b + moves[1], c + moves[2]]) : null;
    });
    const scale = html("p", { class: "legend" });
    const ramp = svg("svg", { viewBox: "0 0 90 10", class: "ramp", "aria-hidden": "true" });
    for (let i = 0; i < 30; i++) {
      ramp.append(svg("rect", { x: 3 * i, y: 0, width: 3.2, height: 10, fill: `rgb(${color(i / 29).join(",")})` }));
    }
    scale.append(html("span", {}, `η ${painted.low.toFixed(3)}`, ramp, painted.high.toFixed(3)));
    const dot = svg("svg", { viewBox: "0 0 12 12", class: "sample", "aria-hidden": "true" }, svg("circle", { class: "candidate", cx: 6, cy: 6, r: 4 }));
    scale.append(html("span", {}, dot, "candidates"));
    if (this.optimum) scale.append(html("span", { text: "★ optimum" }));
    this.note = html("p", { class: "note" });
    this.stage.replaceChildren(picture, scale, this.note);
    this.place = () => {
      const three = this.onFace();
      const inside = three.reduce((sum, p) => sum + p, 0);
      const [x, y] = trianglePoint(normalized(three));
      this.handle.setAttribute("transform", `translate(${x} ${y})`);
      this.handle.classList.toggle("outside", inside < 1 - 1e-9);
      this.note.textContent = inside < 1 - 1e-9
        ? `${showNumber(1 - inside, 3)} of α lies outside this face; the hollow point shows its proportions on the face.` : "";
    };
    this.place();
  }

  showFace(face) {
    this.face = face;
    this.drawFace();
    this.move(this.probs);
  }

  buildFaces(plot) {
    const row = html("p", { class: "jumps" }, "face of members ");
    const choosers = this.face.map((member, place) => {
      const chooser = html("select", { "aria-label": `${["first", "second", "third"][place]} member of the face` });
      for (let i = 0; i < this.members; i++) chooser.append(html("option", { value: i, text: String(i) }));
      chooser.value = member;
      chooser.addEventListener("change", () => {
        const face = choosers.map((c) => Number(c.value));
        if (new Set(face).size === 3) this.showFace(face);
        else this.note.textContent = "A face has three different members.";
      });
      row.append(chooser, " ");
      return chooser;
    });
    plot.append(row);
  }
}
