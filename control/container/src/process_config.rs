//! The command of a container: the image's configuration, overridden by the manifest.
//!
//! Kubernetes' table: `command` replaces the image's entrypoint and its arguments, `args` alone replace the arguments.

use std::collections::HashMap;

use rustix::process::Signal;
use serde::{Deserialize, Serialize};

/// The image's own words (OCI image specification, `config`).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ImageProcess {
    #[serde(rename = "Entrypoint", deserialize_with = "or_empty")]
    pub entrypoint: Vec<String>,
    #[serde(rename = "Cmd", deserialize_with = "or_empty")]
    pub cmd: Vec<String>,
    /// `NAME=VALUE`
    #[serde(rename = "Env", deserialize_with = "or_empty")]
    pub env: Vec<String>,
    #[serde(rename = "WorkingDir", deserialize_with = "or_empty")]
    pub working_dir: String,
    #[serde(rename = "User", deserialize_with = "or_empty")]
    pub user: String,
    #[serde(rename = "StopSignal", deserialize_with = "or_empty")]
    pub stop_signal: String,
}

/// Images say `null` as well as nothing.
fn or_empty<'de, D: serde::Deserializer<'de>, T: Deserialize<'de> + Default>(from: D) -> Result<T, D::Error> {
    Ok(Option::<T>::deserialize(from)?.unwrap_or_default())
}

/// The command from `command` and `args` of a manifest. An error: there is nothing to run.
pub fn command_line(image: &ImageProcess, command: &[String], args: &[String]) -> Result<Vec<String>, String> {
    let (program, arguments) = match (command, args) {
        ([], []) => (&*image.entrypoint, &*image.cmd),
        ([], args) => (&*image.entrypoint, args),
        (command, args) => (command, args),
    };
    let words: Vec<String> = program.iter().chain(arguments).cloned().collect();
    if words.is_empty() {
        return Err("the image has neither an entrypoint nor a command; set command or args".to_owned());
    }
    Ok(words)
}

/// The image's variables, and a PATH as Docker has it where the image has none. The manifest's come after them and win.
#[must_use]
pub fn variables(image: &ImageProcess) -> Vec<(String, String)> {
    let mut all = vec![("PATH".to_owned(), DEFAULT_PATH.to_owned())];
    // An image's configuration may name some hundred thousand variables: too many to search the list for each.
    let mut positions = HashMap::from([("PATH", 0)]);
    for variable in &image.env {
        let (name, value) = variable.split_once('=').unwrap_or((variable, ""));
        if name.is_empty() || variable.contains('\0') {
            continue; // a process cannot have it
        }
        let at = *positions.entry(name).or_insert(all.len());
        match all.get_mut(at) {
            Some((_, old)) => value.clone_into(old),
            None => all.push((name.to_owned(), value.to_owned())),
        }
    }
    all
}

const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The signal that asks it to end: a number, or a name in any case, with or without `SIG`. SIGTERM if the image names no
/// signal or an unknown one.
#[must_use]
pub fn stop_signal(image: &ImageProcess) -> Signal {
    let text = image.stop_signal.trim().to_ascii_uppercase();
    let by_number = text.parse().ok().and_then(Signal::from_named_raw);
    let name = text.strip_prefix("SIG").unwrap_or(&text);
    let by_name = SIGNALS.iter().find(|(known, _)| *known == name).map(|(_, signal)| *signal);
    by_number.or(by_name).unwrap_or(Signal::TERM)
}

/// The usual termination signals, and other signals with a common use.
const SIGNALS: [(&str, Signal); 12] = [
    ("ABRT", Signal::ABORT),
    ("ALRM", Signal::ALARM),
    ("HUP", Signal::HUP),
    ("INT", Signal::INT),
    ("KILL", Signal::KILL),
    ("PIPE", Signal::PIPE),
    ("PWR", Signal::POWER),
    ("QUIT", Signal::QUIT),
    ("TERM", Signal::TERM),
    ("USR1", Signal::USR1),
    ("USR2", Signal::USR2),
    ("WINCH", Signal::WINCH),
];

#[cfg(test)]
mod tests {
    use super::*;

    fn words(list: &[&str]) -> Vec<String> {
        list.iter().map(|&word| word.to_owned()).collect()
    }

    fn image() -> ImageProcess {
        let text = r#"{"Entrypoint":["/entry","a"],"Cmd":["b"],"Env":["A=1","PATH=/bin","A=2","=x","B"],
                       "WorkingDir":"/srv","User":"app","StopSignal":"SIGQUIT","Labels":null}"#;
        serde_json::from_str(text).unwrap()
    }

    /// The four rows of Kubernetes' table.
    #[test]
    fn command_and_args_win_over_entrypoint_and_cmd() {
        for (command, args, wanted) in [
            (&[][..], &[][..], &["/entry", "a", "b"][..]),
            (&["/c"], &[], &["/c"]),
            (&[], &["x"], &["/entry", "a", "x"]),
            (&["/c"], &["x"], &["/c", "x"]),
        ] {
            assert_eq!(command_line(&image(), &words(command), &words(args)).unwrap(), words(wanted));
        }
        assert!(command_line(&ImageProcess::default(), &[], &[]).is_err());
        assert_eq!(command_line(&ImageProcess::default(), &[], &words(&["x"])).unwrap(), ["x"]);
    }

    #[test]
    fn last_variable_of_image_wins() {
        let all = variables(&image());
        let pairs: Vec<_> = all.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        assert_eq!(pairs, [("PATH", "/bin"), ("A", "2"), ("B", "")]);
        assert_eq!(variables(&ImageProcess::default())[0].1, DEFAULT_PATH);
    }

    #[test]
    fn null_in_image_config_is_nothing() {
        let nothing = r#"{"Entrypoint":null,"Cmd":null,"Env":null,"User":null,"ExposedPorts":{"80/tcp":{}}}"#;
        assert_eq!(serde_json::from_str::<ImageProcess>(nothing).unwrap(), ImageProcess::default());
    }

    #[test]
    fn stop_signal_is_read_by_name_or_number() {
        for (text, wanted) in [
            ("SIGQUIT", Signal::QUIT),
            ("WINCH", Signal::WINCH),
            ("sigint", Signal::INT),
            ("2", Signal::INT),
            ("", Signal::TERM),
            ("SIGRTMIN+3", Signal::TERM),
            ("99", Signal::TERM),
        ] {
            let image = ImageProcess { stop_signal: text.to_owned(), ..ImageProcess::default() };
            assert_eq!(stop_signal(&image), wanted, "{text}");
        }
    }
}
