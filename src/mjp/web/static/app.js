// The page: reads the choices, runs attacks as jobs, shows what comes of them.

import { ask, drop, follow } from "/static/api.js";
import { Chart } from "/static/chart.js";
import { Chooser } from "/static/pictures.js";

const byId = (id) => document.getElementById(id);
const RUN_MILLISECONDS = 350; // A run starts by itself so long after the last change,
const DRAW_MILLISECONDS = 40; // and a preview so long.
const GAMMAS = [0, 0.03, 0.09, 0.15, 0.27, 0.5];
const TRACED = ["patch_solve", "adaptive_solve"];
const TRACE = "Trace the curve";
const KINDS = { closed: "Closed form (quick)", search: "Search (slow)" };

let options;
let chooser;
let chart;
let current = null; // The job that runs for the panels, or the tracing of a curve.
let drawing = null;
const timers = {};

/* Words on the page ------------------------------------------------------------------------- */

function say(sentence) {
  byId("live").textContent = sentence;
}

function problem(sentence) {
  byId("alert").hidden = !sentence;
  byId("alert").querySelector("p").textContent = sentence ?? "";
}

const decibel = (value) => (value === null ? "–" : `${value.toFixed(1)} dB`);

/* The choices ------------------------------------------------------------------------------- */

const chosen = (list, key) => options[list].find((one) => (one.name ?? one.key) === key);
const defence = () => chosen("defences", byId("defence").value);
const attack = () => chosen("attacks", byId("attack").value);
const isGamma = () => ["mjp", "shuffle"].includes(byId("defence").value);

function amount() {
  const { least, most, start } = defence().number;
  const value = byId("amount-number").valueAsNumber;
  return Number.isFinite(value) ? Math.min(most, Math.max(least, value)) : start;
}

const shortest = (value) => String(Number(value.toPrecision(3)));

function defenceText(name = byId("defence").value, value = null) {
  const entry = chosen("defences", name);
  if (!entry.number) return name;
  const number = value ?? amount();
  if (["mjp", "shuffle"].includes(name) && number === 0) return "none";
  return `${name}=${shortest(number)}`;
}

function whole(id, otherwise) {
  const value = byId(id).valueAsNumber;
  return Number.isFinite(value) ? Math.round(value) : otherwise;
}

function wanted() {
  return {
    picture: chooser.name,
    model: byId("model").value,
    defence: defenceText(),
    attack: byId("attack").value,
    seed: whole("seed", 0),
    rounds: whole("rounds", 1),
    steps: whole("steps", null),
  };
}

const chartKey = ({ picture, model, seed, rounds }) => [picture, model, seed, rounds].join(" ");

function gammaOf(text) {
  if (text === "none") return 0;
  return text.startsWith("mjp=") && !text.includes("+") ? Number(text.slice(4)) : null;
}

/* The form ---------------------------------------------------------------------------------- */

function fill(select, list, text) {
  for (const one of list) {
    const option = new Option(text(one), one.name ?? one.key);
    select.append(option);
  }
}

function fillAttacks() {
  for (const [kind, label] of Object.entries(KINDS)) {
    const group = Object.assign(document.createElement("optgroup"), { label });
    fill(group, options.attacks.filter((one) => one.kind === kind), (one) => one.name);
    byId("attack").append(group);
  }
  byId("attack").value = "adaptive_solve";
}

// The slider runs over [0, 1]; over numbers of many sizes it runs by their logarithm.
function toSlider(value, { least, most, scale }) {
  if (scale === "log") return Math.log(value / least) / Math.log(most / least);
  return (value - least) / (most - least);
}

function fromSlider(place, { least, most, scale }) {
  if (scale === "log") return Number((least * (most / least) ** place).toPrecision(2));
  return Number((least + place * (most - least)).toFixed(2));
}

function showAmount(value) {
  const number = defence().number;
  byId("amount-number").value = shortest(value);
  byId("amount").value = toSlider(value, number);
  byId("amount").setAttribute("aria-valuetext", shortest(value));
}

function showDefence() {
  const { about, number } = defence();
  const before = showDefence.before ?? {};
  const keep = before.label === number?.label && number; // γ stays γ, whatever hides behind it.
  showDefence.before = number;
  byId("defence-about").textContent = about;
  byId("amount-field").hidden = !number;
  if (!number) return;
  byId("amount-label").textContent = number.label;
  byId("amount").step = number.scale === "log" ? 0.01 : 0.01 / (number.most - number.least);
  Object.assign(byId("amount-number"), { min: number.least, max: number.most });
  showAmount(keep ? amount() : number.start);
}

function showWords() {
  byId("attack-about").textContent = attack().about;
  byId("model-about").textContent = chosen("models", byId("model").value).about;
  const search = attack().kind === "search";
  byId("run-about").textContent = search
    ? "A search takes minutes; it starts when you press Run, and can be cancelled."
    : "Runs by itself whenever you change something.";
}

/* Pictures ---------------------------------------------------------------------------------- */

function later(name, milliseconds, work) {
  clearTimeout(timers[name]);
  timers[name] = setTimeout(work, milliseconds);
}

function put(id, source, words) {
  Object.assign(byId(id), { src: source, alt: words });
}

function caption(masked, patches) {
  const share = `${masked} of ${patches} patches`;
  const hides = byId("defence").value === "mjp";
  byId("masked-note").textContent = masked ? `${share}${hides ? " get an unknown position" : ""}` : "none are masked";
  byId("shuffled-note").textContent = masked ? "the masked patches, shuffled" : "the picture, in order";
}

async function drawPreview() {
  drawing?.abort();
  drawing = new AbortController();
  const { picture, model, defence: text, seed } = wanted();
  try {
    const found = await ask("/api/preview", { method: "POST", body: { picture, model, defence: text, seed }, signal: drawing.signal });
    const { masked, rows, cols, pictures } = found;
    const what = chooser.label.toLowerCase();
    put("picture", pictures.picture, `The picture as the model is shown it: ${what}.`);
    put("masked", pictures.masked, `The picture with ${masked.length} of ${rows * cols} patches covered.`);
    put("shuffled", pictures.shuffled, masked.length ? "The picture with its masked patches in shuffled order." : "The picture, unchanged.");
    caption(masked.length, rows * cols);
    return true;
  } catch (error) {
    if (error.name !== "AbortError") problem(error.message);
    return false;
  }
}

/* Runs -------------------------------------------------------------------------------------- */

function stop() {
  if (!current) return;
  current.stopped = true;
  if (current.id) drop(`/api/jobs/${current.id}`);
  current = null;
  byId("progress").hidden = true;
  byId("trace").textContent = TRACE;
}

function cancel() {
  stop();
  byId("results").removeAttribute("aria-busy");
  byId("run-about").textContent = "Cancelled. Press Run to start again.";
  say("Cancelled.");
}

/** Runs one job to its end; null where it was stopped from here. */
async function runJob(run, request, changed) {
  const job = await ask("/api/jobs", { method: "POST", body: request });
  run.id = job.id;
  if (run.stopped) {
    drop(`/api/jobs/${job.id}`);
    return null;
  }
  const ended = await follow(job.id, (state) => run.stopped || changed(state));
  return run.stopped ? null : ended;
}

function begin() {
  stop();
  current = { id: null, stopped: false };
  byId("progress").hidden = false;
  byId("bar").value = 0;
  byId("stage").textContent = "Starting";
  return current;
}

function finish(run) {
  if (current !== run) return;
  current = null;
  byId("progress").hidden = true;
  byId("trace").textContent = TRACE;
}

function showProgress(job) {
  byId("bar").value = job.progress;
  if (job.state === "waiting") byId("stage").textContent = job.ahead ? `Waiting, ${job.ahead} ahead` : "Waiting";
  if (job.state !== "running") return;
  const left = job.progress > 0.02 ? (job.seconds / job.progress) * (1 - job.progress) : null;
  const about = left !== null && left > 5 ? `, about ${Math.round(left)} s left` : "";
  byId("stage").textContent = `${job.attack}: ${Math.round(100 * job.progress)} %${about}`;
  const tenth = Math.floor(10 * job.progress);
  if (attack().kind === "search" && tenth !== showProgress.told) say(`${10 * tenth} per cent done.`);
  showProgress.told = tenth;
}

async function run() {
  clearTimeout(timers.run);
  const request = wanted();
  const own = begin();
  byId("results").setAttribute("aria-busy", "true");
  try {
    const job = await runJob(own, request, showProgress);
    if (!job || own.stopped) return;
    if (job.state === "done") showResult(request, job);
    else showEnd(job);
  } catch (error) {
    if (!own.stopped) showEnd({ message: error.message, state: "failed" });
  } finally {
    if (current === own || !current) byId("results").removeAttribute("aria-busy");
    finish(own);
  }
}

function showEnd(job) {
  problem(job.message || `The attack was ${job.state}.`);
}

function showResult(request, job) {
  const { result } = job;
  byId("outcome").className = `columns ${result.level.replaceAll(" ", "-")}`;
  byId("level").textContent = result.level;
  byId("setting").textContent = `${job.attack}, ${job.defence === "none" ? "no defence" : job.defence}`;
  byId("says").textContent = result.verdict;
  byId("reason").hidden = !result.reason;
  byId("reason").textContent = result.reason ? `${result.reason[0].toUpperCase()}${result.reason.slice(1)}.` : "";
  showNumbers(result, job);
  showRecovered(result);
  caption(result.masked_patches, result.patches);
  byId("download").hidden = false;
  byId("download").href = result.download;
  byId("notes").replaceChildren(...result.notes.map((note) => Object.assign(document.createElement("li"), { textContent: note })));
  const gamma = gammaOf(job.defence);
  if (gamma !== null) chart.add(chartKey(request), job.attack, gamma, result);
  say(`${result.level}. ${result.verdict}`);
}

function showNumbers(result, job) {
  byId("psnr").textContent = decibel(result.psnr);
  byId("psnr-unmasked").textContent = decibel(result.psnr_unmasked);
  byId("ssim").textContent = result.ssim === null ? "–" : result.ssim.toFixed(3);
  byId("guess").textContent = decibel(result.psnr_guess);
  const facts = [`${job.seconds.toFixed(1)} s`];
  if (result.mask_recovered !== null) facts.push(`the attacker ${result.mask_recovered ? "found" : "did not find"} the mask`);
  if (result.fidelity < 0.9995) facts.push(`${(100 * result.fidelity).toFixed(1)} % of the gradient's direction was sent`);
  if (result.epsilon !== null) facts.push(`ε = ${result.epsilon.toFixed(1)} for this update`);
  byId("facts").textContent = facts.join(" · ");
}

function showRecovered(result) {
  const address = result.pictures.recovered;
  byId("recovered").hidden = !address;
  byId("nothing").hidden = Boolean(address);
  byId("nothing").textContent = "The attack does not apply";
  if (address) put("recovered", address, `What the attack recovered: ${result.level}, ${decibel(result.psnr)}.`);
  byId("recovered-note").textContent = result.psnr === null ? "nothing" : `${decibel(result.psnr)}, SSIM ${result.ssim.toFixed(2)}`;
}

/* The curve --------------------------------------------------------------------------------- */

async function trace() {
  if (current?.traces) return cancel();
  const base = wanted();
  const runs = GAMMAS.flatMap((gamma) => TRACED.map((name) => ({ ...base, attack: name, steps: null, defence: defenceText("mjp", gamma) })));
  const own = begin();
  own.traces = true;
  say("Tracing the curve.");
  try {
    for (const [place, request] of runs.entries()) {
      const job = await runJob(own, request, ({ progress }) => {
        byId("bar").value = (place + progress) / runs.length;
        byId("stage").textContent = `Tracing: run ${place + 1} of ${runs.length}`;
        byId("trace").textContent = `Stop tracing (${place + 1} of ${runs.length})`;
      });
      if (!job) return;
      if (job.state !== "done") throw new Error(job.message);
      chart.add(chartKey(request), job.attack, gammaOf(job.defence), job.result);
    }
    say("The curve is traced.");
  } catch (error) {
    if (!own.stopped) problem(error.message);
  } finally {
    finish(own);
  }
}

/* Changes ----------------------------------------------------------------------------------- */

function changed() {
  if (byId("choices").elements.picture.value === "") return;
  problem(null);
  showWords();
  const request = wanted();
  chart.now = isGamma() ? amount() : byId("defence").value === "none" ? 0 : null;
  chart.turnTo(chartKey(request));
  byId("outcome").classList.add("stale");
  later("draw", DRAW_MILLISECONDS, drawPreview);
  stop();
  if (attack().kind === "closed") later("run", RUN_MILLISECONDS, run);
  else clearTimeout(timers.run);
}

function listen() {
  byId("defence").addEventListener("change", () => { showDefence(); changed(); });
  byId("amount").addEventListener("input", () => { showAmount(fromSlider(byId("amount").valueAsNumber, defence().number)); changed(); });
  byId("amount-number").addEventListener("input", () => {
    const value = amount();
    byId("amount").value = toSlider(value, defence().number);
    byId("amount").setAttribute("aria-valuetext", shortest(value));
    changed();
  });
  byId("amount-number").addEventListener("change", () => showAmount(amount()));
  for (const id of ["attack", "model"]) byId(id).addEventListener("change", changed);
  for (const id of ["rounds", "steps", "seed"]) byId(id).addEventListener("change", changed);
  byId("choices").addEventListener("submit", (event) => { event.preventDefault(); problem(null); run(); });
  byId("cancel").addEventListener("click", () => { cancel(); byId("run").focus(); });
  byId("trace").addEventListener("click", trace);
  byId("alert").querySelector("button").addEventListener("click", () => problem(null));
  addEventListener("pagehide", () => { if (current?.id) drop(`/api/jobs/${current.id}`, true); chooser.leave(); });
  addEventListener("pageshow", (event) => event.persisted && location.reload());
}

async function start() {
  options = await ask("/api/options");
  const { limits } = options;
  fill(byId("model"), options.models, (one) => one.label);
  fill(byId("defence"), options.defences, (one) => one.label);
  fillAttacks();
  byId("defence").value = "mjp";
  byId("rounds").max = limits.rounds;
  byId("steps").max = limits.steps;
  byId("version").textContent = `mjp ${options.version}`;
  byId("kept").textContent = `An uploaded picture is shrunk, loses its metadata, and is held in the server's memory for ${Math.round(limits.idle_seconds / 60)} minutes at most after it was last used.`;
  chooser = new Chooser(options.samples, limits, { chosen: changed, problem, say });
  chart = new Chart(byId("chart"), byId("legend"), byId("table"));
  showDefence();
  listen();
  changed();
}

start().catch((error) => problem(error.message));
