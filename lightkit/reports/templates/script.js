"use strict";
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells], body = table.tBodies[0];
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const order = head.getAttribute("aria-sort");
      const up = order ? order === "descending" : !head.classList.contains("num");
      heads.forEach((each) => each.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      const key = (row) => row.cells[column].textContent.trim();
      const number = (text) => parseFloat(text.replace(/\u202f/g, ""));
      const compare = (a, b) => {
        const [x, y] = [number(key(a)), number(key(b))];
        return isNaN(x) || isNaN(y) ? isNaN(x) - isNaN(y) || key(a).localeCompare(key(b)) : x - y;
      };
      body.append(...[...body.rows].sort((a, b) => (up ? compare(a, b) : compare(b, a))));
    });
  });
}
const images = document.querySelectorAll(".thumbs img");
if (images.length) {
  const dialog = document.createElement("dialog"), large = document.createElement("img");
  dialog.append(large);
  dialog.addEventListener("click", () => dialog.close());
  document.body.append(dialog);
  for (const image of images) {
    const button = document.createElement("button");
    button.type = "button";
    image.replaceWith(button);
    button.append(image);
    button.addEventListener("click", () => {
      large.src = image.src;
      large.alt = image.alt;
      dialog.setAttribute("aria-label", image.alt);
      dialog.showModal();
    });
  }
}
const links = new Map([...document.querySelectorAll("nav a")].map((link) => [link.hash.slice(1), link]));
const watch = new IntersectionObserver((entries) => {
  for (const entry of entries) {
    if (entry.isIntersecting) {
      links.forEach((link, name) => link.classList.toggle("here", name === entry.target.id));
    }
  }
}, { rootMargin: "-10% 0px -80% 0px" });
document.querySelectorAll("section[id]").forEach((section) => links.has(section.id) && watch.observe(section));
