// Sets the theme before anything is painted; the page's script takes over from there.
{
  let theme = null;
  try {
    theme = localStorage.getItem("tenure-theme");
  } catch {
    // storage is switched off: the system decides
  }
  if (theme !== "light" && theme !== "dark") {
    theme = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  }
  document.documentElement.dataset.theme = theme;
}
