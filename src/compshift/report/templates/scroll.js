"use strict";
// Fade the right edge of every box whose content goes on to the right, as phones show no scroll bars.

for (const box of document.querySelectorAll(".grid, .drawing, .scroll")) {
  const update = () => box.classList.toggle("more", box.scrollWidth - box.clientWidth - box.scrollLeft > 1);
  box.addEventListener("scroll", update, { passive: true });
  new ResizeObserver(update).observe(box);
  new MutationObserver(update).observe(box, { childList: true, subtree: true });
}
