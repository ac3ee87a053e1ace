// Typesets with KaTeX the formulas that pymdownx.arithmatex has marked: \(...\) in a line, \[...\] on its own.
document.addEventListener("DOMContentLoaded", () => {
  for (const place of document.querySelectorAll(".arithmatex")) {
    const formula = place.textContent.trim().slice(2, -2);
    katex.render(formula, place, {displayMode: place.tagName === "DIV", throwOnError: false});
  }
});
