// Offers what a running run can be asked for: more workers, its next phase, its end.
import { ask, element } from "/dom.js";

const CONFIRM_MS = 6000;

export function actionPanel(id, signal) {
  const said = element("span", { role: "status", class: "note" });

  async function request(action, settings) {
    try {
      const answer = await ask(`/api/runs/${id}/${action}`, {
        method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(settings), signal,
      });
      said.textContent = answer.done;
    } catch (error) {
      if (!signal.aborted) said.textContent = error.message;
    }
  }

  const forms = { scale: scaleForm(request), switch: twice("switch now", () => request("switch", {})), stop: twice("stop", () => request("stop", {})) };
  const panel = element("div", { class: "actions", hidden: true }, Object.values(forms), said);
  return {
    panel,
    // What was said stays when nothing is offered any more: it may be the reason.
    offer(names) {
      for (const [name, form] of Object.entries(forms)) form.hidden = !names.includes(name);
      panel.hidden = !names.length && !said.textContent;
    },
  };
}

function scaleForm(request) {
  const number = element("input", { type: "number", min: "1", required: true, "aria-label": "number of workers", name: "workers" });
  return element("form", {
    onsubmit: (event) => {
      event.preventDefault();
      request("scale", { workers: Number(number.value) });
    },
  }, element("label", {}, "workers ", number), " ", element("button", {}, "scale"));
}

// A button that acts at its second press, as nothing brings back what the first one would end.
function twice(name, act) {
  let timer = null;
  const button = element("button", {
    type: "button", onclick: () => {
      if (timer === null) {
        button.textContent = `${name}: press again`;
        timer = setTimeout(calm, CONFIRM_MS);
      } else {
        calm();
        act();
      }
    },
  }, name);

  function calm() {
    clearTimeout(timer);
    timer = null;
    button.textContent = name;
  }

  return button;
}
