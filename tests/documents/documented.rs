//! Facts that a platform must document, and where the documents contain them.

/// The section of a document that begins with this heading.
fn section<'a>(document: &'a str, heading: &str) -> &'a str {
    let (_, from) = document.split_once(&format!("\n## {heading}\n")).expect("the section is there");
    from.split("\n## ").next().unwrap_or(from)
}

/// SRV-REQ-05, RT-USER-03, RT-FS-08: how names resolve, the default user of an instance, and what is mounted besides
/// its volumes.
#[test]
fn facts_for_users_are_documented() {
    let serving = include_str!("../../docs/serving.md");
    for (heading, documented) in [
        ("Domains", ["`config-domain`", "`*.example.com. A ADDRESS`", "sslip.io"].as_slice()),
        ("What an instance is given", &["Without a `runAsUser` it runs as the user of the appliance"]),
        (
            "What an instance is given",
            &["`terminationMessagePath`", "/sys/fs/cgroup", "`/proc/sys`", "`/dev` of its own"],
        ),
        ("Names", &["`/etc/resolv.conf`"]),
    ] {
        for words in documented {
            assert!(section(serving, heading).contains(words), "{heading}: {words}");
        }
    }
}

/// RT-LIFE-02, RT-LIFE-08, RT-LIFE-10, RT-HDR-09, SRV-ROUTE-04: the differences between a process and a container, the logs of
/// ended instances, added headers, and what happens to a Route whose Revision is deleted.
#[test]
fn differences_from_containers_are_documented() {
    let (serving, api) = (include_str!("../../docs/serving.md"), include_str!("../../docs/api.md"));
    let readme = include_str!("../../README.md");
    for (document, heading, documented) in [
        (readme, "Use it", ["**Images run as containers.**", "`runtime.sluicegate.dev/class: process`"].as_slice()),
        (serving, "What an instance is given", &["process ids are the host's"]),
        (serving, "What a program sees of a request", &["Added are our client in `Forwarded`", "`traceparent`"]),
        (serving, "Traffic", &["a Route uses can be deleted"]),
        (api, "Instances as Pods", &["`kubectl get --raw /sluicegate/logs/UID`", "including those that have ended"]),
    ] {
        for words in documented {
            assert!(section(document, heading).contains(words), "{heading}: {words}");
        }
    }
}

/// SRV-EXT-02: every annotation and label of our own has a domain of ours.
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
