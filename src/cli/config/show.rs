//! `sluicegate config show`: prints objects that do what `--route` does.

use std::path::Path;
use std::process::ExitCode;

use control::api::yaml;
use control::bounded_file;

use super::gateway_objects::GatewayObjects;
use crate::cli::{USAGE, exit_code, tell};
use crate::config::{RunConfig, Settings};

/// Bytes of a file that a setting names.
const FILE_BYTES_MAX: u64 = 4 << 20;

/// Below the flags.
pub(super) const HELP: &str = "\
The flags, variables and config file are those of `sluicegate run`. Apply the output to an appliance that is started without \
the routes: `sluicegate config show --config FILE | kubectl apply -f -`. It has the passwords' hashes and private keys of the \
files that the settings name. What no object says is in comments and on stderr, and then the exit status is 1.";

/// Exit status 1 if something has no object.
pub(super) fn run(settings: Settings) -> ExitCode {
    let objects = RunConfig::decide(settings).and_then(|config| GatewayObjects::of(&config, &read));
    match objects {
        Ok(objects) => {
            objects.notes.iter().for_each(|note| complain!("sluicegate: config show: {note}"));
            let is_whole = objects.notes.is_empty();
            exit_code(tell(&text(&objects)).map(|()| is_whole))
        }
        Err(why) => {
            complain!("sluicegate: config show: {why}");
            USAGE.into()
        }
    }
}

/// The documents, and before them in comments what they do not say.
fn text(GatewayObjects { list, notes }: &GatewayObjects) -> String {
    let mut text = String::new();
    if list.is_empty() {
        text.push_str("# There are no routes.\n");
    }
    for note in notes {
        text.push_str(&format!("# {}\n", note.replace('\n', " ")));
    }
    let documents: Vec<_> = list.iter().map(yaml::write).collect();
    text.push_str(&documents.join("---\n"));
    text
}

fn read(file: &Path) -> Result<String, String> {
    let named = |why: &dyn std::fmt::Display| format!("{}: {why}", file.display());
    match bounded_file::read_text(file, FILE_BYTES_MAX) {
        Ok(Some(text)) => Ok(text),
        Ok(None) => Err(named(&format!("it has more than {FILE_BYTES_MAX} bytes"))),
        Err(why) => Err(named(&why)),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn note_stays_in_its_comment() {
        let objects =
            GatewayObjects { list: vec![json!({ "a": 1 }), json!({ "b": 2 })], notes: vec!["x\ny".to_owned()] };
        assert_eq!(text(&objects), "# x y\na: 1\n---\nb: 2\n");
        assert_eq!(text(&GatewayObjects::default()), "# There are no routes.\n");
    }
}
