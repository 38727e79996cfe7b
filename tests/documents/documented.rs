//! What a platform has to tell its users, and where it stands.

/// The section of a document that begins with this heading.
fn section<'a>(document: &'a str, heading: &str) -> &'a str {
    let (_, from) = document.split_once(&format!("\n## {heading}\n")).expect("the section is there");
    from.split("\n## ").next().unwrap_or(from)
}

/// SRV-REQ-05, RT-USER-03, RT-FS-08: how names come to resolve, who an instance is that says nothing, and what is mounted beside
/// its volumes.
#[test]
fn what_users_have_to_know_is_told() {
    let serving = include_str!("../../docs/serving.md");
    for (heading, told) in [
        ("Domains", ["`config-domain`", "`*.example.com. A ADDRESS`", "sslip.io"].as_slice()),
        ("What an instance is given", &["Without a `runAsUser` it runs as the user of the appliance"]),
        (
            "What an instance is given",
            &["`terminationMessagePath`", "/sys/fs/cgroup", "`/proc/sys`", "`/dev` of its own"],
        ),
        ("Names", &["`/etc/resolv.conf`"]),
    ] {
        for words in told {
            assert!(section(serving, heading).contains(words), "{heading}: {words}");
        }
    }
}

/// RT-LIFE-02, RT-LIFE-08, RT-LIFE-10, RT-HDR-09, SRV-ROUTE-04: in what a process is not a container and how one asks for it, who
/// reads what a program left that is gone, which headers come on top, and what becomes of a Route whose Revision is deleted.
#[test]
fn what_differs_from_a_container_is_told() {
    let (serving, api) = (include_str!("../../docs/serving.md"), include_str!("../../docs/api.md"));
    let readme = include_str!("../../README.md");
    for (document, heading, told) in [
        (readme, "Use it", ["**Images run as containers.**", "`runtime.sluicegate.dev/class: process`"].as_slice()),
        (serving, "What an instance is given", &["process ids are the host's"]),
        (serving, "What a program sees of a request", &["Added are our client in `Forwarded`", "`traceparent`"]),
        (serving, "Traffic", &["is not kept from being deleted"]),
        (api, "Instances as Pods", &["`kubectl get --raw /sluicegate/logs/UID`", "those that are gone included"]),
    ] {
        for words in told {
            assert!(section(document, heading).contains(words), "{heading}: {words}");
        }
    }
}

/// SRV-EXT-02: every annotation and label of our own bears a domain of ours.
#[test]
fn annotations_of_our_own_have_our_prefix() {
    let serving = include_str!("../../docs/serving.md");
    let rows = ["Traffic", "Cold starts"].map(|heading| section(serving, heading).lines());
    let cells = rows.into_iter().flatten().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
    let names: Vec<_> = cells.collect();
    assert!(names.len() >= 5, "{names:?}");
    for name in names {
        assert!(name.starts_with("sluicegate.dev/"), "{name}");
    }
}
