"use strict";
// Everything here adds to pages that also work without it: times, charts, the live tail, shortcuts.
(() => {
  const all = (selector, root = document) => Array.from(root.querySelectorAll(selector));

  // -- times in the reader's zone; relative, exact on hover --------------------------------------------
  const pad = (n, width = 2) => String(n).padStart(width, "0");
  const exact = (ms) => {
    const d = new Date(ms);
    return `${d.getFullYear()}-${pad(d.getMonth() + 1)}-${pad(d.getDate())} ${pad(d.getHours())}:${pad(d.getMinutes())}:${pad(d.getSeconds())}`;
  };
  const relative = (ms) => {
    const seconds = Math.round((Date.now() - ms) / 1000);
    const size = Math.abs(seconds);
    const text = size < 60 ? `${size} s` : size < 5400 ? `${Math.round(size / 60)} min` : size < 129600 ? `${Math.round(size / 3600)} h` : `${Math.round(size / 86400)} d`;
    return seconds < 0 ? `in ${text}` : `${text} ago`;
  };
  const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
  const tellTimes = (root) => all("time[data-ms]", root).forEach((time) => {
    const ms = Number(time.dataset.ms);
    const here = exact(ms) + "." + pad(new Date(ms).getMilliseconds(), 3);
    time.textContent = time.classList.contains("exact") ? here : relative(ms);
    time.title = `${here} (${zone}); ${new Date(ms).toISOString()}`;
  });
  const tellZone = (root) => all("[data-zone]", root).forEach((input) => { input.value = String(new Date().getTimezoneOffset()); });

  // -- charts ------------------------------------------------------------------------------------------
  let hours = 1;
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const short = (v) => v == null ? "?" : v >= 1e9 ? (v / 1e9).toFixed(1) + "G" : v >= 1e6 ? (v / 1e6).toFixed(1) + "M" : v >= 1e4 ? (v / 1e3).toFixed(0) + "k" : v >= 100 ? v.toFixed(0) : String(Math.round(v * 100) / 100);
  const drawn = new Map();
  const draw = async (box) => {
    const names = box.dataset.series.split("|");
    const query = names.map((name) => "series=" + encodeURIComponent(name)).join("&");
    let body;
    try {
      const answer = await fetch(`/chart.json?${query}&hours=${hours}`, { headers: { accept: "application/json" } });
      if (!answer.ok) return;
      body = await answer.json();
    } catch { return; }
    const old = drawn.get(box);
    if (old) old.destroy();
    box.replaceChildren();
    if (body.times.length < 2) {
      const text = document.createElement("span");
      text.className = "nothing";
      text.textContent = "Collecting figures; the first line shows within half a minute.";
      box.append(text);
      drawn.delete(box);
      return;
    }
    const labels = box.dataset.labels.split("|");
    const axis = { stroke: colour("--dim"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false }, font: "11px system-ui" };
    const now = Date.now() / 1000;
    const share = box.dataset.unit === "share";
    const shown = share ? (v) => Math.round(v * 100) + " %" : short;
    drawn.set(box, new uPlot({
      width: box.clientWidth, height: 150, legend: { show: false }, cursor: { drag: { x: false, y: false } },
      scales: { x: { range: [Math.max(now - hours * 3600, Math.min(body.times[0], now - 600)), now] }, y: { range: (u, low, high) => share ? [0, 1] : [0, Math.max(1e-9, high || 1) * 1.1] } },
      axes: [{ ...axis, size: 26, space: 70, values: (u, splits) => splits.map((t) => { const d = new Date(t * 1000); return `${pad(d.getHours())}:${pad(d.getMinutes())}`; }) }, { ...axis, size: 46, values: (u, values) => values.map(shown) }],
      series: [{}, ...labels.map((label, i) => ({ label, stroke: colour(`--chart${i + 1}`), width: 1.6, points: { show: false }, spanGaps: true, fill: i ? undefined : colour("--chart1") + "18" }))],
    }, [body.times, ...body.values], box));
  };
  const drawAll = () => all(".chart[data-series]").forEach(draw);

  // -- parts that refresh themselves --------------------------------------------------------------------
  const refresh = () => all("[data-refresh]").forEach((part) => {
    if (part.dataset.timed) return;
    part.dataset.timed = "1";
    setTimeout(async () => {
      delete part.dataset.timed;
      if (document.hidden || !part.isConnected) { refresh(); return; }
      try {
        const answer = await fetch(location.href, { headers: { accept: "text/html" } });
        const fresh = new DOMParser().parseFromString(await answer.text(), "text/html").getElementById(part.id);
        if (fresh) { part.replaceWith(fresh); ready(fresh.parentElement); }
      } catch { refresh(); }
    }, Number(part.dataset.refresh) * 1000);
  });

  // -- search while typing, through htmx ------------------------------------------------------------------
  const liveSearch = (root) => all("form[data-live-search]", root).forEach((form) => {
    const input = form.querySelector("input[type=search]");
    if (input.hasAttribute("hx-get")) return;
    input.setAttribute("hx-get", location.pathname);
    input.setAttribute("hx-trigger", "input changed delay:250ms");
    input.setAttribute("hx-include", "closest form");
    input.setAttribute("hx-target", form.dataset.liveSearch);
    input.setAttribute("hx-select", form.dataset.liveSearch);
    input.setAttribute("hx-swap", "outerHTML");
    input.setAttribute("hx-replace-url", "true");
    if (window.htmx) htmx.process(input);
  });

  // -- live tail ----------------------------------------------------------------------------------------------
  const ROWS_MAX = 500;
  const startTail = (box) => {
    const rows = document.getElementById("tail-rows"), state = document.getElementById("tail-state");
    const pause = document.getElementById("pause"), empty = document.getElementById("tail-empty");
    let source = null, skipped = 0, arrived = [];
    const say = (text, kind) => { state.textContent = text; state.className = "pill " + kind; };
    const cell = (row, text, kind) => { const td = row.insertCell(); td.textContent = text; if (kind) td.className = kind; return td; };
    const show = (event) => {
      const body = JSON.parse(event.data);
      skipped += body.skipped;
      arrived.push([Date.now(), body.arrived]);
      const made = document.createDocumentFragment();
      for (const one of body.rows.reverse()) {
        const row = document.createElement("tr");
        const first = document.createElement("a");
        first.href = one.href;
        first.textContent = exact(one.at).slice(11) + "." + pad(one.at % 1000, 3);
        row.insertCell().append(first);
        cell(row, one.queue, "mono"); cell(row, one.offset, "num"); cell(row, one.tags); cell(row, one.keys, "mono"); cell(row, one.body, "mono body");
        made.append(row);
      }
      rows.prepend(made);
      while (rows.rows.length > ROWS_MAX) rows.deleteRow(-1);
      document.getElementById("tail-skipped").textContent = skipped.toLocaleString();
      empty.hidden = rows.rows.length > 0;
    };
    const rate = () => {
      const since = Date.now() - 5000;
      arrived = arrived.filter(([at]) => at > since);
      document.getElementById("tail-rate").textContent = Math.round(arrived.reduce((sum, [, n]) => sum + n, 0) / 5).toLocaleString();
    };
    const open = () => {
      source = new EventSource(box.dataset.stream);
      source.onopen = () => say("live", "good");
      source.onerror = () => { if (source.readyState === EventSource.CLOSED) say("cannot follow", "bad"); else say("connecting again…", "warn"); };
      source.addEventListener("rows", show);
      source.addEventListener("trouble", (event) => { say(JSON.parse(event.data).error, "bad"); source.close(); });
    };
    pause.addEventListener("click", () => {
      const paused = pause.getAttribute("aria-pressed") !== "true";
      pause.setAttribute("aria-pressed", String(paused));
      pause.textContent = paused ? "Go on" : "Pause";
      if (paused) { source.close(); say("paused", "warn"); } else open();
    });
    setInterval(rate, 1000);
    window.addEventListener("pagehide", () => source.close());
    open();
  };

  // -- keyboard, theme ------------------------------------------------------------------------------------------
  let waiting = "";
  document.addEventListener("keydown", (event) => {
    const typing = event.target.closest("input, textarea, select, [contenteditable]");
    if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "/") { const box = document.querySelector("[data-shortcut='/']"); if (box) { event.preventDefault(); box.focus(); box.select(); } return; }
    if (event.key === "?") { document.getElementById("keys").showModal(); return; }
    if (event.key === "g") { waiting = "g"; setTimeout(() => { waiting = ""; }, 1000); return; }
    if (waiting === "g") { const target = document.querySelector(`[data-keys="g ${CSS.escape(event.key)}"]`); waiting = ""; if (target) target.click(); }
  });
  const setTheme = () => {
    const root = document.documentElement;
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
    document.cookie = `theme=${root.dataset.theme}; path=/; max-age=31536000; samesite=strict`;
    drawAll();
  };

  const ready = (root) => { tellTimes(root); tellZone(root); liveSearch(root); refresh(); };
  ready(document);
  drawAll();
  const named = document.getElementById("zone");
  if (named) named.textContent = `Times in ${zone}`;
  // On a narrow screen the menu is a row that scrolls: show where we are.
  const here = document.querySelector("#nav [aria-current]");
  if (here) here.parentElement.scrollLeft = here.offsetLeft - here.parentElement.offsetLeft - 40;
  document.getElementById("theme")?.addEventListener("click", setTheme);
  document.getElementById("help")?.addEventListener("click", () => document.getElementById("keys").showModal());
  all("[data-hours]").forEach((button) => button.addEventListener("click", () => {
    hours = Number(button.dataset.hours);
    all("[data-hours]").forEach((one) => one.setAttribute("aria-pressed", String(one === button)));
    drawAll();
  }));
  all("[data-all]").forEach((box) => box.addEventListener("change", () => all("input[name=id]", box.closest("table")).forEach((one) => { one.checked = box.checked; })));
  const tail = document.getElementById("tail");
  if (tail) startTail(tail);
  document.body.addEventListener("htmx:afterSwap", () => ready(document));
  setInterval(() => tellTimes(document), 10000);
  setInterval(() => { if (!document.hidden) drawAll(); }, 15000);
})();
