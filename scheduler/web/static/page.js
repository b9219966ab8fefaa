// Everything works without this: it copies commands, and asks for the page again, whose live parts it then replaces.
"use strict";
(() => {
  const REFRESH_MS = 15000;
  const EVENTS_MS = 1500; // and up to as much again, so that not all who watch a run ask for the page at once
  const root = document.documentElement;
  const connection = document.getElementById("connection");
  root.classList.add("js");

  document.addEventListener("click", async (event) => {
    const button = event.target.closest("button[data-copy]");
    if (!button) return;
    const line = document.getElementById(button.dataset.copy);
    getSelection().selectAllChildren(line);
    try {
      await navigator.clipboard.writeText(line.textContent);
    } catch {
      document.execCommand("copy"); // where the page did not come over HTTPS
    }
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = "Copy"; }, 2000);
  });

  function isInUse(part) {
    const selection = getSelection();
    return !selection.isCollapsed && part.contains(selection.anchorNode);
  }

  function replace(part, fresh) {
    if (part.innerHTML === fresh.innerHTML || isInUse(part)) return;
    const focused = part.contains(document.activeElement) ? document.activeElement : null;
    const selector = focused && (focused.id ? `#${CSS.escape(focused.id)}` : `a[href="${CSS.escape(focused.getAttribute("href") ?? "")}"]`);
    const scrolled = [...part.querySelectorAll(".scroll")].map((one) => one.scrollLeft);
    part.innerHTML = fresh.innerHTML;
    [...part.querySelectorAll(".scroll")].forEach((one, at) => { one.scrollLeft = scrolled[at] ?? 0; });
    if (selector) part.querySelector(selector)?.focus({ preventScroll: true });
  }

  async function refresh() {
    let answer;
    try {
      answer = await fetch(location.href, { headers: { Accept: "text/html" } });
    } catch {
      connection.textContent = "The service does not answer: what is shown may be old. Trying again.";
      connection.hidden = false;
      return;
    }
    if (answer.redirected) location.reload(); // to sign in
    if (!answer.ok) return;
    connection.hidden = true;
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
    for (const part of document.querySelectorAll("[data-live]")) {
      const other = fresh.getElementById(part.id);
      if (other) replace(part, other);
    }
    const status = fresh.getElementById("status");
    const shown = document.getElementById("status");
    if (status && shown && status.textContent !== shown.textContent) shown.textContent = status.textContent;
  }

  function follow(url) {
    const events = new EventSource(url);
    let due = null;
    const look = async () => { due = null; if (!document.hidden) await refresh(); };
    const soon = () => { due ??= setTimeout(look, EVENTS_MS * (1 + Math.random())); };
    for (const kind of ["state", "progress", "partition"]) events.addEventListener(kind, soon);
    events.addEventListener("state", (event) => {
      if (!["queued", "running", "cancelling"].includes(JSON.parse(event.data).state)) events.close();
    });
  }

  const followed = document.querySelector("[data-events]");
  if (followed) follow(followed.dataset.events);
  if (document.querySelector("[data-live]")) {
    setInterval(() => { if (!document.hidden) refresh(); }, REFRESH_MS);
    document.addEventListener("visibilitychange", () => { if (!document.hidden) refresh(); });
  }
})();
