// Your own picture: dropped, pasted, picked or drawn, sent to the local server as it is, and back
// comes its tree. Only served pages have this part.

import { askForEyes } from "./eyes.js";
import "./grow.js";
import { makePaper, renderPaper } from "./paper.js";
import { download, hush, say } from "./share.js";
import { $, data, onRender, state, update } from "./state.js";

const server = data.server;
const WAYS = ["digit", "lines", "resize"]; // of making the model's kind of picture of a file
let latest = 0;
let refused = null; // a file of another size or kind, until the reader says what to do with it

// What is sent: the picture, and after it the hole, where it is not the model's own.
async function request(blob, title, { isSketch, hole, eyes }) {
  const how = isSketch ? sketched() : { ...adjustment(), ...eyes };
  const query = new URLSearchParams({ name: title, hole: hole?.size ?? 0, ...how });
  const body = hole ? new Blob([blob, hole]) : blob;
  const response = await fetch(`api/predict?${query}`, { method: "POST", body });
  const answer = await response.json().catch(() => ({ error: `the server said ${response.status}` }));
  if (/--(levels|scale)/.test(`${answer.error}${answer.note}`)) $("values").open = true;
  if (!response.ok) {
    if (!isSketch && /--(digit|resize)/.test(answer.error)) offer(blob, title, eyes);
    throw new Error(answer.error);
  }
  return answer;
}

const sketched = () => (server.lines === null ? { clean: 1 } : { lines: 1 });

// What the reader says of a file's values and size; what is drawn here has ours.
function adjustment() {
  if ($("digit").checked) return { digit: 1, clean: 1 };
  if ($("lines").checked) return { lines: 1 };
  const levels = [$("black").value, $("white").value];
  return { clean: Number($("degrade").checked), invert: Number($("invert").checked),
    resize: Number($("resize").checked), gamma: $("gamma").value || 1,
    scale: server.scale === null ? 1 : $("zoom").value || 1,
    levels: levels.some(Boolean) ? levels.map((value) => value || "?").join(",") : "" };
}

function proposeAdjustment() {
  [$("black").value, $("white").value] = server.levels ?? ["", ""];
  $("gamma").value = server.gamma;
  $("invert").checked = server.invert;
  $("zoom").value = server.scale ?? 1;
  $("zoom-label").hidden = server.scale === null;
  $("values").open = Boolean(server.levels) || server.gamma !== 1 || (server.scale ?? 1) !== 1;
  $("digit-label").hidden = server.digit === null;
  $("digit").checked = Boolean(server.digit);
  $("lines-label").hidden = server.lines === null;
  $("lines").checked = Boolean(server.lines);
  $("resize-label").hidden = !server.size;
  $("takes").textContent = server.size?.join("×");
  $("resize").checked = server.resize;
  for (const way of WAYS) $(way).addEventListener("change", takeUp);
  showWays();
}

// A file was refused for its size: show what may be done about it; ticking that sends it again.
function offer(blob, title, eyes) {
  refused = { blob, title, eyes };
  if (!$("own").open) $("own").show();
}

function takeUp({ target }) {
  if (target.checked) for (const way of WAYS) $(way).checked = way === target.id;
  showWays();
  if (target.checked && refused) ask(refused.blob, refused.title, { eyes: refused.eyes });
}

// In a photograph of a digit, or a drawing, the program finds black, white and size by itself.
function showWays() {
  const isFound = $("digit").checked || $("lines").checked;
  $("degrade-label").hidden = !server.action || isFound;
  for (const name of ["invert-label", "values"]) $(name).hidden = isFound;
}

// Ask for a tree; the newest picture wins, and what comes from the paper takes the place of what
// came from it before.
async function ask(blob, title, { isSketch = false, hole = null, eyes = {} } = {}) {
  hush();
  if (blob.size > server.megabytes * 1e6) {
    say(`${title} has ${(blob.size / 1e6).toFixed(1)} MB, the limit is ${server.megabytes} MB`, true);
    return;
  }
  const mine = ++latest;
  document.body.classList.add("waiting");
  try {
    const made = await request(blob, title, { isSketch, hole, eyes });
    if (mine !== latest && isSketch) return;
    const again = isSketch && data.examples[0]?.isSketch; // a truth that was revealed stays so
    const truth = Boolean(again && made.truth && state.truth && state.example === 0);
    if (again) data.examples.shift();
    data.examples.unshift(Object.assign(made, { isSketch }));
    data.size = data.examples.length === 1 ? made.size : data.size;
    update({ example: 0, path: [], truth });
    if (!isSketch) refused = null;
    if (!isSketch && $("eyes").hidden) $("own").close(); // another portrait may wait for its marks
  } catch (error) {
    const isDown = error instanceof TypeError;
    if (mine === latest) {
      say(isDown ? "The server does not answer: is `ptrees explore` still running?" : error.message, true);
      if (!isSketch) $("invert-label").scrollIntoView({ block: "nearest" }); // what may be ticked
    }
  } finally {
    if (mine === latest) document.body.classList.remove("waiting");
  }
}

// ---- files ------------------------------------------------------------------------------------

async function takeFiles(files) {
  const [file] = files;
  if (!file) return;
  const eyes = server.align ? await askForEyes(file, server.align) : {};
  if (eyes) ask(file, file.name || "pasted picture", { eyes });
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

// ---- keeping the page -------------------------------------------------------------------------

async function savePage() {
  const frame = await (await fetch("blank.html")).text();
  const examples = data.examples.map(({ loading, isLoaded, isSketch, past, mask, token, ...item }) => item);
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
$("degrade").checked = server.clean;
$("degradation").textContent = server.action;
if (server.paper) {
  await makePaper(server.paper, (blob, title, hole) => ask(blob, title, { isSketch: true, hole }));
  onRender(renderPaper);
  if (data.examples.length) renderPaper();
}
proposeAdjustment();
listenToFiles();
if (!data.examples.length) $("own").show();
document.body.classList.add("ready");
