// The page: builds what never changes, listens, and draws the rest from the state.

import { answerBoxes } from "./answers.js";
import { renderAnswers } from "./ask.js";
import { loadPixels } from "./pixels.js";
import { renderPromise } from "./promise.js";
import { listenToShare } from "./share.js";
import {
  $, branchingOf, childrenOf, data, element, example, likeliest, MODES, name, nodeAt, onRender,
  parentOf, percent, readAddress, render, same, state, treeOn, treesOf, update,
} from "./state.js";
import { renderTrees, visibleLevel } from "./treeview.js";
import { addBox, preview, renderSides, renderViewer, startBox, toggleFlicker } from "./viewer.js";

function buildOnce() {
  document.title = $("title").textContent = data.title;
  $("footer").append(...Object.entries(data.model).map(([key, text]) =>
    element(key === "name" ? "b" : "span", { textContent: key === "unfit" ? `Not for ${text}` : text })));
}

// ---- what is drawn besides the tree and the viewer ------------------------------------------

function renderFrame() {
  document.body.classList.toggle("empty", !data.examples.length);
  document.body.classList.toggle("alone", data.examples.length === 1 && !data.server);
  document.body.classList.toggle("comparing", treesOf().length > 1);
  $("crop-label").hidden = !branchingOf().length;
  $("crop").checked = state.crop;
}

function renderRail() {
  const rail = $("examples");
  data.examples.forEach((item, index) => {
    let made = rail.children[index];
    if (made?.item !== item) {
      const image = element("img", { src: item.input ?? item.levels[0][0].image, alt: "" });
      const fresh = element("button", { type: "button", title: item.name, item,
        onclick: () => update({ example: data.examples.indexOf(item), path: [] }) },
      image, element("span", { textContent: item.name }));
      if (made) made.replaceWith(fresh); else rail.append(fresh);
      made = fresh;
    }
    const isCurrent = index === state.example;
    if (isCurrent && made.getAttribute("aria-current") !== "true") {
      made.scrollIntoView({ block: "nearest", inline: "nearest" });
    }
    made.setAttribute("aria-current", isCurrent);
  });
  while (rail.children.length > data.examples.length) rail.lastChild.remove();
}

function renderCrumbs() {
  const trail = [...state.path.keys(), state.path.length].map((n) => state.path.slice(0, n));
  $("crumbs").replaceChildren(...trail.map((path) => {
    const label = path.length ? `${name(path)} ` : "Root ";
    const made = element("button", { type: "button", onclick: () => update({ path }) },
      label, element("b", { textContent: percent(nodeAt(path).p) }));
    if (same(path, state.path)) made.setAttribute("aria-current", "step");
    return element("li", {}, made);
  }));
}

// Pixels arrive a moment after their example is chosen; what needs them is drawn again then.
function awaitPixels() {
  const item = example();
  if (!item.isLoaded) loadPixels(item).then(() => { if (item === example()) render(); });
}

for (const renderer of [renderFrame, awaitPixels, renderRail, renderCrumbs, answerBoxes,
  renderAnswers, renderPromise, renderTrees, renderViewer, renderSides]) onRender(renderer);

// ---- keys -------------------------------------------------------------------------------------

function alongLevel(step) {
  const row = visibleLevel();
  return row[row.findIndex((path) => same(path, state.path)) + step];
}

function target(key) {
  const children = childrenOf(state.path);
  if (key === "ArrowDown") return likeliest(children);
  if (key === "ArrowUp") return state.path.length ? parentOf(state.path) : undefined;
  if (key === "ArrowLeft") return alongLevel(-1);
  if (key === "ArrowRight") return alongLevel(+1);
  if (key === "Home") return [];
  const siblings = children.length || !state.path.length ? children : childrenOf(parentOf(state.path));
  return /^[1-9]$/.test(key) ? siblings[Number(key) - 1] : undefined;
}

const COMMANDS = {
  t: () => example().truth && update({ truth: !state.truth }),
  m: () => update({ mode: MODES[(MODES.indexOf(state.mode) + 1) % MODES.length] }),
  b: () => branchingOf().length && addBox(),
  c: () => update({ side: (state.side + 1) % treesOf().length }),
  z: () => update({ crop: !state.crop }),
  p: () => treeOn().promise?.cut && update({ promise: !state.promise }),
  escape: () => ($("share").open ? closeMenu()
    : update({ boxes: [], counts: [0, 0], labels: [[], []], flicker: null })),
  "?": () => $("help").showModal(),
};

function closeMenu() {
  $("share").open = false;
  $("share").querySelector("summary").focus();
}

function moveExample(step, inRail) {
  if (!data.examples[state.example + step]) return false;
  update({ example: state.example + step, path: [] });
  if (inRail) $("examples").children[state.example].focus();
  return true;
}

function onKey(event) {
  const isTyping = event.target.matches("input:not([type=radio]):not([type=checkbox]), select");
  if (event.ctrlKey || event.metaKey || event.altKey || isTyping || !data.examples.length) return;
  if (document.querySelector("dialog:modal")) return;
  const inRail = $("examples").contains(event.target), inModes = event.target.closest("fieldset");
  const steps = inRail ? { ArrowUp: -1, ArrowLeft: -1, ArrowDown: 1, ArrowRight: 1 } : {};
  const step = steps[event.key] ?? { PageUp: -1, PageDown: 1 }[event.key];
  const path = step || (inModes && event.key.startsWith("Arrow")) ? undefined : target(event.key);
  const onOther = event.target.closest("button, summary, a, input, .box") && !event.target.closest(".node");
  if (step) { if (!moveExample(step, inRail)) return; }
  else if (path) { if (!nodeAt(path)) return; update({ path }); }
  else if (event.key === " " && !onOther) toggleFlicker();
  else if (COMMANDS[event.key.toLowerCase()]) COMMANDS[event.key.toLowerCase()]();
  else return;
  event.preventDefault();
}

// ---- the pointer and the other controls -------------------------------------------------------

const sideUnder = (event) =>
  [...$("panes").children].findIndex((pane) => pane.contains(event.target));

function listen() {
  $("panes").addEventListener("pointerover", (event) => {
    const path = event.target.closest(".node")?.path;
    if (event.pointerType === "mouse") preview(sideUnder(event), path ?? null);
  });
  $("panes").addEventListener("pointerleave", () => preview(0, null));
  $("stage").addEventListener("pointerdown", startBox);
  $("blend").addEventListener("input", (event) => {
    state.blend = Number(event.target.value);
    renderViewer();
  });
  $("modes").addEventListener("change", (event) => update({ mode: event.target.value }));
  $("modes").addEventListener("click", (event) => { // by pointer: the arrow keys stay the tree's
    if (event.detail) setTimeout(() => document.activeElement.blur());
  });
  $("crop").addEventListener("change", (event) => update({ crop: event.target.checked }));
  $("promise").addEventListener("change", (event) => update({ promise: event.target.checked }));
  $("flicker").addEventListener("click", toggleFlicker);
  $("add-box").addEventListener("click", () => addBox());
  $("truth").addEventListener("click", COMMANDS.t);
  $("open-help").addEventListener("click", COMMANDS["?"]);
  $("theme").addEventListener("click", () => {
    const root = document.documentElement;
    const isDarkNow = getComputedStyle(root).getPropertyValue("--is-dark").trim() === "1";
    root.dataset.theme = isDarkNow ? "light" : "dark";
    render();
  });
  document.addEventListener("pointerdown", (event) => {
    if (!$("share").contains(event.target)) $("share").open = false;
  });
  document.addEventListener("keydown", onKey);
  addEventListener("hashchange", () => { readAddress(); update({}); });
  new ResizeObserver(() => { settle(); render(); }).observe($("panes"));
}

// Things glide to where a click sends them, but not while the page finds its size: branches do not
// glide, and a picture taken meanwhile would have them below the leaves.
let settling = 0;
function settle() {
  clearTimeout(settling);
  document.body.classList.remove("settled");
  settling = setTimeout(() => document.body.classList.add("settled"), 300);
}

readAddress();
buildOnce();
listen();
listenToShare();
document.body.classList.toggle("empty", !data.examples.length);
render();
settle();
