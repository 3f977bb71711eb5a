//! Layers of a crate's modules: the permitted dependencies.
//!
//! `xtask/layers/CRATE.txt` is the table. A line is a layer, from the bottom: its name and its modules, which own the
//! submodules that no line names. A module may use modules of its own layer and of those before it; two modules never
//! use each other, directly or indirectly. A name that a module re-exports from one of its submodules belongs to the
//! submodule. `FROM -> TO` is an exception until the code is corrected; an unused one is a fault, so the list can only
//! shrink.

mod source;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use source::{Module, Tree, module_of};

use crate::run::root;

/// The page with the maps of crates' modules.
const MAP: &str = "ARCHITECTURE.md";

/// Folder of the tables.
const TABLES: &str = "xtask/layers";

/// Checks every crate that has a table.
pub fn faults(files: &[PathBuf]) -> Vec<String> {
    let mut faults = Vec::new();
    for path in files.iter().filter(|path| path.starts_with(TABLES)) {
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        match Table::parse(&read(path)) {
            Ok(table) => {
                let tree = tree(&name, files);
                let found = table.faults(&tree);
                faults.extend(found.iter().map(|fault| format!("{}: {fault}", path.display())));
                let found = map_faults(&name, &read(Path::new(MAP)), &table, &tree);
                faults.extend(found.iter().map(|fault| format!("{MAP}: {fault}")));
            }
            Err(error) => faults.push(format!("{}: {error}", path.display())),
        }
    }
    faults
}

/// Prints which modules of a crate use which, each pair with one source position.
pub fn print(name: &str, files: &[PathBuf]) -> Result<(), String> {
    let path = Path::new(TABLES).join(name).with_extension("txt");
    if !files.contains(&path) {
        return Err(format!("there is no {}", path.display()));
    }
    for ((from, to), arrow) in Table::parse(&read(&path))?.arrows(&tree(name, files)) {
        println!("{} -> {}  {}", from.join("::"), to.join("::"), arrow.at);
    }
    Ok(())
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_default()
}

/// Returns the modules of a crate and their references, without those of tests.
fn tree(name: &str, files: &[PathBuf]) -> Tree {
    // The tools lie beside the program's crates.
    let own = if name == "xtask" { Path::new(name).join("src") } else { Path::new("crates").join(name).join("src") };
    let mut tree = Tree::default();
    for file in files.iter().filter(|file| file.extension().is_some_and(|extension| extension == "rs")) {
        let Ok(inside) = file.strip_prefix(&own) else { continue };
        if inside.file_stem().is_none_or(|stem| stem != "tests") {
            tree.add(module_of(inside), &file.display().to_string(), &read(file));
        }
    }
    tree
}

/// A crate's layers.
struct Table {
    /// By module: the layer's number and name.
    layers: BTreeMap<Module, (usize, String)>,
    exceptions: BTreeSet<(Module, Module)>,
}

/// A use of one listed module by another.
struct Arrow {
    from: Module,
    to: Module,
    /// File, line and path of one such reference.
    at: String,
}

impl Table {
    fn parse(text: &str) -> Result<Table, String> {
        let mut table = Table { layers: BTreeMap::new(), exceptions: BTreeSet::new() };
        let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default());
        for (number, line) in lines.enumerate() {
            let words: Vec<&str> = line.split_whitespace().collect();
            match words[..] {
                [] => {}
                [from, "->", to] => drop(table.exceptions.insert((path(from), path(to)))),
                [layer, ref modules @ ..] => {
                    for module in modules {
                        let known = table.layers.insert(path(module), (number, layer.to_owned()));
                        if known.is_some() {
                            return Err(format!("{module} stands there twice"));
                        }
                    }
                }
            }
        }
        Ok(table)
    }

    /// Returns the listed module that a module belongs to.
    fn owner(&self, module: &[String]) -> Option<&Module> {
        (0..=module.len()).rev().find_map(|len| self.layers.get_key_value(&module[..len])).map(|(owner, _)| owner)
    }

    fn faults(&self, tree: &Tree) -> Vec<String> {
        let mut faults = Vec::new();
        for (module, file) in &tree.files {
            // The crate's root declares what is public, and may use whatever it re-exports.
            if !module.is_empty() && self.owner(module).is_none() {
                faults.push(format!("{file}: no layer names {}", module.join("::")));
            }
        }
        for module in self.layers.keys().filter(|module| !tree.files.contains_key(*module)) {
            faults.push(format!("there is no module {}", module.join("::")));
        }
        let arrows = self.arrows(tree);
        let mut unused: BTreeSet<_> = self.exceptions.iter().collect();
        let mut even: BTreeMap<&Module, BTreeSet<&Module>> = BTreeMap::new();
        for arrow in arrows.values() {
            let pair = (arrow.from.clone(), arrow.to.clone());
            let ((from, lower), (to, upper)) = (&self.layers[&arrow.from], &self.layers[&arrow.to]);
            if unused.remove(&pair) || self.exceptions.contains(&pair) {
                continue;
            }
            if from < to {
                let (one, other) = (arrow.from.join("::"), arrow.to.join("::"));
                faults.push(format!("{}: {one} ({lower}) uses {other} ({upper}), which is above it", arrow.at));
            } else if from == to {
                even.entry(&arrow.from).or_default().insert(&arrow.to);
            }
        }
        faults.extend(circles(&even));
        for (from, to) in unused {
            let (from, to) = (from.join("::"), to.join("::"));
            faults.push(format!("the exception {from} -> {to} is needed no more: take it out"));
        }
        faults
    }

    /// Uses of listed modules by each other.
    fn arrows(&self, tree: &Tree) -> BTreeMap<(Module, Module), Arrow> {
        let mut arrows = BTreeMap::new();
        for reference in &tree.references {
            let (Some(from), Some(target)) = (self.owner(&reference.module), tree.target(reference)) else { continue };
            let Some(to) = self.owner(&target) else { continue };
            // A name re-exported from a module below belongs to that module: its user depends on that module.
            if reference.shows && target.starts_with(&reference.module) {
                continue;
            }
            if from != to {
                let at =
                    format!("{}:{} ({})", tree.file_of(&reference.module), reference.line, reference.path.join("::"));
                let arrow = Arrow { from: from.clone(), to: to.clone(), at };
                arrows.entry((from.clone(), to.clone())).or_insert(arrow);
            }
        }
        arrows
    }
}

/// Compares a crate's map, if the page has one, with its table: each listed module is in the map, itself or by its
/// parent, and each entry of the map exists. A map is a section `### \`CRATE\`` with tables whose first column names
/// modules; after a line "Within `CRATE::MODULE`:" names are relative to that module.
fn map_faults(name: &str, page: &str, table: &Table, tree: &Tree) -> Vec<String> {
    let heading = format!("### `{name}`");
    let section = page.lines().skip_while(|line| *line != heading).skip(1).take_while(|line| !line.starts_with('#'));
    let (mut named, mut within, mut is_there) = (BTreeSet::new(), Module::new(), false);
    for line in section {
        is_there = true;
        if let Some(rest) = line.strip_prefix("Within `") {
            within = path(rest.split('`').next().unwrap_or_default()).into_iter().skip(1).collect();
        }
        let Some(row) = line.strip_prefix("| `") else { continue };
        let cell = row.split(" | ").next().unwrap_or_default();
        named.extend(cell.split('`').step_by(2).filter(|word| !word.is_empty()).map(|word| {
            let mut module = within.clone();
            module.extend(path(word));
            module
        }));
    }
    if !is_there {
        return Vec::new();
    }
    let absent = named.iter().filter(|module| !tree.files.contains_key(*module));
    let absent = absent.map(|module| format!("`{name}` has no module {}", module.join("::")));
    let missing = table.layers.keys().filter(|module| (1..=module.len()).all(|len| !named.contains(&module[..len])));
    absent.chain(missing.map(|module| format!("the map of `{name}` lacks {}", module.join("::")))).collect()
}

/// Returns one cycle through each module that is part of any, each cycle once.
fn circles(uses: &BTreeMap<&Module, BTreeSet<&Module>>) -> Vec<String> {
    let mut told = BTreeSet::new();
    let mut found = Vec::new();
    for start in uses.keys() {
        if told.contains(start) {
            continue;
        }
        // The shortest way back.
        let mut before: BTreeMap<&Module, &Module> = BTreeMap::new();
        let mut queue = std::collections::VecDeque::from([*start]);
        'search: while let Some(now) = queue.pop_front() {
            for next in uses.get(now).into_iter().flatten() {
                if next == start {
                    let mut way = vec![now];
                    while let Some(previous) = before.get(way[way.len() - 1]) {
                        way.push(previous);
                    }
                    way.reverse();
                    let names: Vec<String> = way.iter().chain([start]).map(|module| module.join("::")).collect();
                    found.push(format!("a circle: {}", names.join(" -> ")));
                    told.extend(way);
                    break 'search;
                }
                if !before.contains_key(next) {
                    before.insert(next, now);
                    queue.push_back(next);
                }
            }
        }
    }
    found
}

fn path(text: &str) -> Module {
    text.split("::").map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(table: &str, files: &[(&str, &str)]) -> Vec<String> {
        let mut tree = Tree::default();
        for (file, text) in files {
            tree.add(module_of(Path::new(file)), file, text);
        }
        Table::parse(table).expect("a table").faults(&tree)
    }

    const FILES: [(&str, &str); 4] = [
        ("lib.rs", "mod base; mod middle; mod top;"),
        ("base.rs", "pub fn f() {}"),
        ("middle.rs", "use crate::base;"),
        ("top.rs", "fn g() { crate::middle::h(super::base::f()) }"),
    ];

    #[test]
    fn arrows_point_down() {
        assert_eq!(check("one base\ntwo middle\nthree top", &FILES), Vec::<String>::new());
        let faults = check("one base\ntwo top\nthree middle", &FILES);
        assert_eq!(faults, ["top.rs:1 (crate::middle::h): top (two) uses middle (three), which is above it"]);
    }

    #[test]
    fn every_module_is_listed_and_every_listed_one_is_there() {
        let faults = check("one base\nthree top absent", &FILES);
        assert_eq!(faults, ["middle.rs: no layer names middle", "there is no module absent"]);
        assert_eq!(Table::parse("one a\ntwo a").err().as_deref(), Some("a stands there twice"));
    }

    #[test]
    fn modules_of_a_layer_use_each_other_one_way() {
        assert_eq!(check("all base middle top", &FILES), Vec::<String>::new());
        let mut files = FILES;
        files[1].1 = "use crate::top::g;";
        assert_eq!(
            check("all base middle top", &files),
            ["a circle: base -> top -> base", "a circle: middle -> base -> top -> middle"]
        );
    }

    #[test]
    fn what_a_module_shows_of_those_below_it_is_theirs() {
        let files = [
            ("lib.rs", "mod a; mod b;"),
            ("a/mod.rs", "mod c; pub(crate) use c::Shown;"),
            ("a/c.rs", "use crate::b::f;"),
            ("b.rs", "fn f() { crate::a::g() }"),
        ];
        assert_eq!(check("one a\ntwo b\nthree a::c", &files), Vec::<String>::new());
        let mut uses = files;
        uses[3].1 = "use crate::a::Shown;";
        assert_eq!(check("one a\ntwo b\nthree a::c", &uses).len(), 1);
    }

    #[test]
    fn a_stale_map_is_noticed() {
        let mut tree = Tree::default();
        for (file, text) in FILES {
            tree.add(module_of(Path::new(file)), file, text);
        }
        let table = Table::parse("one base\ntwo middle\nthree top").expect("a table");
        let check = |map: &str| map_faults("c", map, &table, &tree);
        let page = "### `b`\n| `other` | x |\n### `c`\n\n| module | what |\n|---|---|\n| `base`, `middle` | `f` | \n";
        assert_eq!(check(&format!("{page}| `top` | g |\n## More\n| `no` | x |\n")), Vec::<String>::new());
        assert_eq!(check(page), ["the map of `c` lacks top"]);
        assert_eq!(check(&format!("{page}| `top`, `gone` | g |")), ["`c` has no module gone"]);
        assert_eq!(
            check(&format!("{page}| `top` | g |\n\nWithin `c::top`:\n\n| `x` | y |")),
            ["`c` has no module top::x"]
        );
        assert_eq!(check("# nothing"), Vec::<String>::new());
    }

    #[test]
    fn exceptions_only_shrink() {
        let table = "one base\ntwo top\nthree middle\n";
        assert_eq!(check(&format!("{table}top -> middle"), &FILES), Vec::<String>::new());
        let faults = check(&format!("{table}top -> middle\nbase -> middle"), &FILES);
        assert_eq!(faults, ["the exception base -> middle is needed no more: take it out"]);
    }
}
