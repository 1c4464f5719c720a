// Shows the output of a process, and what is appended to it.
import { ask, element } from "/dom.js";

const LIMIT = 200000;
const EVERY_MS = 2000;

export function logPanel(id, signal) {
  const choice = element("select", { "aria-label": "process" });
  const text = element("pre", { tabindex: "0", "aria-label": "output of the process" });
  const details = element("details", { class: "logs" }, element("summary", {}, "Output of processes"),
    element("label", {}, "process ", choice), text);
  let offset = null;
  let timer = null;

  async function read() {
    clearTimeout(timer);
    if (!details.open || signal.aborted || !choice.value) return;
    const name = choice.value;
    const query = offset === null ? "" : `?offset=${offset}`;
    try {
      const piece = await ask(`/api/runs/${id}/logs/${encodeURIComponent(name)}${query}`, { signal });
      if (name !== choice.value) return;
      const follows = text.scrollTop + text.clientHeight >= text.scrollHeight - 8;
      const before = piece.is_new_file ? "" : text.textContent;
      if (piece.text || piece.is_new_file) text.textContent = (before + piece.text).slice(-LIMIT);
      offset = piece.next;
      if (follows) text.scrollTop = text.scrollHeight;
    } catch (error) {
      if (signal.aborted) return;
      text.textContent = error.message;
    }
    timer = setTimeout(read, EVERY_MS);
  }

  async function list() {
    const names = await ask(`/api/runs/${id}/logs`, { signal }).catch(() => []);
    const chosen = choice.value;
    choice.replaceChildren(...names.map((name) => element("option", { value: name }, name)));
    if (names.includes(chosen)) choice.value = chosen;
    if (!names.length) text.textContent = "This run has no output of processes.";
  }

  choice.addEventListener("change", () => { offset = null; text.textContent = ""; read(); });
  details.addEventListener("toggle", async () => { if (details.open) { await list(); read(); } });
  return details;
}
