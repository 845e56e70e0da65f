// The paper: a picture with its hole. On it the reader draws, hides and uncovers; every change grows
// a new tree. The hole is a list of 0 (visible) and 1 (hidden), one number per pixel of the model.

import { bytesOfUrl } from "./files.js";
import { $, element, example } from "./state.js";

const WIDTH = 280; // of the canvas, about
const OTHER = ", other hole"; // in the name of an example
const WORDS = {
  draw: "Draw: every stroke grows a new tree. What is under the grey, the model does not see.",
  hide: "Paint over what the model must not see. The arrow keys move the hole.",
  show: "Uncover what the model may see. The arrow keys move the hole.",
  lines: "Draw the outlines: every stroke grows a new tree.",
};
const ARROWS_OF_HOLE = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };

const paper = {
  size: [1, 1],
  zoom: 1, // canvas pixels per pixel of the model
  hole: null,
  own: null, // the hole that the model was trained with
  ink: "white", // on black; lines are black on white
  picture: null, // the bytes of an example; null: what is drawn
  title: "drawing",
  onChange: null,
};

const tool = () => document.querySelector("#paper-tools :checked").value;
const hiddenIn = (hole) => hole.reduce((sum, value) => sum + value, 0);
const isOwnHole = () => paper.hole.every((value, i) => value === paper.own[i]);

export async function makePaper({ size, hole, can_draw: canDraw, ink }, onChange) {
  const zoom = Math.max(1, Math.round(WIDTH / size[1]));
  Object.assign(paper, { size, zoom, ink, onChange });
  for (const [id, scale] of [["draw", zoom], ["hole", 1]]) {
    Object.assign($(id), { width: size[1] * scale, height: size[0] * scale });
  }
  paper.own = hole ? await readHole(hole) : new Uint8Array(size[0] * size[1]);
  paper.hole = paper.own.slice();
  $("drawing").hidden = false;
  $("paper-tools").hidden = $("take-example").hidden = !hole; // lines are drawn, nothing is hidden
  $("tool-draw").hidden = !canDraw;
  $("clear-drawing").hidden = !canDraw;
  $("paper-tools").querySelector(canDraw ? "[value=draw]" : "[value=hide]").checked = true;
  listenToPaper();
  clearPaper();
  $("drawing").classList.toggle("bare", !canDraw); // until an example is taken
  showHole();
}

async function readHole(url) {
  const image = element("img", { src: url }), [height, width] = paper.size;
  await image.decode();
  const pen = element("canvas", { width, height }).getContext("2d");
  pen.drawImage(image, 0, 0);
  const { data: rgba } = pen.getImageData(0, 0, width, height);
  return Uint8Array.from({ length: width * height }, (_, i) => Number(rgba[4 * i] > 127));
}

// ---- what is seen -----------------------------------------------------------------------------

function showHole() {
  const [height, width] = paper.size, pen = $("hole").getContext("2d");
  const veil = pen.createImageData(width, height);
  paper.hole.forEach((value, i) => veil.data.set([128, 128, 128, value ? 170 : 0], 4 * i));
  pen.putImageData(veil, 0, 0);
  const hidden = hiddenIn(paper.hole);
  $("hole").setAttribute("aria-label", hidden ? `The picture with its hole of ${hidden} pixels. ` +
    "Arrow keys move the hole." : "Paper to draw on");
  $("hole-note").hidden = $("own-hole").hidden = isOwnHole();
  $("paper-words").textContent = hidden ? WORDS[tool()] : WORDS.lines;
}

function clearPaper() {
  const canvas = $("draw"), pen = canvas.getContext("2d");
  pen.fillStyle = paper.ink === "black" ? "white" : "black";
  pen.fillRect(0, 0, canvas.width, canvas.height);
  Object.assign(paper, { picture: null, title: "drawing" });
}

// Put the clean picture of the current example on the paper, to change its hole.
async function takeExample() {
  const { truth, name } = example(), canvas = $("draw"), pen = canvas.getContext("2d");
  const image = element("img", { src: truth });
  await image.decode();
  pen.imageSmoothingEnabled = false;
  pen.drawImage(image, 0, 0, canvas.width, canvas.height);
  Object.assign(paper, { picture: new Blob([bytesOfUrl(truth)]), title: name.replace(OTHER, "") });
  $("drawing").classList.remove("bare");
  if (tool() === "draw") $("paper-tools").querySelector("[value=hide]").checked = true;
  showHole();
}

// Only an example with a truth of the model's size can be taken.
export function renderPaper() {
  const { truth, size } = example(), isFit = truth && size.join() === paper.size.join();
  $("take-example").disabled = !isFit;
  $("take-example").title = isFit ? "Put the clean picture of the current example here, which reveals it"
    : "Of this example no picture of the model's size is known that shows what it hides";
}

// ---- strokes ----------------------------------------------------------------------------------

function drawStroke(from, to) {
  const pen = $("draw").getContext("2d");
  paper.picture = null;
  const width = paper.ink === "black" ? 1.4 : 2.1; // of lines, and of digits
  Object.assign(pen, { strokeStyle: paper.ink, lineWidth: width * paper.zoom, lineCap: "round" });
  pen.beginPath();
  pen.moveTo(...from.map((v) => v * paper.zoom));
  pen.lineTo(...to.map((v) => v * paper.zoom));
  pen.stroke();
}

// Discs along the stroke; a hole never hides all or nothing.
function holeStroke(from, to, value) {
  const [height, width] = paper.size, radius = Math.max(1.2, width / 18);
  const steps = Math.ceil(Math.hypot(to[0] - from[0], to[1] - from[1])) || 1;
  const next = paper.hole.slice();
  for (let step = 0; step <= steps; step++) {
    const [cx, cy] = [0, 1].map((i) => from[i] + ((to[i] - from[i]) * step) / steps);
    for (let y = Math.max(0, Math.floor(cy - radius)); y < Math.min(height, cy + radius); y++) {
      for (let x = Math.max(0, Math.floor(cx - radius)); x < Math.min(width, cx + radius); x++) {
        if (Math.hypot(x + 0.5 - cx, y + 0.5 - cy) <= radius) next[y * width + x] = value;
      }
    }
  }
  setHole(next);
}

function setHole(next) {
  const hidden = hiddenIn(next);
  if (!hidden || hidden === next.length) return;
  paper.hole = next;
  showHole();
}

function moveHole([dy, dx]) {
  const [height, width] = paper.size, step = Math.max(1, Math.round(width / 64));
  const next = new Uint8Array(paper.hole.length);
  for (let y = 0; y < height; y++) {
    for (let x = 0; x < width; x++) {
      const [fromY, fromX] = [y - dy * step, x - dx * step];
      const isInside = fromY >= 0 && fromY < height && fromX >= 0 && fromX < width;
      if (isInside) next[y * width + x] = paper.hole[fromY * width + fromX];
    }
  }
  setHole(next);
}

function listenToPaper() {
  const top = $("hole"), [height, width] = paper.size;
  const place = (event) => [event.offsetX * width / top.clientWidth,
    event.offsetY * height / top.clientHeight];
  let from = null;
  const stroke = (event) => {
    if (!from) return;
    const to = place(event);
    if (tool() === "draw") drawStroke(from, to);
    else holeStroke(from, to, Number(tool() === "hide"));
    from = to;
  };
  const lift = () => { if (from) { from = null; sendPaper(); } };
  top.addEventListener("pointerdown", (event) => {
    top.setPointerCapture(event.pointerId);
    from = place(event);
    stroke(event);
  });
  top.addEventListener("pointermove", stroke);
  top.addEventListener("pointerup", lift);
  top.addEventListener("pointercancel", lift);
  top.addEventListener("keydown", (event) => {
    if (!ARROWS_OF_HOLE[event.key] || !hiddenIn(paper.hole)) return;
    event.preventDefault();
    event.stopPropagation();
    moveHole(ARROWS_OF_HOLE[event.key]);
    sendPaper();
  });
  $("paper-tools").addEventListener("change", showHole);
  $("clear-drawing").addEventListener("click", clearPaper);
  $("take-example").addEventListener("click", takeExample);
  $("own-hole").addEventListener("click", () => { setHole(paper.own.slice()); sendPaper(); });
}

// ---- what is sent -----------------------------------------------------------------------------

const toBlob = (canvas) => new Promise((resolve) => canvas.toBlob(resolve, "image/png"));

async function sendPaper() {
  const hole = isOwnHole() ? null : await toBlob(holePicture());
  const title = paper.title === "drawing" || !hole ? paper.title : paper.title + OTHER;
  paper.onChange(paper.picture ?? await toBlob(smallDrawing()), title, hole);
}

function holePicture() {
  const [height, width] = paper.size, canvas = element("canvas", { width, height });
  const pen = canvas.getContext("2d"), picture = pen.createImageData(width, height);
  paper.hole.forEach((value, i) => picture.data.set([255 * value, 255 * value, 255 * value, 255], 4 * i));
  pen.putImageData(picture, 0, 0);
  return canvas;
}

// A drawing becomes a picture of the model's size, as soft as scanned digits are.
function smallDrawing() {
  const [height, width] = paper.size, canvas = element("canvas", { width, height });
  const pen = canvas.getContext("2d");
  pen.imageSmoothingQuality = "high";
  pen.filter = paper.ink === "black" ? "none" : "blur(0.4px)";
  pen.drawImage($("draw"), 0, 0, width, height);
  return canvas;
}
