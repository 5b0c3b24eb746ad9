"use strict";
// The page is complete without this. It replaces the sections that change, counts
// ages on, and copies commands.

function span(ms) {
  const s = Math.max(0, Math.floor(ms / 1000)), two = (n) => String(n).padStart(2, "0");
  if (s < 60) return s + "s";
  if (s < 3600) return Math.floor(s / 60) + "m" + two(s % 60) + "s";
  if (s < 86400) return Math.floor(s / 3600) + "h" + two(Math.floor(s / 60) % 60) + "m";
  return Math.floor(s / 86400) + "d" + two(Math.floor(s / 3600) % 24) + "h";
}

function tick() {
  for (const t of document.querySelectorAll("time.age")) t.textContent = span(Date.now() - Date.parse(t.dateTime));
}

function ready(root) {
  for (const b of root.querySelectorAll("button.copy")) b.hidden = false;
}

document.addEventListener("click", async (e) => {
  const button = e.target.closest("button.copy");
  if (!button) return;
  const text = button.parentElement.querySelector("code").textContent;
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {
    getSelection().selectAllChildren(button.parentElement.querySelector("code"));
    button.textContent = "Marked: copy it";
  }
});

const events = new EventSource("events");
events.onmessage = (e) => {
  for (const [id, html] of Object.entries(JSON.parse(e.data))) {
    const section = document.getElementById(id);
    const open = section.querySelector("details")?.open;
    const focus = section.contains(document.activeElement) ? [...section.querySelectorAll("a, button, summary")].indexOf(document.activeElement) : -1;
    section.innerHTML = html;
    if (open) section.querySelector("details")?.setAttribute("open", "");
    if (focus >= 0) section.querySelectorAll("a, button, summary")[focus]?.focus();
    ready(section);
  }
  tick();
};
events.onerror = () => {
  if (!document.querySelector("#cut")) document.querySelector("#summary").insertAdjacentHTML("beforeend", '<p id="cut" class="bad">The server of this page does not answer; what is shown is old.</p>');
};
events.onopen = () => document.querySelector("#cut")?.remove();

ready(document);
setInterval(tick, 1000);
