// Growing on: for a region, as many branches as it takes, one node further; and back again. Only
// served pages of a model that grows have this part.

import { hush, say } from "./share.js";
import {
  $, childrenOf, data, example, nodeAt, onRender, sizeOf, state, treeOn, treesOf, update,
} from "./state.js";

const KEYS = ["levels", "branching", "truth_path", "measures", "promise", "grown"]; // of a tree
const WORTH = 4; // as many branches as are worth 2^-4 of the first split
let isPainting = false;

const mask = () => example().mask; // what is painted: one number for each pixel, 1 is in it

function count(path = []) {
  const children = childrenOf(path);
  return children.length ? children.reduce((sum, child) => sum + count(child), 0) : 1;
}

const split = (path = []) => // the nodes that are split, from the root
  (childrenOf(path).length ? [path, ...childrenOf(path).flatMap(split)] : []);

// ---- asking ------------------------------------------------------------------------------------

async function grow(change) {
  const item = example(), body = { token: item.token, region: item.grown?.region ?? null, ...change };
  if (document.body.classList.contains("waiting")) return;
  document.body.classList.add("waiting");
  hush();
  try {
    const response = await fetch("api/grow", { method: "POST", body: JSON.stringify(body) });
    const made = await response.json().catch(() => ({ error: `the server said ${response.status}` }));
    if (!response.ok) throw new Error(made.error);
    made.grown.worth = change.worth ?? item.grown?.worth ?? WORTH;
    (item.past ??= []).push(Object.fromEntries(KEYS.map((key) => [key, item[key]])));
    show(item, made);
  } catch (error) {
    const isDown = error instanceof TypeError;
    say(isDown ? "The server does not answer: is `ptrees explore` still running?" : error.message, true);
  } finally {
    document.body.classList.remove("waiting");
  }
}

function show(item, tree) {
  Object.assign(item, Object.fromEntries(KEYS.map((key) => [key, tree[key]])),
    { version: (item.version ?? 0) + 1, loading: null, isLoaded: false });
  if (item !== example()) return;
  const path = state.path.slice();
  while (path.length && !(treeOn().levels[path.length] && nodeAt(path) && !nodeAt(path).same)) path.pop();
  update({ path });
}

function region() {
  if (mask()) return paintedPicture().toDataURL("image/png");
  const [box] = state.boxes;
  return box ? [box.y, box.x, box.h, box.w] : null;
}

const growHere = () => grow({ region: region(), worth: Number($("grow-worth").value) });
const splitHere = () => grow({ split: [...split(), state.path] });

function undo() {
  const before = example().past?.pop();
  if (before) show(example(), before);
}

// ---- painting a region ---------------------------------------------------------------------------

function paintedPicture(rgb = [255, 255, 255], alpha = 255) {
  const [height, width] = sizeOf(), canvas = document.createElement("canvas");
  Object.assign(canvas, { width, height });
  const pen = canvas.getContext("2d"), picture = pen.createImageData(width, height);
  const black = alpha === 255 ? 255 : 0; // what is outside: black, or nothing
  mask().forEach((value, i) => picture.data.set(value ? [...rgb, alpha] : [0, 0, 0, black], 4 * i));
  pen.putImageData(picture, 0, 0);
  return canvas;
}

function stroke(event) {
  const [height, width] = sizeOf(), stage = $("stage").getBoundingClientRect();
  const x = (event.clientX - stage.left) * width / stage.width;
  const y = (event.clientY - stage.top) * height / stage.height, radius = Math.max(1.2, width / 24);
  for (let row = Math.max(0, Math.floor(y - radius)); row < Math.min(height, y + radius); row++) {
    for (let column = Math.max(0, Math.floor(x - radius)); column < Math.min(width, x + radius); column++) {
      if (Math.hypot(column + 0.5 - x, row + 0.5 - y) <= radius) mask()[row * width + column] = 1;
    }
  }
  renderRegion();
}

function startStroke(event) {
  if (!isPainting || event.button !== 0) return;
  event.stopImmediatePropagation(); // it is no box
  event.preventDefault();
  example().mask ??= new Uint8Array(sizeOf()[0] * sizeOf()[1]);
  stroke(event);
  const drawing = new AbortController(), { signal } = drawing;
  $("stage").setPointerCapture(event.pointerId);
  $("stage").addEventListener("pointermove", stroke, { signal });
  for (const type of ["pointerup", "pointercancel"]) {
    $("stage").addEventListener(type, () => { drawing.abort(); renderGrow(); }, { signal });
  }
}

function togglePainting() {
  isPainting = !isPainting;
  if (!isPainting) for (const item of data.examples) delete item.mask;
  renderGrow();
}

// ---- what is seen --------------------------------------------------------------------------------

function renderRegion() {
  const canvas = $("region"), [height, width] = sizeOf();
  canvas.hidden = !mask();
  if (canvas.hidden) return;
  Object.assign(canvas, { width, height });
  canvas.getContext("2d").drawImage(paintedPicture([204, 0, 122], 90), 0, 0);
}

function renderGrow() {
  const item = example();
  $("grow").hidden = !item.token || treesOf().length > 1;
  if ($("grow").hidden) return;
  const isMarked = Boolean(mask() || state.boxes.length);
  $("grow-here").textContent = isMarked ? "What may be here?" : "Grow for the whole picture";
  $("paint-region").setAttribute("aria-pressed", isPainting);
  $("paint-region").textContent = isPainting ? "Stop painting" : "Paint a place";
  $("split").disabled = childrenOf(state.path).length > 0;
  $("undo").disabled = !item.past?.length;
  $("grow-count").textContent = `${count()} branches`;
  if (item.grown?.worth !== undefined) $("grow-worth").value = item.grown.worth;
  renderRegion();
}

$("grow-worth").value = WORTH;
$("grow-here").addEventListener("click", growHere);
$("grow-worth").addEventListener("change", () => grow({ worth: Number($("grow-worth").value) }));
$("split").addEventListener("click", splitHere);
$("undo").addEventListener("click", undo);
$("paint-region").addEventListener("click", togglePainting);
$("stage").addEventListener("pointerdown", startStroke, { capture: true });
document.addEventListener("keydown", (event) => {
  const isTyping = event.target.matches("input:not([type=range]), select") || document.querySelector("dialog:modal");
  if ($("grow").hidden || isTyping || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "s" && !$("split").disabled) splitHere();
  if (event.key === "u") undo();
});
onRender(renderGrow);
if (data.examples.length) renderGrow();
