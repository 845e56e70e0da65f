// Your own picture: dropped, pasted, picked or drawn, sent to the local server as it is, and back
// comes its tree. Only served pages have this part.

import { download, say } from "./share.js";
import { $, data, element, update } from "./state.js";

const server = data.server;
let latest = 0;

async function request(blob, title) {
  const query = new URLSearchParams({ name: title, degrade: Number($("degrade").checked),
    invert: Number($("invert").checked && title !== "drawing") });
  const response = await fetch(`api/predict?${query}`, { method: "POST", body: blob });
  const answer = await response.json().catch(() => ({ error: `the server said ${response.status}` }));
  if (!response.ok) throw new Error(answer.error);
  return answer;
}

// Ask for a tree; the newest picture wins, and a drawing takes the place of the last drawing.
async function ask(blob, title, { isDrawing = false } = {}) {
  if (blob.size > server.megabytes * 1e6) {
    say(`${title} has ${(blob.size / 1e6).toFixed(1)} MB, the limit is ${server.megabytes} MB`, true);
    return;
  }
  const mine = ++latest;
  document.body.classList.add("waiting");
  try {
    const made = await request(blob, title);
    if (mine !== latest && isDrawing) return;
    const last = data.examples[0];
    if (isDrawing && last?.isDrawing) data.examples.shift();
    data.examples.unshift(Object.assign(made, { isDrawing }));
    data.size = data.examples.length === 1 ? made.size : data.size;
    update({ example: 0, path: [] });
    if (!isDrawing) $("own").close();
    if (made.note) say(made.note, true);
  } catch (error) {
    const isDown = error instanceof TypeError;
    say(isDown ? "The server does not answer: is `ptrees explore` still running?" : error.message, true);
  } finally {
    if (mine === latest) document.body.classList.remove("waiting");
  }
}

// ---- files ------------------------------------------------------------------------------------

function takeFiles(files) {
  const [file] = files;
  if (file) ask(file, file.name || "pasted picture");
}

function listenToFiles() {
  $("file").addEventListener("change", () => { takeFiles($("file").files); $("file").value = ""; });
  for (const type of ["dragover", "drop"]) {
    document.addEventListener(type, (event) => {
      event.preventDefault();
      document.body.classList.toggle("dropping", type === "dragover");
      if (type === "drop") takeFiles(event.dataTransfer.files);
    });
  }
  document.addEventListener("dragleave", (event) => {
    if (!event.relatedTarget) document.body.classList.remove("dropping");
  });
  document.addEventListener("paste", (event) => takeFiles(event.clipboardData.files));
}

// ---- drawing ----------------------------------------------------------------------------------

const ZOOM = 10;

function makeCanvas([height, width]) {
  const canvas = $("draw");
  Object.assign(canvas, { width: width * ZOOM, height: height * ZOOM });
  const pen = canvas.getContext("2d");
  const clear = () => { pen.fillStyle = "black"; pen.fillRect(0, 0, canvas.width, canvas.height); };
  const place = (event) => [event.offsetX * canvas.width / canvas.clientWidth,
    event.offsetY * canvas.height / canvas.clientHeight];
  let from = null;
  const stroke = (event) => {
    if (!from) return;
    const to = place(event);
    Object.assign(pen, { strokeStyle: "white", lineWidth: 2.1 * ZOOM, lineCap: "round" });
    pen.beginPath();
    pen.moveTo(...from);
    pen.lineTo(...to);
    pen.stroke();
    from = to;
  };
  canvas.addEventListener("pointerdown", (event) => {
    canvas.setPointerCapture(event.pointerId);
    from = place(event);
    stroke(event);
  });
  canvas.addEventListener("pointermove", stroke);
  const lift = () => { if (from) { from = null; send(canvas, [height, width]); } };
  canvas.addEventListener("pointerup", lift);
  canvas.addEventListener("pointercancel", lift);
  $("clear-drawing").addEventListener("click", clear);
  $("draw-hole").src = server.hole;
  clear();
}

// A drawing becomes a picture of the model's size, as soft as scanned digits are.
function send(canvas, [height, width]) {
  const small = element("canvas", { width, height }), pen = small.getContext("2d");
  pen.imageSmoothingQuality = "high";
  pen.filter = "blur(0.4px)";
  pen.drawImage(canvas, 0, 0, width, height);
  small.toBlob((blob) => ask(blob, "drawing", { isDrawing: true }), "image/png");
}

// ---- keeping the page -------------------------------------------------------------------------

async function savePage() {
  const frame = await (await fetch("blank.html")).text();
  const examples = data.examples.map(({ loading, isLoaded, isDrawing, note, ...item }) => item);
  const plain = (key, value) => (key === "rgba" || key === "crop" ? undefined : value);
  const content = { ...data, examples };
  delete content.server;
  const text = JSON.stringify(content, plain).replaceAll("<", "\\u003c");
  const mark = '<script type="application/json" id="trees">';
  const at = frame.indexOf(mark) + mark.length;
  const end = frame.indexOf("</script>", at);
  download(frame.slice(0, at) + text + frame.slice(end), ".html", "text/html");
}

$("own-button").hidden = false;
$("own-button").addEventListener("click", () => ($("own").open ? $("own").close() : $("own").show()));
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && $("own").open) { $("own").close(); event.stopPropagation(); }
}, { capture: true });
$("save-page").hidden = false;
$("save-page").addEventListener("click", () => {
  $("share").open = false;
  if (data.examples.length) savePage();
});
$("degrade-label").hidden = !server.can_degrade;
$("degrade").checked = server.can_degrade;
$("drawing").hidden = !server.canvas;
if (server.canvas) makeCanvas(server.canvas);
listenToFiles();
if (!data.examples.length) $("own").show();
document.body.classList.add("ready");
