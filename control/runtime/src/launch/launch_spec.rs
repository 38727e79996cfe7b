//! The launch spec of an instance, as words: written by the appliance, read by init in the instance's own process.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

use rustix::process::Pid;

use container::{BindMount, CgroupView, ExecSpec, ExecStdin};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::capabilities::Capabilities;
use crate::sandbox_spec::SandboxSpec;

/// The verb that the program's `main` passes to [`super::init::run`], with all arguments behind it.
pub const VERB: &str = "instance-init";

/// What init needs to become the instance.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct LaunchSpec {
    pub(crate) sandbox: SandboxSpec,
    /// The rest comes later.
    pub(crate) is_prefork: bool,
    /// It is the first process of a pid namespace, and will be a container.
    pub(crate) is_first_process: bool,
    /// It is in a container's pid namespace, and will enter the container.
    pub(crate) is_beside: bool,
    /// How it enters it.
    pub(crate) enter: Option<ExecSpec>,
    /// The variables come on stdin.
    pub(crate) variables_follow: bool,
    /// It is a command of a client's, which reads this; its words on stdin have their length in front.
    pub(crate) session: Option<ExecStdin>,
    /// `NAME=VALUE`; the parent has set none.
    pub(crate) variables: Vec<OsString>,
    pub(crate) command: Vec<OsString>,
}

/// The words of the verb, as the parent writes them. The variables follow on stdin: init still has all
/// rights, so they must not be in its own environment, where `LD_PRELOAD` would take effect.
pub(crate) fn arguments(parent: Pid, place: &SandboxSpec, command: &[String]) -> Vec<OsString> {
    let mut words = first_words(parent, place);
    words.extend(["--variables".into(), "--".into()]);
    words.extend(command.iter().map(OsString::from));
    words
}

fn first_words(parent: Pid, place: &SandboxSpec) -> Vec<OsString> {
    let mut words: Vec<OsString> = vec![VERB.into(), "--parent".into(), parent.as_raw_nonzero().to_string().into()];
    append_sandbox(&mut words, place);
    words
}

/// The words of one that waits at `place`, as far as that is known.
pub(crate) fn prefork_arguments(parent: Pid, place: &SandboxSpec) -> Vec<OsString> {
    let mut words = first_words(parent, place);
    words.push("--wait".into());
    words
}

/// The same of one that will be a container.
pub(crate) fn first_process_arguments(parent: Pid, place: &SandboxSpec) -> Vec<OsString> {
    let mut words = prefork_arguments(parent, place);
    words.push("--first-process".into());
    words
}

/// The same of one that will enter the container in whose pid namespace it is.
pub(crate) fn beside_arguments(parent: Pid, place: &SandboxSpec) -> Vec<OsString> {
    let mut words = prefork_arguments(parent, place);
    words.push("--beside".into());
    words
}

/// The words of a client's command: of one beside the instance's own program, and of one that enters its container.
pub(crate) fn session_arguments(
    parent: Pid,
    place: &SandboxSpec,
    stdin: ExecStdin,
    command: Option<&[String]>,
) -> Vec<OsString> {
    let mut words = match command {
        Some(_) => first_words(parent, place),
        None => beside_arguments(parent, place),
    };
    words.extend(["--session".into(), json(&stdin)]);
    if let Some(command) = command {
        words.extend(["--variables".into(), "--".into()]);
        words.extend(command.iter().map(OsString::from));
    }
    words
}

/// What follows on stdin behind [`arguments`]. `None` if a variable has a NUL in it, which no process can have.
pub(crate) fn encode_variables(variables: &[(String, String)]) -> Option<Vec<u8>> {
    let words: Vec<String> = variables.iter().map(|(name, value)| format!("{name}={value}")).collect();
    (!words.iter().any(|word| word.contains('\0'))).then(|| words.join("\0").into_bytes())
}

fn json(spec: &impl Serialize) -> OsString {
    serde_json::to_string(spec).expect("text and numbers always become JSON").into()
}

fn from_json<T: DeserializeOwned>(word: Option<OsString>) -> Result<T, &'static str> {
    word.and_then(|word| serde_json::from_str(word.to_str()?).ok()).ok_or(USAGE)
}

/// The launch spec of a waiting process: words with NULs between them. `None` if a word contains a NUL.
pub(crate) fn encode(place: &SandboxSpec, variables: &[(String, String)], command: &[String]) -> Option<Vec<u8>> {
    let mut words = Vec::new();
    append_sandbox(&mut words, place);
    finish(words, variables, command)
}

/// The same for one that enters a container.
pub(crate) fn encode_beside(spec: &ExecSpec, variables: &[(String, String)], command: &[String]) -> Option<Vec<u8>> {
    finish(vec!["--enter".into(), json(spec)], variables, command)
}

fn finish(mut words: Vec<OsString>, variables: &[(String, String)], command: &[String]) -> Option<Vec<u8>> {
    for (name, value) in variables {
        words.extend(["--variable".into(), format!("{name}={value}").into()]);
    }
    words.push("--".into());
    words.extend(command.iter().map(OsString::from));
    let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
    (!words.iter().any(|word| word.contains(&0))).then(|| words.join(&0))
}

fn append_sandbox(words: &mut Vec<OsString>, place: &SandboxSpec) {
    for prefork in &place.cgroups {
        words.extend(["--cgroup".into(), prefork.folder.clone().into(), prefork.mount_point.clone().into()]);
    }
    if let Some(file) = &place.resolver {
        words.extend(["--resolver".into(), file.clone().into()]);
    }
    for bind in &place.binds {
        let access = if bind.read_only { "ro" } else { "rw" };
        words.extend(["--bind".into(), bind.source.clone().into(), bind.target.clone().into(), access.into()]);
        if let Some(path) = &bind.sub_path {
            words.extend(["--sub-path".into(), path.clone().into()]);
        }
    }
    for (word, paths) in [("--mask", &place.masks), ("--unmask", &place.unmasked)] {
        words.extend(paths.iter().flat_map(|path| [OsString::from(word), path.clone().into()]));
    }
    if let Some(dir) = &place.working_dir {
        words.extend(["--dir".into(), dir.clone().into()]);
    }
    for (word, id) in [("--user", place.credentials.user), ("--group", place.credentials.group)] {
        words.extend(id.into_iter().flat_map(|id| [OsString::from(word), id.to_string().into()]));
    }
    if place.credentials.capabilities != Capabilities::default() {
        let bits = place.credentials.capabilities.bits();
        words.extend(["--capabilities".into(), OsString::from(bits.to_string())]);
    }
    if let Some(name) = &place.hostname {
        words.extend(["--hostname".into(), name.into()]);
    }
    for (word, set) in [
        ("--never-root", place.credentials.run_as_non_root),
        ("--read-only", place.read_only_root),
        ("--host-devices", place.host_devices),
    ] {
        words.extend(set.then(|| OsString::from(word)));
    }
    if let Some(spec) = &place.container {
        words.extend(["--container".into(), json(spec)]);
    }
}

const USAGE: &str = "usage: instance-init --parent PID [--cgroup DIR MOUNTED]... [--resolver FILE] [--bind SOURCE TARGET ro|rw [--sub-path PATH]]... [--mask PATH]... [--unmask PATH]... \
                     [--dir DIR] [--user UID] [--group GID] [--capabilities BITS] [--hostname NAME] [--never-root] [--read-only] [--host-devices] [--variables] -- COMMAND [ARGUMENT]... \
                     or: instance-init --parent PID [--cgroup DIR MOUNTED]... [--host-devices] --wait [--first-process | --beside]";

/// What stands behind the verb.
pub(crate) fn parse_arguments(
    arguments: impl IntoIterator<Item = OsString>,
) -> Result<(Pid, LaunchSpec), &'static str> {
    let mut words = arguments.into_iter();
    if words.next().is_none_or(|word| word != "--parent") {
        return Err(USAGE);
    }
    let parent = words
        .next()
        .and_then(|word| word.to_str()?.parse::<i32>().ok())
        .filter(|pid| *pid > 0)
        .and_then(Pid::from_raw)
        .ok_or(USAGE)?;
    Ok((parent, decode(words)?))
}

/// Words up to the command, or to the word that says that it comes later.
pub(crate) fn decode(mut words: impl Iterator<Item = OsString>) -> Result<LaunchSpec, &'static str> {
    let id = |word: Option<OsString>| word.and_then(|word| word.to_str()?.parse::<u32>().ok()).ok_or(USAGE);
    let mut told = LaunchSpec::default();
    let place = &mut told.sandbox;
    loop {
        match words.next().as_ref().and_then(|word| word.to_str()) {
            Some("--cgroup") => {
                let mut next = || words.next().ok_or(USAGE);
                place.cgroups.push(CgroupView { folder: next()?.into(), mount_point: next()?.into() });
            }
            Some("--resolver") => place.resolver = Some(words.next().ok_or(USAGE)?.into()),
            Some("--bind") => {
                let mut next = || words.next().ok_or(USAGE);
                let (source, target, access) = (next()?.into(), next()?.into(), next()?);
                let read_only = access != "rw";
                place.binds.push(BindMount { source, sub_path: None, target, read_only, is_own: false });
            }
            Some("--sub-path") => {
                let bind = place.binds.last_mut().ok_or(USAGE)?;
                bind.sub_path = Some(words.next().ok_or(USAGE)?.into());
            }
            Some("--mask") => place.masks.push(words.next().ok_or(USAGE)?.into()),
            Some("--unmask") => place.unmasked.push(words.next().ok_or(USAGE)?.into()),
            Some("--user") => place.credentials.user = Some(id(words.next())?),
            Some("--group") => place.credentials.group = Some(id(words.next())?),
            Some("--capabilities") => {
                let bits = words.next().and_then(|word| word.to_str()?.parse().ok()).ok_or(USAGE)?;
                place.credentials.capabilities = Capabilities::from_bits(bits);
            }
            Some("--hostname") => {
                place.hostname = Some(words.next().and_then(|word| word.into_string().ok()).ok_or(USAGE)?);
            }
            Some("--never-root") => place.credentials.run_as_non_root = true,
            Some("--read-only") => place.read_only_root = true,
            Some("--host-devices") => place.host_devices = true,
            Some("--dir") => place.working_dir = Some(words.next().ok_or(USAGE)?.into()),
            Some("--variable") => told.variables.push(words.next().ok_or(USAGE)?),
            Some("--wait") => told.is_prefork = true,
            Some("--first-process") => told.is_first_process = true,
            Some("--beside") => told.is_beside = true,
            Some("--variables") => told.variables_follow = true,
            Some("--container") => place.container = Some(Box::new(from_json(words.next())?)),
            Some("--session") => told.session = Some(from_json(words.next())?),
            Some("--enter") => told.enter = Some(from_json(words.next())?),
            Some("--") => break,
            None if told.is_prefork => return Ok(told),
            _ => return Err(USAGE),
        }
    }
    told.command = words.collect();
    if told.command.is_empty() || told.is_prefork { Err(USAGE) } else { Ok(told) }
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStringExt;

    use container::ContainerSpec;

    use super::*;
    use crate::InstanceCredentials;

    fn words(list: &[&str]) -> Vec<OsString> {
        list.iter().map(OsString::from).collect()
    }

    #[test]
    fn what_the_parent_writes_is_what_init_reads() {
        let command = vec!["sh".to_owned(), "-c".to_owned(), "--".to_owned()];
        let bind = |target: &str, read_only| BindMount {
            source: "/a b".into(),
            sub_path: None,
            target: target.into(),
            read_only,
            is_own: false,
        };
        let prefork = |folder: &str| CgroupView { folder: folder.into(), mount_point: "/sys/fs".into() };
        let place = SandboxSpec {
            cgroups: vec![prefork("/sys/fs/c g"), prefork("/x")],
            resolver: Some("/etc/res olv".into()),
            binds: vec![
                bind("/--", true),
                BindMount { sub_path: Some("--".into()), ..bind("/b", false) },
                bind("/c", false),
            ],
            masks: vec!["/da ta".into(), "/s".into()],
            unmasked: vec!["/da ta/own".into()],
            working_dir: Some("/work dir".into()),
            credentials: InstanceCredentials {
                user: Some(1000),
                group: Some(0),
                run_as_non_root: true,
                capabilities: Capabilities::from_manifest(&[], &["ALL".to_owned()]),
            },
            hostname: Some("a-b".into()),
            read_only_root: true,
            host_devices: true,
            container: Some(Box::new(ContainerSpec {
                hostname: "--".into(),
                scratch: OsString::from_vec(b"/not \xff UTF-8".to_vec()).into(),
                ..ContainerSpec::default()
            })),
        };
        let written = arguments(Pid::from_raw(7).unwrap(), &place, &command);
        assert_eq!(written[0], VERB);

        let (parent, told) = parse_arguments(written[1..].iter().cloned()).unwrap();
        assert_eq!(parent.as_raw_nonzero().get(), 7);
        assert_eq!(told.sandbox, place);
        assert_eq!(told.command, words(&["sh", "-c", "--"]));

        let variables = [("A".to_owned(), "b=c".to_owned()), ("EMPTY".to_owned(), String::new())];
        let orders = encode(&place, &variables, &command).unwrap();
        let later = decode(orders.split(|byte| *byte == 0).map(|word| OsString::from_vec(word.to_vec()))).unwrap();
        assert_eq!(later.variables, words(&["A=b=c", "EMPTY="]));
        assert_eq!(LaunchSpec { variables: Vec::new(), variables_follow: true, ..later }, told);
        assert_eq!(encode_variables(&variables).unwrap(), b"A=b=c\0EMPTY=");
        assert_eq!(encode_variables(&[("A".to_owned(), "b\0LD_PRELOAD=c".to_owned())]), None);
    }

    #[test]
    fn one_that_waits_is_told_where_and_no_command() {
        let prefork = CgroupView { folder: "/a".into(), mount_point: "/".into() };
        let place = SandboxSpec { cgroups: vec![prefork], host_devices: true, ..SandboxSpec::default() };
        let written = prefork_arguments(Pid::from_raw(7).unwrap(), &place);
        let (_, told) = parse_arguments(written[1..].iter().cloned()).unwrap();
        assert!(told.is_prefork && !told.is_first_process);
        assert_eq!(told.sandbox, place);
        let written = first_process_arguments(Pid::from_raw(7).unwrap(), &place);
        assert!(parse_arguments(written[1..].iter().cloned()).unwrap().1.is_first_process);
    }

    #[test]
    fn entering_process_is_told_its_command() {
        let spec = ExecSpec { working_dir: Some("/w".into()), parent: 7, ..ExecSpec::default() };
        let command = vec!["cat".to_owned(), "--enter".to_owned()];
        let written = beside_arguments(Pid::from_raw(7).unwrap(), &SandboxSpec::default());
        assert!(parse_arguments(written[1..].iter().cloned()).unwrap().1.is_beside);
        let orders = encode_beside(&spec, &[("A".to_owned(), "1".to_owned())], &command).unwrap();
        let told = decode(orders.split(|byte| *byte == 0).map(|word| OsString::from_vec(word.to_vec()))).unwrap();
        assert_eq!((told.enter, told.command), (Some(spec), words(&["cat", "--enter"])));
        assert_eq!(told.variables, words(&["A=1"]));
    }

    #[test]
    fn command_of_client_is_told_what_it_reads() {
        let (parent, place) = (Pid::from_raw(7).unwrap(), SandboxSpec::default());
        let command = vec!["sh".to_owned(), "--session".to_owned()];
        for stdin in [ExecStdin::Null, ExecStdin::Inherited, ExecStdin::Terminal] {
            let written = session_arguments(parent, &place, stdin, Some(&command));
            let told = parse_arguments(written[1..].iter().cloned()).unwrap().1;
            assert_eq!((told.session, told.variables_follow), (Some(stdin), true));
            assert_eq!(told.command, words(&["sh", "--session"]));
            let written = session_arguments(parent, &place, stdin, None);
            let told = parse_arguments(written[1..].iter().cloned()).unwrap().1;
            assert!(told.session == Some(stdin) && told.is_beside && told.is_prefork);
        }
    }

    /// The text of a manifest cannot become an option of init.
    #[test]
    fn orders_have_no_nul_within_a_word() {
        let place = SandboxSpec::default();
        let of = |value: &str, word: &str| {
            encode(&place, &[("A".to_owned(), value.to_owned())], &["sh".to_owned(), word.to_owned()])
        };
        assert!(of("b", "").is_some());
        assert!(of("b\0--bind", "c").is_none() && of("b", "c\0--user").is_none());
    }

    #[test]
    fn anything_else_is_refused() {
        for bad in [
            &[][..],
            &["--parent"],
            &["--parent", "x", "--", "sh"],
            &["--parent", "0", "--", "sh"],
            &["--parent", "-1", "--", "sh"],
            &["--parent", "7", "sh"],
            &["--parent", "7", "--"],
            &["--parent", "7", "--bind", "/a", "/b"],
            &["--parent", "7", "--dir"],
            &["--parent", "7", "--mask"],
            &["--parent", "7", "--user", "root", "--", "sh"],
            &["--parent", "7", "--group", "-1", "--", "sh"],
            &["--parent", "7", "--wait", "--", "sh"],
            &["--parent", "7", "--cgroup", "/a", "/b"],
            &["--parent", "7", "--container", "{", "--", "sh"],
            &["--parent", "7", "--enter", "--", "sh"],
            &["--parent", "7", "--session", "all", "--", "sh"],
        ] {
            assert!(parse_arguments(words(bad)).is_err(), "{bad:?}");
        }
    }
}
