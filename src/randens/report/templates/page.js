"use strict";
for (const root of document.querySelectorAll("[data-landscape]")) {
  new Landscape(root, JSON.parse(document.getElementById(root.dataset.landscape).textContent));
}
