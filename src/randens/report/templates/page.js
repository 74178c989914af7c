"use strict";
// Marks the regions that scroll sideways while there is more to the right, so that a hint can be shown.
for (const region of document.querySelectorAll(".scroll")) {
  const mark = () => region.classList.toggle("more", region.scrollLeft + region.clientWidth < region.scrollWidth - 2);
  region.addEventListener("scroll", mark, { passive: true });
  new ResizeObserver(mark).observe(region);
  mark();
}
