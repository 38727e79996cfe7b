//! The config file: TOML, or YAML by its extension.

use std::fmt;
use std::path::Path;

use control::bounded_file;
use serde::Deserializer;

use super::Settings;

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
    parsed.map_err(|why| format!("config: {name}: {why}"))
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
            assert!(why.contains("wrokers") && !why.contains('\n'), "{why}");
        }
    }

    #[test]
    fn bad_value_is_named_by_key_in_one_line() {
        for (name, text) in [("c.toml", "workers = 2\nhttp = \"nowhere\"\n"), ("c.yaml", "http: nowhere\n")] {
            let why = read_text(name, text).unwrap_err();
            assert!(!why.contains('\n') && !why.contains('|'), "{why}");
            assert_eq!(why.matches("http: ").count(), 1, "{why}");
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
