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

async function refreshAll() {
  try {
    if (!document.hidden) await Promise.all([...document.querySelectorAll("[data-refresh]")].map(refresh));
    document.getElementById("away").hidden = true;
  } catch {
    document.getElementById("away").hidden = false;
  }
  setTimeout(refreshAll, 2000);
}

setTimeout(refreshAll, 2000);
