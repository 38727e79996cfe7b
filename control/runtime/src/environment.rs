//! The environment variables of an instance.
//!
//! Nothing is inherited from the appliance, whose own variables may contain secrets of the operator. The
//! platform's variables come last, so that a developer's variable of the same name has no effect.

use std::path::Path;

use crate::InstanceSpec;
use crate::logs::termination_message;
use crate::names::host_name;
use crate::process::host_processes::INSTANCE_MARK;

/// Where programs are looked up unless the developer says otherwise; what container images use.
pub const SEARCH_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The folder that holds the files of all volumes by their names, for programs that cannot be given mounts.
const VOLUMES: &str = "SLUICEGATE_VOLUMES";

/// The variables with our prefix in all instances.
pub const PLATFORM_VARIABLES: [&str; 3] = [INSTANCE_MARK, VOLUMES, termination_message::VARIABLE];

/// With the next, a placeholder in a variable for what only the instance itself knows. No variable can hold a NUL, so no user
/// else's text is taken for it.
pub const POD_NAME_PLACEHOLDER: &str = "\0name\0";
pub const POD_UID_PLACEHOLDER: &str = "\0uid\0";

/// The variables of a single instance.
#[derive(Debug, Clone, Copy)]
pub(crate) struct InstanceVariables<'a> {
    /// `None`: not the serving container.
    pub(crate) port: Option<u16>,
    /// Its Pod's.
    pub(crate) name: &'a str,
    /// Unique among all instances.
    pub(crate) mark: &'a str,
    /// The folder of its volumes.
    pub(crate) volumes: &'a Path,
    /// The file for its termination message, if it has one.
    pub(crate) termination_message: Option<&'a Path>,
}

/// Every variable of one instance, each name once.
pub(crate) fn environment(spec: &InstanceSpec, own: InstanceVariables<'_>) -> Vec<(String, String)> {
    let home = spec.working_dir.as_ref().map_or_else(|| "/".into(), |dir| dir.display().to_string());
    // A container's home is its user's, which only its image defines.
    let home = spec.image.is_none().then(|| ("HOME".into(), home));
    let mut all: Vec<(String, String)> = vec![
        ("PATH".into(), SEARCH_PATH.into()),
        // As containers have it: programs tell each other apart by it, or look up what is meant for them alone.
        ("HOSTNAME".into(), host_name(own.name).into()),
    ];
    all.extend(home);
    let uid = spec.pod.as_ref().map_or(own.mark, |pod| pod.uid.as_str());
    for (name, value) in &spec.env {
        // A name that no process can have is left out.
        if !name.is_empty() && !name.contains(['=', '\0']) {
            if value.contains('\0') {
                set(&mut all, name, &value.replace(POD_NAME_PLACEHOLDER, own.name).replace(POD_UID_PLACEHOLDER, uid));
            } else {
                set(&mut all, name, value);
            }
        }
    }
    // A Pod's author may name a port, which stands where the kernel makes the container port its own.
    let is_named = spec.pod.is_some() && own.port == Some(spec.port) && all.iter().any(|(name, _)| name == "PORT");
    if let Some(port) = own.port.filter(|_| !is_named) {
        set(&mut all, "PORT", &port.to_string());
    }
    if spec.pod.is_none() {
        set(&mut all, "K_SERVICE", &spec.service);
        set(&mut all, "K_CONFIGURATION", &spec.configuration);
        set(&mut all, "K_REVISION", &spec.revision);
    }
    // In a container the paths of the host do not apply, because all of it is mounted.
    if !spec.volumes.is_empty() && spec.image.is_none() {
        set(&mut all, VOLUMES, &own.volumes.display().to_string());
    }
    if let Some(path) = own.termination_message.filter(|_| spec.image.is_none()) {
        set(&mut all, termination_message::VARIABLE, &path.display().to_string());
    }
    set(&mut all, INSTANCE_MARK, own.mark);
    all
}

/// SRV-CON-03, SRV-CON-04: the words of a command, in which `$(PORT)` is the instance's.
pub(crate) fn command(spec: &InstanceSpec, environment: &[(String, String)]) -> Vec<String> {
    spec.command.iter().map(|word| expand_variables(word, environment)).collect()
}

/// `$(NAME)` is the value of an earlier variable, `$$` is `$`; anything else stays as it is.
pub fn expand_variables(text: &str, known: &[(String, String)]) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        out.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix('$') {
            out.push('$');
            rest = after;
        } else if let Some((name, after)) = rest.strip_prefix('(').and_then(|inner| inner.split_once(')')) {
            match known.iter().rev().find(|(known, _)| known == name) {
                Some((_, value)) => out.push_str(value),
                None => out.extend(["$(", name, ")"]),
            }
            rest = after;
        } else {
            out.push('$');
        }
    }
    out + rest
}

fn set(all: &mut Vec<(String, String)>, name: &str, value: &str) {
    match all.iter_mut().find(|(known, _)| known == name) {
        Some((_, old)) => value.clone_into(old),
        None => all.push((name.to_owned(), value.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::spec;

    fn own(port: u16) -> InstanceVariables<'static> {
        let port = Some(port);
        InstanceVariables {
            port,
            name: "hello-00001-deployment-z",
            mark: "m",
            volumes: Path::new("/v"),
            termination_message: None,
        }
    }

    fn value(all: &[(String, String)], name: &str) -> Option<String> {
        let found: Vec<_> = all.iter().filter(|(known, _)| known == name).collect();
        assert!(found.len() < 2, "{name} is there twice");
        found.first().map(|(_, value)| value.clone())
    }

    /// RT-ENV-01, RT-ENV-02, RT-ENV-03, RT-ENV-04: the platform's variables, whatever the developer wrote.
    #[test]
    fn a_developer_cannot_override_the_platforms_variables() {
        let mut spec = spec(&["true"]);
        for name in ["PORT", "K_SERVICE", "K_REVISION", "K_CONFIGURATION"] {
            spec.env.push((name.into(), "forged".into()));
        }
        let all = environment(&spec, own(4711));
        assert_eq!(value(&all, "PORT").unwrap(), "4711");
        assert_eq!(value(&all, "HOSTNAME").unwrap(), "hello-00001-deployment-z");
        assert_eq!(value(&all, "K_SERVICE").unwrap(), "hello");
        assert_eq!(value(&all, "K_CONFIGURATION").unwrap(), "hello-conf");
        assert_eq!(value(&all, "K_REVISION").unwrap(), "hello-00001");
    }

    #[test]
    fn a_sidecars_port_is_its_authors_business() {
        let mut spec = spec(&["true"]);
        assert_eq!(value(&environment(&spec, InstanceVariables { port: None, ..own(1) }), "PORT"), None);
        spec.env.push(("PORT".into(), "9000".into()));
        let all = environment(&spec, InstanceVariables { port: None, ..own(1) });
        assert_eq!(value(&all, "PORT").as_deref(), Some("9000"));
        assert_eq!(value(&all, "K_REVISION").as_deref(), Some("hello-00001"));
    }

    /// SRV-CON-03: as in a container, `$(NAME)` is filled in, `$$` is a dollar, and the unknown stays.
    #[test]
    fn arguments_may_name_variables() {
        let mut spec = spec(&["serve", "--port=$(PORT)", "$$(PORT)", "$(NOBODY) $HOME $"]);
        spec.env.push(("A".into(), "1".into()));
        let words = command(&spec, &environment(&spec, own(4711)));
        assert_eq!(words, ["serve", "--port=4711", "$(PORT)", "$(NOBODY) $HOME $"]);
    }

    #[test]
    fn an_instance_finds_its_own_name_where_it_was_asked_for() {
        let mut spec = spec(&["serve", "$(WHO)"]);
        for (name, text) in [("WHO", format!("<{POD_NAME_PLACEHOLDER}>")), ("UID", POD_UID_PLACEHOLDER.into())] {
            spec.env.push((name.into(), text));
        }
        let all = environment(&spec, InstanceVariables { termination_message: Some(Path::new("/w")), ..own(1) });
        assert_eq!(value(&all, "WHO").unwrap(), "<hello-00001-deployment-z>");
        assert_eq!(value(&all, "UID").unwrap(), "m");
        assert_eq!(value(&all, "SLUICEGATE_TERMINATION_LOG").unwrap(), "/w");
        assert_eq!(command(&spec, &all)[1], "<hello-00001-deployment-z>");
    }

    #[test]
    fn the_last_of_equal_names_wins_and_impossible_names_are_left_out() {
        let mut spec = spec(&["true"]);
        for (name, text) in [("A", "1"), ("A", "2"), ("PATH", "/x"), ("", "e"), ("B=C", "d")] {
            spec.env.push((name.into(), text.into()));
        }
        let all = environment(&spec, own(1));
        assert_eq!(value(&all, "A").unwrap(), "2");
        assert_eq!(value(&all, "PATH").unwrap(), "/x");
        assert!(all.iter().all(|(name, _)| !name.is_empty() && !name.contains('=')));
    }
}
