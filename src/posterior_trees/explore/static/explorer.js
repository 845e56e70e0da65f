// The explorer: one state, drawn by pure layout and small render functions.
//
//   events → update(change) → state → render()
//
// A path is a list of child numbers from the root, [] being the root itself. Numbers that people
// see or type start at 1; numbers in code and data start at 0. The data's form is described in
// export.py. Nothing here uses innerHTML: all words from outside are put in as text.

const data = JSON.parse(document.getElementById("trees").textContent);
if (data.schema !== 1) throw new Error(`this page reads schema 1, the data has ${data.schema}`);

const $ = (id) => document.getElementById(id);
const state = { example: 0, path: [], truth: false, preview: null, blend: 100 };

// ---- the tree -----------------------------------------------------------------------------

const example = () => data.examples[state.example];
const name = (path) => path.map((child) => child + 1).join(".");
const same = (a, b) => a && b && a.join() === b.join();
const isPrefix = (short, long) => short.every((child, level) => child === long[level]);
const indexOf = (path) =>
  path.reduce((index, child, level) => index * data.branching[level] + child, 0);
const nodeAt = (path) => example().levels[path.length][indexOf(path)]; // null: absent
const parentOf = (path) => path.slice(0, -1);
const childrenOf = (path) =>
  Array.from({ length: data.branching[path.length] ?? 0 }, (_, child) => [...path, child]);
const isOfTruth = (path) => example().truth_path?.[path.length] === indexOf(path);

function likeliest(paths) {
  return paths.filter(nodeAt).sort((a, b) => nodeAt(b).p - nodeAt(a).p)[0];
}

function percent(p) {
  if (p > 0 && p < 0.005) return "<1%";
  return p >= 0.995 && p < 0.9999 ? ">99%" : `${Math.round(100 * p)}%`;
}

function describe(path) {
  const title = path.length ? `Node ${name(path)}` : "Root, the mean of all answers";
  const node = nodeAt(path);
  const truth = state.truth && isOfTruth(path) ? ", nearest to the truth" : "";
  return node ? `${title}, probability ${percent(node.p)}${truth}` : `${title}, absent`;
}

// ---- layout: path and room → boxes and branches -------------------------------------------

const LABEL = 27, FOOT = 12, GAP = 14, FORK = 46, MIN_IMAGE = 40, MAX_IMAGE = 200, MAX_FORK = 84;

// The whole tree if its leaves have room; else only what opens along the selected path.
function visibleTree(width) {
  const leaves = data.branching.reduce((a, b) => a * b, 1);
  const whole = leaves * (MIN_IMAGE + GAP) <= width;
  const levels = [];
  let slots = 0;
  const visit = (path) => {
    const box = { path, first: slots };
    (levels[path.length] ??= []).push(box);
    const children = childrenOf(path);
    box.isOpen = children.length > 0 && (whole || isPrefix(path, state.path));
    if (box.isOpen) children.forEach(visit);
    else slots += 1;
    box.span = slots - box.first;
  };
  visit([]);
  return { levels, slots };
}

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

function layout(width, height) {
  const { levels, slots } = visibleTree(width);
  const aspect = data.size[1] / data.size[0];
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
      Object.assign(box, { middle, top, w: h * aspect, h });
    }
    top += h + fork + LABEL;
  });
  return levels.flat();
}

// Branches leave a parent side by side, each as wide as its probability.
function branchesOf(boxes) {
  const at = new Map(boxes.map((box) => [name(box.path), box]));
  const unit = Math.min(0.25 * boxes[0].w, 28);
  const used = new Map();
  return boxes.filter((box) => box.path.length).map((box) => {
    const parent = at.get(name(parentOf(box.path)));
    const p = nodeAt(box.path)?.p ?? 0;
    const before = used.get(parent) ?? 0;
    used.set(parent, before + p);
    const x0 = parent.middle + unit * (before + p / 2 - (nodeAt(parent.path)?.p ?? 0) / 2);
    const [y0, y1] = [parent.top + parent.h, box.top - LABEL + 2];
    const bend = (y0 + y1) / 2;
    const d = `M${x0},${y0} C${x0},${bend} ${box.middle},${bend} ${box.middle},${y1}`;
    return { path: box.path, d, width: Math.max(1, unit * p) };
  });
}

// ---- rendering ----------------------------------------------------------------------------

function element(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

function buildOnce() {
  document.title = $("title").textContent = data.title;
  $("keys").hidden = !data.branching.length;
  document.body.classList.toggle("pixels", Math.max(...data.size) <= 64);
  document.body.style.setProperty("--ratio", data.size[1] / data.size[0]);
  $("rail").append(...data.examples.map((item, index) => element(
    "button",
    { type: "button", title: item.name, onclick: () => update({ example: index, path: [] }) },
    element("img", { src: item.input, alt: "" }), element("span", { textContent: item.name }),
  )));
  $("footer").append(...Object.entries(data.model).map(([key, textContent]) =>
    element(key === "name" ? "b" : "span", { textContent })));
}

function renderRail() {
  [...$("rail").children].forEach((button, index) => {
    const isCurrent = index === state.example;
    if (isCurrent && button.ariaCurrent !== "true") button.scrollIntoView({ block: "nearest" });
    button.setAttribute("aria-current", isCurrent);
  });
}

function renderCrumbs() {
  const trail = [...state.path.keys(), state.path.length].map((n) => state.path.slice(0, n));
  $("crumbs").replaceChildren(...trail.map((path) => {
    const label = path.length ? `${name(path)} ` : "Root ";
    const button = element("button", { type: "button", onclick: () => update({ path }) },
      label, element("b", { textContent: percent(nodeAt(path).p) }));
    if (same(path, state.path)) button.setAttribute("aria-current", "step");
    return element("li", {}, button);
  }));
}

const drawn = new Map(); // elements are kept between renders, so that they glide and keep focus

function nodeElement(path) {
  const id = `${state.example}/${name(path)}`;
  if (!drawn.has(id)) {
    const node = nodeAt(path);
    const made = element(node ? "button" : "div", { className: "node", path });
    made.setAttribute("role", "treeitem");
    made.setAttribute("aria-level", path.length + 1);
    made.setAttribute("aria-posinset", (path.at(-1) ?? 0) + 1);
    made.setAttribute("aria-setsize", path.length ? data.branching[path.length - 1] : 1);
    if (node) made.append(
      element("span", { className: "p", textContent: path.length ? percent(node.p) : "Mean" }),
      element("img", { src: node.image, alt: "" }));
    else { made.classList.add("absent"); made.setAttribute("aria-disabled", "true"); }
    drawn.set(id, made);
  }
  return [id, drawn.get(id)];
}

function renderTree() {
  const boxes = layout($("tree").clientWidth, $("tree").clientHeight);
  const hadFocus = $("nodes").contains(document.activeElement);
  const visible = new Set();
  for (const { path, isOpen, middle, top, w, h } of boxes) {
    const [id, made] = nodeElement(path);
    const isSelected = same(path, state.path);
    visible.add(id);
    made.style.width = `${w}px`;
    made.style.height = `${h}px`;
    made.style.transform = `translate(${middle - w / 2}px, ${top}px)`;
    made.classList.toggle("on-path", isPrefix(path, state.path));
    made.classList.toggle("of-truth", state.truth && path.length > 0 && isOfTruth(path));
    const isClosed = Boolean(nodeAt(path)) && !isOpen && childrenOf(path).length > 0;
    made.classList.toggle("closed", isClosed);
    if (isOpen || isClosed) made.setAttribute("aria-expanded", isOpen);
    made.setAttribute("aria-label", describe(path));
    made.setAttribute("aria-selected", isSelected);
    made.tabIndex = isSelected ? 0 : -1;
    if (!made.isConnected) $("nodes").append(made);
    if (isSelected && hadFocus) made.focus();
  }
  for (const [id, made] of drawn) if (!visible.has(id)) { made.remove(); drawn.delete(id); }
  const svg = $("branches");
  const branches = branchesOf(boxes).map(({ path, d, width }) => {
    const line = document.createElementNS(svg.namespaceURI, "path");
    line.setAttribute("d", d);
    line.setAttribute("stroke-width", width);
    line.classList.toggle("chosen", isPrefix(path, state.path));
    line.classList.toggle("absent", !nodeAt(path));
    return line;
  });
  svg.replaceChildren(...branches);
}

const FADE = { duration: 900, direction: "alternate", iterations: Infinity, easing: "ease-in-out" };
let fading = null;

// Hovering fades between a node and its parent, to show what the choice changes.
function renderViewer() {
  const shown = state.preview ?? state.path;
  const parent = nodeAt(parentOf(shown)) ?? nodeAt([]);
  $("front").src = nodeAt(shown).image;
  $("front").alt = describe(shown);
  $("back").src = parent.image;
  $("front").style.opacity = state.preview ? 1 : state.blend / 100;
  fading?.cancel();
  const isStill = matchMedia("(prefers-reduced-motion: reduce)").matches;
  fading = state.preview?.length && !isStill
    ? $("front").animate({ opacity: [0, 1] }, FADE) : null;
  const p = nodeAt(shown).p;
  $("node-name").textContent = shown.length ? `Node ${name(shown)}` : "Root: mean of all answers";
  const share = shown.length > 1 ? ` · ${percent(parent.p && p / parent.p)} of parent` : "";
  $("node-prob").textContent = percent(p) + share;
  $("blend").classList.toggle("hidden", !state.path.length);
  $("blend").querySelector("input").value = state.blend;
}

function renderSides() {
  const { input, truth, truth_path } = example();
  document.body.classList.toggle("without-truth", !truth);
  $("input").src = input;
  $("truth").setAttribute("aria-pressed", state.truth);
  $("truth").setAttribute("aria-label", state.truth ? "Hide the truth" : "Reveal the truth");
  $("truth").replaceChildren(
    truth && state.truth ? element("img", { src: truth, alt: "Truth" }) : "Reveal truth");
  const leaf = truth_path && example().levels.at(-1)[truth_path.at(-1)];
  $("truth-caption").textContent =
    state.truth && data.branching.length ? `Truth · its leaf: ${percent(leaf.p)}` : "Truth";
}

function render() {
  renderRail();
  renderCrumbs();
  renderTree();
  renderViewer();
  renderSides();
}

// ---- events -------------------------------------------------------------------------------

function update(change) {
  if (change.path || "example" in change) Object.assign(state, { preview: null, blend: 100 });
  if ("example" in change && change.example !== state.example) state.truth = false;
  Object.assign(state, change);
  history.replaceState(null, "", `#${state.example + 1}/${name(state.path)}`);
  render();
}

function preview(path) {
  if (same(path, state.preview) || (path && !nodeAt(path))) return;
  state.preview = path;
  renderViewer();
}

function moveAlongLevel(step) {
  const row = [...drawn.values()].map((made) => made.path)
    .filter((path) => path.length === state.path.length && nodeAt(path))
    .sort((a, b) => indexOf(a) - indexOf(b));
  return row[row.findIndex((path) => same(path, state.path)) + step];
}

function target(key) {
  const children = childrenOf(state.path);
  if (key === "ArrowDown") return likeliest(children);
  if (key === "ArrowUp") return state.path.length ? parentOf(state.path) : undefined;
  if (key === "ArrowLeft") return moveAlongLevel(-1);
  if (key === "ArrowRight") return moveAlongLevel(+1);
  if (key === "Home") return [];
  const siblings = children.length ? children : childrenOf(parentOf(state.path));
  return /^[1-9]$/.test(key) ? siblings[Number(key) - 1] : undefined;
}

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input")) return;
  const inRail = $("rail").contains(event.target);
  const steps = inRail ? { ArrowUp: -1, ArrowLeft: -1, ArrowDown: 1, ArrowRight: 1 } : {};
  const step = steps[event.key] ?? { PageUp: -1, PageDown: 1 }[event.key];
  const path = step ? undefined : target(event.key);
  if (step && data.examples[state.example + step]) {
    update({ example: state.example + step, path: [] });
    if (inRail) $("rail").children[state.example].focus();
  } else if (path && nodeAt(path)) update({ path });
  else if (event.key.toLowerCase() === "t" && example().truth) update({ truth: !state.truth });
  else return;
  event.preventDefault();
}

function readAddress() {
  const [index, path] = location.hash.slice(1).split("/");
  const children = (path ?? "").split(".").filter(Boolean).map((number) => Number(number) - 1);
  const isPath = children.length <= data.branching.length &&
    children.every((child, level) => child >= 0 && child < data.branching[level]);
  state.example = data.examples[index - 1] ? index - 1 : 0;
  state.path = isPath && nodeAt(children) ? children : [];
}

const nodeUnder = (event) => event.target.closest(".node")?.path ?? null;
$("nodes").addEventListener("click", (event) => {
  const path = nodeUnder(event);
  if (path && nodeAt(path)) update({ path });
});
$("nodes").addEventListener("pointerover", (event) => {
  if (event.pointerType === "mouse") preview(nodeUnder(event));
});
$("nodes").addEventListener("pointerleave", () => preview(null));
$("stage").addEventListener("pointerenter", () => preview(state.path));
$("stage").addEventListener("pointerleave", () => preview(null));
$("blend").addEventListener("input", (event) => {
  state.blend = Number(event.target.value);
  renderViewer();
});
$("truth").addEventListener("click", () => update({ truth: !state.truth }));
document.addEventListener("keydown", onKey);
addEventListener("hashchange", () => { readAddress(); update({}); });
new ResizeObserver(renderTree).observe($("tree"));

readAddress();
buildOnce();
render();
