// Where the eyes of a portrait are: two marks that the reader puts on them, by pointer or arrow keys.
// A portrait keeps them, as shares of its width and height, and how it is `shown`: { src, size }.

import { $, element } from "./state.js";

const STEPS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
const marks = [$("eye-left"), $("eye-right")];
let portrait = null, latest = 0;

function put(mark, place) {
  const [x, y] = portrait.places[mark] = place.map((v) => Math.min(Math.max(v, 0), 1));
  Object.assign(marks[mark].style, { left: `${100 * x}%`, top: `${100 * y}%` });
}

// Let the reader mark a file `{ blob, … }`, beginning `at` the model's places or where its marks
// were; `preview` shows one that the browser cannot.
export async function markEyes(file, at, preview) {
  const mine = ++latest;
  file.shown ??= await show(file.blob).catch(() => preview(file));
  if (mine !== latest) return;
  portrait = file;
  $("portrait").src = file.shown.src;
  (file.places ??= [at.slice(0, 2), at.slice(2)]).forEach((place, mark) => put(mark, place));
  $("eyes").hidden = false;
  if (!$("own").open) $("own").show();
  marks[0].focus();
}

async function show(blob) {
  const image = element("img", { src: URL.createObjectURL(blob) });
  await image.decode();
  return { src: image.src, size: [image.naturalHeight, image.naturalWidth] };
}

// The portrait as the reader says it is: cut already, or to be cut around its marks.
export function markedPortrait(isCut) {
  const [height, width] = portrait.shown.size;
  const align = portrait.places.flatMap(([x, y]) => [(x * width).toFixed(1), (y * height).toFixed(1)]).join();
  portrait.eyes = isCut ? { cut: 1 } : { align, resize: 0, scale: 1 };
  return portrait;
}

// Put a portrait away that has its tree; whether no other one waits for its marks.
export function endMarking(file) {
  if (file === portrait) portrait = null;
  $("eyes").hidden = !portrait;
  return !portrait;
}

marks.forEach((mark, number) => {
  const box = () => $("portrait").getBoundingClientRect();
  mark.addEventListener("pointerdown", (event) => { mark.setPointerCapture(event.pointerId); });
  mark.addEventListener("pointermove", ({ pointerId, clientX, clientY }) => {
    const { left, top, width, height } = box();
    if (mark.hasPointerCapture(pointerId)) put(number, [(clientX - left) / width, (clientY - top) / height]);
  });
  mark.addEventListener("keydown", (event) => {
    if (!STEPS[event.key]) return;
    event.preventDefault();
    event.stopPropagation();
    const { width, height } = box(), pixels = event.shiftKey ? 10 : 1; // of the screen
    const [dx, dy] = STEPS[event.key], [x, y] = portrait.places[number];
    put(number, [x + pixels * dx / width, y + pixels * dy / height]);
  });
});
