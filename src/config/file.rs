//! The config file: TOML, or YAML by its extension.

use std::fmt;
use std::path::Path;

use control::bounded_file;
use control::nearest::nearest;
use serde::Deserializer;

use super::{Settings, setting_names};

/// A megabyte of settings does not occur; a wrong path (a disk image, a log) must not be read whole.
const FILE_BYTES_MAX: u64 = 1 << 20;

pub(super) fn read(path: &Path) -> Result<Settings, String> {
    let name = path.display();
    let text = bounded_file::read_text(path, FILE_BYTES_MAX).map_err(|why| format!("config: {name}: {why}"))?;
    let text = text.ok_or_else(|| format!("config: {name} has more than {FILE_BYTES_MAX} bytes"))?;
    let yaml = path.extension().is_some_and(|end| end == "yaml" || end == "yml" || end == "json");
    let parsed = if yaml {
        with_key(serde_norway::Deserializer::from_str(&text))
    } else {
        toml::Deserializer::parse(&text).map_err(|why| one_line(&why)).and_then(with_key)
    };
    parsed.map_err(|why| match line_of(&text, &why) {
        Some(line) => format!("config: {name}:{line}: {}", with_nearest(&why)),
        None => format!("config: {name}: {}", with_nearest(&why)),
    })
}

/// The key that an error is about: its first word, or the first quoted one.
fn key_of(why: &str) -> &str {
    let unknown = why.split_once("unknown field `").and_then(|(_, rest)| rest.split_once('`')).map(|(key, _)| key);
    unknown.unwrap_or_else(|| why.split([':', '[']).next().unwrap_or_default())
}

/// The line of the key, from 1.
fn line_of(text: &str, why: &str) -> Option<usize> {
    let key = key_of(why);
    let is_key = |line: &str| {
        let rest = line.trim_start().trim_start_matches('"').strip_prefix(key);
        rest.is_some_and(|rest| rest.trim_start_matches('"').trim_start().starts_with(['=', ':']))
    };
    text.lines().position(is_key).map(|at| at + 1)
}

/// The error of an unknown key names the nearest right key instead of all keys.
fn with_nearest(why: &str) -> String {
    if !why.contains("unknown field `") {
        return why.to_owned();
    }
    let (key, names) = (key_of(why), setting_names());
    match nearest(key, names.iter().map(String::as_str)) {
        Some(near) => format!("{key}: unknown key; did you mean {near}?"),
        None => format!("{key}: unknown key; `sluicegate run --help` lists them"),
    }
}

/// Parses the settings; a bad value's error begins with its key.
fn with_key<'de, D>(input: D) -> Result<Settings, String>
where
    D: Deserializer<'de>,
    D::Error: fmt::Display,
{
    serde_path_to_error::deserialize(input).map_err(|why| match why.path().to_string().as_str() {
        "." => one_line(why.inner()),
        key => {
            let message = one_line(why.inner());
            // YAML's errors name it themselves.
            if message.starts_with(&format!("{key}: ")) { message } else { format!("{key}: {message}") }
        }
    })
}

/// Without the lines of the file that TOML's errors show: `2 | http = 5`, and the marker below it.
fn one_line(why: &impl fmt::Display) -> String {
    let is_shown = |line: &str| line.trim_start_matches(|c: char| c.is_ascii_digit()).trim_start().starts_with('|');
    let text = why.to_string();
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !is_shown(line));
    lines.collect::<Vec<_>>().join(": ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_text(name: &str, text: &str) -> Result<Settings, String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        read(&path)
    }

    #[test]
    fn unknown_key_is_named_in_one_line() {
        for (name, text) in [("c.toml", "wrokers = 2\n"), ("c.yaml", "wrokers: 2\n")] {
            let why = read_text(name, text).unwrap_err();
            assert!(why.contains("wrokers: unknown key; did you mean workers?") && !why.contains('\n'), "{why}");
            assert!(why.contains(&format!("{name}:1: ")), "{why}");
        }
    }

    #[test]
    fn bad_value_is_named_by_key_in_one_line() {
        for (name, text) in [("c.toml", "workers = 2\nhttp = \"nowhere\"\n"), ("c.yaml", "http: nowhere\n")] {
            let why = read_text(name, text).unwrap_err();
            assert!(!why.contains('\n') && !why.contains('|'), "{why}");
            assert_eq!(why.matches("http: ").count(), 1, "{why}");
            assert!(why.contains("c.toml:2: ") || why.contains("c.yaml:1: "), "{why}");
        }
    }

    #[test]
    fn yaml_and_toml_are_equivalent() {
        let toml = read_text("c.toml", "image = [\"a/b=/bin/true x\"]\nhttp = \"127.0.0.1:0\"\n").unwrap();
        let yaml = read_text("c.yaml", "image: a/b=/bin/true x\nhttp: 127.0.0.1:0\n").unwrap();
        assert_eq!((toml.image.clone(), toml.http), (yaml.image, yaml.http));
        assert_eq!(toml.image[0].0[0].command, ["/bin/true", "x"]);
    }
}
