// Share and keep: the tree as a figure, as a stack, as files with a schema; the link; the citation.
//
// The archive has the form that `ptrees predict` writes: `tree.json` with
//   {"schema": 1, "picture", "model", "branching", "size",
//    "nodes": [{"path": [0, 1], "probability", "image": "node_0.1.png"} …]}
// and one PNG per node; paths count from 0, an absent node has no image.

import { bytesOfUrl, isGreyPicture, makeTiff, makeZip, plainPixels } from "./files.js";
import { loadPixels } from "./pixels.js";
import {
  $, branchingOf, childrenOf, data, element, example, isPrefix, name, nameOfSide, nodeAt, parentOf,
  pathOfIndex, percent, sizeOf, state, treeOn, treesOf,
} from "./state.js";

export const CITATION = `@inproceedings{nehme2024hierarchical,
  title     = {Hierarchical Uncertainty Exploration via Feedforward Posterior Trees},
  author    = {Nehme, Elias and Mulayoff, Rotem and Michaeli, Tomer},
  booktitle = {Advances in Neural Information Processing Systems},
  year      = {2024}
}
`;

// ---- the figure: SVG, in the style of the paper ---------------------------------------------

const NODE = 88, BETWEEN = 12, RISE = 64, EDGE = 20, SIDE_GAP = 26;
const INK = "#333333", CHOSEN = "#0072b2", TRUTH = "#c24f00";

function svgElement(tag, attributes, ...children) {
  const made = document.createElementNS($("logo").namespaceURI, tag);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

const svgText = (x, y, words, color = INK) => svgElement("text", { x, y, fill: color, "font-size": 13,
  "text-anchor": "middle", "font-family": "system-ui, sans-serif" }, words);

// Leaves stand side by side, every other node above the middle of its own.
function placesOf(tree) {
  const at = new Map();
  let leaves = 0;
  const visit = (path) => {
    const first = leaves, children = childrenOf(path, tree);
    children.forEach(visit);
    if (!children.length) leaves += 1;
    at.set(name(path), (first + leaves) / 2);
  };
  visit([]);
  return { at, leaves };
}

export function makeFigure() {
  const tree = treeOn(), nodes = everyNode(tree).map(({ path }) => path), [rows, columns] = sizeOf();
  const high = NODE * rows / columns, { at, leaves } = placesOf(tree);
  const known = [["Input", example().input], ["Truth", state.truth && example().truth]]
    .filter(([, url]) => url);
  const left = EDGE + known.length * (NODE + SIDE_GAP);
  const step = NODE + BETWEEN;
  const middle = (path) => left + at.get(name(path)) * step - BETWEEN / 2;
  const top = (level) => EDGE + 20 + level * (high + RISE);
  const width = left + leaves * step - BETWEEN + EDGE;
  const height = top(Math.max(...nodes.map((path) => path.length))) + high + EDGE;
  const figure = svgElement("svg", { width, height, viewBox: `0 0 ${width} ${height}` },
    svgElement("rect", { width, height, fill: "#ffffff" }));
  const picture = (url, x, y, color, line) => [
    svgElement("image", { href: url, x, y, width: NODE, height: high,
      "image-rendering": Math.max(rows, columns) <= 64 ? "pixelated" : "auto" }),
    svgElement("rect", { x, y, width: NODE, height: high, fill: "none", stroke: color,
      "stroke-width": line }),
  ];
  known.forEach(([words, url], i) => {
    const x = EDGE + i * (NODE + SIDE_GAP);
    figure.append(svgText(x + NODE / 2, top(0) - 7, words, words === "Truth" ? TRUTH : INK),
      ...picture(url, x, top(0), words === "Truth" ? TRUTH : INK, 1));
  });
  for (const path of nodes.slice(1)) {
    figure.append(figureBranch(path, tree, middle, top, high));
  }
  for (const path of nodes) {
    const node = nodeAt(path, tree), level = path.length;
    const x = middle(path) - NODE / 2, y = top(level);
    if (!node) {
      figure.append(svgElement("rect", { x, y, width: NODE, height: high, fill: "none",
        stroke: "#aaaaaa", "stroke-dasharray": "4 4" }));
      continue;
    }
    const isOn = isPrefix(path, state.path);
    figure.append(svgText(x + NODE / 2, y - 7, level ? percent(node.p) : "Mean"),
      ...picture(node.image, x, y, isOn ? CHOSEN : INK, isOn ? 3 : 1));
  }
  return { text: new XMLSerializer().serializeToString(figure), width, height };
}

function figureBranch(path, tree, middle, top, high) {
  const parent = parentOf(path), p = nodeAt(path, tree)?.p ?? 0;
  const [x0, x1] = [middle(parent), middle(path)];
  const [y0, y1] = [top(parent.length) + high, top(path.length) - 21];
  const bend = (y0 + y1) / 2;
  return svgElement("path", { d: `M${x0},${y0} C${x0},${bend} ${x1},${bend} ${x1},${y1}`,
    fill: "none", stroke: isPrefix(path, state.path) ? CHOSEN : "#b4bec8",
    "stroke-width": Math.max(1, 20 * p) });
}

async function figurePng() {
  const { text, width, height } = makeFigure();
  const image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`;
  await image.decode();
  const canvas = element("canvas", { width: 2 * width, height: 2 * height });
  const context = canvas.getContext("2d");
  context.imageSmoothingEnabled = false;
  context.drawImage(image, 0, 0, canvas.width, canvas.height);
  return new Promise((resolve) => canvas.toBlob(resolve, "image/png"));
}

// ---- stacks and archives ----------------------------------------------------------------------

function everyNode(tree) {
  return tree.levels.flatMap((level, l) => level.map((node, i) =>
    ({ node, path: pathOfIndex(l, i, tree) })))
    .filter(({ node }) => !tree.grown || (node && !node.same));
}

async function stack() {
  await loadPixels(example());
  const tree = treeOn(), [height, width] = sizeOf();
  const present = everyNode(tree).filter(({ node }) => node);
  const isGrey = present.every(({ node }) => isGreyPicture(node.rgba));
  return makeTiff(present.map(({ node, path }) => ({
    width, height, channels: isGrey ? 1 : 3, pixels: plainPixels(node.rgba, isGrey),
    description: JSON.stringify({ path, probability: node.p }),
  })));
}

function archive() {
  const tree = treeOn();
  const nodes = everyNode(tree).map(({ node, path }) => ({ path, probability: node?.p ?? 0,
    image: node && `node_${path.join(".") || "root"}.png` }));
  const table = { schema: 1, picture: example().name, model: nameOfSide(state.side),
    branching: branchingOf(tree), size: sizeOf(), nodes };
  const files = everyNode(tree).flatMap(({ node }, i) =>
    (node ? [[nodes[i].image, bytesOfUrl(node.image)]] : []));
  if (example().input) files.push(["input.png", bytesOfUrl(example().input)]);
  const text = new TextEncoder().encode(`${JSON.stringify(table, null, 1)}\n`);
  return makeZip([["tree.json", text], ...files]);
}

// ---- buttons ----------------------------------------------------------------------------------

// A picture's name without the ending of its file: x.png becomes x.svg, not x.png.svg.
const stemOf = (name) => name.replace(/(?<=.)\.(bmp|gif|jpe?g|png|p[bgpn]m|tiff?|webp)$/i, "");

export function download(content, extension, type) {
  const stem = stemOf(example().name).replaceAll(/[^\p{L}\p{N}._-]+/gu, "_").slice(0, 60) || "tree";
  const side = treesOf().length > 1 ? `_${state.side + 1}` : "";
  const href = URL.createObjectURL(content instanceof Blob ? content : new Blob([content], { type }));
  const link = element("a", { href, download: `${stem}${side}${extension}` });
  link.click();
  setTimeout(() => URL.revokeObjectURL(href), 10_000);
}

export async function copy(text, words) {
  try {
    await navigator.clipboard.writeText(text);
  } catch { // old browsers and frames: by way of a selection
    const area = element("textarea", { value: text });
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  say(words);
}

let quiet = null;
export function hush() {
  clearTimeout(quiet);
  $("message").hidden = true;
}

export function say(words, isProblem = false) {
  $("message").textContent = words;
  $("message").classList.toggle("problem", isProblem);
  $("message").hidden = false;
  clearTimeout(quiet);
  if (!isProblem) quiet = setTimeout(hush, 2500);
}

const KEEPERS = {
  "save-png": async () => download(await figurePng(), ".png"),
  "save-svg": () => download(makeFigure().text, ".svg", "image/svg+xml"),
  "save-tiff": async () => download(await stack(), ".tif", "image/tiff"),
  "save-zip": () => download(archive(), ".zip", "application/zip"),
  "copy-link": () => copy(location.href, "Link copied"),
  "copy-citation": () => copy(CITATION, "Citation copied"),
};

// A message is about the last thing the reader did: the next one ends it.
export function listenToShare() {
  for (const type of ["pointerdown", "keydown"]) {
    document.addEventListener(type, (event) => {
      const isCopying = event.ctrlKey || event.metaKey || $("message").contains(event.target);
      if (!isCopying) hush();
    }, { capture: true });
  }
  for (const [id, keep] of Object.entries(KEEPERS)) {
    $(id).addEventListener("click", async () => {
      $("share").open = false;
      if (data.examples.length) await keep();
    });
  }
}
