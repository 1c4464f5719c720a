// Builds elements. Text from records only ever becomes text, never markup.

export function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value === true) made.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) made.setAttribute(name, value);
  }
  made.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return made;
}

export function drawing(tag, attributes = {}, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

const SYMBOLS = {
  running: "▶", finished: "✓", failed: "✗", interrupted: "‖", lost: "?", unreadable: "!", unfinished: "…",
};

export function badge(state) {
  // A symbol and a word, so that nothing depends on seeing a colour.
  const known = Object.hasOwn(SYMBOLS, state) ? state : "other";
  return element("span", { class: `badge ${known}` }, `${SYMBOLS[state] ?? ""} ${state}`.trim());
}

export async function ask(path, options = {}) {
  const answer = await fetch(path, options);
  const content = await answer.json();
  if (!answer.ok) throw new Error(content.error ?? `error ${answer.status}`);
  return content;
}
