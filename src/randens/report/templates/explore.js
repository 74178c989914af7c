"use strict";
// The teaching page: profiles of two or three members from numbers typed by hand, and their optimum.

const start = JSON.parse(document.getElementById("start").textContent);

// Lines "weight: set set …", each set a string of zeros and ones, member 0 first.
function parseConfigurations(text) {
  const lines = text.split("\n").map((line) => line.trim()).filter((line) => line !== "");
  let members = 0;
  const configurations = lines.map((line, number) => {
    const parts = line.split(":");
    const weight = parts.length === 2 ? parseNumber(parts[0]) : NaN;
    if (!(weight >= 0 && weight <= 1)) throw new Error(`Line ${number + 1} is "${line}"; write a share from 0 to 1, a colon and sets, e.g. 0.6: 10 01.`);
    const sets = parts[1].split(/[\s,;]+/).filter((word) => word !== "").map((word) => {
      members = members || word.length;
      if (!/^[01]+$/.test(word) || word.length !== members) throw new Error(`Line ${number + 1} holds the set "${word}"; a set is zeros and ones, one for each of ${members} members.`);
      return [...word].reduce((mask, sign, i) => mask | (Number(sign) << i), 0);
    });
    return { weight, sets };
  });
  if (members < 2 || members > 3) throw new Error("Give sets of two or three members, e.g. 0.6: 10 01.");
  const total = configurations.reduce((sum, c) => sum + c.weight, 0);
  if (Math.abs(total - 1) > 1e-6) throw new Error(`The shares sum to ${total.toPrecision(6)}; they must sum to 1.`);
  return { members, configurations: configurations.map((c) => ({ weight: c.weight / total, sets: c.sets.length ? c.sets : [0] })) };
}

// Some optimum is among the candidates (Theorems 1 and 2).
function landscapeData({ members, configurations }) {
  const candidates = start.candidates[members];
  const data = {
    members,
    candidates,
    weights: configurations.map((c) => c.weight),
    sets: configurations.map((c) => c.sets.map((mask) => mask.toString(16)).join(",")).join(" "),
    marks: [],
    start: Array(members).fill(1 / members),
  };
  const profile = makeProfile(data);
  const risks = candidates.map((words) => readLandscape(profile, normalized(words.map(parseNumber))).risk);
  const best = risks.indexOf(Math.min(...risks));
  data.optimum = { probs: normalized(candidates[best].map(parseNumber)), risk: risks[best], lower_bound: risks[best], rows: null };
  return data;
}

function advice({ profile, optimum }) {
  const risks = profile.memberRisks;
  const best = risks.indexOf(Math.min(...risks));
  return risks[best] - optimum.risk > 1e-12
    ? `Sampling helps: member ${best} alone, the best, has the risk ${showNumber(risks[best])}, the optimum ${showNumber(optimum.risk)}.`
    : `Sampling does not help here: member ${best} alone, with the risk ${showNumber(risks[best])}, is as good as any mixture.`;
}

const field = document.getElementById("configurations");
const complaint = document.getElementById("complaint");
const root = document.getElementById("landscape");

function update() {
  try {
    const data = landscapeData(parseConfigurations(field.value));
    // Numbers change under the point; the point stays where it is.
    const before = root.dataset.probs ? JSON.parse(root.dataset.probs) : [];
    if (before.length === data.members) data.start = before;
    document.getElementById("said").textContent = advice(new Landscape(root, data));
    complaint.textContent = "";
  } catch (error) {
    complaint.textContent = error.message;
  }
}

field.addEventListener("input", update);
document.getElementById("numbers").addEventListener("submit", (event) => event.preventDefault());
for (const button of document.querySelectorAll("[data-example]")) {
  button.addEventListener("click", () => {
    field.value = button.dataset.example;
    update();
  });
}
update();
