
for (const all of document.querySelectorAll("input.all")) {
  all.onchange = () => {
    for (const one of all.form.querySelectorAll("input[name=s]")) one.checked = all.checked;
  };
}
