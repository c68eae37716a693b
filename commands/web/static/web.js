"use strict";
// Refreshes the parts of a page that change, every two seconds while it is shown. Without it, load the page again.
async function refresh(part) {
  const answer = await fetch(part.dataset.refresh, { headers: { "If-None-Match": part.dataset.tag || "" } });
  if (answer.status === 304) return; // nothing has changed
  if (!answer.ok) throw new Error(answer.statusText);
  const fresh = new DOMParser().parseFromString(await answer.text(), "text/html").body;
  part.dataset.tag = answer.headers.get("ETag");
  keep(part, fresh);
  const before = [...part.children];
  const after = [...fresh.children];
  // What has not changed stays, with its focus, its selection and its scroll.
  if (before.map((child) => child.id).join() !== after.map((child) => child.id).join()) part.replaceChildren(...after);
  else before.forEach((child, index) => child.isEqualNode(after[index]) || swap(child, after[index]));
}

// Gives new elements what the reader has chosen in those before them.
function keep(part, fresh) {
  for (const box of part.querySelectorAll("input[type=checkbox]")) {
    const next = [...fresh.querySelectorAll("input[type=checkbox]")].find((other) => other.value === box.value);
    if (next) next.toggleAttribute("checked", box.checked);
  }
  for (const folded of part.querySelectorAll("details[id]"))
    fresh.querySelector(`#${CSS.escape(folded.id)}`)?.toggleAttribute("open", folded.open);
}

function swap(old, fresh) {
  const focused = old.contains(document.activeElement) ? document.activeElement.id : "";
  const places = [...old.querySelectorAll("pre[id]")].map((text) => [text.id, text.scrollTop]);
  old.replaceWith(fresh);
  for (const [id, top] of places) {
    const text = document.getElementById(id);
    if (text) text.scrollTop = top;
  }
  if (focused) document.getElementById(focused)?.focus({ preventScroll: true });
}

// Marks the title and the icon of a page whose run has ended while it was open, also in the background.
function notice() {
  const state = document.querySelector("#state[data-running]");
  if (!state) return;
  const running = state.dataset.running === "yes";
  if (wasRunning && !running) {
    document.title = `${state.dataset.word}: ${document.title}`;
    const icon = document.head.appendChild(Object.assign(document.createElement("link"), { rel: "icon" }));
    const colour = state.dataset.word === "finished" ? "%23067647" : "%23b42318";
    icon.href = `data:image/svg+xml,<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 8 8'><circle cx='4' cy='4' r='4' fill='${colour}'/></svg>`;
  }
  wasRunning = running;
}

// Shows the command and the forecast of the form as it is filled in. One question at a time: a forecast takes seconds.
const form = document.getElementById("options");
const preview = document.getElementById("preview");
let previewed = null;

async function look() {
  const chosen = new URLSearchParams(new FormData(form)).toString();
  if (!document.hidden && (chosen !== previewed || preview.querySelector("[data-pending]"))) {
    try {
      const answer = await fetch(`${preview.dataset.preview}?${chosen}`);
      const fresh = new DOMParser().parseFromString(await answer.text(), "text/html").body;
      if (answer.ok && fresh.innerHTML !== preview.innerHTML) preview.replaceChildren(...fresh.childNodes);
      preview.hidden = !answer.ok;
      previewed = chosen;
    } catch {
      preview.hidden = true; // the server has ended, which the page says
    }
  }
  setTimeout(look, 700);
}

if (preview) look();

let wasRunning = false;
let rounds = 0;
const ROUNDS_HIDDEN = 15; // in the background a page asks every 30 seconds

async function refreshAll() {
  notice();
  rounds += 1;
  try {
    if (!document.hidden || rounds % ROUNDS_HIDDEN === 0) await Promise.all([...document.querySelectorAll("[data-refresh]")].map(refresh));
    notice();
    document.getElementById("away").hidden = true;
  } catch {
    document.getElementById("away").hidden = false;
  }
  setTimeout(refreshAll, 2000);
}

setTimeout(refreshAll, 2000);
