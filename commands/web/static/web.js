"use strict";
// Refreshes the parts of a page that change, every two seconds while it is shown. Without it, load the page again.
async function refresh(part) {
  const answer = await fetch(part.dataset.refresh, { headers: { "If-None-Match": part.dataset.tag || "" } });
  if (answer.status === 304) return; // nothing has changed
  if (!answer.ok) throw new Error(answer.statusText);
  const fresh = new DOMParser().parseFromString(await answer.text(), "text/html").body.childNodes;
  const checked = new Set([...part.querySelectorAll("input:checked")].map((box) => box.value));
  const focused = part.contains(document.activeElement) ? document.activeElement.id : "";
  part.dataset.tag = answer.headers.get("ETag");
  part.replaceChildren(...fresh);
  for (const box of part.querySelectorAll("input[type=checkbox]")) box.checked = checked.has(box.value);
  if (focused) document.getElementById(focused)?.focus();
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
