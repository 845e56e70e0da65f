// Where the eyes of a portrait are: two marks that the reader puts on them, by pointer or arrow keys.

import { $ } from "./state.js";

const STEPS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
const marks = [$("eye-left"), $("eye-right")];
let places = [[0.4, 0.4], [0.6, 0.4]]; // x and y, as shares of the picture
let answer = null, latest = 0;

function put(mark, [x, y]) {
  places[mark] = [x, y].map((v) => Math.min(Math.max(v, 0), 1));
  [marks[mark].style.left, marks[mark].style.top] = places[mark].map((v) => `${100 * v}%`);
}

// Show the portrait and wait for its eyes: `{ align }` in pixels, `{}` if it is cut already, and
// null if the reader chose something else meanwhile or the browser cannot show the file.
export async function askForEyes(blob, at) {
  const mine = ++latest;
  answer?.(null);
  const portrait = $("portrait");
  URL.revokeObjectURL(portrait.src);
  portrait.src = URL.createObjectURL(blob);
  try {
    await portrait.decode();
  } catch {
    return mine === latest ? {} : null; // not a picture for browsers: the server says what it is
  }
  if (mine !== latest) return null;
  [at.slice(0, 2), at.slice(2)].forEach((place, mark) => put(mark, place));
  $("eyes").hidden = false;
  if (!$("own").open) $("own").show();
  marks[0].focus();
  const found = await new Promise((resolve) => { answer = resolve; });
  answer = null;
  $("eyes").hidden = true;
  return found;
}

function cut() {
  const { naturalWidth: width, naturalHeight: height } = $("portrait");
  const align = places.flatMap(([x, y]) => [x * width, y * height]).map((v) => v.toFixed(1)).join();
  return { align, resize: 0, scale: 1 };
}

marks.forEach((mark, number) => {
  const follow = ({ clientX, clientY }) => {
    const box = $("portrait").getBoundingClientRect();
    put(number, [(clientX - box.left) / box.width, (clientY - box.top) / box.height]);
  };
  mark.addEventListener("pointerdown", (event) => { mark.setPointerCapture(event.pointerId); });
  mark.addEventListener("pointermove", (event) => { if (mark.hasPointerCapture(event.pointerId)) follow(event); });
  mark.addEventListener("keydown", (event) => {
    if (!STEPS[event.key]) return;
    event.preventDefault();
    event.stopPropagation();
    const step = event.shiftKey ? 0.02 : 0.004;
    put(number, places[number].map((v, i) => v + step * STEPS[event.key][i]));
  });
});
$("take-eyes").addEventListener("click", () => answer?.(cut()));
$("no-eyes").addEventListener("click", () => answer?.({ cut: 1 }));
$("own").addEventListener("close", () => answer?.(null));
