// One state, and the words for trees.
//
//   events → update(change) → state → every function given to onRender
//
// A path is a list of child numbers from the root, [] being the root itself. Numbers that people
// see or type start at 1; numbers in code and data start at 0. A side is a method: 0 is ours, the
// others are rivals that the page may have been given. The data's form is described in content.py.
// Nothing here uses innerHTML: all words from outside are put in as text.

export const $ = (id) => document.getElementById(id);
export const data = JSON.parse($("trees").textContent);
if (data.schema !== 1) throw new Error(`this page reads schema 1, the data has ${data.schema}`);

export const MODES = ["image", "difference", "variance", "heat"];

export const state = {
  example: 0,
  side: 0,
  path: [],
  elsewhere: [], // the paths of the sides that are not the current one
  truth: false,
  preview: null, // { side, path } under the pointer
  flicker: null, // the path that flickering shows now
  blend: 100,
  mode: "image",
  promise: false, // grey out what is outside the cut
  crop: true, // thumbnails show only where siblings differ
  boxes: [], // questions: { x, y, w, h } in pixels of the image
  counts: [0, 0], // how many answers each box is asked for; 0: as many as there are
  labels: [[], []], // the reader's names for the answers
  measure: 0, // which measure is shown where there is room for one
  asked: [], // what answers.js found, one entry per side
};

// ---- the tree -----------------------------------------------------------------------------

export const example = () => data.examples[state.example];
export const sizeOf = (item = example()) => item.size ?? data.size;
export const treesOf = (item = example()) => [item, ...(item.rivals ?? [])];
export const treeOn = (side = state.side) => treesOf()[side];
export const pathOn = (side) => (side === state.side ? state.path : state.elsewhere[side] ?? []);
export const branchingOf = (tree = treeOn()) => tree.branching ?? data.branching;
export const nameOfSide = (side) => (side ? treeOn(side).name : data.model.name ?? "This model");

export const name = (path) => path.map((child) => child + 1).join(".");
export const same = (a, b) => Boolean(a && b) && a.join() === b.join();
export const isPrefix = (short, long) => short.every((child, level) => child === long[level]);
export const indexOf = (path, tree = treeOn()) =>
  path.reduce((index, child, level) => index * branchingOf(tree)[level] + child, 0);
export const nodeAt = (path, tree = treeOn()) => // null: absent
  tree.levels[path.length][indexOf(path, tree)];
export const parentOf = (path) => path.slice(0, -1);
export function childrenOf(path, tree = treeOn()) {
  const children = Array.from({ length: branchingOf(tree)[path.length] ?? 0 }, (_, child) => [...path, child]);
  return tree.grown ? children.filter((child) => isShown(child, tree)) : children;
}
const isShown = (path, tree) => Boolean(nodeAt(path, tree)) && !nodeAt(path, tree).same;
export const isOfTruth = (path, tree = treeOn()) =>
  tree.truth_path?.[path.length] === indexOf(path, tree);

export function pathOfIndex(level, index, tree = treeOn()) {
  const path = [];
  for (const k of branchingOf(tree).slice(0, level).reverse()) {
    path.unshift(index % k);
    index = Math.floor(index / k);
  }
  return path;
}

// The leaves under a node, as indices into the last level.
export function leavesUnder(path, tree = treeOn()) {
  const width = branchingOf(tree).slice(path.length).reduce((a, b) => a * b, 1);
  const first = indexOf(path, tree) * width;
  return Array.from({ length: width }, (_, i) => first + i);
}

export function likeliest(paths, tree = treeOn()) {
  return paths.filter((path) => nodeAt(path, tree))
    .sort((a, b) => nodeAt(b, tree).p - nodeAt(a, tree).p)[0];
}

// Children in the order they are drawn: as numbered, or those that disagree most inside the
// reader's boxes first.
export function drawnChildren(path, side = state.side) {
  const tree = treeOn(side);
  const scores = state.asked[side]?.scores[path.length + 1];
  const children = childrenOf(path, tree);
  if (!scores) return children;
  return children.sort((a, b) => scores[indexOf(b, tree)] - scores[indexOf(a, tree)]);
}

export function percent(p) {
  if (p > 0 && p < 0.005) return "<1%";
  return p >= 0.995 && p < 0.9999 ? ">99%" : `${Math.round(100 * p)}%`;
}

export function describe(path, side = state.side) {
  const tree = treeOn(side);
  const title = path.length ? `Node ${name(path)}` : "Root, the mean of all answers";
  const node = nodeAt(path, tree);
  const truth = state.truth && isOfTruth(path, tree) ? ", nearest to the truth" : "";
  return node ? `${title}, probability ${percent(node.p)}${truth}` : `${title}, absent`;
}

// ---- elements -----------------------------------------------------------------------------

export function element(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

// ---- changes ------------------------------------------------------------------------------

const renderers = [];
export const onRender = (renderer) => renderers.push(renderer);

export function render() {
  if (data.examples.length) for (const renderer of renderers) renderer();
}

export function update(change) {
  if (change.path || "example" in change || "side" in change) {
    Object.assign(state, { preview: null, flicker: null, blend: 100 });
  }
  if ("example" in change) {
    if (change.example !== state.example) state.truth = false;
    Object.assign(state, { side: 0, elsewhere: [], asked: [], labels: [[], []] });
  } else if ("side" in change && change.side !== state.side) {
    const next = change.path ?? pathOn(change.side);
    state.elsewhere[state.side] = state.path;
    change = { ...change, path: next };
  }
  Object.assign(state, change);
  if ("example" in change) state.boxes = state.boxes.map(clipBox); // sizes may differ
  writeAddress();
  render();
}

// ---- the address: #example/path;key=value;…, so that a view can be kept and shared ------------

function writeAddress() {
  const parts = [`#${state.example + 1}/${name(state.path)}`];
  if (state.side) parts.push(`side=${state.side + 1}`);
  state.elsewhere.forEach((path, side) => {
    if (side !== state.side && path.length) parts.push(`at=${side + 1}/${name(path)}`);
  });
  if (state.mode !== "image") parts.push(`mode=${state.mode}`);
  if (state.truth) parts.push("truth");
  if (!state.crop) parts.push("whole");
  if (state.promise) parts.push("promise");
  if (state.measure) parts.push(`measure=${state.measure + 1}`);
  state.boxes.forEach(({ x, y, w, h }, i) => {
    const labels = (state.labels[i] ?? []).map((label) => encodeURIComponent(label ?? ""));
    parts.push(`box=${[x, y, w, h, state.counts[i], ...labels].join(",")}`);
  });
  try {
    history.replaceState(null, "", parts.join(";"));
  } catch { /* inside a notebook's frame there is no address to keep */ }
}

export function readAddress() {
  const [place, ...parts] = location.hash.slice(1).split(";");
  const [index, path] = place.split("/");
  const values = (key) => parts.filter((part) => part.startsWith(`${key}=`))
    .map((part) => part.slice(key.length + 1));
  state.example = data.examples[index - 1] ? index - 1 : 0;
  if (!data.examples.length) return;
  const side = Number(values("side")[0] ?? 1) - 1;
  state.side = treesOf()[side] ? side : 0;
  state.path = readPath(path ?? "", treeOn());
  state.elsewhere = [];
  for (const [number, other] of values("at").map((text) => text.split("/"))) {
    if (treesOf()[number - 1]) state.elsewhere[number - 1] = readPath(other ?? "", treeOn(number - 1));
  }
  state.mode = MODES.includes(values("mode")[0]) ? values("mode")[0] : "image";
  state.truth = parts.includes("truth") && Boolean(example().truth);
  state.crop = !parts.includes("whole");
  state.promise = parts.includes("promise");
  state.measure = Math.max(0, Math.round(Number(values("measure")[0])) - 1 || 0);
  state.boxes = [];
  values("box").slice(0, 2).forEach(readBox);
}

function readPath(text, tree) {
  const path = text.split(".").filter(Boolean).map((number) => Number(number) - 1);
  const isPath = path.length <= branchingOf(tree).length && path.every((child, level) =>
    Number.isInteger(child) && child >= 0 && child < branchingOf(tree)[level]);
  return isPath && isShown(path, tree) ? path : [];
}

function readBox(text) {
  const [x, y, w, h, count, ...labels] = text.split(",");
  const box = { x: Number(x), y: Number(y), w: Number(w), h: Number(h) };
  if (!Object.values(box).every(Number.isFinite)) return;
  const i = state.boxes.push(clipBox(box)) - 1;
  state.counts[i] = Math.max(0, Math.round(Number(count)) || 0);
  state.labels[i] = labels.map(decode);
}

function decode(text) {
  try { return decodeURIComponent(text); } catch { return ""; }
}

// A box of whole pixels inside the image.
export function clipBox({ x, y, w, h }) {
  const [height, width] = sizeOf();
  const [cw, ch] = [Math.min(Math.max(1, Math.round(w)), width), Math.min(Math.max(1, Math.round(h)), height)];
  return {
    x: Math.min(Math.max(0, Math.round(x)), width - cw),
    y: Math.min(Math.max(0, Math.round(y)), height - ch),
    w: cw,
    h: ch,
  };
}
