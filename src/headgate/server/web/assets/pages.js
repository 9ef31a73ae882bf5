// What pages do in the browser by themselves: theme, keyboard, forms, buttons that ask the server.
(() => {
  "use strict";
  const root = document.documentElement;
  root.classList.add("scripted");

  // --- theme: as the system, light, dark ------------------------------------------------------
  const themes = ["auto", "light", "dark"];
  const applyTheme = (name) => {
    root.dataset.theme = name;
    localStorage.setItem("headgate-theme", name);
  };
  const nextTheme = () => themes[(themes.indexOf(root.dataset.theme) + 1) % themes.length];

  // --- asking before something is ended -------------------------------------------------------
  const ask = (question, yes) => {
    const dialog = document.createElement("dialog");
    dialog.className = "ask";
    const text = document.createElement("p");
    text.textContent = question;
    dialog.ariaLabel = question;
    const row = document.createElement("div");
    for (const [label, value] of [["Back", ""], ["Yes", "yes"]]) {
      const button = document.createElement("button");
      button.className = value ? "button danger" : "button";
      button.textContent = label;
      button.addEventListener("click", () => dialog.close(value));
      row.append(button);
    }
    dialog.append(text, row);
    dialog.addEventListener("close", () => {
      if (dialog.returnValue === "yes") yes();
      dialog.remove();
    });
    document.body.append(dialog);
    dialog.showModal();
  };

  document.addEventListener("click", (event) => {
    const target = event.target instanceof Element ? event.target : null;
    if (target?.closest("[data-theme-switch]")) applyTheme(nextTheme());
    const button = target?.closest("[data-act]");
    if (button) {
      const { ask: question, ...facts } = button.dataset;
      const send = () => {
        emitEvent("act", { ...facts });
        // Pressed twice is meant once; where it is refused, the button comes back.
        button.disabled = true;
        setTimeout(() => { button.disabled = false; }, 5000);
      };
      if (question) ask(question, send);
      else send();
    }
  });

  // A choice is made by choosing; the button is there for those without scripts.
  document.addEventListener("change", (event) => {
    if (event.target instanceof HTMLSelectElement && "sends" in event.target.dataset) {
      event.target.form.requestSubmit();
    }
  });
  // Empty fields would only make the address longer.
  document.addEventListener("formdata", (event) => {
    if (event.target.method !== "get") return;
    for (const [name, value] of [...event.formData]) if (value === "") event.formData.delete(name);
  });

  // --- what stays when a part of the page is drawn anew: focus, scrolling, what is unfolded ---------
  const scrolled = new Map(), unfolded = new Map();
  let focused = null;
  const nameOf = (element) => element.getAttribute("aria-label") ?? element.textContent;
  document.addEventListener("scroll", ({ target }) => {
    if (target instanceof Element && target.matches(".scroll")) scrolled.set(nameOf(target), target.scrollLeft);
  }, true);
  document.addEventListener("toggle", ({ target }) => {
    if (target instanceof HTMLDetailsElement) unfolded.set(nameOf(target.firstElementChild), target.open);
  }, true);
  document.addEventListener("focusin", ({ target }) => { focused = target; });
  // What is removed loses the focus while it is still there: whether it is gone shows only after.
  document.addEventListener("focusout", ({ target }) => setTimeout(() => {
    if (focused === target && target.isConnected && document.activeElement !== target) focused = null;
  }));
  const restore = (section) => {
    for (const one of section.querySelectorAll(".scroll")) one.scrollLeft = scrolled.get(nameOf(one)) ?? 0;
    for (const one of section.querySelectorAll("details")) one.open = unfolded.get(nameOf(one.firstElementChild)) ?? one.open;
    if (focused === null || focused.isConnected) return;
    const same = [...section.querySelectorAll("a, button, summary, .scroll")].find((one) =>
      one.tagName === focused.tagName && nameOf(one) === nameOf(focused) && one.href === focused.href);
    same?.focus({ preventScroll: true });
  };
  new MutationObserver((changes) => {
    for (const section of new Set(changes.map((change) => change.target))) {
      if (section instanceof Element && section.closest("main.page")) restore(section);
    }
  }).observe(root, { childList: true, subtree: true });

  document.addEventListener("keydown", (event) => {
    const typing = event.target instanceof Element && event.target.matches("input, select, textarea");
    if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey) {
      event.preventDefault();
      document.getElementById("search")?.focus();
    } else if (event.key === "Escape" && typing) {
      event.target.blur();
    }
  });
})();
