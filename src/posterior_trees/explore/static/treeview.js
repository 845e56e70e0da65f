// The tree: pure layout, then elements that glide. Branches are as wide as their probability, and
// rare ones are never hidden: a branch is at least a pixel wide and a node always drawn.

import { mixOf, labelOf } from "./answers.js";
import { boxAround, cropOf, spreadOf } from "./pixels.js";
import { standing } from "./promise.js";
import {
  $, branchingOf, childrenOf, describe, drawnChildren, element, example, isOfTruth, isPrefix, name,
  nameOfSide, nodeAt, parentOf, pathOn, percent, same, sizeOf, state, treeOn, treesOf, update,
} from "./state.js";

// ---- layout: path and room → boxes and branches -------------------------------------------

const LABEL = 27, FOOT = 22, GAP = 14, FORK = 40, MAX_IMAGE = 200, MAX_FORK = 84;
const leastImage = () => (treesOf().length > 1 ? 24 : 38);

// The whole tree if its leaves have room; else only what opens along the selected path.
function visibleTree(width, side) {
  const tree = treeOn(side);
  const whole = leavesBelow([], tree) * (leastImage() + GAP) <= width;
  const levels = [];
  let slots = 0;
  const visit = (path) => {
    const box = { path, first: slots };
    (levels[path.length] ??= []).push(box);
    const children = drawnChildren(path, side);
    box.isOpen = children.length > 0 && (whole || isPrefix(path, pathOn(side)));
    if (box.isOpen) children.forEach(visit);
    else slots += 1;
    box.span = slots - box.first;
  };
  visit([]);
  return { levels, slots };
}

const leavesBelow = (path, tree) =>
  childrenOf(path, tree).reduce((sum, child) => sum + leavesBelow(child, tree), 0) || 1;

// The most that every level may take so that together they fit: the largest give way first.
function capFor(wanted, available) {
  const ascending = [...wanted].sort((a, b) => a - b);
  for (const [index, size] of ascending.entries()) {
    const share = available / (ascending.length - index);
    if (size > share) return Math.max(share, 8);
    available -= size;
  }
  return Infinity;
}

function layout(width, height, side) {
  const { levels, slots } = visibleTree(width, side);
  const [rows, columns] = sizeOf();
  const aspect = columns / rows;
  const slot = Math.min(width / slots, MAX_IMAGE * aspect * 1.3);
  const room = levels.map((boxes) => {
    const narrowest = Math.min(...boxes.map((box) => box.span));
    return Math.min((narrowest * slot - GAP) / aspect, MAX_IMAGE);
  });
  const depth = levels.length - 1;
  const cap = capFor(room, height - LABEL - depth * (LABEL + FORK) - FOOT);
  const heights = room.map((h) => Math.max(8, Math.min(h, cap)));
  const free = height - FOOT - LABEL * (depth + 1) - heights.reduce((a, b) => a + b);
  const fork = depth ? Math.min(free / depth, MAX_FORK) : 0;
  let top = LABEL + Math.max(0, free - depth * fork) / 2;
  levels.forEach((boxes, level) => {
    const h = heights[level];
    for (const box of boxes) {
      const middle = (width - slots * slot) / 2 + (box.first + box.span / 2) * slot;
      Object.assign(box, { middle, top, w: h * aspect, h, room: box.span * slot });
    }
    top += h + fork + LABEL;
  });
  return levels.flat();
}

// Branches leave a parent side by side, each as wide as its probability.
function branchesOf(boxes, tree) {
  const at = new Map(boxes.map((box) => [name(box.path), box]));
  const unit = Math.min(0.25 * boxes[0].w, 28);
  const used = new Map();
  return boxes.filter((box) => box.path.length).map((box) => {
    const parent = at.get(name(parentOf(box.path)));
    const p = nodeAt(box.path, tree)?.p ?? 0;
    const before = used.get(parent) ?? 0;
    used.set(parent, before + p);
    const x0 = parent.middle + unit * (before + p / 2 - (nodeAt(parent.path, tree)?.p ?? 0) / 2);
    const [y0, y1] = [parent.top + parent.h, box.top - LABEL + 2];
    const bend = (y0 + y1) / 2, end = y1 - 5;
    const d = `M${x0},${y0} C${x0},${bend} ${box.middle},${bend} ${box.middle},${end} V${y1}`;
    return { path: box.path, d, width: Math.max(1, unit * p) };
  });
}

// ---- thumbnails: the part of the image where siblings differ -------------------------------

export function cropFor(path, tree) {
  if (!state.crop || !example().isLoaded || !path.length) return null;
  const size = sizeOf();
  if (state.boxes.length) {
    const left = Math.min(...state.boxes.map((box) => box.x));
    const top = Math.min(...state.boxes.map((box) => box.y));
    const right = Math.max(...state.boxes.map((box) => box.x + box.w));
    const bottom = Math.max(...state.boxes.map((box) => box.y + box.h));
    const zoom = 1.3 * Math.max((right - left) / size[1], (bottom - top) / size[0], 0.1);
    return zoom > 0.9 ? null : boxAround((left + right) / 2, (top + bottom) / 2, zoom, size);
  }
  const parent = nodeAt(parentOf(path), tree);
  if (parent.crop === undefined) {
    const variance = spreadOf(parentOf(path), tree).map((s) => s * s);
    parent.crop = cropOf(variance, size);
  }
  return parent.crop;
}

// Show the crop, and in it a frame around what the children show of the image, if that is inside.
function placeCrop(made, crop, inner) {
  const [height, width] = sizeOf(), layer = made.querySelector(".zoom");
  const { x, y, w, h } = crop ?? { x: 0, y: 0, w: width, h: height };
  layer.style.setProperty("--zoom", width / w);
  layer.style.transform = crop ? `scale(${width / w}) translate(${-100 * x / width}%, ${-100 * y / height}%)` : "";
  const isInside = inner && inner.w < 0.9 * w && inner.x >= x && inner.y >= y &&
    inner.x + inner.w <= x + w && inner.y + inner.h <= y + h;
  placeFrame(made.querySelector(".frame"), isInside ? inner : null);
}

export function placeFrame(frame, crop) {
  frame.hidden = !crop;
  if (!crop) return;
  const [height, width] = sizeOf();
  Object.assign(frame.style, { left: `${100 * crop.x / width}%`, top: `${100 * crop.y / height}%`,
    width: `${100 * crop.w / width}%`, height: `${100 * crop.h / height}%` });
}

// ---- one pane per side ----------------------------------------------------------------------

const views = [];

function createView(side) {
  const svg = document.createElementNS($("logo").namespaceURI, "svg");
  svg.setAttribute("class", "branches");
  svg.setAttribute("aria-hidden", "true");
  const nodes = element("div", { className: "nodes" });
  nodes.setAttribute("role", "tree");
  const title = element("h2", {});
  const canvas = element("div", { className: "tree" }, svg, nodes);
  const pane = element("div", { className: "pane" }, title, canvas);
  const drawn = new Map(); // elements are kept between renders, so that they glide and keep focus
  const view = { side, pane, title, canvas, svg, nodes, drawn };
  nodes.addEventListener("click", (event) => {
    const path = event.target.closest(".node")?.path;
    if (path && nodeAt(path, treeOn(side))) update({ side, path });
  });
  return view;
}

function nodeElement(view, path) {
  const tree = treeOn(view.side);
  const id = `${example().name}/${state.example}/${example().version ?? 0}/${name(path)}`;
  if (!view.drawn.has(id)) {
    const node = nodeAt(path, tree);
    const made = element(node ? "button" : "div", { className: "node", path });
    made.setAttribute("role", "treeitem");
    made.setAttribute("aria-level", path.length + 1);
    made.setAttribute("aria-posinset", (path.at(-1) ?? 0) + 1);
    made.setAttribute("aria-setsize", path.length ? branchingOf(tree)[path.length - 1] : 1);
    if (node) {
      const zoom = element("span", { className: "zoom" },
        element("img", { src: node.image, alt: "", draggable: false }),
        element("span", { className: "frame", hidden: true }));
      made.append(element("span", { className: "p" }),
        element("span", { className: "thumb" }, zoom), element("span", { className: "mix" }));
    } else { made.classList.add("absent"); made.setAttribute("aria-disabled", "true"); }
    view.drawn.set(id, made);
  }
  return [id, view.drawn.get(id)];
}

function dressNode(view, made, box) {
  const { side } = view, { path, isOpen, middle, top, w, h, room } = box;
  const tree = treeOn(side), node = nodeAt(path, tree), selected = pathOn(side);
  made.style.width = `${w}px`;
  made.style.height = `${h}px`;
  made.style.transform = `translate(${middle - w / 2}px, ${top}px)`;
  made.classList.toggle("on-path", isPrefix(path, selected));
  const stands = standing(path, tree);
  made.classList.toggle("ring", stands === "ring");
  made.classList.toggle("outside", stands === "outside");
  made.classList.toggle("tiny", h < 44);
  made.classList.toggle("tight", room < 48);
  made.classList.toggle("of-truth", state.truth && path.length > 0 && isOfTruth(path, tree));
  const isClosed = Boolean(node) && !isOpen && childrenOf(path, tree).length > 0;
  made.classList.toggle("closed", isClosed);
  if (isOpen || isClosed) made.setAttribute("aria-expanded", isOpen);
  made.setAttribute("aria-selected", same(path, selected));
  made.tabIndex = same(path, selected) && side === state.side ? 0 : -1;
  if (!node) { made.setAttribute("aria-label", describe(path, side)); return; }
  const asked = state.asked[side];
  const key = asked && path.length // sorted by a box, children are not in the order of their numbers
    ? [element("kbd", { className: "key", textContent: path.at(-1) + 1 })] : [];
  made.querySelector(".p").replaceChildren(...key, path.length ? percent(node.p) : "Mean");
  const crop = cropFor(path, tree), [child] = isOpen ? childrenOf(path, tree) : [];
  placeCrop(made, crop, child && cropFor(child, tree));
  const mix = asked ? mixOf(path, tree, asked) : [];
  made.querySelector(".mix").replaceChildren(...mix.map((share, answer) => {
    const part = element("i", { className: `answer-${answer % 6}` });
    part.style.flexGrow = share;
    return part;
  }));
  const words = mix.map((share, answer) => `${labelOf(0, answer)} ${percent(share)}`);
  made.title = words.join(", ");
  if (stands) words.push(stands === "ring" ? "in the cut" : "outside the cut");
  made.setAttribute("aria-label", [describe(path, side), ...words].join(", "));
}

function renderView(view) {
  const tree = treeOn(view.side);
  view.title.hidden = treesOf().length < 2;
  view.title.textContent = nameOfSide(view.side);
  view.pane.classList.toggle("current", view.side === state.side);
  view.nodes.setAttribute("aria-label", `Tree of answers, ${view.title.textContent}`);
  const boxes = layout(view.canvas.clientWidth, view.canvas.clientHeight, view.side);
  const hadFocus = view.nodes.contains(document.activeElement);
  const visible = new Set();
  for (const box of boxes) {
    const [id, made] = nodeElement(view, box.path);
    visible.add(id);
    dressNode(view, made, box);
    if (!made.isConnected) view.nodes.append(made);
    if (hadFocus && view.side === state.side && same(box.path, state.path)) made.focus();
  }
  for (const [id, made] of view.drawn) {
    if (!visible.has(id)) { made.remove(); view.drawn.delete(id); }
  }
  view.svg.replaceChildren(...branchesOf(boxes, tree).map(({ path, d, width }) => {
    const line = document.createElementNS(view.svg.namespaceURI, "path");
    line.setAttribute("d", d);
    line.setAttribute("stroke-width", width);
    line.classList.toggle("chosen", isPrefix(path, pathOn(view.side)));
    line.classList.toggle("absent", !nodeAt(path, tree));
    return line;
  }));
}

export function renderTrees() {
  const sides = treesOf().length;
  while (views.length > sides) views.pop().pane.remove();
  while (views.length < sides) {
    const view = createView(views.length);
    views.push(view);
    $("panes").append(view.pane);
  }
  views.forEach(renderView);
}

// The visible nodes of the current level from left to right, for the arrow keys.
export function visibleLevel() {
  const { drawn } = views[state.side];
  const place = (path) => layoutOrder().findIndex((other) => same(other, path));
  return [...drawn.values()].map((made) => made.path)
    .filter((path) => path.length === state.path.length && nodeAt(path))
    .sort((a, b) => place(a) - place(b));
}

function layoutOrder() {
  const visit = (path) => [path, ...drawnChildren(path).flatMap(visit)];
  return visit([]);
}
