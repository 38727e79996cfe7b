//! Modules of a crate form no circle, and a type name stands for one type.
use std::collections::{BTreeMap, BTreeSet};

use crate::{ARROWS, report, sources};

/// Type names that several modules may define: always written with their module in front, or local to a function.
const SHARED_NAMES: [&str; 8] = ["Error", "Config", "Limits", "Options", "Builder", "Handle", "Event", "Args"];

type Module = Vec<String>;

/// The product code of one crate: module path, file and text without tests, comments and strings.
struct Crate {
    folder: &'static str,
    files: Vec<(Module, String, String)>,
    modules: BTreeSet<Module>,
    /// (module, name) → what `pub use` makes of it.
    exports: BTreeMap<(Module, String), Module>,
}

fn crates() -> Vec<Crate> {
    let sources = sources();
    ARROWS.iter().map(|(folder, _)| read_crate(folder, &sources)).collect()
}

fn read_crate(folder: &'static str, sources: &[(String, String)]) -> Crate {
    let below = if folder == "." { "src/".to_owned() } else { format!("{folder}/src/") };
    let mut made = Crate { folder, files: Vec::new(), modules: BTreeSet::new(), exports: BTreeMap::new() };
    for (path, text) in sources {
        let Some(rest) = path.strip_prefix(&below).and_then(|rest| rest.strip_suffix(".rs")) else { continue };
        let mut module: Module = rest.split('/').map(str::to_owned).collect();
        if module.iter().any(|part| part == "tests" || part == "test" || part == "bin") {
            continue;
        }
        if matches!(module.last().map(String::as_str), Some("mod" | "lib" | "main")) {
            module.pop();
        }
        made.modules.insert(module.clone());
        made.files.push((module, path.clone(), code(text)));
    }
    for (module, _, text) in &made.files {
        for (tree, public) in uses(text) {
            for (target, name) in expand(&tree) {
                if let (true, Some(full)) = (public, resolve(&made.modules, module, &target)) {
                    made.exports.insert((module.clone(), name), full);
                }
            }
        }
    }
    made
}

/// Without its tests, comments and strings.
fn code(text: &str) -> String {
    let mut kept = String::new();
    let mut test = false;
    for line in text.lines() {
        if line.trim() == "#[cfg(test)]" && !line.starts_with(' ') {
            test = true;
            continue;
        }
        if test {
            // One item: a `mod tests {` lasts until its brace at the start of a line, others until `;` or `}`.
            test = !(line == "}" || line.ends_with(';') && !line.starts_with(' '));
            continue;
        }
        kept.push_str(line.split("//").next().unwrap_or(""));
        kept.push('\n');
    }
    let mut parts = kept.split('"');
    let mut code = parts.next().unwrap_or("").to_owned();
    for (at, part) in parts.enumerate() {
        if at % 2 == 1 {
            code.push_str(part);
        }
    }
    code
}

/// The trees of `use`, and whether each is public.
fn uses(text: &str) -> Vec<(String, bool)> {
    let mut found = Vec::new();
    for (at, _) in text.match_indices("use ") {
        let line = text[..at].rsplit('\n').next().unwrap_or("").trim();
        if line.is_empty() || line.starts_with("pub") && !line.contains(' ') {
            let tree = text[at + 4..].split(';').next().unwrap_or("");
            found.push((tree.split_whitespace().collect::<Vec<_>>().join(" "), !line.is_empty()));
        }
    }
    found
}

/// `a::{b, c as d}` as (path, name) pairs.
fn expand(tree: &str) -> Vec<(Vec<String>, String)> {
    let tree = tree.trim();
    if let Some(open) = tree.find('{') {
        let prefix = &tree[..open];
        let inner = tree[open + 1..].strip_suffix('}').unwrap_or(&tree[open + 1..]);
        let (mut depth, mut start, mut found) = (0usize, 0, Vec::new());
        for (at, byte) in inner.bytes().chain([b',']).enumerate() {
            match byte {
                b'{' => depth += 1,
                b'}' => depth = depth.saturating_sub(1),
                b',' if depth == 0 => {
                    if !inner[start..at].trim().is_empty() {
                        found.extend(expand(&format!("{prefix}{}", inner[start..at].trim())));
                    }
                    start = at + 1;
                }
                _ => {}
            }
        }
        return found;
    }
    let (path, renamed) = tree.split_once(" as ").map_or((tree, None), |(path, name)| (path, Some(name)));
    let mut parts: Vec<String> = path.split("::").map(|part| part.trim().to_owned()).collect();
    if parts.last().is_some_and(|part| part == "self" && parts.len() > 1) {
        parts.pop();
    }
    let name = renamed.map_or_else(|| parts.last().cloned().unwrap_or_default(), str::to_owned);
    vec![(parts, name)]
}

/// The full path of `path` as it is written in `module`; nothing if it leads out of the crate.
fn resolve(modules: &BTreeSet<Module>, module: &Module, path: &[String]) -> Option<Module> {
    let mut base = match path.first()?.as_str() {
        "crate" => Vec::new(),
        "self" => module.clone(),
        "super" => module.split_last()?.1.to_vec(),
        child => {
            let mut base = module.clone();
            base.push(child.to_owned());
            return modules.contains(&base).then(|| {
                base.extend(path[1..].iter().cloned());
                base
            });
        }
    };
    for part in &path[1..] {
        match part.as_str() {
            "super" => {
                base.pop();
            }
            part => base.push(part.to_owned()),
        }
    }
    Some(base)
}

/// The module that defines what `full` names.
fn owner(made: &Crate, full: &Module) -> Module {
    let mut full = full.clone();
    'again: for _ in 0..8 {
        for length in (0..full.len()).rev() {
            let module = full[..length].to_vec();
            if !made.modules.contains(&module) {
                continue;
            }
            if made.modules.contains(&full[..=length]) {
                break;
            }
            if let Some(target) = made.exports.get(&(module, full[length].clone())) {
                let mut next = target.clone();
                next.extend(full[length + 1..].iter().cloned());
                if next == full {
                    break 'again;
                }
                full = next;
                continue 'again;
            }
        }
        break;
    }
    while !made.modules.contains(&full) {
        full.pop();
    }
    full
}

/// Paths that the code of a file names, from the crate's root.
fn references(made: &Crate, module: &Module, text: &str) -> BTreeSet<Module> {
    let mut found = BTreeSet::new();
    let mut add = |path: &[String]| {
        found.extend(resolve(&made.modules, module, path).map(|full| owner(made, &full)));
    };
    for (tree, _) in uses(text) {
        for (path, _) in expand(&tree) {
            if matches!(path[0].as_str(), "crate" | "super" | "self") {
                add(&path);
            }
        }
    }
    for start in ["crate::", "super::"] {
        for (at, _) in text.match_indices(start) {
            let path = text[at..].split(|c: char| !(c.is_alphanumeric() || c == '_' || c == ':')).next().unwrap_or("");
            let before = text[..at].chars().next_back().unwrap_or(' ');
            if !before.is_alphanumeric() && before != '_' && before != ':' && before != '$' {
                add(&path.split("::").filter(|part| !part.is_empty()).map(str::to_owned).collect::<Vec<_>>());
            }
        }
    }
    found
}

/// For each folder of modules: which sibling names which, with one file as the witness.
fn sibling_arrows(made: &Crate) -> BTreeMap<Module, BTreeMap<(String, String), String>> {
    let mut arrows: BTreeMap<Module, BTreeMap<(String, String), String>> = BTreeMap::new();
    for (module, path, text) in &made.files {
        for target in references(made, module, text) {
            let common = module.iter().zip(&target).take_while(|(a, b)| a == b).count();
            if common < module.len() && common < target.len() {
                let edge = (module[common].clone(), target[common].clone());
                arrows.entry(module[..common].to_vec()).or_default().entry(edge).or_insert_with(|| path.clone());
            }
        }
    }
    arrows
}

/// What can be reached from each module by arrows between siblings.
fn reachable(edges: &BTreeMap<(String, String), String>) -> BTreeSet<(String, String)> {
    let mut reach: BTreeSet<(String, String)> = edges.keys().cloned().collect();
    loop {
        let more: Vec<_> = reach
            .iter()
            .flat_map(|(a, b)| {
                edges.keys().filter(move |(from, _)| from == b).map(move |(_, to)| (a.clone(), to.clone()))
            })
            .filter(|pair| !reach.contains(pair))
            .collect();
        if more.is_empty() {
            return reach;
        }
        reach.extend(more);
    }
}

#[test]
fn modules_form_no_circle() {
    let mut broken = Vec::new();
    for made in crates() {
        for (parent, edges) in sibling_arrows(&made) {
            let reach = reachable(&edges);
            let place = format!("{} crate::{}", made.folder, parent.join("::"));
            for ((from, to), path) in &edges {
                if from != to && reach.contains(&(to.clone(), from.clone())) {
                    broken.push(format!("{place}: {from} → {to} closes a circle ({path})"));
                }
            }
        }
    }
    report(&broken);
}

#[test]
fn type_name_stands_for_one_type() {
    let mut types: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for made in crates() {
        for (_, path, text) in &made.files {
            for line in text.lines() {
                let line =
                    line.trim_start_matches("pub(crate) ").trim_start_matches("pub(super) ").trim_start_matches("pub ");
                for keyword in ["struct ", "enum ", "trait "] {
                    let Some(rest) = line.strip_prefix(keyword) else { continue };
                    let name = rest.split(|c: char| !(c.is_alphanumeric() || c == '_')).next().unwrap_or("");
                    types.entry(name.to_owned()).or_default().push(path.clone());
                }
            }
        }
    }
    let broken: Vec<_> = types
        .iter()
        .filter(|(name, paths)| paths.len() > 1 && !SHARED_NAMES.contains(&name.as_str()))
        .map(|(name, paths)| format!("{name} is {} types: {}", paths.len(), paths.join(", ")))
        .collect();
    report(&broken);
}
