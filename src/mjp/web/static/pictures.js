// The picture chooser: samples as radio buttons; upload by button, by dropping and by pasting.

import { ask, drop } from "/static/api.js";

const byId = (id) => document.getElementById(id);
const NAMES = { "image/png": "PNG", "image/jpeg": "JPEG", "image/webp": "WebP" };

export class Chooser {
  /** @param hooks.chosen is called with nothing when another picture was chosen;
   *  @param hooks.problem with a sentence; @param hooks.say with a sentence for screen readers. */
  constructor(samples, limits, hooks) {
    this.limits = limits;
    this.hooks = hooks;
    this.uploaded = null;
    for (const sample of samples) this.#add(sample.name, sample.label);
    byId("samples").querySelector("input").checked = true;
    byId("samples").addEventListener("change", () => hooks.chosen());
    const names = limits.formats.map((kind) => NAMES[kind] ?? kind);
    const kinds = `${names.slice(0, -1).join(", ")} or ${names.at(-1)}`;
    this.kinds = kinds;
    byId("upload-hint").textContent =
      `${kinds}, up to ${limits.upload_bytes / 1e6} MB. Or drop or paste one here.`;
    byId("file").addEventListener("change", (event) => this.#take(event.target.files));
    this.#listen();
  }

  get name() {
    return byId("choices").elements.picture.value;
  }

  get label() {
    return byId("samples").querySelector("input:checked ~ span").textContent;
  }

  /** Forgets the upload, here and on the server. */
  leave() {
    if (this.uploaded) drop(`/api/pictures/${this.uploaded}`, true);
    this.uploaded = null;
  }

  #add(name, label) {
    const choice = document.createElement("label");
    const radio = Object.assign(document.createElement("input"), { type: "radio", name: "picture", value: name });
    const image = Object.assign(document.createElement("img"), { alt: "", width: 84, height: 84, src: `/api/pictures/${name}?side=168` });
    const text = document.createElement("span");
    text.textContent = label;
    choice.className = "sample";
    choice.append(radio, image, text);
    byId("samples").append(choice);
    return { choice, radio };
  }

  #listen() {
    let depth = 0;
    const holds = (event) => event.dataTransfer?.types.includes("Files");
    const shown = (value) => document.body.classList.toggle("dropping", value);
    addEventListener("dragenter", (event) => holds(event) && shown(++depth > 0));
    addEventListener("dragleave", (event) => holds(event) && shown(--depth > 0));
    addEventListener("dragover", (event) => holds(event) && event.preventDefault());
    addEventListener("drop", (event) => {
      if (!holds(event)) return;
      event.preventDefault();
      depth = 0;
      shown(false);
      this.#take(event.dataTransfer.files);
    });
    addEventListener("paste", (event) => {
      const files = [...(event.clipboardData?.files ?? [])];
      if (files.length) this.#take(files);
    });
  }

  #refusal(file) {
    const { upload_bytes: most, formats } = this.limits;
    if (file.size > most)
      return `The file has ${(file.size / 1e6).toFixed(1)} MB; at most ${most / 1e6} MB are taken.`;
    if (file.size === 0) return "The file is empty.";
    if (file.type && !formats.includes(file.type))
      return `${file.name || "The file"} is no ${this.kinds} picture.`;
    return null;
  }

  async #take(files) {
    const [file] = files;
    byId("file").value = ""; // So that the same file can be chosen again.
    if (!file) return;
    const refusal = this.#refusal(file);
    if (refusal) return this.hooks.problem(refusal);
    const place = document.querySelector(".upload");
    place.classList.add("busy");
    this.hooks.say("Uploading the picture.");
    try {
      const { id } = await ask("/api/pictures", { method: "POST", body: file });
      this.#show(id);
      this.hooks.say("The picture was uploaded.");
      this.hooks.chosen();
    } catch (error) {
      this.hooks.problem(error.message);
    } finally {
      place.classList.remove("busy");
    }
  }

  #show(id) {
    this.leave();
    this.uploaded = id;
    byId("samples").querySelector(".own")?.remove();
    const { choice, radio } = this.#add(id, "Your picture");
    choice.classList.add("own");
    byId("samples").prepend(choice);
    radio.checked = true;
    byId("samples").scrollLeft = 0;
  }
}
