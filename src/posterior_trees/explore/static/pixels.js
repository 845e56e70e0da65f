// Pixels of nodes in the browser, and pictures made from them.
//
//   difference   x_child − x_parent, blue below zero and orange above
//   variance     √ Σ_k (α_k / α_n) (x_k − x_n)², what choosing a child explains, pixel by pixel
//
// Both are means over the colour channels.

import { childrenOf, nodeAt, parentOf, pathOfIndex, sizeOf, treesOf } from "./state.js";

// Decode every node of an example; each then has `rgba`, four bytes per pixel.
export async function loadPixels(item) {
  const nodes = treesOf(item).flatMap((tree) => tree.levels.flat()).filter((node) => node && !node.same);
  const loading = item.loading ??= Promise.all(nodes.map(async (node) => {
    node.rgba ??= await rgbaOf(node.image, sizeOf(item));
  })).then(() => {
    if (item.loading !== loading) return; // grown on meanwhile
    treesOf(item).forEach(fillIn);
    item.isLoaded = true;
  });
  return item.loading;
}

// A node that was not split stands for itself on the levels below.
function fillIn(tree) {
  tree.levels.forEach((nodes, level) => nodes.forEach((node, index) => {
    if (node?.same) node.rgba = nodeAt(parentOf(pathOfIndex(level, index, tree)), tree).rgba;
  }));
}

async function rgbaOf(url, [height, width]) {
  const image = new Image();
  image.src = url;
  await image.decode();
  const canvas = Object.assign(document.createElement("canvas"), { width, height });
  const context = canvas.getContext("2d", { willReadFrequently: true });
  context.drawImage(image, 0, 0);
  return context.getImageData(0, 0, width, height).data;
}

// The signed difference of two nodes, one number per pixel.
export function differenceOf(node, other) {
  return Float32Array.from({ length: node.rgba.length / 4 }, (_, i) => {
    let sum = 0;
    for (let c = 4 * i; c < 4 * i + 3; c++) sum += node.rgba[c] - other.rgba[c];
    return sum / 765;
  });
}

// Standard deviation between the children of a node, or for a leaf between it and its siblings.
export function spreadOf(path, tree) {
  const parent = childrenOf(path, tree).length ? path : parentOf(path);
  const middle = nodeAt(parent, tree);
  const spread = new Float32Array(middle.rgba.length / 4);
  for (const child of childrenOf(parent, tree).map((p) => nodeAt(p, tree)).filter(Boolean)) {
    const share = middle.p ? child.p / middle.p : 0;
    for (let i = 0; i < spread.length; i++) {
      for (let c = 4 * i; c < 4 * i + 3; c++) {
        const d = (child.rgba[c] - middle.rgba[c]) / 255;
        spread[i] += (share * d * d) / 3;
      }
    }
  }
  return spread.map(Math.sqrt);
}

// ---- colours: safe for colour-blind readers ------------------------------------------------

const HEAT = [[0, 0, 4], [87, 16, 110], [188, 55, 84], [249, 142, 9], [252, 255, 164]];
const BELOW = [0, 114, 178], ABOVE = [213, 94, 0];

export function heatColor(value) {
  const place = Math.min(Math.max(value, 0), 1) * (HEAT.length - 1);
  const low = Math.min(Math.floor(place), HEAT.length - 2);
  return HEAT[low].map((c, i) => c + (place - low) * (HEAT[low + 1][i] - c));
}

export function signedColor(value, isDark) {
  const neutral = isDark ? 24 : 250;
  const strength = Math.min(Math.abs(value), 1) ** 0.8;
  return (value < 0 ? BELOW : ABOVE).map((c) => neutral + strength * (c - neutral));
}

export const isDark = () => (document.documentElement.dataset.theme
  ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";

// Draw values on a canvas of the image's size; `colorOf` gives [r, g, b] and `alphaOf` 0 … 1.
export function paint(canvas, values, size, colorOf, alphaOf = () => 1) {
  [canvas.height, canvas.width] = size;
  const context = canvas.getContext("2d");
  const picture = context.createImageData(size[1], size[0]);
  values.forEach((value, i) => {
    picture.data.set(colorOf(value), 4 * i);
    picture.data[4 * i + 3] = 255 * alphaOf(value);
  });
  context.putImageData(picture, 0, 0);
}

// ---- crops ----------------------------------------------------------------------------------

const SMALL = 64; // pixels: such images are cut to half of their side at most
const LOST = 0.06, MARGIN = 1.15, LARGEST = 0.9;

// The smallest box of the image's shape around where values are large: rows and columns are cut
// from the edges as long as at most LOST of the sum goes, and a margin is added. Null: the whole
// image.
export function cropOf(values, [height, width]) {
  const smallest = Math.max(height, width) <= SMALL ? 0.5 : 0.3;
  const rows = new Float64Array(height), columns = new Float64Array(width);
  let total = 0;
  values.forEach((value, i) => {
    rows[Math.floor(i / width)] += value;
    columns[i % width] += value;
    total += value;
  });
  if (!total) return null;
  const [top, bottom] = trim(rows, total * LOST / 2), [left, right] = trim(columns, total * LOST / 2);
  const extent = Math.max((bottom - top) / height, (right - left) / width);
  const zoom = Math.max(MARGIN * extent, smallest);
  return zoom > LARGEST ? null
    : boxAround((left + right) / 2, (top + bottom) / 2, zoom, [height, width]);
}

function trim(sums, lost) {
  let first = 0, end = sums.length;
  for (let cut = sums[first]; cut <= lost / 2 && first < end - 1; cut += sums[++first]);
  for (let cut = sums[end - 1]; cut <= lost / 2 && end > first + 1; cut += sums[--end - 1]);
  return [first, end];
}

// A box of the image's shape, `zoom` times its size, around a point and inside the image.
export function boxAround(cx, cy, zoom, [height, width]) {
  const [w, h] = [width * zoom, height * zoom];
  return {
    x: Math.min(Math.max(0, cx - w / 2), width - w), y: Math.min(Math.max(0, cy - h / 2), height - h),
    w, h,
  };
}
