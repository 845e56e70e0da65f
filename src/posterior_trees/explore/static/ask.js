// The answers: under the tree, for every box the distinct things its leaves say and how likely each
// is; for two boxes also both at once; and the distribution of every measure over the leaves.

import { jointTable, labelOf, sharedBits } from "./answers.js";
import { boxWords } from "./promise.js";
import {
  $, data, element, percent, sizeOf, state, treeOn, treesOf, update,
} from "./state.js";
import { removeBox } from "./viewer.js";

export function renderAnswers() {
  const asked = state.asked[state.side];
  const measures = Object.entries(treeOn().measures ?? {});
  $("ask").hidden = !asked && !measures.length;
  $("hint").hidden = Boolean(asked) || !treeOn().levels[1];
  const shown = JSON.stringify([state.example, state.side, state.boxes, asked?.answers,
    treeOn().measures, state.measure, data.examples.length]);
  if ($("ask").dataset.shown !== shown) {
    $("ask").dataset.shown = shown;
    const cards = (asked?.answers ?? []).map((answers, box) => questionCard(answers, box));
    $("ask").classList.toggle("two", cards.length === 2);
    if (cards.length === 2) cards.push(jointCard(asked));
    cards.push(...measureCards(measures));
    keepFocus($("ask"), () => $("ask").replaceChildren(...cards));
  } else $("ask").querySelector(".joint")?.replaceWith(jointCard(asked)); // labels may be new
  const words = (asked?.answers ?? []).map((answers, box) => `Box ${box + 1}: ` + answers
    .map(({ p }, i) => `${labelOf(box, i)} ${percent(p)}`).join(", "));
  if ($("spoken").textContent !== words.join(". ")) $("spoken").textContent = words.join(". ");
}

// Cards are made anew; what had the focus is found again by its key.
function keepFocus(parent, change) {
  const key = parent.contains(document.activeElement) && document.activeElement.dataset.key;
  change();
  if (key) parent.querySelector(`[data-key="${key}"]`)?.focus();
}

function button(text, label, key, onclick) {
  const made = element("button", { type: "button", textContent: text, title: label, onclick });
  made.setAttribute("aria-label", label);
  made.dataset.key = key;
  return made;
}

function questionCard(answers, box) {
  const count = answers.length;
  const recount = (wanted) => {
    const counts = [...state.counts];
    counts[box] = wanted;
    update({ counts });
  };
  const total = treesOf().reduce((sum, tree) => sum + tree.levels.at(-1).filter(Boolean).length, 0);
  const fewer = button("−", "Fewer answers", `fewer-${box}`, () => recount(Math.max(1, count - 1)));
  const more = button("+", "More answers", `more-${box}`, () => recount(Math.min(total, count + 1)));
  const close = button("×", `Remove box ${box + 1}`, `close-${box}`, () => removeBox(box));
  const says = count === 1 ? "all leaves agree" : `${count} answers`;
  const title = element("h3", {}, element("b", { className: `tag box-${box}`, textContent: box + 1 }),
    ` ${says} `, fewer, more, close);
  const list = element("ol", {}, ...answers.map((answer, i) => answerItem(answer, i, box)));
  const promised = boxWords(state.boxes[box], sizeOf()[1]);
  const line = promised ? [element("p", { className: "promised", textContent: promised })] : [];
  return element("section", { className: "question" }, title, list, ...line);
}

function answerItem(answer, i, box) {
  const canvas = element("canvas", { className: "crop" });
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", `Mean of answer ${labelOf(box, i)}`);
  drawAnswer(canvas, answer.everyone, state.boxes[box]);
  const label = element("input", { value: labelOf(box, i), title: "Name this answer", maxLength: 24,
    onchange: (event) => {
      const labels = state.labels.map((list) => [...list]);
      labels[box][i] = event.target.value.replaceAll(/[,;]/g, " ").trim();
      update({ labels });
    } });
  label.setAttribute("aria-label", `Your word for answer ${labelOf(box, i)}`);
  label.dataset.key = `label-${box}-${i}`;
  const bar = element("i", { className: `bar answer-${i % 6}` });
  bar.style.width = `${100 * answer.p}%`;
  return element("li", {}, element("span", { className: "picture" }, canvas),
    element("div", {}, label, element("strong", { textContent: answer.p.toFixed(2) }),
      element("span", { className: "track" }, bar),
      element("small", { textContent: footnote(answer, i, box) })));
}

// How many leaves say so; or, in a comparison, what the others make of it.
function footnote(answer, i, box) {
  const others = treesOf().map((_, side) => side).filter((side) => side !== state.side);
  if (others.length) {
    return others.map((side) => `other ${state.asked[side].answers[box][i].p.toFixed(2)}`).join(", ");
  }
  return `${answer.leaves.length} ${answer.leaves.length === 1 ? "leaf" : "leaves"}`;
}

// The mean of an answer's leaves inside the box, on all sides.
function drawAnswer(canvas, leaves, box) {
  const [, width] = sizeOf();
  Object.assign(canvas, { width: box.w, height: box.h });
  const context = canvas.getContext("2d"), picture = context.createImageData(box.w, box.h);
  const members = leaves.map(({ side, leaf }) => treeOn(side).levels.at(-1)[leaf]);
  const mass = members.reduce((sum, { p }) => sum + p, 0);
  for (let y = 0; y < box.h; y++) {
    for (let x = 0; x < box.w; x++) {
      const to = 4 * (y * box.w + x), from = 4 * ((y + box.y) * width + x + box.x);
      for (let c = 0; c < 4; c++) {
        picture.data[to + c] = members.reduce((sum, { p, rgba }) =>
          sum + (mass ? p / mass : 1 / members.length) * rgba[from + c], 0);
      }
    }
  }
  context.putImageData(picture, 0, 0);
}

function jointCard(asked) {
  const [first, second] = asked.answers;
  const table = jointTable(treeOn(), first, second);
  const head = element("tr", {}, element("td", { textContent: "1 \\ 2" }),
    ...second.map((_, j) => element("th", { scope: "col", textContent: labelOf(1, j) })));
  const rows = table.map((row, i) => element("tr", {},
    element("th", { scope: "row", textContent: labelOf(0, i) }),
    ...row.map((p) => {
      const cell = element("td", { textContent: p.toFixed(2) });
      cell.style.setProperty("--share", `${Math.round(100 * p)}%`);
      return cell;
    })));
  const bits = sharedBits(table);
  const caption = bits < 0.01 ? "The answers are independent"
    : `One answer tells ${bits.toFixed(2)} bit about the other`;
  return element("section", { className: "joint" }, element("h3", { textContent: "Both at once" }),
    element("table", {}, element("tbody", {}, head, ...rows)),
    element("small", { textContent: caption }));
}

// ---- measures -------------------------------------------------------------------------------

const BINS = 12, HIGH = 56, WIDE = 190;

// Whole numbers get a bar each if they are few; others fall into BINS of equal width.
export function binsOf(pairs) {
  const values = pairs.map(([value]) => value);
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const isWhole = values.every(Number.isInteger) && high - low < 2 * BINS;
  const count = isWhole ? high - low + 1 : high > low ? BINS : 1;
  const step = isWhole ? 1 : (high - low) / count || 1;
  const bins = Array.from({ length: count }, (_, i) => ({ low: low + i * step, p: 0, isWhole, step }));
  for (const [value, p] of pairs) bins[Math.min(count - 1, Math.floor((value - low) / step))].p += p;
  return bins;
}

// All of them; beside the answers to a box one, which the reader chooses.
function measureCards(measures) {
  if (!state.boxes.length || measures.length < 2) {
    return measures.map(([title, values]) => histogramCard(title, values));
  }
  const chosen = measures[state.measure] ? state.measure : 0;
  const options = measures.map(([title], i) =>
    element("option", { value: i, textContent: title, selected: i === chosen }));
  const menu = element("select", { onchange: () => update({ measure: Number(menu.value) }) }, ...options);
  menu.setAttribute("aria-label", "Which measure");
  menu.dataset.key = "measure";
  return [histogramCard(...measures[chosen], menu)];
}

function histogramCard(title, values, heading = title) {
  const tree = treeOn();
  const pairs = values.map((value, leaf) => [value, tree.levels.at(-1)[leaf]?.p ?? 0])
    .filter(([value]) => value !== null);
  const bins = binsOf(pairs), most = Math.max(...bins.map((bin) => bin.p)) || 1;
  const mass = pairs.reduce((sum, [, p]) => sum + p, 0) || 1;
  const mean = pairs.reduce((sum, [value, p]) => sum + value * p, 0) / mass;
  const wordsOf = (bin) => `${bin.isWhole ? bin.low : `${round(bin.low)} to ${round(bin.low + bin.step)}`}: ${percent(bin.p)}`;
  const bars = bins.map((bin) => {
    const bar = element("i", { title: wordsOf(bin) });
    bar.style.height = `${bin.p ? Math.max(2, (HIGH * bin.p) / most) : 0}px`;
    return bar;
  });
  const chart = element("div", { className: "bars" }, ...bars);
  chart.style.maxWidth = `${WIDE}px`;
  chart.setAttribute("role", "img");
  chart.setAttribute("aria-label", `Distribution of ${title}: ` +
    bins.filter((bin) => bin.p).map(wordsOf).join("; "));
  const last = bins.at(-1);
  return element("section", { className: "histogram" }, element("h3", {}, heading), chart,
    element("p", {}, element("span", { textContent: round(bins[0].low) }),
      element("span", { textContent: `mean ${round(mean)}` }),
      element("span", { textContent: round(last.isWhole ? last.low : last.low + last.step) })));
}

const round = (value) => String(Number(value.toPrecision(3)));
