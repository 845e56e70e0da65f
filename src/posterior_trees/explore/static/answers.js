// Ask the tree: what do the leaves say inside a box, and with what probability?
//
// Leaves are grouped by their pixels in the box with Ward's method, weighted by probability: every
// leaf begins as a group, and the two groups a, b whose union costs least are joined,
//
//   cost(a, b) = α_a α_b / (α_a + α_b) · mean over the box of (x_a − x_b)².
//
// The costs of all unions add up to the variance in the box, so that "as many answers as there are"
// is the smallest number of groups that explains EXPLAINED of it; one, where it is hardly visible.
//
// The tree is re-sorted by D(n) = Σ_{leaves l under n} α_l / α_n · mean over the box of
// (x_l − x_root)²: siblings whose leaves disagree most with the mean answer come first.

import {
  branchingOf, example, leavesUnder, nodeAt, pathOfIndex, sizeOf, state, treesOf,
} from "./state.js";

const EXPLAINED = 0.75, MOST = [4, 3], // of one box, of each of two
  VISIBLE = 0.02, SAMPLED = 4096;
export const LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ";

// The leaves' values inside a box, at most about SAMPLED pixels of it: { leaf, p, values }.
export function regionOf(tree, box, [, width]) {
  const step = Math.max(1, Math.ceil(Math.sqrt((box.w * box.h) / SAMPLED)));
  const places = [];
  for (let y = box.y; y < box.y + box.h; y += step) {
    for (let x = box.x; x < box.x + box.w; x += step) places.push(4 * (y * width + x));
  }
  const valuesOf = ({ rgba }) =>
    Float32Array.from({ length: 3 * places.length }, (_, i) =>
      rgba[places[Math.floor(i / 3)] + (i % 3)] / 255);
  return tree.levels.at(-1).map((node, leaf) => node && { leaf, p: node.p, values: valuesOf(node) })
    .filter(Boolean);
}

const squared = (a, b) => {
  let sum = 0;
  for (let i = 0; i < a.length; i++) sum += (a[i] - b[i]) ** 2;
  return sum / a.length;
};
const joinCost = (a, b) => (a.p && b.p ? ((a.p * b.p) / (a.p + b.p)) * squared(a.values, b.values) : 0);

function joined(a, b) {
  const share = a.p + b.p ? a.p / (a.p + b.p) : 0.5;
  const values = a.values.map((value, i) => share * value + (1 - share) * b.values[i]);
  return { p: a.p + b.p, values, leaves: [...a.leaves, ...b.leaves] };
}

// Groups of leaves with their probability, likeliest first; `count` 0 chooses how many.
export function groupLeaves(region, count = 0, most = MOST[0]) {
  let groups = region.map(({ leaf, p, values }) => ({ p, values, leaves: [leaf] }));
  const costs = groups.map((a) => groups.map((b) => joinCost(a, b)));
  const history = [{ groups, cost: 0 }];
  while (groups.length > 1) {
    let [first, second] = [0, 1];
    for (let a = 0; a < groups.length; a++) {
      for (let b = a + 1; b < groups.length; b++) {
        if (costs[a][b] < costs[first][second]) [first, second] = [a, b];
      }
    }
    const cost = history.at(-1).cost + costs[first][second];
    const union = joined(groups[first], groups[second]);
    groups = groups.filter((_, i) => i !== second).map((g, i) => (i === first ? union : g));
    costs.splice(second, 1);
    costs.forEach((row) => row.splice(second, 1));
    groups.forEach((g, i) => { costs[first][i] = costs[i][first] = joinCost(union, g); });
    history.push({ groups, cost });
  }
  const variance = history.at(-1).cost;
  const enough = (step) => step.cost <= (1 - EXPLAINED) * variance;
  const automatic = Math.sqrt(variance) < VISIBLE ? 1
    : Math.min(most, ...history.filter(enough).map((step) => step.groups.length));
  const wanted = Math.min(Math.max(1, count || automatic), region.length);
  const chosen = history.find((step) => step.groups.length === wanted) ?? history.at(-1);
  return [...chosen.groups].sort((a, b) => b.p - a.p);
}

// Which answer each leaf gives: leaf index → answer number.
export function answerOfLeaf(groups) {
  const answer = new Map();
  groups.forEach(({ leaves }, number) => leaves.forEach((leaf) => answer.set(leaf, number)));
  return answer;
}

// P(answer i in the first box and answer j in the second).
export function jointTable(tree, first, second) {
  const inSecond = answerOfLeaf(second);
  const table = first.map(() => second.map(() => 0));
  first.forEach(({ leaves }, i) => leaves.forEach((leaf) => {
    table[i][inSecond.get(leaf)] += tree.levels.at(-1)[leaf].p;
  }));
  return table;
}

// How many bits the answer in one box tells about the answer in the other.
export function sharedBits(table) {
  const rows = table.map((row) => row.reduce((a, b) => a + b));
  const columns = table[0].map((_, j) => table.reduce((sum, row) => sum + row[j], 0));
  return table.reduce((bits, row, i) => bits + row.reduce((sum, p, j) =>
    sum + (p > 0 ? p * Math.log2(p / (rows[i] * columns[j])) : 0), 0), 0);
}

// D(n) of every node, level by level.
function scoreNodes(tree, regions) {
  const total = new Map();
  for (const region of regions) {
    const mass = region.reduce((sum, { p }) => sum + p, 0) || 1;
    const mean = region[0].values.map((_, i) =>
      region.reduce((sum, { p, values }) => sum + (p / mass) * values[i], 0));
    for (const { leaf, values } of region) {
      total.set(leaf, (total.get(leaf) ?? 0) + squared(values, mean));
    }
  }
  return tree.levels.map((nodes, level) => nodes.map((node, index) => {
    if (!node) return -1;
    const under = leavesUnder(pathOfIndex(level, index, tree), tree).filter((leaf) => total.has(leaf));
    const mass = under.reduce((sum, leaf) => sum + tree.levels.at(-1)[leaf].p, 0);
    return mass ? under.reduce((sum, leaf) =>
      sum + (tree.levels.at(-1)[leaf].p / mass) * total.get(leaf), 0) : 0;
  }));
}

// Answer the boxes of the state; needs the pixels. Sides that are compared share their answers: all
// their leaves are grouped together, each side with the same weight.
export function answerBoxes() {
  const isReady = example().isLoaded && state.boxes.length && branchingOf().length;
  const trees = isReady ? treesOf() : [];
  const regions = trees.map((tree) => state.boxes.map((box) => regionOf(tree, box, sizeOf())));
  const pooled = (trees.length ? state.boxes : []).map((_, box) => groupLeaves(
    regions.flatMap((of, side) => of[box].map(({ leaf, p, values }) =>
      ({ leaf: { side, leaf }, p: p / trees.length, values }))),
    state.counts[box],
    MOST[state.boxes.length - 1],
  ));
  state.asked = trees.map((tree, side) => {
    const answers = pooled.map((groups) => groups.map((group) => {
      const leaves = group.leaves.filter((l) => l.side === side).map((l) => l.leaf);
      return { leaves, everyone: group.leaves, p: sumOf(leaves, tree) };
    }));
    return { answers, of: answers.map(answerOfLeaf), scores: scoreNodes(tree, regions[side]) };
  });
}

const sumOf = (leaves, tree) => leaves.reduce((sum, leaf) => sum + tree.levels.at(-1)[leaf].p, 0);

// The probability of each answer to a box among the leaves under a node.
export function mixOf(path, tree, asked, box = 0) {
  const mix = asked.answers[box].map(() => 0);
  for (const leaf of leavesUnder(path, tree)) {
    const node = tree.levels.at(-1)[leaf];
    if (node) mix[asked.of[box].get(leaf)] += node.p;
  }
  const mass = nodeAt(path, tree)?.p || 1;
  return mix.map((p) => p / mass);
}

export const labelOf = (box, answer) => state.labels[box]?.[answer] || LETTERS[answer] || `${answer + 1}`;
