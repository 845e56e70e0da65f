// What is promised about a tree (content.py, Guarantee.for_page): the nodes that hold the truth's
// path, and where the mean of a box lies that was drawn after looking. Withdrawn promises say why.

import { $, element, isPrefix, state, treeOn } from "./state.js";

const cutOf = (tree) => (state.promise && !tree.promise?.withdrawn && tree.promise?.cut) || null;
const isNear = (a, b) => isPrefix(a, b) || isPrefix(b, a);

// "ring": a node of the cut; "outside": neither under nor above one; "": nothing is promised.
export function standing(path, tree) {
  const cut = cutOf(tree);
  if (!cut) return "";
  if (cut.some((node) => node.join() === path.join())) return "ring";
  return cut.some((node) => isNear(node, path)) ? "" : "outside";
}

// The boxes of the grid, side by side, that lie nearest to a box, as in guarantee/boxes.py.
export function fillGrid(box, { inside, size, step, counts }) {
  const want = [[box.y, box.h], [box.x, box.w]], places = [], taken = [];
  for (const axis of [0, 1]) {
    const start = inside[axis], whole = inside[axis + 2];
    const low = Math.min(Math.max(want[axis][0] - start, 0), whole - 1);
    const high = Math.min(Math.max(want[axis][0] + want[axis][1] - start, low + 1), whole);
    const most = Math.min(Math.max(Math.floor((high - low) / size[axis] + 0.5), 1), Math.floor(whole / size[axis]));
    const many = size[axis] % step[axis] ? 1 : most, stride = Math.ceil(size[axis] / step[axis]);
    const at = Math.ceil((low + high - many * size[axis]) / 2 / step[axis] - 0.5);
    const first = Math.min(Math.max(at, 0), counts[axis] - 1 - (many - 1) * stride);
    places.push(Array.from({ length: many }, (_, i) => first + i * stride));
    taken.push([start + first * step[axis], many * size[axis]]);
  }
  const boxes = places[0].flatMap((row) => places[1].map((column) => ({ number: row * counts[1] + column,
    y: inside[0] + row * step[0], x: inside[1] + column * step[1] })));
  return { boxes, taken: { y: taken[0][0], h: taken[0][1], x: taken[1][0], w: taken[1][1] } };
}

function meanOf({ rgba }, x, y, w, h, width) {
  let sum = 0;
  for (let row = y; row < y + h; row++) {
    for (let column = x; column < x + w; column++) {
      for (let c = 0; c < 3; c++) sum += rgba[4 * (row * width + column) + c];
    }
  }
  return sum / (3 * 255 * w * h);
}

// From where to where the mean of a box lies: { low, high, taken }, taken being the box meant.
export function intervalOf(tree, box, width) {
  const grid = tree.promise.boxes, [h, w] = grid.size, { boxes, taken } = fillGrid(box, grid);
  const leaves = tree.levels.at(-1).filter(Boolean);
  const mass = leaves.reduce((sum, { p }) => sum + p, 0);
  const ends = boxes.map(({ number, x, y }) => {
    const means = leaves.map((leaf) => meanOf(leaf, x, y, w, h, width));
    const mean = leaves.reduce((sum, { p }, i) => sum + (p / mass) * means[i], 0);
    const variance = leaves.reduce((sum, { p }, i) => sum + (p / mass) * (means[i] - mean) ** 2, 0);
    const half = grid.q === null ? 1 : grid.q * Math.sqrt(variance + grid.widths[number]);
    return [Math.max(0, mean - half), Math.min(1, mean + half)];
  });
  const average = (end) => ends.reduce((sum, pair) => sum + pair[end], 0) / ends.length;
  return { low: average(0), high: average(1), taken };
}

// One line under a box.
export function boxWords(box, width) {
  const { promise } = treeOn();
  if (!promise) return "";
  if (promise.withdrawn) return `${promise.withdrawn}: no promise`;
  if (!promise.boxes) return "";
  const { low, high, taken } = intervalOf(treeOn(), box, width);
  const isSame = ["x", "y", "w", "h"].every((key) => taken[key] === box[key]);
  const where = isSame ? "mean brightness here" : `mean brightness of the ${taken.h}×${taken.w} box nearest to it`;
  return `Whatever the leaves say: ${where} ${low.toFixed(2)} – ${high.toFixed(2)}, ${promise.words}`;
}

export function renderPromise() {
  const { promise } = treeOn();
  $("promise-label").hidden = !promise || Boolean(promise.withdrawn);
  $("promise").checked = state.promise;
  if (promise?.level) $("promise-level").textContent = `promise ${Math.round(100 * promise.level)} %`;
  const words = $("promise-words");
  words.hidden = !promise || !(promise.withdrawn || state.promise);
  if (words.hidden) return;
  words.classList.toggle("beware", Boolean(promise.withdrawn));
  const intervals = Object.entries(promise.intervals ?? {})
    .map(([name, [low, high]]) => `${inWords(name)} ${short(low)} – ${short(high)}`);
  words.replaceChildren(...(promise.withdrawn ? [`${capital(promise.withdrawn)}: no promise`]
    : [element("b", { textContent: heading(promise.cut) }), ` ${promise.words}; `,
      [...intervals, `some leaf is off by ${short(promise.radius)} at most (root mean square)`].join("; "),
      ". Each holds by itself, on average over such images: not for this one alone, nor for one class.",
      " In brackets: how often it may really hold, for 9 of 10 such calibrations."]));
}

const heading = (cut) => (cut.some((node) => !node.length)
  ? "No branch can be left out: what follows is promised" : "The truth lies at or under a ringed node");
// The names of guarantee/measures.py that are no words.
const inWords = (name) => name.replace(/^ink$/, "mean brightness").replace(/^share=/, "share of pixels above ")
  .replace(/^box=/, "mean of the box ");
const short = (value) => String(Number(value.toPrecision(3)));
const capital = (text) => text.charAt(0).toUpperCase() + text.slice(1);
