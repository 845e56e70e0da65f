// Your own picture: dropped, pasted, picked or drawn, sent to the local server as it is, and back
// comes its tree. Only served pages have this part.

import { endMarking, markedPortrait, markEyes } from "./eyes.js";
import "./grow.js";
import { makePaper, renderPaper } from "./paper.js";
import { download, hush, say } from "./share.js";
import { $, data, example, onRender, state, update } from "./state.js";

const server = data.server;
const WAYS = ["digit", "lines", "resize"]; // of making the model's kind of picture of a file
let latest = 0;
let last = null; // the newest file, { blob, title }: what is ticked later is meant for it too

async function request(path, body, query) {
  const response = await fetch(`api/${path}?${new URLSearchParams(query)}`, { method: "POST", body });
  const answer = await response.json().catch(() => ({ error: `the server said ${response.status}` }));
  if (/--(levels|scale)/.test(`${answer.error}${answer.note}`)) $("values").open = true;
  if (!response.ok) throw new Error(answer.error);
  return answer;
}

// What is sent: the picture, and after it the hole, where it is not the model's own.
function predict({ blob, title, eyes }, isSketch, hole) {
  const how = isSketch ? sketched() : { ...adjustment(), ...eyes };
  const body = hole ? new Blob([blob, hole]) : blob;
  return request("predict", body, { name: title, hole: hole?.size ?? 0, ...how });
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

function takeUp({ target }) {
  if (target.checked) for (const way of WAYS) $(way).checked = way === target.id;
  showWays();
  if (target.checked && last) ask(last);
}

// In a photograph of a digit, or a drawing, the program finds black, white and size by itself.
function showWays() {
  const isFound = $("digit").checked || $("lines").checked;
  $("degrade-label").hidden = !server.action || isFound;
  for (const name of ["invert-label", "values"]) $(name).hidden = isFound;
}

// Ask for a tree; the newest picture wins, and what comes from the same file, or from the paper,
// takes the place of what came from it before.
async function ask(file, { isSketch = false, hole = null } = {}) {
  hush();
  const mine = ++latest;
  if (!isSketch) last = file;
  document.body.classList.add("waiting");
  try {
    const made = await predict(file, isSketch, hole);
    if (mine !== latest && isSketch) return;
    const isOld = isSketch ? (item, i) => item.isSketch && !i : (item) => item.file === file;
    const old = data.examples.findIndex(isOld);
    const truth = Boolean(old === state.example && made.truth && state.truth); // revealed, it stays so
    if (old >= 0) data.examples.splice(old, 1);
    data.examples.unshift(Object.assign(made, isSketch ? { isSketch } : { file }));
    data.size = data.examples.length === 1 ? made.size : data.size;
    update({ example: 0, path: [], truth });
    if (!isSketch && endMarking(file)) $("own").close(); // another portrait may wait for its marks
  } catch (error) {
    if (mine === latest) {
      complain(error);
      const isOffered = !isSketch && /--(digit|lines|resize)/.test(error.message); // ticking sends it again
      if (isOffered && !$("own").open) $("own").show();
      if (!isSketch) $("invert-label").scrollIntoView({ block: "nearest" }); // what may be ticked
    }
  } finally {
    if (mine === latest) document.body.classList.remove("waiting");
  }
}

function complain(error) {
  const isDown = error instanceof TypeError;
  say(isDown ? "The server does not answer: is `ptrees explore` still running?" : error.message, true);
}

// ---- files ------------------------------------------------------------------------------------

function takeFiles([blob]) {
  if (!blob) return;
  const file = { blob, title: blob.name || "pasted picture" }, megabytes = blob.size / 1e6;
  hush();
  if (megabytes > server.megabytes) {
    say(`${file.title} has ${megabytes.toFixed(1)} MB, the limit is ${server.megabytes} MB`, true);
  } else if (server.align) mark(file);
  else ask(file);
}

const mark = (portrait) => markEyes(portrait, server.align, ({ blob, title }) =>
  request("preview", blob, { ...adjustment(), name: title })).catch(complain);

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
  const examples = data.examples.map(({ loading, isLoaded, isSketch, file, past, mask, token, ...item }) => item);
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
  await makePaper(server.paper, (blob, title, hole) => ask({ blob, title }, { isSketch: true, hole }));
  onRender(renderPaper);
  if (data.examples.length) renderPaper();
}
proposeAdjustment();
listenToFiles();
$("begin-how").textContent = [data.model.takes, data.model.prepare].filter(Boolean)
  .map((words) => words[0].toUpperCase() + words.slice(1)).join("\n");
if (server.align) {
  $("begin-with").textContent = "portrait";
  $("take-eyes").addEventListener("click", () => ask(markedPortrait(false)));
  $("no-eyes").addEventListener("click", () => ask(markedPortrait(true)));
  $("move-marks").addEventListener("click", () => mark(example().file));
  onRender(() => { $("move-marks").hidden = !example().file; });
}
if (!data.examples.length) $("own").show();
document.body.classList.add("ready");
