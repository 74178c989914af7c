"use strict";
// The teaching page: profiles from numbers typed by hand, and their optimum.

const LIMITS = { members: 8, sets: 200 };
const start = JSON.parse(document.getElementById("start").textContent);

// The maximal sets among some masks, without repetition.
function maximalSets(masks) {
  const unique = [...new Set(masks)];
  const kept = unique.filter((mask) => mask && !unique.some((other) => other !== mask && (other & mask) === mask));
  return kept.length ? kept.sort((a, b) => a - b) : [0];
}

// Members' risks and how much the members conflict: with 1 every perturbation fools one member only (the
// construction that makes Theorem 3 tight), with 0 every perturbation fools all that can be fooled.
function fromRisks(risks, conflict) {
  const order = risks.map((_, i) => i).sort((i, j) => risks[i] - risks[j] || i - j);
  const configurations = [];
  let before = 0;
  order.forEach((member, place) => {
    const weight = risks[member] - before;
    before = risks[member];
    if (weight <= 0) return;
    const rest = order.slice(place);
    if (conflict > 0) configurations.push({ weight: weight * conflict, sets: rest.map((i) => 1 << i) });
    if (conflict < 1) configurations.push({ weight: weight * (1 - conflict), sets: [rest.reduce((mask, i) => mask | (1 << i), 0)] });
  });
  if (before < 1) configurations.push({ weight: 1 - before, sets: [0] });
  return { members: risks.length, configurations };
}

function parseRisks(text) {
  const words = text.split(/[\s,;]+/).filter((word) => word !== "");
  if (!words.length) throw new Error("Give the members' risks, e.g. 0.42 0.45 0.5.");
  if (words.length > LIMITS.members) throw new Error(`There are ${words.length} risks; this page draws at most ${LIMITS.members} members.`);
  return words.map((word) => {
    const risk = parseNumber(word);
    if (!(risk >= 0 && risk <= 1)) throw new Error(`"${word}" is not a risk; every risk is a number from 0 to 1.`);
    return risk;
  });
}

// Lines "weight: set set …", each set a string of zeros and ones, member 0 first.
function parseConfigurations(text) {
  const lines = text.split("\n").map((line) => line.trim()).filter((line) => line !== "");
  if (!lines.length) throw new Error("Give at least one line, e.g. 0.6: 10 01.");
  let members = 0;
  let count = 0;
  const configurations = lines.map((line, number) => {
    const parts = line.split(":");
    if (parts.length !== 2) throw new Error(`Line ${number + 1} is "${line}"; write a weight, a colon and sets, e.g. 0.6: 10 01.`);
    const weight = parseNumber(parts[0]);
    if (!(weight >= 0 && weight <= 1)) throw new Error(`Line ${number + 1} has the weight "${parts[0].trim()}"; a weight is a number from 0 to 1.`);
    const sets = parts[1].split(/[\s,;]+/).filter((word) => word !== "").map((word) => {
      if (!/^[01]+$/.test(word)) throw new Error(`Line ${number + 1} holds the set "${word}"; a set is zeros and ones, one for each member.`);
      members = members || word.length;
      if (word.length !== members) throw new Error(`Line ${number + 1} holds the set "${word}" of ${word.length} members where there are ${members}.`);
      count += 1;
      return [...word].reduce((mask, sign, i) => mask | (Number(sign) << i), 0);
    });
    return { weight, sets };
  });
  if (!members) throw new Error("All lines are empty of sets; name at least one, e.g. 0.6: 10 01.");
  if (members > LIMITS.members) throw new Error(`There are ${members} members; this page draws at most ${LIMITS.members}.`);
  if (count > LIMITS.sets) throw new Error(`There are ${count} sets; this page takes at most ${LIMITS.sets}.`);
  const total = configurations.reduce((sum, c) => sum + c.weight, 0);
  if (Math.abs(total - 1) > 1e-6) throw new Error(`The weights sum to ${total.toPrecision(6)}; they must sum to 1.`);
  return { members, configurations: configurations.map((c) => ({ weight: c.weight / total, sets: c.sets })) };
}

// The optimum by the simplex method. η is positively homogeneous, so min η on the simplex is 1 / max Σ α_i subject to
// η(α) ≤ 1: maximise Σ α_i with Σ p_k t_k ≤ 1 and u·α − t_k ≤ 0, whose slack variables are a feasible start. The
// multipliers of the rows, divided by that of the first, are the attacker's mixed strategy: the certificate.
function solve(members, configurations) {
  const profile = { members, configurations };
  const risks = Array.from({ length: members }, (_, i) =>
    configurations.reduce((sum, c) => sum + (c.sets.some((mask) => (mask >> i) & 1) ? c.weight : 0), 0));
  const safe = risks.findIndex((risk) => risk <= 0);
  const rows = [];
  configurations.forEach((c, k) => c.sets.forEach((mask, place) => rows.push({ k, mask, place })));
  if (safe >= 0) {
    return { probs: risks.map((_, i) => Number(i === safe)), lower: 0, mass: rows.map((row) => (row.place ? 0 : configurations[row.k].weight)) };
  }
  const width = members + configurations.length + rows.length + 1;
  const columns = width + 1;
  const table = Array.from({ length: rows.length + 2 }, () => new Float64Array(columns));
  const basis = [];
  configurations.forEach((c, k) => { table[0][members + k] = c.weight; });
  rows.forEach((row, r) => {
    for (let i = 0; i < members; i++) table[r + 1][i] = (row.mask >> i) & 1;
    table[r + 1][members + row.k] = -1;
  });
  for (let r = 0; r <= rows.length; r++) {
    table[r][members + configurations.length + r] = 1;
    basis.push(members + configurations.length + r);
  }
  table[0][width] = 1;
  const goal = table[rows.length + 1];
  for (let i = 0; i < members; i++) goal[i] = -1;
  for (let round = 0; ; round++) {
    if (round > 20000) throw new Error("The optimum was not found; simplify the configurations.");
    // Bland's rule, the first column that helps: slow but never in a circle.
    let enter = 0;
    while (enter < width && goal[enter] > -1e-11) enter++;
    if (enter === width) break;
    let leave = -1;
    for (let r = 0; r <= rows.length; r++) {
      if (table[r][enter] <= 1e-11) continue;
      const ratio = table[r][width] / table[r][enter];
      const best = leave < 0 ? Infinity : table[leave][width] / table[leave][enter];
      if (ratio < best - 1e-14 || (ratio <= best + 1e-14 && basis[r] < basis[leave])) leave = r;
    }
    if (leave < 0) throw new Error("The optimum was not found; simplify the configurations.");
    const pivot = table[leave][enter];
    for (let c = 0; c < columns; c++) table[leave][c] /= pivot;
    for (let r = 0; r < table.length; r++) {
      const factor = table[r][enter];
      if (r === leave || factor === 0) continue;
      for (let c = 0; c < columns; c++) table[r][c] -= factor * table[leave][c];
    }
    basis[leave] = enter;
  }
  const alpha = Array(members).fill(0);
  basis.forEach((column, r) => { if (column < members) alpha[column] = table[r][width]; });
  const slack = members + configurations.length;
  const price = goal[slack];
  const mass = rows.map((_, r) => Math.max(0, goal[slack + r + 1]) / price);
  // Rounding aside each configuration's mass is its weight already; scaling makes it so to the last digit.
  const sums = configurations.map(() => 0);
  rows.forEach((row, r) => { sums[row.k] += mass[r]; });
  rows.forEach((row, r) => {
    const weight = profile.configurations[row.k].weight;
    mass[r] = sums[row.k] > 0 ? (mass[r] * weight) / sums[row.k] : (row.place ? 0 : weight);
  });
  const fooled = Array.from({ length: members }, (_, i) => rows.reduce((sum, row, r) => sum + ((row.mask >> i) & 1 ? mass[r] : 0), 0));
  return { probs: normalised(alpha), lower: Math.min(...fooled), mass };
}

// Snap to a candidate that is as good: exact fractions where Theorems 1 and 2 give them.
function snapped(profile, probs, risk, candidates) {
  for (const words of candidates) {
    const point = normalised(words.map(parseNumber));
    if (point.every((p, i) => Math.abs(p - probs[i]) < 1e-9)
        && readLandscape(profile, point).risk <= risk + 1e-12) return { probs: point, exact: words };
  }
  return { probs, exact: null };
}

function landscapeData({ members, configurations }) {
  const kept = configurations.filter((c) => c.weight > 0).map((c) => ({ weight: c.weight, sets: maximalSets(c.sets) }));
  const candidates = start.candidates[members] || [];
  const data = {
    members,
    weights: kept.map((c) => c.weight),
    sets: kept.map((c) => c.sets.map((mask) => mask.toString(16)).join(",")).join(" "),
    candidates,
    marks: [],
    start: Array(members).fill(1 / members),
    optimum: null,
  };
  const found = solve(members, kept);
  const profile = makeProfile(data);
  const point = snapped(profile, found.probs, readLandscape(profile, found.probs).risk, candidates);
  data.optimum = {
    probs: point.probs,
    exact: point.exact,
    risk: readLandscape(profile, point.probs).risk,
    lower_bound: found.lower,
    rows: found.mass.map((_, row) => row),
    mass: found.mass,
  };
  return data;
}

function advice(landscape) {
  const reading = readLandscape(landscape.profile, landscape.optimum.probs);
  const risks = landscape.profile.memberRisks;
  const best = risks.indexOf(Math.min(...risks));
  const drawn = landscape.optimum.probs.filter((p) => p > 0).length;
  if (risks.length === 1) return `One member: there is nothing to draw; the risk is ${showNumber(risks[0])}.`;
  const gained = risks[best] - reading.risk;
  return gained > 1e-12
    ? `Drawing ${drawn} members helps: the best member alone, ${best}, has the risk ${showNumber(risks[best])}, the optimum ${showNumber(reading.risk)}.`
    : `Drawing does not help here: member ${best} alone, with the risk ${showNumber(risks[best])}, is as good as any mixture.`;
}

const page = {
  mode: () => document.querySelector("input[name=mode]:checked").value,
  risks: document.getElementById("risks"),
  conflict: document.getElementById("conflict"),
  configurations: document.getElementById("configurations"),
  complaint: document.getElementById("complaint"),
  said: document.getElementById("said"),
  root: document.getElementById("landscape"),
};

function update() {
  const risks = page.mode() === "risks";
  document.getElementById("by-risks").hidden = !risks;
  document.getElementById("by-configurations").hidden = risks;
  document.getElementById("conflict-value").textContent = Number(page.conflict.value).toFixed(2);
  try {
    const described = risks
      ? fromRisks(parseRisks(page.risks.value), Number(page.conflict.value))
      : parseConfigurations(page.configurations.value);
    const data = landscapeData(described);
    // Numbers change under the point; the point stays where it is.
    if (page.root.dataset.probs) {
      const before = JSON.parse(page.root.dataset.probs);
      if (before.length === data.members) data.start = before;
    }
    const landscape = new Landscape(page.root, data);
    page.said.textContent = advice(landscape);
    page.complaint.textContent = "";
  } catch (error) {
    page.complaint.textContent = error.message;
  }
}

for (const input of document.querySelectorAll("#numbers input, #numbers textarea")) input.addEventListener("input", update);
document.getElementById("numbers").addEventListener("submit", (event) => event.preventDefault());
for (const button of document.querySelectorAll("[data-example]")) {
  button.addEventListener("click", () => {
    document.querySelector("input[name=mode][value=configurations]").checked = true;
    page.configurations.value = start.examples[button.dataset.example];
    update();
  });
}
update();
