// Moving about in the graph: wheel and pinch zoom, a drag moves, arrows walk, a text finds.
(() => {
  "use strict";
  // Below this names cannot be read: boxes are drawn plain, and a finger comes nearer first.
  const READABLE = 0.55;
  const CLOSEST = 2;
  const graphs = new WeakMap();

  class Graph {
    constructor(whole) {
      const stage = whole.querySelector(".stage");
      this.whole = whole;
      this.stage = stage;
      this.svg = stage.querySelector("svg.lineage");
      // Moved as a picture: a browser would style every box anew if the SVG itself were moved.
      this.sheet = this.svg.parentElement;
      this.w = Number(this.svg.getAttribute("width"));
      this.h = Number(this.svg.getAttribute("height"));
      this.nodes = [...this.svg.querySelectorAll(".node")].map((element) => {
        const { x, y, width, height } = element.querySelector("rect");
        const left = x.baseVal.value, wide = width.baseVal.value;
        return { element, left, x: left + wide / 2, y: y.baseVal.value + height.baseVal.value / 2,
          said: element.getAttribute("aria-label"), sources: [], targets: [], edges: [] };
      });
      for (const edge of this.svg.querySelectorAll(".edge")) {
        const s = Number(edge.dataset.s), t = Number(edge.dataset.t);
        this.nodes[s].targets.push(t);
        this.nodes[t].sources.push(s);
        this.nodes[t].edges.push([s, edge]);
      }
      this.marked = [];
      this.found = [];
      this.moved = false;
      stage.style.setProperty("--tall", `${this.h + 96}px`);
      this.begin();
      new ResizeObserver(() => this.moved || this.begin()).observe(stage);
    }

    // --- where it is: x and y of the drawing's corner in the window, k how large ---------------
    get window() { return { w: this.stage.clientWidth, h: this.stage.clientHeight }; }
    get isFar() { return this.k < READABLE; }
    begin() {
      this.fit();
      const chosen = this.nodes.find((node) => node.element.classList.contains("chosen"));
      if (chosen && this.isFar) this.centre(chosen, 1);
    }
    fit() {
      const { w, h } = this.window;
      // Never larger than life: a graph of three boxes should look like three boxes.
      const k = Math.min(w / this.w, h / this.h, 1);
      this.place((w - this.w * k) / 2, (h - this.h * k) / 2, k);
    }
    place(x, y, k) {
      const { w, h } = this.window, edge = Math.min(80, w / 4, h / 4);
      // Some of it always stays in sight.
      this.x = Math.min(Math.max(x, edge - this.w * k), w - edge);
      this.y = Math.min(Math.max(y, edge - this.h * k), h - edge);
      this.k = k;
      this.frame ??= requestAnimationFrame(() => {
        this.frame = null;
        this.sheet.style.transform = `translate(${this.x}px, ${this.y}px) scale(${this.k})`;
        this.stage.classList.toggle("far", this.isFar);
      });
    }
    glide(smoothly) { this.stage.classList.toggle("gliding", smoothly); }
    centre(node, k) {
      const { w, h } = this.window;
      this.place(w / 2 - node.x * k, h / 2 - node.y * k, k);
    }
    zoom(factor, at = { x: this.window.w / 2, y: this.window.h / 2 }) {
      const { w, h } = this.window, least = Math.min(w / this.w, h / this.h, 1) / 2;
      const k = Math.min(Math.max(this.k * factor, least), CLOSEST), step = k / this.k;
      this.place(at.x - (at.x - this.x) * step, at.y - (at.y - this.y) * step, k);
      this.moved = true;
    }
    move(dx, dy) {
      this.place(this.x + dx, this.y + dy, this.k);
      this.moved = true;
    }
    // Comes so near that the node can be read, and moves no more than is needed for that.
    reveal(node) {
      const { w, h } = this.window, x = this.x + node.x * this.k, y = this.y + node.y * this.k;
      const inside = x > 90 && x < w - 90 && y > 70 && y < h - 70;
      this.glide(true);
      if (this.isFar || !inside) this.centre(node, Math.max(this.k, 0.9));
      this.moved = true;
    }

    // --- what stands out ------------------------------------------------------------------------
    pick(at) {
      for (const element of this.marked) element.classList.remove("lit", "near");
      this.marked = [];
      this.svg.classList.toggle("picking", at !== null);
      const told = this.stage.querySelector(".told");
      told.hidden = at === null;
      if (at === null) return;
      told.textContent = this.nodes[at].said;
      const up = this.reach(at, "sources"), down = this.reach(at, "targets");
      const mark = (element, ...names) => {
        element.classList.add(...names);
        this.marked.push(element);
      };
      for (const one of new Set([...up, ...down])) {
        mark(this.nodes[one].element, "near");
        for (const [source, edge] of this.nodes[one].edges) {
          if (one === at || source === at) mark(edge, "lit");
          else if ((up.has(one) && up.has(source)) || (down.has(one) && down.has(source))) mark(edge, "near");
        }
      }
    }
    reach(at, way) {
      const seen = new Set([at]), waiting = [at];
      while (waiting.length) {
        for (const next of this.nodes[waiting.pop()][way]) {
          if (!seen.has(next)) waiting.push(next);
          seen.add(next);
        }
      }
      return seen;
    }
    find(text) {
      const wanted = text.trim().toLowerCase();
      this.found = [];
      this.at = -1;
      this.nodes.forEach((node, at) => {
        const fits = wanted !== "" && node.said.toLowerCase().includes(wanted);
        node.element.classList.toggle("found", fits);
        if (fits) this.found.push(at);
      });
      this.svg.classList.toggle("finding", wanted !== "");
      this.tell(wanted === "" ? "" : `${this.found.length || "none"} found`);
    }
    next(step) {
      const many = this.found.length;
      if (!many) return;
      this.at = (this.at + step + (this.at < 0 && step < 0 ? 1 : 0) + many) % many;
      const node = this.nodes[this.found[this.at]];
      this.reveal(node);
      this.pick(this.found[this.at]);
      this.tell(`${this.at + 1} of ${many}`);
    }
    tell(text) { this.whole.querySelector("output").textContent = text; }

    // --- by the keyboard ------------------------------------------------------------------------
    go(at) {
      if (at === undefined) return;
      this.svg.querySelector('.node[tabindex="0"]')?.setAttribute("tabindex", "-1");
      this.nodes[at].element.setAttribute("tabindex", "0");
      this.nodes[at].element.focus({ preventScroll: true });
    }
    walk(at, key) {
      const here = this.nodes[at];
      const nearest = (list, far) => [...list].sort((a, b) => far(a) - far(b))[0];
      const apart = (one) => Math.abs(this.nodes[one].y - here.y);
      if (key === "ArrowLeft") return this.go(nearest(here.sources, apart));
      if (key === "ArrowRight") return this.go(nearest(here.targets, apart));
      const sign = key === "ArrowDown" ? 1 : -1;
      const column = [...this.nodes.keys()].filter((one) => this.nodes[one].left === here.left
        && (this.nodes[one].y - here.y) * sign > 0);
      this.go(nearest(column, apart));
    }
    enter() {
      const { w, h } = this.window, x = (w / 2 - this.x) / this.k, y = (h / 2 - this.y) / this.k;
      const far = (one) => Math.hypot(this.nodes[one].x - x, this.nodes[one].y - y);
      this.go([...this.nodes.keys()].sort((a, b) => far(a) - far(b))[0]);
    }
  }

  const graphOf = (element) => {
    const whole = element?.closest?.("[data-graph]");
    if (!whole?.querySelector("svg.lineage")) return null;
    if (!graphs.has(whole)) graphs.set(whole, new Graph(whole));
    return graphs.get(whole);
  };
  const prepare = () => document.querySelectorAll("[data-graph]").forEach(graphOf);
  new MutationObserver(prepare).observe(document.documentElement, { childList: true, subtree: true });

  const nodeAt = (event) => event.target.closest?.("svg.lineage .node");
  const isTool = (event) => event.target.closest?.(".tools");
  const within = (graph, event) => {
    const box = graph.stage.getBoundingClientRect();
    return { x: event.clientX - box.left, y: event.clientY - box.top };
  };

  // --- mouse and fingers --------------------------------------------------------------------------
  document.addEventListener("wheel", (event) => {
    const graph = !isTool(event) && graphOf(event.target);
    if (!graph) return;
    event.preventDefault();
    // Lines and pages in pixels; a pinch on a trackpad comes as a wheel in small steps.
    const pixels = event.deltaY * [1, 16, 400][event.deltaMode] * (event.ctrlKey ? 6 : 1);
    graph.glide(false);
    graph.zoom(Math.exp(-Math.max(Math.min(pixels, 240), -240) * 0.0015), within(graph, event));
  }, { passive: false });

  const fingers = new Map();
  let dragged = false, touched = false;
  document.addEventListener("pointerdown", (event) => {
    const graph = !isTool(event) && graphOf(event.target);
    if (!graph || event.button !== 0) return;
    fingers.set(event.pointerId, event);
    dragged = fingers.size > 1;
    touched = event.pointerType === "touch";
    graph.glide(false);
  });
  document.addEventListener("pointermove", (event) => {
    const last = fingers.get(event.pointerId), graph = last && graphOf(last.target);
    // Let go outside of the window, where nobody told us.
    if (last && event.buttons === 0) fingers.delete(event.pointerId);
    if (!graph || event.buttons === 0) return;
    const dx = event.clientX - last.clientX, dy = event.clientY - last.clientY;
    if (!dragged && Math.hypot(dx, dy) < 4) return;
    // Only now: a captured pointer clicks on what captured it, not on the box below.
    graph.stage.setPointerCapture(event.pointerId);
    dragged = true;
    const other = [...fingers.values()].find((one) => one.pointerId !== event.pointerId);
    if (other) {
      const apart = (one) => Math.max(Math.hypot(one.clientX - other.clientX, one.clientY - other.clientY), 1);
      const middle = { clientX: (event.clientX + other.clientX) / 2, clientY: (event.clientY + other.clientY) / 2 };
      graph.move(dx / 2, dy / 2);
      graph.zoom(apart(event) / apart(last), within(graph, middle));
    } else graph.move(dx, dy);
    fingers.set(event.pointerId, event);
  });
  for (const end of ["pointerup", "pointercancel"]) {
    document.addEventListener(end, (event) => fingers.delete(event.pointerId));
  }
  document.addEventListener("click", (event) => {
    const graph = graphOf(event.target), node = graph && nodeAt(event);
    const how = graph && event.target.closest("[data-zoom]")?.dataset.zoom;
    if (how) {
      graph.glide(true);
      how === "fit" ? graph.fit() : graph.zoom(how === "in" ? 1.33 : 0.75);
    }
    // A drag that ends on a box is no click on it, and a finger should see what it opens.
    if (node && (dragged || (touched && graph.isFar))) event.preventDefault();
    if (node && !dragged && touched && graph.isFar) {
      graph.reveal(graph.nodes[Number(node.dataset.node)]);
      graph.pick(Number(node.dataset.node));
    }
    dragged = false;
  }, true);
  document.addEventListener("dragstart", (event) => {
    if (graphOf(event.target)) event.preventDefault();
  });
  document.addEventListener("pointerover", (event) => {
    const node = event.pointerType !== "touch" && !fingers.size && nodeAt(event);
    if (node) graphOf(node).pick(Number(node.dataset.node));
  });
  document.addEventListener("pointerout", (event) => {
    if (event.pointerType !== "touch" && nodeAt(event)) graphOf(event.target).pick(null);
  });

  // --- the keyboard -------------------------------------------------------------------------------
  document.addEventListener("focusin", (event) => {
    const node = nodeAt(event), graph = node && graphOf(node);
    if (!graph || !node.matches(":focus-visible")) return;
    graph.reveal(graph.nodes[Number(node.dataset.node)]);
    graph.pick(Number(node.dataset.node));
  });
  document.addEventListener("focusout", (event) => {
    if (nodeAt(event)) graphOf(event.target).pick(null);
  });
  document.addEventListener("input", (event) => {
    if (event.target.matches?.("[data-find]")) graphOf(event.target)?.find(event.target.value);
  });
  const moves = { "+": (g) => g.zoom(1.33), "=": (g) => g.zoom(1.33), "-": (g) => g.zoom(0.75), 0: (g) => g.fit() };
  const pans = { ArrowLeft: [80, 0], ArrowRight: [-80, 0], ArrowUp: [0, 80], ArrowDown: [0, -80] };
  document.addEventListener("keydown", (event) => {
    const graph = graphOf(event.target);
    if (!graph || event.ctrlKey || event.metaKey || event.altKey) return;
    const node = nodeAt(event), finding = event.target.matches("[data-find]");
    if (finding && event.key === "Enter") graph.next(event.shiftKey ? -1 : 1);
    else if (finding || isTool(event)) return;
    else if (node && event.key in pans) graph.walk(Number(node.dataset.node), event.key);
    else if (node && event.key === "Escape") graph.stage.focus();
    else if (!node && event.key === "Enter") graph.enter();
    else if (event.key in pans) graph.move(...pans[event.key]);
    else if (event.key in moves) moves[event.key](graph);
    else return;
    if (!node) graph.glide(true);
    event.preventDefault();
  });
})();
