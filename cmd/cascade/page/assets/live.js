// The page is complete without this. With it, the content is fetched again when the server
// says that it is another one.
"use strict";
(() => {
  const status = document.getElementById("live");
  const busy = () => {
    const main = document.getElementById("main");
    const at = document.activeElement;
    const selected = document.getSelection();
    return (at && main.contains(at) && at.matches("input, select")) || (selected && !selected.isCollapsed && main.contains(selected.anchorNode));
  };
  let waiting = false;
  const load = async () => {
    if (busy()) { // nobody's typing or copying is disturbed
      waiting = true;
      status.textContent = "There is news: reload the page.";
      return;
    }
    waiting = false;
    const answer = await fetch(location.href, { headers: { Accept: "text/html" }, cache: "no-store" });
    if (!answer.ok) {
      status.textContent = "Cannot update: the server answers " + answer.status + ". Reload the page.";
      return;
    }
    const next = new DOMParser().parseFromString(await answer.text(), "text/html").getElementById("main");
    const main = document.getElementById("main");
    if (!next) return;
    const open = [...main.querySelectorAll("details")].map((d) => d.open);
    const links = [...main.querySelectorAll("a")];
    const href = document.activeElement && document.activeElement.getAttribute("href");
    const place = links.filter((a) => a.getAttribute("href") === href).indexOf(document.activeElement);
    main.replaceChildren(...next.childNodes);
    main.querySelectorAll("details").forEach((d, i) => { d.open = open[i] || false; });
    if (href && place >= 0) {
      const same = [...main.querySelectorAll("a")].filter((a) => a.getAttribute("href") === href)[place];
      if (same) same.focus({ preventScroll: true });
    }
    status.textContent = "";
  };
  const update = () => load().catch(() => { status.textContent = "Cannot update: the server does not answer."; });
  const source = new EventSource(document.body.dataset.live);
  source.addEventListener("changed", update);
  source.addEventListener("unread", () => { status.textContent = "The tier cannot be read now: what is shown may be old."; });
  source.addEventListener("ended", () => {
    source.close();
    status.textContent = "No more updates: reload the page.";
  });
  source.onerror = () => { status.textContent = "Not connected: what is shown may be old."; };
  source.onopen = () => { if (!waiting) status.textContent = ""; };
  document.addEventListener("focusout", () => { if (waiting) setTimeout(() => { if (waiting && !busy()) update(); }, 300); });
  addEventListener("pagehide", () => source.close());
})();
