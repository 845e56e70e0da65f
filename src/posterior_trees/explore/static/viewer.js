// The large picture: a node, what its choice changes, or where its children differ; and the boxes
// that the reader draws on it.

import {
  differenceOf, heatColor, isDark, paint, signedColor, spreadOf,
} from "./pixels.js";
import { cropFor, placeFrame } from "./treeview.js";
import {
  $, childrenOf, clipBox, describe, element, example, name, nodeAt, parentOf, percent,
  same, sizeOf, state, treeOn, update,
} from "./state.js";

const FADE = { duration: 900, direction: "alternate", iterations: Infinity, easing: "ease-in-out" };
const FLICKER_MS = 450;
let fading = null, ticking = null;

// What the viewer shows: under the pointer, flickering, or selected.
function shown() {
  if (state.preview) return state.preview;
  return { side: state.side, path: state.flicker ?? state.path };
}

export function renderViewer() {
  const { side, path } = shown();
  const tree = treeOn(side), node = nodeAt(path, tree);
  const parent = nodeAt(parentOf(path), tree) ?? nodeAt([], tree);
  $("front").src = node.image;
  $("front").alt = describe(path, side);
  $("back").src = parent.image;
  $("front").style.opacity = state.preview || state.flicker ? 1 : state.blend / 100;
  fading?.cancel();
  const isStill = matchMedia("(prefers-reduced-motion: reduce)").matches;
  const isFading = state.preview?.path.length && state.mode === "image" && !isStill;
  fading = isFading ? $("front").animate({ opacity: [0, 1] }, FADE) : null;
  $("node-name").textContent = path.length ? `Node ${name(path)}` : "Root: the mean";
  const share = path.length > 1 ? ` · ${percent(parent.p && node.p / parent.p)} of parent` : "";
  $("node-prob").textContent = percent(node.p) + share;
  $("blend").classList.toggle("hidden", !state.path.length || state.mode !== "image");
  $("blend").querySelector("input").value = state.blend;
  renderMode(path, tree, node, parent);
  placeFrame($("crop-frame"), state.boxes.length ? null : cropFor(path, tree));
  renderBoxes();
}

// The map over the picture, with its scale in words.
function renderMode(path, tree, node, parent) {
  const canvas = $("map-canvas");
  for (const input of document.getElementsByName("mode")) input.checked = input.value === state.mode;
  canvas.hidden = state.mode === "image" || !example().isLoaded;
  $("scale").hidden = canvas.hidden;
  if (canvas.hidden) return;
  const isSigned = state.mode === "difference";
  const values = isSigned ? differenceOf(node, parent) : spreadOf(path, tree);
  const most = Math.max(1 / 255, values.reduce((a, v) => Math.max(a, Math.abs(v)), 0));
  const dark = isDark();
  const colorOf = (v) => (isSigned ? signedColor(v / most, dark) : heatColor(v / most));
  const alphaOf = state.mode === "heat" ? (v) => Math.min(1, 1.2 * (v / most) ** 0.7) * 0.85 : undefined;
  paint(canvas, values, sizeOf(), colorOf, alphaOf);
  const steps = Float32Array.from({ length: 64 }, (_, i) => isSigned ? i / 31.5 - 1 : i / 63);
  paint($("scale-bar"), steps, [1, 64], (v) => isSigned ? signedColor(v, dark) : heatColor(v));
  $("scale-low").textContent = isSigned ? `−${most.toFixed(2)}` : "0";
  $("scale-high").textContent = isSigned ? `+${most.toFixed(2)}` : most.toFixed(2);
  $("scale").title = isSigned ? "Difference to the parent, mean over channels"
    : "Standard deviation between siblings: what choosing one of them explains";
}

export function renderSides() {
  const { input, truth } = example(), tree = treeOn(), { truth_path } = tree;
  document.body.classList.toggle("without-truth", !truth);
  document.body.classList.toggle("without-input", !input);
  document.body.classList.toggle("pixels", Math.max(...sizeOf()) <= 64);
  document.body.style.setProperty("--ratio", sizeOf()[1] / sizeOf()[0]);
  if (input) $("input").src = input;
  const { resized, note, grown } = example(), where = grown?.region ? "the marked place" : "the whole picture";
  const how = grown && !example().token ? ". To grow on, open the picture in the program" : "";
  const said = { resized, note, "grown-words": grown && `Grown for ${where}${how}. ${grown.note}` };
  for (const [id, words = ""] of Object.entries(said)) {
    $(id).hidden = !words;
    if ($(id).textContent !== words) $(id).textContent = words;
  }
  $("truth").setAttribute("aria-pressed", state.truth);
  $("truth").setAttribute("aria-label", state.truth ? "Hide the truth" : "Reveal the truth");
  $("truth").replaceChildren(
    truth && state.truth ? element("img", { src: truth, alt: "Truth" }) : "Reveal truth");
  const leaf = truth_path && tree.levels.at(-1)[truth_path.at(-1)];
  $("truth-caption").textContent =
    state.truth && truth_path?.length > 1 ? `Truth · its leaf: ${percent(leaf.p)}` : "Truth";
}

// ---- looking: hovering and flickering ------------------------------------------------------

export function preview(side, path) {
  const isSame = path ? state.preview?.side === side && same(path, state.preview.path)
    : !state.preview;
  if (isSame || (path && !nodeAt(path, treeOn(side)))) return;
  state.preview = path ? { side, path } : null;
  renderViewer();
}

// Space shows the siblings one after the other (from the root: its children) until it is pressed
// again.
export function toggleFlicker() {
  const siblings = (state.path.length ? childrenOf(parentOf(state.path)) : childrenOf([]))
    .filter((path) => nodeAt(path));
  clearInterval(ticking);
  if (state.flicker || siblings.length < 2) state.flicker = null;
  else {
    let turn = Math.max(0, siblings.findIndex((path) => same(path, state.path)));
    const next = () => {
      turn = (turn + 1) % siblings.length;
      state.flicker = siblings[turn];
      renderViewer();
    };
    ticking = setInterval(() => (state.flicker ? next() : clearInterval(ticking)), FLICKER_MS);
    next();
  }
  $("flicker").setAttribute("aria-pressed", Boolean(state.flicker));
  renderViewer();
}

// ---- boxes ----------------------------------------------------------------------------------

function renderBoxes() {
  $("flicker").setAttribute("aria-pressed", Boolean(state.flicker));
  const [height, width] = sizeOf(), layer = $("boxes");
  while (layer.children.length > state.boxes.length) layer.lastChild.remove();
  while (layer.children.length < state.boxes.length) layer.append(boxElement(layer.children.length));
  state.boxes.forEach(({ x, y, w, h }, i) => {
    const made = layer.children[i];
    Object.assign(made.style, {
      left: `${100 * x / width}%`, top: `${100 * y / height}%`,
      width: `${100 * w / width}%`, height: `${100 * h / height}%`,
    });
    made.setAttribute("aria-label", `Question box ${i + 1}: columns ${x + 1} to ${x + w}, ` +
      `rows ${y + 1} to ${y + h}. Arrow keys move it, with Shift they size it, Delete removes it.`);
  });
}

function boxElement(i) {
  const made = element("div", { className: `box box-${i}`, tabIndex: 0 },
    element("span", { textContent: i + 1 }));
  made.setAttribute("role", "group");
  made.addEventListener("keydown", (event) => onBoxKey(event, i));
  return made;
}

const ARROWS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

function onBoxKey(event, i) {
  const box = state.boxes[i], step = Math.max(1, Math.round(Math.max(...sizeOf()) / 64));
  if (event.key === "Delete" || event.key === "Backspace") removeBox(i);
  else if (ARROWS[event.key]) {
    const [dx, dy] = ARROWS[event.key].map((d) => d * step);
    changeBox(i, event.shiftKey ? { ...box, w: box.w + dx, h: box.h + dy }
      : { ...box, x: box.x + dx, y: box.y + dy });
  } else return;
  event.preventDefault();
  event.stopPropagation();
}

function changeBox(i, box) {
  const boxes = [...state.boxes];
  boxes[i] = clipBox(box);
  update({ boxes });
}

export function removeBox(i) {
  const without = (list) => [...list.filter((_, j) => j !== i)];
  update({ boxes: without(state.boxes), counts: [...without(state.counts), 0],
    labels: [...without(state.labels), []] });
}

// A box in the middle, for people who do not draw; the third takes the place of the second.
export function addBox(box) {
  const [height, width] = sizeOf();
  const i = Math.min(state.boxes.length, 1);
  state.counts[i] = 0;
  state.labels[i] = [];
  changeBox(i, box ?? { x: width / 3, y: height / 3, w: width / 3, h: height / 3 });
  if (!box) $("boxes").children[i].focus();
}

export function startBox(event) {
  if (event.button !== 0 || !treeOn().levels[1]) return;
  const stage = $("stage").getBoundingClientRect(), [height, width] = sizeOf();
  const place = ({ clientX, clientY }) => [
    Math.min(Math.max((clientX - stage.left) / stage.width, 0), 1) * width,
    Math.min(Math.max((clientY - stage.top) / stage.height, 0), 1) * height,
  ];
  const from = place(event);
  const boxTo = (to) => {
    const [left, right] = [from[0], to[0]].sort((a, b) => a - b);
    const [top, bottom] = [from[1], to[1]].sort((a, b) => a - b);
    const [x, y] = [Math.floor(left), Math.floor(top)];
    return { x, y, w: Math.ceil(right) - x, h: Math.ceil(bottom) - y };
  };
  const rubber = $("rubber"), drawing = new AbortController();
  const move = (moved) => {
    const { x, y, w, h } = boxTo(place(moved));
    rubber.hidden = false;
    Object.assign(rubber.style, { left: `${100 * x / width}%`, top: `${100 * y / height}%`,
      width: `${100 * w / width}%`, height: `${100 * h / height}%` });
  };
  const end = (ended) => {
    drawing.abort();
    const drawn = !rubber.hidden && boxTo(place(ended));
    rubber.hidden = true;
    if (ended.type === "pointerup" && drawn && drawn.w > 1 && drawn.h > 1) addBox(drawn);
  };
  $("stage").setPointerCapture(event.pointerId);
  for (const [type, listener] of [["pointermove", move], ["pointerup", end], ["pointercancel", end]]) {
    $("stage").addEventListener(type, listener, { signal: drawing.signal });
  }
  event.preventDefault();
}
