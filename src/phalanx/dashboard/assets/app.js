// The page: routes, streams of data, keys and theme.
import { actionPanel } from "/actions.js";
import { arrange, fill, retint } from "/blocks.js";
import { forget, redraw } from "/charts.js";
import { badge, element } from "/dom.js";
import { RunList } from "/list.js";
import { logPanel } from "/logs.js";

const root = document.getElementById("view");
const connection = document.getElementById("connection");
let stream = null;
let list = null;
let leaving = new AbortController();

// The token is not kept in the address, where others might read it.
if (location.search) history.replaceState(null, "", location.pathname + location.hash);

function listen(path, take) {
  stream?.close();
  connection.textContent = "";
  stream = new EventSource(path);
  stream.onmessage = (event) => {
    connection.textContent = "";
    take(JSON.parse(event.data));
  };
  stream.onerror = () => {
    const refused = stream.readyState === EventSource.CLOSED;
    connection.textContent = refused ? "not available" : "connection lost, trying again";
    if (refused) explain(path, leaving.signal);
  };
}

// Asks why a stream was refused.
async function explain(path, signal) {
  const answer = await fetch(path, { signal }).catch(() => null);
  if (answer && !answer.ok) {
    const content = await answer.json().catch(() => ({}));
    connection.textContent = content.error ?? "not available: open the link that the command printed";
  }
  await answer?.body?.cancel().catch(() => null);
}

function showList() {
  document.title = "Phalanx";
  list = new RunList(root);
  listen("/api/library", (message) => {
    list?.take(message);
    root.dataset.ready = "list";
  });
}

function showView(kind, ids) {
  const title = element("h1");
  const state = element("span", { class: "state" });
  const contents = element("ol");
  const body = element("div");
  const places = new Map();
  const { signal } = leaving;
  const actions = actionPanel(ids, signal);
  root.replaceChildren(
    element("nav", { "aria-label": "place" }, element("a", { href: "#/" }, "all runs")),
    element("div", { class: "title" }, title, state),
    actions.panel,
    element("nav", { "aria-label": "contents", class: "contents" }, contents),
    body,
    kind === "run" ? logPanel(ids, signal) : "");
  listen(`/api/views/${kind}/${ids}`, (message) => {
    title.textContent = message.title;
    document.title = `${message.title} · Phalanx`;
    state.replaceChildren(...(message.state ? [badge(message.state)] : []));
    actions.offer(message.actions);
    for (const section of message.sections) {
      if (!places.has(section.id)) {
        places.set(section.id, element("section", { id: `part-${section.id}`, tabindex: "-1" },
          element("h2"), element("div", { class: "body" })));
      }
    }
    const order = message.order.filter((id) => places.has(id));
    arrange(body, order.map((id) => places.get(id)));
    for (const section of message.sections) fill(places.get(section.id), section);
    contents.replaceChildren(...order.map((id) => element("li", {}, element("a", {
      href: `#part-${id}`, onclick: (event) => {
        event.preventDefault();
        places.get(id).scrollIntoView();
        places.get(id).focus({ preventScroll: true });
      },
    }, places.get(id).querySelector("h2").textContent))));
    root.dataset.ready = kind;
  });
}

function route() {
  const [, kind, ids] = location.hash.split("/");
  leaving.abort();
  leaving = new AbortController();
  forget(root);
  delete root.dataset.ready;
  list = null;
  if (["run", "compare", "study", "plan"].includes(kind) && /^[0-9a-f,]+$/.test(ids ?? "")) showView(kind, ids);
  else showList();
  root.focus({ preventScroll: true });
  scrollTo(0, 0);
}

const THEMES = ["", "dark", "light"];

function setTheme(theme) {
  if (theme) document.documentElement.dataset.theme = theme;
  else delete document.documentElement.dataset.theme;
  document.getElementById("theme").textContent = `Theme: ${theme || "system"}`;
  recolour();
}

function recolour() {
  retint(root);
  redraw();
}

function nextTheme() {
  const now = THEMES.indexOf(document.documentElement.dataset.theme ?? "");
  const theme = THEMES[(now + 1) % THEMES.length];
  localStorage.setItem("phalanx-theme", theme);
  setTheme(theme);
}

const keys = document.getElementById("keys");
document.getElementById("help").addEventListener("click", () => keys.showModal());
document.getElementById("theme").addEventListener("click", nextTheme);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", recolour);

document.addEventListener("keydown", (event) => {
  const typing = event.target.closest("input:not([type=checkbox]), select, textarea, dialog");
  if (event.key === "Escape" && event.target === list?.search) root.focus();
  if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
  if (list?.press(event.key)) event.preventDefault();
  else if (event.key === "?") keys.showModal();
  else if (event.key === "l") location.hash = "#/";
  else if (event.key === "t") nextTheme();
});

addEventListener("hashchange", route);
setTheme(localStorage.getItem("phalanx-theme") ?? "");
route();
